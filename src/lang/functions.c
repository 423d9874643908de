#include "lang/functions.h"

#include "lang/parser.h"

static int build_elementwise(struct graph *graph, enum op op, const struct argument *a, int count,
                             struct complaint *why)
{
    int input[3];
    for (int i = 0; i < count; i++)
        input[i] = a[i].node;
    return graph_elementwise(graph, op, input, count, why);
}

static int build_cast(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    (void)op, (void)count;
    return graph_cast(graph, a[0].node, a[1].dtype, why);
}

static int build_broadcast(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    (void)op, (void)count;
    return graph_broadcast(graph, a[0].node, &a[1].shape, why);
}

static int build_repeat(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    (void)op, (void)count;
    return graph_repeat(graph, a[0].node, a[1].axis, why);
}

static int build_index(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    (void)op, (void)count;
    return graph_index(graph, a[0].axis, why);
}

static int build_stack(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    int part[MAX_ARGUMENTS];
    (void)op;
    for (int i = 0; i < count; i++)
        part[i] = a[i].node;
    return graph_stack(graph, part, count, why);
}

static int build_beside(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    int part[MAX_ARGUMENTS];
    (void)op;
    for (int i = 0; i < count; i++)
        part[i] = a[i].node;
    return expand_beside(graph, part, count, why);
}

static int build_join(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    (void)count;
    if (op == OP_JOIN)
        return graph_join(graph, a[0].node, a[1].node, why);
    return graph_join_halves(graph, a[0].node, a[1].node, a[2].run, why);
}

static int rope(struct graph *graph, const struct argument *a, int count, bool pairs, bool inverse,
                struct complaint *why)
{
    struct dim all = {.form = DIM_ABSENT, .axis = -1, .run = {.axis = -1}};
    return graph_rope(graph, a[0].node, a[1].node, a[2].node, pairs, inverse, count > 3 ? &a[3].dim : &all, why);
}

static int build_rope(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    (void)op;
    return rope(graph, a, count, false, false, why);
}

static int build_rope_pairs(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    (void)op;
    return rope(graph, a, count, true, false, why);
}

static int build_rope_inverse(struct graph *graph, enum op op, const struct argument *a, int count,
                              struct complaint *why)
{
    (void)op;
    return rope(graph, a, count, false, true, why);
}

static int build_rope_pairs_inverse(struct graph *graph, enum op op, const struct argument *a, int count,
                                    struct complaint *why)
{
    (void)op;
    return rope(graph, a, count, true, true, why);
}

static int build_reduction(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    if (count == 1)
        return graph_reduce(graph, op, a[0].node, -1, (struct extent){.axis = -1}, why);
    return graph_reduce(graph, op, a[0].node, a[1].axis, a[1].run, why);
}

/* max(a, b) is elementwise, max(x, N:128), max(x, N) and max(x) are reductions. */
static int build_max(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    bool reduces = count == 1 || a[1].kind == 'r';
    return reduces ? build_reduction(graph, op, a, count, why) : build_elementwise(graph, OP_MAX, a, count, why);
}

static int build_mean(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    (void)op, (void)count;
    return expand_mean(graph, a[0].node, a[1].axis, a[1].run, why);
}

static int build_by_index(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    (void)count;
    return op == OP_PICK ? graph_pick(graph, a[0].node, a[1].node, why)
                         : graph_gather(graph, a[0].node, a[1].node, why);
}

static int build_onehot(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    (void)op, (void)count;
    return graph_onehot(graph, a[0].node, a[1].axis, why);
}

static int build_rmsnorm(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    (void)op, (void)count;
    return expand_rmsnorm(graph, a[0].node, a[1].node, a[2].node, why);
}

static int build_layernorm(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    (void)op, (void)count;
    return expand_layernorm(graph, a[0].node, a[1].node, a[2].node, a[3].node, why);
}

static int build_softmax(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    (void)op, (void)count;
    return expand_softmax(graph, a[0].node, why);
}

/* Functions before the rows of primitives.def, so that `max` is found here. */
const struct function language_functions[] = {
    {"cast", "xd", "cast(x, bf16)", build_cast, OP_CAST, false},
    {"broadcast", "xs", "broadcast(x, [M, N])", build_broadcast, OP_BROADCAST, false},
    {"repeat", "xa", "repeat(g, N)", build_repeat, OP_REPEAT, false},
    {"index", "a", "index(N)", build_index, OP_INDEX, false},
    {"stack", "x*", "stack(W1, W2, ..) of 2 to 8 matrices", build_stack, OP_STACK, false},
    {"beside", "x*", "beside(q, k, ..) of 2 to 8 matrices", build_beside, OP_GEMM, false},
    {"join", "xx", "join(a, b)", build_join, OP_JOIN, false},
    {"join_halves", "xxl", "join_halves(a, b, h)", build_join, OP_JOIN_HALVES, false},
    {"rope", "xxx|c", "rope(x, table, pos [, cols = T])", build_rope, OP_ROPE, false},
    {"rope_pairs", "xxx|c", "rope_pairs(x, table, pos [, cols = T])", build_rope_pairs, OP_ROPE, false},
    {"rope_inverse", "xxx|c", "rope_inverse(x, table, pos [, cols = T])", build_rope_inverse, OP_ROPE, false},
    {"rope_pairs_inverse", "xxx|c", "rope_pairs_inverse(x, table, pos [, cols = T])", build_rope_pairs_inverse, OP_ROPE,
     false},
    {"sum", "x|r", "sum(x, N:128), sum(x, N), or sum(S) of partials", build_reduction, OP_SUM, false},
    {"max", "x|m", "max(a, b), max(x, N:128), max(x, N), or max(S) of partials", build_max, OP_REDUCE_MAX, false},
    {"absmax", "x|r", "absmax(x, N:128), absmax(x, N), or absmax(S) of partials", build_reduction, OP_ABSMAX, false},
    {"logsumexp", "x|r", "logsumexp(x, N:128), logsumexp(x, N), or logsumexp(L) of partials", build_reduction,
     OP_LOGSUMEXP, false},
    {"mean", "xr", "mean(x, N:128) or mean(x, N); of partials sum(S) / K", build_mean, OP_SUM, false},
    {"pick", "xx", "pick(z, t)", build_by_index, OP_PICK, false},
    {"onehot", "xa", "onehot(t, N)", build_onehot, OP_ONEHOT, false},
    {"gather", "xx", "gather(E, t)", build_by_index, OP_GATHER, false},
    {"rmsnorm", "xxx", "rmsnorm(x, g, eps)", build_rmsnorm, OP_RSQRT, true},
    {"layernorm", "xxxx", "layernorm(x, g, b, eps)", build_layernorm, OP_RSQRT, true},
    {"softmax", "x", "softmax(x)", build_softmax, OP_EXP, true},
#define ARGUMENTS_1 "x", "(x)"
#define ARGUMENTS_2 "xx", "(a, b)"
#define ARGUMENTS_3 "xxx", "(a, b, c)"
#define PRIMITIVE(op, name, arity, meaning, cuda, da, db, dc, cost)                                                    \
    {name, ARGUMENTS_##arity, build_elementwise, OP_##op, false},
#include "ir/primitives.def"
#undef PRIMITIVE
};
const int language_function_count = sizeof language_functions / sizeof *language_functions;
