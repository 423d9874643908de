/* Texts that nobody means well with: check, grad and rewrite end in programs that parse, or in a message. */
#include "rewrite/rewrite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { STATEMENTS = 10000, ROOM = 1 << 22 };

/* A text that grows; `repeat` counts from 0. */
struct text {
    char *data;
    size_t length;
};

static struct text open_text(void)
{
    struct text text = {malloc(ROOM), 0};
    assert_non_null(text.data);
    return text;
}

static void say(struct text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text->data + text->length, ROOM - text->length, format, arguments);
    va_end(arguments);
    assert_true(length >= 0 && text->length + (size_t)length < ROOM);
    text->length += (size_t)length;
}

static void repeat(struct text *text, int count, const char *what)
{
    for (int i = 0; i < count; i++)
        say(text, "%s", what);
}

/* The derived programs, as one text, parse. */
static void check_derived(const char *name, const struct unit *unit)
{
    struct text text = open_text();
    struct unit again = {0};
    coda_error error = {0};
    assert_true(unit->count > 0);
    for (int i = 0; i < unit->count; i++) {
        char *program = print_graph(unit->graph[i]);
        assert_non_null(program);
        say(&text, "%s\n", program);
        free(program);
    }
    if (parse(text.data, text.length, "derived", &again, &error) != CODA_OK)
        fail_msg("%s: a derived program is refused: %s", name, error.message);
    assert_int_equal(again.count, unit->count);
    unit_free(&again);
    free(text.data);
}

/* Runs everything that takes the text. says: what some message holds; NULL: anything. */
static void try_text(const char *name, const struct text *text, const char *says)
{
    struct unit unit = {0};
    coda_error error = {0};
    bool said = false;
    if (parse(text->data, text->length, name, &unit, &error) != CODA_OK) {
        assert_int_equal(unit.count, 0);
        said = says != NULL && strstr(error.message, says) != NULL;
        assert_true(error.message[0] != '\0' && strlen(error.message) < sizeof error.message);
    }
    for (int g = 0; g < unit.count; g++)
        for (int backward = 0; backward < 2; backward++) {
            struct unit made = {0};
            coda_rewrite_options options = {.backward = backward, .allow_passes = 1};
            const struct graph *graph = unit.graph[g];
            coda_status status;
            if (!graph->is_block && !backward)
                continue;
            error.message[0] = '\0';
            status = graph->is_block ? rewrite_block(graph, &options, &made, NULL, &error)
                                     : differentiate(graph, NULL, NULL, &made, &error);
            if (status == CODA_OK)
                check_derived(name, &made);
            else if (error.message[0] == '\0' || made.count != 0)
                fail_msg("%s: %s without a message", name, coda_status_name(status));
            said = said || (status != CODA_OK && says != NULL && strstr(error.message, says) != NULL);
            unit_free(&made);
        }
    unit_free(&unit);
    if (says != NULL && !said)
        fail_msg("%s: no message says \"%s\"; the last is: %s", name, says, error.message);
}

/* ---- long texts */

/* $ is the number of the statement, @ that of the one before. */
static const struct {
    const char *name, *head, *first, *step, *out;
    int count;
    const char *says;
} chains[] = {
#define PROGRAM "program t {\nin x : f32[M, N]\n"
#define BLOCK   "block t {\nin x : f32[M, N]\n"
#define FIRST   "v0 = x * 2\n"
#define LATE    "v0 = x * rsqrt(sum(x * x, N) + 1)\n"
#define OUT     "out y : f32[M, N] = v@\n}\n"
#define PRODUCT "out y : f32[M, K] = v@ @ W.T\n}\n"
    {"tanh", PROGRAM, FIRST, "v$ = tanh(v@) * x\n", OUT, STATEMENTS, NULL},
    {"relu", PROGRAM, FIRST, "v$ = relu(v@) + where(x > 0, x, 0)\n", OUT, STATEMENTS, NULL},
    {"sum", PROGRAM, FIRST, "v$ = v@ + 2 * x\n", OUT, STATEMENTS, NULL},
    {"runs", PROGRAM, FIRST, "v$ = v@ * sum(x * x, N:128)\n", OUT, STATEMENTS, NULL},
    {"numbers", PROGRAM, FIRST, "v$ = 2 * tanh(v@) + x / N + 3 * M\n", OUT, 6000, "more than a text may hold"},
    {"extremes", PROGRAM, FIRST, "v$ = max(v@, x) * min(v@, x)\n", OUT, 5000, "more than 65536 operations"},
    {"pairs", PROGRAM, FIRST, "a$, b$ = pairs(v@)\nv$ = join(b$, a$ * b$)\n", OUT, 2000, NULL},
    {"logsumexp", PROGRAM, FIRST, "v$ = exp(v@ - logsumexp(v@, N:64))\n", OUT, 2000, NULL},
    {"squares", BLOCK "in W : f32[K, N]\n", LATE, "v$ = v@ * v@\n", PRODUCT, 60, NULL},
    {"doubles", BLOCK "in W : f32[K, N]\n", LATE, "v$ = v@ + v@\n", PRODUCT, 60, NULL},
    {"binomials", BLOCK "in W : f32[K, N]\n", LATE, "v$ = (v@ + x) * (v@ - x)\n", PRODUCT, 60, NULL},
    {"fractions", BLOCK "in W : f32[K, N]\n", LATE, "v$ = x / v@ + v@\n", PRODUCT, 1000, NULL},
    {"norms", BLOCK "in g : f32[N]\n", FIRST, "v$ = rmsnorm(v@, g, 0.1)\n", OUT, 3000, "reductions over whole rows"},
    {"products", BLOCK "in W : f32[N, F]\n", FIRST, "v$ = tanh((v@ @ W) @ W.T)\n", OUT, 1500,
     "programs, but a text holds"},
    {"sums of sums", BLOCK, FIRST, "v$ = x * sum(v@ * v@, N)\n", OUT, 2000, "at most 512"},
};

