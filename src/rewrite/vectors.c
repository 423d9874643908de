/* Gradients of vectors as runs: the out of a program that does not wait for the whole sum. */
#include "rewrite/expand.h"
#include "rewrite/passes.h"

#include <stdlib.h>

enum { DEPTH = 64 };

struct vectors {
    const struct graph *graph;
    struct builder b;
    int *made; /* node -> node of the new graph */
    struct levels levels;
};

static int runs_of_sum(struct vectors *v, const struct node *sum, int *axis)
{
    const struct shape *shape = &v->graph->node[sum->input[0]].shape;
    if ((*axis >= 0 && *axis != sum->axis) || shape->rank != 2)
        return -1;
    *axis = sum->axis;
    int position = shape->dim[0].axis == sum->axis ? 0 : 1;
    if (shape->dim[position].form != DIM_WHOLE || shape->dim[1 - position].form != DIM_WHOLE)
        return shape->dim[position].form == DIM_RUNS ? v->made[sum->input[0]] : -1;
    return build_reduce(&v->b, OP_SUM, v->made[sum->input[0]], sum->axis,
                        (struct extent){-1, position == 0 ? ROW_RUN : COLUMN_RUN});
}

/* The node as runs along *axis, whose sum it is: linear combinations of sums over that axis. -1: it is none. */
static int as_runs(struct vectors *v, int n, int *axis, int depth)
{
    const struct node *node = &v->graph->node[n];
    int x = node->input_count > 0 ? node->input[0] : -1, y = node->input_count > 1 ? node->input[1] : -1;
    if (depth > DEPTH || !is_late(&v->levels, n))
        return -1;
    switch (node->op) {
    case OP_SUM:
        return is_whole_run(node->run) ? runs_of_sum(v, node, axis) : -1;
    case OP_NEG:
        return build_negative(&v->b, as_runs(v, x, axis, depth + 1));
    case OP_ADD:
    case OP_SUB: {
        int p = as_runs(v, x, axis, depth + 1), q = p < 0 ? -1 : as_runs(v, y, axis, depth + 1);
        return build_binary(&v->b, node->op, p, q);
    }
    case OP_MUL:
        if (is_late(&v->levels, x) && is_late(&v->levels, y))
            return -1;
        return is_late(&v->levels, x) ? build_binary(&v->b, OP_MUL, as_runs(v, x, axis, depth + 1), v->made[y])
                                      : build_binary(&v->b, OP_MUL, v->made[x], as_runs(v, y, axis, depth + 1));
    case OP_DIV:
        return is_late(&v->levels, y) ? -1 : build_binary(&v->b, OP_DIV, as_runs(v, x, axis, depth + 1), v->made[y]);
    case OP_WHERE: /* where(c, x, 0), c of the kept axis alone */
        if (is_late(&v->levels, x) || !is_number(v->graph, node->input[is_number(v->graph, y, 0) ? 1 : 2], 0))
            return -1;
        return is_number(v->graph, y, 0)
                   ? build_where(&v->b, v->made[x], build_number(&v->b, 0), as_runs(v, node->input[2], axis, depth + 1))
                   : build_where(&v->b, v->made[x], as_runs(v, y, axis, depth + 1), build_number(&v->b, 0));
    default:
        return -1;
    }
}

static void make_node(struct vectors *v, int n)
{
    const struct node *node = &v->graph->node[n];
    int input[MAX_INPUTS];
    for (int k = 0; k < node->input_count; k++)
        input[k] = v->made[node->input[k]];
    v->made[n] = build_like(&v->b, v->graph, n, input);
    build_name(&v->b, v->made[n], node->name);
}

struct graph *vectors_as_runs(const struct graph *graph, struct complaint *why)
{
    struct vectors v = {.graph = graph};
    bool open = builder_open(&v.b, graph, graph->name, graph->is_block);
    v.made = calloc((size_t)graph->node_count + 1, sizeof *v.made);
    if (!open || v.made == NULL || !levels_extend(&v.levels, graph))
        refuse(&v.b.why, CODA_MEMORY, "", "no memory for vectors as runs");
    for (int n = 0; n < graph->node_count && !builder_failed(&v.b); n++)
        make_node(&v, n);
    for (int o = 0; o < graph->operand_count && !builder_failed(&v.b); o++) {
        const struct operand *out = &graph->operand[o];
        int axis = -1, runs = out->role == CODA_OUT && out->shape.rank == 1 ? as_runs(&v, out->node, &axis, 0) : -1;
        if (out->role == CODA_IN)
            continue;
        if (runs >= 0 && v.b.graph->node[runs].shape.rank != 2)
            runs = -1;
        build_out(&v.b, out->name, out->role, runs >= 0 ? CODA_F32 : out->dtype, runs >= 0 ? runs : v.made[out->node]);
    }
    free(v.made);
    levels_free(&v.levels);
    *why = v.b.why;
    return builder_close(&v.b);
}
