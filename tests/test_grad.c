/* Derived backward programs against central differences in double. */
#include "rewrite/rewrite.h"
#include "kit/chain.h"
#include "kit/generate.h"
#include "kit/random.h"
#include "kit/texts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { SAMPLES = 4, RANDOM_PROGRAMS = 1000 };
static const double STEP = 0x1p-8;

struct check {
    struct graph *forward; /* all f32 */
    struct unit backward;
    struct graph *joined, *alone; /* forward and backward; forward only */
    struct chain chain, probe;
    int compared, skipped, kinks;
    char message[6000];
};

static bool complain(struct check *c, const char *what, const char *detail)
{
    snprintf(c->message, sizeof c->message, "%s: %.5000s", what, detail);
    return false;
}

static void close_check(struct check *c)
{
    chain_close(&c->chain);
    chain_close(&c->probe);
    graph_free(c->forward);
    graph_free(c->joined);
    graph_free(c->alone);
    unit_free(&c->backward);
}

/* ---- gradients by differences */

static int operand(const struct graph *graph, const char *name)
{
    return graph_find_operand(graph, name);
}

/* sum over outs of <out, its gradient>: the function whose gradient the backward computes. */
static bool loss(struct check *c, double *value)
{
    *value = 0;
    if (!chain_run(&c->probe, c->message, sizeof c->message))
        return false;
    for (int o = 0; o < c->alone->operand_count; o++) {
        char name[256];
        if (c->alone->operand[o].role == CODA_IN)
            continue;
        for (int i = 1; i < 6; i++) { /* the first free name */
            snprintf(name, sizeof name, i == 1 ? "d%s" : "d%s_%d", c->alone->operand[o].name, i);
            if (operand(c->alone, name) < 0)
                break;
        }
        int d = operand(c->joined, name);
        for (int64_t k = 0; d >= 0 && c->joined->operand[d].role == CODA_IN && k < c->probe.operand[o].count; k++)
            *value += c->probe.operand[o].value[k] * c->chain.operand[d].value[k];
    }
    return true;
}

/* Five points: exact up to the fourth power. */
static bool difference(struct check *c, double *x, double step, double *slope)
{
    double at = *x, f[4];
    const double place[4] = {-2, -1, 1, 2};
    for (int i = 0; i < 4; i++) {
        *x = at + place[i] * step;
        if (!loss(c, &f[i]))
            return false;
    }
    *x = at;
    *slope = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * step);
    return true;
}

/* What the derived out says about element k of the operand: runs are added up, a value without an axis holds for all of
 * it, a stack is addressed by rows. */
static double derived(const struct check *c, int in, int64_t k, int gradient, int64_t first_row)
{
    const struct operand *x = &c->joined->operand[in], *g = &c->joined->operand[gradient];
    const struct chain_operand *xs = &c->chain.operand[in], *gs = &c->chain.operand[gradient];
    int64_t row = k / xs->columns, column = k % xs->columns;
    double total = 0;
    for (int64_t i = 0; i < gs->rows; i++)
        for (int64_t j = 0; j < gs->columns; j++) {
            int64_t index[2] = {i, j};
            bool mine = true;
            for (int d = 0; d < g->shape.rank; d++)
                for (int e = 0; e < x->shape.rank; e++) {
                    const struct dim *p = &g->shape.dim[d], *q = &x->shape.dim[e];
                    int64_t place = x->shape.rank == 2 && e == 0 ? row : column;
                    int64_t at = g->shape.rank == 2 ? index[d] : j;
                    if (first_row >= 0 && e == 0 && d == 0)
                        mine = mine && at == first_row + place;
                    else if (p->axis == q->axis)
                        mine = mine && (p->form == q->form ? at == place : at == (place < gs->columns ? place : place));
                }
            total += mine ? gs->value[i * gs->columns + j] : 0;
        }
    return total;
}

