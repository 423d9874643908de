#include "lang/lang.h"
#include "lang/parser.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void parser_start(struct parser *parser, struct diagnostics *diagnostics)
{
    *parser = (struct parser){.diagnostics = diagnostics};
    lexer_start(&parser->lexer, diagnostics->text, diagnostics->length);
    parser->token = lexer_next(&parser->lexer);
}

void parser_advance(struct parser *parser)
{
    parser->previous = parser->token;
    parser->token = lexer_next(&parser->lexer);
}

struct token parser_look_ahead(const struct parser *parser, int tokens)
{
    struct lexer copy = parser->lexer;
    struct token token = parser->token;
    while (tokens-- > 0)
        token = lexer_next(&copy);
    return token;
}

bool parser_at(const struct parser *parser, enum token_kind kind)
{
    return parser->token.kind == kind;
}

bool parser_accept(struct parser *parser, enum token_kind kind)
{
    if (!parser_at(parser, kind))
        return false;
    parser_advance(parser);
    return true;
}

bool parser_expect(struct parser *parser, enum token_kind kind, const char *what, const char *advice)
{
    if (parser_accept(parser, kind))
        return true;
    parser_unexpected(parser, what, advice);
    return false;
}

const char *token_text(const struct parser *parser, const struct token *token)
{
    return parser->diagnostics->text + token->begin;
}

int token_length(const struct token *token)
{
    return token->end - token->begin;
}

bool token_is(const struct parser *parser, const struct token *token, const char *word)
{
    size_t length = (size_t)token_length(token);
    return strlen(word) == length && memcmp(token_text(parser, token), word, length) == 0;
}

struct span token_span(const struct token *token)
{
    return (struct span){token->begin, token->end};
}

struct span span_from(const struct parser *parser, int begin)
{
    return (struct span){begin, parser->previous.end > begin ? parser->previous.end : begin};
}

static int shown_length(const struct token *token)
{
    return token_length(token) < 40 ? token_length(token) : 40;
}

/* Tokens that are wrong wherever they stand. */
static bool report_bad_token(struct parser *parser)
{
    const struct token *token = &parser->token;
    const char *text = token_text(parser, token);
    int length = shown_length(token);
    if (parser_at(parser, TOKEN_BAD_CHARACTER))
        diagnostics_report(parser->diagnostics, token_span(token),
                           *text == '^' ? "There is no power operator: write x * x." : NULL,
                           "`%.*s` is no character of the language", length, text);
    else if (parser_at(parser, TOKEN_BAD_NUMBER))
        diagnostics_report(parser->diagnostics, token_span(token),
                           "A number is written like 2, 0.5 or 1e-6; a product needs its `*`.",
                           "`%.*s` is not a number", length, text);
    else if (parser_at(parser, TOKEN_LONG_NAME))
        diagnostics_report(parser->diagnostics, token_span(token), NULL,
                           "this name has %d bytes, but a name has at most %d", token_length(token), MAX_NAME);
    else
        return false;
    return true;
}

int parser_unexpected(struct parser *parser, const char *what, const char *advice)
{
    const struct token *token = &parser->token;
    int after = parser->previous.end;
    if (parser->lost)
        return -1;
    parser->lost = true;
    if (report_bad_token(parser))
        return -1;
    if (parser_at(parser, TOKEN_EOF))
        diagnostics_report(parser->diagnostics, (struct span){after, after}, advice,
                           "expected %s, but the text ends here", what);
    else if ((parser_at(parser, TOKEN_END) && token_text(parser, token)[0] != ';') ||
             (token->first_on_line && at_statement(parser)))
        diagnostics_report(parser->diagnostics, (struct span){after, after}, advice,
                           "expected %s, but the line ends here", what);
    else {
        bool ends = strcmp(what, "the end of the statement") == 0 || what[0] == '`';
        const char *habit = token->kind != TOKEN_OPEN_BRACKET || ends ? habit_of(parser, token) : NULL;
        diagnostics_report(parser->diagnostics, token_span(token), habit ? habit : advice, "expected %s, found `%.*s`",
                           what, shown_length(token), token_text(parser, token));
    }
    return -1;
}

void report_complaint(struct parser *parser, struct span span, const struct complaint *why)
{
    if (why->status == CODA_MEMORY)
        parser->no_memory = parser->lost = true;
    else
        diagnostics_report(parser->diagnostics, span, why->advice, "%s", why->reason);
}

int built_node(struct parser *parser, int node, int begin, const struct complaint *why)
{
    struct span span = span_from(parser, begin);
    if (node < 0) {
        report_complaint(parser, span, why);
        return -1;
    }
    for (; parser->sets_spans && parser->nodes_with_span < parser->graph->node_count; parser->nodes_with_span++)
        parser->graph->node[parser->nodes_with_span].span = span;
    return node;
}

