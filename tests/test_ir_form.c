/* The normal form of a program: its tile, where every value lies, what the prologue computes, and what is not
 * block-local. */
#include "ir/graph.h"
#include "kit/postfix.h"
#include "kit/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(table) ((int)(sizeof(table) / sizeof(table)[0]))

static struct graph *build(const char *text)
{
    struct complaint why;
    struct graph *graph = postfix_graph(text, NULL, &why);
    if (!graph)
        fail_msg("%s\n  was refused: %s", text, why.reason);
    return graph;
}

static const char *const space_names[] = {
    [SPACE_NONE] = "none",
    [SPACE_UNIFORM] = "uniform",
    [SPACE_ROW] = "row",
    [SPACE_COLUMN] = "column",
    [SPACE_TILE] = "tile",
    [SPACE_HALF] = "half",
    [SPACE_ROW_RUNS] = "row_runs",
    [SPACE_COLUMN_RUNS] = "column_runs",
    [SPACE_COLUMN_PARTS] = "parts",
};

/* "x:tile r:row! ..": the spaces of named values, with ! where the prologue computes them. */
static void check_spaces(const struct graph *graph, const struct form *form, const char *text, const char *expected)
{
    char name[32], space[32];
    int used;
    for (; sscanf(expected, " %31[^:]:%31s%n", name, space, &used) == 2; expected += used) {
        int node = postfix_find(graph, name);
        size_t length = strlen(space);
        bool prologue = space[length - 1] == '!';
        if (prologue)
            space[length - 1] = '\0';
        if (node < 0)
            fail_msg("%s\n  has no value %s", text, name);
        if (strcmp(space_names[form->space[node]], space) != 0 || form->prologue[node] != prologue)
            fail_msg("%s\n  %s is %s%s, expected %s%s", text, name, space_names[form->space[node]],
                     form->prologue[node] ? "!" : "", space, prologue ? "!" : "");
    }
}

