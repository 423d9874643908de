#include "rewrite/derive.h"
#include "rewrite/passes.h"
#include "rewrite/rules.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- what is asked for */

/* Copies the next name of a list separated by commas; false at its end. */
static bool next_name(const char **list, char name[STORED_NAME])
{
    size_t length = 0;
    while (**list == ',' || isspace((unsigned char)**list))
        (*list)++;
    while (**list != '\0' && **list != ',' && !isspace((unsigned char)**list)) {
        if (length + 1 < STORED_NAME)
            name[length++] = **list;
        (*list)++;
    }
    name[length] = '\0';
    return length > 0;
}

/* Tables of rotations are constants: they get no gradient unless named. */
static bool is_table(const struct graph *graph, int node)
{
    bool table = false;
    for (int n = 0; n < graph->node_count; n++)
        for (int k = 0; k < graph->node[n].input_count; k++)
            if (graph->node[n].input[k] == node) {
                if (graph->node[n].op != OP_ROPE || k != 1)
                    return false;
                table = true;
            }
    return table;
}

static bool read_wrt(const struct graph *program, const char *wrt, struct request *request, struct complaint *why)
{
    char name[STORED_NAME];
    for (int o = 0; o < program->operand_count && wrt == NULL; o++) {
        const struct operand *operand = &program->operand[o];
        request->wanted[o] =
            operand->role == CODA_IN && operand->dtype != CODA_I32 && !is_table(program, operand->node);
    }
    while (wrt != NULL && next_name(&wrt, name)) {
        int o = graph_find_operand(program, name);
        if (o < 0 || program->operand[o].role != CODA_IN || program->operand[o].dtype == CODA_I32) {
            refuse(why, CODA_INVALID, "Name floating-point operands, separated by commas.",
                   "`%.60s` is no floating-point `in` of `%.60s`", name, program->name);
            return false;
        }
        if (is_table(program, program->operand[o].node)) {
            refuse(why, CODA_UNSUPPORTED, "Leave it out: angles of a rotation are constants.",
                   "no rule gives the gradient of `%.60s`, the table of a rotation", name);
            return false;
        }
        request->wanted[o] = true;
    }
    return true;
}

/* forced: one a node of the program; the request is for `own`, the same with equal nodes united. */
static bool read_save(const struct graph *program, const char *save, const struct graph *own, struct request *request,
                      bool *forced, struct complaint *why)
{
    char name[STORED_NAME];
    while (save != NULL && next_name(&save, name)) {
        int o = graph_find_operand(own, name), found = -1;
        if (o >= 0 && own->operand[o].role == CODA_OUT) {
            request->silent[o] = true;
            continue;
        }
        for (int n = 0; n < program->node_count; n++)
            if (program->node[n].name != NULL && strcmp(program->node[n].name, name) == 0)
                found = n;
        if (found < 0) {
            refuse(why, CODA_INVALID, "Name values or outs, separated by commas.",
                   "`%.60s` is no value or out of `%.60s`", name, program->name);
            return false;
        }
        forced[found] = true;
    }
    return true;
}

/* ---------------------------------------------------------------- forward and backward apart */

static bool open_derivation(struct derivation *d)
{
    size_t count = (size_t)d->joint.graph->node_count + 1;
    d->forward = calloc(count, sizeof *d->forward);
    d->available = calloc(count, sizeof *d->available);
    d->save_now = calloc(count, sizeof *d->save_now);
    d->saved = calloc(count, sizeof *d->saved);
    d->inverse = calloc(count, sizeof *d->inverse);
    d->stored = calloc(count, sizeof *d->stored);
    return d->forward && d->available && d->save_now && d->saved && d->inverse && d->stored;
}

void derive_close(struct derivation *d)
{
    joint_free(&d->joint);
    graph_free(d->own);
    graph_free(d->with_saves);
    free(d->forced);
    free(d->forward);
    free(d->available);
    free(d->save_now);
    free(d->saved);
    free(d->inverse);
    free(d->stored);
}

