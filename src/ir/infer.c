/* Building graphs: operands, leaves and elementwise operations. */
#include "ir/build.h"
#include <stdlib.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- operands and leaves */

static int add_operand(struct graph *graph, const char *name, coda_role role, coda_dtype dtype,
                       const struct shape *shape, int node, struct complaint *why)
{
    if (graph->operand_count == graph->operand_capacity) {
        int larger = graph->operand_capacity ? 2 * graph->operand_capacity : 16;
        struct operand *grown = realloc(graph->operand, (size_t)larger * sizeof *grown);
        if (!grown)
            return refuse(why, CODA_MEMORY, "", "no memory for an operand");
        graph->operand = grown;
        graph->operand_capacity = larger;
    }
    struct operand *operand = &graph->operand[graph->operand_count];
    memset(operand, 0, sizeof *operand);
    operand->name = strdup(name);
    if (!operand->name)
        return refuse(why, CODA_MEMORY, "", "no memory for the name of an operand");
    operand->role = role;
    operand->dtype = dtype;
    operand->shape = *shape;
    operand->node = node;
    return graph->operand_count++;
}

static bool name_is_free(const struct graph *graph, const char *name, struct complaint *why)
{
    bool taken = graph_find_operand(graph, name) >= 0;
    for (int i = 0; i < graph->parameter_count; i++)
        taken |= strcmp(graph->parameter[i].name, name) == 0;
    if (taken)
        refuse(why, CODA_INVALID, "Every name is defined once: choose another.", "`%.100s` is defined already", name);
    return !taken;
}

static bool room_for_operand(const struct graph *graph, const char *name, struct complaint *why)
{
    if (!name_is_free(graph, name, why))
        return false;
    int most = graph->between ? MAX_GRAPH_OPERANDS : MAX_OPERANDS;
    if (graph->operand_count < most)
        return true;
    refuse(why, CODA_UNSUPPORTED, graph->between ? "Split the block in two." : "Split the program in two.",
           "`%.100s` is one operand too many: a %s has at most %d", name,
           graph->between ? "block with its gradients" : "program", most);
    return false;
}

int graph_in(struct graph *graph, const char *name, coda_dtype dtype, const struct shape *shape, struct complaint *why)
{
    struct node node = node_of(OP_IN);
    node.shape = *shape;
    node.dtype = dtype;
    node.index = graph->operand_count;
    if (!room_for_operand(graph, name, why) || !accept_shape(graph, &node.shape, why))
        return -1;
    int index = add_node(graph, &node, why);
    if (index < 0)
        return -1;
    if (add_operand(graph, name, CODA_IN, dtype, &node.shape, index, why) < 0) {
        graph->node_count--;
        return -1;
    }
    return index;
}

int graph_parameter(struct graph *graph, const char *name, double default_value, struct complaint *why)
{
    if (!name_is_free(graph, name, why))
        return -1;
    if (graph->parameter_count >= MAX_OPERANDS)
        return refuse(why, CODA_UNSUPPORTED, "Write some of them as numbers.",
                      "`%.100s` is one param too many: a program has at most %d", name, MAX_OPERANDS);
    struct node node = node_of(OP_PARAM);
    node.index = graph->parameter_count;
    int index = add_node(graph, &node, why);
    if (index < 0)
        return -1;
    struct parameter *parameter = &graph->parameter[graph->parameter_count];
    parameter->name = strdup(name);
    if (!parameter->name) {
        graph->node_count--;
        return refuse(why, CODA_MEMORY, "", "no memory for the name of a param");
    }
    parameter->default_value = default_value;
    parameter->node = index;
    graph->parameter_count++;
    return index;
}

int graph_number(struct graph *graph, double number, struct complaint *why)
{
    struct node node = node_of(OP_NUMBER);
    node.number = number;
    return add_node(graph, &node, why);
}

int graph_size(struct graph *graph, int axis, struct complaint *why)
{
    if (!accept_axis(graph, axis, why))
        return -1;
    struct node node = node_of(OP_SIZE);
    node.axis = axis;
    return add_node(graph, &node, why);
}

int graph_index(struct graph *graph, int axis, struct complaint *why)
{
    if (!accept_axis(graph, axis, why))
        return -1;
    struct node node = node_of(OP_INDEX);
    node.axis = axis;
    node.shape = vector_shape(whole_dim(axis));
    return add_node(graph, &node, why);
}

/* ---------------------------------------------------------------- elementwise */

/* A + B of two products is one product with the terms of both: one accumulator. */
static int merge_products(struct graph *graph, int a, int b, struct complaint *why)
{
    struct node merged = node_of(OP_GEMM);
    const struct node *part[2] = {&graph->node[a], &graph->node[b]};
    merged.shape = part[0]->shape;
    for (int p = 0; p < 2; p++)
        for (int i = 0; i < part[p]->input_count; i++)
            merged.input[merged.input_count++] = part[p]->input[i];
    return add_node(graph, &merged, why);
}

