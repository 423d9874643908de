#include "rewrite/report.h"
#include "lang/lang.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void report_line(struct report *report, const char *format, ...)
{
    va_list arguments;
    if (report == NULL || report->failed)
        return;
    va_start(arguments, format);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    size_t needed = report->length + (size_t)(length < 0 ? 0 : length) + 2;
    if (needed > report->room) {
        size_t room = 2 * needed + 256;
        char *text = realloc(report->text, room);
        report->failed = text == NULL;
        if (text == NULL)
            return;
        report->text = text;
        report->room = room;
    }
    va_start(arguments, format);
    vsnprintf(report->text + report->length, report->room - report->length, format, arguments);
    va_end(arguments);
    report->length = needed - 2;
    report->text[report->length++] = '\n';
    report->text[report->length] = '\0';
}

void report_statement(struct report *report, const struct graph *graph, int node)
{
    char text[240];
    const char *name = graph->node[node].name;
    if (report == NULL)
        return;
    print_expression(graph, node, text, sizeof text);
    report_line(report, "    %.60s%s%.200s%s", name != NULL ? name : "", name != NULL ? ": " : "", text,
                strlen(text) > 200 ? ".." : "");
}

int report_application(struct report *report, const char *what, bool *fresh)
{
    *fresh = false;
    for (int i = 0; i < report->application_count; i++)
        if (strcmp(report->application[i], what) == 0)
            return i + 1;
    if (report->application_count == report->application_room) {
        int larger = report->application_room ? 2 * report->application_room : 32;
        char **grown = realloc(report->application, (size_t)larger * sizeof *grown);
        report->failed = report->failed || grown == NULL;
        if (grown == NULL)
            return 0;
        report->application = grown;
        report->application_room = larger;
    }
    char *copy = strdup(what);
    report->failed = report->failed || copy == NULL;
    if (copy == NULL)
        return 0;
    report->application[report->application_count++] = copy;
    *fresh = true;
    return report->application_count;
}

bool sizes_under(const struct graph *graph, const coda_dims *dims, int64_t *size)
{
    memset(size, 0, MAX_AXES * sizeof *size);
    for (int i = 0; i < dims->count; i++) {
        int axis = graph_find_axis(graph, dims->item[i].axis);
        if (axis >= 0 && graph->axis[axis].term_count == 0)
            size[axis] = dims->item[i].size;
    }
    return sizes_complete(graph, size, &(struct complaint){0}) == CODA_OK;
}

/* Elements of a value under the dims; 0: a size is missing. */
static double count_elements(const struct graph *graph, const coda_dims *dims, int node)
{
    int64_t size[MAX_AXES];
    double elements = 1;
    if (!sizes_under(graph, dims, size))
        return 0;
    for (int d = 0; d < graph->node[node].shape.rank; d++)
        elements *= (double)dim_size(&graph->node[node].shape.dim[d], size);
    return elements;
}

void report_figure(struct report *report, const char *format, const struct graph *graph, int node, coda_dtype dtype)
{
    char what[200], line[400];
    if (report == NULL)
        return;
    double elements = report->dims != NULL ? count_elements(graph, report->dims, node) : 0;
    if (elements > 0)
        snprintf(what, sizeof what, "%.2f MB", elements * (double)coda_dtype_size(dtype) * 1e-6);
    else
        shape_print(graph, &graph->node[node].shape, what, sizeof what);
    const char *place = strstr(format, "%s");
    int before = place != NULL ? (int)(place - format) : (int)strlen(format);
    snprintf(line, sizeof line, "%.*s%s%s", before, format, place != NULL ? what : "", place != NULL ? place + 2 : "");
    report_line(report, "    %s", line);
}

char *report_take(struct report *report)
{
    char *text = report->text;
    report->text = NULL;
    report->length = report->room = 0;
    return text;
}

void report_free(struct report *report)
{
    for (int i = 0; i < report->application_count; i++)
        free(report->application[i]);
    free(report->application);
    free(report->text);
    memset(report, 0, sizeof *report);
}