/* The out that holds the gradient of `in`; *first_row >= 0 where it is part of a stack. */
static int gradient_of(const struct check *c, int in, int64_t *first_row)
{
    const char *name = c->joined->operand[in].name;
    char wanted[256];
    *first_row = -1;
    for (int i = 1; i < 6; i++) {
        snprintf(wanted, sizeof wanted, i == 1 ? "d%s" : "d%s_%d", name, i);
        int o = operand(c->joined, wanted);
        if (o >= 0 && c->joined->operand[o].role != CODA_IN && operand(c->forward, wanted) < 0)
            return o;
    }
    for (int n = 0; n < c->joined->node_count; n++) {
        const struct node *stack = &c->joined->node[n];
        int64_t rows = 0;
        int length = snprintf(wanted, sizeof wanted, "d");
        int64_t mine = -1;
        for (int k = 0; stack->op == OP_STACK && k < stack->input_count; k++) {
            const struct operand *part = &c->joined->operand[c->joined->node[stack->input[k]].index];
            length += snprintf(wanted + length, sizeof wanted - (size_t)length, "%s%s", k ? "_" : "", part->name);
            if (stack->input[k] == c->joined->operand[in].node)
                mine = rows;
            rows += dim_size(&part->shape.dim[0], c->chain.size);
        }
        if (mine >= 0 && operand(c->joined, wanted) >= 0) {
            *first_row = mine;
            return operand(c->joined, wanted);
        }
    }
    return -1;
}

/* repeat(g, N) and gather(E, t): their gradients keep the shape of the result; added up here. */
static double folded(const struct check *c, int in, int64_t k, int gradient)
{
    const struct chain_operand *xs = &c->chain.operand[in], *gs = &c->chain.operand[gradient];
    double total = 0;
    int node = c->joined->operand[in].node;
    for (int n = 0; n < c->joined->node_count; n++) {
        const struct node *reader = &c->joined->node[n];
        if (reader->input_count == 0 || reader->input[0] != node)
            continue;
        if (reader->op == OP_REPEAT) {
            for (int64_t i = 0; i < gs->rows; i++)
                for (int64_t j = 0; j < gs->columns; j++)
                    total += j % xs->count == k ? gs->value[i * gs->columns + j] : 0;
            return total;
        }
        if (reader->op == OP_GATHER) {
            int ids = c->joined->node[reader->input[1]].index;
            for (int64_t i = 0; i < gs->rows; i++)
                if ((int64_t)c->chain.operand[ids].value[i] == k / xs->columns)
                    total += gs->value[i * gs->columns + k % xs->columns];
            return total;
        }
    }
    return NAN;
}

static bool compare_element(struct check *c, int in, int64_t k, int gradient, int64_t first_row)
{
    int probe = operand(c->alone, c->joined->operand[in].name);
    double *x = &c->probe.operand[probe].value[k], coarse, fine;
    double found = 0; /* no out: no dependence */
    if (gradient >= 0)
        found = folded(c, in, k, gradient);
    if (isnan(found))
        found = derived(c, in, k, gradient, first_row);
    if (!difference(c, x, STEP, &coarse) || !difference(c, x, STEP / 2, &fine))
        return false;
    double scale = 1 + fabs(fine);
    if (!(fabs(coarse - fine) < 1e-6 * scale)) { /* a kink, or too steep for differences */
        c->kinks++;
        return true;
    }
    c->compared++;
    if (fabs(found - fine) <= 1e-5 * scale)
        return true;
    snprintf(c->message, sizeof c->message, "d%s[%lld] is %.12g; differences say %.12g", c->joined->operand[in].name,
             (long long)k, found, fine);
    return false;
}

static bool is_table(const struct check *c, int in)
{
    for (int n = 0; n < c->joined->node_count; n++)
        if (c->joined->node[n].op == OP_ROPE && c->joined->node[n].input[1] == c->joined->operand[in].node)
            return true;
    return false;
}

static bool compare_operand(struct check *c, int in, uint64_t seed)
{
    struct random random = {seed};
    int64_t first_row;
    int gradient = gradient_of(c, in, &first_row);
    if (gradient < 0 && is_table(c, in)) {
        c->skipped++;
        return true;
    }
    for (int i = 0; i < SAMPLES; i++)
        if (!compare_element(c, in, random_below(&random, c->chain.operand[in].count), gradient, first_row))
            return false;
    return true;
}

/* ---- one program */

static bool reparses(struct check *c)
{
    for (int i = 0; i < c->backward.count; i++) {
        struct unit again = {0};
        coda_error error = {0};
        char *text = print_graph(c->backward.graph[i]);
        bool good = text && parse(text, strlen(text), "derived", &again, &error) == CODA_OK;
        if (!good)
            snprintf(c->message, sizeof c->message, "derived program: %.1500s\n%.3000s", error.message,
                     text ? text : "");
        free(text);
        unit_free(&again);
        if (!good)
            return false;
    }
    return true;
}

