/* Sizes of axes: derived, fixed, and what operations ask of them. */
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

/* ---------------------------------------------------------------- sizes */

/* "M=3 N=4" */
static void read_sizes(const struct graph *graph, const char *text, int64_t *sizes)
{
    char name[32];
    long long size;
    int used;
    for (int i = 0; i < MAX_AXES; i++)
        sizes[i] = 0;
    for (; sscanf(text, " %31[A-Za-z_]=%lld%n", name, &size, &used) == 2; text += used) {
        assert_true(graph_find_axis(graph, name) >= 0);
        sizes[graph_find_axis(graph, name)] = size;
    }
}

static void derived_sizes_are_solved_in_both_directions(void **state)
{
    static const struct {
        const char *text, *given, *expected; /* expected NULL: refused */
    } cases[] = {
        {"axis:N=Q+2*E #N", "Q=4 E=3", "N=10"},
        {"axis:N=Q+2*E #N", "N=10 E=3", "Q=4"},
        {"axis:N=Q+2*E #N", "N=10 Q=4", "E=3"},
        {"axis:N=Q+2*E #N", "N=11 Q=4", NULL},
        {"axis:N=Q+2*E #N", "N=4 Q=4", NULL},
        {"axis:N=Q+2*E #N", "N=10 Q=4 E=4", NULL},
        {"axis:N=Q+2*E #N", "N=10", "Q=0 E=0"},
        {"axis:N=Q+2*E axis:T=Q+E #N #T", "N=10 T=7 E=3", "Q=4"},
        {"axis:N=Q+2*E axis:T=Q+E #N #T", "N=10 T=8 E=3", NULL},
        {"axis:A=B+1 axis:B=C+1 axis:C=D+1 #A", "A=10", "D=7 B=9"},
        {"axis:A=B+1 axis:B=C+1 axis:C=D+1 #A", "D=10", "A=13"},
        {"axis:A=B+1 axis:B=C+1 axis:C=D+1 #A", "A=3", NULL},
        {"axis:N=4*E #N", "E=4611686018427387904", NULL},
        {"axis:N=4*E #N", "N=-4", NULL},
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        struct graph *graph = build(cases[i].text, NULL);
        int64_t sizes[MAX_AXES], expected[MAX_AXES];
        struct complaint why = {0};
        read_sizes(graph, cases[i].given, sizes);
        coda_status status = sizes_complete(graph, sizes, &why);
        if (status != (cases[i].expected ? CODA_OK : CODA_INVALID) || (status != CODA_OK && why.reason[0] == '\0'))
            fail_msg("%s with %s: %s", cases[i].text, cases[i].given, coda_status_name(status));
        read_sizes(graph, cases[i].expected ? cases[i].expected : "", expected);
        for (int k = 0; k < graph->axis_count; k++)
            if (expected[k] != 0)
                assert_int_equal(sizes[k], expected[k]);
        graph_free(graph);
    }
}

static void sizes_of_dimensions(void **state)
{
    static const struct {
        const char *text, *given;
        int64_t size;
    } cases[] = {
        {"x=f32[N] x", "N=300", 300},         {"x=f32[64] x", "", 64},
        {"x=f32[N/128] x", "N=300", 3},       {"x=f32[N/128] x", "N=256", 2},
        {"x=f32[N/128] x", "N=1", 1},         {"x=f32[N/128] x", "", 0},
        {"x=f32[N/D] x", "N=300 D=100", 3},   {"x=f32[N/D] x", "N=300", 0},
        {"x=f32[N/D/2] x", "N=300 D=100", 6}, {"x=f32[N/128] x", "N=9223372036854775807", 72057594037927936},
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        int top;
        int64_t sizes[MAX_AXES];
        struct graph *graph = build(cases[i].text, &top);
        read_sizes(graph, cases[i].given, sizes);
        assert_int_equal(dim_size(&graph->node[top].shape.dim[0], sizes), cases[i].size);
        graph_free(graph);
    }
}

