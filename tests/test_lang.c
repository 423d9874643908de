/* Texts to graphs: what is refused and how it is said, statements, expressions over a graph. */
#include "lang/lang.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(table) ((int)(sizeof(table) / sizeof(table)[0]))

static struct graph *parsed(struct unit *unit, const char *text)
{
    coda_error error;
    if (parse(text, strlen(text), "test", unit, &error) != CODA_OK)
        fail_msg("%s\n  was refused:\n%s", text, error.message);
    return unit->graph[0];
}

static int count_errors(const char *message)
{
    int count = 0;
    for (const char *at = message; (at = strstr(at, ": error: ")); at++)
        count++;
    return count;
}

/* ---------------------------------------------------------------- errors */

#define A_MN "in A : bf16[M, N]\n"

/* Every row must give exactly the errors whose beginnings are listed, in this order. */
static void every_mistake_is_reported_at_its_place(void **state)
{
    static const struct {
        const char *body;
        const char *expected[4]; /* "line:column: error: reason", or a part of the advice after the first */
        int errors;
    } cases[] = {
        {A_MN "out Y : f32[M, N] = B", {"3:21: error: unknown name `B`"}, 1},
        {"in hidden : f32[M]\nout Y : f32[M] = hiden",
         {"3:18: error: unknown name `hiden`", "Did you mean `hidden`?"},
         1},
        {A_MN "out Y : f32[M, N] = sigmod(A)",
         {"3:21: error: unknown function `sigmod`", "Did you mean `sigmoid`?"},
         1},
        {A_MN "out Y : f32[M, N] = A(2)", {"3:21: error: unknown function `A`", "a product needs its `*`"}, 1},
        {"in A : bfloat16[M]\nout Y : f32[M] = A", {"2:8: error: unknown type `bfloat16`", "Did you mean `bf16`?"}, 1},
        {"in A : f23[M]\nout Y : f32[M] = A", {"2:8: error: unknown type `f23`", "Did you mean `f32`?"}, 1},
        {A_MN "in A : f32[M]\nout Y : f32[M, N] = A",
         {"3:4: error: the name `A` is already taken", "Line 2 defines it"},
         1},
        {A_MN "M = 2\nout Y : f32[M, N] = A", {"3:1: error: the name `M` is already taken", "as an axis"}, 1},
        {A_MN "x = A\nx = A\nout Y : f32[M, N] = x", {"4:1: error: the name `x` is already taken"}, 1},
        {A_MN "in = 2\nout Y : f32[M, N] = A", {"3:4: error: expected the name of an operand, found `=`"}, 1},
        {"in program : f32[M]\nout Y : f32[M] = program", {"2:4: error: `program` is a word of the language"}, 1},
        {A_MN "in B : f32[M]\nout Y : f32[M, N] = A", {"3:4: error: operand `B` is never used"}, 1},
        {A_MN "param p = 1\nout Y : f32[M, N] = A", {"3:7: error: param `p` is never used"}, 1},
        {A_MN "x = A\nout Y : f32[M, N] = A", {"3:1: error: value `x` is never used"}, 1},
        {A_MN "axis P = Q + 2*R\nout Y : f32[M, N] = A", {"3:6: error: axis `P` is never used"}, 1},
        {A_MN "a, b = pairs(A)\nout Y : f32[M, N] = A", {"3:1: error: value `a` is never used"}, 2},
        {A_MN "param p = 1e-\nout Y : f32[M, N] = A * p", {"3:11: error: `1e-` is not a number"}, 1},
        {A_MN "param p = 1.\nout Y : f32[M, N] = A * p", {"3:11: error: `1.` is not a number"}, 1},
        {A_MN "param p = 1e999\nout Y : f32[M, N] = A * p", {"3:11: error: this number does not fit"}, 1},
        {A_MN "param p = A\nout Y : f32[M, N] = A * p", {"3:11: error: expected a number, found `A`"}, 1},
        {A_MN "out Y : f32[M, N] = 2A", {"3:21: error: `2A` is not a number", "needs its `*`"}, 1},
        {A_MN "out Y : f32[M, N] = .5 * A", {"3:21: error: expected a value, found `.`", "0.5"}, 1},
        {A_MN "out Y : f32[M, N/0] = A", {"3:18: error: expected a length, a whole number from 1, found `0`"}, 1},
        {A_MN "out Y : f32[M, N/1.5] = A", {"3:18: error: expected a length, a whole number from 1, found `1.5`"}, 1},
        {A_MN "out Y : f32[M, N] = exp(A, 2)", {"3:21: error: `exp` takes 1 argument, found 2", "exp(x)"}, 1},
        {A_MN "out Y : f32[M, N] = clamp(A, 2)", {"3:21: error: `clamp` takes 3 arguments, found 2"}, 1},
        {A_MN "out Y : f32[M, N] = exp()", {"3:21: error: `exp` takes 1 argument, found 0"}, 1},
        {A_MN "out Y : f32[M, N] = rope(A, A, A, cols = 2, 3)",
         {"3:21: error: `rope` takes 3 to 4 arguments, found 5"},
         1},
        {A_MN "out Y : f32[M, N] = exp(A, N:128)", {"3:29: error: expected `,` or `)`, found `:`", "Only sum"}, 1},
        {A_MN "out Y : f32[M, N/128] = sum(A, 128)", {"3:32: error: expected an axis or a run, found `128`"}, 1},
        {A_MN "out Y : f32[M, N/128] = sum(A, n:128)", {"3:32: error: unknown axis `n`", "Did you mean `N`?"}, 1},
        {A_MN "x = A\nout Y : f32[M, N] = sum(A, x:128)", {"4:28: error: `x` is no axis"}, 1},
        {A_MN "a = pairs(A)\nout Y : f32[M, N] = a", {"3:5: error: `pairs` gives two values", "a, b = pairs(x)"}, 1},
        {A_MN "a, b = exp(A)\nout Y : f32[M, N] = a + b", {"3:8: error: expected `pairs` or `halves`, found `exp`"}, 1},
        {A_MN "a, b, c = pairs(A)\nout Y : f32[M, N] = a + b", {"3:5: error: expected `=` after two names"}, 1},
        {A_MN "out Y : f32[M, N] = x + 1\nx = A",
         {"3:21: error: `x` is used here, but defined only later, in line 4"},
         1},
        {A_MN "x = x + A\nout Y : f32[M, N] = x", {"3:5: error: `x` is used in its own definition"}, 1},
        {A_MN "out X : f32[M, N] = A\nout Y : f32[M, N] = X",
         {"4:21: error: `X` is an out, which cannot be read back"},
         1},
        {A_MN "in B : bf16[M, P]\nout Y : f32[M, N] = A + B", {"4:21: error: the axes do not join"}, 1},
        {A_MN "in W : bf16[P, N]\nout Y : f32[M, P] = A @ W", {"4:21: error: the inner axes N and P differ", ".T"}, 1},
        {A_MN "out Y : f32[M] = A", {"3:5: error: `Y` is declared [M], but its value is `A` [M, N]"}, 1},
        {A_MN "out Y : f32[M, N] = A / sum(A, N)", {"3:25: error: `sum(.., N)` needs the whole row"}, 1},
        {A_MN "out Y : f32[M, N] = softmax(A)", {"3:21: error: `softmax` needs whole rows", "block"}, 1},
        {A_MN, {"1:9: error: `p` has no out"}, 1},
        {"in A : f32[M, N, P]\nout Y : f32[M] = A", {"2:11: error: a value has at most 2 dims, found 3"}, 1},
        {"in A : bf16[M N]\nout Y : f32[M] = sum(A, N)", {"2:15: error: expected `,` or `]`, found `N`"}, 1},
        {"in A bf16[M]\nout Y : f32[M] = A", {"2:6: error: expected `:` and a type, found `bf16`"}, 1},
        {"inn A : bf16[M]\nout Y : f32[M] = A", {"2:1: error: `inn` begins no statement", "Did you mean `in`?"}, 1},
        {A_MN "x = (A + 1\nout Y : f32[M, N] = x", {"3:11: error: expected `)`, but the line ends here"}, 1},
        {A_MN "x = A +\nout Y : f32[M, N] = A", {"3:8: error: expected a value, but the line ends here"}, 1},
        {A_MN "x = A\n  + 1\nout Y : f32[M, N] = x",
         {"4:3: error: expected a statement, found `+`", "end of that line"},
         1},
        {A_MN "x += A\nout Y : f32[M, N] = x", {"3:3: error: expected `=`, found `+=`", "Only an `out`"}, 1},
        {A_MN "x : f32 = A\nout Y : f32[M, N] = x", {"3:3: error: expected `=`, found `:`", "cast"}, 1},
        {A_MN "out Y : f32[M, N] = A < A < A", {"3:27: error: expected the end of the comparison", "do not chain"}, 1},
        {A_MN "out Y : f32[M, N] = A ** 2", {"3:24: error: expected a value, found `*`", "x * x"}, 1},
        {A_MN "out Y : f32[M, N] = A ^ 2", {"3:23: error: `^` is no character", "no power operator"}, 1},
        {A_MN "out Y : f32[M, N] = F.silu(A)", {"3:21: error: unknown name `F`", "Functions stand alone"}, 2},
        {A_MN "out Y : f32[M, N] = A.mean(N)", {"found `mean`", "Functions take their value"}, 1},
        {A_MN "out Y : f32[M, N] = A if A > 0 else 0", {"3:23: error: expected the end", "where(condition, a, b)"}, 1},
        {A_MN "out Y : f32[M, N] = where(A > 0 and A < 1, A, 0)", {"found `and`", "`a and b` is a * b"}, 1},
        {A_MN "out Y : f32[M, N] = A * True", {"unknown name `True`", "conditions are 1 or 0"}, 1},
        {A_MN "out Y : f32[M, N] = A[0]", {"found `[`", "Elements are not addressed"}, 1},
        {A_MN "out Y : f32[M] = sum(A, dim = 1)", {"unknown axis `dim`", "Reductions name their axis"}, 2},
        {A_MN "out Y : f32[M, N] = dropout(A)", {"unknown function `dropout`", "pass a mask"}, 1},
        {A_MN "out Y : f32[M, N] = swiglu(A)", {"unknown function `swiglu`", "A gate is two products"}, 1},
        {A_MN "let x = A\nout Y : f32[M, N] = A", {"3:1: error: `let` begins no", "no declared type"}, 1},
        {A_MN "return A", {"3:1: error: `return` begins no", "is an out"}, 1},
        {"in A : f32[M, N], B : f32[N]\nout Y : f32[M, N] = A", {"found `,`", "One type a statement"}, 1},
        {"in A : f32[M, K]; in W : f32[N, K]\nout Y : f32[M, N] = A * W.T",
         {"3:21: error: the axes do not join", "A @ W.T"},
         1},
        {"in A : f32[M, K]; in V, W : f32[N, K]; in B : f32[M, K]\nout Y : f32[M, L] = beside(A @ V.T, B @ W.T)",
         {"3:21: error: `beside` takes products A @ V.T, A @ W.T", "A @ stack(V, W).T"},
         1},
        {"in A : f32[M, K]; in V, W : f32[N, K]; in b : f32[N]\nout Y : f32[M, L] = beside(A @ V.T + b, A @ W.T + b)",
         {"3:21: error: the parts of `beside` are joined with different vectors", "Apply it to the result"},
         1},
        {A_MN "out Y : f32[M, N] = beside(A, A)", {"3:21: error: `beside` takes products"}, 1},
        {A_MN "out Y : f32[M, N] = A & A", {"3:23: error: `&` is no character of the language"}, 1},
        {A_MN "out Y : f32[M, N] = A \xC3\x97 2", {"3:23: error: `\xC3\x97` is no character"}, 1},
        {A_MN "out Y : f32[M, N] = A.t", {"3:23: error: expected `T` after the point, found `t`"}, 1},
        {"axis N = N + 1\nin A : f32[N]\nout Y : f32[N] = A", {"2:10: error: axis `N` is in its own definition"}, 1},
        {A_MN "axis N = P + 1\nout Y : f32[M, N] = A",
         {"3:6: error: the name `N` is already taken", "before the first use"},
         1},
        {"axis N = A + B + C + D + E + F + G\nin X : f32[N]\nout Y : f32[N] = X",
         {"2:34: error: expected at most 6 terms"},
         1},
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        char text[512];
        coda_error error;
        struct unit unit;
        snprintf(text, sizeof text, "program p {\n%s\n}\n", cases[i].body);
        assert_int_equal(parse(text, strlen(text), "f", &unit, &error), CODA_INVALID);
        assert_int_equal(error.status, CODA_INVALID);
        for (int k = 0; k < 4 && cases[i].expected[k]; k++)
            if (!strstr(error.message, cases[i].expected[k]))
                fail_msg("%s\n  should give\n%s\n  but gave\n%s", text, cases[i].expected[k], error.message);
        if (count_errors(error.message) != cases[i].errors)
            fail_msg("%s\n  should give %d errors, but gave\n%s", text, cases[i].errors, error.message);
    }
}

