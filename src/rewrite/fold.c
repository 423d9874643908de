/* Identities that hold for every value, applied while a graph is built. A zero times anything is zero: the compiler
 * only multiplies by gradients that do not exist. */
#include "rewrite/builder.h"

#include <math.h>

static const struct node *node_at(const struct builder *b, int node)
{
    return &b->graph->node[node];
}

static bool is_comparison(enum op op)
{
    return op >= OP_LT && op <= OP_NE;
}

/* where(c, x, 0) or where(c, 0, x): the place of x, else 0. */
static int masked_input(const struct builder *b, int node)
{
    const struct node *n = node_at(b, node);
    if (n->op != OP_WHERE)
        return 0;
    return is_number(b->graph, n->input[2], 0) ? 1 : is_number(b->graph, n->input[1], 0) ? 2 : 0;
}

/* Is it masked, by few masks? Moving an operation through them makes it once more for each. */
static bool masked(const struct builder *b, int node)
{
    int depth = 0, place;
    for (; depth < 4 && (place = masked_input(b, node)) != 0; depth++)
        node = node_at(b, node)->input[place];
    return depth > 0 && depth < 4;
}

static double fold_numbers(enum op op, double x, double y)
{
    switch (op) {
    case OP_ADD:
        return x + y;
    case OP_SUB:
        return x - y;
    case OP_MUL:
        return x * y;
    case OP_DIV:
        return x / y;
    case OP_LT:
        return x < y;
    case OP_LE:
        return x <= y;
    case OP_GT:
        return x > y;
    case OP_GE:
        return x >= y;
    case OP_EQ:
        return x == y;
    case OP_NE:
        return x != y;
    default:
        return NAN;
    }
}

/* Runs of different lengths meet in a matrix only. */
static bool joins(const struct builder *b, int x, int y)
{
    struct shape joined;
    return join_shapes(b->graph, &node_at(b, x)->shape, &node_at(b, y)->shape, &joined, NULL);
}

/* op(where(c, x, 0), y) = where(c, op(x, y), 0) for op that is linear in its first input. */
static int fold_mask(struct builder *b, enum op op, int mask, int y)
{
    const struct node n = *node_at(b, mask);
    int place = masked_input(b, mask), x = n.input[place];
    if (y >= 0 && !joins(b, x, y))
        return NOT_FOLDED;
    int inner = op == OP_NEG ? build_negative(b, x) : build_binary(b, op, x, y), zero = build_number(b, 0);
    return place == 1 ? build_where(b, n.input[0], inner, zero) : build_where(b, n.input[0], zero, inner);
}

/* where(c, x, 0) + where(c, 0, y) = where(c, x, y); join(x, 0) + join(0, y) = join(x, y). */
static int fold_disjoint(struct builder *b, int x, int y)
{
    const struct node p = *node_at(b, x), q = *node_at(b, y);
    const struct graph *graph = b->graph;
    if (p.op != q.op)
        return NOT_FOLDED;
    if (p.op == OP_WHERE && p.input[0] == q.input[0]) {
        int i = masked_input(b, x), j = masked_input(b, y);
        if (i != 0 && j != 0 && i != j)
            return build_where(b, p.input[0], i == 1 ? p.input[1] : q.input[1], i == 2 ? p.input[2] : q.input[2]);
        if (i != 0 && i == j && joins(b, p.input[i], q.input[i])) {
            int sum = build_binary(b, OP_ADD, p.input[i], q.input[i]), zero = build_number(b, 0);
            return i == 1 ? build_where(b, p.input[0], sum, zero) : build_where(b, p.input[0], zero, sum);
        }
    }
    bool joins = p.op == OP_JOIN || (p.op == OP_JOIN_HALVES && extent_equal(p.run, q.run));
    bool first = joins && is_number(graph, p.input[1], 0) && is_number(graph, q.input[0], 0);
    bool second = joins && is_number(graph, p.input[0], 0) && is_number(graph, q.input[1], 0);
    if (!first && !second)
        return NOT_FOLDED;
    int both[2] = {first ? p.input[0] : q.input[0], first ? q.input[1] : p.input[1]};
    return build_like(b, graph, x, both);
}

static int fold_add(struct builder *b, int x, int y)
{
    if (is_number(b->graph, x, 0))
        return y;
    if (is_number(b->graph, y, 0))
        return x;
    if (node_at(b, y)->op == OP_NEG)
        return build_binary(b, OP_SUB, x, node_at(b, y)->input[0]);
    if (node_at(b, x)->op == OP_NEG)
        return build_binary(b, OP_SUB, y, node_at(b, x)->input[0]);
    return fold_disjoint(b, x, y);
}

