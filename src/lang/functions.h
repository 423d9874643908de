/* The functions of the language, a row each. */
#ifndef CODA_LANG_FUNCTIONS_H
#define CODA_LANG_FUNCTIONS_H

#include "ir/graph.h"

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

extern const struct function language_functions[];
extern const int language_function_count;

#endif
