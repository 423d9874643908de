#include "rewrite/fit.h"

static bool is_half(const struct dim *dim)
{
    return dim->form == DIM_HALVES || is_pair_dim(dim);
}

/* The dimension of `shape` that dimension d of `from` joins; NULL: none. */
static const struct dim *partner(const struct shape *from, int d, const struct shape *shape)
{
    if (from->rank == 2 && shape->rank == 2)
        return same_axis(&from->dim[d], &shape->dim[d]) ? &shape->dim[d] : NULL;
    for (int i = 0; i < shape->rank; i++)
        if (same_axis(&shape->dim[i], &from->dim[d]))
            return &shape->dim[i];
    return NULL;
}

/* Has c every element of `from`? A sum over one axis takes a value that has the other one whole, too. */
static bool covers(const struct builder *b, int c, const struct shape *from)
{
    for (int d = 0; d < from->rank; d++) {
        const struct dim *own = partner(from, d, &b->graph->node[c].shape);
        if (own == NULL || (!dim_equal(own, &from->dim[d]) && !(is_half(own) && is_half(&from->dim[d]))))
            return false;
    }
    return true;
}

/* Sums over all of dimension d. Half of the columns are joined with zeros first: reductions take whole columns. */
static int sum_out(struct builder *b, int c, const struct shape *from, int d)
{
    const struct dim *dim = &from->dim[d], *own = c < 0 ? NULL : partner(from, d, &b->graph->node[c].shape);
    if (c < 0)
        return -1;
    if (own == NULL && dim->form == DIM_WHOLE) {
        int size = dim->axis >= 0 ? build_size(b, dim->axis) : build_number(b, (double)dim->constant);
        return build_binary(b, OP_MUL, c, size);
    }
    if (own == NULL && is_half(dim))
        return build_binary(b, OP_MUL, c, build_binary(b, OP_DIV, build_size(b, dim->axis), build_number(b, 2)));
    if (dim->axis < 0)
        return refuse(&b->why, CODA_UNSUPPORTED, "Name the axis: `[M, N]` instead of a number.",
                      "a gradient is summed over an axis that has a size but no name");
    if (!covers(b, c, from))
        c = build_broadcast(b, c, from);
    if (is_half(dim) && from->rank == 2) {
        struct node join = node_of(dim->form == DIM_HALVES ? OP_JOIN_HALVES : OP_JOIN);
        struct graph like = {.node = &join, .node_count = 1};
        int input[2] = {build_broadcast(b, c, from), build_number(b, 0)};
        join.input_count = 2;
        join.run = dim->form == DIM_HALVES ? dim->run : no_run();
        c = build_like(b, &like, 0, input);
    }
    return build_reduce(b, OP_SUM, c, dim->axis, no_run());
}

/* Sums over runs of dimension d, of which `to` has one element each. */
static int sum_runs(struct builder *b, int c, const struct shape *from, int d, const struct dim *to)
{
    if (c >= 0 && !covers(b, c, from))
        c = build_broadcast(b, c, from);
    return build_reduce(b, OP_SUM, c, from->dim[d].axis, to->run);
}

/* What is left when dimension d has been summed away. */
static struct shape without(const struct shape *shape, int d)
{
    return shape->rank == 2 ? vector_shape(shape->dim[1 - d]) : scalar_shape();
}

int fit_to(struct builder *b, int c, const struct shape *from, const struct shape *to)
{
    struct shape rest = *from;
    for (int d = from->rank - 1; d >= 0; d--) {
        const struct dim *dim = &rest.dim[d], *target = partner(&rest, d, to);
        if (target == NULL) {
            c = sum_out(b, c, &rest, d);
            rest = without(&rest, d);
        } else if (dim->form == DIM_WHOLE && target->form == DIM_RUNS) {
            c = sum_runs(b, c, &rest, d, target);
            rest.dim[d] = *target;
        }
    }
    return c;
}