static void texts_without_programs_are_refused(void **state)
{
    static const struct {
        const char *text;
        int length; /* 0: strlen */
        const char *expected;
    } cases[] = {
        {"", 0, "1:1: error: the text holds no program"},
        {"# nothing\n\n", 0, "1:1: error: the text holds no program"},
        {"hello", 0, "1:1: error: expected `program` or `block`, found `hello`"},
        {"program", 0, "1:8: error: expected the name of the program, but the text ends here"},
        {"program p", 0, "1:10: error: expected `{`, but the text ends here"},
        {"program p {\nin A : f32[M]\nout B : f32[M] = A\n", 0, "1:11: error: the `{` of `p` is never closed"},
        {"block q {\nin A : f32[M]\nprogram p {\nin A : f32[M]\nout B : f32[M] = A\n}", 0,
         "1:9: error: the `{` of `q`"},
        {"program p { in A : f32[M]; out B : f32[M] = A }\n}", 0,
         "2:1: error: expected `program` or `block`, found `}`"},
        {"block p { in A : f32[M]; out B : f32[M] = A }\nblock p { in A : f32[M]; out B : f32[M] = A }", 0,
         "2:7: error: there are two programs or blocks named `p`"},
        {"program p {\n  in \0 A", 20, "2:6: error: the text has a NUL byte"},
        {"program p {\n\xFF", 13, "2:1: error: byte 0xFF is not UTF-8"},
        {"# \xC0\x80", 4, "1:3: error: byte 0xC0 is not UTF-8"},
        {"# \xED\xA0\x80", 5, "1:3: error: byte 0xED is not UTF-8"},
        {"# \xE2\x82", 4, "1:3: error: byte 0xE2 is not UTF-8"},
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        coda_error error;
        struct unit unit;
        size_t length = cases[i].length ? (size_t)cases[i].length : strlen(cases[i].text);
        assert_int_equal(parse(cases[i].text, length, NULL, &unit, &error), CODA_INVALID);
        if (!strstr(error.message, cases[i].expected) || strncmp(error.message, "<text>:", 7) != 0)
            fail_msg("%s\n  should give\n%s\n  but gave\n%s", cases[i].text, cases[i].expected, error.message);
        assert_int_equal(parse(cases[i].text, length, NULL, &unit, NULL), CODA_INVALID);
    }
}

