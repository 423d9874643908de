/* Graphs: the shapes that operations infer, what they refuse and how they say it, copies and equality. */
#include "ir/graph.h"
#include "kit/postfix.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(table) ((int)(sizeof(table) / sizeof(table)[0]))

static struct graph *build(const char *text, int *top)
{
    struct complaint why;
    struct graph *graph = postfix_graph(text, top, &why);
    if (!graph)
        fail_msg("%s\n  was refused: %s", text, why.reason);
    return graph;
}

/* ---------------------------------------------------------------- shapes */

static const struct {
    const char *text, *shape;
} shapes[] = {
    {"2 3 +", ""},
    {"p=0.5 x=f32[M,N] p x *", "[M, N]"},
    {"r=f32[M] x=f32[M,N] r x *", "[M, N]"},
    {"g=f32[N] x=f32[M,N] x g *", "[M, N]"},
    {"s=f32[M,N/128] x=f32[M,N] x s *", "[M, N]"},
    {"s=f32[M/64,N] x=f32[M,N] s x *", "[M, N]"},
    {"s=f32[M,N/128] r=f32[M] s r *", "[M, N/128]"},
    {"s=f32[M,N/128] q=f32[N/128] s q *", "[M, N/128]"},
    {"s=f32[M,N/D] q=f32[N/D] s q *", "[M, N/D]"},
    {"s=f32[M,N/D/2] q=f32[N/D/2] s q *", "[M, N/D/2]"},
    {"c=f32[64] d=f32[M,64] d c +", "[M, 64]"},
    {"x=f32[M,N/1]  x exp", "[M, N]"},
    /* a vector with a vector of another axis */
    {"x=f32[M,N] r=f32[M] g=f32[N] g r *", "[M, N]"},
    {"x=f32[M,K] r=f32[M] g=f32[N] g r *", "[M, N]"},
    {"w=f32[K,N] r=f32[M] g=f32[N] g r *", "[M, N]"},
    {"A=f32[M,K] W=f32[N,K] g=f32[N] r=f32[M] g r *", "[M, N]"},
    {"dY=f32[K,M] X=f32[K,N] g=f32[N] r=f32[M] g r *", "[M, N]"},
    {"A=f32[N,K] B=f32[K,M] g=f32[N] r=f32[M] r g *", "[N, M]"},
    {"r=f32[M] g=f32[N] x=f32[N,M] r g x where", "[N, M]"},
    {"r=f32[M] g=f32[N] r g * broadcast:[M,N]", "[M, N]"},
    /* products */
    {"A=bf16[M,K] W=bf16[N,K] A W .T @", "[M, N]"},
    {"A=bf16[M,K] W=bf16[K,N] A W @", "[M, N]"},
    {"A=bf16[K,M] W=bf16[K,N] A .T W @", "[M, N]"},
    {"A=bf16[M,64] W=bf16[64,N] A W @", "[M, N]"},
    {"A=bf16[M,K] A .T", "[K, M]"},
    {"A=bf16[M,K] A .T .T", "[M, K]"},
    {"axis:K=Q+2*E axis:L=E+Q+E A=bf16[M,K] W=bf16[L,N] A W @", "[M, N]"},
    {"axis:N=Q+2*E A=bf16[M,K] P=bf16[Q,K] R=bf16[E,K] S=bf16[E,K] A P R S stack3 .T @", "[M, N]"},
    {"axis:K=E+Q+E A=bf16[M,K] P=bf16[Q,N] R=bf16[E,N] S=bf16[E,N] A P R S stack3 @", "[M, N]"},
    {"P=bf16[Q,K] R=bf16[E,K] P R R stack3", "[Q_E_E, K]"},
    {"Q_E_E=f32[M] P=bf16[Q,K] R=bf16[E,K] P R R stack3", "[rows_1, K]"},
    {"P=bf16[Q,K] R=bf16[64,K] P R stack2", "[Q_64, K]"},
    {"P=bf16[64,K] R=bf16[Q,K] P R stack2", "[rows_64_Q, K]"},
    {"P=bf16[32,K] R=bf16[64,K] P R stack2", "[96, K]"},
    {"axis:T=Q+E axis:N=Q+2*E P=bf16[T,K] R=bf16[E,K] P R stack2", "[N, K]"},
    /* other elementwise forms */
    {"x=f32[M,N] x cast:bf16", "[M, N]"},
    {"g=f32[D] g repeat:N", "[N]"},
    {"g=f32[64] g repeat:N", "[N]"},
    {"index:N", "[N]"},
    {"#N", ""},
    {"2 broadcast:[M,N]", "[M, N]"},
    {"s=f32[M,N/128] s broadcast:[M,N]", "[M, N]"},
    /* pairs and halves */
    {"x=f32[M,N] x even", "[M, N/2]"},
    {"x=f32[M,N] x even x odd *", "[M, N/2]"},
    {"x=f32[M,N] x even x odd join", "[M, N]"},
    {"x=f32[M,N] x odd 0 join", "[M, N]"},
    {"x=f32[M,N] x first:64", "[M, N/2]"},
    {"x=f32[M,N] x first:D/2 x second:D/2 *", "[M, N/2]"},
    {"x=f32[M,N] y=f32[M,N/2] x first:64 y *", "[M, N/2]"},
    {"x=f32[M,N] y=f32[M,N/2] x first:64 y * x second:64 joinh:64", "[M, N]"},
    {"y=f32[M,N/2] y y joinh:64", "[M, N]"},
    {"x=f32[M,N] x second:64 0 joinh:64", "[M, N]"},
    {"x=f32[M,N] t=f32[P,D] p=i32[M] x t p rope", "[M, N]"},
    {"x=f32[M,N] t=f32[P,128] p=i32[M] x t p rope_pairs_inverse:T", "[M, N]"},
    {"x=f32[M,N] t=f32[P,D] x t index:M rope", "[M, N]"},
    /* reductions */
    {"x=f32[M,N] x sum:N:128", "[M, N/128]"},
    {"x=f32[M,N] x rmax:M:64", "[M/64, N]"},
    {"x=f32[M,N] x absmax:N:D", "[M, N/D]"},
    {"x=f32[M,N] x logsumexp:N", "[M]"},
    {"x=f32[M,N] x sum:M", "[N]"},
    {"x=f32[N] x sum:N:32", "[N/32]"},
    {"x=f32[N] x sum:N", ""},
    {"S=f32[M,K/128] S sum", "[M]"},
    {"S=f32[M,K/128] S sum:K", "[M]"},
    {"S=f32[M/64,N] S sum", "[N]"},
    {"S=f32[K/128] S sum", ""},
    {"x=f32[M,N] x sum:N:128 sum", "[M]"},
    {"x=f32[M,N] x sum:N:128 sum:M:64", "[M/64, N/128]"},
    /* by index */
    {"x=f32[M,N] t=i32[M] x t pick", "[M]"},
    {"t=i32[M] t onehot:V", "[M, V]"},
    {"E=f32[V,N] t=i32[M] E t gather", "[M, N]"},
};

