/* Logits that are stored as exponentials, so that no pass makes their gradient. */
#ifndef CODA_REWRITE_EXPONENTIALS_H
#define CODA_REWRITE_EXPONENTIALS_H

#include "rewrite/rewrite.h"
#include "rewrite/rules.h"

/* A cross-entropy in a list of programs. Names are those of operands.
 *
 * head     a product: out `logits` = z, out `runs` = logsumexp(z, V:128), out `target` = pick(z, ids)
 * finish   lse = logsumexp(runs) into an out
 * pass     out `gradient` = v w with v = exp(logits - lse) - onehot(ids, V); out `dot` = sum(logits v, V:128)
 *
 * Nothing else reads the logits, their runs or the dots; the gradient is the left operand of products alone, and
 * transposed that of at most one, with `input`. */
struct cross_entropy {
    int head, finish, pass;  /* programs */
    int z, lse_node, weight; /* nodes: of head, finish, pass; weight -1: 1 */
    const char *logits, *runs, *target, *ids, *lse, *gradient;
    const char *dot, *input; /* NULL: there is none */
    bool own_input;          /* a program behind the pass makes it for nothing else */
};

/* The operand of that name; NULL: there is none, or no name. */
const struct operand *operand_named(const struct graph *graph, const char *name);
/* Is the node the `in` of that name? */
bool is_in_named(const struct graph *graph, int node, const char *name);

/* False: there is none of this form. */
bool find_cross_entropy(const struct rewritten *made, struct cross_entropy *found);
/* Stores exponentials in place of logits, if there is a cross-entropy of that form. False with *why set: a failure. */
bool store_exponentials(struct rewritten *made, const struct graph *block, struct report *report,
                        struct complaint *why);

#endif