static void a_diagnostic_shows_the_line_and_marks_the_place(void **state)
{
    static const char text[] =
        "program p {\r\n\tin A : f32[M]  # \xC3\xA9\r\n\tout Y : f32[M] = A * foo # \xC3\xBC\r\n}\r\n";
    static const char expected[] = "dir/f.coda:3:23: error: unknown name `foo`\n"
                                   "\tout Y : f32[M] = A * foo # \xC3\xBC\n"
                                   "\t                     ^~~";
    struct unit unit;
    coda_error error;
    (void)state;
    assert_int_equal(parse(text, strlen(text), "dir/f.coda", &unit, &error), CODA_INVALID);
    assert_string_equal(error.message, expected);
}

static void errors_do_not_cascade(void **state)
{
    /* Three broken definitions, each used by everything that follows. */
    static const char text[] = "program p {\n"
                               "    in  A : bf17[M, K]\n"
                               "    in  W : bf16[N K]\n"
                               "    x = A @ W.T + (\n"
                               "    a, b = pairs(x)\n"
                               "    y = join(b, a) * x + sum(x, K)\n"
                               "    out Y : f32[M, N] = y\n"
                               "    out S : f32[M, N/128] = sum(y, N:128)\n"
                               "}\n";
    struct unit unit;
    coda_error error;
    (void)state;
    assert_int_equal(parse(text, strlen(text), "f", &unit, &error), CODA_INVALID);
    assert_non_null(strstr(error.message, "f:2:13: error: unknown type `bf17`"));
    assert_non_null(strstr(error.message, "f:3:20: error: expected `,` or `]`, found `K`"));
    assert_non_null(strstr(error.message, "f:4:20: error: expected a value, but the line ends here"));
    assert_int_equal(count_errors(error.message), 3);
}

