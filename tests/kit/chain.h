/* Several programs in a row as one graph, evaluated in double: what one program stores, the next loads unrounded. */
#ifndef KIT_CHAIN_H
#define KIT_CHAIN_H

#include "lang/lang.h"
#include <stdbool.h>

/* Joins the programs, in order, by the names of their operands: an `in` that an earlier out gave is that value. Outs
 * stay outs if `wanted` (NULL: all) has an out of the name. NULL, with *why, where they do not fit together. */
struct graph *chain_join(const struct graph *const *program, int count, const struct graph *wanted,
                         struct complaint *why);

/* Elements of one operand in double, rows end to end. */
struct chain_operand {
    int64_t count, rows, columns;
    double *value;
};

/* Operands of a joined graph under sizes: `in`s hold numbers that f32 represents. */
struct chain {
    const struct graph *graph;
    int64_t size[MAX_AXES];
    struct chain_operand operand[MAX_GRAPH_OPERANDS];
};

/* Allocates the operands and fills the `in`s: ids in range, partials and vectors positive. False: a size is missing. */
bool chain_open(struct chain *chain, const struct graph *graph, const int64_t *size, uint64_t seed);
void chain_close(struct chain *chain);
bool chain_run(struct chain *chain, char *message, size_t size); /* evaluates every out */

#endif
