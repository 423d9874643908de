/* Text that grows, or that fills a caller's buffer and is cut there. */
#ifndef CODA_LANG_OUTPUT_H
#define CODA_LANG_OUTPUT_H

#include "ir/graph.h"

struct output {
    char *data;
    size_t length, size;
    bool fixed; /* `data` is the caller's */
    bool cut;   /* fixed: there was more */
    bool no_memory;
};

void output_add(struct output *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool output_is_over(const struct output *text); /* cut, or no memory: adding more is useless */

/* How the values of a graph read inside expressions. */
struct naming {
    const struct graph *graph;
    const char *const
        *name; /* one a node: the name that stands for it, NULL to write its expression; NULL: node->name */
};

/* Writes the expression of a node, its own name aside. */
void output_expression(struct output *text, const struct naming *naming, int node);
void output_length(struct output *text, const struct graph *graph, struct extent length);
void output_type(struct output *text, const struct graph *graph, coda_dtype dtype, const struct shape *shape);

#endif
