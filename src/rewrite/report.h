/* What the compiler did, in words, and what each step saves. */
#ifndef CODA_REWRITE_REPORT_H
#define CODA_REWRITE_REPORT_H

#include "ir/graph.h"
#include <stddef.h>

struct report {
    char *text; /* NULL: nothing yet */
    size_t length, room;
    bool failed; /* memory ended: the text is incomplete */
    /* Applications of rules: the same rule on the same statement is one, however often it is applied. */
    char **application;
    int application_count, application_room;
    int without;           /* the number of one that is not to be made; 0: all are */
    const coda_dims *dims; /* sizes for figures; NULL: none */
};

/* Sizes of a graph's axes under dims, which may name axes that it does not have: size[MAX_AXES]. False: they contradict. */
bool sizes_under(const struct graph *graph, const coda_dims *dims, int64_t *size);
void report_line(struct report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* "    `x1` = y @ Wo.T + x", the statement that a rule is about. */
void report_statement(struct report *report, const struct graph *graph, int node);
/* The number of an application, 1, 2, ..; *fresh: it is new. 0: no memory. */
int report_application(struct report *report, const char *what, bool *fresh);
/* "%s" takes the shape of the node, or its bytes where sizes are known: "saves a kernel, and a read of 33.55 MB". */
void report_figure(struct report *report, const char *format, const struct graph *graph, int node, coda_dtype dtype);
char *report_take(struct report *report); /* the text, which is the caller's from then on */
void report_free(struct report *report);

#endif
