/* Calls: a table of functions, each with the kinds of its arguments. */
#include "lang/parser.h"

#include <stdio.h>
#include <string.h>

enum { MAX_ARGUMENTS = MAX_STACK + 1 };

struct argument {
    char kind;
    int node;
    int axis;          /* reductions: -1 where the argument is left out */
    struct extent run; /* of a reduction, or a length */
    struct shape shape;
    coda_dtype dtype;
    struct dim dim;
};

/* Kinds of arguments, one letter each; those after `|` may be left out:
 *   x value     a axis     r axis or run (N, N:128)     m value, axis or run     l length     s shape     d type
 *   c `cols = dim`         * more values */
struct function {
    const char *name;
    const char *kinds;
    const char *usage;
    int (*build)(struct graph *graph, enum op op, const struct argument *argument, int count, struct complaint *why);
    enum op op;
    bool block_only;
};

static int build_elementwise(struct graph *graph, enum op op, const struct argument *a, int count,
                             struct complaint *why)
{
    int input[3];
    for (int i = 0; i < count; i++)
        input[i] = a[i].node;
    return graph_elementwise(graph, op, input, count, why);
}

static int build_cast(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    (void)op, (void)count;
    return graph_cast(graph, a[0].node, a[1].dtype, why);
}

static int build_broadcast(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    (void)op, (void)count;
    return graph_broadcast(graph, a[0].node, &a[1].shape, why);
}

static int build_repeat(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    (void)op, (void)count;
    return graph_repeat(graph, a[0].node, a[1].axis, why);
}

static int build_index(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    (void)op, (void)count;
    return graph_index(graph, a[0].axis, why);
}

static int build_stack(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    int part[MAX_ARGUMENTS];
    (void)op;
    for (int i = 0; i < count; i++)
        part[i] = a[i].node;
    return graph_stack(graph, part, count, why);
}

static int build_join(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    (void)count;
    if (op == OP_JOIN)
        return graph_join(graph, a[0].node, a[1].node, why);
    return graph_join_halves(graph, a[0].node, a[1].node, a[2].run, why);
}

static int rope(struct graph *graph, const struct argument *a, int count, bool pairs, bool inverse,
                struct complaint *why)
{
    struct dim all = {.form = DIM_ABSENT, .axis = -1, .run = {.axis = -1}};
    return graph_rope(graph, a[0].node, a[1].node, a[2].node, pairs, inverse, count > 3 ? &a[3].dim : &all, why);
}

static int build_rope(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    (void)op;
    return rope(graph, a, count, false, false, why);
}

static int build_rope_pairs(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    (void)op;
    return rope(graph, a, count, true, false, why);
}

static int build_rope_inverse(struct graph *graph, enum op op, const struct argument *a, int count,
                              struct complaint *why)
{
    (void)op;
    return rope(graph, a, count, false, true, why);
}

static int build_rope_pairs_inverse(struct graph *graph, enum op op, const struct argument *a, int count,
                                    struct complaint *why)
{
    (void)op;
    return rope(graph, a, count, true, true, why);
}

static int build_reduction(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    if (count == 1)
        return graph_reduce(graph, op, a[0].node, -1, (struct extent){.axis = -1}, why);
    return graph_reduce(graph, op, a[0].node, a[1].axis, a[1].run, why);
}

/* max(a, b) is elementwise, max(x, N:128), max(x, N) and max(x) are reductions. */
static int build_max(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    bool reduces = count == 1 || a[1].kind == 'r';
    return reduces ? build_reduction(graph, op, a, count, why) : build_elementwise(graph, OP_MAX, a, count, why);
}

static int build_mean(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    (void)op, (void)count;
    return expand_mean(graph, a[0].node, a[1].axis, a[1].run, why);
}

static int build_by_index(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    (void)count;
    return op == OP_PICK ? graph_pick(graph, a[0].node, a[1].node, why)
                         : graph_gather(graph, a[0].node, a[1].node, why);
}

static int build_onehot(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    (void)op, (void)count;
    return graph_onehot(graph, a[0].node, a[1].axis, why);
}

static int build_rmsnorm(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    (void)op, (void)count;
    return expand_rmsnorm(graph, a[0].node, a[1].node, a[2].node, why);
}

static int build_layernorm(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    (void)op, (void)count;
    return expand_layernorm(graph, a[0].node, a[1].node, a[2].node, a[3].node, why);
}

