/* Graphs to text: precedence, canonical text, and that it parses to the same graph. */
#include "kit/generate.h"
#include "lang/lang.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(table) ((int)(sizeof(table) / sizeof(table)[0]))

extern const char *const coda_standard_texts[][2];

static struct graph *parsed(struct unit *unit, const char *text)
{
    coda_error error;
    if (parse(text, strlen(text), "test", unit, &error) != CODA_OK)
        fail_msg("%s\n  was refused:\n%s", text, error.message);
    return unit->graph[0];
}

static void check_round_trip(const struct graph *graph)
{
    struct unit again;
    char *text = print_graph(graph);
    assert_non_null(text);
    struct graph *second = parsed(&again, text);
    if (!graph_equal(graph, second))
        fail_msg("parses to another graph:\n%s", text);
    assert_string_equal(second->name, graph->name);
    char *repeated = print_graph(second);
    assert_string_equal(text, repeated);
    free(repeated);
    free(text);
    unit_free(&again);
}

static void operators_bind_as_in_python(void **state)
{
    static const struct {
        const char *written, *canonical;
    } cases[] = {
        {"a + b * c", "a + b * c"},
        {"(a + b) * c", "(a + b) * c"},
        {"(a * b) + c", "a * b + c"},
        {"a - (b - c)", "a - (b - c)"},
        {"(a - b) - c", "a - b - c"},
        {"a + (b + c)", "a + (b + c)"},
        {"a / (b * c)", "a / (b * c)"},
        {"(a / b) * c", "a / b * c"},
        {"-a * b", "-a * b"},
        {"-(a * b)", "-(a * b)"},
        {"(-a) * b", "-a * b"},
        {"a * -b", "a * -b"},
        {"a - -b", "a - -b"},
        {"--a", "--a"},
        {"-2 * a", "-2 * a"},
        {"-(2) * a", "-(2) * a"},
        {"--2 * a", "--2 * a"},
        {"a < b + c", "a < b + c"},
        {"(a < b) + c", "(a < b) + c"},
        {"(a < b) < c", "(a < b) < c"},
        {"a == (b != c)", "a == (b != c)"},
        {"a >= b", "a >= b"},
        {"A @ W.T * a", "(A @ W.T) * a"},
        {"A @ W.T / a", "(A @ W.T) / a"},
        {"A * B @ W.T", "(A * B) @ W.T"},
        {"A @ W.T @ V @ W.T", "((A @ W.T) @ V) @ W.T"},
        {"-A @ W.T", "-A @ W.T"},
        {"-(A @ W.T) * a", "-(A @ W.T) * a"},
        {"a * (A @ W.T)", "a * (A @ W.T)"},
        {"(A * B) @ W.T", "(A * B) @ W.T"},
        {"A @ W.T + B @ V.T", "A @ W.T + B @ V.T"},
        {"a + (A @ W.T + B @ V.T)", "a + (A @ W.T + B @ V.T)"},
        {"a + A @ W.T + B @ V.T", "a + A @ W.T + B @ V.T"},
        {"(A @ W.T + B @ V.T) * a", "(A @ W.T + B @ V.T) * a"},
        {"(A + B) @ (W + V).T", "(A + B) @ (W + V).T"},
        {"a * max(b, (N))", "a * max(b, (N))"},
        {"a * max(b, N)", "a * max(b, N)"},
        {"a * max(N, b)", "a * max(N, b)"},
        {"a + (0.50 + 1e-06) * 100000000000000000000", "a + (0.5 + 1e-6) * 1e20"},
        {"a * 0.1 - 0.30000000000000004", "a * 0.1 - 0.30000000000000004"},
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        char text[256], printed[256];
        struct unit unit;
        snprintf(text, sizeof text,
                 "block p {\nin a, b, c : f32[M, N]\nin A, B : f32[M, K]\nin W, V : f32[N, K]\nout o : f32[M, N] = %s\n"
                 "out u : f32[M, N] = a + b + c + A @ W.T + B @ V.T\n}",
                 cases[i].written);
        struct graph *graph = parsed(&unit, text);
        print_expression(graph, graph->operand[graph->operand_count - 2].node, printed, sizeof printed);
        assert_string_equal(printed, cases[i].canonical);
        unit_free(&unit);
    }
}

