/* What the files of this folder share. */
#ifndef CODA_IR_BUILD_H
#define CODA_IR_BUILD_H

#include "ir/graph.h"

enum { LABEL = 160, SHAPE_TEXT = 160 };

/* Fills *why (may be NULL) and returns -1. The advice may be "". */
int refuse(struct complaint *why, coda_status status, const char *advice, const char *reason, ...)
    __attribute__((format(printf, 4, 5)));
/* Replaces the advice of *why; returns -1. */
int advise(struct complaint *why, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Appends to text[size] at *length, cutting at the end. */
void append(char *text, int size, int *length, const char *format, ...) __attribute__((format(printf, 4, 5)));

/* A node without inputs and attributes; `add_node` appends a copy and returns its index. */
struct node node_of(enum op op);
int add_node(struct graph *graph, const struct node *node, struct complaint *why);

/* Are these indices of nodes? A negative one comes from a construction that failed before. */
bool check_inputs(const struct graph *graph, const int *input, int count, struct complaint *why);
/* "`x` [M, N]", "the number 2", "a value [M, N]". */
void label(const struct graph *graph, int node, char *text, int size);
const char *axis_name(const struct graph *graph, int axis); /* "?" for -1 */

struct shape scalar_shape(void);
struct shape vector_shape(struct dim dim);
struct dim whole_dim(int axis);
struct extent no_run(void);
bool is_whole_run(struct extent run);    /* {-1, 0}: the whole axis */
bool is_pair_dim(const struct dim *dim); /* N/2 */
bool extent_equal(struct extent a, struct extent b);
bool same_axis(const struct dim *a, const struct dim *b);
/* Brings a dimension or length that a caller gave into canonical form, or complains. Notes that its axes are used. */
bool accept_extent(struct graph *graph, struct extent *extent, struct complaint *why);
bool accept_axis(struct graph *graph, int axis, struct complaint *why);
bool accept_shape(struct graph *graph, struct shape *shape, struct complaint *why);

/* The shape of an elementwise result (join.c). */
bool join_shapes(const struct graph *graph, const struct shape *a, const struct shape *b, struct shape *joined,
                 struct complaint *why);

/* The sum that a dimension's size is: free axes with factors, and a constant (axes.c). */
struct axis_sum {
    int64_t factor[MAX_AXES];
    int64_t constant;
};
/* False where the sum overflows or an axis is a sum of itself. */
bool axis_sum_add(const struct graph *graph, const struct dim *dim, struct axis_sum *sum);
bool axis_sum_equal(const struct axis_sum *a, const struct axis_sum *b);
bool sizes_agree(const struct graph *graph, const struct dim *a, const struct dim *b); /* equal dims or equal sums */
/* The dimension of rows stacked end to end. */
bool stacked_dim(struct graph *graph, const int *parts, int count, struct dim *dim, struct complaint *why);

/* Finds the form and reports every violation (form.c). Returns CODA_OK with *violations, or CODA_MEMORY. */
typedef void report_violation(void *context, int node, const struct complaint *why);
coda_status form_analyse(const struct graph *graph, struct form *form, report_violation *report, void *context,
                         int *violations);

#endif
