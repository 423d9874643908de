/* Types, dims, lengths and axes as they are written. */
#include "lang/parser.h"

#include "lang/number.h"
#include <stdio.h>
#include <string.h>

static const char *const dtypes[] = {
    [CODA_F32] = "f32",   [CODA_BF16] = "bf16", [CODA_F16] = "f16",
    [CODA_E4M3] = "e4m3", [CODA_E5M2] = "e5m2", [CODA_I32] = "i32",
};
enum { DTYPE_COUNT = sizeof dtypes / sizeof *dtypes };

/* Makes an axis of a name that is none yet, or binds the name of one that a `stack` made. */
static int add_axis(struct parser *parser, const struct token *name)
{
    struct complaint why = {0};
    char text[MAX_NAME + 1];
    snprintf(text, sizeof text, "%.*s", token_length(name), token_text(parser, name));
    int axis = graph_add_axis(parser->graph, text, &why);
    if (axis < 0)
        report_complaint(parser, token_span(name), &why);
    int symbol = define_name(parser, name, SYMBOL_AXIS, axis);
    if (symbol >= 0)
        parser->symbols.symbol[symbol].used = true;
    return symbol < 0 ? -1 : axis;
}

static bool graph_has_axis(const struct parser *parser, const struct token *name)
{
    char text[MAX_NAME + 1];
    snprintf(text, sizeof text, "%.*s", token_length(name), token_text(parser, name));
    return graph_find_axis(parser->graph, text) >= 0;
}

int parse_axis(struct parser *parser, enum axis_rule rule)
{
    struct token name = parser->token;
    if (!parser_expect(parser, TOKEN_NAME, "the name of an axis", NULL))
        return -1;
    const char *text = token_text(parser, &name);
    int symbol = symbols_find(&parser->symbols, text, token_length(&name));
    bool known = symbol >= 0 && parser->symbols.symbol[symbol].kind != SYMBOL_UNKNOWN;
    if (!known && (rule == AXIS_MAY_APPEAR || graph_has_axis(parser, &name)))
        return add_axis(parser, &name);
    symbol = use_name(parser, &name, true);
    if (symbol < 0)
        return -1;
    const struct symbol *s = &parser->symbols.symbol[symbol];
    if (s->kind == SYMBOL_AXIS)
        return s->index;
    if (s->kind != SYMBOL_UNKNOWN)
        diagnostics_report(parser->diagnostics, token_span(&name),
                           "Axes are the names between the brackets of types; values cannot stand for them.",
                           "`%.*s` is no axis", token_length(&name), text);
    return -1;
}

bool parse_integer(struct parser *parser, int64_t *value, const char *what)
{
    struct token number = parser->token;
    if (!parser_at(parser, TOKEN_NUMBER)) {
        parser_unexpected(parser, what, NULL);
        return false;
    }
    parser_advance(parser);
    if (integer_parse(token_text(parser, &number), token_length(&number), value) && *value > 0)
        return true;
    diagnostics_report(parser->diagnostics, token_span(&number), NULL,
                       "expected %s, a whole number from 1, found `%.*s`", what,
                       token_length(&number) < 40 ? token_length(&number) : 40, token_text(parser, &number));
    return false;
}

bool parse_length(struct parser *parser, struct extent *length)
{
    *length = (struct extent){.axis = -1, .value = 1};
    if (!parser_at(parser, TOKEN_NAME))
        return parse_integer(parser, &length->value, "a length");
    length->axis = parse_axis(parser, AXIS_MAY_APPEAR);
    if (parser_accept(parser, TOKEN_DIVIDE))
        return parse_integer(parser, &length->value, "a divisor") && length->axis >= 0;
    return length->axis >= 0;
}

bool parse_dim(struct parser *parser, struct dim *dim, enum axis_rule rule)
{
    *dim = (struct dim){.form = DIM_WHOLE, .axis = -1, .run = {.axis = -1}};
    if (!parser_at(parser, TOKEN_NAME))
        return parse_integer(parser, &dim->constant, "an axis or a size");
    dim->axis = parse_axis(parser, rule);
    if (parser_accept(parser, TOKEN_DIVIDE)) {
        dim->form = DIM_RUNS;
        return parse_length(parser, &dim->run) && dim->axis >= 0;
    }
    return dim->axis >= 0;
}

