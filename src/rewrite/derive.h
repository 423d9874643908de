/* The steps that the gradients of programs and of blocks share. */
#ifndef CODA_REWRITE_DERIVE_H
#define CODA_REWRITE_DERIVE_H

#include "rewrite/adjoint.h"
#include "rewrite/report.h"
#include "rewrite/save.h"

struct derivation {
    const struct graph *program; /* or block: `own` */
    struct graph *own;           /* what was given, with equal nodes made once */
    struct request request;
    struct joint joint;
    bool *forced;                         /* nodes of the program that the caller wants stored */
    bool *forward, *available, *save_now; /* nodes of the joint graph */
    bool *saved;
    int *inverse;
    struct stored *stored;
    struct graph *with_saves; /* the program with outs for what the backward needs */
    int saves;                /* how many were added */
};

/* Reads what is asked for (see differentiate in rewrite.h). derive_close is allowed after a failure. */
bool derive_open(struct derivation *d, const struct graph *program, const char *wrt, const char *save,
                 struct complaint *why);
void derive_close(struct derivation *d);
/* The backward as one graph, simplified; sets with_saves. NULL, with *why, on failure. */
struct graph *derive_backward(struct derivation *d, struct report *report, struct complaint *why);

coda_status report_failure(coda_error *error, const struct complaint *why);

#endif
