/* Building graphs: pairs and halves of columns, and rotations. */
#include "ir/build.h"
#include <inttypes.h>

static bool need_columns(const struct graph *graph, int x, const char *what, struct complaint *why)
{
    const struct shape *shape = &graph->node[x].shape;
    if (shape->rank == 2 && shape->dim[1].form == DIM_WHOLE)
        return true;
    char found[LABEL];
    label(graph, x, found, sizeof found);
    if (shape->rank == 2)
        refuse(why, CODA_INVALID, "Put the columns together first (join, join_halves): pairs do not nest.",
               "`%s` takes a matrix with all its columns, found %s", what, found);
    else
        refuse(why, CODA_INVALID, "broadcast(x, [M, N]) makes a matrix of a vector.", "`%s` takes a matrix, found %s",
               what, found);
    return false;
}

/* Every second column, described as runs of 2 or as halves. */
static int add_part(struct graph *graph, enum op op, int x, enum dim_form form, struct extent run,
                    struct complaint *why)
{
    struct node node = node_of(op);
    node.input[node.input_count++] = x;
    node.shape = graph->node[x].shape;
    struct dim *columns = &node.shape.dim[1];
    if (columns->axis < 0)
        return refuse(why, CODA_INVALID, "Name the axis: `axis` or a dimension such as N.",
                      "`%s` of %" PRId64 " columns that have no name", op_name(op), columns->constant);
    columns->form = form;
    columns->run = run;
    if (form == DIM_HALVES)
        node.run = run;
    return add_node(graph, &node, why);
}

int graph_pair(struct graph *graph, enum op op, int x, struct complaint *why)
{
    if (op != OP_EVEN && op != OP_ODD)
        return refuse(why, CODA_INVALID, "", "`%s` is not one of `pairs`", op_name(op));
    if (!check_inputs(graph, &x, 1, why) || !need_columns(graph, x, "pairs", why))
        return -1;
    return add_part(graph, op, x, DIM_RUNS, (struct extent){-1, 2}, why);
}

int graph_half(struct graph *graph, enum op op, int x, struct extent h, struct complaint *why)
{
    if (op != OP_FIRST && op != OP_SECOND)
        return refuse(why, CODA_INVALID, "", "`%s` is not one of `halves`", op_name(op));
    if (!check_inputs(graph, &x, 1, why) || !accept_extent(graph, &h, why) || !need_columns(graph, x, "halves", why))
        return -1;
    return add_part(graph, op, x, DIM_HALVES, h, why);
}

/* Joins two inputs of N/2 columns; one of them may be a number or a row value. */
static int add_join(struct graph *graph, enum op op, int a, int b, struct extent h, struct complaint *why)
{
    int input[2] = {a, b};
    struct node node = node_of(op);
    if (!check_inputs(graph, input, 2, why) ||
        !join_shapes(graph, &graph->node[a].shape, &graph->node[b].shape, &node.shape, why))
        return -1;
    struct dim *columns = &node.shape.dim[1];
    bool fits = node.shape.rank == 2 && (is_pair_dim(columns) || (op == OP_JOIN_HALVES && columns->form == DIM_HALVES &&
                                                                  extent_equal(columns->run, h)));
    if (!fits) {
        char p[LABEL], q[LABEL];
        label(graph, a, p, sizeof p);
        label(graph, b, q, sizeof q);
        refuse(why, CODA_INVALID, "", "`%s` takes matrices of N/2 columns, found %s and %s", op_name(op), p, q);
        if (node.shape.rank == 2 && columns->form == DIM_HALVES)
            return advise(why,
                          "These are values of `halves`: join_halves(a, b, h) with the same h puts them together.");
        return advise(why, "Take them from `%s`, or from operands such as bf16[M, N/2].",
                      op == OP_JOIN ? "pairs" : "halves");
    }
    node.input_count = 2;
    node.input[0] = a;
    node.input[1] = b;
    if (op == OP_JOIN_HALVES)
        node.run = h;
    *columns = whole_dim(columns->axis);
    return add_node(graph, &node, why);
}

