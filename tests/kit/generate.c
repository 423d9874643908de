#include "generate.h"

#include "random.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum kind { TILE, ROW, COLUMN, ROW_RUNS, PAIR_HALF, BLOCK_HALF, KINDS };

enum { MAX_VALUES = GENERATED_LINES * 2 };

struct value {
    char name[12];
    enum kind kind;
    int run;   /* ROW_RUNS: its length; BLOCK_HALF: h */
    int power; /* of the normal variables in it; large ones are clamped */
    int uses;
};

struct builder {
    struct generated *program;
    struct generator_options options;
    struct random random;
    struct value value[MAX_VALUES];
    int value_count, serial;
    int unit; /* N is a multiple of it */
    bool rope_pairs, has_heads;
    const char *type; /* of the products' operands */
    const char *ids, *table, *position;
    int ids_value, table_value, position_value; /* -1: not declared yet */
    const char *column_axis, *row_axis;
};

static int below(struct builder *b, int bound)
{
    return (int)random_below(&b->random, bound);
}

static bool chance(struct builder *b, int percent)
{
    return below(b, 100) < percent;
}

static const char *one_of(struct builder *b, const char *const *list, int count)
{
    return list[below(b, count)];
}

static bool full(const struct builder *b)
{
    return b->program->count > GENERATED_LINES - 24;
}

/* ---- lines and values */

