/* What each application of a rule saves: the block is rewritten without it, and both results are compared. */
#include "rewrite/rewrite.h"
#include "rewrite/report.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_MEASURED = 64 }; /* each costs a rewriting */

struct cost {
    bool known;        /* no size was missing */
    double bytes;      /* every operand once */
    double operations; /* of epilogues, one an element and operation */
};

static double count_elements(const struct shape *shape, const int64_t *size)
{
    double elements = 1;
    for (int d = 0; d < shape->rank; d++)
        elements *= (double)dim_size(&shape->dim[d], size);
    return elements;
}

static bool add_program(const struct graph *graph, const coda_dims *dims, struct cost *cost)
{
    int64_t size[MAX_AXES];
    bool *used = calloc((size_t)graph->node_count + 1, sizeof *used), known = used != NULL;
    known = known && sizes_under(graph, dims, size);
    if (known)
        graph_mark_used(graph, used);
    for (int o = 0; o < graph->operand_count && known; o++) {
        const struct operand *operand = &graph->operand[o];
        double elements = count_elements(&operand->shape, size);
        known = elements > 0;
        cost->bytes += elements * (double)coda_dtype_size(operand->dtype) * (operand->role == CODA_ACCUMULATE ? 2 : 1);
    }
    for (int n = 0; n < graph->node_count && known; n++) {
        const struct node *node = &graph->node[n];
        const struct shape *shape = op_is_reduction(node->op) ? &graph->node[node->input[0]].shape : &node->shape;
        if (used[n] && node->op != OP_GEMM && node->input_count > 0 && shape->rank == 2)
            cost->operations += op_cost(node->op) * count_elements(shape, size);
    }
    free(used);
    return known;
}

static struct cost cost_of(const struct unit *unit, const coda_dims *dims)
{
    struct cost cost = {.known = true};
    for (int i = 0; i < unit->count && cost.known; i++)
        cost.known = add_program(unit->graph[i], dims, &cost);
    return cost;
}

/* "12. deferred scale: ...": the number of an entry; 0: the line begins none. */
static int entry_number(const char *line)
{
    char *end;
    long number = isdigit((unsigned char)line[0]) ? strtol(line, &end, 10) : 0;
    return number > 0 && number < 1 << 20 && end[0] == '.' && end[1] == ' ' ? (int)number : 0;
}

/* "saves 1 kernel, 134.22 MB", what is more without first. */
static void report_gain(struct report *report, int kernels, double bytes, double operations)
{
    char part[3][80], saved[260] = "", lost[260] = "";
    const double amount[3] = {kernels, bytes * 1e-6, operations * 1e-9};
    snprintf(part[0], sizeof part[0], "%d kernel%s", abs(kernels), abs(kernels) == 1 ? "" : "s");
    snprintf(part[1], sizeof part[1], "%.2f MB", fabs(amount[1]));
    snprintf(part[2], sizeof part[2], "%.3f GFLOP of epilogues", fabs(amount[2]));
    for (int i = 0; i < 3; i++) {
        char *text = amount[i] > 0 ? saved : lost;
        if (fabs(amount[i]) < (i == 1 ? 0.005 : 0.0005))
            continue;
        size_t length = strlen(text);
        snprintf(text + length, sizeof saved - length, "%s%s", length > 0 ? ", " : "", part[i]);
    }
    if (saved[0] == '\0' && lost[0] == '\0')
        report_line(report, "    saves nothing at these sizes");
    else
        report_line(report, "    %s%s%s%s%s", saved[0] ? "saves " : "", saved, saved[0] && lost[0] ? "; " : "",
                    lost[0] ? "costs " : "", lost);
}

static void add_gain(struct report *report, const struct graph *block, const coda_rewrite_options *options,
                     const struct unit *made, int number)
{
    coda_rewrite_options without = *options;
    struct unit other = {0};
    if (number > MOST_MEASURED) {
        report_line(report, "    not measured: only the first %d steps are", MOST_MEASURED);
        return;
    }
    without.without = number;
    without.allow_passes = 1;
    coda_status status = rewrite_block(block, &without, &other, NULL, NULL);
    struct cost with = cost_of(made, options->dims), more = cost_of(&other, options->dims);
    if (status == CODA_MEMORY)
        report->failed = true;
    else if (status != CODA_OK)
        report_line(report, "    without it, no rule makes programs of this block");
    else if (!with.known || !more.known)
        report_gain(report, other.count - made->count, 0, 0);
    else
        report_gain(report, other.count - made->count, more.bytes - with.bytes, more.operations - with.operations);
    unit_free(&other);
}

/* Copies the report; after each numbered entry comes its gain. */
static char *add_gains(const char *text, const struct graph *block, const coda_rewrite_options *options,
                       const struct unit *made)
{
    struct report report = {0};
    int open = 0;
    for (const char *line = text, *next; *line != '\0'; line = next) {
        const char *end = strchr(line, '\n');
        next = end != NULL ? end + 1 : line + strlen(line);
        if (open > 0 && line[0] != ' ') {
            add_gain(&report, block, options, made, open);
            open = 0;
        }
        report_line(&report, "%.*s", (int)(end != NULL ? end - line : next - line), line);
        if (line[0] != ' ')
            open = entry_number(line);
    }
    if (open > 0)
        add_gain(&report, block, options, made, open);
    if (report.failed)
        free(report_take(&report));
    return report_take(&report);
}

coda_status rewrite_with_gains(const struct graph *block, const coda_rewrite_options *options, struct unit *unit,
                               char **report, coda_error *error)
{
    char *plain = NULL;
    coda_status status = rewrite_block(block, options, unit, report != NULL ? &plain : NULL, error);
    if (status != CODA_OK || plain == NULL) {
        if (status == CODA_OK && report != NULL)
            *report = plain;
        return status;
    }
    *report = options != NULL && options->dims != NULL ? add_gains(plain, block, options, unit) : plain;
    if (*report != plain)
        free(plain);
    if (*report != NULL)
        return CODA_OK;
    unit_free(unit);
    *unit = (struct unit){0};
    if (error != NULL)
        *error = (coda_error){CODA_MEMORY, "no memory for the report"};
    return CODA_MEMORY;
}
