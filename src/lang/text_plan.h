/* What a graph's text consists of: which values become statements, their order and their names. */
#ifndef CODA_LANG_TEXT_PLAN_H
#define CODA_LANG_TEXT_PLAN_H

#include "lang/output.h"

struct text_plan {
    struct naming naming;    /* name: NULL for a value that stands inside expressions */
    const char **other_name; /* one a node: of `pairs` and `halves`, the name of the other value */
    int *group;              /* one a node: the first operand of the group of outs that needs it first */
    int *value;              /* the statements in order: nodes; two values of one `pairs` are one statement */
    int value_count;
    int axis[MAX_AXES]; /* those that need an `axis` statement, in order */
    int axis_count;
    const char **name;        /* what naming.name points at */
    char (*generated)[2][16]; /* r, v1, ..: one a value of its own, and one for a twin that nothing uses */
};

bool text_plan_create(struct text_plan *plan, const struct graph *graph); /* false: no memory */
void text_plan_free(struct text_plan *plan);

bool is_twin(enum op op);       /* defined by `a, b = pairs(x)` or `halves` */
bool is_first_twin(enum op op); /* a, not b */

/* The axes that need an `axis` statement: derived ones, and free ones that an expression names first
 * (text_plan_axes.c). */
void text_plan_axes(struct text_plan *plan, const bool *used);

#endif
