/* Dimensions and shapes: making, comparing, checking, printing. */
#include "ir/build.h"
#include <inttypes.h>
#include <string.h>

struct extent no_run(void)
{
    return (struct extent){-1, 0};
}

bool is_whole_run(struct extent run)
{
    return run.axis < 0 && run.value == 0;
}

struct dim whole_dim(int axis)
{
    return (struct dim){DIM_WHOLE, axis, 0, no_run()};
}

struct shape scalar_shape(void)
{
    struct dim absent = {DIM_ABSENT, -1, 0, no_run()};
    return (struct shape){0, {absent, absent}};
}

struct shape vector_shape(struct dim dim)
{
    struct shape shape = scalar_shape();
    shape.rank = 1;
    shape.dim[0] = dim;
    return shape;
}

bool extent_equal(struct extent a, struct extent b)
{
    return a.axis == b.axis && a.value == b.value;
}

bool is_pair_dim(const struct dim *dim)
{
    return dim->form == DIM_RUNS && dim->run.axis < 0 && dim->run.value == 2;
}

bool same_axis(const struct dim *a, const struct dim *b)
{
    return a->axis == b->axis && (a->axis >= 0 || a->constant == b->constant);
}

bool dim_equal(const struct dim *a, const struct dim *b)
{
    if (a->form != b->form)
        return false;
    if (a->form == DIM_ABSENT)
        return true;
    return same_axis(a, b) && (a->form == DIM_WHOLE || extent_equal(a->run, b->run));
}

bool shape_equal(const struct shape *a, const struct shape *b)
{
    if (a->rank != b->rank)
        return false;
    for (int i = 0; i < a->rank; i++)
        if (!dim_equal(&a->dim[i], &b->dim[i]))
            return false;
    return true;
}

/* ---------------------------------------------------------------- checking what a caller gave */

bool accept_axis(struct graph *graph, int axis, struct complaint *why)
{
    if (axis < 0 || axis >= graph->axis_count) {
        refuse(why, CODA_INVALID, "", "axis %d does not exist in `%s`", axis, graph->name);
        return false;
    }
    graph->axis[axis].declared_only = false;
    return true;
}

bool accept_extent(struct graph *graph, struct extent *extent, struct complaint *why)
{
    if (extent->axis >= 0) {
        if (extent->value == 0)
            extent->value = 1;
        if (extent->value < 0) {
            refuse(why, CODA_INVALID, "Divide by 1 or more.", "a length divided by %" PRId64, extent->value);
            return false;
        }
        return accept_axis(graph, extent->axis, why);
    }
    extent->axis = -1;
    if (extent->value < 1) {
        refuse(why, CODA_INVALID, "A run has 1 element or more.", "a run of %" PRId64 " elements", extent->value);
        return false;
    }
    return true;
}

static bool accept_dim(struct graph *graph, struct dim *dim, struct complaint *why)
{
    if (dim->axis < 0) {
        *dim = (struct dim){DIM_WHOLE, -1, dim->constant, no_run()};
        if (dim->constant >= 1)
            return true;
        refuse(why, CODA_INVALID, "Sizes are 1 or more.", "a dimension of %" PRId64 " elements", dim->constant);
        return false;
    }
    if (!accept_axis(graph, dim->axis, why))
        return false;
    dim->constant = 0;
    if (dim->form == DIM_WHOLE) {
        dim->run = no_run();
        return true;
    }
    if (!accept_extent(graph, &dim->run, why))
        return false;
    if (dim->run.axis == dim->axis) {
        refuse(why, CODA_INVALID, "Name another axis for the length of a run, or write a number.",
               "runs of %.60s whose length is %.60s itself", axis_name(graph, dim->axis), axis_name(graph, dim->axis));
        return false;
    }
    if (dim->form == DIM_RUNS && dim->run.axis < 0 && dim->run.value == 1)
        *dim = whole_dim(dim->axis);
    return true;
}

bool accept_shape(struct graph *graph, struct shape *shape, struct complaint *why)
{
    struct shape accepted = scalar_shape();
    if (shape->rank < 0 || shape->rank > 2) {
        refuse(why, CODA_INVALID, "Fold leading dimensions into the rows.", "%d dimensions: a value has at most two",
               shape->rank);
        return false;
    }
    accepted.rank = shape->rank;
    for (int i = 0; i < shape->rank; i++) {
        accepted.dim[i] = shape->dim[i];
        if (!accept_dim(graph, &accepted.dim[i], why))
            return false;
    }
    if (shape->rank == 2 && accepted.dim[0].axis >= 0 && accepted.dim[0].axis == accepted.dim[1].axis) {
        const char *name = axis_name(graph, accepted.dim[0].axis);
        refuse(why, CODA_INVALID, "", "rows and columns have the same axis %.60s", name);
        advise(why, "Axes join by name, so give the columns another one: two axes may have the same size.");
        return false;
    }
    *shape = accepted;
    return true;
}

/* ---------------------------------------------------------------- printing */

static void append_extent(const struct graph *graph, struct extent extent, char *text, int size, int *length)
{
    if (extent.axis < 0)
        append(text, size, length, "%" PRId64, extent.value);
    else if (extent.value > 1)
        append(text, size, length, "%s/%" PRId64, axis_name(graph, extent.axis), extent.value);
    else
        append(text, size, length, "%s", axis_name(graph, extent.axis));
}

static void append_dim(const struct graph *graph, const struct dim *dim, char *text, int size, int *length)
{
    if (dim->form == DIM_ABSENT)
        return;
    if (dim->axis < 0) {
        append(text, size, length, "%" PRId64, dim->constant);
        return;
    }
    append(text, size, length, "%s", axis_name(graph, dim->axis));
    if (dim->form == DIM_WHOLE)
        return;
    append(text, size, length, "/");
    if (dim->form == DIM_HALVES)
        append(text, size, length, "2");
    else
        append_extent(graph, dim->run, text, size, length);
}

void dim_print(const struct graph *graph, const struct dim *dim, char *text, int size)
{
    int length = 0;
    text[0] = '\0';
    append_dim(graph, dim, text, size, &length);
}

void shape_print(const struct graph *graph, const struct shape *shape, char *text, int size)
{
    int length = 0;
    text[0] = '\0';
    if (shape->rank == 0)
        return;
    append(text, size, &length, "[");
    for (int i = 0; i < shape->rank; i++) {
        append(text, size, &length, "%s", i ? ", " : "");
        append_dim(graph, &shape->dim[i], text, size, &length);
    }
    append(text, size, &length, "]");
}
