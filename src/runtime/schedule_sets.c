/* Products of the backward that become sets of one launch: gradients of weights, which nothing else reads, so that each may
 * wait for the last of its neighbours. Which ones is the device's word: those whose tiles share a last wave with gain. */
#include "runtime/schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_CANDIDATES = 12, /* all subsets are tried */
    ALONE = -1,          /* in list_of, while lists are chosen */
};

/* c += a @ b, of which a and b may be transposed. */
struct product {
    int program;
    int left; /* operand 0 or 1 */
    bool left_transposed, right_transposed;
    coda_dtype dtype[3]; /* of the operands */
    struct product_size size;
};

/* ---------------------------------------------------------------- candidates */

static bool is_whole_matrix(const struct shape *shape)
{
    return shape->rank == 2 && shape->dim[0].form == DIM_WHOLE && shape->dim[1].form == DIM_WHOLE &&
           shape->dim[0].axis >= 0 && shape->dim[1].axis >= 0;
}

/* The operand of a factor; -1: it is more than an operand. */
static int factor_of(const struct graph *graph, int node, bool *transposed)
{
    *transposed = graph->node[node].op == OP_TRANSPOSE;
    node = *transposed ? graph->node[node].input[0] : node;
    return graph->node[node].op == OP_IN ? graph->node[node].index : -1;
}

static int64_t size_of(const coda_schedule *schedule, const struct graph *graph, const struct dim *dim,
                       const int64_t *sizes)
{
    int axis = graph_find_axis(schedule->block, graph->axis[dim->axis].name);
    return axis < 0 ? 0 : sizes[axis];
}

static bool take_product(const coda_schedule *schedule, int program, const int64_t *sizes, struct product *product)
{
    const struct graph *graph = schedule->unit.graph[program];
    const struct operand *operand = graph->operand;
    *product = (struct product){.program = program};
    if (graph->operand_count != 3 || graph->parameter_count || operand[0].role != CODA_IN ||
        operand[1].role != CODA_IN || operand[2].role != CODA_ACCUMULATE)
        return false;
    for (int o = 0; o < 3; o++) {
        product->dtype[o] = operand[o].dtype;
        if (!is_whole_matrix(&operand[o].shape))
            return false;
    }
    const struct node *gemm = &graph->node[operand[2].node];
    if (gemm->op != OP_GEMM || gemm->input_count != 2)
        return false;
    product->left = factor_of(graph, gemm->input[0], &product->left_transposed);
    int right = factor_of(graph, gemm->input[1], &product->right_transposed);
    if (product->left < 0 || right < 0 || right == product->left)
        return false;
    const struct dim *left = operand[product->left].shape.dim, *out = operand[2].shape.dim;
    product->size.rows = size_of(schedule, graph, &out[0], sizes);
    product->size.columns = size_of(schedule, graph, &out[1], sizes);
    product->size.depth = size_of(schedule, graph, &left[!product->left_transposed], sizes);
    return true;
}

static bool is_alike(const struct product *a, const struct product *b)
{
    return a->left == b->left && a->left_transposed == b->left_transposed &&
           a->right_transposed == b->right_transposed && !memcmp(a->dtype, b->dtype, sizeof a->dtype);
}

/* Does a program from `first` on have an operand of that name, `but` aside? */
static bool is_used(const struct unit *unit, int first, int but, const char *name)
{
    for (int p = first; p < unit->count; p++)
        if (p != but && graph_find_operand(unit->graph[p], name) >= 0)
            return true;
    return false;
}

static bool is_written(const struct unit *unit, const char *name)
{
    for (int p = 0; p < unit->count; p++) {
        int o = graph_find_operand(unit->graph[p], name);
        if (o >= 0 && unit->graph[p]->operand[o].role != CODA_IN)
            return true;
    }
    return false;
}

/* Products that nothing waits for. */
static int find_candidates(const coda_schedule *schedule, int forward, const int64_t *sizes,
                           struct product candidate[MAX_CANDIDATES])
{
    const struct unit *unit = &schedule->unit;
    int count = 0;
    for (int p = forward; p < unit->count && count < MAX_CANDIDATES; p++)
        if (take_product(schedule, p, sizes, &candidate[count]) &&
            !is_used(unit, 0, p, unit->graph[p]->operand[2].name))
            count++;
    return count;
}

/* ---------------------------------------------------------------- the choice */

/* May the members wait for the last one? The caller's inputs are free after their last use, which must stay. */
static bool may_wait(const coda_schedule *schedule, const struct product *member, int count)
{
    const struct unit *unit = &schedule->unit;
    int last = member[count - 1].program;
    for (int i = 0; i + 1 < count; i++)
        for (int o = 0; o < 2; o++) {
            const char *name = unit->graph[member[i].program]->operand[o].name;
            if (!is_written(unit, name) && !is_used(unit, last, -1, name))
                return false;
        }
    return true;
}

/* What one launch of them saves; 0: less than a twenty-fifth, or the device cannot say. */
static double saved_by(const coda_schedule *schedule, const struct product *member, int count, bool always)
{
    const coda_device *device = schedule->device;
    double (*time)(const coda_device *, const struct product_size *, int) = device->operations->product_time;
    struct product_size size[MAX_SETS];
    double apart = 0;
    if (always || !time)
        return always ? count : 0;
    for (int i = 0; i < count; i++) {
        size[i] = member[i].size;
        if (member[i].dtype[0] != CODA_BF16 || size[i].rows < 1 || size[i].columns < 1 || size[i].depth < 1)
            return 0;
        apart += time(device, &size[i], 1);
    }
    double saved = apart - time(device, size, count);
    return saved * 25 > apart && saved < apart ? saved : 0;
}

