/* The operations of evaluate.c, one function a family. */
#ifndef KIT_EVALUATE_NODES_H
#define KIT_EVALUATE_NODES_H

#include "evaluate.h"

struct evaluator {
    const struct trial *trial;
    struct numbers *node; /* one a node */
    coda_dtype *narrow;   /* one a node: the type that `plain` is rounded to */
    const char *why;
};

/* Computes node n into y, which is zeroed and has its size. */
bool evaluate_operation(struct evaluator *e, const struct node *n, struct numbers *y);

/* Repeats x of shape `from` over the places of shape `to`: axes by name, an element of runs over its run. */
void spread(const struct evaluator *e, const struct numbers *x, const struct shape *from, const struct shape *to,
            struct numbers *y);

#endif
