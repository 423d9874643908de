#include "lang/parser.h"

#include "lang/number.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void terminated(const struct parser *parser, const struct token *name, char text[MAX_NAME + 1])
{
    snprintf(text, MAX_NAME + 1, "%.*s", token_length(name), token_text(parser, name));
}

/* "in" NAME { "," NAME } ":" type */
static void parse_in(struct parser *parser)
{
    static const char advice[] = "An operand is written in A : bf16[M, K]";
    struct token name[MAX_OPERANDS];
    int count = 0;
    coda_dtype dtype = CODA_F32;
    struct shape shape = {0};
    do {
        struct token token = parser->token;
        if (!parser_expect(parser, TOKEN_NAME, "the name of an operand", advice))
            break;
        if (count == MAX_OPERANDS) {
            parser_unexpected(parser, "`:` after at most 64 names", advice);
            break;
        }
        name[count++] = token;
    } while (parser_accept(parser, TOKEN_COMMA));
    bool good = !parser->lost && parser_expect(parser, TOKEN_COLON, "`:` and a type", advice) &&
                parse_type(parser, &dtype, &shape);
    if (good && parser_at(parser, TOKEN_COMMA))
        parser_unexpected(parser, "the end of the statement",
                          "One type a statement: in A, B : bf16[M, K]. Other types have an `in` of their own.");
    for (int i = 0; i < count && !parser->no_memory; i++) {
        struct complaint why = {0};
        char text[MAX_NAME + 1];
        int symbol = define_name(parser, &name[i], SYMBOL_IN, -1);
        if (symbol < 0 || !good)
            continue;
        terminated(parser, &name[i], text);
        int node = built_node(parser, graph_in(parser->graph, text, dtype, &shape, &why), name[i].begin, &why);
        if (node < 0)
            continue;
        parser->symbols.symbol[symbol].index = node;
        parser->graph->node[node].span = token_span(&name[i]);
        parser->graph->operand[parser->graph->node[node].index].span = token_span(&name[i]);
    }
}

/* "param" NAME "=" ["-"] NUMBER */
static void parse_param(struct parser *parser)
{
    static const char advice[] = "A parameter is written param eps = 1e-6";
    struct token name = parser->token, number;
    struct complaint why = {0};
    char text[MAX_NAME + 1];
    double value = 0;
    if (!parser_expect(parser, TOKEN_NAME, "the name of a parameter", advice))
        return;
    int symbol = define_name(parser, &name, SYMBOL_PARAM, -1);
    if (!parser_expect(parser, TOKEN_ASSIGN, "`=` and a number", advice))
        return;
    bool negative = parser_accept(parser, TOKEN_MINUS);
    number = parser->token;
    if (!parser_expect(parser, TOKEN_NUMBER, "a number", "The default of a parameter is a number, not an expression."))
        return;
    if (!number_parse(token_text(parser, &number), token_length(&number), &value)) {
        diagnostics_report(parser->diagnostics, token_span(&number), NULL, "this number does not fit a double");
        return;
    }
    if (symbol < 0)
        return;
    terminated(parser, &name, text);
    parser->symbols.symbol[symbol].index =
        built_node(parser, graph_parameter(parser->graph, text, negative ? -value : value, &why), name.begin, &why);
}

/* One term of a derived axis. False: poison. */
static bool parse_term(struct parser *parser, int defined, int *axis, int64_t *factor)
{
    *axis = -1;
    *factor = 1;
    if (parser_at(parser, TOKEN_NUMBER)) {
        if (!parse_integer(parser, factor, "a size or a factor"))
            return false;
        if (!parser_accept(parser, TOKEN_TIMES))
            return true;
    }
    struct token name = parser->token;
    *axis = parse_axis(parser, AXIS_MAY_APPEAR);
    if (*axis < 0 || *axis != defined)
        return *axis >= 0;
    diagnostics_report(parser->diagnostics, token_span(&name), NULL, "axis `%.*s` is in its own definition",
                       token_length(&name), token_text(parser, &name));
    return false;
}