static void standard_programs_survive_printing(void **state)
{
    int count = 0;
    (void)state;
    for (; coda_standard_texts[count][0]; count++) {
        struct unit unit;
        check_round_trip(parsed(&unit, coda_standard_texts[count][1]));
        unit_free(&unit);
    }
    assert_true(count > 20);
}

static void every_elementwise_primitive_survives_printing(void **state)
{
    static const struct {
        const char *name;
        int arity;
        enum op op;
    } rows[] = {
#define PRIMITIVE(op, name, arity, meaning, cuda, da, db, dc, cost) {name, arity, OP_##op},
#include "ir/primitives.def"
#undef PRIMITIVE
    };
    (void)state;
    for (int i = 0; i < COUNT(rows); i++) {
        char text[256], call[64];
        struct unit unit;
        bool is_sign = strchr("+-*/<>=!", rows[i].name[0]) != NULL;
        if (rows[i].op == OP_NEG)
            snprintf(call, sizeof call, "-a");
        else if (is_sign)
            snprintf(call, sizeof call, "a %s b", rows[i].name);
        else
            snprintf(call, sizeof call, "%s(%s)", rows[i].name,
                     rows[i].arity == 1   ? "a"
                     : rows[i].arity == 2 ? "a, b"
                                          : "a, b, c");
        snprintf(text, sizeof text,
                 "program p {\nin a, b, c : f32[M, N]\nout y : f32[M, N] = %s\nout z : f32[M, N] = a+b+c\n}", call);
        struct graph *graph = parsed(&unit, text);
        assert_int_equal(graph->node[graph->operand[3].node].op, rows[i].op);
        check_round_trip(graph);
        unit_free(&unit);
    }
}

static void every_other_construction_survives_printing(void **state)
{
    static const struct {
        const char *operands, *type, *expression;
    } cases[] = {
        {"x : f32[M, N]", "f32[M, N]", "cast(x, bf16)"},
        {"x : f32[M]", "f32[M, N]", "broadcast(x, [M, N])"},
        {"x : f32[D]", "f32[N]", "repeat(x, N)"},
        {"x : f32[M, N]", "f32[M, N]", "x * index(N) + index(M)"},
        {"x : f32[M, N]", "f32[M, N]", "x * N / D"},
        {"x : f32[M, N]; in w : f32[Q, N]", "f32[M, Q_Q]", "x @ stack(w, w).T"},
        {"x : f32[M, N]", "f32[M, N/128]", "sum(x, N:128) + absmax(x, N:128) + max(x, N:128) * logsumexp(x, N:128)"},
        {"x : f32[M, N]", "f32[M/64, N]", "mean(x, M:64)"},
        {"x : f32[M, N]", "f32[M, N/D]", "sum(x, N:D) * sum(broadcast(sum(x, N:D/2), [M, N]), N:D)"},
        {"x : f32[M, N]", "f32[M]", "sum(x, N) + mean(x, N) + max(x, N)"},
        {"x : f32[M, N/128]", "f32[M]", "sum(x) + max(x) + absmax(x) + logsumexp(x)"},
        {"x : f32[M/64, N/128]", "f32[M/64]", "sum(x, N)"},
        {"x : f32[M, N]; in t : i32[M]", "f32[M]", "pick(x, t)"},
        {"x : f32[M, N]; in t : i32[M]", "f32[M, N]", "x - onehot(t, N)"},
        {"x : f32[V, N]; in t : i32[M]", "f32[M, N]", "gather(x, t)"},
        {"x : f32[M, N]; in t : f32[P, D]; in p : i32[M]", "f32[M, N]",
         "rope(x, t, p) + rope_pairs(x, t, p, cols = T)"},
        {"x : f32[M, N]; in t : f32[P, 64]; in p : i32[M]", "f32[M, N]",
         "rope_inverse(x, t, p, cols = 128) + rope_pairs_inverse(x, t, p)"},
        {"x : f32[M, N]; a, b = pairs(x)", "f32[M, N]", "join(b, -a)"},
        {"x : f32[M, N]; a, b = pairs(x)", "f32[M, N/2]", "b"},
        {"x : f32[M, N]; a, b = halves(x, D/2)", "f32[M, N]", "join_halves(b, a, D/2)"},
        {"x : f32[M, N]; a, b = halves(x, 64); c, d = halves(x, 64)", "f32[M, N/2]", "a * d"},
        {"x : f32[M, N]; a, b = halves(x, D/2)", "f32[M, N/2]", "a * b + broadcast(sum(a, N), [M, N/2:D/2])"},
        {"x, g, b : f32[M, N]", "f32[M, N]", "rmsnorm(x, g, 1e-6) + layernorm(x, g, b, 1e-5) + softmax(x)"},
        {"x : f32[64, N]; in w : e4m3[N, 128]", "f32[64, 128]", "x @ w"},
        {"x : f16[M, N]; in w : e5m2[M, N]; in s : f32; param p = -0.25; param q = 3e-45", "f32[M, N]",
         "x + w * s + p * q"},
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        char text[512];
        struct unit unit;
        snprintf(text, sizeof text,
                 "block p {\naxis T = D + 1\naxis Q_Q = 2*Q\nin %s\nout y : %s = %s\nout z : f32[Q_Q, T] = "
                 "broadcast(D, [Q_Q, T])}",
                 cases[i].operands, cases[i].type, cases[i].expression);
        check_round_trip(parsed(&unit, text));
        unit_free(&unit);
    }
}