static bool derive(struct check *c, const struct graph *program, const char *save)
{
    coda_error error = {0};
    struct complaint why = {0};
    const struct graph *part[300];
    static const coda_dtype narrow[] = {CODA_BF16, CODA_F16, CODA_E4M3, CODA_E5M2};
    c->forward = graph_copy(program);
    for (int i = 0; i < 4 && c->forward; i++) {
        struct graph *wide = graph_retype(c->forward, narrow[i], CODA_F32);
        graph_free(c->forward);
        c->forward = wide;
    }
    if (differentiate(c->forward, NULL, save, &c->backward, &error) != CODA_OK)
        return complain(c, error.status == CODA_UNSUPPORTED ? "unsupported" : "differentiate", error.message);
    if (!reparses(c))
        return false;
    int count = 0;
    part[count++] = c->forward;
    for (int i = 0; i < c->backward.count && count < 300; i++)
        if (strstr(c->backward.graph[i]->name, "_forward") == NULL)
            part[count++] = c->backward.graph[i];
        else
            part[0] = c->backward.graph[i];
    c->joined = chain_join(part, count, NULL, &why);
    c->alone = c->joined ? chain_join(part, 1, NULL, &why) : NULL;
    return (c->joined && c->alone) || complain(c, "programs do not fit together", why.reason);
}

static bool check_program(struct check *c, const struct graph *program, const coda_dims *dims, const char *save,
                          uint64_t seed)
{
    int64_t size[MAX_AXES] = {0}, own[MAX_AXES] = {0};
    if (!derive(c, program, save))
        return false;
    for (int i = 0; i < dims->count; i++) {
        int a = graph_find_axis(c->joined, dims->item[i].axis), b = graph_find_axis(c->alone, dims->item[i].axis);
        if (a >= 0)
            size[a] = dims->item[i].size;
        if (b >= 0)
            own[b] = dims->item[i].size;
    }
    if (!chain_open(&c->chain, c->joined, size, seed) || !chain_open(&c->probe, c->alone, own, seed))
        return complain(c, "sizes", "an axis has no size");
    int second_moment = operand(c->joined, "v"); /* AdamW takes its root */
    for (int64_t k = 0; second_moment >= 0 && k < c->chain.operand[second_moment].count; k++)
        c->chain.operand[second_moment].value[k] = 1 + fabs(c->chain.operand[second_moment].value[k]);
    for (int o = 0; o < c->alone->operand_count; o++) /* the same numbers in both */
        if (c->alone->operand[o].role == CODA_IN) {
            int same = operand(c->joined, c->alone->operand[o].name);
            memcpy(c->probe.operand[o].value, c->chain.operand[same].value,
                   (size_t)c->probe.operand[o].count * sizeof(double));
        }
    if (!chain_run(&c->chain, c->message, sizeof c->message))
        return false;
    for (int o = 0; o < c->joined->operand_count; o++)
        if (c->joined->operand[o].role == CODA_IN && operand(c->alone, c->joined->operand[o].name) >= 0 &&
            c->joined->operand[o].dtype != CODA_I32 && !compare_operand(c, o, seed + (uint64_t)o))
            return false;
    return true;
}

/* ---- the standard programs */

static const coda_dims standard_dims = {12,
                                        {{"M", 5},
                                         {"N", 12},
                                         {"K", 6},
                                         {"V", 7},
                                         {"Q", 8},
                                         {"E", 4},
                                         {"D", 4},
                                         {"P", 9},
                                         {"R", 3},
                                         {"T", 8},
                                         {"H", 4},
                                         {"F", 6}}};

/* Axes that another derives get no size of their own. */
static coda_dims dims_for(const struct graph *graph)
{
    coda_dims dims = {0};
    for (int i = 0; i < standard_dims.count; i++) {
        int axis = graph_find_axis(graph, standard_dims.item[i].axis);
        if (axis >= 0 && graph->axis[axis].term_count == 0)
            dims.item[dims.count++] = standard_dims.item[i];
    }
    return dims;
}

extern const char *const coda_standard_texts[][2];