static void a_full_message_says_how_many_errors_it_left_out(void **state)
{
    enum { STATEMENTS = 500 };
    char *text = malloc(STATEMENTS * 64 + 64);
    assert_non_null(text);
    size_t used = (size_t)sprintf(text, "program p {\n");
    struct unit unit;
    coda_error error;
    (void)state;
    for (int i = 0; i < STATEMENTS; i++)
        used += (size_t)sprintf(text + used, "    x%d = missing%d + %d\n", i, i, i);
    sprintf(text + used, "}\n");
    assert_int_equal(parse(text, strlen(text), "f", &unit, &error), CODA_INVALID);
    int shown = count_errors(error.message), hidden = 0;
    const char *last = strstr(error.message, "\n... and ");
    assert_non_null(last);
    assert_int_equal(sscanf(last, "\n... and %d more errors", &hidden), 1);
    assert_int_equal(shown + hidden, STATEMENTS);
    assert_true(strlen(error.message) < sizeof error.message);
    assert_true(shown > 10);
    free(text);
}

/* ---------------------------------------------------------------- structure */

static void newlines_end_statements_only_where_the_language_says(void **state)
{
    static const char text[] =
        "program p\n{ in A,\n B : f32[M,\n N]; in C : f32[M, N];;\n\n # comment { ; \n x = A +\n"
        "  B # more\n  y =\n  (x\n  - C)\n  out Y : f32[M, N] +=\n  y\n z = max(\nA,\nB\n); out Z : f32[M, N] "
        "= z }";
    struct unit unit;
    (void)state;
    struct graph *graph = parsed(&unit, text);
    assert_int_equal(graph->operand_count, 5);
    assert_int_equal(graph->operand[3].role, CODA_ACCUMULATE);
    assert_int_equal(graph->node[graph->operand[3].node].op, OP_SUB);
    assert_int_equal(graph->node[graph->operand[4].node].op, OP_MAX);
    unit_free(&unit);
}

