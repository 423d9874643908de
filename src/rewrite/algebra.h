/* Products and sums as lists: what simplification compares and rearranges. */
#ifndef CODA_REWRITE_ALGEBRA_H
#define CODA_REWRITE_ALGEBRA_H

#include "rewrite/builder.h"

enum { MAX_FACTORS = 24, MAX_TERMS = 24 };

/* coefficient * product of factor^exponent, over nodes of the graph being built. */
struct term {
    double coefficient;
    int count;
    struct factor {
        int node, exponent;
        int origin; /* the node of the graph before the pass that it came from; -1: none */
    } factor[MAX_FACTORS];
    bool full; /* a factor did not fit: the term is useless */
};

struct sum {
    int count;
    struct term term[MAX_TERMS];
    bool full;
};

void term_start(struct term *term);
/* Multiplies by node^exponent; signs and numbers go into the coefficient, equal nodes join. */
void term_multiply(const struct graph *graph, struct term *term, int node, int exponent, int origin);
/* Replaces factors that are products by their factors where that lets others cancel, or all of them. */
void term_cancel(const struct graph *graph, struct term *term);
void term_expand(const struct graph *graph, struct term *term);
bool terms_alike(const struct term *a, const struct term *b); /* up to the coefficient */
/* The exponent of a node in the term, 0 where it is absent. */
int term_exponent(const struct term *term, int node);
void term_remove(struct term *term, int node, int exponent);

/* How often each pair of factors occurs in a graph, so that products shared by several are made first. */
struct pairs {
    struct pair {
        int a, b, count;
    } * slot;
    int slot_count, used;
};
bool pairs_open(struct pairs *pairs);
void pairs_close(struct pairs *pairs);
bool pairs_add(struct pairs *pairs, int a, int b);
int pairs_count(const struct pairs *pairs, int a, int b);

/* The node of the term without the sign of its coefficient. */
int build_term(struct builder *b, const struct pairs *pairs, const struct term *term);
/* The node of the sum: like terms joined, common factors taken out, sums over the same axis merged. */
int build_sum(struct builder *b, const struct pairs *pairs, struct sum *sum);

#endif