static const struct {
    const char *text, *rows, *columns;
    int accumulators;
    bool shared_left;
    const char *spaces;
} programs[] = {
    /* products */
    {"A=bf16[M,K] W=bf16[N,K] A W .T @ >y Y:bf16[M,N]", "M", "N", 1, false, "A:none W:none y:tile"},
    {"A=bf16[K,M] W=bf16[K,N] A .T W @ >y Y+:f32[M,N]", "M", "N", 1, false, "y:tile"},
    {"A=bf16[M,K] W=bf16[N,K] C=bf16[M,N] g=bf16[N] A W .T @ C + >x X:bf16[M,N] x x * sum:N:128 >s S:f32[M,N/128] "
     "x g * H:bf16[M,N]",
     "M", "N", 1, false, "C:tile g:column! x:tile s:row_runs"},
    {"H=bf16[M,K] A=bf16[N,K] B=bf16[N,K] S=f32[M,K/128] p=1e-6 S sum #K / p + rsqrt >r H A .T @ >a r * >g H B .T "
     "@ r * "
     ">u r R:f32[M] g silu u * Y:bf16[M,N]",
     "M", "N", 2, true, "S:none p:uniform! r:row! a:tile g:tile u:tile"},
    {"A=bf16[M,K] B=bf16[M,K] P=bf16[K,N] Q=bf16[K,N] A P @ B Q @ + >d Y:bf16[M,N]", "M", "N", 1, false, "d:tile"},
    {"A=bf16[M,K] B=bf16[M,K] P=bf16[K,N] Q=bf16[K,N] A P @ B Q @ * >d Y:bf16[M,N]", "M", "N", 2, false, "d:tile"},
    {"A=bf16[K,M] P=bf16[K,N] Q=bf16[K,N] A .T P @ A .T Q @ * Y:bf16[M,N]", "M", "N", 2, true, ""},
    {"axis:N=Q+2*E A=bf16[M,K] P=bf16[Q,K] R=bf16[E,K] S=bf16[E,K] A P R S stack3 .T @ >z Y:bf16[M,N]", "M", "N", 1,
     false, "P:none z:tile"},
    {"axis:K=Q+2*E A=bf16[M,K] P=bf16[Q,N] R=bf16[E,N] S=bf16[E,N] A P R S stack3 @ Y:bf16[M,N]", "M", "N", 1, false,
     ""},
    {"Z=bf16[M,K] W=bf16[K,N] X=bf16[M,N] g=bf16[N] R=f32[M] c=f32[M,K/128] D=bf16[M,N] Z W @ >d X R * >x D d g * "
     "x c "
     "sum #N / >s * - R * + dX:bf16[M,N] d x * sum:M:64 >w dg:f32[M/64,N]",
     "M", "N", 1, false, "c:none s:row! d:tile x:tile w:column_runs R:row!"},
    {"A=bf16[M,K] W=bf16[V,K] t=i32[M] A W .T @ >z Z:bf16[M,V] z logsumexp:V:128 >l L:f32[M,V/128] z t pick >q "
     "T:f32[M]",
     "M", "V", 1, false, "t:none z:tile l:row_runs q:row"},
    {"A=bf16[M,K] W=bf16[N,K] t=f32[P,D] p=i32[M] A W .T @ t p rope >y Y:bf16[M,N]", "M", "N", 1, false,
     "t:none p:none y:tile"},
    {"A=bf16[M,K] W=bf16[N,K] A W .T @ >z even >a z odd >b * >y Y:bf16[M,N/2]", "M", "N", 1, false,
     "z:tile a:half b:half y:half"},
    {"A=bf16[M,K] W=bf16[N,K] r=f32[M] C=bf16[M,N/2] A W .T @ >z first:64 >a r * C * >y Y:bf16[M,N/2]", "M", "N", 1,
     false, "a:half C:half y:half"},
    {"A=bf16[M,K] W=bf16[N,K] A W .T @ >z even >a z odd >b join >y Y:bf16[M,N]", "M", "N", 1, false, "y:tile"},
    {"A=bf16[M,K] W=bf16[N,K] A W .T @ >z z absmax:N:64 >s / Y:e4m3[M,N] s S:f32[M,N/64]", "M", "N", 1, false,
     "s:row_runs"},
    {"A=bf16[M,K] W=bf16[N,K] g=f32[D] A W .T @ g repeat:N >w * index:N >i #T < * Y:bf16[M,N]", "M", "N", 1, false,
     "g:none w:column! i:column!"},
    {"A=bf16[M,K] W=bf16[N,K] q=f32[N/64] A W .T @ q * Y:bf16[M,N]", "M", "N", 1, false, "q:parts!"},
    {"A=bf16[M,K] W=bf16[N,K] c=f32[M,N/128] A W .T @ c * c sum >s * Y:bf16[M,N]", "M", "N", 1, false,
     "c:row_runs s:row!"},
    /* no product */
    {"Y=bf16[M,N] D=bf16[M,N] t=f32[P,H] p=i32[M] D t p rope_inverse:T dZ:bf16[M,N] Y D * sum:N:128 c:f32[M,N/128]",
     "M", "N", 0, false, "Y:tile D:tile t:none p:none"},
    {"Z=bf16[M,V] L=f32[M,V/128] t=i32[M] w=f32[M] L logsumexp >l t -100 == 0 w where >v Z l - exp t onehot:V >h - "
     "v * >d "
     "dZ:bf16[M,V] Z d * sum:V:128 c:f32[M,V/128]",
     "M", "V", 0, false, "Z:tile L:none l:row! t:row! v:row! h:tile d:tile"},
    {"L=f32[M,V/128] T=f32[M] w=f32[M] L logsumexp >l T - w * c:f32[M]", "M", "", 0, false, "L:none l:row! T:row!"},
    {"P=f32[R,N] P sum:R >g G+:f32[N]", "", "N", 0, false, "P:none g:column!"},
    {"P=f32[M,R] P sum:R >g G+:f32[M]", "M", "", 0, false, "g:row!"},
    {"E=bf16[V,N] t=i32[M] g=bf16[N] E t gather >x X:bf16[M,N] x x * sum:N:128 >s S:f32[M,N/128] x g * H:bf16[M,N]",
     "M", "N", 0, false, "E:none t:none x:tile s:row_runs"},
    {"w=f32[N] w 2 * Y:f32[N]", "N", "", 0, false, "w:row!"},
    {"Z=f32[M,V] t=i32[M] Z t pick >q T:f32[M]", "M", "V", 0, false, "Z:tile t:none q:row"},
    {"r=f32[M] g=f32[N] x=f32[M,N] r x + A:f32[M,N] r 2 * B:f32[M] g 2 * C:f32[N]", "M", "N", 0, false,
     "r:row! g:column!"},
    {"x=f32[M,N] g=f32[N] g sum:N:128 >s x * Y:f32[M,N]", "M", "N", 0, false, "s:parts!"},
    {"x=f32[M,N] x rmax:M:32 >c Y:f32[M/32,N]", "M", "N", 0, false, "c:column_runs"},
};

