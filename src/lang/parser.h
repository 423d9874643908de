/* The parser's inside: recursive descent over the lexer's tokens, straight into a graph.
 *
 * A node of -1 is poison: the error that made it is already reported, so whatever uses it stays silent. An error of the
 * grammar sets `lost`; every parsing function then returns at once, and the statement loop finds the next statement. */
#ifndef CODA_LANG_PARSER_H
#define CODA_LANG_PARSER_H

#include "lang/diagnostics.h"
#include "lang/lexer.h"
#include "lang/symbols.h"

enum { MAX_NESTING = 200 };

struct parser {
    struct lexer lexer;    /* stands after `token` */
    struct token token;    /* the next token */
    struct token previous; /* the one before it */
    struct diagnostics *diagnostics;
    struct graph *graph;
    struct symbols symbols;
    struct token defining[2]; /* the names of the values whose statement is read; length 0: none */
    int depth;                /* of parentheses, calls and signs */
    int nodes_with_span;
    bool sets_spans;
    bool lost; /* in a statement whose grammar is wrong */
    bool no_memory;
};

/* ---------------------------------------------------------------- tokens (parser.c) */

void parser_start(struct parser *parser, struct diagnostics *diagnostics);
void parser_advance(struct parser *parser);
struct token parser_look_ahead(const struct parser *parser, int tokens); /* 1: the token after `token` */
bool parser_at(const struct parser *parser, enum token_kind kind);
bool parser_accept(struct parser *parser, enum token_kind kind);
/* Takes the token, or reports that `what` was expected. */
bool parser_expect(struct parser *parser, enum token_kind kind, const char *what, const char *advice);
/* Reports that `what` was expected where the next token stands, and gives the statement up. Returns -1. */
int parser_unexpected(struct parser *parser, const char *what, const char *advice);

bool token_is(const struct parser *parser, const struct token *token, const char *word);
const char *token_text(const struct parser *parser, const struct token *token);
int token_length(const struct token *token);
struct span token_span(const struct token *token);
struct span span_from(const struct parser *parser, int begin); /* up to the end of the previous token */

/* ---------------------------------------------------------------- nodes (parser.c) */

/* What a graph function returned: reports a complaint at the text from `begin`, or gives the new nodes that span. */
int built_node(struct parser *parser, int node, int begin, const struct complaint *why);
void report_complaint(struct parser *parser, struct span span, const struct complaint *why);

/* ---------------------------------------------------------------- names (names.c) */

/* Binds a name; reports one that is taken or reserved. Returns its symbol, -1 where it could not be bound. */
int define_name(struct parser *parser, const struct token *name, enum symbol_kind kind, int index);
/* The symbol of a name in use. Reports an unknown one once, and what may have been meant. -1: no memory. */
int use_name(struct parser *parser, const struct token *name, bool as_axis);
/* The nearest symbol to a misspelt name, as "did you mean `x`?", or "" */
void suggest_name(const struct parser *parser, const struct token *name, bool axes_only, char *text, size_t size);
/* Binds the unknown names of a piece of text that was given up, so that they cause no further errors. */
void excuse_name(struct parser *parser, const struct token *name);
void report_unused(struct parser *parser);

/* What to say about a word or sign that another language would have here (habits.c); NULL: nothing. */
const char *habit_of(const struct parser *parser, const struct token *token);

/* ---------------------------------------------------------------- types (types.c) */

enum axis_rule { AXIS_MUST_EXIST, AXIS_MAY_APPEAR };

int parse_axis(struct parser *parser, enum axis_rule rule);
bool parse_integer(struct parser *parser, int64_t *value, const char *what);
bool parse_length(struct parser *parser, struct extent *length);
bool parse_dim(struct parser *parser, struct dim *dim, enum axis_rule rule);
bool parse_shape(struct parser *parser, struct shape *shape, enum axis_rule rule); /* from the `[` */
bool parse_dtype(struct parser *parser, coda_dtype *dtype);
/* False: poison. The axes it names are bound in any case. */
bool parse_type(struct parser *parser, coda_dtype *dtype, struct shape *shape);

/* ---------------------------------------------------------------- statements, expressions */

void parse_statement(struct parser *parser);    /* statements.c */
bool at_statement(const struct parser *parser); /* does the next token look like the start of one? */
bool names_in_statement(struct lexer *lexer, const char *name, int length, bool *found); /* false at the unit's end */

int expression_node(struct parser *parser); /* expressions.c */
bool parser_nest(struct parser *parser);    /* one level deeper; false where that is too deep */
void parser_unnest(struct parser *parser);

int parse_call(struct parser *parser, const struct token *name); /* calls.c; the next token is `(` */
/* `pairs` or `halves`: two nodes. */
bool parse_twin_call(struct parser *parser, int node[2]);

/* ---------------------------------------------------------------- shorthands (expand.c) */

int expand_mean(struct graph *graph, int x, int axis, struct extent run, struct complaint *why);
int expand_rmsnorm(struct graph *graph, int x, int weight, int eps, struct complaint *why);
int expand_layernorm(struct graph *graph, int x, int weight, int bias, int eps, struct complaint *why);
int expand_softmax(struct graph *graph, int x, struct complaint *why);
int expand_beside(struct graph *graph, const int *part, int count, struct complaint *why); /* beside.c */

#endif
