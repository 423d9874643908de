/* Graph to graph. A pass returns a new graph with the same outs, or NULL with *why set. */
#ifndef CODA_REWRITE_PASSES_H
#define CODA_REWRITE_PASSES_H

#include "rewrite/cut.h"

/* Simplifies: constants, like terms, common factors, shared products, sums without what is constant in them. */
struct graph *tidy(const struct graph *graph, struct complaint *why);

/* Gradients of vectors that are sums over the other axis, as the runs of those sums. */
struct graph *vectors_as_runs(const struct graph *graph, struct complaint *why);

#endif