static void sizes_that_do_not_divide_are_refused(void **state)
{
    static const char rope[] = "x=f32[M,N] t=f32[P,D] p=i32[M] x t p rope:T";
    static const struct {
        const char *text, *given, *reason; /* NULL: accepted */
    } cases[] = {
        {"x=f32[M,N] x even", "N=8", NULL},
        {"x=f32[M,N] x even", "", NULL},
        {"x=f32[M,N] x even", "N=7", "`pairs` needs N to be a multiple of 2, found 7"},
        {"y=f32[M,N/2] y y join", "N=7", "`join` needs N to be a multiple of 2"},
        {"x=f32[M,N] x first:4", "N=16", NULL},
        {"x=f32[M,N] x first:4", "N=12", "`halves` needs N to be a multiple of 8, found 12"},
        {"x=f32[M,N] x first:D/2", "N=16 D=8", NULL},
        {"x=f32[M,N] x first:D/2", "N=16 D=7", "the length D/2 is no whole number: D is 7"},
        {"y=f32[M,N/2] y y joinh:4", "N=12", "`join_halves` needs N to be a multiple of 8"},
        {rope, "N=32 T=16 D=8", NULL},
        {rope, "N=32 T=16 D=7", "`rope` needs D to be a multiple of 2, found 7"},
        {rope, "N=30 T=16 D=8", "`rope` needs N to be a multiple of 8, found 30"},
        {rope, "N=32 T=12 D=8", "`rope` needs T to be a multiple of 8, found 12"},
        {rope, "N=32 T=40 D=8", "`rope` of 40 columns, but there are 32"},
        {"g=f32[D] g repeat:N", "N=12 D=4", NULL},
        {"g=f32[D] g repeat:N", "N=12 D=5", "`repeat` needs N to be a multiple of 5, found 12"},
        {"x=f32[M,N] x", "M=-1", "M is -1"},
        {"x=f32[M,N] x", "M=4000000000 N=4000000000", "more elements than memory can hold"},
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        struct graph *graph = build(cases[i].text, NULL);
        int64_t sizes[MAX_AXES];
        struct complaint why = {0};
        read_sizes(graph, cases[i].given, sizes);
        coda_status status = sizes_check(graph, sizes, &why);
        if (status != (cases[i].reason ? CODA_INVALID : CODA_OK) ||
            !strstr(why.reason, cases[i].reason ? cases[i].reason : ""))
            fail_msg("%s with %s: %s", cases[i].text, cases[i].given, why.reason);
        graph_free(graph);
    }
}

static void kernels_must_know_lengths_and_axes_that_no_operand_gives(void **state)
{
    static const struct {
        const char *text, *fixed;
    } cases[] = {
        {"A=bf16[M,K] W=bf16[N,K] A W .T @ Y:bf16[M,N]", ""},
        {"x=f32[M,N] x sum:N:D Y:f32[M,N/D]", "D "},
        {"x=f32[M,N] x first:D/2 Y:f32[M,N/2]", "D "},
        {"x=f32[M,N] t=f32[P,D] p=i32[M] x t p rope Y:f32[M,N]", "D "},
        {"x=f32[M,N] t=f32[P,D] p=i32[M] x t p rope:T Y:f32[M,N]", "D T "},
        {"axis:N=Q+2*E axis:T=Q+E P=bf16[Q,K] R=bf16[E,K] A=bf16[M,K] t=f32[S,D] p=i32[M] A P R R stack3 .T @ t p "
         "rope:T "
         "Y:f32[M,N]",
         "D "},
        {"axis:T=Q+E x=f32[M,N] t=f32[P,D] p=i32[M] x t p rope:T Y:f32[M,N]", "T Q E D "},
        {"axis:T=Q+E x=f32[M,T] E=f32[E] x #Q * Y:f32[M,T]", ""},
        {"L=f32[M,V/128] L sum #V / Y:f32[M]", "V "},
        {"g=f32[D] x=f32[M,N] x g repeat:N * Y:f32[M,N]", ""},
        {"t=i32[M] t onehot:V Y:f32[M,V]", ""}, /* the out gives V */
        {"axis:Z=U+1 x=f32[M] x Y:f32[M]", ""},
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        struct graph *graph = build(cases[i].text, NULL);
        char fixed[256] = "";
        for (int k = 0; k < graph->axis_count; k++)
            if (axis_is_fixed(graph, k))
                snprintf(fixed + strlen(fixed), sizeof fixed - strlen(fixed), "%s ", graph->axis[k].name);
        if (strcmp(fixed, cases[i].fixed) != 0)
            fail_msg("%s\n  fixes \"%s\", expected \"%s\"", cases[i].text, fixed, cases[i].fixed);
        graph_free(graph);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(derived_sizes_are_solved_in_both_directions),
        cmocka_unit_test(sizes_of_dimensions),
        cmocka_unit_test(sizes_that_do_not_divide_are_refused),
        cmocka_unit_test(kernels_must_know_lengths_and_axes_that_no_operand_gives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