static void every_operation_infers_its_shape(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(shapes); i++) {
        int top;
        char shape[128];
        struct graph *graph = build(shapes[i].text, &top);
        shape_print(graph, &graph->node[top].shape, shape, sizeof shape);
        if (strcmp(shape, shapes[i].shape) != 0)
            fail_msg("%s\n  is %s, expected %s", shapes[i].text, shape, shapes[i].shape);
        graph_free(graph);
    }
}

static void halves_stay_halves_beside_operands_of_that_width(void **state)
{
    static const char *const texts[] = {
        "x=f32[M,N] y=f32[M,N/2] x first:64 y *",
        "x=f32[M,N] y=f32[M,N/2] y x first:64 *",
        "x=f32[M,N] q=f32[N/2] q x first:64 *",
    };
    (void)state;
    for (int i = 0; i < COUNT(texts); i++) {
        int top;
        struct graph *graph = build(texts[i], &top);
        assert_int_equal(graph->node[top].shape.dim[1].form, DIM_HALVES);
        assert_int_equal(graph->node[top].shape.dim[1].run.value, 64);
        graph_free(graph);
    }
}

static void sums_of_products_share_an_accumulator(void **state)
{
    static const struct {
        const char *text;
        enum op op;
        int inputs;
    } cases[] = {
        {"A=f32[M,K] B=f32[K,N] A B @ A B @ +", OP_GEMM, 4},
        {"A=f32[M,K] B=f32[K,N] A B @ A B @ + A B @ +", OP_GEMM, 6},
        {"A=f32[M,K] B=f32[K,N] A B @ A B @ -", OP_SUB, 2},
        {"A=f32[M,K] B=f32[K,N] C=f32[M,N] A B @ C +", OP_ADD, 2},
        {"A=f32[M,K] B=f32[K,N] A B @ A B @ + >y y y + >z z z + z +", OP_ADD, 2}, /* 8 + 4 products are too many */
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        int top;
        struct graph *graph = build(cases[i].text, &top);
        assert_int_equal(graph->node[top].op, cases[i].op);
        assert_int_equal(graph->node[top].input_count, cases[i].inputs);
        graph_free(graph);
    }
}

