/* Graph to graph. A pass returns a new graph with the same outs, or NULL with *why set. */
#ifndef CODA_REWRITE_PASSES_H
#define CODA_REWRITE_PASSES_H

#include "rewrite/cut.h"

/* Simplifies: constants, like terms, common factors, shared products, sums without what is constant in them. */
struct graph *tidy(const struct graph *graph, struct report *report, struct complaint *why);

/* Gradients of vectors that are sums over the other axis, as the runs of those sums. */
struct graph *vectors_as_runs(const struct graph *graph, struct complaint *why);

/* Moves dot products along rows of the backward's products to their other side. `forward` marks nodes of the forward;
 * made[n] receives the new node of each. */
struct graph *move_dots(const struct graph *graph, const bool *forward, int *made, struct report *report,
                        struct complaint *why);

/* Moves scales of rows behind the products that they scale, and splits sums that wait for others. */
struct graph *defer_scales(const struct graph *graph, struct report *report, struct complaint *why);

#endif
