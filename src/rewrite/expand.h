/* Values that wait for a whole row, as sums of products in which the waiting factors stand alone. */
#ifndef CODA_REWRITE_EXPAND_H
#define CODA_REWRITE_EXPAND_H

#include "rewrite/algebra.h"
#include "rewrite/users.h"

/* How often a value has been through a product (times 2), plus 1 where it is late: it depends on a reduction over a
 * whole row of the newest product, and so is known only when every tile is done. */
struct levels {
    int *level;
    int count, room;
};
bool levels_extend(struct levels *levels, const struct graph *graph); /* for nodes that were added; false: no memory */
bool is_late(const struct levels *levels, int node);
void levels_free(struct levels *levels);

/* A graph on its way to another one. */
struct rewriting {
    const struct graph *graph; /* before */
    struct builder *b;
    struct levels before, after; /* of both graphs */
    struct users users;          /* of the graph before */
    int *made;                   /* node -> node after; -1: not yet */
};

/* Node `n` of the graph before as a sum over nodes of the graph after, such that every matrix factor is known early.
 * False: it is not linear in what is late. */
bool expand_late(struct rewriting *w, int n, struct sum *sum);
/* Splits a term in its late factors and the rest, which keeps the coefficient. */
void split_late(const struct rewriting *w, const struct term *term, struct term *late, struct term *rest);
bool has_matrix(const struct graph *graph, const struct term *term);

#endif