/* ---------------------------------------------------------------- complaints */

static const struct {
    const char *text, *reason, *advice;
} refusals[] = {
    {"x=f32[M,M]", "rows and columns have the same axis M", "give the columns another one"},
    {"x=f32[M,N,K]", "3 dimensions: a value has at most two", "Fold"},
    {"x=f32[0]", "a dimension of 0 elements", "1 or more"},
    {"x=f32[-3]", "a dimension of -3 elements", "1 or more"},
    {"x=f32[M,N/0]", "a run of 0 elements", "1 element or more"},
    {"x=f32[M,N/N]", "runs of N whose length is N itself", "another axis"},
    {"x=f32[M] x=f32[N]", "`x` is defined already", "once"},
    {"x=1 x=f32[N]", "`x` is defined already", "once"},
    {"x=f32[N] x=1", "`x` is defined already", "once"},
    {"x=f32[M,N] y=f32[N,M] x y +", "rows and columns are swapped: [M, N] and [N, M]", "transposed"},
    {"x=f32[M,N] y=f32[M,K] x y +", "the axes do not join: [M, N] and [M, K]", "by name"},
    {"x=f32[M,N] y=f32[K] x y +", "the axes do not join: [M, N] and [K]", "by name"},
    {"x=f32[M,N] y=f32[64] x y +", "the axes do not join: [M, N] and [64]", "name the axis"},
    {"x=f32[64,64] y=f32[64] x y +", "fits both the rows and the columns", "Name the axes"},
    {"x=f32[32] y=f32[64] x y +", "the axes do not join: [32] and [64]", "name the axis"},
    {"x=f32[M] y=f32[64] x y +", "the axes do not join: [M] and [64]", "name the axis"},
    {"A=i32[M,K] B=f32[K,N] A B @", "`@` takes matrices of floats, found `A` [M, K] of type i32", "Convert"},
    {"A=f32[M,K] B=i32[N,K] C=f32[L,K] A C B stack2 .T @", "of type i32", "Convert"},
    {"x=f32[M,N/128] y=f32[M,N/64] x y +", "runs of different lengths", "same run"},
    {"x=f32[M,N] x first:4 x +", "half of the columns meets all", "join_halves"},
    {"x=f32[M,N] x first:4 x second:8 +", "different lengths do not line up", "same length"},
    {"A=f32[M,K] B=f32[N,K] A B @", "the inner axes K and N differ", "`.T` after it"},
    {"A=f32[K,M] B=f32[K,N] A B @", "the inner axes M and K differ", "The left matrix fits transposed"},
    {"A=f32[M,K] B=f32[L,N] A B @", "the inner axes K and L differ: `A` [M, K] @ `B` [L, N]", "same terms"},
    {"A=f32[M,64] B=f32[32,N] A B @", "the inner axes 64 and 32 differ", "same"},
    {"A=f32[M,K] B=f32[K] A B @", "`@` takes a matrix, found `B` [K]", ""},
    {"A=f32[M,K] B=f32[M,K] A B .T @", "product have the same axis M", "another name"},
    {"A=f32[M,K/128] B=f32[K/128,N] A B @", "matrices of whole axes", "an axis of its own"},
    {"A=f32[M] A .T", "`.T` takes a matrix, found `A` [M]", ""},
    {"A=f32[P,K] B=f32[Q,N] A B stack2", "equal columns, found `A` [P, K] and `B` [Q, N]", "one axis"},
    {"A=f32[P,K] A stack1", "`stack` takes 2 to 8 matrices, found 1", ""},
    {"axis:K=P+Q A=f32[P,K] B=f32[Q,K] A B stack2", "rows and columns of the stack", "another name"},
    {"A=f32[P,K] B=f32[Q] A B stack2", "`stack` takes a matrix, found `B` [Q]", ""},
    {"x=f32[M,N] x broadcast:[M]", "`x` [M, N] does not broadcast to [M]", "adds axes"},
    {"x=f32[M,N] x broadcast:[M,N/128]", "does not broadcast to [M, N/128]", "splits nothing"},
    {"x=f32[M,N] x broadcast:[N,M]", "swapped", ""},
    {"x=f32[M,N] x repeat:N", "`repeat` takes a vector", ""},
    {"x=f32[N] x even", "`pairs` takes a matrix, found `x` [N]", "broadcast"},
    {"x=f32[M,N] x even even", "`pairs` takes a matrix with all its columns", "pairs do not nest"},
    {"x=f32[M,N] x even first:4", "`halves` takes a matrix with all its columns", "do not nest"},
    {"x=f32[M,64] x even", "64 columns that have no name", "Name the axis"},
    {"x=f32[M,N] x first:0", "a run of 0 elements", ""},
    {"x=f32[M,N] x x join", "`join` takes matrices of N/2 columns", "pairs"},
    {"x=f32[M,N] x first:4 x second:4 join", "`join` takes matrices of N/2 columns", "join_halves"},
    {"x=f32[M,N] x first:4 x second:4 joinh:8", "`join_halves` takes matrices of N/2 columns", "the same h"},
    {"1 2 join", "`join` takes matrices of N/2 columns, found the number 1 and the number 2", "pairs"},
    {"x=f32[M] t=f32[P,D] p=i32[M] x t p rope", "`rope` takes a matrix", "broadcast"},
    {"x=f32[M,N] t=f32[D] p=i32[M] x t p rope", "takes a table such as f32[P, D], found `t` [D]", "cosines"},
    {"x=f32[M,N] t=f32[P,65] p=i32[M] x t p rope", "a head of 65 columns", "even"},
    {"x=f32[M,N] t=f32[P,D] p=i32[N] x t p rope", "i32[M], one a row, found `p` [N]", ""},
    {"x=f32[M,N] t=f32[P,D] p=f32[M] x t p rope", "found `p` [M] of type f32", ""},
    {"x=f32[M,N] t=f32[P,64] p=i32[M] x t p rope:96", "`cols = 96` is no multiple of the head's 64", "whole heads"},
    {"x=f32[M,N] t=f32[P,64] p=i32[M] x t p rope:N/2", "`cols` of a rotation is an axis", "axis T"},
    {"x=f32[M,N] x sum", "`sum(x)` finishes a partial such as f32[M, K/128], found `x` [M, N]", "sum(x, N:128)"},
    {"x=f32[M,N] x rmax:K", "`max` along K, but `x` [M, N] has no such axis", ""},
    {"x=f32[M/64,N/128] x sum", "finishes a partial", ""},
    {"x=f32[M,N/128] x sum:N:256", "has not every element of it", "the longer run"},
    {"x=f32[M,N] x sum:N:1", "over runs of one element", "the value itself"},
    {"x=f32[M,N] x sum:N:N", "over runs of the whole axis", "sum(x, N)"},
    {"x=f32[M,N] x sum:N:-4", "a run of -4 elements", ""},
    {"x=f32[M,N] t=i32[N] x t pick", "`pick(x, t)` takes a matrix with rows N", ""},
    {"x=f32[M,N] t=f32[M] x t pick", "`pick` takes indices such as i32[M], found `t` [M] of type f32", ""},
    {"x=f32[M,N] t=i32[M,N] x t pick", "`pick` takes indices", ""},
    {"t=i32[M] t onehot:M", "`onehot` along M, which is the axis of its indices", ""},
    {"E=f32[V] t=i32[M] E t gather", "`gather` takes rows of a matrix", ""},
    {"E=f32[V,M] t=i32[M] E t gather", "`gather` of rows whose axis M", "axis of their own"},
    {"x=f32[M,N] x Y:f32[N,M]", "`Y` is declared [N, M], but its value is `x` [M, N]", "swapped"},
    {"r=f32[M] r Y:f32[M,N]", "`Y` is declared [M, N], but its value is `r` [M]", "broadcast(.., [M, N])"},
    {"x=f32[M,N] x Y:f32[M]", "`Y` is declared [M]", "Declare it [M, N]"},
    {"x=f32[M,N] x sum:N:128 Y:f32[M,N/64]", "`Y` is declared [M, N/64]", "Declare it [M, N/128]"},
    {"1 Y:f32", "`Y` is a scalar", "axis of size 1"},
    {"x=f32[M,N] x Y+:bf16[M,N]", "in bf16 would round the running sum", "f32"},
    {"x=f32[M,N] x cast:f16 Y+:bf16[M,N]", "in bf16 would round the running sum", "cast"},
    {"x=f32[M,N] x x:f32[M,N]", "`x` is defined already", ""},
};

