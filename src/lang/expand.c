/* Shorthands of the language, as the primitives that they stand for. */
#include "lang/parser.h"

#include <stdio.h>

static int binary(struct graph *graph, enum op op, int a, int b, struct complaint *why)
{
    return a < 0 || b < 0 ? -1 : graph_elementwise(graph, op, (int[]){a, b}, 2, why);
}

static int unary(struct graph *graph, enum op op, int a, struct complaint *why)
{
    return a < 0 ? -1 : graph_elementwise(graph, op, &a, 1, why);
}

/* sum / size. Over runs the size is a sum of ones, because the last run may be shorter. */
int expand_mean(struct graph *graph, int x, int axis, struct extent run, struct complaint *why)
{
    int size, total = graph_reduce(graph, OP_SUM, x, axis, run, why);
    if (total < 0)
        return -1;
    if (run.axis < 0 && run.value == 0)
        size = graph_size(graph, axis, why);
    else {
        struct shape shape = graph->node[x].shape;
        size = graph_number(graph, 1, why);
        size = size < 0 ? -1 : graph_broadcast(graph, size, &shape, why);
        size = size < 0 ? -1 : graph_reduce(graph, OP_SUM, size, axis, run, why);
    }
    return binary(graph, OP_DIV, total, size, why);
}

/* The axis of the columns of x; -1 with *why set where they have none. */
static int column_axis(const struct graph *graph, int x, const char *name, struct complaint *why)
{
    const struct shape *shape = &graph->node[x].shape;
    if (shape->rank > 0 && shape->dim[shape->rank - 1].form == DIM_WHOLE && shape->dim[shape->rank - 1].axis >= 0)
        return shape->dim[shape->rank - 1].axis;
    *why = (struct complaint){.status = CODA_INVALID};
    snprintf(why->reason, sizeof why->reason,
             "`%s` runs over whole rows, but the columns of its value are no named axis", name);
    snprintf(why->advice, sizeof why->advice, "Its value should be [M, N] or [N].");
    return -1;
}

static int row_mean(struct graph *graph, int x, int axis, struct complaint *why)
{
    return x < 0 ? -1 : expand_mean(graph, x, axis, (struct extent){.axis = -1}, why);
}

/* x * rsqrt(mean(x * x) + eps) */
static int normalize(struct graph *graph, int x, int axis, int eps, struct complaint *why)
{
    int mean = row_mean(graph, binary(graph, OP_MUL, x, x, why), axis, why);
    return binary(graph, OP_MUL, x, unary(graph, OP_RSQRT, binary(graph, OP_ADD, mean, eps, why), why), why);
}

int expand_rmsnorm(struct graph *graph, int x, int weight, int eps, struct complaint *why)
{
    int axis = column_axis(graph, x, "rmsnorm", why);
    return axis < 0 ? -1 : binary(graph, OP_MUL, normalize(graph, x, axis, eps, why), weight, why);
}

int expand_layernorm(struct graph *graph, int x, int weight, int bias, int eps, struct complaint *why)
{
    int axis = column_axis(graph, x, "layernorm", why);
    if (axis < 0)
        return -1;
    int centered = binary(graph, OP_SUB, x, row_mean(graph, x, axis, why), why);
    int scaled = binary(graph, OP_MUL, normalize(graph, centered, axis, eps, why), weight, why);
    return binary(graph, OP_ADD, scaled, bias, why);
}

int expand_softmax(struct graph *graph, int x, struct complaint *why)
{
    int axis = column_axis(graph, x, "softmax", why);
    if (axis < 0)
        return -1;
    int lse = graph_reduce(graph, OP_LOGSUMEXP, x, axis, (struct extent){.axis = -1}, why);
    return unary(graph, OP_EXP, binary(graph, OP_SUB, x, lse, why), why);
}