/* After an error of the grammar: on to where the next statement seems to start. */
static void find_next_statement(struct parser *parser)
{
    while (!parser_at(parser, TOKEN_EOF) && !parser_at(parser, TOKEN_CLOSE_BRACE) && !parser_at(parser, TOKEN_END)) {
        if (parser->token.first_on_line && parser->token.begin > 0 && at_statement(parser)) {
            parser->lexer.depth = 0;
            break;
        }
        if (parser_at(parser, TOKEN_NAME))
            excuse_name(parser, &parser->token);
        parser_advance(parser);
    }
    parser->lost = false;
    parser->depth = 0;
}

static bool at_unit(const struct parser *parser)
{
    if (!token_is(parser, &parser->token, "program") && !token_is(parser, &parser->token, "block"))
        return false;
    struct token name = parser_look_ahead(parser, 1), brace = parser_look_ahead(parser, 2);
    return name.kind == TOKEN_NAME && (brace.kind == TOKEN_OPEN_BRACE || brace.kind == TOKEN_END);
}

/* The statements between the braces. */
static void parse_body(struct parser *parser, const struct token *name, const struct token *brace)
{
    int errors = parser->diagnostics->count;
    while (!parser->no_memory) {
        while (parser_accept(parser, TOKEN_END))
            ;
        if (parser_accept(parser, TOKEN_CLOSE_BRACE))
            return;
        if (parser_at(parser, TOKEN_EOF) || at_unit(parser)) {
            diagnostics_report(parser->diagnostics, token_span(brace), "Close it with `}` after its last statement.",
                               "the `{` of `%.*s` is never closed", token_length(name), token_text(parser, name));
            return;
        }
        parse_statement(parser);
        if (!parser->lost && !parser_at(parser, TOKEN_END) && !parser_at(parser, TOKEN_CLOSE_BRACE) &&
            !parser_at(parser, TOKEN_EOF))
            parser_unexpected(parser, "the end of the statement",
                              "A statement ends at the end of its line, or at `;`.");
        if (parser->graph->node_count == MAX_NODES && parser->diagnostics->count > errors) {
            parser->lost = true; /* every further statement would fail for the same reason */
            return;
        }
        if (parser->lost)
            find_next_statement(parser);
    }
}

static void report_violation(void *context, int node, const struct complaint *why)
{
    struct parser *parser = context;
    struct span span = {0, 0};
    if (node >= 0 && node < parser->graph->node_count)
        span = parser->graph->node[node].span;
    report_complaint(parser, span, why);
}

/* What can be said only of a whole program or block. */
static void check_unit(struct parser *parser, const struct token *name)
{
    bool has_out = false;
    for (int i = 0; i < parser->graph->operand_count; i++)
        has_out = has_out || parser->graph->operand[i].role != CODA_IN;
    int errors = parser->diagnostics->count;
    if (!has_out) {
        diagnostics_report(parser->diagnostics, token_span(name),
                           "Add `out Y : bf16[M, N] = ...` for what it computes.",
                           "`%.*s` has no out, so it computes nothing", token_length(name), token_text(parser, name));
        return;
    }
    report_unused(parser);
    if (!parser->graph->is_block && parser->diagnostics->count == errors)
        graph_check(parser->graph, report_violation, parser);
}

/* NAME "{" statements "}", after `program` or `block`. */
static struct graph *parse_unit(struct parser *parser, bool is_block)
{
    struct token name = parser->token, brace;
    char text[MAX_NAME + 1];
    int errors = parser->diagnostics->count;
    if (!parser_expect(parser, TOKEN_NAME, is_block ? "the name of the block" : "the name of the program", NULL))
        return NULL;
    while (parser_accept(parser, TOKEN_END))
        ;
    brace = parser->token;
    if (!parser_expect(parser, TOKEN_OPEN_BRACE, "`{`", "The statements stand between braces: program NAME { ... }"))
        return NULL;
    snprintf(text, sizeof text, "%.*s", token_length(&name), token_text(parser, &name));
    symbols_clear(&parser->symbols);
    parser->nodes_with_span = 0;
    parser->sets_spans = true;
    parser->graph = graph_new(text, is_block);
    if (!parser->graph) {
        parser->no_memory = true;
        return NULL;
    }
    parse_body(parser, &name, &brace);
    if (parser->diagnostics->count == errors && !parser->no_memory)
        check_unit(parser, &name);
    return parser->graph;
}

/* Appends a graph, or frees it: after an error none is wanted. */
static void keep_unit(struct parser *parser, struct unit *unit, int *capacity, struct graph *graph)
{
    parser->graph = NULL;
    if (!graph || parser->diagnostics->count > 0 || parser->no_memory) {
        graph_free(graph);
        return;
    }
    if (unit->count == *capacity) {
        int larger = *capacity ? 2 * *capacity : 8;
        struct graph **grown = realloc(unit->graph, (size_t)larger * sizeof *grown);
        if (!grown) {
            parser->no_memory = true;
            graph_free(graph);
            return;
        }
        unit->graph = grown;
        *capacity = larger;
    }
    unit->graph[unit->count++] = graph;
}