/* What keeps another program's values has none (test_conditions.c). */
static bool has_gradient(const struct graph *graph)
{
    bool has = !graph->conditional;
    for (int i = 0; i < graph->operand_count; i++)
        has &= graph->operand[i].role != CODA_PATCH;
    return has;
}

static void check_standard(const char *save_outs)
{
    for (int i = 0; coda_standard_texts[i][0]; i++) {
        struct unit unit = {0};
        struct check check = {0};
        coda_error error = {0};
        const char *text = coda_standard_texts[i][1];
        if (parse(text, strlen(text), coda_standard_texts[i][0], &unit, &error) != CODA_OK)
            fail_msg("%s", error.message);
        if (!has_gradient(unit.graph[0])) {
            unit_free(&unit);
            continue;
        }
        coda_dims dims = dims_for(unit.graph[0]);
        if (!check_program(&check, unit.graph[0], &dims, save_outs, 11 + (uint64_t)i))
            fail_msg("%s: %s", coda_standard_texts[i][0], check.message);
        if (check.compared == 0)
            fail_msg("%s: nothing was compared", coda_standard_texts[i][0]);
        close_check(&check);
        unit_free(&unit);
    }
}

static void standard_programs_agree_with_central_differences(void **state)
{
    (void)state;
    check_standard(NULL);
}

/* ---- random programs */

static bool check_random(uint64_t seed, struct check *check, struct generated *program, char *text, size_t size)
{
    struct generator_options options = {.differentiable = true, .jumps = true, .row_limit = 6, .column_limit = 12};
    struct unit unit = {0};
    coda_error error = {0};
    bool fresh = program->count == 0;
    if (fresh)
        generate(program, seed, &options);
    generated_text(program, text, size);
    coda_status status = parse(text, strlen(text), "random", &unit, &error);
    if (status != CODA_OK && fresh)
        fail_msg("seed %llu: %s", (unsigned long long)seed, error.message);
    if (status != CODA_OK) /* shrunk too far */
        return true;
    bool good = check_program(check, unit.graph[0], &program->dims, NULL, seed);
    unit_free(&unit);
    return good;
}

/* Drops outs while the program still fails. */
static void shrink(uint64_t seed, struct generated *program, char *text, size_t size, char *message,
                   size_t message_size)
{
    for (int out = 0; out < GENERATED_LINES;) {
        struct generated smaller = *program;
        struct check check = {0};
        if (!generated_drop_out(&smaller, out)) {
            out++;
            continue;
        }
        if (!check_random(seed, &check, &smaller, text, size)) {
            *program = smaller;
            snprintf(message, message_size, "%s", check.message);
        } else {
            out++;
        }
        close_check(&check);
    }
    generated_text(program, text, size);
}

static void random_programs_agree_with_central_differences(void **state)
{
    static char text[GENERATED_LINES * 420], message[6000];
    int compared = 0, kinks = 0, unsupported = 0;
    const char *first = getenv("CODA_SEED");
    (void)state;
    for (uint64_t seed = first ? strtoull(first, NULL, 10) : 1, end = first ? seed + 1 : RANDOM_PROGRAMS + 1;
         seed < end; seed++) {
        struct check check = {0};
        struct generated program = {0};
        if (!check_random(seed, &check, &program, text, sizeof text)) {
            if (strncmp(check.message, "unsupported", 11) == 0 &&
                strstr(check.message, "no rule gives the gradient") != NULL) {
                unsupported++;
            } else {
                snprintf(message, sizeof message, "%s", check.message);
                shrink(seed, &program, text, sizeof text, message, sizeof message);
                fail_msg("seed %llu: %s\n%s", (unsigned long long)seed, message, text);
            }
        }
        compared += check.compared;
        kinks += check.kinks;
        close_check(&check);
    }
    print_message("%d derivatives compared, %d at kinks, %d programs without a rule\n", compared, kinks, unsupported);
    if (!first) {
        assert_true(compared > 4 * kinks);
        assert_true(unsupported < RANDOM_PROGRAMS / 10);
    }
}

/* ---- what is asked for */

static struct unit read_text(const char *text)
{
    struct unit unit = {0};
    coda_error error = {0};
    if (parse(text, strlen(text), "program", &unit, &error) != CODA_OK)
        fail_msg("%s", error.message);
    return unit;
}