static void every_refusal_says_why(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(refusals); i++) {
        struct complaint why;
        struct graph *graph = postfix_graph(refusals[i].text, NULL, &why);
        if (graph)
            fail_msg("%s\n  was accepted", refusals[i].text);
        if (why.status == CODA_OK || !strstr(why.reason, refusals[i].reason) || !strstr(why.advice, refusals[i].advice))
            fail_msg("%s\n  says: %s\n  advises: %s\n  expected: %s, %s", refusals[i].text, why.reason, why.advice,
                     refusals[i].reason, refusals[i].advice);
    }
}

static void limits_are_refused_not_exceeded(void **state)
{
    struct complaint why = {0};
    struct graph *graph = graph_new("limits", false);
    struct shape scalar = {0};
    char name[32];
    (void)state;
    for (int i = 0; i <= MAX_OPERANDS; i++) {
        snprintf(name, sizeof name, "x%d", i);
        assert_int_equal(graph_in(graph, name, CODA_F32, &scalar, &why) >= 0, i < MAX_OPERANDS);
    }
    assert_int_equal(why.status, CODA_UNSUPPORTED);
    for (int i = 0; i <= MAX_OPERANDS; i++) {
        snprintf(name, sizeof name, "p%d", i);
        assert_int_equal(graph_parameter(graph, name, 0, &why) >= 0, i < MAX_OPERANDS);
    }
    assert_int_equal(why.status, CODA_UNSUPPORTED);
    for (int i = 0; i <= MAX_AXES; i++) {
        snprintf(name, sizeof name, "A%d", i);
        assert_int_equal(graph_add_axis(graph, name, &why) >= 0, i < MAX_AXES);
    }
    assert_int_equal(why.status, CODA_UNSUPPORTED);
    while (graph->node_count < MAX_NODES)
        assert_true(graph_number(graph, 1, &why) >= 0);
    why.status = CODA_OK;
    assert_int_equal(graph_number(graph, 1, &why), -1);
    assert_int_equal(why.status, CODA_UNSUPPORTED);
    graph_free(graph);
}