static void every_kind_of_program_has_its_form(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(programs); i++) {
        struct graph *graph = build(programs[i].text);
        struct form form;
        struct complaint why = {0};
        int failed;
        if (form_create(graph, &form, &failed, &why) != CODA_OK)
            fail_msg("%s\n  has no form: %s", programs[i].text, why.reason);
        assert_int_equal(failed, -1);
        assert_string_equal(form.row_axis < 0 ? "" : graph->axis[form.row_axis].name, programs[i].rows);
        assert_string_equal(form.column_axis < 0 ? "" : graph->axis[form.column_axis].name, programs[i].columns);
        assert_int_equal(form.accumulator_count, programs[i].accumulators);
        assert_int_equal(form.shared_left, programs[i].shared_left);
        check_spaces(graph, &form, programs[i].text, programs[i].spaces);
        assert_int_equal(graph_check(graph, NULL, NULL), 0);
        form_free(&form);
        graph_free(graph);
    }
}

#define PRODUCT "A=bf16[M,K] W=bf16[N,K] A W .T @ >x "

static const struct {
    const char *text;
    coda_status status;
    const char *reason, *advice;
} mistakes[] = {
    /* whole reductions */
    {PRODUCT "x x sum:N / Y:bf16[M,N]", CODA_INVALID, "`sum(.., N)` needs the whole row of `x` [M, N]", "coda rewrite"},
    {PRODUCT "x x sum:N:128 sum / Y:bf16[M,N]", CODA_INVALID, "needs the whole row of a value [M, N/128]",
     "sum(.., N:128)"},
    {PRODUCT "x logsumexp:M Y:f32[N]", CODA_INVALID, "needs the whole column", "logsumexp(P, R)"},
    {PRODUCT "C=bf16[M,N] C sum:N x * Y:f32[M,N]", CODA_INVALID, "needs the whole row of `C`", "N:128"},
    {PRODUCT "g=f32[N] g sum:N x * Y:f32[M,N]", CODA_INVALID, "needs all of `g` [N]", "N:128"},
    {PRODUCT "P=f32[R,N] P exp sum:R x * Y:f32[M,N]", CODA_INVALID, "what a program reduces whole is an `in`",
     "Store it"},
    /* products */
    {"A=bf16[M,K] W=bf16[N,K] A exp W .T @ Y:bf16[M,N]", CODA_INVALID, "a product of a computed value: a value [M, K]",
     "coda rewrite"},
    {"A=bf16[M,K] W=bf16[N,K] V=bf16[N,L] A W .T @ V @ Y:bf16[M,L]", CODA_INVALID, "a product of a computed value",
     "coda rewrite"},
    {"A=bf16[M,K] W=bf16[K,N] V=bf16[N,L] A W @ >x V @ >y x sum:N:128 S:f32[M,N/128] y Y:bf16[M,L]", CODA_INVALID,
     "a product of a computed value: `x` [M, N]", "coda rewrite"},
    {"A=bf16[M,K] W=bf16[N,K] V=bf16[L,K] A W .T @ Y:bf16[M,N] A V .T @ Z:bf16[M,L]", CODA_INVALID,
     "a product [M, L] beside the tile [M, N]", "a program of its own"},
    {"A=bf16[M,K] W=bf16[N,K] A exp sqrt W .T @ Y:bf16[M,N]", CODA_INVALID, "a product of a computed value", ""},
    {PRODUCT "C=bf16[M,L] C exp sqrt D:bf16[M,L] x Y:bf16[M,N]", CODA_INVALID, "`C` [M, L] does not lie", ""},
    {PRODUCT "x sum:N S:f32[M]", CODA_INVALID, "needs the whole row of `x`", "N:128"},
    {PRODUCT "x x * sum:N S:f32[M]", CODA_INVALID, "needs the whole row of a value [M, N]", "N:128"},
    {"A=bf16[P,K] B=bf16[Q,K] W=bf16[N,K] A B stack2 W .T @ Y:bf16[P_Q,N]", CODA_UNSUPPORTED,
     "the left operand of a product is a stack", "right of `@`"},
    {"A=bf16[64,K] W=bf16[N,K] A W .T @ Y:bf16[64,N]", CODA_INVALID, "the axes of a tile have names",
     "Give the axis a name"},
    /* values beside the tile */
    {PRODUCT "B=bf16[N,M] B .T x + Y:bf16[M,N]", CODA_INVALID, "`.T` is for operands of a product", "Store"},
    {PRODUCT "C=bf16[N,M] C D:bf16[N,M] x Y:bf16[M,N]", CODA_INVALID, "lies across the tile [M, N]", "other way round"},
    {PRODUCT "C=bf16[M,L] C D:bf16[M,L] x Y:bf16[M,N]", CODA_INVALID, "`C` [M, L] does not lie on the tile [M, N]", ""},
    {PRODUCT "C=f32[L] C D:f32[L] x Y:bf16[M,N]", CODA_INVALID, "`C` [L] does not lie on the tile [M, N]", ""},
    {PRODUCT "s=f32[M/64] x s * Y:bf16[M,N]", CODA_UNSUPPORTED, "no epilogue holds `s` [M/64]", "one value"},
    {PRODUCT "s=f32[M/64,N/64] x s * Y:bf16[M,N]", CODA_UNSUPPORTED, "runs along both axes", "whole"},
    {"x=f32[M,64] x exp Y:f32[M,64]", CODA_INVALID, "the axes of a tile have names", "Give the axis a name"},
    {PRODUCT "index:L >i D:f32[L] x Y:bf16[M,N]", CODA_INVALID, "`i` [L] does not lie", ""},
    /* runs */
    {PRODUCT "x sum:N:128 sum:M:64 S:f32[M/64,N/128]", CODA_UNSUPPORTED, "over runs of a value [M, N/128]", "one axis"},
    {PRODUCT "x sum:N:2 S:f32[M,N/2]", CODA_UNSUPPORTED, "over runs of 2 columns", "pairs"},
    {PRODUCT "r=f32[M] r sum:M:64 x * Y:f32[M,N]", CODA_UNSUPPORTED, "over runs of `r` [M]", "one axis"},
    {PRODUCT "x even exp sum:M:64 Y:f32[M/64,N/2]", CODA_UNSUPPORTED, "which has half of the columns", "join"},
    /* pairs */
    {PRODUCT "x even x + Y:bf16[M,N]", CODA_INVALID, "has half of the columns, and meets a value that has all",
     "join(a, b)"},
    {PRODUCT "g=f32[N] x even g * Y:bf16[M,N]", CODA_INVALID, "has half of the columns", "join"},
    /* by index */
    {PRODUCT "t=i32[M] x t pick 2 * T:f32[M]", CODA_INVALID, "a picked value is known only to the tile", "Store it"},
    {PRODUCT "t=i32[M] x t 1 + pick T:f32[M]", CODA_INVALID, "what a program uses as indices is an `in`", "Store it"},
    {PRODUCT "t=i32[N] r=f32[M] r t onehot:L Y:f32[N,L] Z:f32[M]", CODA_INVALID, "does not lie on the tile", ""},
    {PRODUCT "E=f32[V,N] t=i32[M] E exp t gather x + Y:bf16[M,N]", CODA_INVALID, "the table of `gather` is an `in`",
     ""},
    {PRODUCT "t=f32[P,D] p=i32[M] x t 2 * p rope Y:bf16[M,N]", CODA_INVALID, "the table of a rotation is an `in`", ""},
    {PRODUCT "t=f32[P,D] x t index:M rope Y:bf16[M,N]", CODA_INVALID, "the positions of a rotation", ""},
    {PRODUCT "g=f32[D] g exp repeat:N x * Y:bf16[M,N]", CODA_INVALID, "`repeat` of a computed value", "first"},
};