static void statements_name_their_nodes_and_aliases_do_not(void **state)
{
    struct unit unit;
    (void)state;
    struct graph *graph = parsed(&unit, "program p {\nin A : f32[M, N]\nx = A\ny = x * 2\nz = y\na, b = pairs(z)\n"
                                        "out Y : f32[M, N] = join(a, b)\n}");
    assert_null(graph->node[0].name);
    const struct node *join = &graph->node[graph->operand[1].node];
    assert_string_equal(graph->node[join->input[0]].name, "a");
    assert_string_equal(graph->node[join->input[1]].name, "b");
    assert_string_equal(graph->node[graph->node[join->input[0]].input[0]].name, "y");
    unit_free(&unit);
}

static void nodes_know_their_place_in_the_text(void **state)
{
    static const char text[] = "program p {\nin A : f32[M, N]\nout Y : f32[M, N] = exp(A) * (A + 2)\n}";
    static const struct {
        enum op op;
        const char *written;
    } cases[] = {{OP_IN, "A"}, {OP_EXP, "exp(A)"}, {OP_NUMBER, "2"}, {OP_ADD, "A + 2"}, {OP_MUL, "exp(A) * (A + 2)"}};
    struct unit unit;
    (void)state;
    struct graph *graph = parsed(&unit, text);
    assert_int_equal(graph->node_count, COUNT(cases));
    for (int i = 0; i < COUNT(cases); i++) {
        struct span span = graph->node[i].span;
        assert_int_equal(graph->node[i].op, cases[i].op);
        assert_int_equal(span.end - span.begin, strlen(cases[i].written));
        assert_memory_equal(text + span.begin, cases[i].written, strlen(cases[i].written));
    }
    assert_memory_equal(text + graph->operand[1].span.begin, "Y : ", 4);
    unit_free(&unit);
}

/* ---------------------------------------------------------------- expressions over a graph */