static int fold_sub(struct builder *b, int x, int y)
{
    if (is_number(b->graph, y, 0))
        return x;
    if (is_number(b->graph, x, 0))
        return build_negative(b, y);
    return node_at(b, y)->op == OP_NEG ? build_binary(b, OP_ADD, x, node_at(b, y)->input[0]) : NOT_FOLDED;
}

static int fold_mul(struct builder *b, int x, int y)
{
    for (int side = 0; side < 2; side++) {
        int p = side ? y : x, q = side ? x : y;
        if (is_number(b->graph, p, 0))
            return p;
        if (is_number(b->graph, p, 1))
            return q;
        if (is_number(b->graph, p, -1))
            return build_negative(b, q);
        if (node_at(b, p)->op == OP_NEG)
            return build_negative(b, build_binary(b, OP_MUL, node_at(b, p)->input[0], q));
        if (masked(b, p))
            return fold_mask(b, OP_MUL, p, q);
    }
    return NOT_FOLDED;
}

static int fold_div(struct builder *b, int x, int y)
{
    if (is_number(b->graph, x, 0) || is_number(b->graph, y, 1))
        return x;
    if (node_at(b, x)->op == OP_NEG)
        return build_negative(b, build_binary(b, OP_DIV, node_at(b, x)->input[0], y));
    return masked(b, x) ? fold_mask(b, OP_DIV, x, y) : NOT_FOLDED;
}

static int fold_neg(struct builder *b, int x)
{
    const struct node n = *node_at(b, x);
    if (n.op == OP_NUMBER)
        return build_number(b, -n.number);
    if (n.op == OP_NEG)
        return n.input[0];
    return masked(b, x) ? fold_mask(b, OP_NEG, x, -1) : NOT_FOLDED;
}

static int fold_where(struct builder *b, int condition, int x, int y)
{
    const struct node c = *node_at(b, condition), p = *node_at(b, x), q = *node_at(b, y);
    if (c.op == OP_NUMBER)
        return c.number != 0 ? x : y;
    if (x == y)
        return x;
    if (c.op == OP_NE && is_number(b->graph, c.input[1], 0))
        return build_where(b, c.input[0], x, y);
    if (p.op == OP_WHERE && p.input[0] == condition)
        return build_where(b, condition, p.input[1], y);
    if (q.op == OP_WHERE && q.input[0] == condition)
        return build_where(b, condition, x, q.input[2]);
    return NOT_FOLDED;
}

/* pairs(join(x, y)) = x, y and the other way round; rope(rope_inverse(x)) = x. */
static int fold_pairwise(struct builder *b, enum op op, const int *input)
{
    const struct node *x = node_at(b, input[0]);
    switch (op) {
    case OP_EVEN:
    case OP_ODD:
        return x->op == OP_JOIN && node_at(b, x->input[0])->shape.rank == 2 && node_at(b, x->input[1])->shape.rank == 2
                   ? x->input[op == OP_ODD]
                   : NOT_FOLDED;
    case OP_FIRST:
    case OP_SECOND:
        return x->op == OP_JOIN_HALVES && node_at(b, x->input[0])->shape.rank == 2 &&
                       node_at(b, x->input[1])->shape.rank == 2
                   ? x->input[op == OP_SECOND]
                   : NOT_FOLDED;
    case OP_JOIN:
        return x->op == OP_EVEN && node_at(b, input[1])->op == OP_ODD && x->input[0] == node_at(b, input[1])->input[0]
                   ? x->input[0]
                   : NOT_FOLDED;
    default:
        return NOT_FOLDED;
    }
}

int fold(struct builder *b, enum op op, const int *input)
{
    int x = input[0], y = op_arity(op) > 1 ? input[1] : -1;
    if (b->plain)
        return NOT_FOLDED;
    if (op_arity(op) == 2 && node_at(b, x)->op == OP_NUMBER && node_at(b, y)->op == OP_NUMBER) {
        double value = fold_numbers(op, node_at(b, x)->number, node_at(b, y)->number);
        if (isfinite(value))
            return build_number(b, value);
    }
    switch (op) {
    case OP_ADD:
        return fold_add(b, x, y);
    case OP_SUB:
        return fold_sub(b, x, y);
    case OP_MUL:
        return fold_mul(b, x, y);
    case OP_DIV:
        return fold_div(b, x, y);
    case OP_NEG:
        return fold_neg(b, x);
    case OP_NE:
        return is_comparison(node_at(b, x)->op) && is_number(b->graph, y, 0) ? x : NOT_FOLDED;
    case OP_WHERE:
        return fold_where(b, x, y, input[2]);
    default:
        return fold_pairwise(b, op, input);
    }
}
