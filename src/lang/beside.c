/* beside(q, k, v): columns end to end. Products that share their left operand are one product with stacked weights:
 * [A V^T, A W^T] = A [V; W]^T; what is done to each of them alike is done to all at once. */
#include "ir/build.h"
#include "lang/parser.h"

#include <string.h>

enum { DEEPEST = 32 };

struct parts {
    int node[MAX_STACK], count;
};

static int lift(struct graph *graph, const struct parts *parts, int depth, struct complaint *why);

static const struct node *part_at(const struct graph *graph, const struct parts *parts, int index)
{
    return &graph->node[parts->node[index]];
}

static bool all_are(const struct graph *graph, const struct parts *parts, enum op op)
{
    for (int i = 0; i < parts->count; i++)
        if (part_at(graph, parts, i)->op != op)
            return false;
    return true;
}

/* The weight W of a product A @ W.T, and A; -1: it is no such product. */
static int weight_of(const struct graph *graph, int node, int *left)
{
    const struct node *product = &graph->node[node];
    if (product->op != OP_GEMM || product->input_count != 2)
        return -1;
    const struct node *right = &graph->node[product->input[1]];
    *left = product->input[0];
    return right->op == OP_TRANSPOSE ? right->input[0] : -1;
}

/* The weight of the product that the part was made from. */
static int weight_under(const struct graph *graph, int node)
{
    for (int depth = 0, left; depth < DEEPEST; depth++) {
        const struct node *n = &graph->node[node];
        int weight = weight_of(graph, node, &left), next = -1;
        if (weight >= 0)
            return weight;
        for (int k = 0; k < n->input_count && next < 0; k++)
            next = graph->node[n->input[k]].shape.rank == 2 ? n->input[k] : -1;
        if (next < 0)
            return -1;
        node = next;
    }
    return -1;
}

static int stack_products(struct graph *graph, const struct parts *parts, struct complaint *why)
{
    int weight[MAX_STACK], count = 0, shared = -1, left;
    for (int i = 0; i < parts->count; i++) {
        int w = weight_of(graph, parts->node[i], &left);
        if (w < 0 || (i > 0 && left != shared))
            return refuse(
                why, CODA_INVALID, "Stacked by hand, it is A @ stack(V, W).T",
                "`beside` takes products A @ V.T, A @ W.T of one left operand, or what is alike done to each");
        shared = left;
        const struct node *stack = &graph->node[w];
        int members = stack->op == OP_STACK ? stack->input_count : 1;
        if (count + members > MAX_STACK)
            return refuse(why, CODA_UNSUPPORTED, "", "`beside` of more than %d weights", MAX_STACK);
        for (int k = 0; k < members; k++)
            weight[count++] = stack->op == OP_STACK ? stack->input[k] : w;
    }
    int all = graph_stack(graph, weight, count, why);
    int right = all < 0 ? -1 : graph_transpose(graph, all, why);
    return right < 0 ? -1 : graph_gemm(graph, shared, right, why);
}

static bool same_value(const struct graph *graph, int a, int b)
{
    const struct node *p = &graph->node[a], *q = &graph->node[b];
    bool numbers = p->op == OP_NUMBER && q->op == OP_NUMBER && p->number == q->number;
    return a == b || numbers || (p->op == OP_SIZE && q->op == OP_SIZE && p->axis == q->axis);
}

/* Input k of each part, or the one value that all of them share; -1 where they neither line up nor are one. */
static int lift_input(struct graph *graph, const struct parts *parts, int k, int depth, struct complaint *why)
{
    struct parts inputs = {.count = parts->count};
    bool shared = true, matrices = true;
    for (int i = 0; i < parts->count; i++) {
        inputs.node[i] = part_at(graph, parts, i)->input[k];
        shared = shared && same_value(graph, inputs.node[0], inputs.node[i]);
        matrices = matrices && graph->node[inputs.node[i]].shape.rank == 2;
    }
    const struct shape *first = &graph->node[inputs.node[0]].shape;
    const struct dim *rows = &part_at(graph, parts, 0)->shape.dim[0];
    if (shared && (first->rank == 0 || (first->rank == 1 && dim_equal(&first->dim[0], rows))))
        return inputs.node[0];
    if (matrices)
        return lift(graph, &inputs, depth + 1, why);
    return refuse(why, CODA_INVALID, "Apply it to the result: f(beside(a, b)), with a vector of all columns.",
                  "the parts of `beside` are joined with different vectors");
}

static int lift_elementwise(struct graph *graph, const struct parts *parts, int depth, struct complaint *why)
{
    const struct node like = *part_at(graph, parts, 0);
    int input[3] = {-1, -1, -1};
    for (int k = 0; k < like.input_count; k++) {
        input[k] = lift_input(graph, parts, k, depth, why);
        if (input[k] < 0)
            return -1;
    }
    return like.op == OP_CAST ? graph_cast(graph, input[0], like.dtype, why)
                              : graph_elementwise(graph, like.op, input, like.input_count, why);
}

/* Rotations of the first parts by the same angles: one of their columns alone. */
static int lift_rotation(struct graph *graph, const struct parts *parts, int depth, struct complaint *why)
{
    const struct node like = *part_at(graph, parts, 0);
    struct parts inputs = *parts;
    int weight[MAX_STACK], rotated = 0;
    struct dim columns = {0};
    for (; rotated < parts->count && part_at(graph, parts, rotated)->op == OP_ROPE; rotated++) {
        const struct node *rope = part_at(graph, parts, rotated);
        if (rope->input[1] != like.input[1] || rope->input[2] != like.input[2] || rope->rope_pairs != like.rope_pairs ||
            rope->rope_inverse != like.rope_inverse || rope->rope_cols.form != DIM_ABSENT)
            return refuse(why, CODA_INVALID, "Rotate the result: rope(beside(..), table, pos, cols = T).",
                          "the parts of `beside` are rotated by different angles");
        inputs.node[rotated] = rope->input[0];
        weight[rotated] = weight_under(graph, rope->input[0]);
        if (weight[rotated] < 0)
            return stack_products(graph, parts, why);
    }
    if (rotated == 1)
        columns = graph->node[weight[0]].shape.dim[0];
    else if (rotated < parts->count && !stacked_dim(graph, weight, rotated, &columns, why))
        return -1;
    int all = lift(graph, &inputs, depth + 1, why);
    return all < 0 ? -1
                   : graph_rope(graph, all, like.input[1], like.input[2], like.rope_pairs, like.rope_inverse,
                                rotated < parts->count ? &columns : NULL, why);
}

static int lift(struct graph *graph, const struct parts *parts, int depth, struct complaint *why)
{
    const struct node *first = part_at(graph, parts, 0);
    if (depth > DEEPEST)
        return refuse(why, CODA_UNSUPPORTED, "", "the parts of `beside` are deeper than %d operations", DEEPEST);
    if (first->op == OP_ROPE)
        return lift_rotation(graph, parts, depth, why);
    if ((op_is_elementwise(first->op) || first->op == OP_CAST) && all_are(graph, parts, first->op)) {
        for (int i = 1; i < parts->count && first->op == OP_CAST; i++)
            if (part_at(graph, parts, i)->dtype != first->dtype)
                return stack_products(graph, parts, why);
        return lift_elementwise(graph, parts, depth, why);
    }
    return stack_products(graph, parts, why);
}

int expand_beside(struct graph *graph, const int *part, int count, struct complaint *why)
{
    struct parts parts = {.count = count};
    memcpy(parts.node, part, (size_t)count * sizeof *part);
    return lift(graph, &parts, 0, why);
}