static void say_step(struct text *text, const char *step, int number)
{
    for (const char *p = step; *p; p++) {
        if (*p == '$')
            say(text, "%d", number);
        else if (*p == '@' && p[1] != ' ') /* `v@ @ W`: a product has spaces around it */
            say(text, "%d", number - 1);
        else if (*p == '@' && p > step && p[-1] != ' ')
            say(text, "%d", number - 1);
        else
            say(text, "%c", *p);
    }
}

static void long_texts_end_in_programs_or_a_message(void **state)
{
    (void)state;
    bool quick = getenv("CODA_TEST_QUICK") != NULL; /* under a sanitizer */
    for (size_t i = 0; i < sizeof chains / sizeof *chains; i++) {
        struct text text = open_text();
        int count = quick && chains[i].count > 1000 ? 1000 : chains[i].count;
        say(&text, "%s%s", chains[i].head, chains[i].first);
        for (int n = 1; n < count; n++)
            say_step(&text, chains[i].step, n);
        say_step(&text, chains[i].out, count);
        try_text(chains[i].name, &text, count < chains[i].count ? NULL : chains[i].says);
        free(text.data);
    }
}

/* ---- nesting, names, cycles, counts */

static void deep_nesting_ends_in_a_message(void **state)
{
    static const struct {
        const char *open, *close;
        int depth;
        const char *says;
    } rows[] = {{"(", ")", 100000, "nested more than 200 deep"},
                {"-", "", 100000, "nested more than 200 deep"},
                {"tanh(", ")", 100000, "nested more than 200 deep"},
                {"tanh(", ")", 150, NULL},
                {"x * (", ")", 150, NULL},
                {"x + ", "", 20000, NULL},
                {"tanh(x) * ", "", 5000, NULL},
                {"where(x > ", ", x, 0)", 100000, "nested more than 200 deep"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct text text = open_text();
        say(&text, PROGRAM "out y : f32[M, N] = ");
        repeat(&text, rows[i].depth, rows[i].open);
        say(&text, "x");
        repeat(&text, rows[i].depth, rows[i].close);
        say(&text, "\n}\n");
        try_text(rows[i].open, &text, rows[i].says);
        free(text.data);
    }
}

static void long_names_are_refused_or_kept(void **state)
{
    static const char *const rows[] = {
        "program t {\nin $ : f32[M, N]\nout y : f32[M, N] = $ * 2\n}\n",
        "program t {\nin x : f32[M, $]\nout y : f32[M, $] = tanh(x)\n}\n",
        "program $ {\nin x : f32[M, N]\nout y : f32[M, N] = tanh(x)\n}\n",
        "block $ {\nin x : f32[M, N]\nin W : f32[K, N]\nout y : f32[M, K] = tanh(x @ W.T)\n}\n",
        "block t {\nin x : f32[M, N]\nin W : f32[K, N]\n$ = x @ W.T\nout y : f32[M, K] = tanh($)\n}\n",
        "block t {\nin x : f32[M, N]\nin W : f32[K, N]\nout $ : f32[M, K] = x @ W.T\n}\n",
        "program t {\nin x : f32[M, N]\nparam $ = 2\nout y : f32[M, N] = tanh(x * $)\n}\n",
    };
    static char name[10241];
    (void)state;
    for (int length = 200; length <= 10240; length += 10040)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            struct text text = open_text();
            memset(name, 'n', (size_t)length);
            name[length] = '\0';
            for (const char *p = rows[i]; *p; p++)
                *p == '$' ? say(&text, "%s", name) : say(&text, "%c", *p);
            try_text(rows[i], &text, length > 200 ? "10240 bytes, but a name has at most 200" : NULL);
            free(text.data);
        }
}

