/* The compiler: backward programs and block rewriting. */
#ifndef CODA_REWRITE_REWRITE_H
#define CODA_REWRITE_REWRITE_H

#include "lang/lang.h"

/* Appends to `unit` (empty) the backward programs of `program` in the order to run; first the forward once more, with
 * further outs, where the backward needs a value that the program does not store.
 *
 * wrt    names of `in`s separated by commas; NULL: every floating-point `in` but tables of rotations
 * save   names of values or outs to keep from the forward, separated by commas; no gradient arrives on an out named
 * here. NULL: products are kept, everything else is computed again
 *
 * Returns CODA_OK, CODA_INVALID (an unknown name, a block), CODA_UNSUPPORTED or CODA_MEMORY. */
coda_status differentiate(const struct graph *program, const char *wrt, const char *save, struct unit *unit,
                          coda_error *error);

/* Appends to `unit` (empty) the programs that `block` becomes. *report (may be NULL): which rule did what; free it. */
coda_status rewrite_block(const struct graph *block, const coda_rewrite_options *options, struct unit *unit,
                          char **report, coda_error *error);

/* The same. With dims in the options, each numbered entry of the report ends with what that application saves: the block
 * is rewritten once more without it. */
coda_status rewrite_with_gains(const struct graph *block, const coda_rewrite_options *options, struct unit *unit,
                               char **report, coda_error *error);

/* Is the unit, as text, within the limits of the parser? Sets *why where not. */
bool unit_is_acceptable(const struct unit *unit, const char *name, struct complaint *why);

/* The same, with what tells the forward from the backward. */
struct rewritten {
    struct unit unit;
    int forward;            /* programs of the forward, which come first */
    struct graph *backward; /* the graph that the others were cut from; NULL: there are none */
};
coda_status rewrite_apart(const struct graph *block, const coda_rewrite_options *options, struct rewritten *rewritten,
                          char **report, coda_error *error);
void rewritten_free(struct rewritten *rewritten);

/* Appends to `unit` (empty) one program an operator. */
coda_status unfuse(const struct graph *program, struct unit *unit, coda_error *error);

#endif