static int build_softmax(struct graph *graph, enum op op, const struct argument *a, int count, struct complaint *why)
{
    (void)op, (void)count;
    return expand_softmax(graph, a[0].node, why);
}

/* Functions before the rows of primitives.def, so that `max` is found here. */
static const struct function functions[] = {
    {"cast", "xd", "cast(x, bf16)", build_cast, OP_CAST, false},
    {"broadcast", "xs", "broadcast(x, [M, N])", build_broadcast, OP_BROADCAST, false},
    {"repeat", "xa", "repeat(g, N)", build_repeat, OP_REPEAT, false},
    {"index", "a", "index(N)", build_index, OP_INDEX, false},
    {"stack", "x*", "stack(W1, W2, ..) of 2 to 8 matrices", build_stack, OP_STACK, false},
    {"join", "xx", "join(a, b)", build_join, OP_JOIN, false},
    {"join_halves", "xxl", "join_halves(a, b, h)", build_join, OP_JOIN_HALVES, false},
    {"rope", "xxx|c", "rope(x, table, pos [, cols = T])", build_rope, OP_ROPE, false},
    {"rope_pairs", "xxx|c", "rope_pairs(x, table, pos [, cols = T])", build_rope_pairs, OP_ROPE, false},
    {"rope_inverse", "xxx|c", "rope_inverse(x, table, pos [, cols = T])", build_rope_inverse, OP_ROPE, false},
    {"rope_pairs_inverse", "xxx|c", "rope_pairs_inverse(x, table, pos [, cols = T])", build_rope_pairs_inverse, OP_ROPE,
     false},
    {"sum", "x|r", "sum(x, N:128), sum(x, N), or sum(S) of partials", build_reduction, OP_SUM, false},
    {"max", "x|m", "max(a, b), max(x, N:128), max(x, N), or max(S) of partials", build_max, OP_REDUCE_MAX, false},
    {"absmax", "x|r", "absmax(x, N:128), absmax(x, N), or absmax(S) of partials", build_reduction, OP_ABSMAX, false},
    {"logsumexp", "x|r", "logsumexp(x, N:128), logsumexp(x, N), or logsumexp(L) of partials", build_reduction,
     OP_LOGSUMEXP, false},
    {"mean", "xr", "mean(x, N:128) or mean(x, N); of partials sum(S) / K", build_mean, OP_SUM, false},
    {"pick", "xx", "pick(z, t)", build_by_index, OP_PICK, false},
    {"onehot", "xa", "onehot(t, N)", build_onehot, OP_ONEHOT, false},
    {"gather", "xx", "gather(E, t)", build_by_index, OP_GATHER, false},
    {"rmsnorm", "xxx", "rmsnorm(x, g, eps)", build_rmsnorm, OP_RSQRT, true},
    {"layernorm", "xxxx", "layernorm(x, g, b, eps)", build_layernorm, OP_RSQRT, true},
    {"softmax", "x", "softmax(x)", build_softmax, OP_EXP, true},
#define ARGUMENTS_1 "x", "(x)"
#define ARGUMENTS_2 "xx", "(a, b)"
#define ARGUMENTS_3 "xxx", "(a, b, c)"
#define PRIMITIVE(op, name, arity, meaning, cuda, da, db, dc, cost)                                                    \
    {name, ARGUMENTS_##arity, build_elementwise, OP_##op, false},
#include "ir/primitives.def"
#undef PRIMITIVE
};
enum { FUNCTION_COUNT = sizeof functions / sizeof *functions };

static const char *const twins[] = {"pairs", "halves"};

/* Is the row a function? Operators have their own grammar. */
static bool is_function(const struct function *f)
{
    return is_name(f->name, strlen(f->name)) && f->op != OP_NEG;
}

static const struct function *find_function(const struct parser *parser, const struct token *name)
{
    for (int i = 0; i < FUNCTION_COUNT; i++)
        if (is_function(&functions[i]) && token_is(parser, name, functions[i].name))
            return &functions[i];
    return NULL;
}

static void report_unknown(struct parser *parser, const struct token *name)
{
    const char *text = token_text(parser, name), *nearest = NULL;
    int length = token_length(name), best = suggestion_limit(length);
    char advice[512] = "";
    for (size_t i = 0; i < 2; i++)
        if (token_is(parser, name, twins[i])) {
            diagnostics_report(parser->diagnostics, token_span(name),
                               "Name both: a, b = pairs(x), or a, b = halves(x, h)",
                               "`%s` gives two values, so it is no expression", twins[i]);
            return;
        }
    if (symbols_find(&parser->symbols, text, length) >= 0)
        snprintf(advice, sizeof advice, "It is a value here: a product needs its `*`.");
    else {
        for (int i = 0; i < FUNCTION_COUNT; i++) {
            int size = (int)strlen(functions[i].name);
            int distance =
                is_function(&functions[i]) ? edit_distance(text, length, functions[i].name, size, best) : best;
            if (distance < best && distance < size) {
                best = distance;
                nearest = functions[i].name;
            }
        }
        if (nearest)
            snprintf(advice, sizeof advice, "Did you mean `%s`?", nearest);
        else
            snprintf(advice, sizeof advice, "docs/language.md lists the primitives.");
    }
    diagnostics_report(parser->diagnostics, token_span(name), advice, "unknown function `%.*s`", length, text);
}

/* An axis, with a run where `:` follows. */
static bool parse_run(struct parser *parser, struct argument *argument)
{
    argument->kind = 'r';
    argument->run = (struct extent){.axis = -1, .value = 0};
    if (!parser_at(parser, TOKEN_NAME)) {
        parser_unexpected(parser, "an axis or a run",
                          "The second argument says what to reduce: N for the whole axis, N:128 for runs.");
        return false;
    }
    argument->axis = parse_axis(parser, AXIS_MUST_EXIST);
    if (parser_accept(parser, TOKEN_COLON))
        return parse_length(parser, &argument->run) && argument->axis >= 0;
    return argument->axis >= 0;
}

/* `max(x, N` and `max(x, N:128` reduce, `max(x, y` and `max(x, (N)` compare. */
static bool at_run(const struct parser *parser)
{
    if (!parser_at(parser, TOKEN_NAME))
        return false;
    enum token_kind next = parser_look_ahead(parser, 1).kind;
    int symbol = symbols_find(&parser->symbols, token_text(parser, &parser->token), token_length(&parser->token));
    return next == TOKEN_COLON ||
           (next == TOKEN_CLOSE_PAREN && symbol >= 0 && parser->symbols.symbol[symbol].kind == SYMBOL_AXIS);
}

static bool parse_columns(struct parser *parser, struct argument *argument)
{
    static const char advice[] = "Columns from it on pass through: rope(x, table, pos, cols = T)";
    if (!parser_at(parser, TOKEN_NAME) || !token_is(parser, &parser->token, "cols")) {
        parser_unexpected(parser, "`cols =`", advice);
        return false;
    }
    parser_advance(parser);
    return parser_expect(parser, TOKEN_ASSIGN, "`=`", advice) && parse_dim(parser, &argument->dim, AXIS_MAY_APPEAR);
}

/* False: poison. */
static bool parse_argument(struct parser *parser, char kind, struct argument *argument)
{
    argument->kind = kind;
    argument->axis = -1;
    switch (kind) {
    case 'a':
        return (argument->axis = parse_axis(parser, AXIS_MUST_EXIST)) >= 0;
    case 'r':
        return parse_run(parser, argument);
    case 'l':
        return parse_length(parser, &argument->run);
    case 's':
        return parse_shape(parser, &argument->shape, AXIS_MUST_EXIST);
    case 'd':
        return parse_dtype(parser, &argument->dtype);
    case 'c':
        return parse_columns(parser, argument);
    case 'm':
        if (at_run(parser))
            return parse_run(parser, argument);
        break;
    default:
        break;
    }
    argument->kind = 'x';
    argument->node = expression_node(parser);
    if (!parser->lost && parser_at(parser, TOKEN_COLON))
        parser_unexpected(
            parser, "`,` or `)`",
            "Only sum, max, absmax, logsumexp and mean take a run such as N:128, as their second argument.");
    return argument->node >= 0;
}

/* The kind of the argument at `index`; 'x' beyond the last, which is counted and then refused. */
static char kind_of(const char *kinds, int index)
{
    for (; *kinds; kinds++) {
        if (*kinds == '|')
            continue;
        if (*kinds == '*' || index-- == 0)
            return *kinds == '*' ? 'x' : *kinds;
    }
    return 'x';
}

static void count_range(const char *kinds, int *least, int *most)
{
    const char *optional = strchr(kinds, '|');
    int length = (int)strlen(kinds);
    *least = optional ? (int)(optional - kinds) : length;
    *most = optional ? length - 1 : length;
    if (strchr(kinds, '*')) {
        *least = 2;
        *most = MAX_STACK;
    }
}

/* "(" arguments ")". Returns their number, -1 for poison. */
static int parse_arguments(struct parser *parser, const char *name, const char *kinds, const char *usage, int begin,
                           struct argument *list)
{
    int count = 0, least, most;
    bool good = true;
    parser_advance(parser);
    while (!parser_at(parser, TOKEN_CLOSE_PAREN) || count > 0) {
        struct argument spare = {0}, *argument = count < MAX_ARGUMENTS ? &list[count] : &spare;
        good = parse_argument(parser, kind_of(kinds, count), argument) && good;
        count++;
        if (parser->lost || !parser_accept(parser, TOKEN_COMMA))
            break;
    }
    if (parser->lost || !parser_expect(parser, TOKEN_CLOSE_PAREN, "`,` or `)`", usage))
        return -1;
    count_range(kinds, &least, &most);
    if (count >= least && count <= most)
        return good ? count : -1;
    char advice[160], expected[48];
    bool elementwise = usage[0] == '(';
    snprintf(advice, sizeof advice, "Its form is %s%s.", elementwise ? name : "", usage);
    if (least == most)
        snprintf(expected, sizeof expected, "%d argument%s", least, least == 1 ? "" : "s");
    else
        snprintf(expected, sizeof expected, "%d to %d arguments", least, most);
    diagnostics_report(parser->diagnostics, span_from(parser, begin), advice, "`%s` takes %s, found %d", name, expected,
                       count);
    return -1;
}

/* Goes over the arguments of a function that is none, so that errors inside them are found too. */
static void skip_arguments(struct parser *parser)
{
    struct argument argument;
    parser_advance(parser);
    while (!parser->lost && !parser_at(parser, TOKEN_CLOSE_PAREN)) {
        bool plain = !parser_at(parser, TOKEN_OPEN_BRACKET);
        struct shape shape;
        if (plain && at_run(parser))
            parse_run(parser, &argument);
        else if (plain)
            expression_node(parser);
        else
            parse_shape(parser, &shape, AXIS_MUST_EXIST);
        if (!parser_accept(parser, TOKEN_COMMA))
            break;
    }
    if (!parser->lost)
        parser_expect(parser, TOKEN_CLOSE_PAREN, "`,` or `)`", NULL);
}

int parse_call(struct parser *parser, const struct token *name)
{
    const struct function *f = find_function(parser, name);
    struct argument argument[MAX_ARGUMENTS] = {0};
    struct complaint why = {0};
    if (!f) {
        report_unknown(parser, name);
        skip_arguments(parser);
        return -1;
    }
    int count = parse_arguments(parser, f->name, f->kinds, f->usage, name->begin, argument);
    if (count < 0)
        return -1;
    if (f->block_only && !parser->graph->is_block) {
        diagnostics_report(parser->diagnostics, span_from(parser, name->begin),
                           "Write it in a `block`; `coda rewrite` turns blocks into programs.",
                           "`%s` needs whole rows, but a program computes one tile at a time", f->name);
        return -1;
    }
    return built_node(parser, f->build(parser->graph, f->op, argument, count, &why), name->begin, &why);
}

bool parse_twin_call(struct parser *parser, int node[2])
{
    struct token name = parser->token;
    struct argument argument[MAX_ARGUMENTS] = {0};
    struct complaint why = {0};
    bool pairs = token_is(parser, &name, "pairs");
    parser_advance(parser);
    if (!parser_at(parser, TOKEN_OPEN_PAREN)) {
        parser_unexpected(parser, "`(`", NULL);
        return false;
    }
    int count = parse_arguments(parser, pairs ? "pairs" : "halves", pairs ? "x" : "xl",
                                pairs ? "a, b = pairs(x)" : "a, b = halves(x, h)", name.begin, argument);
    for (int i = 0; i < 2 && count > 0; i++) {
        int x = argument[0].node;
        node[i] = pairs ? graph_pair(parser->graph, i == 0 ? OP_EVEN : OP_ODD, x, &why)
                        : graph_half(parser->graph, i == 0 ? OP_FIRST : OP_SECOND, x, argument[1].run, &why);
        if (built_node(parser, node[i], name.begin, &why) < 0)
            return false;
    }
    return count > 0;
}