static void inputs_that_do_not_exist_are_refused(void **state)
{
    struct complaint why = {0};
    struct graph *graph = graph_new("missing", false);
    struct shape shape = {0};
    struct extent run = {-1, 4};
    const int bad[2] = {-1, 7};
    (void)state;
    for (int i = 0; i < 2; i++) {
        const int input[3] = {bad[i], bad[i], bad[i]};
        assert_int_equal(graph_transpose(graph, bad[i], &why), -1);
        assert_int_equal(graph_stack(graph, input, 2, &why), -1);
        assert_int_equal(graph_gemm(graph, bad[i], bad[i], &why), -1);
        assert_int_equal(graph_elementwise(graph, OP_ADD, input, 2, &why), -1);
        assert_int_equal(graph_elementwise(graph, OP_ADD, input, 3, &why), -1);
        assert_int_equal(graph_elementwise(graph, OP_SUM, input, 1, &why), -1);
        assert_int_equal(graph_cast(graph, bad[i], CODA_BF16, &why), -1);
        assert_int_equal(graph_broadcast(graph, bad[i], &shape, &why), -1);
        assert_int_equal(graph_repeat(graph, bad[i], 0, &why), -1);
        assert_int_equal(graph_pair(graph, OP_EVEN, bad[i], &why), -1);
        assert_int_equal(graph_join(graph, bad[i], bad[i], &why), -1);
        assert_int_equal(graph_half(graph, OP_FIRST, bad[i], run, &why), -1);
        assert_int_equal(graph_join_halves(graph, bad[i], bad[i], run, &why), -1);
        assert_int_equal(graph_rope(graph, bad[i], bad[i], bad[i], false, false, NULL, &why), -1);
        assert_int_equal(graph_reduce(graph, OP_SUM, bad[i], -1, run, &why), -1);
        assert_int_equal(graph_pick(graph, bad[i], bad[i], &why), -1);
        assert_int_equal(graph_onehot(graph, bad[i], 0, &why), -1);
        assert_int_equal(graph_gather(graph, bad[i], bad[i], &why), -1);
        assert_int_equal(graph_size(graph, bad[i], &why), -1);
        assert_int_equal(graph_index(graph, bad[i], &why), -1);
        assert_int_equal(graph_out(graph, "Y", CODA_OUT, CODA_F32, &shape, bad[i], &why), -1);
    }
    assert_int_equal(graph->node_count, 0);
    graph_free(graph);
}

