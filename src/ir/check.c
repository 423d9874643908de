/* The block-local check, for one who wants the form and for one who wants every mistake. */
#include "ir/build.h"

struct first_violation {
    int node;
    struct complaint why;
};

static void keep_first(void *context, int node, const struct complaint *why)
{
    struct first_violation *first = context;
    if (first->why.status != CODA_OK)
        return;
    first->node = node;
    first->why = *why;
}

coda_status form_create(const struct graph *graph, struct form *form, int *failed_node, struct complaint *why)
{
    struct first_violation first = {.node = -1};
    struct form found;
    int violations = 0;
    if (failed_node)
        *failed_node = -1;
    coda_status status = form_analyse(graph, &found, keep_first, &first, &violations);
    if (status != CODA_OK) {
        refuse(why, status, "", "no memory for the form of `%s`", graph->name);
        return status;
    }
    if (violations > 0) {
        form_free(&found);
        if (failed_node)
            *failed_node = first.node;
        if (why)
            *why = first.why;
        return first.why.status;
    }
    *form = found;
    return CODA_OK;
}

int graph_check(const struct graph *graph, void (*report)(void *context, int node, const struct complaint *why),
                void *context)
{
    struct form form;
    struct complaint why;
    int violations = 0;
    if (form_analyse(graph, &form, report, context, &violations) == CODA_OK) {
        form_free(&form);
        return violations;
    }
    refuse(&why, CODA_MEMORY, "", "no memory to check `%s`", graph->name);
    if (report)
        report(context, -1, &why);
    return 1;
}