static void what_is_not_block_local_is_refused_with_advice(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(mistakes); i++) {
        struct graph *graph = build(mistakes[i].text);
        struct form form;
        struct complaint why = {0};
        int failed = -1;
        coda_status status = form_create(graph, &form, &failed, &why);
        if (status == CODA_OK)
            fail_msg("%s\n  was accepted", mistakes[i].text);
        if (status != mistakes[i].status || why.status != status || !strstr(why.reason, mistakes[i].reason) ||
            !strstr(why.advice, mistakes[i].advice))
            fail_msg("%s\n  says: %s\n  advises: %s\n  expected: %s, %s", mistakes[i].text, why.reason, why.advice,
                     mistakes[i].reason, mistakes[i].advice);
        assert_true(failed >= 0 && failed < graph->node_count);
        graph_free(graph);
    }
}

struct violations {
    int count, node[16];
};

static void collect(void *context, int node, const struct complaint *why)
{
    struct violations *violations = context;
    assert_true(why->status != CODA_OK && why->reason[0] != '\0');
    if (violations->count < 16)
        violations->node[violations->count] = node;
    violations->count++;
}

static void every_violation_is_reported_once_and_in_order(void **state)
{
    static const struct {
        const char *text, *nodes; /* names of the nodes, in order */
    } cases[] = {
        {PRODUCT "x sum:N >a x + >b b exp >c sqrt Y:bf16[M,N] x rmax:M >d Z:f32[N]", "a d"},
        {PRODUCT "C=f32[M,L] C exp >a sqrt Z:f32[M,L] C sqrt >b B:f32[M,L] x Y:bf16[M,N]", "a b"},
        {PRODUCT "x sum:N >unused x Y:bf16[M,N]", ""},
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        struct graph *graph = build(cases[i].text);
        struct violations found = {0};
        char names[128] = "";
        int count = graph_check(graph, collect, &found);
        assert_int_equal(count, found.count);
        for (int k = 0; k < found.count; k++)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", k ? " " : "",
                     graph->node[found.node[k]].name);
        assert_string_equal(names, cases[i].nodes);
        graph_free(graph);
    }
}