/* Binds the name of a program; two of one name could not be told apart. */
static void name_unit(struct parser *parser, struct symbols *names)
{
    struct token name = parser_look_ahead(parser, 1);
    if (name.kind != TOKEN_NAME)
        return;
    const char *text = token_text(parser, &name);
    int length = token_length(&name), other = names->symbol ? symbols_find(names, text, length) : -1;
    if (other >= 0) {
        char advice[96] = "";
        if (!diagnostics_full(parser->diagnostics))
            snprintf(advice, sizeof advice, "The first one stands at line %d.",
                     diagnostics_line(parser->diagnostics, names->symbol[other].span.begin));
        diagnostics_report(parser->diagnostics, token_span(&name), advice,
                           "there are two programs or blocks named `%.*s`", length, text);
        return;
    }
    int symbol = symbols_add(names, text, length, SYMBOL_UNIT, 0);
    if (symbol < 0)
        parser->no_memory = true;
    else
        names->symbol[symbol].span = token_span(&name);
}

/* Skips to the next `program` or `block` that starts a line. */
static void find_next_unit(struct parser *parser)
{
    parser->lost = false;
    while (!parser_at(parser, TOKEN_EOF) && !(parser->token.first_on_line && at_unit(parser)))
        parser_advance(parser);
}

static void parse_units(struct parser *parser, struct unit *unit)
{
    static const char advice[] = "A text holds programs and blocks: program NAME { ... }";
    struct symbols names = {0};
    int capacity = 0;
    while (!parser->no_memory) {
        while (parser_accept(parser, TOKEN_END))
            ;
        if (parser_at(parser, TOKEN_EOF))
            break;
        bool is_block = token_is(parser, &parser->token, "block");
        if (is_block || token_is(parser, &parser->token, "program")) {
            if (unit->count == MAX_UNITS) {
                diagnostics_report(parser->diagnostics, token_span(&parser->token),
                                   "Split the text into several files.", "a text holds at most %d programs and blocks",
                                   MAX_UNITS);
                break;
            }
            name_unit(parser, &names);
            parser_advance(parser);
            keep_unit(parser, unit, &capacity, parse_unit(parser, is_block));
        } else
            parser_unexpected(parser, "`program` or `block`", advice);
        if (parser->lost)
            find_next_unit(parser);
    }
    symbols_free(&names);
    if (parser->diagnostics->count == 0 && unit->count == 0 && !parser->no_memory)
        diagnostics_report(parser->diagnostics, (struct span){0, 0}, advice, "the text holds no program");
}

/* Refuses what is no text. */
static bool is_text(struct diagnostics *diagnostics, const char *text, size_t length)
{
    static const char advice[] = "Programs are UTF-8 text; this may be another kind of file.";
    long bad = find_bad_byte(text, length);
    if (bad < 0)
        return true;
    diagnostics->ascii_only = true;
    struct span span = {(int)bad, (int)bad + 1};
    if (text[bad] == '\0')
        diagnostics_report(diagnostics, span, advice, "the text has a NUL byte");
    else
        diagnostics_report(diagnostics, span, advice, "byte 0x%02X is not UTF-8", (unsigned char)text[bad]);
    return false;
}

coda_status parse(const char *text, size_t length, const char *file_name, struct unit *unit, coda_error *error)
{
    struct diagnostics diagnostics = {.text = text ? text : "", .file_name = file_name, .error = error};
    struct unit found = {0};
    struct parser parser = {0};
    if (length > MAX_TEXT) {
        diagnostics_report(&diagnostics, (struct span){0, 0}, NULL, "the text has %zu bytes, but at most %d are parsed",
                           length, MAX_TEXT);
        return diagnostics_finish(&diagnostics);
    }
    diagnostics.length = text ? (int)length : 0;
    if (!is_text(&diagnostics, diagnostics.text, (size_t)diagnostics.length))
        return diagnostics_finish(&diagnostics);
    parser_start(&parser, &diagnostics);
    parse_units(&parser, &found);
    symbols_free(&parser.symbols);
    coda_status status = diagnostics_finish(&diagnostics);
    if (parser.no_memory) {
        status = CODA_MEMORY;
        if (error) {
            error->status = status;
            snprintf(error->message, sizeof error->message, "out of memory while parsing %.200s",
                     file_name ? file_name : "<text>");
        }
    }
    if (status == CODA_OK)
        *unit = found;
    else
        unit_free(&found);
    return status;
}

void unit_free(struct unit *unit)
{
    for (int i = 0; i < unit->count; i++)
        graph_free(unit->graph[i]);
    free(unit->graph);
    *unit = (struct unit){0};
}
