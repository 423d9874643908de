#include "rewrite/buffers.h"
#include "ir/build.h"
#include "rewrite/cut.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static bool no_memory(struct complaint *why)
{
    return refuse(why, CODA_MEMORY, "", "no memory for the plan of buffers"), false;
}

/* ---------------------------------------------------------------- values */

int memory_plan_find(const struct memory_plan *plan, const char *name)
{
    for (int v = 0; v < plan->value_count; v++)
        if (strcmp(plan->value[v].name, name) == 0)
            return v;
    return -1;
}

/* What a program means by the name: of two, the value between programs. */
static int find_between(const struct memory_plan *plan, const char *name)
{
    for (int v = plan->value_count - 1; v >= 0; v--)
        if (strcmp(plan->value[v].name, name) == 0)
            return v;
    return -1;
}

/* The shape in the axes of the block. */
static bool block_shape(const struct graph *block, const struct graph *graph, const struct shape *from,
                        struct shape *shape, struct complaint *why)
{
    *shape = *from;
    for (int i = 0; i < from->rank; i++) {
        int *axis[2] = {&shape->dim[i].axis, &shape->dim[i].run.axis};
        for (int k = 0; k < 2; k++) {
            bool unused = k == 1 && (from->dim[i].form == DIM_WHOLE || from->dim[i].form == DIM_ABSENT);
            if (*axis[k] < 0 || unused)
                continue;
            const char *name = graph->axis[*axis[k]].name;
            *axis[k] = graph_find_axis(block, name);
            if (*axis[k] < 0)
                return refuse(why, CODA_UNSUPPORTED, "", "the block has no axis %.60s", name), false;
        }
    }
    return true;
}

/* Appends a value; its index, or -1 with *why set. */
static int add_value(struct memory_plan *plan, const char *name, const struct plan_value *like, struct complaint *why)
{
    if (plan->value_count == plan->value_room) {
        int room = plan->value_room ? 2 * plan->value_room : 64;
        struct plan_value *larger = realloc(plan->value, (size_t)room * sizeof *larger);
        if (larger == NULL)
            return no_memory(why), -1;
        plan->value = larger;
        plan->value_room = room;
    }
    struct plan_value *value = &plan->value[plan->value_count];
    *value = *like;
    value->name = strdup(name);
    if (value->name == NULL)
        return no_memory(why), -1;
    value->first = value->last = value->busy = value->slot = -1;
    return plan->value_count++;
}

static int add_operand(struct memory_plan *plan, const struct graph *graph, const struct operand *operand,
                       enum plan_kind kind, struct complaint *why)
{
    struct plan_value value = {.kind = kind, .dtype = operand->dtype, .accumulated = operand->role == CODA_ACCUMULATE};
    if (!block_shape(plan->block, graph, &operand->shape, &value.shape, why))
        return -1;
    return add_value(plan, operand->name, &value, why);
}

/* The `in` of the block whose gradient the runs are: of a vector that columns share, repeated or not. NULL: none. */
static const struct operand *summed_vector(const struct graph *block, const char *name, const struct shape *runs)
{
    int in = name[0] == 'd' ? graph_find_operand(block, name + 1) : -1;
    const struct operand *vector = in >= 0 ? &block->operand[in] : NULL;
    if (vector == NULL || vector->role != CODA_IN || vector->shape.rank != 1 || runs->rank != 2 ||
        runs->dim[0].form != DIM_RUNS || runs->dim[1].form != DIM_WHOLE || vector->shape.dim[0].form != DIM_WHOLE ||
        runs->dim[0].axis == vector->shape.dim[0].axis)
        return NULL;
    if (dim_equal(&runs->dim[1], &vector->shape.dim[0]))
        return vector;
    for (int n = 0; n < block->node_count; n++)
        if (block->node[n].op == OP_REPEAT && block->node[n].input[0] == vector->node &&
            block->node[n].axis == runs->dim[1].axis)
            return vector;
    return NULL;
}

/* A gradient: under its own shape, or as the sum of the runs that a program gives. */
static bool add_gradient(struct memory_plan *plan, const struct graph *backward, const struct operand *out,
                         struct complaint *why)
{
    int v = add_operand(plan, backward, out, PLAN_RESULT, why);
    if (v < 0)
        return false;
    const struct operand *vector = summed_vector(plan->block, out->name, &plan->value[v].shape);
    if (vector != NULL && out->dtype == CODA_F32) {
        plan->value[v].shape = vector->shape;
        plan->value[v].accumulated = true;
    }
    return true;
}

static bool is_written(const struct unit *unit, int count, const char *name)
{
    for (int p = 0; p < count; p++) {
        int o = graph_find_operand(unit->graph[p], name);
        if (o >= 0 && unit->graph[p]->operand[o].role != CODA_IN)
            return true;
    }
    return false;
}

