#include "rewrite/report.h"
#include "lang/lang.h"

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

void report_saving(struct report *report, const struct graph *graph, int node)
{
    char shape[160];
    shape_print(graph, &graph->node[node].shape, shape, sizeof shape);
    report_line(report, "    saves 1 kernel, a write and a read of %s", shape);
}

void report_free(struct report *report)
{
    free(report->text);
    memset(report, 0, sizeof *report);
}
