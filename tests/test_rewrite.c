/* Blocks against the programs that they become, and what the compiler says where they cannot. */
#include "kit/blocks.h"
#include "kit/random.h"
#include "rewrite/rewrite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const coda_dims dims = {12,
                               {{"M", 5},
                                {"A", 8},
                                {"D", 6},
                                {"F", 7},
                                {"Q", 8},
                                {"E", 4},
                                {"H", 4},
                                {"P", 9},
                                {"V", 11},
                                {"B", 5},
                                {"N", 13},
                                {"K", 10}}};

static struct unit read_text(const char *text)
{
    struct unit unit = {0};
    coda_error error = {0};
    if (parse(text, strlen(text), "block", &unit, &error) != CODA_OK)
        fail_msg("%s", error.message);
    return unit;
}

static char *read_block(const char *name)
{
    static char text[1 << 16];
    char path[256];
    snprintf(path, sizeof path, "blocks/%s.coda", name);
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s cannot be opened: run the tests from the repository's root", path);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

/* ---- the blocks of blocks/ */

static const struct {
    const char *name;
    bool passes;                 /* it needs some between products */
    int forward, with_gradients; /* programs */
} block_files[] = {
    {"llama3", false, 4, 14}, {"llama3_head", false, 3, 8}, {"gpt2", false, 6, 17},  {"qwen3", false, 4, 14},
    {"gemma", true, 6, 18},   {"parallel", false, 3, 13},   {"relu2", false, 4, 13}, {"scaled_residual", false, 4, 14},
};

static void every_block_computes_what_it_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof block_files / sizeof *block_files; i++) {
        struct unit unit = read_text(read_block(block_files[i].name));
        struct block_check check;
        for (int backward = 0; backward < 2; backward++) {
            if (!block_agrees(unit.graph[0], &dims, backward, block_files[i].passes, 3, &check))
                fail_msg("%s: %s", block_files[i].name, check.message);
            assert_true(check.error < 1e-12);
            assert_int_equal(check.programs, backward ? block_files[i].with_gradients : block_files[i].forward);
        }
        unit_free(&unit);
    }
}

/* ---- random blocks */

enum { RANDOM_BLOCKS = 300, MAX_VALUES = 40 };

/* A block as text: matrices [M, D] and [M, F], products between them, norms, residuals, activations. */
struct block_text {
    struct random random;
    char text[16384];
    int length;
    struct {
        char name[16];
        char axis;
        bool used;
    } value[MAX_VALUES];
    int count, weights, products;
};

static void say(struct block_text *t, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    t->length += vsnprintf(t->text + t->length, sizeof t->text - (size_t)t->length, format, arguments);
    va_end(arguments);
}

static int pick_value(struct block_text *t, char axis)
{
    int found = -1, seen = 0;
    for (int i = 0; i < t->count; i++) /* the newest twice as often */
        for (int k = 0; k < 1 + (i == t->count - 1) && t->value[i].axis == axis; k++)
            if (random_below(&t->random, ++seen) == 0)
                found = i;
    if (found >= 0)
        t->value[found].used = true;
    return found;
}

static const char *new_value(struct block_text *t, char axis)
{
    int i = t->count++;
    snprintf(t->value[i].name, sizeof t->value[i].name, "v%d", i);
    t->value[i].axis = axis;
    return t->value[i].name;
}

static void say_norm(struct block_text *t, char axis)
{
    int x = pick_value(t, axis), w = t->weights++;
    if (x < 0)
        return;
    switch (random_below(&t->random, 4)) {
    case 0:
        say(t, "    in g%d, b%d : f32[%c]\n", w, w, axis);
        say(t, "    %s = layernorm(%s, g%d, b%d, eps)\n", new_value(t, axis), t->value[x].name, w, w);
        break;
    case 1:
        say(t, "    in g%d : f32[%c]\n", w, axis);
        say(t, "    %s = rmsnorm(%s, 1 + g%d, eps)\n", new_value(t, axis), t->value[x].name, w);
        break;
    case 2:
        say(t, "    %s = %s * rsqrt(mean(%s * %s, %c) + eps)\n", new_value(t, axis), t->value[x].name, t->value[x].name,
            t->value[x].name, axis);
        break;
    default:
        say(t, "    in g%d : f32[%c]\n", w, axis);
        say(t, "    %s = rmsnorm(%s, g%d, eps)\n", new_value(t, axis), t->value[x].name, w);
    }
}