static void adjoints_of_every_primitive_parse(void **state)
{
    static const char *const texts[][3] = {
#define PRIMITIVE(op, name, arity, meaning, cuda, da, db, dc, cost) {da, db, dc},
#include "ir/primitives.def"
#undef PRIMITIVE
    };
    static const char *const names[] = {"a", "b", "c", "y", "d"};
    struct unit unit;
    (void)state;
    struct graph *graph = parsed(&unit, "program p {\nin A, B : f32[M, d]\nout Y : f32[M, d] = A * B\n}");
    const int nodes[] = {0, 1, 0, 2, 1};
    for (int i = 0; i < COUNT(texts); i++)
        for (int k = 0; k < 3; k++) {
            struct complaint why;
            int node = texts[i][k][0] ? parse_expression(graph, texts[i][k], names, nodes, 5, &why) : 0;
            if (node < 0)
                fail_msg("%s: %s", texts[i][k], why.reason);
        }
    unit_free(&unit);
}

static void expressions_that_are_wrong_say_why(void **state)
{
    static const struct {
        const char *text, *reason;
    } cases[] = {
        {"a + e", "unknown name `e`"},  {"a + ", "expected a value, but the text ends here"},
        {"a b", "expected the end"},    {"foo(a)", "unknown function `foo`"},
        {"", "expected a value"},       {"a @ a", "inner axes"},
        {"exp(a, a)", "`exp` takes 1"}, {"sum(a, d:8)", NULL},
    };
    static const char *const names[] = {"a"};
    const int nodes[] = {0};
    struct unit unit;
    (void)state;
    struct graph *graph = parsed(&unit, "program p {\nin A : f32[M, d]\nout Y : f32[M, d] = A\n}");
    for (int i = 0; i < COUNT(cases); i++) {
        struct complaint why;
        int node = parse_expression(graph, cases[i].text, names, nodes, 1, &why);
        assert_int_equal(node >= 0, cases[i].reason == NULL);
        assert_int_equal(why.status, cases[i].reason ? CODA_INVALID : CODA_OK);
        if (cases[i].reason && !strstr(why.reason, cases[i].reason))
            fail_msg("%s: %s", cases[i].text, why.reason);
    }
    unit_free(&unit);
}

/* ---------------------------------------------------------------- limits */

static void long_names_are_refused(void **state)
{
    (void)state;
    for (int length = 199; length <= 202; length++) {
        char name[256], text[1024];
        struct unit unit = {0};
        coda_error error;
        memset(name, 'n', (size_t)length);
        name[length] = '\0';
        snprintf(text, sizeof text, "program p {\nin %s : f32[M]\nout Y : f32[M] = %s\n}", name, name);
        coda_status status = parse(text, strlen(text), "f", &unit, &error);
        assert_int_equal(status == CODA_OK, length <= 200);
        if (status != CODA_OK)
            assert_non_null(strstr(error.message, "but a name has at most 200"));
        unit_free(&unit);
    }
}

static void hostile_sizes_are_refused(void **state)
{
    static const struct {
        const char *before, *repeated, *after;
        int count;
        const char *expected;
    } cases[] = {
        {"program p {\nin A : f32[M]\n", "x = A + A + A + A\n", "", 5 << 20 >> 4, "the text has "},
        {"program p {\nin A : f32[M]\nx = ", "A + ", "A\ny = x + x\nz = x + x\n}", 70000, "more than 65536 operations"},
        {"", "block p { in A : f32[M]; out B : f32[M] = A; in C : f32[M] }\n", "", 1025,
         "two programs or blocks named `p`"},
        {"program p { in A : f32[M]; out B : f32[M] = ", "(", "", 100000, "nested more than 200 deep"},
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        size_t unit_size = strlen(cases[i].repeated), used = strlen(cases[i].before);
        char *text = malloc(used + (size_t)cases[i].count * unit_size + strlen(cases[i].after) + 1);
        struct unit unit;
        coda_error error;
        assert_non_null(text);
        memcpy(text, cases[i].before, used);
        for (int k = 0; k < cases[i].count; k++, used += unit_size)
            memcpy(text + used, cases[i].repeated, unit_size);
        memcpy(text + used, cases[i].after, strlen(cases[i].after) + 1);
        assert_int_equal(parse(text, strlen(text), "f", &unit, &error), CODA_INVALID);
        if (!strstr(error.message, cases[i].expected))
            fail_msg("case %d should give %s, but gave\n%s", i, cases[i].expected, error.message);
        if (i == 1)
            assert_int_equal(count_errors(error.message), 1);
        free(text);
    }
}