/* The members of the subset that are not in a list yet and alike; 0: some are not. */
static int take_subset(const coda_schedule *schedule, const struct product *candidate, int count, unsigned subset,
                       struct product member[MAX_SETS])
{
    int taken = 0;
    for (int i = 0; i < count; i++) {
        if (!(subset >> i & 1))
            continue;
        bool fits = taken < MAX_SETS && !schedule->list_of[candidate[i].program] &&
                    (taken == 0 || is_alike(&member[0], &candidate[i]));
        if (!fits)
            return 0;
        member[taken++] = candidate[i];
    }
    return taken >= 2 && may_wait(schedule, member, taken) ? taken : 0;
}

/* The list that saves most, where each member more must save a twentieth more, since its operands wait; the number of its
 * members, 0: none saves. */
static int choose_list(const coda_schedule *schedule, const struct product *candidate, int count, bool always,
                       struct product best[MAX_SETS])
{
    double most = 0;
    int found = 0;
    for (unsigned subset = 1; subset < 1u << count; subset++) {
        struct product member[MAX_SETS];
        int members = take_subset(schedule, candidate, count, subset, member);
        double saved = members ? saved_by(schedule, member, members, always) / (1 + 0.05 * members) : 0;
        if (saved <= most)
            continue;
        most = saved, found = members;
        memcpy(best, member, (size_t)members * sizeof *member);
    }
    return found;
}

/* ---------------------------------------------------------------- kernels */

/* The product in names of its own, so that members of any sizes fit it. */
static coda_status make_program(const coda_schedule *schedule, const struct product *p, struct schedule_list *list,
                                coda_error *error)
{
    const char *left = p->left_transposed ? "K, M" : "M, K", *right = p->right_transposed ? "N, K" : "K, N";
    char text[512];
    snprintf(text, sizeof text,
             "program %.200s {\n in a : %s[%s]\n in b : %s[%s]\n out c : %s[M, N] %s %s%s @ %s%s\n}\n",
             schedule->unit.graph[p->program]->name, coda_dtype_name(p->dtype[0]), p->left == 0 ? left : right,
             coda_dtype_name(p->dtype[1]), p->left == 0 ? right : left, coda_dtype_name(p->dtype[2]),
             schedule->overwrite ? "=" : "+=", p->left == 0 ? "a" : "b", p->left_transposed ? ".T" : "",
             p->left == 0 ? "b" : "a", p->right_transposed ? ".T" : "");
    return coda_module_parse(text, strlen(text), "sets of a schedule", &list->module, error);
}

/* Makes the members a list, if the plan with them needs no more memory than the one without; else the first, which waits
 * longest, stays alone. */
static coda_status add_list(coda_schedule *schedule, const struct rewritten *made, struct plan_options *planning,
                            const struct product *member, int count, coda_error *error)
{
    struct memory_plan joined;
    struct complaint why = {0};
    for (int i = 0; i < count; i++)
        schedule->list_of[member[i].program] = schedule->list_count + 1;
    planning->list = schedule->list_of;
    bool good =
        memory_plan_make(&joined, &schedule->unit, made->forward, schedule->block, made->backward, planning, &why);
    if (!good || schedule_plan_bytes(schedule, &joined) > schedule_plan_bytes(schedule, &schedule->plan)) {
        memory_plan_free(&joined);
        for (int i = 0; i < count; i++)
            schedule->list_of[member[i].program] = i == 0 ? ALONE : 0;
        return good ? CODA_OK : fail_complaint(error, &why);
    }
    memory_plan_free(&schedule->plan);
    schedule->plan = joined;
    struct schedule_list *list = &schedule->list[schedule->list_count++];
    list->count = count;
    return make_program(schedule, &member[0], list, error);
}

coda_status schedule_join(coda_schedule *schedule, const struct rewritten *made, struct plan_options *planning,
                          int join, coda_error *error)
{
    struct product candidate[MAX_CANDIDATES], member[MAX_SETS];
    int64_t sizes[MAX_AXES];
    struct complaint why = {0};
    coda_status status = CODA_OK;
    schedule->list_of = calloc((size_t)schedule->unit.count + 1, sizeof *schedule->list_of);
    schedule->list = calloc(MAX_CANDIDATES, sizeof *schedule->list);
    if (!schedule->list_of || !schedule->list)
        return fail_memory(error, "the sets of a schedule", MAX_CANDIDATES * sizeof *schedule->list);
    if (join < 0 || planning->wide_axis || (join == 0 && !schedule->device->operations->product_time))
        return CODA_OK;
    memcpy(sizes, schedule->fixed_size, sizeof sizes);
    if (sizes_complete(schedule->block, sizes, &why) != CODA_OK)
        return fail_complaint(error, &why);
    int count = find_candidates(schedule, made->forward, sizes, candidate), members;
    while (status == CODA_OK && (members = choose_list(schedule, candidate, count, join > 0, member)) > 0)
        status = add_list(schedule, made, planning, member, members, error);
    for (int i = 0; i < count; i++)
        if (schedule->list_of[candidate[i].program] == ALONE)
            schedule->list_of[candidate[i].program] = 0;
    return status;
}

coda_status schedule_make_list(coda_schedule *schedule, int index, const coda_options *given, coda_error *error)
{
    struct schedule_list *list = &schedule->list[index];
    coda_options options = {.size = sizeof options};
    if (given)
        memcpy(&options, given, given->size < sizeof options ? given->size : sizeof options);
    options.size = sizeof options;
    options.sets = list->count;
    return coda_kernel_create(schedule->device, coda_module_program(list->module, 0), NULL, &options, &list->kernel,
                              error);
}

int schedule_list_of(const coda_schedule *schedule, int step)
{
    int program = schedule->plan.step[step].program;
    return program < 0 ? 0 : schedule->list_of[program];
}