static void a_program_of_many_operations_is_checked_quickly_and_whole(void **state)
{
    struct complaint why = {0};
    struct graph *graph = build("x=f32[M,N] r=f32[M] g=f32[N] x");
    struct form form;
    int value = postfix_find(graph, "x");
    (void)state;
    while (graph->node_count + 2 < MAX_NODES) {
        int outer[2] = {postfix_find(graph, "r"), postfix_find(graph, "g")};
        int input[2] = {value, graph_elementwise(graph, OP_MUL, outer, 2, &why)};
        value = graph_elementwise(graph, OP_ADD, input, 2, &why);
        assert_true(value >= 0);
    }
    assert_int_equal(graph_out(graph, "Y", CODA_OUT, CODA_F32, &graph->node[value].shape, value, &why), 0);
    assert_int_equal(form_create(graph, &form, NULL, &why), CODA_OK);
    assert_int_equal(form.space[value], SPACE_TILE);
    struct graph *copy = graph_copy(graph);
    assert_true(graph_equal(graph, copy));
    form_free(&form);
    graph_free(copy);
    graph_free(graph);
}

/* ---------------------------------------------------------------- random constructions */

static const char operands[] =
    "A=bf16[M,K] W=bf16[N,K] V=bf16[N,K] X=f32[M,N] H=f32[M,N/2] S=f32[M,N/128] P=f32[M/64,N] Z=f32[M,K/64] r=f32[M] "
    "g=f32[N] d=f32[D] q=f32[N/2] t=i32[M] E=f32[L,N] B=f32[L,D] p=0.5";

static int any_node(const struct graph *graph, struct random *random)
{
    /* Half of the time a recent one, so that expressions grow. */
    int count = graph->node_count, first = random_below(random, 2) && count > 6 ? count - 6 : 0;
    return first + (int)random_below(random, count - first);
}

