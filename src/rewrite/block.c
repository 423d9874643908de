/* rewrite_block: a block becomes programs. */
#include "rewrite/rewrite.h"
#include "rewrite/buffers.h"
#include "rewrite/derive.h"
#include "rewrite/passes.h"

static bool append_forward(const struct graph *block, const struct graph *origin, bool allow_passes, struct unit *unit,
                           struct report *report, struct complaint *why)
{
    struct graph *deferred = defer_scales(block, report, why);
    bool made =
        deferred != NULL && cut_graph(deferred, origin, block->name, false, allow_passes, unit, report, why) == CODA_OK;
    graph_free(deferred);
    return made;
}

static bool add_buffers(const struct unit *unit, const struct graph *block, const struct graph *backward,
                        struct report *report, struct complaint *why)
{
    const struct graph *const results[2] = {block, backward};
    if (report == NULL || report_buffers(report, unit, results))
        return true;
    refuse(why, CODA_MEMORY, "", "no memory for the report");
    return false;
}

/* The forward stores what the backward needs, so the backward is derived first. */
static bool append_both(const struct graph *block, bool allow_passes, struct unit *unit, struct report *report,
                        struct complaint *why)
{
    struct derivation d;
    struct graph *backward = derive_open(&d, block, NULL, NULL, why) ? derive_backward(&d, report, why) : NULL;
    bool made = backward != NULL && append_forward(d.with_saves, backward, allow_passes, unit, report, why) &&
                cut_graph(backward, d.with_saves, backward->name, true, allow_passes, unit, report, why) == CODA_OK &&
                add_buffers(unit, block, backward, report, why);
    graph_free(backward);
    derive_close(&d);
    return made;
}

coda_status rewrite_block(const struct graph *block, const coda_rewrite_options *options, struct unit *unit,
                          char **text, coda_error *error)
{
    struct complaint why = {0};
    struct report report = {0}, *wanted = text != NULL ? &report : NULL;
    *unit = (struct unit){0};
    if (!block->is_block)
        refuse(&why, CODA_INVALID, "`coda grad` derives the backward of a program.",
               "`%.60s` is a program, not a block", block->name);
    bool passes = options != NULL && options->allow_passes, backward = options != NULL && options->backward;
    bool made = block->is_block && (backward ? append_both(block, passes, unit, wanted, &why)
                                             : append_forward(block, NULL, passes, unit, wanted, &why) &&
                                                   add_buffers(unit, block, NULL, wanted, &why));
    made = made && unit_is_acceptable(unit, block->name, &why);
    if (made && text != NULL && report.failed) {
        refuse(&why, CODA_MEMORY, "", "no memory for the report");
        made = false;
    }
    if (made && text != NULL)
        *text = report_take(&report);
    report_free(&report);
    if (made)
        return CODA_OK;
    unit_free(unit);
    *unit = (struct unit){0};
    return report_failure(error, &why);
}
