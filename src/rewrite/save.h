/* What the backward keeps of the forward, and what it computes again. */
#ifndef CODA_REWRITE_SAVE_H
#define CODA_REWRITE_SAVE_H

#include "rewrite/builder.h"

/* A value that lies in memory when the backward runs; name NULL: it does not. */
struct stored {
    char name[208];
    coda_dtype dtype;
    struct shape shape;
    bool present;
};

struct saving {
    const struct graph *graph; /* forward and backward in one */
    const bool *forward;       /* nodes of the forward */
    const bool *available;     /* nodes that lie in memory anyway: `in`s and outs of the forward */
    const bool *forced;        /* nodes to store because the caller says so */
    bool *saved;               /* result: nodes to store */
    int *inverse;              /* result: the user that a node is got back from, -1: none */
};

/* Chooses the cheapest set (in elements) from which the backward can compute what it needs without a product or a
 * reduction over whole rows; of equal sets the one closest to the need. Invertible steps also run backwards: from
 * y = rope(x) or y = x * r, x is computed, not saved. */
coda_status choose_saved(struct saving *saving, struct complaint *why);

/* The backward alone: stored values become `in`s, the rest of the forward that it needs is computed again. `stored` is
 * one a node of saving->graph. */
struct graph *separate_backward(const struct saving *saving, const struct stored *stored, const char *name,
                                struct complaint *why);

#endif