static const char swiglu[] = "program swiglu { in A : f32[M, K]; in Wg, Wu : f32[N, K]\n g = A @ Wg.T\n u = A @ Wu.T\n"
                             "out G : f32[M, N] = g\n out U : f32[M, N] = u\n out Y : f32[M, N] = silu(g) * u }";
static const char hidden[] = "program hidden { in A : f32[M, K]; in W : f32[N, K]\n z = A @ W.T\n h = silu(z)\n"
                             "out Y : f32[M, N] = h * h }";
static const char rotated[] = "program rotated { in X : f32[M, N]; in table : f32[P, D]; in pos : i32[M]\n"
                              "out Y : f32[M, N] = rope(X, table, pos) }";

/* What the generator does not write. */
static const char *const particular[] = {
    "program number { in A : f32[M, K]; in W : f32[N, K]; in s : f32\n out Y : f32[M, N] = tanh(A @ W.T * s) }",
    "program twice { in A : f32[M, K]; in W : f32[N, K]\n out Y : f32[M, N] = exp(A @ W.T) * tanh(A @ W.T) }",
    "program square { in X : f32[M, N]\n out Y : f32[M, N] = X * X * X }",
    "program tied { in A : f32[M, K]; in W : f32[N, K]; in V : f32[K, N]\n out Y : f32[M, N] = (A @ W.T) * (A @ V) }",
    "program rows { in X : f32[M, N]; in r : f32[M]\n out Y : f32[M] = r * 2\n out Z : f32[M, N] = X * r }",
    "program columns { in X : f32[M, N]; in g : f32[N]\n out V : f32[N] = exp(g)\n out Z : f32[M, N] = X * g }",
    "program adds { in A : f32[M, K]; in W : f32[N, K]\n out Y : f32[M, N] = A @ W.T\n out Z : f32[M, N] += A @ W.T }",
    "program rows_of { in E : f32[V, N]; in t : i32[M]; in g : f32[N]\n out Y : f32[M, N] = gather(E, t) * g }",
    "program finishes { in X : f32[M, N]; in L : f32[M, K/128]; in S : f32[M, K/128]\n"
    "out Y : f32[M, N] = X * logsumexp(L) + max(S) }",
    "program halves_of { in X : f32[M, N]; in g : f32[N]\n c, d = pairs(broadcast(g, [M, N]))\n a, b = pairs(X)\n"
    "out Y : f32[M, N/2] = tanh(a * c + b * d) }",
    "program constant { in A : f32[M, K]; in W : f32[N, K]; in b : f32[N]\n y = A @ W.T\n"
    "out Y : f32[M, N] = where(y > b, b, y - b) }",
};

static void particular_programs_agree_with_central_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof particular / sizeof *particular; i++) {
        struct unit unit = read_text(particular[i]);
        struct check check = {0};
        coda_dims dims = dims_for(unit.graph[0]);
        if (!check_program(&check, unit.graph[0], &dims, NULL, 40 + i))
            fail_msg("%s: %s", unit.graph[0]->name, check.message);
        assert_true(check.compared > 0);
        close_check(&check);
        unit_free(&unit);
    }
}

static bool has_operand(const struct unit *unit, const char *name)
{
    for (int i = 0; i < unit->count; i++)
        if (graph_find_operand(unit->graph[i], name) >= 0)
            return true;
    return false;
}

static void wrt_chooses_the_gradients(void **state)
{
    struct unit unit = read_text(swiglu), made = {0};
    coda_error error = {0};
    (void)state;
    assert_int_equal(differentiate(unit.graph[0], " Wg ,A", NULL, &made, &error), CODA_OK);
    assert_true(has_operand(&made, "dWg") && has_operand(&made, "dA"));
    assert_false(has_operand(&made, "dWu"));
    unit_free(&made);
    unit_free(&unit);
}

static void no_gradient_arrives_on_an_out_that_is_saved(void **state)
{
    struct unit unit = read_text(swiglu), made = {0};
    struct check check = {0};
    coda_error error = {0};
    const coda_dims dims = {3, {{"M", 4}, {"N", 6}, {"K", 5}}};
    (void)state;
    assert_int_equal(differentiate(unit.graph[0], NULL, "G, U", &made, &error), CODA_OK);
    assert_true(has_operand(&made, "dY") && has_operand(&made, "G") && has_operand(&made, "U"));
    assert_false(has_operand(&made, "dU_2"));
    if (!check_program(&check, unit.graph[0], &dims, "G, U", 21))
        fail_msg("%s", check.message);
    close_check(&check);
    unit_free(&made);
    unit_free(&unit);
}