/* Adds the axis of an `axis` statement. A `stack` before it may have made one of the same name. */
static int declare_axis(struct parser *parser, const struct token *name, const char *text)
{
    struct complaint why = {0};
    if (graph_find_axis(parser->graph, text) >= 0) {
        diagnostics_report(parser->diagnostics, token_span(name),
                           "Declare it before the `stack`, or choose another name.",
                           "the axis `%s` was made by a `stack` above", text);
        return -1;
    }
    int axis = graph_add_axis(parser->graph, text, &why);
    if (axis < 0)
        report_complaint(parser, token_span(name), &why);
    else
        parser->graph->axis[axis].declared_only = true;
    return axis;
}

/* "axis" NAME [ "=" term { "+" term } ] */
static void parse_axis_statement(struct parser *parser)
{
    static const char advice[] = "A derived axis is written axis N = Q + 2*E";
    struct token name = parser->token;
    char text[MAX_NAME + 1];
    int axis = -1, count = 0, term_axis[MAX_AXIS_TERMS] = {0};
    int64_t factor[MAX_AXIS_TERMS] = {0};
    bool good = true;
    if (!parser_expect(parser, TOKEN_NAME, "the name of an axis", advice))
        return;
    int symbol = define_name(parser, &name, SYMBOL_AXIS, -1);
    if (symbol >= 0) {
        terminated(parser, &name, text);
        axis = declare_axis(parser, &name, text);
        parser->symbols.symbol[symbol].index = axis;
        parser->symbols.symbol[symbol].declared = true;
    }
    if (parser_at(parser, TOKEN_END) || parser_at(parser, TOKEN_CLOSE_BRACE))
        return;
    if (!parser_expect(parser, TOKEN_ASSIGN, "`=`", advice))
        return;
    do {
        if (count == MAX_AXIS_TERMS) {
            parser_unexpected(parser, "at most 6 terms", "Give a part of the sum its own `axis`.");
            return;
        }
        good = parse_term(parser, axis, &term_axis[count], &factor[count]) && good;
        count++;
    } while (!parser->lost && parser_accept(parser, TOKEN_PLUS));
    if (!good || parser->lost || axis < 0)
        return;
    struct axis *derived = &parser->graph->axis[axis];
    derived->term_count = count;
    for (int i = 0; i < count; i++) {
        derived->term[i].axis = term_axis[i];
        derived->term[i].factor = factor[i];
    }
}

/* The node of an `in` that a statement names outside of an expression; -1: poison. */
static int parse_in_name(struct parser *parser, const char *what, const char *advice)
{
    struct token name = parser->token;
    if (!parser_expect(parser, TOKEN_NAME, what, advice))
        return -1;
    int symbol = use_name(parser, &name, false);
    const struct symbol *s = symbol < 0 ? NULL : &parser->symbols.symbol[symbol];
    if (!s || s->kind == SYMBOL_UNKNOWN || s->index < 0)
        return -1;
    if (s->kind == SYMBOL_IN)
        return s->index;
    diagnostics_report(parser->diagnostics, token_span(&name), advice, "`%.*s` is no `in`", token_length(&name),
                       token_text(parser, &name));
    return -1;
}

/* "when" NAME */
static void parse_when(struct parser *parser)
{
    struct token name = parser->token;
    struct complaint why = {0};
    int x = parse_in_name(parser, "the name of an operand", "A condition is written when m, of in m : f32[M]");
    if (x >= 0 && graph_when(parser->graph, x, &why) < 0)
        report_complaint(parser, token_span(&name), &why);
}

/* ["[" NAME "]"] after the name of an out. False: poison. */
static bool parse_patch(struct parser *parser, int *ids)
{
    static const char advice[] = "A patch is written out X[t] : bf16[M, N] = v, with in t : i32[M]";
    *ids = -1;
    if (!parser_accept(parser, TOKEN_OPEN_BRACKET))
        return true;
    *ids = parse_in_name(parser, "the name of the columns", advice);
    return parser_expect(parser, TOKEN_CLOSE_BRACKET, "`]`", advice) && *ids >= 0;
}

