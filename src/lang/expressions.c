#include "lang/lang.h"
#include "lang/parser.h"

#include "lang/number.h"
#include <limits.h>
#include <stdio.h>
#include <string.h>

bool parser_nest(struct parser *parser)
{
    if (parser->lost)
        return false;
    if (parser->depth == MAX_NESTING) {
        diagnostics_report(parser->diagnostics, token_span(&parser->token), "Give an inner part a name of its own.",
                           "this expression is nested more than %d deep", MAX_NESTING);
        parser->lost = true;
        return false;
    }
    parser->depth++;
    return true;
}

void parser_unnest(struct parser *parser)
{
    parser->depth--;
}

static int elementwise(struct parser *parser, enum op op, const int *input, int count, int begin)
{
    struct complaint why = {0};
    for (int i = 0; i < count; i++)
        if (input[i] < 0)
            return -1;
    return built_node(parser, graph_elementwise(parser->graph, op, input, count, &why), begin, &why);
}

static int number(struct parser *parser, bool negative, int begin)
{
    struct token token = parser->token;
    struct complaint why = {0};
    double value = 0;
    parser_advance(parser);
    if (number_parse(token_text(parser, &token), token_length(&token), &value))
        return built_node(parser, graph_number(parser->graph, negative ? -value : value, &why), begin, &why);
    diagnostics_report(parser->diagnostics, token_span(&token), NULL, "this number does not fit a double");
    return -1;
}

/* A name that stands for a value. */
static int name_value(struct parser *parser, const struct token *name)
{
    struct complaint why = {0};
    const char *text = token_text(parser, name);
    int symbol = use_name(parser, name, false);
    if (symbol < 0)
        return -1;
    const struct symbol *s = &parser->symbols.symbol[symbol];
    if (s->kind == SYMBOL_OUT)
        diagnostics_report(parser->diagnostics, token_span(name),
                           "Name the value (x = ...), write it to the out (out X : bf16[M, N] = x), and use x here.",
                           "`%.*s` is an out, which cannot be read back", token_length(name), text);
    if (s->index < 0 || s->kind == SYMBOL_OUT || s->kind == SYMBOL_UNKNOWN)
        return -1;
    if (s->kind == SYMBOL_AXIS)
        return built_node(parser, graph_size(parser->graph, s->index, &why), name->begin, &why);
    return s->index;
}

static int primary(struct parser *parser)
{
    struct token token = parser->token;
    if (token.first_on_line && at_statement(parser)) /* what stands above was not finished */
        return parser_unexpected(parser, "a value", NULL);
    if (parser_at(parser, TOKEN_NUMBER))
        return number(parser, false, token.begin);
    if (parser_accept(parser, TOKEN_NAME))
        return parser_at(parser, TOKEN_OPEN_PAREN) ? parse_call(parser, &token) : name_value(parser, &token);
    if (parser_accept(parser, TOKEN_OPEN_PAREN)) {
        int x = expression_node(parser);
        if (!parser->lost)
            parser_expect(parser, TOKEN_CLOSE_PAREN, "`)`", "It closes the `(` before this.");
        return x;
    }
    if (parser_at(parser, TOKEN_TIMES) && parser->previous.kind == TOKEN_TIMES)
        return parser_unexpected(parser, "a value", "There is no power operator: write x * x.");
    if (parser_at(parser, TOKEN_DIVIDE) && parser->previous.kind == TOKEN_DIVIDE)
        return parser_unexpected(parser, "a value", "A comment starts with #.");
    if (parser_at(parser, TOKEN_DOT))
        return parser_unexpected(parser, "a value", "A number starts with a digit: 0.5");
    return parser_unexpected(parser, "a value", NULL);
}

static int postfix(struct parser *parser)
{
    struct complaint why = {0};
    int begin = parser->token.begin, x = primary(parser);
    if (parser->lost || !parser_accept(parser, TOKEN_DOT))
        return x;
    if (!parser_at(parser, TOKEN_NAME) || !token_is(parser, &parser->token, "T"))
        return parser_unexpected(parser, "`T` after the point",
                                 "x.T is the transpose. Functions take their value: mean(x, N:128), silu(x).");
    parser_advance(parser);
    return x < 0 ? -1 : built_node(parser, graph_transpose(parser->graph, x, &why), begin, &why);
}