/* Each row: with `beside`, and what a person would have written with `stack`. */
static void beside_is_one_product_of_stacked_weights(void **state)
{
#define HEADS  "axis N = Q + 2*E; in A : f32[M, D]; in r : f32[M]; in Wq : f32[Q, D]; in Wk, Wv : f32[E, D]\n"
#define TURNED "axis T = Q + E\n"
#define ANGLES "in table : f32[P, H]; in pos : i32[M]\n"
#define ALL    "A @ stack(Wq, Wk, Wv).T"
    static const char *const rows[][2] = {
        {HEADS "out Y : f32[M, N] = beside(A @ Wq.T, A @ Wk.T, A @ Wv.T) * r",
         HEADS "out Y : f32[M, N] = (" ALL ") * r"},
        {HEADS "q = A @ Wq.T\n k = A @ Wk.T\n v = A @ Wv.T\n out Y : f32[M, N] = beside(tanh(q) * r, tanh(k) * r, "
               "tanh(v) * r)",
         HEADS "out Y : f32[M, N] = tanh(" ALL ") * r"},
        {HEADS "out Y : f32[M, N] = beside(2 * (A @ Wq.T) * r, 2 * (A @ Wk.T) * r, 2 * (A @ Wv.T) * r)",
         HEADS "out Y : f32[M, N] = 2 * (" ALL ") * r"},
        {HEADS "out Y : f32[M, N] = beside(A @ Wq.T, A @ stack(Wk, Wv).T) * r",
         HEADS "out Y : f32[M, N] = (" ALL ") * r"},
        {HEADS TURNED ANGLES
         "out Y : f32[M, N] = beside(rope(A @ Wq.T, table, pos), rope(A @ Wk.T, table, pos), A @ Wv.T) * r",
         HEADS TURNED ANGLES "out Y : f32[M, N] = rope(" ALL ", table, pos, cols = T) * r"},
        {HEADS ANGLES "out Y : f32[M, N] = beside(rope((A @ Wq.T) * r, table, pos), (A @ Wk.T) * r, (A @ Wv.T) * r)",
         HEADS ANGLES "out Y : f32[M, N] = rope((" ALL ") * r, table, pos, cols = Q)"},
        {HEADS ANGLES
         "out Y : f32[M, N] = r * beside(rope_pairs(A @ Wq.T, table, pos), rope_pairs(A @ Wk.T, table, pos), "
         "rope_pairs(A @ Wv.T, table, pos))",
         HEADS ANGLES "out Y : f32[M, N] = r * rope_pairs(" ALL ", table, pos)"},
        {HEADS "s = silu(A @ Wq.T)\n out Y : f32[M, N] = beside(cast(s, bf16), cast(silu(A @ Wk.T), bf16), "
               "cast(silu(A @ Wv.T), bf16)) * r",
         HEADS "out Y : f32[M, N] = cast(silu(" ALL "), bf16) * r"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct unit unit[2];
        for (int k = 0; k < 2; k++) {
            char text[1024];
            coda_error error = {0};
            snprintf(text, sizeof text, "block b {\n%s\n}\n", rows[i][k]);
            if (parse(text, strlen(text), "beside", &unit[k], &error) != CODA_OK)
                fail_msg("%s", error.message);
        }
        char *first = print_graph(unit[0].graph[0]), *second = print_graph(unit[1].graph[0]);
        if (!graph_equal(unit[0].graph[0], unit[1].graph[0]))
            fail_msg("row %zu gives\n%sinstead of\n%s", i, first, second);
        free(first);
        free(second);
        unit_free(&unit[0]);
        unit_free(&unit[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mistake_is_reported_at_its_place),
        cmocka_unit_test(texts_without_programs_are_refused),
        cmocka_unit_test(a_diagnostic_shows_the_line_and_marks_the_place),
        cmocka_unit_test(errors_do_not_cascade),
        cmocka_unit_test(a_full_message_says_how_many_errors_it_left_out),
        cmocka_unit_test(newlines_end_statements_only_where_the_language_says),
        cmocka_unit_test(statements_name_their_nodes_and_aliases_do_not),
        cmocka_unit_test(nodes_know_their_place_in_the_text),
        cmocka_unit_test(adjoints_of_every_primitive_parse),
        cmocka_unit_test(expressions_that_are_wrong_say_why),
        cmocka_unit_test(long_names_are_refused),
        cmocka_unit_test(hostile_sizes_are_refused),
        cmocka_unit_test(beside_is_one_product_of_stacked_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
