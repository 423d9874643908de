/* Building graphs: reductions, and values chosen by index. */
#include "ir/build.h"

/* ---------------------------------------------------------------- reductions */

/* The dimension of x along `axis`, or along its only partial one where axis is -1; -1 with *why set. */
static int reduced_position(const struct graph *graph, enum op op, int x, int axis, struct complaint *why)
{
    const struct shape *shape = &graph->node[x].shape;
    int found = -1, matches = 0;
    for (int i = 0; i < shape->rank; i++) {
        const struct dim *dim = &shape->dim[i];
        if (axis >= 0 ? dim->axis == axis : dim->form == DIM_RUNS || dim->form == DIM_HALVES) {
            found = i;
            matches++;
        }
    }
    if (matches == 1)
        return found;
    char text[LABEL];
    label(graph, x, text, sizeof text);
    if (axis >= 0)
        return refuse(why, CODA_INVALID, "Name an axis that the value has.",
                      "`%s` along %.60s, but %s has no such axis", op_name(op), axis_name(graph, axis), text);
    refuse(why, CODA_INVALID, "", "`%s(x)` finishes a partial such as f32[M, K/128], found %s", op_name(op), text);
    return advise(why, "Say along which axis: %s(x, N) for all of it, %s(x, N:128) for runs.", op_name(op),
                  op_name(op));
}

static int refuse_run(const struct graph *graph, enum op op, int x, int axis, struct complaint *why)
{
    char text[LABEL];
    label(graph, x, text, sizeof text);
    refuse(why, CODA_INVALID, "", "`%s` over runs of %.60s, but %s has not every element of it", op_name(op),
           axis_name(graph, axis), text);
    return advise(why, "Reduce the value itself over the longer run, or all of its runs: %s(x, %.60s).", op_name(op),
                  axis_name(graph, axis));
}

int graph_reduce(struct graph *graph, enum op op, int x, int axis, struct extent run, struct complaint *why)
{
    if (!op_is_reduction(op))
        return refuse(why, CODA_INVALID, "", "`%s` is no reduction", op_name(op));
    if (!check_inputs(graph, &x, 1, why) || (axis >= 0 && !accept_axis(graph, axis, why)))
        return -1;
    bool whole = is_whole_run(run);
    if (!whole && !accept_extent(graph, &run, why))
        return -1;
    int position = reduced_position(graph, op, x, axis, why);
    if (position < 0)
        return -1;

    struct node node = node_of(op);
    node.input[node.input_count++] = x;
    node.shape = graph->node[x].shape;
    node.axis = node.shape.dim[position].axis;
    if (whole) {
        struct dim kept = node.shape.dim[1 - position];
        node.shape = node.shape.rank == 2 ? vector_shape(kept) : scalar_shape();
        return add_node(graph, &node, why);
    }
    if (node.shape.dim[position].form != DIM_WHOLE)
        return refuse_run(graph, op, x, node.axis, why);
    if (run.axis == node.axis || (run.axis < 0 && run.value == 1)) {
        refuse(why, CODA_INVALID, "", "`%s` over runs of %s", op_name(op),
               run.axis < 0 ? "one element" : "the whole axis");
        return run.axis < 0
                   ? advise(why, "A run of 1 is the value itself.")
                   : advise(why, "Leave the length out: %s(x, %.60s).", op_name(op), axis_name(graph, node.axis));
    }
    node.run = run;
    node.shape.dim[position].form = DIM_RUNS;
    node.shape.dim[position].run = run;
    return add_node(graph, &node, why);
}

/* ---------------------------------------------------------------- by index */

static bool check_ids(const struct graph *graph, enum op op, int ids, struct complaint *why)
{
    const struct node *node = &graph->node[ids];
    bool typed = node->op != OP_IN || node->dtype == CODA_I32;
    if (typed && node->shape.rank == 1 && node->shape.dim[0].form == DIM_WHOLE)
        return true;
    char found[LABEL];
    label(graph, ids, found, sizeof found);
    refuse(why, CODA_INVALID, "", "`%s` takes indices such as i32[M], found %s%s%s", op_name(op), found,
           typed ? "" : " of type ", typed ? "" : coda_dtype_name(node->dtype));
    return false;
}

int graph_pick(struct graph *graph, int x, int ids, struct complaint *why)
{
    int input[2] = {x, ids};
    if (!check_inputs(graph, input, 2, why) || !check_ids(graph, OP_PICK, ids, why))
        return -1;
    const struct shape *shape = &graph->node[x].shape;
    const struct dim *rows = &graph->node[ids].shape.dim[0];
    if (shape->rank != 2 || shape->dim[1].form != DIM_WHOLE || !dim_equal(&shape->dim[0], rows)) {
        char found[LABEL], expected[SHAPE_TEXT];
        label(graph, x, found, sizeof found);
        dim_print(graph, rows, expected, sizeof expected);
        return refuse(why, CODA_INVALID, "The result is x[m, t[m]]: one element of each row.",
                      "`pick(x, t)` takes a matrix with rows %.60s, found %s", expected, found);
    }
    struct node node = node_of(OP_PICK);
    node.input_count = 2;
    node.input[0] = x;
    node.input[1] = ids;
    node.shape = vector_shape(shape->dim[0]);
    return add_node(graph, &node, why);
}

int graph_onehot(struct graph *graph, int ids, int axis, struct complaint *why)
{
    if (!check_inputs(graph, &ids, 1, why) || !accept_axis(graph, axis, why) || !check_ids(graph, OP_ONEHOT, ids, why))
        return -1;
    struct node node = node_of(OP_ONEHOT);
    node.input[node.input_count++] = ids;
    node.axis = axis;
    node.shape = graph->node[ids].shape;
    if (node.shape.dim[0].axis == axis)
        return refuse(why, CODA_INVALID, "Name the axis of the columns.",
                      "`onehot` along %.60s, which is the axis of its indices", axis_name(graph, axis));
    node.shape.rank = 2;
    node.shape.dim[1] = whole_dim(axis);
    return add_node(graph, &node, why);
}

int graph_gather(struct graph *graph, int table, int ids, struct complaint *why)
{
    int input[2] = {table, ids};
    if (!check_inputs(graph, input, 2, why) || !check_ids(graph, OP_GATHER, ids, why))
        return -1;
    const struct shape *shape = &graph->node[table].shape;
    const struct dim *rows = &graph->node[ids].shape.dim[0];
    if (shape->rank != 2 || shape->dim[0].form != DIM_WHOLE || shape->dim[1].form != DIM_WHOLE) {
        char found[LABEL];
        label(graph, table, found, sizeof found);
        return refuse(why, CODA_INVALID, "", "`gather` takes rows of a matrix such as bf16[V, N], found %s", found);
    }
    if (shape->dim[1].axis >= 0 && shape->dim[1].axis == rows->axis)
        return refuse(why, CODA_INVALID, "Give the columns of the table an axis of their own.",
                      "`gather` of rows whose axis %.60s is that of the indices", axis_name(graph, rows->axis));
    struct node node = node_of(OP_GATHER);
    node.input_count = 2;
    node.input[0] = table;
    node.input[1] = ids;
    node.shape = *shape;
    node.shape.dim[0] = *rows;
    return add_node(graph, &node, why);
}