/* `N/2:h` in a shape of values: the halves of runs of 2h, where `N/2` alone means pairs. */
static bool parse_halves(struct parser *parser, struct dim *dim)
{
    if (dim->form != DIM_RUNS || dim->run.axis >= 0 || dim->run.value != 2) {
        parser_unexpected(parser, "`,` or `]`", "Halves are written N/2:h");
        return false;
    }
    dim->form = DIM_HALVES;
    parser_advance(parser);
    return parse_length(parser, &dim->run);
}

bool parse_shape(struct parser *parser, struct shape *shape, enum axis_rule rule)
{
    static const char advice[] = "Dims stand between brackets, separated by commas: [M, N/128]";
    bool good = true;
    int begin = parser->token.begin, count = 0;
    *shape = (struct shape){0};
    if (!parser_expect(parser, TOKEN_OPEN_BRACKET, "`[`", advice))
        return false;
    do {
        struct dim dim;
        good = parse_dim(parser, &dim, rule) && good;
        if (rule == AXIS_MUST_EXIST && !parser->lost && parser_at(parser, TOKEN_COLON))
            good = parse_halves(parser, &dim) && good;
        if (count < 2)
            shape->dim[count] = dim;
        count++;
    } while (!parser->lost && parser_accept(parser, TOKEN_COMMA));
    if (parser->lost || !parser_expect(parser, TOKEN_CLOSE_BRACKET, "`,` or `]`", advice))
        return false;
    if (count > 2)
        diagnostics_report(parser->diagnostics, span_from(parser, begin),
                           "Fold leading dims into one: a batch of sequences is a matrix of tokens.",
                           "a value has at most 2 dims, found %d", count);
    shape->rank = count < 2 ? count : 2;
    return good && count <= 2;
}

/* What other languages call the types. */
static const struct {
    const char *name, *ours;
} foreign_dtypes[] = {
    {"float", "f32"},  {"float32", "f32"}, {"fp32", "f32"}, {"bfloat16", "bf16"},    {"float16", "f16"},
    {"fp16", "f16"},   {"half", "f16"},    {"int", "i32"},  {"int32", "i32"},        {"int64", "i32"},
    {"double", "f32"}, {"fp8", "e4m3"},    {"f64", "f32"},  {"float8_e4m3", "e4m3"}, {"float8_e5m2", "e5m2"},
};

static const char *nearest_dtype(const struct parser *parser, const struct token *name)
{
    const char *nearest = NULL;
    int best = 3;
    for (size_t i = 0; i < sizeof foreign_dtypes / sizeof *foreign_dtypes; i++)
        if (token_is(parser, name, foreign_dtypes[i].name))
            return foreign_dtypes[i].ours;
    for (int i = 0; i < DTYPE_COUNT; i++) {
        int distance =
            edit_distance(token_text(parser, name), token_length(name), dtypes[i], (int)strlen(dtypes[i]), best);
        if (distance < best) {
            best = distance;
            nearest = dtypes[i];
        }
    }
    return nearest;
}

static void report_dtype(struct parser *parser, const struct token *name)
{
    char advice[128];
    const char *nearest = nearest_dtype(parser, name);
    snprintf(advice, sizeof advice, "%s%s%sTypes are f32, bf16, f16, e4m3, e5m2 and i32.",
             nearest ? "Did you mean `" : "", nearest ? nearest : "", nearest ? "`? " : "");
    diagnostics_report(parser->diagnostics, token_span(name), advice, "unknown type `%.*s`", token_length(name),
                       token_text(parser, name));
}

bool parse_dtype(struct parser *parser, coda_dtype *dtype)
{
    struct token name = parser->token;
    if (!parser_expect(parser, TOKEN_NAME, "a type such as bf16", NULL))
        return false;
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (token_is(parser, &name, dtypes[i])) {
            *dtype = (coda_dtype)i;
            return true;
        }
    report_dtype(parser, &name);
    return false;
}

bool parse_type(struct parser *parser, coda_dtype *dtype, struct shape *shape)
{
    bool good = parse_dtype(parser, dtype);
    *shape = (struct shape){0};
    if (!parser->lost && parser_at(parser, TOKEN_OPEN_BRACKET))
        good = parse_shape(parser, shape, AXIS_MAY_APPEAR) && good;
    return good && !parser->lost;
}
