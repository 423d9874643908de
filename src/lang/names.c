/* What names mean: definitions, uses, and what to say about a name that means nothing. */
#include "lang/parser.h"

#include <stdio.h>
#include <string.h>

static const char *const kinds[] = {"an unknown name", "an `in`",  "a `param`", "an axis",
                                    "a value",         "an `out`", "a program"};

static void report_duplicate(struct parser *parser, const struct token *name, const struct symbol *first)
{
    char advice[256];
    if (diagnostics_full(parser->diagnostics)) {
        diagnostics_report(parser->diagnostics, token_span(name), NULL, "duplicate");
        return;
    }
    int line = diagnostics_line(parser->diagnostics, first->span.begin);
    if (first->kind == SYMBOL_AXIS && !first->declared)
        snprintf(advice, sizeof advice,
                 "Line %d uses it as an axis. Operands, params, values and axes share one namespace.%s", line,
                 "\nAn `axis` statement stands before the first use of its axis.");
    else
        snprintf(advice, sizeof advice, "Line %d defines it as %s. Every name is defined once.", line,
                 kinds[first->kind]);
    diagnostics_report(parser->diagnostics, token_span(name), advice, "the name `%.*s` is already taken",
                       token_length(name), token_text(parser, name));
}

int define_name(struct parser *parser, const struct token *name, enum symbol_kind kind, int index)
{
    const char *text = token_text(parser, name);
    if (is_reserved_word(text, (size_t)token_length(name))) {
        diagnostics_report(parser->diagnostics, token_span(name), "Choose another name.",
                           "`%.*s` is a word of the language", token_length(name), text);
        excuse_name(parser, name);
        return -1;
    }
    int at = symbols_find(&parser->symbols, text, token_length(name));
    if (at >= 0 && parser->symbols.symbol[at].kind != SYMBOL_UNKNOWN) {
        report_duplicate(parser, name, &parser->symbols.symbol[at]);
        return -1;
    }
    if (at < 0)
        at = symbols_add(&parser->symbols, text, token_length(name), kind, index);
    if (at < 0) {
        parser->no_memory = parser->lost = true;
        return -1;
    }
    struct symbol *symbol = &parser->symbols.symbol[at];
    symbol->kind = kind;
    symbol->index = index;
    symbol->span = token_span(name);
    return at;
}

void excuse_name(struct parser *parser, const struct token *name)
{
    const char *text = token_text(parser, name);
    if (symbols_find(&parser->symbols, text, token_length(name)) < 0 &&
        symbols_add(&parser->symbols, text, token_length(name), SYMBOL_UNKNOWN, -1) < 0)
        parser->no_memory = true;
}

void suggest_name(const struct parser *parser, const struct token *name, bool axes_only, char *text, size_t size)
{
    const struct symbol *nearest = NULL;
    int best = suggestion_limit(token_length(name));
    for (int i = 0; i < parser->symbols.count; i++) {
        const struct symbol *s = &parser->symbols.symbol[i];
        if (s->kind == SYMBOL_UNKNOWN || (axes_only && s->kind != SYMBOL_AXIS))
            continue;
        int distance = edit_distance(token_text(parser, name), token_length(name), s->name, s->length, best);
        if (distance < best && distance < s->length) {
            best = distance;
            nearest = s;
        }
    }
    text[0] = '\0';
    if (nearest)
        snprintf(text, size, "Did you mean `%.*s`?", nearest->length, nearest->name);
}

/* The line on which the rest of the unit defines the name; 0: none does. */
static int line_of_later_definition(const struct parser *parser, const struct token *name)
{
    struct lexer lexer = parser->lexer;
    bool found = false;
    lexer.depth = 0;
    for (struct token token = lexer_next(&lexer); token.kind != TOKEN_END; token = lexer_next(&lexer))
        if (token.kind == TOKEN_EOF || token.kind == TOKEN_CLOSE_BRACE)
            return 0;
    while (names_in_statement(&lexer, token_text(parser, name), token_length(name), &found))
        if (found)
            return diagnostics_line(parser->diagnostics, lexer.position);
    return 0;
}