/* "out" NAME ["[" NAME "]"] ":" type ("=" | "+=") expression */
static void parse_out(struct parser *parser)
{
    static const char advice[] = "An out is written out Y : bf16[M, N] = x, or += x to add to what is there";
    struct token name = parser->token;
    struct complaint why = {0};
    struct shape shape = {0};
    coda_dtype dtype = CODA_F32;
    char text[MAX_NAME + 1];
    if (!parser_expect(parser, TOKEN_NAME, "the name of an out", advice))
        return;
    int symbol = define_name(parser, &name, SYMBOL_OUT, -1), ids;
    bool good = parse_patch(parser, &ids);
    if (parser->lost || !parser_expect(parser, TOKEN_COLON, "`:` and a type", advice))
        return;
    good = parse_type(parser, &dtype, &shape) && good;
    struct span declaration = span_from(parser, name.begin);
    if (parser->lost)
        return;
    coda_role role = parser_at(parser, TOKEN_ACCUMULATE) ? CODA_ACCUMULATE : CODA_OUT;
    if (role == CODA_ACCUMULATE && ids >= 0) {
        parser_unexpected(parser, "`=`", "A patch overwrites an element of each row.");
        return;
    }
    if (!parser_accept(parser, TOKEN_ACCUMULATE) && !parser_expect(parser, TOKEN_ASSIGN, "`=` or `+=`", advice))
        return;
    int value = expression_node(parser);
    if (value < 0 || parser->lost || !good || symbol < 0)
        return;
    terminated(parser, &name, text);
    int added = ids >= 0 ? graph_patch(parser->graph, text, dtype, &shape, value, ids, &why)
                         : graph_out(parser->graph, text, role, dtype, &shape, value, &why);
    if (added < 0)
        report_complaint(parser, declaration, &why);
    else
        parser->graph->operand[parser->graph->operand_count - 1].span = token_span(&name);
}

/* Gives a node the name of its statement. An alias (`a = b`) leaves the node its own. */
static void name_node(struct parser *parser, int node, const struct token *name)
{
    struct node *n = &parser->graph->node[node];
    if (n->name || n->op == OP_IN || n->op == OP_PARAM)
        return;
    n->name = strndup(token_text(parser, name), (size_t)token_length(name));
    if (!n->name)
        parser->no_memory = parser->lost = true;
}

static int define_value(struct parser *parser, const struct token *name, int node)
{
    int symbol = define_name(parser, name, SYMBOL_VALUE, node);
    if (symbol >= 0 && node >= 0)
        name_node(parser, node, name);
    return symbol;
}

/* NAME "=" expression, where `=` is still to come */
static void parse_value(struct parser *parser, const struct token *name)
{
    int node = -1;
    parser->defining[0] = *name;
    if (parser_at(parser, TOKEN_ACCUMULATE))
        parser_unexpected(parser, "`=`", "Only an `out` adds to what is there; a value is defined once.");
    else if (parser_at(parser, TOKEN_COLON))
        parser_unexpected(parser, "`=`",
                          "Values have no declared type: all arithmetic is f32. `cast(x, bf16)` rounds.");
    else if (parser_expect(parser, TOKEN_ASSIGN, "`=`",
                           "A statement is an in, param, axis, out or when, or NAME = expression."))
        node = expression_node(parser);
    define_value(parser, name, parser->lost ? -1 : node);
}

/* NAME "," NAME "=" ("pairs" | "halves") "(" ... ")", where `,` is still to come */
static void parse_twin(struct parser *parser, const struct token *first)
{
    static const char advice[] = "Only `pairs` and `halves` define two values: a, b = pairs(x)";
    int node[2] = {-1, -1};
    parser_advance(parser);
    struct token second = parser->token;
    bool named = parser_expect(parser, TOKEN_NAME, "a second name", advice);
    parser->defining[0] = *first;
    parser->defining[1] = second;
    if (named && parser_at(parser, TOKEN_COMMA))
        parser_unexpected(parser, "`=` after two names", advice);
    if (named && !parser->lost && parser_expect(parser, TOKEN_ASSIGN, "`=`", advice)) {
        if (token_is(parser, &parser->token, "pairs") || token_is(parser, &parser->token, "halves"))
            parse_twin_call(parser, node);
        else
            parser_unexpected(parser, "`pairs` or `halves`", advice);
    }
    bool good = !parser->lost && node[0] >= 0 && node[1] >= 0;
    int a = define_value(parser, first, good ? node[0] : -1);
    int b = named ? define_value(parser, &second, good ? node[1] : -1) : -1;
    if (a >= 0 && b >= 0) {
        parser->symbols.symbol[a].twin = b;
        parser->symbols.symbol[b].twin = a;
    }
}