/* The block's operands, then the gradients that arrive, then those that leave. */
static bool add_caller_values(struct memory_plan *plan, const struct unit *unit, int forward,
                              const struct graph *backward, struct complaint *why)
{
    const struct graph *block = plan->block;
    for (int o = 0; o < block->operand_count; o++) {
        const struct operand *operand = &block->operand[o];
        if (add_operand(plan, block, operand, operand->role == CODA_IN ? PLAN_INPUT : PLAN_RESULT, why) < 0)
            return false;
    }
    for (int role = 0; role < 2 && backward != NULL; role++)
        for (int o = 0; o < backward->operand_count; o++) {
            const struct operand *operand = &backward->operand[o];
            if ((operand->role != CODA_IN) != role || memory_plan_find(plan, operand->name) >= 0)
                continue;
            if (role == 0 && !is_written(unit, forward, operand->name) &&
                add_operand(plan, backward, operand, PLAN_INPUT, why) < 0)
                return false;
            if (role == 1 && !add_gradient(plan, backward, operand, why))
                return false;
        }
    plan->caller_count = plan->value_count;
    return true;
}

static bool mark_consumed(struct memory_plan *plan, const char *names, struct complaint *why)
{
    while (names != NULL && *names != '\0') {
        char name[STORED_NAME] = "";
        size_t length = strcspn(names, ", ");
        memcpy(name, names, length < sizeof name ? length : sizeof name - 1);
        int v = memory_plan_find(plan, name);
        if (length > 0 && (v < 0 || plan->value[v].kind != PLAN_INPUT))
            return refuse(why, CODA_INVALID, "Name inputs or gradients that arrive, separated by commas.",
                          "`%.60s` is no input of the schedule of `%.60s`", name, plan->block->name),
                   false;
        if (length > 0)
            plan->value[v].consumed = true;
        names += length;
        names += strspn(names, ", ");
    }
    return true;
}

/* ---------------------------------------------------------------- steps */

static struct plan_step *add_step(struct memory_plan *plan, int program, int operands, struct complaint *why)
{
    if (plan->step_count == plan->step_room) {
        int room = plan->step_room ? 2 * plan->step_room : 32;
        struct plan_step *larger = realloc(plan->step, (size_t)room * sizeof *larger);
        if (larger == NULL)
            return no_memory(why), NULL;
        plan->step = larger;
        plan->step_room = room;
    }
    struct plan_step *step = &plan->step[plan->step_count];
    *step = (struct plan_step){.program = program, .count = operands};
    step->value = calloc((size_t)operands + 1, sizeof *step->value);
    if (step->value == NULL)
        return no_memory(why), NULL;
    plan->step_count++;
    return step;
}

static void use(struct memory_plan *plan, int v, bool backward, bool writes)
{
    struct plan_value *value = &plan->value[v];
    int step = plan->step_count - 1;
    value->used[backward] = true;
    if (writes && value->first < 0)
        value->first = step;
    value->last = value->busy = step;
}

/* The value of a program's operand; a new one where it is the first to write it. */
static int value_of_operand(struct memory_plan *plan, const struct graph *graph, const struct operand *operand,
                            struct complaint *why)
{
    int v = find_between(plan, operand->name);
    bool runs = v >= 0 && plan->value[v].kind == PLAN_RESULT && plan->value[v].shape.rank < operand->shape.rank;
    if (v >= 0 && !runs)
        return v;
    if (operand->role == CODA_IN)
        return refuse(why, CODA_UNSUPPORTED, "", "`%.60s` reads `%.60s`, which nothing writes", graph->name,
                      operand->name);
    return add_operand(plan, graph, operand, PLAN_SCRATCH, why);
}

static bool add_program(struct memory_plan *plan, const struct graph *graph, int program, bool backward, bool chunked,
                        struct complaint *why)
{
    struct plan_step *step = add_step(plan, program, graph->operand_count, why);
    if (step == NULL)
        return false;
    step->backward = backward;
    step->chunked = chunked;
    for (int o = 0; o < graph->operand_count; o++) {
        int v = value_of_operand(plan, graph, &graph->operand[o], why);
        if (v < 0)
            return false;
        step->value[o] = v;
        use(plan, v, backward, graph->operand[o].role != CODA_IN);
    }
    return true;
}

/* The sums over the runs that steps from `first` on wrote. */
static bool add_sums(struct memory_plan *plan, int first, struct complaint *why)
{
    for (int s = first, end = plan->step_count; s < end; s++)
        for (int o = 0; o < plan->step[s].count; o++) {
            int runs = plan->step[s].value[o];
            int v = runs >= plan->caller_count && plan->value[runs].first == s
                        ? memory_plan_find(plan, plan->value[runs].name)
                        : runs;
            if (v == runs)
                continue;
            struct plan_step *step = add_step(plan, -1, 2, why);
            if (step == NULL)
                return false;
            step->backward = true;
            step->value[0] = runs;
            step->value[1] = v;
            use(plan, runs, true, false);
            use(plan, v, true, true);
        }
    return true;
}