static bool products_merge(const struct graph *graph, int a, int b)
{
    const struct node *p = &graph->node[a], *q = &graph->node[b];
    return p->op == OP_GEMM && q->op == OP_GEMM && shape_equal(&p->shape, &q->shape) &&
           p->input_count + q->input_count <= MAX_INPUTS;
}

/* Matrices first, so that they decide the order of axes for vectors. */
static bool join_inputs(const struct graph *graph, const int *input, int count, struct shape *shape,
                        struct complaint *why)
{
    *shape = scalar_shape();
    for (int rank = 2; rank > 0; rank--)
        for (int i = 0; i < count; i++) {
            const struct shape *next = &graph->node[input[i]].shape;
            struct shape joined;
            if (next->rank != rank)
                continue;
            if (!join_shapes(graph, shape, next, &joined, why))
                return false;
            *shape = joined;
        }
    return true;
}

int graph_elementwise(struct graph *graph, enum op op, const int *input, int count, struct complaint *why)
{
    if (!op_is_elementwise(op))
        return refuse(why, CODA_INVALID, "", "`%s` is no elementwise operation", op_name(op));
    if (count != op_arity(op))
        return refuse(why, CODA_INVALID, "", "`%s` takes %d input%s, found %d", op_name(op), op_arity(op),
                      op_arity(op) == 1 ? "" : "s", count);
    if (!check_inputs(graph, input, count, why))
        return -1;
    if (op == OP_ADD && products_merge(graph, input[0], input[1]))
        return merge_products(graph, input[0], input[1], why);
    struct node node = node_of(op);
    node.input_count = count;
    memcpy(node.input, input, (size_t)count * sizeof *input);
    if (!join_inputs(graph, input, count, &node.shape, why))
        return -1;
    return add_node(graph, &node, why);
}

int graph_cast(struct graph *graph, int x, coda_dtype dtype, struct complaint *why)
{
    if (!check_inputs(graph, &x, 1, why))
        return -1;
    struct node node = node_of(OP_CAST);
    node.input[node.input_count++] = x;
    node.dtype = dtype;
    node.shape = graph->node[x].shape;
    return add_node(graph, &node, why);
}

int graph_broadcast(struct graph *graph, int x, const struct shape *shape, struct complaint *why)
{
    if (!check_inputs(graph, &x, 1, why))
        return -1;
    struct node node = node_of(OP_BROADCAST);
    struct shape joined;
    node.input[node.input_count++] = x;
    node.shape = *shape;
    if (!accept_shape(graph, &node.shape, why) || !join_shapes(graph, &node.shape, &graph->node[x].shape, &joined, why))
        return -1;
    if (!shape_equal(&joined, &node.shape)) {
        char from[LABEL], to[SHAPE_TEXT];
        label(graph, x, from, sizeof from);
        shape_print(graph, &node.shape, to, sizeof to);
        return refuse(why, CODA_INVALID, "Broadcast adds axes and repeats runs; it drops and splits nothing.",
                      "%s does not broadcast to %s", from, to[0] ? to : "a number");
    }
    return add_node(graph, &node, why);
}

int graph_repeat(struct graph *graph, int x, int axis, struct complaint *why)
{
    if (!check_inputs(graph, &x, 1, why) || !accept_axis(graph, axis, why))
        return -1;
    const struct shape *shape = &graph->node[x].shape;
    if (shape->rank != 1 || shape->dim[0].form != DIM_WHOLE) {
        char from[LABEL];
        label(graph, x, from, sizeof from);
        return refuse(why, CODA_INVALID, "", "`repeat` takes a vector such as bf16[D], found %s", from);
    }
    struct node node = node_of(OP_REPEAT);
    node.input[node.input_count++] = x;
    node.axis = axis;
    node.shape = vector_shape(whole_dim(axis));
    return add_node(graph, &node, why);
}

/* ---------------------------------------------------------------- outs */

static bool out_fits(const struct shape *declared, const struct shape *value)
{
    if (declared->rank != value->rank)
        return false;
    for (int i = 0; i < value->rank; i++) {
        const struct dim *d = &declared->dim[i], *v = &value->dim[i];
        bool halves = v->form == DIM_HALVES && is_pair_dim(d) && same_axis(d, v);
        if (!halves && !dim_equal(d, v))
            return false;
    }
    return true;
}