/* ---------------------------------------------------------------- copies and equality */

static const char *const programs[] = {
    "A=bf16[M,K] W=bf16[N,K] A W .T @ >x x x * sum:N:128 S:f32[M,N/128] x cast:bf16 Y:bf16[M,N]",
    "A=f32[M,K] W=bf16[N,K] A W .T @ >x x x * sum:N:128 S:f32[M,N/128] x cast:bf16 Y:bf16[M,N]",
    "A=bf16[M,K] W=bf16[N,K] A W .T @ >x x x * sum:N:64 S:f32[M,N/64] x cast:bf16 Y:bf16[M,N]",
    "A=bf16[M,K] W=bf16[N,K] A W .T @ >x x x * rmax:N:128 S:f32[M,N/128] x cast:bf16 Y:bf16[M,N]",
    "A=bf16[M,K] W=bf16[N,K] A W .T @ >x x x * sum:N:128 S:f32[M,N/128] x cast:f16 Y:bf16[M,N]",
    "A=bf16[M,K] W=bf16[N,K] A W .T @ >x x 2 * sum:N:128 S:f32[M,N/128] x cast:bf16 Y:bf16[M,N]",
    "A=bf16[M,K] W=bf16[N,K] A W .T @ >x x 3 * sum:N:128 S:f32[M,N/128] x cast:bf16 Y:bf16[M,N]",
    "A=bf16[M,K] W=bf16[N,K] p=3 A W .T @ >x x p * sum:N:128 S:f32[M,N/128] x cast:bf16 Y:bf16[M,N]",
    "A=bf16[M,K] W=bf16[N,K] p=4 A W .T @ >x x p * sum:N:128 S:f32[M,N/128] x cast:bf16 Y:bf16[M,N]",
    "A=bf16[M,K] W=bf16[N,K] A W .T @ >x x x * sum:N:128 S:f32[M,N/128] x cast:bf16 Z:bf16[M,N]",
    "A=bf16[M,K] W=bf16[N,K] A W .T @ >x x x * sum:N:128 S:f32[M,N/128] x cast:bf16 Y:f32[M,N]",
    "A=bf16[M,K] W=bf16[N,K] A W .T @ >x x x * sum:N:128 S+:f32[M,N/128] x cast:bf16 Y:bf16[M,N]",
    "A=bf16[M,K] W=bf16[L,K] A W .T @ >x x x * sum:L:128 S:f32[M,L/128] x cast:bf16 Y:bf16[M,L]",
    "x=f32[M,N] t=f32[P,D] p=i32[M] x t p rope Y:f32[M,N]",
    "x=f32[M,N] t=f32[P,D] p=i32[M] x t p rope_pairs Y:f32[M,N]",
    "x=f32[M,N] t=f32[P,D] p=i32[M] x t p rope_inverse Y:f32[M,N]",
    "x=f32[M,N] t=f32[P,D] p=i32[M] x t p rope:T Y:f32[M,N]",
    "x=f32[M,N] t=f32[P,D] p=i32[M] x t p rope:64 Y:f32[M,N]",
    "axis:T=Q+E x=f32[M,N] t=f32[P,D] p=i32[M] x t p rope:T Y:f32[M,N]",
    "axis:T=Q+2*E x=f32[M,N] t=f32[P,D] p=i32[M] x t p rope:T Y:f32[M,N]",
};