/* Adds one operation on nodes drawn at random; most draws do not fit, and must be refused with a reason. */
static void add_any(struct graph *graph, struct random *random, struct complaint *why)
{
    const int x[3] = {any_node(graph, random), any_node(graph, random), any_node(graph, random)};
    int axis = (int)random_below(random, graph->axis_count + 1) - 1;
    struct extent run = {(int)random_below(random, graph->axis_count + 3) - 3, (int64_t)random_below(random, 130) - 1};
    enum op op = (enum op)(OP_GEMM + 1 + (int)random_below(random, OP_CAST - OP_GEMM - 1));
    if (run.axis < 0)
        run.axis = -1;
    switch (random_below(random, 18)) {
    case 0:
        graph_transpose(graph, x[0], why);
        break;
    case 1:
        graph_gemm(graph, x[0], x[1], why);
        break;
    case 2:
        graph_stack(graph, x, 2, why);
        break;
    case 3:
        graph_pair(graph, random_below(random, 2) ? OP_EVEN : OP_ODD, x[0], why);
        break;
    case 4:
        graph_join(graph, x[0], x[1], why);
        break;
    case 5:
        graph_half(graph, random_below(random, 2) ? OP_FIRST : OP_SECOND, x[0], run, why);
        break;
    case 6:
        graph_join_halves(graph, x[0], x[1], run, why);
        break;
    case 7:
        graph_rope(graph, x[0], x[1], x[2], false, false, NULL, why);
        break;
    case 8:
        graph_reduce(graph, OP_SUM, x[0], axis, run, why);
        break;
    case 9:
        graph_reduce(graph, OP_ABSMAX, x[0], axis, (struct extent){-1, 0}, why);
        break;
    case 10:
        graph_pick(graph, x[0], x[1], why);
        break;
    case 11:
        graph_onehot(graph, x[0], axis, why);
        break;
    case 12:
        graph_gather(graph, x[0], x[1], why);
        break;
    case 13:
        graph_repeat(graph, x[0], axis, why);
        break;
    case 14:
        graph_broadcast(graph, x[0], &graph->node[x[1]].shape, why);
        break;
    case 15:
        graph_gemm(graph, 0, graph_transpose(graph, 1 + (int)random_below(random, 2), why), why);
        break;
    default:
        graph_elementwise(graph, op, x, op_arity(op), why);
        break;
    }
}

static void check_form(const struct graph *graph, const struct form *form)
{
    for (int i = 0; i < graph->operand_count; i++)
        if (graph->operand[i].role != CODA_IN)
            assert_int_not_equal(form->space[graph->operand[i].node], SPACE_NONE);
    for (int i = 0; i < graph->node_count; i++) {
        const struct node *node = &graph->node[i];
        if (!form->used[i] || form->space[i] == SPACE_NONE)
            continue;
        for (int k = 0; k < node->input_count && op_is_elementwise(node->op); k++) {
            assert_int_not_equal(form->space[node->input[k]], SPACE_NONE);
            assert_true(form->prologue[node->input[k]] || !form->prologue[i]);
        }
        assert_true(node->op != OP_GEMM || form->space[i] == SPACE_TILE);
    }
}

static void random_constructions_are_refused_or_complete(void **state)
{
    int programs_found = 0, refused = 0;
    (void)state;
    for (int seed = 0; seed < 3000; seed++) {
        struct random random = {(uint64_t)seed};
        struct graph *graph = build(operands);

        for (int i = 0; i < 40; i++) {
            struct complaint why = {0};
            int before = graph->node_count;
            add_any(graph, &random, &why);
            if (why.status != CODA_OK)
                assert_true(why.reason[0] != '\0' && graph->node_count <= before + 1);
        }
        for (int i = 0; i < 3; i++) {
            struct complaint why = {0};
            char name[32];
            int value = any_node(graph, &random);
            snprintf(name, sizeof name, "out%d", i);
            graph_out(graph, name, CODA_OUT, CODA_F32, &graph->node[value].shape, value, &why);
            struct form form;
            int failed, violations = graph_check(graph, NULL, NULL);
            coda_status status = form_create(graph, &form, &failed, &why);
            assert_int_equal(status == CODA_OK, violations == 0);
            programs_found += status == CODA_OK;
            refused += status != CODA_OK;
            if (status != CODA_OK) {
                assert_true(failed >= 0 && why.reason[0] != '\0');
                continue;
            }
            check_form(graph, &form);
            form_free(&form);
        }
        struct graph *copy = graph_copy(graph);
        assert_true(graph_equal(graph, copy));
        graph_free(copy);
        graph_free(graph);
    }
    assert_true(programs_found > 300 && refused > 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_program_has_its_form),
        cmocka_unit_test(what_is_not_block_local_is_refused_with_advice),
        cmocka_unit_test(every_violation_is_reported_once_and_in_order),
        cmocka_unit_test(a_program_of_many_operations_is_checked_quickly_and_whole),
        cmocka_unit_test(random_constructions_are_refused_or_complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
