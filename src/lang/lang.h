/* Text to graphs and back. */
#ifndef CODA_LANG_H
#define CODA_LANG_H

#include "ir/graph.h"

enum { MAX_TEXT = 1 << 22, MAX_UNITS = 1024 }; /* bytes of a text; programs and blocks in it */

/* A list of graphs that came from one text. */
struct unit {
    int count;
    struct graph **graph;
};

/* Parses `text`, checks programs for block-locality, reports every error found (file:line:column, source line, caret,
 * reason, advice) into `error`. Bounded in time and memory: nesting <= 200, nodes <= MAX_NODES, names <= 200 bytes, MAX_TEXT, MAX_UNITS. */
coda_status parse(const char *text, size_t length, const char *file_name, struct unit *unit, coda_error *error);
void unit_free(struct unit *unit);

/* Canonical text: declarations, then statements; a value used twice gets a name. malloc'd; NULL: no memory. */
char *print_graph(const struct graph *graph);
/* One expression, for comments in generated code and messages: into text[size]. Named inner values print as their
 * names. */
void print_expression(const struct graph *graph, int node, char *text, int size);

/* Parses one expression over values that already exist in `graph`, and adds its nodes: how adjoints of primitives.def,
 * which are text, become graph. names/nodes bind identifiers. Returns the node, or -1 with *why set. */
int parse_expression(struct graph *graph, const char *text, const char *const *names, const int *nodes, int count,
                     struct complaint *why);

#endif