static void say_product(struct block_text *t)
{
    static const char axes[] = {'D', 'F'};
    char from = axes[random_below(&t->random, 2)], to = axes[random_below(&t->random, 2)];
    int x = from == to ? -1 : pick_value(t, from), w = t->weights++;
    if (x < 0)
        return;
    t->products++;
    say(t, "    in W%d : f32[%c, %c]\n", w, to, from);
    bool bias = random_below(&t->random, 3) == 0;
    if (bias)
        say(t, "    in b%d : f32[%c]\n", w, to);
    int residual = random_below(&t->random, 2) ? pick_value(t, to) : -1;
    say(t, "    %s = %s @ W%d.T", new_value(t, to), t->value[x].name, w);
    if (bias)
        say(t, " + b%d", w);
    if (residual >= 0)
        say(t, " + %s", t->value[residual].name);
    say(t, "\n");
}

static void say_activation(struct block_text *t)
{
    static const char *const function[] = {"silu", "gelu", "gelu_tanh", "sigmoid", "tanh"};
    char axis = random_below(&t->random, 2) ? 'D' : 'F';
    int x = pick_value(t, axis), y = pick_value(t, axis);
    const char *f = function[random_below(&t->random, 5)];
    if (x < 0)
        return;
    say(t, "    %s = %s(%s)", new_value(t, axis), f, t->value[x].name);
    say(t, random_below(&t->random, 2) ? " * %s\n" : " + %s\n", t->value[y].name);
}

static void make_block(struct block_text *t, uint64_t seed)
{
    memset(t, 0, sizeof *t);
    t->random.state = seed;
    say(t, "block random {\n    in x : f32[M, D]\n    param eps = 1e-3\n");
    new_value(t, 'D');
    snprintf(t->value[0].name, sizeof t->value[0].name, "x");
    int products = 1 + (int)random_below(&t->random, 6);
    for (int step = 0; step < 60 && t->count < MAX_VALUES - 2 && t->products < products && t->weights < 11; step++) {
        switch (random_below(&t->random, 4)) {
        case 0:
            say_norm(t, random_below(&t->random, 3) ? 'D' : 'F');
            break;
        case 1:
            say_activation(t);
            break;
        default:
            say_product(t);
        }
    }
    for (int i = 0; i < t->count; i++)
        if (!t->value[i].used || i == t->count - 1)
            say(t, "    out o%d : f32[M, %c] = %s\n", i, t->value[i].axis, t->value[i].name);
    if (strstr(t->text, "eps)") == NULL && strstr(t->text, "eps))") == NULL)
        say(t, "    out unused : f32[M, D] = x * eps\n");
    say(t, "}\n");
}

static void random_blocks_compute_the_same_before_and_after(void **state)
{
    static struct block_text t;
    const char *only = getenv("CODA_SEED");
    int programs = 0;
    (void)state;
    for (uint64_t seed = only ? strtoull(only, NULL, 10) : 1, end = only ? seed + 1 : RANDOM_BLOCKS + 1; seed < end;
         seed++) {
        struct block_check check;
        make_block(&t, seed);
        struct unit unit = read_text(t.text);
        if (!block_agrees(unit.graph[0], &dims, true, true, seed, &check))
            fail_msg("seed %llu: %s\n%s", (unsigned long long)seed, check.message, t.text);
        programs += check.programs;
        unit_free(&unit);
    }
    assert_true(only || programs > 5 * RANDOM_BLOCKS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_computes_what_it_says),
        cmocka_unit_test(random_blocks_compute_the_same_before_and_after),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
