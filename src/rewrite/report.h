/* What the compiler did, in words. */
#ifndef CODA_REWRITE_REPORT_H
#define CODA_REWRITE_REPORT_H

#include "ir/graph.h"
#include <stddef.h>

struct report {
    char *text; /* NULL: nothing yet */
    size_t length, room;
    bool failed; /* memory ended: the text is incomplete */
};

void report_line(struct report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* "    `x1` = y @ Wo.T + x", the statement that a rule is about. */
void report_statement(struct report *report, const struct graph *graph, int node);
/* "saves 1 kernel, a write and a read of [M, D]": the pass over a matrix that a rule made needless. */
void report_saving(struct report *report, const struct graph *graph, int node);
void report_free(struct report *report);

#endif