static void random_programs_survive_printing(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct generated program;
        struct unit unit;
        char text[16384];
        generate(&program, seed, NULL);
        generated_text(&program, text, sizeof text);
        check_round_trip(parsed(&unit, text));
        unit_free(&unit);
    }
}

static void canonical_text_keeps_the_order_of_operands(void **state)
{
    static const char text[] = "block p {\n"
                               "    axis N = Q + 2*E + 3\n"
                               "    axis V\n"
                               "    in  A, B : bf16[M, N]\n"
                               "    in  t : i32[M]\n"
                               "    param p = 0.5\n"
                               "    v1 = A * B\n"
                               "    h = onehot(t, V) * p\n"
                               "    out X : bf16[M, N] = v1 * v1\n"
                               "    out H : f32[M, V] = h\n"
                               "    in  C : f32[M, V]\n"
                               "    a, v2 = pairs(v1)\n"
                               "    out Y : f32[M, V] += h * C\n"
                               "    out Z : f32[M, N/2] = a\n"
                               "}\n";
    struct unit unit;
    (void)state;
    char *printed = print_graph(parsed(&unit, text));
    assert_string_equal(printed, text);
    free(printed);
    unit_free(&unit);
}

static void canonical_text_renames_what_would_clash(void **state)
{
    static const char expected[] = "program p {\n    in  A : f32[M, N]\n    v1 = A * 2\n    v2 = v1 + 1\n"
                                   "    out Y : f32[M, N] = v2 * v2\n    out Z : f32[M, N] = v1\n}\n";
    struct unit unit;
    (void)state;
    struct graph *graph =
        parsed(&unit, "program p {\nin A : f32[M, N]\nx = A * 2\ny = x + 1\nout Y : f32[M, N] = y * y\n"
                      "out Z : f32[M, N] = x\n}");
    for (int i = 0; i < graph->node_count; i++)
        if (graph->node[i].name)
            memcpy(graph->node[i].name, graph->node[i].name[0] == 'x' ? "N" : "7", 2);
    char *printed = print_graph(graph);
    assert_string_equal(printed, expected);
    free(printed);
    unit_free(&unit);
}

static void means_divide_by_the_true_length_of_a_run(void **state)
{
    char printed[128];
    struct unit unit;
    (void)state;
    struct graph *graph = parsed(&unit, "program p {\nin A : f32[M, N]\nout Y : f32[M, N/128] = mean(A, N:128)\n}");
    print_expression(graph, graph->operand[1].node, printed, sizeof printed);
    assert_string_equal(printed, "sum(A, N:128) / sum(broadcast(1, [M, N]), N:128)");
    unit_free(&unit);
}

