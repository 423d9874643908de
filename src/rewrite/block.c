/* rewrite_block: a block becomes programs. */
#include "rewrite/rewrite.h"
#include "rewrite/buffers.h"
#include "rewrite/derive.h"
#include "rewrite/exponentials.h"
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

/* The forward stores what the backward needs, so the backward is derived first. */
static bool append_both(const struct graph *block, const char *save, bool allow_passes, struct rewritten *made,
                        struct report *report, struct complaint *why)
{
    struct derivation d;
    struct unit *unit = &made->unit;
    struct graph *backward = derive_open(&d, block, NULL, save, why) ? derive_backward(&d, report, why) : NULL;
    bool done = backward != NULL && append_forward(d.with_saves, backward, allow_passes, unit, report, why);
    made->forward = unit->count;
    done = done && cut_graph(backward, d.with_saves, backward->name, true, allow_passes, unit, report, why) == CODA_OK;
    made->backward = backward;
    derive_close(&d);
    return done;
}

static bool report_buffers(struct report *report, const struct rewritten *made, const struct graph *block,
                           struct complaint *why)
{
    struct plan_options options = {.together = false};
    struct memory_plan plan = {0};
    if (report == NULL || made->unit.count > MAX_PLANNED)
        return true;
    bool planned = memory_plan_make(&plan, &made->unit, made->forward, block, made->backward, &options, why);
    if (planned)
        report_memory_plan(report, &plan);
    memory_plan_free(&plan);
    return planned;
}

coda_status rewrite_apart(const struct graph *block, const coda_rewrite_options *options, struct rewritten *rewritten,
                          char **text, coda_error *error)
{
    struct complaint why = {0};
    struct report report = {0}, *wanted = text != NULL ? &report : NULL;
    struct rewritten *made = rewritten;
    *made = (struct rewritten){.forward = 0};
    if (!block->is_block)
        refuse(&why, CODA_INVALID, "`coda grad` derives the backward of a program.",
               "`%.60s` is a program, not a block", block->name);
    bool passes = options != NULL && options->allow_passes, backward = options != NULL && options->backward;
    if (options != NULL) {
        report.without = options->without;
        report.dims = options->dims;
        wanted = report.without > 0 ? &report : wanted;
    }
    bool done = block->is_block;
    if (done && backward) {
        done = append_both(block, options->save, passes, made, wanted, &why) &&
               (!options->exponentials || store_exponentials(made, block, wanted, &why));
    } else if (done) {
        done = append_forward(block, NULL, passes, &made->unit, wanted, &why);
        made->forward = made->unit.count;
    }
    done = done && unit_is_acceptable(&made->unit, block->name, &why) && report_buffers(wanted, made, block, &why);
    if (done && (report.without < 0 || report.without > report.application_count)) {
        refuse(&why, CODA_INVALID, "The report numbers them.", "there is no step %d to leave out of `%.60s`: it has %d",
               report.without, block->name, report.application_count);
        done = false;
    }
    if (done && text != NULL && report.failed) {
        refuse(&why, CODA_MEMORY, "", "no memory for the report");
        done = false;
    }
    if (done && text != NULL)
        *text = report_take(&report);
    report_free(&report);
    if (done)
        return CODA_OK;
    rewritten_free(made);
    return report_failure(error, &why);
}

void rewritten_free(struct rewritten *rewritten)
{
    unit_free(&rewritten->unit);
    graph_free(rewritten->backward);
    *rewritten = (struct rewritten){.forward = 0};
}

coda_status rewrite_block(const struct graph *block, const coda_rewrite_options *options, struct unit *unit,
                          char **report, coda_error *error)
{
    struct rewritten made;
    coda_status status = rewrite_apart(block, options, &made, report, error);
    *unit = made.unit;
    graph_free(made.backward);
    return status;
}
