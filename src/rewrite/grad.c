/* differentiate: the backward programs of one program. */
#include "rewrite/rewrite.h"
#include "rewrite/derive.h"
#include "rewrite/passes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The program once more where the backward needs a value that it does not store. */
static bool append_forward(struct derivation *d, struct unit *unit, struct complaint *why)
{
    char name[STORED_NAME];
    struct graph *forward = d->with_saves;
    if (d->saves == 0)
        return true;
    snprintf(name, sizeof name, "%.180s_forward", d->program->name);
    char *copy = strdup(name);
    if (copy == NULL)
        return refuse(why, CODA_MEMORY, "", "no memory for the forward"), false;
    free(forward->name);
    forward->name = copy;
    d->with_saves = NULL;
    return unit_append(unit, forward) || (refuse(why, CODA_MEMORY, "", "no memory for the forward"), false);
}

coda_status differentiate(const struct graph *program, const char *wrt, const char *save, struct unit *unit,
                          coda_error *error)
{
    struct complaint why = {0};
    struct derivation d = {0};
    *unit = (struct unit){0};
    if (program->is_block) {
        refuse(&why, CODA_INVALID, "Use `coda rewrite --grad`, which cuts it first.",
               "`%.60s` is a block, not a program", program->name);
        return report_failure(error, &why);
    }
    for (int i = 0; i < program->operand_count; i++)
        if (program->operand[i].role == CODA_PATCH)
            refuse(&why, CODA_UNSUPPORTED, "Differentiate the program whose out is patched.",
                   "`%.60s` is patched, and keeps what another program wrote", program->operand[i].name);
    if (program->conditional)
        refuse(&why, CODA_UNSUPPORTED, "Differentiate the program without its condition.",
               "`%.60s` runs `when %.60s`, so its outs may be another program's", program->name,
               program->operand[program->condition].name);
    if (why.status != CODA_OK)
        return report_failure(error, &why);
    struct graph *backward = derive_open(&d, program, wrt, save, &why) ? derive_backward(&d, NULL, &why) : NULL;
    if (backward != NULL && append_forward(&d, unit, &why))
        cut_graph(backward, program, backward->name, true, true, unit, NULL, &why);
    if (why.status == CODA_OK)
        unit_is_acceptable(unit, program->name, &why);
    graph_free(backward);
    derive_close(&d);
    if (why.status == CODA_OK)
        return CODA_OK;
    unit_free(unit);
    *unit = (struct unit){0};
    return report_failure(error, &why);
}