/* What the program's outs hold needs no store. */
static void mark_available(struct derivation *d)
{
    const struct graph *program = d->program;
    for (int n = 0; n < program->node_count; n++)
        d->save_now[d->joint.value[n]] |= d->forced[n];
    for (int o = 0; o < program->operand_count; o++) {
        const struct operand *out = &program->operand[o];
        int n = d->joint.value[out->node];
        enum op op = d->joint.graph->node[n].op;
        if (out->role != CODA_OUT || out->dtype == CODA_I32 || d->available[n] || op == OP_IN || op == OP_REDUCE_MAX ||
            op == OP_ABSMAX) /* a maximum is taken again: see stored_elements */
            continue;
        d->available[n] = d->stored[n].present = true;
        d->stored[n].dtype = out->dtype;
        d->stored[n].shape = out->shape;
        snprintf(d->stored[n].name, sizeof d->stored[n].name, "%.200s", out->name);
    }
}

/* Adds an out for value n of the joint graph, which the program does not store. */
static bool add_save(struct derivation *d, struct names *names, int n, struct complaint *why)
{
    const struct graph *program = d->program;
    struct stored *stored = &d->stored[n];
    int node = -1;
    char stem[STORED_NAME];
    snprintf(stem, sizeof stem, d->joint.graph->node[n].shape.rank == 2 ? "Z" : "R");
    for (int i = program->node_count - 1; i >= 0; i--)
        if (d->joint.value[i] == n && (node < 0 || program->node[i].name != NULL))
            node = i;
    if (node < 0)
        return refuse(why, CODA_UNSUPPORTED, "", "the backward needs a value that the program does not compute"), false;
    if (program->node[node].name != NULL)
        name_of_store(names, program->node[node].name, stem);
    if (!names_make(names, stem, stored->name))
        return refuse(why, CODA_MEMORY, "", "no memory for a name"), false;
    stored->present = true;
    stored->shape = program->node[node].shape;
    stored->dtype = shape_dtype(&stored->shape, matrix_dtype(program));
    d->saves++;
    return graph_out(d->with_saves, stored->name, CODA_OUT, stored->dtype, &stored->shape, node, why) == 0;
}

static bool add_saves(struct derivation *d, struct complaint *why)
{
    struct names names = {0};
    d->with_saves = graph_copy(d->program);
    bool made = d->with_saves != NULL && names_open(&names, d->joint.graph);
    if (d->with_saves != NULL)
        d->with_saves->between = d->program->is_block; /* a program with its saves is run */
    for (int o = 0; o < d->program->operand_count && made; o++)
        made = names_take(&names, d->program->operand[o].name);
    if (!made)
        refuse(why, CODA_MEMORY, "", "no memory for the forward");
    for (int n = 0; n < d->joint.graph->node_count && made; n++)
        if (d->saved[n])
            made = add_save(d, &names, n, why);
    names_close(&names);
    return made;
}

/* Rules on the forward and backward together; nodes move, so what points to them follows. */
static bool move_all_dots(struct derivation *d, struct report *report, struct complaint *why)
{
    struct graph *joint = d->joint.graph;
    size_t count = (size_t)joint->node_count + 1;
    int *made = calloc(count, sizeof *made);
    bool *forward = calloc(count, sizeof *forward);
    struct graph *moved = NULL;
    for (int n = 0; forward != NULL && n < d->joint.forward_count; n++)
        forward[n] = true;
    if (made == NULL || forward == NULL)
        refuse(why, CODA_MEMORY, "", "no memory for the gradient of `%.60s`", d->program->name);
    else
        moved = move_dots(joint, forward, made, report, why);
    if (moved != NULL) {
        for (int n = 0; n < d->program->node_count; n++)
            d->joint.value[n] = made[d->joint.value[n]];
        graph_free(joint);
        d->joint.graph = moved;
    }
    free(made);
    free(forward);
    return moved != NULL;
}