static void expressions_are_cut_to_the_room_there_is(void **state)
{
    char printed[16];
    struct unit unit;
    (void)state;
    struct graph *graph =
        parsed(&unit, "program p {\nin A : f32[M, N]\nout Y : f32[M, N] = exp(A) * exp(A) * exp(A)\n}");
    for (int size = 1; size <= 16; size++) {
        memset(printed, 'x', sizeof printed);
        print_expression(graph, graph->operand[1].node, printed, size);
        assert_true(strlen(printed) < (size_t)size);
    }
    assert_string_equal(printed, "exp(A) * exp...");
    unit_free(&unit);
}

static void ten_thousand_statements_parse_and_print(void **state)
{
    enum { STATEMENTS = 10000 };
    char *text = malloc(STATEMENTS * 48);
    assert_non_null(text);
    size_t used = (size_t)sprintf(text, "program p {\nin x0 : f32[M, N]\n");
    struct unit unit;
    (void)state;
    for (int i = 1; i < STATEMENTS; i++)
        used += (size_t)sprintf(text + used, "x%d = x%d * 2 + x%d\n", i, i - 1, i / 2);
    sprintf(text + used, "out Y : f32[M, N] = x%d\n}\n", STATEMENTS - 1);
    struct graph *graph = parsed(&unit, text);
    assert_true(graph->node_count > 2 * STATEMENTS);
    check_round_trip(graph);
    unit_free(&unit);
    free(text);
}

/* `count` copies of `left`, A, `count` copies of `right`. */
static coda_status parse_repeated(const char *left, const char *right, int count, struct unit *unit, coda_error *error)
{
    size_t size = (size_t)count * (strlen(left) + strlen(right)) + 128;
    char *text = malloc(size);
    assert_non_null(text);
    size_t used = (size_t)snprintf(text, size, "program p {\nin A : f32[M]\nout Y : f32[M] = ");
    for (int i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, size - used, "%s", left);
    used += (size_t)snprintf(text + used, size - used, "A");
    for (int i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, size - used, "%s", right);
    snprintf(text + used, size - used, "\n}\n");
    coda_status status = parse(text, strlen(text), "f", unit, error);
    free(text);
    return status;
}

static void deep_nesting_is_refused_and_long_chains_are_not(void **state)
{
    static const struct {
        const char *left, *right;
        int count;
        const char *refusal;
    } cases[] = {
        {"(", ")", 199, NULL},
        {"(", ")", 200, "nested more than 200 deep"},
        {"(", "", 100000, "nested more than 200 deep"},
        {"-", "", 199, NULL},
        {"-", "", 100000, "nested more than 200 deep"},
        {"exp(", ")", 199, NULL},
        {"exp(", ")", 100000, "nested more than 200 deep"},
        {"A + ", "", 20000, NULL},
        {"", " * A", 20000, NULL},
        {"A + ", "", 65535, NULL}, /* as many operations as a program may have */
        {"A + ", "", 65536, "more than 65536 operations"},
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        struct unit unit = {0};
        coda_error error = {CODA_OK, ""};
        coda_status status = parse_repeated(cases[i].left, cases[i].right, cases[i].count, &unit, &error);
        assert_int_equal(status == CODA_OK, cases[i].refusal == NULL);
        if (cases[i].refusal && !strstr(error.message, cases[i].refusal))
            fail_msg("case %d: %s", i, error.message);
        if (status == CODA_OK)
            check_round_trip(unit.graph[0]);
        unit_free(&unit);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operators_bind_as_in_python),
        cmocka_unit_test(standard_programs_survive_printing),
        cmocka_unit_test(every_elementwise_primitive_survives_printing),
        cmocka_unit_test(every_other_construction_survives_printing),
        cmocka_unit_test(random_programs_survive_printing),
        cmocka_unit_test(canonical_text_keeps_the_order_of_operands),
        cmocka_unit_test(canonical_text_renames_what_would_clash),
        cmocka_unit_test(means_divide_by_the_true_length_of_a_run),
        cmocka_unit_test(expressions_are_cut_to_the_room_there_is),
        cmocka_unit_test(ten_thousand_statements_parse_and_print),
        cmocka_unit_test(deep_nesting_is_refused_and_long_chains_are_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