static int refuse_out(const struct graph *graph, const char *name, const struct shape *declared, int value,
                      struct complaint *why)
{
    const struct shape *shape = &graph->node[value].shape;
    struct shape joined;
    char from[LABEL], to[SHAPE_TEXT];
    label(graph, value, from, sizeof from);
    shape_print(graph, declared, to, sizeof to);
    refuse(why, CODA_INVALID, "", "`%.60s` is declared %s, but its value is %s", name, to, from);
    if (shape->rank == 2 && declared->rank == 2 && same_axis(&shape->dim[0], &declared->dim[1]) &&
        same_axis(&shape->dim[1], &declared->dim[0]))
        return advise(why,
                      "Rows and columns are swapped. Declare the out in the value's order; where two vectors made the "
                      "value, broadcast(x, %s) fixes the order.",
                      to);
    if (join_shapes(graph, declared, shape, &joined, NULL) && shape_equal(&joined, declared))
        return advise(why, "Declare the out with the value's shape, or write broadcast(.., %s).", to);
    shape_print(graph, shape, from, sizeof from);
    return advise(why, "Declare it %s, or change the expression.", from[0] ? from : "as a vector or matrix");
}

int graph_out(struct graph *graph, const char *name, coda_role role, coda_dtype dtype, const struct shape *shape,
              int value, struct complaint *why)
{
    struct shape declared = *shape;
    if (!check_inputs(graph, &value, 1, why) || !room_for_operand(graph, name, why) ||
        !accept_shape(graph, &declared, why))
        return -1;
    if (declared.rank == 0)
        return refuse(why, CODA_INVALID, "Give it an axis; a program that finishes sums can use an axis of size 1.",
                      "`%.60s` is a scalar: outs are vectors and matrices", name);
    if (!out_fits(&declared, &graph->node[value].shape))
        return refuse_out(graph, name, &declared, value, why);
    const struct node *node = &graph->node[value];
    bool rounds = node->op == OP_CAST && node->dtype == dtype; /* the program says so */
    if (role == CODA_ACCUMULATE && dtype != CODA_F32 && !rounds)
        return refuse(why, CODA_INVALID, "Declare it f32; where that is meant, say so: += cast(.., the out's type).",
                      "`%.60s += ..` in %s would round the running sum at every launch", name, coda_dtype_name(dtype));
    return add_operand(graph, name, role, dtype, &declared, value, why) < 0 ? -1 : 0;
}

int graph_patch(struct graph *graph, const char *name, coda_dtype dtype, const struct shape *shape, int value, int ids,
                struct complaint *why)
{
    struct shape declared = *shape;
    char found[LABEL];
    if (!check_inputs(graph, (const int[]){value, ids}, 2, why) || !room_for_operand(graph, name, why) ||
        !accept_shape(graph, &declared, why))
        return -1;
    const struct node *v = &graph->node[value], *t = &graph->node[ids];
    const struct dim *rows = &declared.dim[0];
    if (graph->is_block)
        return refuse(why, CODA_UNSUPPORTED, "Give it a program of its own.", "a block patches no out such as `%.60s`",
                      name);
    if (declared.rank != 2 || rows->form != DIM_WHOLE || declared.dim[1].form != DIM_WHOLE)
        return refuse(why, CODA_INVALID, "Write out X[t] : bf16[M, N] = v.",
                      "`%.60s` is patched at a column of each row, so it is a matrix of whole axes", name);
    label(graph, value, found, sizeof found);
    if (v->shape.rank != 1 || !dim_equal(&v->shape.dim[0], rows))
        return refuse(why, CODA_INVALID, "Give one value a row.", "`%.60s` takes one value a row, found %s", name,
                      found);
    label(graph, ids, found, sizeof found);
    if (t->op != OP_IN || t->dtype != CODA_I32 || t->shape.rank != 1 || !dim_equal(&t->shape.dim[0], rows))
        return refuse(why, CODA_INVALID, "Declare in t : i32[M], with the rows of the out.",
                      "the columns of `%.60s` are an i32 `in` with one id a row, found %s", name, found);
    int added = add_operand(graph, name, CODA_PATCH, dtype, &declared, value, why);
    if (added >= 0)
        graph->operand[added].ids = t->index;
    return added < 0 ? -1 : 0;
}

int graph_when(struct graph *graph, int x, struct complaint *why)
{
    char found[LABEL];
    if (!check_inputs(graph, &x, 1, why))
        return -1;
    const struct node *node = &graph->node[x];
    label(graph, x, found, sizeof found);
    if (graph->is_block)
        return refuse(why, CODA_UNSUPPORTED, "Conditions are for programs.", "a block has no `when`");
    if (graph->conditional)
        return refuse(why, CODA_INVALID, "Join the conditions in one vector.", "a second `when`");
    if (node->op != OP_IN || node->shape.rank > 1 || (node->dtype != CODA_F32 && node->dtype != CODA_I32))
        return refuse(why, CODA_INVALID, "Declare in m : f32[M], and fill it by a program before this one.",
                      "`when` takes a vector or scalar `in` of type f32 or i32, found %s%s%s", found,
                      node->op == OP_IN ? " : " : "", node->op == OP_IN ? coda_dtype_name(node->dtype) : "");
    graph->conditional = true;
    graph->condition = node->index;
    return 0;
}
