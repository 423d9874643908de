/* Building graphs: matrix products, transposes and stacks. */
#include "ir/build.h"
#include <string.h>

static bool need_matrix(const struct graph *graph, int x, const char *what, struct complaint *why)
{
    if (graph->node[x].shape.rank == 2)
        return true;
    char found[LABEL];
    label(graph, x, found, sizeof found);
    refuse(why, CODA_INVALID, "", "%s takes a matrix, found %s", what, found);
    return false;
}

int graph_transpose(struct graph *graph, int x, struct complaint *why)
{
    if (!check_inputs(graph, &x, 1, why) || !need_matrix(graph, x, "`.T`", why))
        return -1;
    if (graph->node[x].op == OP_TRANSPOSE)
        return graph->node[x].input[0];
    struct node node = node_of(OP_TRANSPOSE);
    node.input[node.input_count++] = x;
    node.shape = graph->node[x].shape;
    node.shape.dim[0] = graph->node[x].shape.dim[1];
    node.shape.dim[1] = graph->node[x].shape.dim[0];
    return add_node(graph, &node, why);
}

static bool check_parts(const struct graph *graph, const int *parts, int count, struct complaint *why)
{
    if (count < 2 || count > MAX_STACK) {
        refuse(why, CODA_UNSUPPORTED, "", "`stack` takes 2 to %d matrices, found %d", MAX_STACK, count);
        return false;
    }
    if (!check_inputs(graph, parts, count, why))
        return false;
    const struct dim *columns = &graph->node[parts[0]].shape.dim[1];
    for (int i = 0; i < count; i++) {
        if (!need_matrix(graph, parts[i], "`stack`", why))
            return false;
        const struct shape *shape = &graph->node[parts[i]].shape;
        if (dim_equal(&shape->dim[1], columns) && shape->dim[0].form == DIM_WHOLE)
            continue;
        char first[LABEL], found[LABEL];
        label(graph, parts[0], first, sizeof first);
        label(graph, parts[i], found, sizeof found);
        refuse(why, CODA_INVALID, "Stacked matrices lie row under row: their columns have one axis.",
               "`stack` takes matrices with equal columns, found %s and %s", first, found);
        return false;
    }
    return true;
}

int graph_stack(struct graph *graph, const int *parts, int count, struct complaint *why)
{
    if (!check_parts(graph, parts, count, why))
        return -1;
    struct node node = node_of(OP_STACK);
    node.input_count = count;
    memcpy(node.input, parts, (size_t)count * sizeof *parts);
    node.shape = graph->node[parts[0]].shape;
    if (!stacked_dim(graph, parts, count, &node.shape.dim[0], why))
        return -1;
    if (node.shape.dim[0].axis >= 0 && node.shape.dim[0].axis == node.shape.dim[1].axis)
        return refuse(why, CODA_INVALID, "Give the columns an axis with another name.",
                      "rows and columns of the stack have the same axis %.60s",
                      axis_name(graph, node.shape.dim[0].axis));
    return add_node(graph, &node, why);
}

static int refuse_inner(const struct graph *graph, int left, int right, struct complaint *why)
{
    const struct dim *inner = &graph->node[left].shape.dim[1], *rows = &graph->node[right].shape.dim[0];
    char a[LABEL], b[LABEL], p[SHAPE_TEXT], q[SHAPE_TEXT];
    label(graph, left, a, sizeof a);
    label(graph, right, b, sizeof b);
    dim_print(graph, inner, p, sizeof p);
    dim_print(graph, rows, q, sizeof q);
    refuse(why, CODA_INVALID, "", "the inner axes %.60s and %.60s differ: %s @ %s", p, q, a, b);
    if (sizes_agree(graph, inner, &graph->node[right].shape.dim[1]))
        return advise(why, "The right matrix fits transposed: write `.T` after it.");
    if (sizes_agree(graph, &graph->node[left].shape.dim[0], rows))
        return advise(why, "The left matrix fits transposed: write `.T` after it.");
    return advise(
        why, "The columns of the left matrix and the rows of the right one must have the same axis, or derived axes "
             "with the same terms.");
}

/* Is the operand, or what it transposes or stacks, an `in` of integers? */
static bool is_integer(const struct graph *graph, int x)
{
    const struct node *node = &graph->node[x];
    while (node->op == OP_TRANSPOSE)
        node = &graph->node[node->input[0]];
    for (int i = 0; node->op == OP_STACK && i < node->input_count; i++)
        if (is_integer(graph, node->input[i]))
            return true;
    return node->op == OP_IN && node->dtype == CODA_I32;
}

int graph_gemm(struct graph *graph, int left, int right, struct complaint *why)
{
    int input[2] = {left, right};
    if (!check_inputs(graph, input, 2, why) || !need_matrix(graph, left, "`@`", why) ||
        !need_matrix(graph, right, "`@`", why))
        return -1;
    const struct shape *a = &graph->node[left].shape, *b = &graph->node[right].shape;
    if (!sizes_agree(graph, &a->dim[1], &b->dim[0]))
        return refuse_inner(graph, left, right, why);
    bool whole = true;
    for (int i = 0; i < 2; i++)
        whole = whole && a->dim[i].form == DIM_WHOLE && b->dim[i].form == DIM_WHOLE;
    if (!whole) {
        char p[LABEL], q[LABEL];
        label(graph, left, p, sizeof p);
        label(graph, right, q, sizeof q);
        return refuse(why, CODA_INVALID, "Store the value with an axis of its own first.",
                      "`@` takes matrices of whole axes, found %s and %s", p, q);
    }
    for (int i = 0; i < 2; i++)
        if (is_integer(graph, input[i])) {
            char found[LABEL];
            label(graph, input[i], found, sizeof found);
            return refuse(why, CODA_UNSUPPORTED, "Convert it to bf16 or f32 in memory.",
                          "`@` takes matrices of floats, found %s of type i32", found);
        }
    struct node node = node_of(OP_GEMM);
    node.input_count = 2;
    memcpy(node.input, input, sizeof input);
    node.shape.rank = 2;
    node.shape.dim[0] = a->dim[0];
    node.shape.dim[1] = b->dim[1];
    if (a->dim[0].axis >= 0 && a->dim[0].axis == b->dim[1].axis)
        return refuse(why, CODA_INVALID, "Give one of them another name: two axes may have the same size.",
                      "rows and columns of the product have the same axis %.60s", axis_name(graph, a->dim[0].axis));
    return add_node(graph, &node, why);
}