static void cycles_are_refused(void **state)
{
    static const char *const rows[][2] = {
        {BLOCK "a = b + x\nb = a * x\nout y : f32[M, N] = a\n}\n", "defined only later, in line 4"},
        {BLOCK "a = a + x\nout y : f32[M, N] = a\n}\n", "`a` is used in its own definition"},
        {BLOCK "a, b = pairs(join(b, a) + x)\nout y : f32[M, N] = join(a, b)\n}\n",
         "`b` is used in its own definition"},
        {PROGRAM "out y : f32[M, N] = y + x\n}\n", "`y` is an out, which cannot be read back"},
        {"block t {\naxis N = K + M\naxis M = N\nin x : f32[M, N]\nout y : f32[M, N] = x * 2\n}\n", "M"},
        {"block t {\naxis N = 2*N\nin x : f32[M, N]\nout y : f32[M, N] = x * 2\n}\n", "N"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct text text = open_text();
        say(&text, "%s", rows[i][0]);
        try_text(rows[i][0], &text, rows[i][1]);
        free(text.data);
    }
}

/* A block of 30 layers has more operands with its gradients than one program takes; its programs do not. */
static void a_deep_block_has_more_operands_than_a_program(void **state)
{
    struct text text = open_text();
    struct unit unit = {0}, made = {0};
    coda_rewrite_options options = {.backward = 1};
    coda_error error = {0};
    (void)state;
    say(&text, BLOCK);
    for (int i = 0; i < 30; i++)
        say(&text, "in W%d, V%d : f32[N, K]\n", i, i);
    say(&text, FIRST);
    for (int i = 0; i < 30; i++)
        say(&text, "v%d = tanh((v%d @ W%d) @ V%d.T)\n", i + 1, i, i, i);
    say(&text, "out y : f32[M, N] = v30\n}\n");
    assert_int_equal(parse(text.data, text.length, "deep", &unit, &error), CODA_OK);
    if (rewrite_block(unit.graph[0], &options, &made, NULL, &error) != CODA_OK)
        fail_msg("%s", error.message);
    check_derived("deep", &made);
    for (int i = 0; i < made.count; i++)
        assert_true(made.graph[i]->operand_count < 8);
    unit_free(&made);
    unit_free(&unit);
    free(text.data);
}

/* 40 vectors and their gradients meet in one pass. */
static void a_derived_program_with_too_many_operands_is_refused(void **state)
{
    struct text text = open_text();
    (void)state;
    say(&text, BLOCK "v0 = x * 2\n");
    for (int i = 1; i <= 40; i++)
        say(&text, "in g%d : f32[N]\nv%d = tanh(v%d * g%d)\n", i, i, i - 1, i);
    say(&text, "out y : f32[M, N] = v40\n}\n");
    try_text("vectors", &text, "would read and write more than 64 values");
    free(text.data);
}

static void counts_beyond_a_limit_are_refused(void **state)
{
    static const struct {
        const char *each;
        int count;
        const char *says;
    } rows[] = {
        {"in a$ : f32[M, N]\nout b$ : f32[M, N] = a$ * 2\n", 40, "one operand too many"},
        {"in a$ : f32[M, A$]\nout b$ : f32[M, A$] = a$ * 2\n", 40, "one axis too many"},
        {"param a$ = 2\nout b$ : f32[M, N] = x * a$\n", 70, "too many"},
        {"out b$ : f32[M, N] = x * $\n", 62, NULL}, /* 64 operands, and so has the backward */
        {"out b$ : f32[M, N] = x * $\n", 63, "one operand too many"},
        {"b$ = tanh(x * $)\nout c$ : f32[M, N] = b$ * b$\n", 50, NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct text text = open_text();
        say(&text, PROGRAM);
        for (int n = 0; n < rows[i].count; n++)
            say_step(&text, rows[i].each, n);
        say(&text, "out y : f32[M, N] = x\n}\n");
        try_text(rows[i].each, &text, rows[i].says);
        free(text.data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_texts_end_in_programs_or_a_message),
        cmocka_unit_test(deep_nesting_ends_in_a_message),
        cmocka_unit_test(long_names_are_refused_or_kept),
        cmocka_unit_test(cycles_are_refused),
        cmocka_unit_test(a_deep_block_has_more_operands_than_a_program),
        cmocka_unit_test(a_derived_program_with_too_many_operands_is_refused),
        cmocka_unit_test(counts_beyond_a_limit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