static struct generated_line *add_line(struct builder *b, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static struct generated_line *add_line(struct builder *b, const char *format, ...)
{
    struct generated_line *line = &b->program->line[b->program->count++];
    va_list list;
    va_start(list, format);
    vsnprintf(line->text, sizeof line->text, format, list);
    va_end(list);
    line->defines[0] = line->defines[1] = -1;
    return line;
}

static int new_value(struct builder *b, const char *prefix, enum kind kind, int run, int power)
{
    struct value *value = &b->value[b->value_count];
    *value = (struct value){.kind = kind, .run = run, .power = power};
    snprintf(value->name, sizeof value->name, "%.3s%d", prefix, b->serial++);
    b->program->name_count = b->value_count + 1;
    return b->value_count++;
}

static void uses(struct builder *b, struct generated_line *line, int value)
{
    if (value < 0)
        return;
    b->value[value].uses++;
    line->uses[line->use_count++] = value;
}

static const char *name(const struct builder *b, int value)
{
    return b->value[value].name;
}

static int declare(struct builder *b, enum kind kind, const char *type, const char *shape)
{
    int value = new_value(b, "i", kind, 0, 1);
    add_line(b, "in %s : %s%s", name(b, value), type, shape)->defines[0] = value;
    return value;
}

static const char *const float_types[] = {"bf16", "f32", "f16"};

static int declare_kind(struct builder *b, enum kind kind)
{
    char shape[32];
    if (kind == TILE)
        snprintf(shape, sizeof shape, "[M, N]");
    else if (kind == ROW)
        snprintf(shape, sizeof shape, "[M]");
    else
        snprintf(shape, sizeof shape, "[N]");
    return declare(b, kind, one_of(b, float_types, 3), shape);
}

/* A value of the kind: mostly one that exists, rather one that nothing uses yet. */
static int choose(struct builder *b, enum kind kind)
{
    int found = -1, seen = 0;
    for (int i = 0; i < b->value_count; i++) {
        if (b->value[i].kind != kind || b->value[i].name[0] == 'p' || b->value[i].name[0] == 't')
            continue;
        int weight = b->value[i].uses == 0 ? 6 : 1;
        seen += weight;
        if (below(b, seen) < weight)
            found = i;
    }
    if (found < 0 || (kind < ROW_RUNS && chance(b, kind == TILE ? 8 : 20) && !full(b)))
        found = kind < ROW_RUNS ? declare_kind(b, kind) : found;
    return found;
}

static int define(struct builder *b, enum kind kind, int run, int power, const char *expression, const int *used,
                  int count)
{
    int value = new_value(b, "v", kind, run, power > 4 ? 1 : power);
    struct generated_line *line = power > 4 ? add_line(b, "%s = clamp(%s, -6, 6)", name(b, value), expression)
                                            : add_line(b, "%s = %s", name(b, value), expression);
    line->defines[0] = value;
    for (int i = 0; i < count; i++)
        uses(b, line, used[i]);
    return value;
}

/* ---- elementwise statements. $ stands for the inputs in order, @ for one more use of the first. */

struct form {
    const char *text;
    int inputs, power; /* of the result, in that of the first; 0: bounded */
    enum {
        ROUNDS,
        JUMPS,
        SMOOTH
    } nature; /* casts round; comparisons jump; the rest has derivatives almost everywhere */
};

static const struct form unary[] = {
    {"tanh($)", 1, 0, SMOOTH},
    {"sigmoid($)", 1, 0, SMOOTH},
    {"silu($)", 1, 1, SMOOTH},
    {"gelu($)", 1, 1, SMOOTH},
    {"gelu_tanh($)", 1, 1, SMOOTH},
    {"erf($)", 1, 0, SMOOTH},
    {"relu($)", 1, 1, SMOOTH},
    {"abs($)", 1, 1, SMOOTH},
    {"-$", 1, 1, SMOOTH},
    {"exp(clamp($, -4, 4))", 1, 0, SMOOTH},
    {"log(abs($) + 1)", 1, 0, SMOOTH},
    {"sqrt(abs($) + 0.5)", 1, 0, SMOOTH},
    {"rsqrt($ * @ + 0.5)", 1, 0, SMOOTH},
    {"0.25 * $ - 1.5", 1, 1, SMOOTH},
    {"min($, 1.5)", 1, 1, SMOOTH},
    {"clamp($, -2, 3)", 1, 0, SMOOTH},
    {"$ * @", 1, 2, SMOOTH},
    {"cast($, bf16)", 1, 1, ROUNDS},
    {"cast($, f16)", 1, 1, ROUNDS},
    {"where($ > 0.5, @, -1)", 1, 1, JUMPS},
    {"($ <= 0) + 0.5", 1, 0, JUMPS},
    {"1 / (1 + exp(-$))", 1, 0, SMOOTH},
};

static const struct form binary[] = {
    {"$ + $", 2, 1, SMOOTH},          {"$ - $", 2, 1, SMOOTH},
    {"$ * $", 2, 2, SMOOTH},          {"$ / (abs($) + 0.5)", 2, 1, SMOOTH},
    {"max($, $)", 2, 1, SMOOTH},      {"min($, $)", 2, 1, SMOOTH},
    {"$ * sigmoid($)", 2, 1, SMOOTH}, {"where($ < $, @, 0.25)", 2, 1, JUMPS},
    {"($ != $) * @", 2, 1, JUMPS},    {"-$ + 3 * $", 2, 1, SMOOTH},
};

static const struct form ternary[] = {
    {"$ * $ + $", 3, 2, SMOOTH},
    {"where($ >= $, $, @)", 3, 1, JUMPS},
    {"clamp($, -abs($), abs($))", 3, 1, SMOOTH},
    {"($ + $) * $", 3, 2, SMOOTH},
};

static const struct form *choose_form(struct builder *b, const struct form *forms, int count)
{
    const struct form *form;
    do
        form = &forms[below(b, count)];
    while (b->options.differentiable && form->nature < (b->options.jumps ? JUMPS : SMOOTH));
    return form;
}

static void expand(const struct builder *b, const struct form *form, const int *input, char *text, size_t size)
{
    size_t at = 0;
    int next = 0;
    for (const char *p = form->text; *p && at + 1 < size; p++) {
        if (*p == '$' || *p == '@')
            at += (size_t)snprintf(text + at, size - at, "%s", name(b, input[*p == '$' ? next++ : 0]));
        else
            text[at++] = *p;
    }
    text[at < size ? at : size - 1] = 0;
}

/* A partner that the kind may be joined with. */
static int choose_partner(struct builder *b, enum kind kind, int run)
{
    static const enum kind of_tile[] = {TILE, TILE, ROW, COLUMN, ROW_RUNS};
    enum kind partner = kind;
    if (kind == TILE)
        partner = of_tile[below(b, 5)];
    else if (kind == PAIR_HALF || kind == BLOCK_HALF)
        partner = chance(b, 50) ? ROW : kind;
    int value = choose(b, partner);
    /* Runs of another length, or halves of another block, do not fit. */
    if (value < 0 || (partner == kind && kind != TILE && b->value[value].run != run))
        value = choose(b, kind == COLUMN ? COLUMN : ROW);
    return value;
}

static int statement(struct builder *b, enum kind kind, int first)
{
    int count = below(b, 5);
    const struct form *form = count < 2   ? choose_form(b, unary, sizeof unary / sizeof *unary)
                              : count < 4 ? choose_form(b, binary, sizeof binary / sizeof *binary)
                                          : choose_form(b, ternary, sizeof ternary / sizeof *ternary);
    int input[3] = {first >= 0 ? first : choose(b, kind)}, power = b->value[input[0]].power;
    int run = b->value[input[0]].run;
    for (int i = 1; i < form->inputs; i++) {
        input[i] = choose_partner(b, kind, run);
        int other = b->value[input[i]].power;
        power = form->power == 2 ? power + other : power > other ? power : other;
    }
    if (form->inputs == 1 && form->power == 2)
        power *= 2;
    char text[256];
    expand(b, form, input, text, sizeof text);
    return define(b, kind, run, form->power ? power : 1, text, input, form->inputs);
}

/* ---- the other primitives */

static int ids(struct builder *b)
{
    if (b->ids_value < 0) {
        b->ids_value = new_value(b, "t", ROW, 0, 1);
        add_line(b, "in %s : i32[M]", name(b, b->ids_value))->defines[0] = b->ids_value;
    }
    return b->ids_value;
}

static int random_run(struct builder *b)
{
    static const int runs[] = {128, 64, 32, 16, 8, 4, 3, 48, 256, 128};
    return runs[below(b, 10)];
}

static const char *const reductions[] = {"sum", "max", "absmax", "logsumexp", "mean"};

/* A value per run, read back by the tile. */
static void run_statement(struct builder *b)
{
    int x = choose(b, TILE), run = random_run(b);
    char text[128];
    const char *how = one_of(b, reductions, 5);
    if (b->has_heads && chance(b, 50)) {
        snprintf(text, sizeof text, "mean(%s * %s, N:D)", name(b, x), name(b, x));
        run = -1;
    } else
        snprintf(text, sizeof text, "%s(%s, N:%d)", how, name(b, x), run);
    int q = define(b, ROW_RUNS, run, 2, text, &x, 1);
    snprintf(text, sizeof text, "%s * rsqrt(abs(%s) + 0.5)", name(b, x), name(b, q));
    int used[2] = {x, q};
    define(b, TILE, 0, b->value[x].power, text, used, 2);
}

static void split_statement(struct builder *b)
{
    bool pairs = chance(b, 50);
    if (b->unit % 2)
        return;
    int h = b->unit / 2, x = choose(b, TILE);
    int power = b->value[x].power;
    enum kind kind = pairs ? PAIR_HALF : BLOCK_HALF;
    int one = new_value(b, "v", kind, pairs ? 0 : h, power), two = new_value(b, "v", kind, pairs ? 0 : h, power);
    struct generated_line *line =
        pairs ? add_line(b, "%s, %s = pairs(%s)", name(b, one), name(b, two), name(b, x))
              : add_line(b, "%s, %s = halves(%s, %d)", name(b, one), name(b, two), name(b, x), h);
    line->defines[0] = one;
    line->defines[1] = two;
    uses(b, line, x);
    int used[2] = {statement(b, kind, one), statement(b, kind, two)};
    if (chance(b, 60)) {
        char text[96];
        const char *part[2] = {name(b, used[0]), name(b, used[1])};
        int narrow = below(b, 8); /* now and then one of them is a number or one value a row */
        if (narrow < 2)
            used[narrow] = chance(b, 50) ? choose(b, ROW) : -1;
        if (narrow < 2)
            part[narrow] = used[narrow] < 0 ? "0.75" : name(b, used[narrow]);
        snprintf(text, sizeof text, pairs ? "join(%s, %s)" : "join_halves(%s, %s, %d)", part[0], part[1], h);
        define(b, TILE, 0, 4, text, used, 2);
    }
}

static void rope_statement(struct builder *b)
{
    static const char *const ropes[] = {"rope", "rope_pairs", "rope_inverse", "rope_pairs_inverse"};
    if (!b->has_heads)
        return;
    if (b->table_value < 0) {
        b->table_value = new_value(b, "t", TILE, 0, 1);
        add_line(b, "in %s : f32[P, D]", name(b, b->table_value))->defines[0] = b->table_value;
        b->position_value = new_value(b, "p", ROW, 0, 1);
        add_line(b, "in %s : i32[M]", name(b, b->position_value))->defines[0] = b->position_value;
    }
    int used[3] = {choose(b, TILE), b->table_value, b->position_value};
    char text[128];
    snprintf(text, sizeof text, "%s(%s, %s, %s%s)", one_of(b, ropes, 4), name(b, used[0]), name(b, used[1]),
             name(b, used[2]), chance(b, 30) ? ", cols = D" : "");
    define(b, TILE, 0, b->value[used[0]].power, text, used, 3);
}

static void index_statement(struct builder *b)
{
    int used[2] = {choose(b, TILE), -1};
    char text[128];
    int power = b->value[used[0]].power, kind = below(b, b->has_heads ? 4 : 3);
    if (kind == 0) {
        used[1] = ids(b);
        snprintf(text, sizeof text, "%s - 0.5 * onehot(%s, N)", name(b, used[0]), name(b, used[1]));
    } else if (kind == 1)
        snprintf(text, sizeof text, "where(index(N) < %d, %s, 0.5)", below(b, 40), name(b, used[0]));
    else if (kind == 2)
        snprintf(text, sizeof text, "%s * (index(M) / M)", name(b, used[0]));
    else {
        used[1] = declare(b, KINDS, one_of(b, float_types, 3), "[D]");
        snprintf(text, sizeof text, "%s * repeat(%s, N)", name(b, used[0]), name(b, used[1]));
    }
    define(b, TILE, 0, power + (kind == 3), text, used, used[1] >= 0 ? 2 : 1);
}

/* r = rsqrt(sum(S) / K + eps) and its kin, in the prologue. */
static void partial_statement(struct builder *b)
{
    int used[2] = {declare(b, KINDS, "f32", "[M, K/128]"), -1};
    used[1] = new_value(b, "e", KINDS, 0, 1);
    add_line(b, "param %s = 1e-6", name(b, used[1]))->defines[0] = used[1];
    char text[128];
    snprintf(text, sizeof text, "rsqrt(sum(%s) / K + %s)", name(b, used[0]), name(b, used[1]));
    int r = define(b, ROW, 0, 1, text, used, 2);
    int both[2] = {choose(b, TILE), r};
    snprintf(text, sizeof text, "%s * %s", name(b, both[0]), name(b, r));
    define(b, TILE, 0, b->value[both[0]].power, text, both, 2);
}

static void epilogue(struct builder *b, bool has_inner)
{
    int count = b->options.statements ? b->options.statements : 1 + below(b, 12);
    for (int i = 0; i < count && !full(b); i++) {
        int what = below(b, 100);
        if (what < 8)
            run_statement(b);
        else if (what < 16)
            split_statement(b);
        else if (what < 24)
            rope_statement(b);
        else if (what < 30 && (!b->options.differentiable || b->options.jumps))
            index_statement(b);
        else if (what < 36 && has_inner)
            partial_statement(b);
        else if (what < 44)
            statement(b, ROW, -1);
        else if (what < 50)
            statement(b, COLUMN, -1);
        else
            statement(b, TILE, -1);
    }
}

/* ---- products */

static int product(struct builder *b, const char *left, const char *right, int l, int r)
{
    char text[64];
    int used[2] = {l, r};
    snprintf(text, sizeof text, "%s%s @ %s%s", name(b, l), left, name(b, r), right);
    return define(b, TILE, 0, 1, text, used, 2);
}

static void stacked_product(struct builder *b, int left, bool pair)
{
    int part[3], count = pair ? 3 : 2;
    char text[96];
    for (int i = 0; i < count; i++)
        part[i] = declare(b, KINDS, b->type, i == 0 ? "[Q, K]" : "[E, K]");
    int used[4] = {left, part[0], part[1], pair ? part[2] : -1};
    snprintf(text, sizeof text, "%s @ stack(%s, %s%s%s).T", name(b, left), name(b, part[0]), name(b, part[1]),
             pair ? ", " : "", pair ? name(b, part[2]) : "");
    define(b, TILE, 0, 1, text, used, count + 1);
}

enum product_form { PLAIN, DGRAD, WGRAD, TWIN, SUMMED, STACKED, STACKED_PAIR, PRODUCT_FORMS };

static void products(struct builder *b, enum product_form form)
{
    int left = declare(b, KINDS, b->type, form == WGRAD ? "[K, M]" : "[M, K]");
    if (form == STACKED || form == STACKED_PAIR) {
        stacked_product(b, left, form == STACKED_PAIR);
        return;
    }
    bool transposed = form == PLAIN || form == TWIN;
    int right = declare(b, KINDS, b->type, transposed ? "[N, K]" : "[K, N]");
    const char *after = transposed ? ".T" : "";
    if (form == SUMMED) {
        int l = declare(b, KINDS, b->type, "[M, L]"), r = declare(b, KINDS, b->type, "[L, N]");
        int used[4] = {left, right, l, r};
        char text[96];
        snprintf(text, sizeof text, "%s @ %s + %s @ %s", name(b, left), name(b, right), name(b, l), name(b, r));
        define(b, TILE, 0, 1, text, used, 4);
        return;
    }
    product(b, form == WGRAD ? ".T" : "", after, left, right);
    if (form == TWIN)
        product(b, "", after, left, declare(b, KINDS, b->type, "[N, K]"));
}

/* ---- outs */

static void out(struct builder *b, int value, const char *type, const char *shape, const char *expression, bool more)
{
    struct generated_line *line =
        add_line(b, "out o%d : %s%s %s %s", b->serial++, type, shape, more ? "+=" : "=", expression);
    line->is_out = true;
    uses(b, line, value);
}

static void out_of_tile(struct builder *b, int x)
{
    char text[96], shape[32];
    int what = below(b, 10), run = random_run(b);
    if (what < 4)
        out(b, x, one_of(b, float_types, 3), "[M, N]", name(b, x), false);
    else if (what == 4 && (!b->options.differentiable || b->options.jumps))
        out(b, x, "f32", "[M, N]", name(b, x), true);
    else if (what < 7) {
        snprintf(text, sizeof text, "%s(%s, N:%d)", one_of(b, reductions, 5), name(b, x), run);
        snprintf(shape, sizeof shape, "[M, N/%d]", run);
        out(b, x, "f32", shape, text, false);
    } else if (what < 9 || (b->options.differentiable && !b->options.jumps)) {
        snprintf(text, sizeof text, "%s(%s, M:%d)", one_of(b, reductions, 4), name(b, x), run);
        snprintf(shape, sizeof shape, "[M/%d, N]", run);
        out(b, x, "f32", shape, text, false);
    } else {
        int t = ids(b);
        snprintf(text, sizeof text, "pick(%s, %s)", name(b, x), name(b, t));
        out(b, x, "f32", "[M]", text, false);
        uses(b, &b->program->line[b->program->count - 1], t);
    }
}

static void outs(struct builder *b)
{
    bool tile_out = false;
    char shape[32];
    for (int i = b->value_count - 1; i >= 0; i--) {
        const struct value *value = &b->value[i];
        if (value->uses > 0 || value->kind == KINDS)
            continue;
        if (value->kind == TILE)
            out_of_tile(b, i);
        else if (value->kind == ROW)
            out(b, i, "f32", "[M]", name(b, i), false);
        else if (value->kind == COLUMN)
            out(b, i, one_of(b, float_types, 3), "[N]", name(b, i), false);
        else if (value->kind == ROW_RUNS) {
            snprintf(shape, sizeof shape, value->run < 0 ? "[M, N/D]" : "[M, N/%d]", value->run);
            out(b, i, "f32", shape, name(b, i), false);
        } else
            out(b, i, one_of(b, float_types, 3), "[M, N/2]", name(b, i), false);
        tile_out |= value->kind == TILE;
    }
    if (!tile_out) {
        int x = choose(b, TILE);
        out(b, x, "bf16", "[M, N]", name(b, x), false);
    }
}

/* A program of one value a row: the last is an out, or a patch of a matrix. */
static void row_program(struct builder *b)
{
    char shape[32];
    declare_kind(b, ROW);
    for (int i = below(b, 6); i >= 0; i--)
        statement(b, ROW, -1);
    int x = choose(b, ROW), t = ids(b);
    snprintf(shape, sizeof shape, "%s", one_of(b, float_types, 3));
    struct generated_line *line =
        add_line(b, "out o%d[%s] : %s[M, N] = %s", b->serial++, name(b, t), shape, name(b, x));
    line->is_out = true;
    uses(b, line, x);
    uses(b, line, t);
    for (int i = b->value_count - 1; i >= 0; i--)
        if (b->value[i].uses == 0 && b->value[i].kind == ROW)
            out(b, i, "f32", "[M]", name(b, i), false);
}

/* A condition that holds: random numbers are not 0. */
static void condition(struct builder *b)
{
    int x = declare(b, KINDS, "f32", chance(b, 70) ? "[M]" : "");
    uses(b, add_line(b, "when %s", name(b, x)), x);
}

static void set_dim(struct builder *b, const char *axis, int64_t size)
{
    coda_dims *dims = &b->program->dims;
    dims->item[dims->count].axis = axis;
    dims->item[dims->count++].size = size;
}

static void set_sizes(struct builder *b, enum product_form form)
{
    int64_t rows = b->options.row_limit ? b->options.row_limit : 80;
    int64_t columns = b->options.column_limit ? b->options.column_limit : 160;
    int64_t units = columns / b->unit > 0 ? columns / b->unit : 1;
    set_dim(b, "M", 1 + random_below(&b->random, rows));
    if (form == STACKED || form == STACKED_PAIR) {
        int64_t parts = units / 3 > 0 ? units / 3 : 1;
        set_dim(b, "Q", b->unit * (1 + random_below(&b->random, parts)));
        set_dim(b, "E", b->unit * (1 + random_below(&b->random, parts)));
    } else
        set_dim(b, "N", b->unit * (1 + random_below(&b->random, units)));
    set_dim(b, "K", 1 + random_below(&b->random, columns));
    set_dim(b, "L", 1 + random_below(&b->random, columns));
    set_dim(b, "P", 1 + random_below(&b->random, 20));
    set_dim(b, "D", b->unit);
}

void generate(struct generated *program, uint64_t seed, const struct generator_options *options)
{
    static const int units[] = {1, 1, 2, 4, 8, 16, 32};
    struct builder b = {.program = program,
                        .random = {seed * 0xD1342543DE82EF95u + 1},
                        .ids_value = -1,
                        .table_value = -1,
                        .position_value = -1};
    memset(program, 0, sizeof *program);
    if (options)
        b.options = *options;
    b.unit = units[below(&b, 7)];
    b.has_heads = b.unit > 1 && chance(&b, 70);
    b.type = float_types[below(&b, 3)];
    enum product_form form = b.options.no_gemm || chance(&b, 20) ? PRODUCT_FORMS : (enum product_form)below(&b, 7);
    if (form == STACKED || form == STACKED_PAIR)
        add_line(&b, form == STACKED ? "axis N = Q + E" : "axis N = Q + 2*E");
    set_sizes(&b, form);
    if (!b.options.differentiable && chance(&b, 10))
        condition(&b);
    if (form == PRODUCT_FORMS && !b.options.differentiable && chance(&b, 25)) {
        row_program(&b);
        return;
    }
    if (form != PRODUCT_FORMS)
        products(&b, form);
    else
        declare_kind(&b, TILE);
    epilogue(&b, form != PRODUCT_FORMS && form != SUMMED);
    outs(&b);
}

/* ---- text, and shrinking */

void generated_text(const struct generated *program, char *text, size_t size)
{
    size_t at = (size_t)snprintf(text, size, "program random {\n");
    for (int i = 0; i < program->count && at < size; i++)
        if (program->line[i].text[0])
            at += (size_t)snprintf(text + at, size - at, "    %s\n", program->line[i].text);
    if (at < size)
        snprintf(text + at, size - at, "}\n");
}

static bool is_used(const struct generated *program, int name)
{
    for (int i = 0; i < program->count; i++)
        for (int k = 0; k < program->line[i].use_count && program->line[i].text[0]; k++)
            if (program->line[i].uses[k] == name)
                return true;
    return false;
}

/* A line goes when nothing uses what it defines; `a, b = pairs(x)` stays while one of the two is used. */
static void drop_unused(struct generated *program)
{
    for (int i = program->count - 1; i >= 0; i--) {
        struct generated_line *line = &program->line[i];
        if (line->is_out || line->defines[0] < 0 || is_used(program, line->defines[0]) ||
            (line->defines[1] >= 0 && is_used(program, line->defines[1])))
            continue;
        line->text[0] = 0;
    }
}

bool generated_drop_out(struct generated *program, int index)
{
    struct generated_line *found = NULL;
    int outs = 0;
    for (int i = 0; i < program->count; i++)
        if (program->line[i].is_out && program->line[i].text[0] && outs++ == index)
            found = &program->line[i];
    if (!found || outs < 2)
        return false;
    found->text[0] = 0;
    drop_unused(program);
    return true;
}
