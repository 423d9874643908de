#include "random_block.h"
#include "random.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { MAX_VALUES = 40 };

/* A block as text: matrices [M, D] and [M, F], products between them, norms, residuals, activations. */
struct block_text {
    struct random random;
    char text[RANDOM_BLOCK_TEXT];
    int length;
    struct {
        char name[16];
        char axis;
        bool used;
    } value[MAX_VALUES];
    int count, weights, products;
    bool rich;
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

/* silu(x @ W.T) * (x @ V.T), or the sum of two products. */
static void say_two_products(struct block_text *t, bool gate)
{
    char from = random_below(&t->random, 2) ? 'D' : 'F', to = from == 'D' ? 'F' : 'D';
    int x = pick_value(t, from), y = gate ? x : pick_value(t, from), w = t->weights++;
    if (x < 0)
        return;
    t->products += 2;
    say(t, "    in W%d, V%d : f32[%c, %c]\n", w, w, to, from);
    if (gate)
        say(t, "    g%d = %s @ W%d.T\n    u%d = %s @ V%d.T\n    %s = silu(g%d) * u%d\n", w, t->value[x].name, w, w,
            t->value[y].name, w, new_value(t, to), w, w);
    else
        say(t, "    %s = %s @ W%d.T + %s @ V%d.T\n", new_value(t, to), t->value[x].name, w, t->value[y].name, w);
}

/* What models do between their products, beside norms: scales of columns, soft caps, norms of heads, softmax, masks. */
static void say_other(struct block_text *t)
{
    char axis = random_below(&t->random, 2) ? 'D' : 'F';
    int x = pick_value(t, axis), y = pick_value(t, axis), w = t->weights++;
    if (x < 0)
        return;
    const char *made = new_value(t, axis), *p = t->value[x].name, *q = t->value[y].name;
    switch (random_below(&t->random, 6)) {
    case 0:
        say(t, "    in s%d : f32[%c]\n    %s = %s + s%d * %s\n", w, axis, made, p, w, q);
        break;
    case 1:
        say(t, "    %s = 2 * tanh(%s / 2) + %s\n", made, p, q);
        break;
    case 2:
        say(t, "    %s = %s * rsqrt(mean(%s * %s, %c:3) + eps) + %s\n", made, p, p, p, axis, q);
        break;
    case 3:
        say(t, "    %s = softmax(%s) + %s\n", made, p, q);
        break;
    case 4:
        say(t, "    %s = relu(%s) * relu(%s) + %s\n", made, p, p, q);
        break;
    default:
        say(t, "    %s = where(index(%c) < 4, %s, sigmoid(%s))\n", made, axis, p, q);
    }
}

static void say_rich(struct block_text *t)
{
    int kind = (int)random_below(&t->random, 4);
    if (kind < 2)
        say_two_products(t, kind == 0);
    else
        say_other(t);
}

static void make(struct block_text *t, char text[RANDOM_BLOCK_TEXT])
{
    say(t, "block random {\n    in x : f32[M, D]\n    param eps = 1e-3\n");
    new_value(t, 'D');
    snprintf(t->value[0].name, sizeof t->value[0].name, "x");
    int products = 1 + (int)random_below(&t->random, 6);
    for (int step = 0; step < 60 && t->count < MAX_VALUES - 2 && t->products < products && t->weights < 24; step++) {
        if (t->rich && random_below(&t->random, 2)) {
            say_rich(t);
            continue;
        }
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
    memcpy(text, t->text, sizeof t->text);
}

void random_block(char text[RANDOM_BLOCK_TEXT], uint64_t seed)
{
    static struct block_text t;
    t = (struct block_text){.random.state = seed};
    make(&t, text);
}

void rich_random_block(char text[RANDOM_BLOCK_TEXT], uint64_t seed)
{
    static struct block_text t;
    t = (struct block_text){.random.state = seed, .rich = true};
    make(&t, text);
}