static void report_unknown(struct parser *parser, const struct token *name, bool as_axis)
{
    char advice[256] = "";
    const char *text = token_text(parser, name);
    int length = token_length(name);
    if (diagnostics_full(parser->diagnostics)) {
        diagnostics_report(parser->diagnostics, token_span(name), NULL, "unknown");
        return;
    }
    for (int i = 0; i < 2; i++)
        if (token_length(&parser->defining[i]) == length &&
            memcmp(token_text(parser, &parser->defining[i]), text, (size_t)length) == 0) {
            diagnostics_report(parser->diagnostics, token_span(name),
                               "Statements run once, in order: give the new value a name of its own.",
                               "`%.*s` is used in its own definition", length, text);
            return;
        }
    int line = line_of_later_definition(parser, name);
    if (line > 0) {
        diagnostics_report(parser->diagnostics, token_span(name), "Move its definition before its first use.",
                           "`%.*s` is used here, but defined only later, in line %d", length, text, line);
        return;
    }
    suggest_name(parser, name, as_axis, advice, sizeof advice);
    const char *habit = advice[0] ? NULL : habit_of(parser, name);
    if (habit)
        snprintf(advice, sizeof advice, "%s", habit);
    else if (as_axis && !advice[0])
        snprintf(advice, sizeof advice,
                 "Axes come from the types of operands and from `axis` statements; `axis %.*s` %s",
                 length < 60 ? length : 60, text, "alone declares one.");
    diagnostics_report(parser->diagnostics, token_span(name), advice, "unknown %s `%.*s`", as_axis ? "axis" : "name",
                       length, text);
}

int use_name(struct parser *parser, const struct token *name, bool as_axis)
{
    int at = symbols_find(&parser->symbols, token_text(parser, name), token_length(name));
    if (at < 0) {
        report_unknown(parser, name, as_axis);
        at = symbols_add(&parser->symbols, token_text(parser, name), token_length(name), SYMBOL_UNKNOWN, -1);
        if (at < 0)
            parser->no_memory = parser->lost = true;
    }
    if (at >= 0)
        parser->symbols.symbol[at].used = true;
    return at;
}

/* An axis may also be used by the shape of a value alone: the rows of a stack. */
static void mark_axes_of_shapes(struct parser *parser)
{
    bool used[MAX_AXES] = {false};
    for (int n = 0; n < parser->graph->node_count; n++) {
        const struct node *node = &parser->graph->node[n];
        for (int d = 0; d < node->shape.rank; d++)
            if (node->shape.dim[d].axis >= 0)
                used[node->shape.dim[d].axis] = true;
        if (node->op == OP_ROPE && node->rope_cols.form != DIM_ABSENT && node->rope_cols.axis >= 0)
            used[node->rope_cols.axis] = true;
    }
    for (int i = 0; i < parser->symbols.count; i++) {
        struct symbol *s = &parser->symbols.symbol[i];
        if (s->kind == SYMBOL_AXIS && s->index >= 0 && used[s->index])
            s->used = true;
    }
}

void report_unused(struct parser *parser)
{
    mark_axes_of_shapes(parser);
    for (int i = 0; i < parser->symbols.count; i++) {
        const struct symbol *s = &parser->symbols.symbol[i];
        bool matters = s->kind != SYMBOL_OUT && s->kind != SYMBOL_UNKNOWN && (s->kind != SYMBOL_AXIS || s->declared);
        bool twin_used = s->twin >= 0 && parser->symbols.symbol[s->twin].used;
        if (!matters || s->used || twin_used)
            continue;
        diagnostics_report(parser->diagnostics, s->span, "Use it, or remove it.", "%s `%.*s` is never used",
                           s->kind == SYMBOL_AXIS    ? "axis"
                           : s->kind == SYMBOL_IN    ? "operand"
                           : s->kind == SYMBOL_PARAM ? "param"
                                                     : "value",
                           s->length, s->name);
    }
}