static void graphs_are_equal_to_their_copies_and_to_no_other(void **state)
{
    struct graph *graph[COUNT(programs)];
    (void)state;
    for (int i = 0; i < COUNT(programs); i++)
        graph[i] = build(programs[i], NULL);
    for (int i = 0; i < COUNT(programs); i++)
        for (int k = 0; k < COUNT(programs); k++) {
            struct graph *copy = graph_copy(graph[k]);
            assert_non_null(copy);
            if (graph_equal(graph[i], copy) != (i == k))
                fail_msg("%s\n%s\n  are %sequal", programs[i], programs[k], i == k ? "not " : "");
            graph_free(copy);
        }
    for (int i = 0; i < COUNT(programs); i++)
        graph_free(graph[i]);
}

static void equality_ignores_names_order_and_sharing(void **state)
{
    static const char *const pairs[][2] = {
        {"x=f32[M,N] x exp >a a a * Y:f32[M,N]", "x=f32[M,N] x exp >b b x exp * Y:f32[M,N]"},
        {"x=f32[M,N] x exp >a drop=1 x sqrt >b a b + Y:f32[M,N]",
         "x=f32[M,N] drop=1 x sqrt >b x exp >a b + Y:f32[M,N]"},
        {"N_=f32[N] x=f32[M,N] x N_ + Y:f32[M,N]", "N_=f32[N] x=f32[M,N] 1 2 + >unused x N_ + Y:f32[M,N]"},
        {"axis:N=Q+E x=f32[M,N] x Y:f32[M,N]", "axis:N=E+Q x=f32[M,N] x Y:f32[M,N]"},
        {"axis:N=2*E x=f32[M,N] x Y:f32[M,N]", "axis:N=E+E x=f32[M,N] x Y:f32[M,N]"},
    };
    (void)state;
    for (int i = 0; i < COUNT(pairs); i++) {
        struct graph *a = build(pairs[i][0], NULL), *b = build(pairs[i][1], NULL);
        if (!graph_equal(a, b) || !graph_equal(b, a))
            fail_msg("%s\n%s\n  are not equal", pairs[i][0], pairs[i][1]);
        graph_free(a);
        graph_free(b);
    }
}

static void retyping_changes_operands_and_casts(void **state)
{
    struct graph *graph = build(programs[0], NULL), *retyped = graph_retype(graph, CODA_BF16, CODA_F16);
    struct graph *back = graph_retype(retyped, CODA_F16, CODA_BF16);
    (void)state;
    static const coda_dtype expected[] = {CODA_F16, CODA_F16, CODA_F32, CODA_F16};
    for (int i = 0; i < 4; i++)
        assert_int_equal(retyped->operand[i].dtype, expected[i]);
    for (int i = 0; i < retyped->node_count; i++)
        if (retyped->node[i].op == OP_IN || retyped->node[i].op == OP_CAST)
            assert_int_equal(retyped->node[i].dtype, CODA_F16);
    assert_false(graph_equal(graph, retyped));
    assert_true(graph_equal(graph, back));
    graph_free(graph);
    graph_free(retyped);
    graph_free(back);
}

