/* How the shapes of elementwise inputs join: by axis name, absent ones broadcast, runs repeat. */
#include "ir/build.h"

static bool is_half(const struct dim *dim)
{
    return dim->form == DIM_HALVES || is_pair_dim(dim);
}

/* The joined dimension of two with the same axis; false where their elements do not correspond. */
static bool join_dims(const struct dim *a, const struct dim *b, struct dim *joined)
{
    if (dim_equal(a, b)) {
        *joined = *a;
        return true;
    }
    if (a->form == DIM_WHOLE && b->form == DIM_RUNS) {
        *joined = *a;
        return true;
    }
    if (b->form == DIM_WHOLE && a->form == DIM_RUNS) {
        *joined = *b;
        return true;
    }
    /* Both have one element a pair of columns: they join by index, and the more exact description stays. */
    if (is_half(a) && is_half(b) && a->form != b->form) {
        *joined = a->form == DIM_HALVES ? *a : *b;
        return true;
    }
    return false;
}

static bool refuse_dims(const struct graph *graph, const struct shape *a, const struct shape *b, const struct dim *p,
                        const struct dim *q, struct complaint *why)
{
    char left[SHAPE_TEXT], right[SHAPE_TEXT];
    shape_print(graph, a, left, sizeof left);
    shape_print(graph, b, right, sizeof right);
    if (p->form == DIM_HALVES && q->form == DIM_HALVES)
        refuse(why, CODA_INVALID, "Use the same length in both `halves`.",
               "values of `halves` with different lengths do not line up: %s and %s", left, right);
    else if ((p->form == DIM_HALVES || q->form == DIM_HALVES) && (p->form == DIM_WHOLE || q->form == DIM_WHOLE))
        refuse(why, CODA_INVALID, "Put the halves together first: join_halves(a, b, h).",
               "half of the columns meets all of them: %s and %s", left, right);
    else
        refuse(why, CODA_INVALID, "Use the same run in both, or bring one to every column: broadcast(x, [M, N]).",
               "runs of different lengths do not line up: %s and %s", left, right);
    return false;
}

static bool refuse_axes(const struct graph *graph, const struct shape *a, const struct shape *b, struct complaint *why)
{
    char left[SHAPE_TEXT], right[SHAPE_TEXT];
    shape_print(graph, a, left, sizeof left);
    shape_print(graph, b, right, sizeof right);
    bool swapped =
        a->rank == 2 && b->rank == 2 && same_axis(&a->dim[0], &b->dim[1]) && same_axis(&a->dim[1], &b->dim[0]);
    bool constant = false;
    for (int i = 0; i < 2; i++)
        constant |= (i < a->rank && a->dim[i].axis < 0) || (i < b->rank && b->dim[i].axis < 0);
    bool product = a->rank == 2 && b->rank == 2 && !swapped &&
                   (same_axis(&a->dim[1], &b->dim[0]) || same_axis(&a->dim[1], &b->dim[1]));
    if (product)
        refuse(why, CODA_INVALID,
               "Elementwise operations join axes by name. If a matrix product is meant: A @ B, or A @ W.T.",
               "the axes do not join: %s and %s", left, right);
    else if (swapped)
        refuse(why, CODA_INVALID, "Store one of them transposed; a program transposes operands of a product only.",
               "rows and columns are swapped: %s and %s", left, right);
    else if (constant)
        refuse(why, CODA_INVALID, "A size written as a number joins only the same number: name the axis instead.",
               "the axes do not join: %s and %s", left, right);
    else
        refuse(why, CODA_INVALID, "Elementwise operations join axes by name: declare equal axes with one name.",
               "the axes do not join: %s and %s", left, right);
    return false;
}

/* ---------------------------------------------------------------- a vector with a vector of another axis */