int graph_join(struct graph *graph, int a, int b, struct complaint *why)
{
    return add_join(graph, OP_JOIN, a, b, no_run(), why);
}

int graph_join_halves(struct graph *graph, int a, int b, struct extent h, struct complaint *why)
{
    return accept_extent(graph, &h, why) ? add_join(graph, OP_JOIN_HALVES, a, b, h, why) : -1;
}

/* ---------------------------------------------------------------- rotations */

static bool check_table(const struct graph *graph, int table, struct complaint *why)
{
    const struct shape *shape = &graph->node[table].shape;
    if (shape->rank != 2 || shape->dim[0].form != DIM_WHOLE || shape->dim[1].form != DIM_WHOLE) {
        char found[LABEL];
        label(graph, table, found, sizeof found);
        refuse(why, CODA_INVALID, "One row a position: cosines in columns 0..D/2-1, sines in the rest.",
               "`rope` takes a table such as f32[P, D], found %s", found);
        return false;
    }
    if (shape->dim[1].axis < 0 && shape->dim[1].constant % 2 != 0) {
        refuse(why, CODA_INVALID, "A head is pairs of columns: its width is even.",
               "`rope` of a head of %" PRId64 " columns", shape->dim[1].constant);
        return false;
    }
    return true;
}

static bool check_positions(const struct graph *graph, int x, int positions, struct complaint *why)
{
    const struct shape *shape = &graph->node[positions].shape;
    const struct dim *rows = &graph->node[x].shape.dim[0];
    const struct node *node = &graph->node[positions];
    bool typed = node->op != OP_IN || node->dtype == CODA_I32;
    if (typed && shape->rank == 1 && dim_equal(&shape->dim[0], rows))
        return true;
    char found[LABEL], expected[SHAPE_TEXT];
    label(graph, positions, found, sizeof found);
    dim_print(graph, rows, expected, sizeof expected);
    refuse(why, CODA_INVALID, "", "`rope` takes positions of type i32[%.60s], one a row, found %s%s%s", expected, found,
           typed ? "" : " of type ", typed ? "" : coda_dtype_name(node->dtype));
    return false;
}

static bool accept_columns(struct graph *graph, int table, struct dim *cols, struct complaint *why)
{
    const struct dim *head = &graph->node[table].shape.dim[1];
    struct shape shape = vector_shape(*cols);
    if (cols->form == DIM_ABSENT)
        return true;
    if (!accept_shape(graph, &shape, why))
        return false;
    *cols = shape.dim[0];
    if (cols->form != DIM_WHOLE) {
        refuse(why, CODA_INVALID, "Name an axis: `axis T = Q + E`.", "`cols` of a rotation is an axis or a number");
        return false;
    }
    if (cols->axis < 0 && head->axis < 0 && cols->constant % head->constant != 0) {
        refuse(why, CODA_INVALID, "Rotate whole heads.",
               "`cols = %" PRId64 "` is no multiple of the head's %" PRId64 " columns", cols->constant, head->constant);
        return false;
    }
    return true;
}

int graph_rope(struct graph *graph, int x, int table, int positions, bool pairs, bool inverse, const struct dim *cols,
               struct complaint *why)
{
    int input[3] = {x, table, positions};
    struct node node = node_of(OP_ROPE);
    if (!check_inputs(graph, input, 3, why) || !need_columns(graph, x, "rope", why) ||
        !check_table(graph, table, why) || !check_positions(graph, x, positions, why))
        return -1;
    if (cols)
        node.rope_cols = *cols;
    if (!accept_columns(graph, table, &node.rope_cols, why))
        return -1;
    node.input_count = 3;
    for (int i = 0; i < 3; i++)
        node.input[i] = input[i];
    node.shape = graph->node[x].shape;
    node.rope_pairs = pairs;
    node.rope_inverse = inverse;
    return add_node(graph, &node, why);
}
