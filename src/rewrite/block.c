/* rewrite_block: a block becomes programs. */
#include "rewrite/rewrite.h"
#include "rewrite/passes.h"

#include <stdio.h>
#include <stdlib.h>

coda_status rewrite_block(const struct graph *block, const coda_rewrite_options *options, struct unit *unit,
                          char **report, coda_error *error)
{
    struct complaint why = {0};
    *unit = (struct unit){0};
    coda_status status =
        options->backward
            ? (refuse(&why, CODA_UNSUPPORTED, "", "the backward of a block is not derived yet"), CODA_UNSUPPORTED)
            : cut_graph(block, NULL, block->name, false, options->allow_passes, unit, NULL, &why);
    if (report != NULL)
        *report = NULL;
    if (status == CODA_OK)
        return CODA_OK;
    unit_free(unit);
    *unit = (struct unit){0};
    if (error != NULL) {
        error->status = status;
        snprintf(error->message, sizeof error->message, "%s%s%s", why.reason, why.advice[0] ? "\n" : "", why.advice);
    }
    return status;
}