/* 1: some matrix has rows p and columns q; -1: the other way round; 0: neither. The first in the text decides. */
static int order_in_matrices(const struct graph *graph, const struct dim *p, const struct dim *q)
{
    for (int i = 0; i < graph->node_count; i++) {
        const struct shape *shape = &graph->node[i].shape;
        if (shape->rank != 2 || graph->node[i].op == OP_TRANSPOSE)
            continue;
        if (same_axis(&shape->dim[0], p) && same_axis(&shape->dim[1], q))
            return 1;
        if (same_axis(&shape->dim[0], q) && same_axis(&shape->dim[1], p))
            return -1;
    }
    return 0;
}

static bool occurs_at(const struct graph *graph, const struct dim *dim, int position)
{
    for (int i = 0; i < graph->node_count; i++)
        if (graph->node[i].shape.rank == 2 && same_axis(&graph->node[i].shape.dim[position], dim))
            return true;
    return false;
}

/* Rows are the axis that comes first in a matrix of both; else the one that is a row axis elsewhere; else the one that
 * is no column axis elsewhere; else the one that the text names first. */
static bool first_is_rows(const struct graph *graph, const struct dim *p, const struct dim *q)
{
    int order = order_in_matrices(graph, p, q);
    if (order != 0)
        return order > 0;
    bool p_rows = occurs_at(graph, p, 0), q_rows = occurs_at(graph, q, 0);
    if (p_rows != q_rows)
        return p_rows;
    bool p_columns = occurs_at(graph, p, 1), q_columns = occurs_at(graph, q, 1);
    if (p_columns != q_columns)
        return q_columns;
    return p->axis < q->axis;
}

static void outer_shape(const struct graph *graph, const struct dim *p, const struct dim *q, struct shape *joined)
{
    bool in_order = first_is_rows(graph, p, q);
    joined->rank = 2;
    joined->dim[0] = in_order ? *p : *q;
    joined->dim[1] = in_order ? *q : *p;
}

/* ---------------------------------------------------------------- shapes */

static bool join_vector(const struct graph *graph, const struct shape *matrix, const struct shape *vector,
                        struct shape *joined, struct complaint *why)
{
    const struct dim *dim = &vector->dim[0];
    bool rows = same_axis(&matrix->dim[0], dim), columns = same_axis(&matrix->dim[1], dim);
    if (rows && columns) {
        refuse(why, CODA_INVALID, "Name the axes instead of writing their size.",
               "the vector fits both the rows and the columns of the matrix");
        return false;
    }
    if (!rows && !columns)
        return refuse_axes(graph, matrix, vector, why);
    *joined = *matrix;
    int position = rows ? 0 : 1;
    if (!join_dims(&matrix->dim[position], dim, &joined->dim[position]))
        return refuse_dims(graph, matrix, vector, &matrix->dim[position], dim, why);
    return true;
}

static bool join_equal_ranks(const struct graph *graph, const struct shape *a, const struct shape *b,
                             struct shape *joined, struct complaint *why)
{
    *joined = *a;
    for (int i = 0; i < a->rank; i++) {
        if (!same_axis(&a->dim[i], &b->dim[i]))
            return refuse_axes(graph, a, b, why);
        if (!join_dims(&a->dim[i], &b->dim[i], &joined->dim[i]))
            return refuse_dims(graph, a, b, &a->dim[i], &b->dim[i], why);
    }
    return true;
}

bool join_shapes(const struct graph *graph, const struct shape *a, const struct shape *b, struct shape *joined,
                 struct complaint *why)
{
    if (a->rank == 0 || b->rank == 0) {
        *joined = a->rank == 0 ? *b : *a;
        return true;
    }
    if (a->rank == 2 && b->rank == 1)
        return join_vector(graph, a, b, joined, why);
    if (a->rank == 1 && b->rank == 2)
        return join_vector(graph, b, a, joined, why);
    bool named = a->dim[0].axis >= 0 && b->dim[0].axis >= 0;
    if (a->rank == 1 && b->rank == 1 && named && !same_axis(&a->dim[0], &b->dim[0])) {
        outer_shape(graph, &a->dim[0], &b->dim[0], joined);
        return true;
    }
    return join_equal_ranks(graph, a, b, joined, why);
}