/* Neither z nor h is an out: the forward comes first, with an out for what is kept. */
static void the_forward_stores_what_the_backward_needs(void **state)
{
    static const char *const save[] = {NULL, "h, z"};
    struct unit unit = read_text(hidden);
    const coda_dims dims = {3, {{"M", 4}, {"N", 6}, {"K", 5}}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct unit made = {0};
        struct check check = {0};
        coda_error error = {0};
        assert_int_equal(differentiate(unit.graph[0], NULL, save[i], &made, &error), CODA_OK);
        assert_string_equal(made.graph[0]->name, "hidden_forward");
        assert_int_equal(graph_find_operand(made.graph[0], "Z") >= 0, 1);
        assert_int_equal(graph_find_operand(made.graph[0], "H") >= 0, i);
        if (!check_program(&check, unit.graph[0], &dims, save[i], 22))
            fail_msg("%s", check.message);
        close_check(&check);
        unit_free(&made);
    }
    unit_free(&unit);
}

static const struct {
    const char *text, *wrt, *save;
    coda_status status;
    const char *says;
} refused[] = {
    {swiglu, "B", NULL, CODA_INVALID, "`B` is no floating-point `in`"},
    {swiglu, "Y", NULL, CODA_INVALID, "`Y` is no floating-point `in`"},
    {swiglu, NULL, "q", CODA_INVALID, "`q` is no value or out"},
    {rotated, "table", NULL, CODA_UNSUPPORTED, "table of a rotation"},
    {rotated, "pos", NULL, CODA_INVALID, "`pos` is no floating-point `in`"},
    {"program h { in X : f32[M, N]; in g : f32[N/2]\n a, b = pairs(X)\n out Y : f32[M, N/2] = a * g + b }", NULL, NULL,
     CODA_UNSUPPORTED, "`g`: it is a vector of half of the columns"},
    {"program r { in X : f32[M, N]; in g : f32[N]\n out Y : f32[M, N] = X * repeat(g, N) * g }", NULL, NULL,
     CODA_UNSUPPORTED, "Declare a second `in`"},
    {"block b { in x : f32[M, N]\n out y : f32[M, N] = x * 2 }", NULL, NULL, CODA_INVALID, "is a block"},
};

static void what_has_no_gradient_says_why(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct unit unit = read_text(refused[i].text), made = {0};
        coda_error error = {0};
        assert_int_equal(differentiate(unit.graph[0], refused[i].wrt, refused[i].save, &made, &error),
                         refused[i].status);
        assert_int_equal(error.status, refused[i].status);
        assert_int_equal(made.count, 0);
        if (strstr(error.message, refused[i].says) == NULL)
            fail_msg("`%s` does not occur in: %s", refused[i].says, error.message);
        unit_free(&unit);
    }
}

static void the_same_program_gives_the_same_text(void **state)
{
    (void)state;
    for (int i = 0; coda_standard_texts[i][0]; i++) {
        struct unit unit = read_text(coda_standard_texts[i][1]), made[2] = {{0}};
        coda_error error = {0};
        for (int k = 0; k < 2 && has_gradient(unit.graph[0]); k++)
            assert_int_equal(differentiate(unit.graph[0], NULL, NULL, &made[k], &error), CODA_OK);
        assert_same_text(&made[0], &made[1]);
        unit_free(&made[0]);
        unit_free(&made[1]);
        unit_free(&unit);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(standard_programs_agree_with_central_differences),
        cmocka_unit_test(particular_programs_agree_with_central_differences),
        cmocka_unit_test(wrt_chooses_the_gradients),
        cmocka_unit_test(no_gradient_arrives_on_an_out_that_is_saved),
        cmocka_unit_test(the_forward_stores_what_the_backward_needs),
        cmocka_unit_test(what_has_no_gradient_says_why),
        cmocka_unit_test(the_same_program_gives_the_same_text),
        cmocka_unit_test(random_programs_agree_with_central_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