/* Values of the forward, by what they became. */
static void mark_forward(struct derivation *d)
{
    for (int n = 0; n < d->program->node_count; n++)
        d->forward[d->joint.value[n]] = true;
}

static void report_saves(const struct derivation *d, struct report *report)
{
    for (int n = 0; n < d->joint.graph->node_count && report != NULL; n++)
        if (d->saved[n]) {
            report_rule(report, RULE_KEPT, d->joint.graph, n);
            report_figure(report, "costs a write and a read of %s", d->joint.graph, n, d->stored[n].dtype);
        }
}

struct graph *derive_backward(struct derivation *d, struct report *report, struct complaint *why)
{
    if (differentiate_graph(d->program, &d->request, &d->joint, why) != CODA_OK)
        return NULL;
    if (d->program->is_block && !move_all_dots(d, report, why))
        return NULL;
    if (!open_derivation(d)) {
        refuse(why, CODA_MEMORY, "", "no memory for the gradient of `%.60s`", d->program->name);
        return NULL;
    }
    struct saving saving = {.graph = d->joint.graph,
                            .forward = d->forward,
                            .available = d->available,
                            .forced = d->save_now,
                            .saved = d->saved,
                            .inverse = d->inverse};
    char name[STORED_NAME];
    mark_forward(d);
    mark_available(d);
    if (choose_saved(&saving, why) != CODA_OK || !add_saves(d, why))
        return NULL;
    report_saves(d, report);
    snprintf(name, sizeof name, "%.180s_bwd", d->program->name);
    struct graph *backward = separate_backward(&saving, d->stored, name, why);
    struct graph *simple = backward == NULL ? NULL : tidy(backward, report, why);
    struct graph *runs = simple == NULL ? NULL : vectors_as_runs(simple, why);
    graph_free(backward);
    graph_free(simple);
    return runs;
}

/* The graph with equal nodes made once: two statements that say the same have one gradient. */
static struct graph *unite_equal(const struct graph *graph, int *made, struct complaint *why)
{
    struct builder b;
    if (builder_open(&b, graph, graph->name, graph->is_block))
        b.plain = true;
    for (int n = 0; n < graph->node_count && !builder_failed(&b); n++) {
        int input[MAX_INPUTS] = {0};
        for (int k = 0; k < graph->node[n].input_count; k++)
            input[k] = made[graph->node[n].input[k]];
        made[n] = build_like(&b, graph, n, input);
        build_name(&b, made[n], graph->node[n].name);
    }
    for (int o = 0; o < graph->operand_count && !builder_failed(&b); o++) {
        const struct operand *out = &graph->operand[o];
        if (out->role != CODA_IN)
            build_out(&b, out->name, out->role, out->dtype, made[out->node]);
    }
    *why = b.why;
    return builder_close(&b);
}

bool derive_open(struct derivation *d, const struct graph *program, const char *wrt, const char *save,
                 struct complaint *why)
{
    size_t count = (size_t)program->node_count + 1;
    memset(d, 0, sizeof *d);
    bool *forced = calloc(count, sizeof *forced);
    int *made = calloc(count, sizeof *made);
    d->forced = calloc(count, sizeof *d->forced);
    bool open = false;
    if (forced == NULL || made == NULL || d->forced == NULL) {
        refuse(why, CODA_MEMORY, "", "no memory for the gradient of `%.60s`", program->name);
        goto done;
    }
    d->own = unite_equal(program, made, why);
    d->program = d->own;
    open = d->own != NULL && read_wrt(d->own, wrt, &d->request, why) &&
           read_save(program, save, d->own, &d->request, forced, why);
    for (int n = 0; n < program->node_count && open; n++)
        d->forced[made[n]] |= forced[n];
done:
    free(forced);
    free(made);
    return open;
}

coda_status report_failure(coda_error *error, const struct complaint *why)
{
    if (error != NULL) {
        error->status = why->status;
        snprintf(error->message, sizeof error->message, "%s%s%s", why->reason, why->advice[0] ? "\n" : "", why->advice);
    }
    return why->status;
}