/* Sums follow the program that gives their runs, or the last one that runs by rows. */
static bool add_steps(struct memory_plan *plan, const struct unit *unit, int forward,
                      const struct plan_options *options, struct complaint *why)
{
    int order[MAX_PLANNED], first, end;
    if (!memory_plan_order(unit, options, order, &first, &end, why))
        return false;
    for (int i = 0; i < unit->count; i++) {
        bool chunked = i >= first && i < end;
        if (i == first)
            plan->chunk_first = plan->chunk_end = plan->step_count;
        int start = chunked ? plan->chunk_first : plan->step_count;
        if (!add_program(plan, unit->graph[order[i]], order[i], order[i] >= forward, chunked, why))
            return false;
        if (chunked && i + 1 == end)
            plan->chunk_end = plan->step_count;
        if ((!chunked || i + 1 == end) && !add_sums(plan, start, why))
            return false;
    }
    return true;
}

/* ---------------------------------------------------------------- the plan */

static bool find_chunks(struct memory_plan *plan, const struct plan_options *options, struct complaint *why)
{
    plan->row_axis = -1;
    if (options->wide_axis == NULL)
        return true;
    plan->row_axis = graph_find_axis(plan->block, options->row_axis);
    plan->chunk_rows = options->chunk_rows;
    if (plan->row_axis < 0 || graph_find_axis(plan->block, options->wide_axis) < 0)
        return refuse(why, CODA_INVALID, "", "`%.60s` has no axis %.60s", plan->block->name,
                      plan->row_axis < 0 ? options->row_axis : options->wide_axis),
               false;
    if (options->chunk_rows < 1 || options->chunk_rows % ROW_RUN != 0)
        return refuse(why, CODA_INVALID, "", "chunks of %lld rows; expected a multiple of %d",
                      (long long)options->chunk_rows, ROW_RUN),
               false;
    return true;
}

static void set_kinds(struct memory_plan *plan, const struct plan_options *options)
{
    int wide = options->wide_axis != NULL ? graph_find_axis(plan->block, options->wide_axis) : -1;
    for (int v = plan->caller_count; v < plan->value_count; v++) {
        struct plan_value *value = &plan->value[v];
        const struct dim *dim = value->shape.dim;
        if (value->used[0] && value->used[1] && !options->together)
            value->kind = PLAN_SAVED;
        /* runs of a vector's gradient are summed behind the chunks, so all of them stay */
        value->wide = wide >= 0 && value->shape.rank == 2 && dim[0].axis == plan->row_axis && dim[1].axis == wide &&
                      value->first >= plan->chunk_first && value->last < plan->chunk_end;
    }
}

/* A step with one out, a result of the backward that no other step uses. */
static void find_optional(struct memory_plan *plan, const struct unit *unit)
{
    for (int s = 0; s < plan->step_count; s++) {
        const struct plan_step *step = &plan->step[s];
        int outs = 0, out = -1;
        for (int o = 0; o < step->count; o++)
            if (step->program < 0 ? o == 1 : unit->graph[step->program]->operand[o].role != CODA_IN) {
                out = step->value[o];
                outs++;
            }
        struct plan_value *value = out >= 0 ? &plan->value[out] : NULL;
        if (outs == 1 && step->backward && value->kind == PLAN_RESULT && value->first == s && value->last == s)
            value->optional = true;
    }
}

bool memory_plan_make(struct memory_plan *plan, const struct unit *unit, int forward, const struct graph *block,
                      const struct graph *backward, const struct plan_options *options, struct complaint *why)
{
    *plan = (struct memory_plan){.block = block};
    if (unit->count > MAX_PLANNED)
        return refuse(why, CODA_UNSUPPORTED, "Split the block.", "a schedule of %d programs; at most %d", unit->count,
                      MAX_PLANNED),
               false;
    if (!find_chunks(plan, options, why) || !add_caller_values(plan, unit, forward, backward, why) ||
        !mark_consumed(plan, options->consumed, why) || !add_steps(plan, unit, forward, options, why))
        return false;
    set_kinds(plan, options);
    find_optional(plan, unit);
    return memory_plan_slots(plan, unit, options->keep_saved, why);
}

void memory_plan_free(struct memory_plan *plan)
{
    for (int v = 0; v < plan->value_count; v++)
        free(plan->value[v].name);
    for (int s = 0; s < plan->step_count; s++)
        free(plan->step[s].value);
    free(plan->value);
    free(plan->step);
    *plan = (struct memory_plan){0};
}