static void only_what_an_out_needs_is_used(void **state)
{
    struct graph *graph = build("x=f32[M,N] y=f32[M,N] x exp >a y exp >b a sqrt >c Y:f32[M,N]", NULL);
    bool used[16];
    (void)state;
    graph_mark_used(graph, used);
    assert_true(used[postfix_find(graph, "x")] && used[postfix_find(graph, "a")] && used[postfix_find(graph, "c")]);
    assert_false(used[postfix_find(graph, "y")] || used[postfix_find(graph, "b")]);
    graph_free(graph);
}

/* ---------------------------------------------------------------- the table of primitives */

static void every_primitive_has_a_name_a_cost_and_balanced_adjoints(void **state)
{
    static const struct {
        enum op op;
        const char *name, *cuda, *adjoint[3];
        int arity;
        double cost;
    } rows[] = {
#define PRIMITIVE(op, name, arity, meaning, cuda, da, db, dc, cost) {OP_##op, name, cuda, {da, db, dc}, arity, cost},
#include "ir/primitives.def"
#undef PRIMITIVE
    };
    (void)state;
    for (int i = 0; i < COUNT(rows); i++) {
        const char *name = rows[i].name;
        assert_true(rows[i].arity >= 1 && rows[i].arity <= 3 && rows[i].cost > 0);
        bool comparison = rows[i].op >= OP_LT && rows[i].op <= OP_NE;
        for (int k = 0; k < 3; k++) {
            const char *text = rows[i].adjoint[k];
            bool expected = k < rows[i].arity && !comparison && !(rows[i].op == OP_WHERE && k == 0);
            int depth = 0;
            if ((text[0] != '\0') != expected)
                fail_msg("%s: adjoint %d is \"%s\"", name, k, text);
            for (const char *c = text; *c; c++) {
                depth += (*c == '(') - (*c == ')');
                assert_true(depth >= 0);
            }
            assert_int_equal(depth, 0);
            if (expected && !strchr(text, 'd'))
                fail_msg("%s: adjoint %d does not use d", name, k);
            const char input[3] = {'$', (char)('a' + k), '\0'};
            if ((strstr(rows[i].cuda, input) != NULL) != (k < rows[i].arity))
                fail_msg("%s: device text uses %s wrongly: %s", name, input, rows[i].cuda);
        }
    }
}

static void every_operation_has_a_name(void **state)
{
    (void)state;
    for (int op = 0; op < OP_COUNT; op++) {
        assert_non_null(op_name((enum op)op));
        assert_int_equal(op_is_elementwise((enum op)op), op > OP_GEMM && op < OP_CAST);
        assert_int_equal(op_is_elementwise((enum op)op), op_arity((enum op)op) > 0);
    }
    assert_string_equal(op_name(OP_WHERE), "where");
    assert_string_equal(op_name(OP_REDUCE_MAX), "max");
    assert_true(op_is_reduction(OP_SUM) && op_is_reduction(OP_LOGSUMEXP) && !op_is_reduction(OP_PICK));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_infers_its_shape),
        cmocka_unit_test(halves_stay_halves_beside_operands_of_that_width),
        cmocka_unit_test(sums_of_products_share_an_accumulator),
        cmocka_unit_test(every_refusal_says_why),
        cmocka_unit_test(limits_are_refused_not_exceeded),
        cmocka_unit_test(inputs_that_do_not_exist_are_refused),
        cmocka_unit_test(graphs_are_equal_to_their_copies_and_to_no_other),
        cmocka_unit_test(equality_ignores_names_order_and_sharing),
        cmocka_unit_test(retyping_changes_operands_and_casts),
        cmocka_unit_test(only_what_an_out_needs_is_used),
        cmocka_unit_test(every_primitive_has_a_name_a_cost_and_balanced_adjoints),
        cmocka_unit_test(every_operation_has_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
