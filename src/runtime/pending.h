/* Which launches of one call may begin before those before them are over. */
#ifndef CODA_RUNTIME_PENDING_H
#define CODA_RUNTIME_PENDING_H

#include "runtime/device.h"

enum { MAX_PENDING = 96 };

/* Operands of the launches from the latest one on that was not apart: they may still run when the next one begins. */
struct pending {
    int count; /* 0: it is not known what else may run */
    coda_tensor tensor[MAX_PENDING];
    bool written[MAX_PENDING];
};

/* Is a launch on these operands (sets of `count`) apart from all that may still run? Remembers them. */
bool pending_is_apart(struct pending *pending, const struct graph *graph, const coda_tensor *tensor, int count,
                      int sets);

#endif