static int unary(struct parser *parser)
{
    int begin = parser->token.begin, x = -1;
    if (!parser_nest(parser))
        return -1;
    if (!parser_accept(parser, TOKEN_MINUS))
        x = postfix(parser);
    else if (parser_at(parser, TOKEN_NUMBER))
        x = number(parser, true, begin);
    else {
        x = unary(parser);
        x = elementwise(parser, OP_NEG, &x, 1, begin);
    }
    parser_unnest(parser);
    return x;
}

static int product(struct parser *parser)
{
    int begin = parser->token.begin, left = unary(parser);
    while (!parser->lost &&
           (parser_at(parser, TOKEN_TIMES) || parser_at(parser, TOKEN_DIVIDE) || parser_at(parser, TOKEN_MATMUL))) {
        struct complaint why = {0};
        enum token_kind sign = parser->token.kind;
        parser_advance(parser);
        int right = unary(parser);
        if (parser->lost)
            return -1;
        if (sign != TOKEN_MATMUL)
            left = elementwise(parser, sign == TOKEN_TIMES ? OP_MUL : OP_DIV, (int[]){left, right}, 2, begin);
        else if (left >= 0 && right >= 0)
            left = built_node(parser, graph_gemm(parser->graph, left, right, &why), begin, &why);
        else
            left = -1;
    }
    return left;
}

static int sum(struct parser *parser)
{
    int begin = parser->token.begin, left = product(parser);
    while (!parser->lost && (parser_at(parser, TOKEN_PLUS) || parser_at(parser, TOKEN_MINUS))) {
        enum op op = parser_at(parser, TOKEN_PLUS) ? OP_ADD : OP_SUB;
        parser_advance(parser);
        int right = product(parser);
        if (!parser->lost)
            left = elementwise(parser, op, (int[]){left, right}, 2, begin);
    }
    return left;
}

static bool comparison(const struct parser *parser, enum op *op)
{
    static const enum op ops[] = {OP_LT, OP_LE, OP_GT, OP_GE, OP_EQ, OP_NE};
    if (parser->token.kind < TOKEN_LT || parser->token.kind > TOKEN_NE)
        return false;
    *op = ops[parser->token.kind - TOKEN_LT];
    return true;
}

int expression_node(struct parser *parser)
{
    enum op op, next;
    int begin = parser->token.begin, left = sum(parser);
    if (parser->lost || !comparison(parser, &op))
        return parser->lost ? -1 : left;
    parser_advance(parser);
    int right = sum(parser);
    if (parser->lost)
        return -1;
    if (comparison(parser, &next))
        return parser_unexpected(parser, "the end of the comparison",
                                 "Comparisons do not chain: write (a < b) * (b < c).");
    return elementwise(parser, op, (int[]){left, right}, 2, begin);
}

/* Binds what an expression text may use: the given names first, then the axes of the graph. */
static void bind_names(struct parser *parser, const char *const *names, const int *nodes, int count)
{
    struct symbols *symbols = &parser->symbols;
    for (int i = 0; i < count + parser->graph->axis_count && !parser->no_memory; i++) {
        bool is_axis = i >= count;
        const char *name = is_axis ? parser->graph->axis[i - count].name : names[i];
        if (symbols_find(symbols, name, (int)strlen(name)) < 0 &&
            symbols_add(symbols, name, (int)strlen(name), is_axis ? SYMBOL_AXIS : SYMBOL_VALUE,
                        is_axis ? i - count : nodes[i]) < 0)
            parser->no_memory = true;
    }
}

int parse_expression(struct graph *graph, const char *text, const char *const *names, const int *nodes, int count,
                     struct complaint *why)
{
    struct diagnostics diagnostics = {.text = text, .length = (int)strlen(text), .first = why};
    struct parser parser;
    *why = (struct complaint){0};
    parser_start(&parser, &diagnostics);
    parser.graph = graph;
    bind_names(&parser, names, nodes, count);
    int node = parser.no_memory ? -1 : expression_node(&parser);
    if (!parser.lost && !parser.no_memory && !parser_at(&parser, TOKEN_EOF) && !parser_at(&parser, TOKEN_END))
        node = parser_unexpected(&parser, "the end of the expression", NULL);
    symbols_free(&parser.symbols);
    if (parser.no_memory)
        *why = (struct complaint){.status = CODA_MEMORY, .reason = "out of memory while parsing an expression"};
    return diagnostics.count > 0 || parser.no_memory ? -1 : node;
}