static const struct {
    const char *word;
    void (*parse)(struct parser *parser);
} statements[] = {
    {"in", parse_in}, {"param", parse_param}, {"axis", parse_axis_statement}, {"out", parse_out}, {"when", parse_when},
};
enum { STATEMENT_COUNT = sizeof statements / sizeof *statements };

/* `inn A : bf16[M]`: a word that is no word of the language. */
static void report_word(struct parser *parser, const struct token *word)
{
    int nearest = -1, best = token_length(word) < 4 ? 2 : 3;
    const char *habit = habit_of(parser, word);
    for (int i = 0; i < STATEMENT_COUNT; i++) {
        int distance = edit_distance(token_text(parser, word), token_length(word), statements[i].word,
                                     (int)strlen(statements[i].word), best);
        if (distance < best) {
            best = distance;
            nearest = i;
        }
    }
    char advice[200];
    if (habit)
        snprintf(advice, sizeof advice, "%s", habit);
    else
        snprintf(advice, sizeof advice, "%s%s%sA statement is an in, param, axis, out or when, or NAME = expression.",
                 nearest < 0 ? "" : "Did you mean `", nearest < 0 ? "" : statements[nearest].word,
                 nearest < 0 ? "" : "`? ");
    diagnostics_report(parser->diagnostics, token_span(word), advice, "`%.*s` begins no statement", token_length(word),
                       token_text(parser, word));
    parser->lost = true;
}

void parse_statement(struct parser *parser)
{
    struct token first = parser->token;
    parser->defining[0] = parser->defining[1] = (struct token){0};
    if (first.kind != TOKEN_NAME) {
        bool is_operator = first.kind > TOKEN_ACCUMULATE || first.kind == TOKEN_DOT;
        parser_unexpected(parser, "a statement",
                          is_operator ? "An operator that continues a line stands at the end of that line." : NULL);
        parser_advance(parser);
        return;
    }
    parser_advance(parser);
    for (int i = 0; i < STATEMENT_COUNT; i++)
        if (token_is(parser, &first, statements[i].word)) {
            statements[i].parse(parser);
            return;
        }
    if (parser_at(parser, TOKEN_COMMA))
        parse_twin(parser, &first);
    else if (parser_at(parser, TOKEN_NAME))
        report_word(parser, &first);
    else
        parse_value(parser, &first);
}

bool at_statement(const struct parser *parser)
{
    if (!parser_at(parser, TOKEN_NAME))
        return false;
    struct token second = parser_look_ahead(parser, 1);
    for (int i = 0; i < STATEMENT_COUNT; i++)
        if (token_is(parser, &parser->token, statements[i].word))
            return second.kind == TOKEN_NAME;
    if (token_is(parser, &parser->token, "program") || token_is(parser, &parser->token, "block"))
        return second.kind == TOKEN_NAME;
    if (second.kind == TOKEN_ASSIGN)
        return !token_is(parser, &parser->token, "cols"); /* `cols = T` may stand on its own line inside a call */
    struct token third = parser_look_ahead(parser, 2);
    return second.kind == TOKEN_COMMA && third.kind == TOKEN_NAME && !token_is(parser, &third, "cols") &&
           parser_look_ahead(parser, 3).kind == TOKEN_ASSIGN;
}

bool names_in_statement(struct lexer *lexer, const char *name, int length, bool *found)
{
    *found = false;
    for (bool defining = true;;) {
        struct token token = lexer_next(lexer);
        if (token.kind == TOKEN_EOF || token.kind == TOKEN_CLOSE_BRACE)
            return *found;
        if (token.kind == TOKEN_END)
            return true;
        defining = defining && (token.kind == TOKEN_NAME || token.kind == TOKEN_COMMA);
        if (defining && token.kind == TOKEN_NAME && token_length(&token) == length &&
            memcmp(lexer->text + token.begin, name, (size_t)length) == 0) {
            *found = true;
            return true;
        }
    }
}
