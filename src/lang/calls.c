/* Calls: arguments by the kinds that the function's row asks for. */
#include "lang/functions.h"
#include "lang/parser.h"

#include <stdio.h>
#include <string.h>

static const char *const twins[] = {"pairs", "halves"};

/* Is the row a function? Operators have their own grammar. */
static bool is_function(const struct function *f)
{
    return is_name(f->name, strlen(f->name)) && f->op != OP_NEG;
}

static const struct function *find_function(const struct parser *parser, const struct token *name)
{
    for (int i = 0; i < language_function_count; i++)
        if (is_function(&language_functions[i]) && token_is(parser, name, language_functions[i].name))
            return &language_functions[i];
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
        for (int i = 0; i < language_function_count; i++) {
            int size = (int)strlen(language_functions[i].name);
            int distance = is_function(&language_functions[i])
                               ? edit_distance(text, length, language_functions[i].name, size, best)
                               : best;
            if (distance < best && distance < size) {
                best = distance;
                nearest = language_functions[i].name;
            }
        }
        const char *habit = habit_of(parser, name);
        if (nearest && !habit)
            snprintf(advice, sizeof advice, "Did you mean `%s`?", nearest);
        else
            snprintf(advice, sizeof advice, "%s", habit ? habit : "docs/language.md lists the primitives.");
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
