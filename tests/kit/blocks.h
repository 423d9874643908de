/* A block against the programs that it becomes, in double. */
#ifndef KIT_BLOCKS_H
#define KIT_BLOCKS_H

#include "chain.h"

struct block_check {
    int programs, passes; /* of the rewritten block */
    double error;         /* largest, relative to 1 + the largest element of the out */
    char message[6000];
};

/* Rewrites the block (with its backward, if so), runs it whole and cut, and compares every out and gradient. */
bool block_agrees(const struct graph *block, const coda_dims *dims, bool backward, bool allow_passes, uint64_t seed,
                  struct block_check *check);
/* bound: of the error. Undoing a rotation is as exact as the table, whose numbers are f32. */
bool block_agrees_with(const struct graph *block, const coda_dims *dims, const coda_rewrite_options *options,
                       double bound, uint64_t seed, struct block_check *check);

#endif
