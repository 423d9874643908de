/* Values of nodes: matrices of doubles, and how one is read at the places of another shape. */
#ifndef CODA_REF_VALUES_H
#define CODA_REF_VALUES_H

#include "runtime/device.h"

struct value {
    struct shape shape;
    int64_t rows, columns; /* a vector is one row, a scalar 1 x 1 */
    double *data;          /* rows end to end; NULL: not evaluated, or released */
};

coda_status value_create(const struct shape *shape, const int64_t *size, struct value *value, coda_error *error);
void value_release(struct value *value);

void value_load(struct value *value, const coda_tensor *tensor);
void value_store(const struct value *value, const coda_tensor *tensor);

/* What elementwise operations see of an operand: element (i, j) of the joined shape is data[row[i] + column[j]]. */
struct reading {
    int64_t rows, columns;
    int64_t *row, *column; /* one block of memory, owned by `row` */
};

/* Reads values of shape `from` at the places of shape `to`: axes by name, an absent one broadcast, a run repeated. */
coda_status reading_create(const struct shape *from, const struct shape *to, const int64_t *size,
                           struct reading *reading, coda_error *error);
void reading_release(struct reading *reading);

/* One node's evaluation: what it may look at, and where it complains. */
struct evaluation {
    const struct graph *graph;
    const struct launch *launch;
    struct value *value; /* one a node */
    coda_error *error;
};

static inline const struct value *input_value(const struct evaluation *e, const struct node *node, int index)
{
    return &e->value[node->input[index]];
}

/* Computes the node into y, which has the node's shape and is not initialised. */
typedef coda_status step(const struct evaluation *e, const struct node *node, struct value *y);

/* Evaluates every out into outs[operand of the graph], which start empty: unrounded, in the shape that the out
 * declares. The caller releases them, also after a failure. */
coda_status evaluate(const struct graph *graph, const struct launch *launch, struct value *outs, coda_error *error);

/* elementwise.c */
step ref_elementwise, ref_cast, ref_broadcast;
/* products.c */
step ref_transpose, ref_stack, ref_gemm;
/* pairwise.c */
step ref_split, ref_join, ref_rope;
/* reductions.c */
step ref_reduce;
/* indexing.c */
step ref_index, ref_repeat, ref_pick, ref_onehot, ref_gather;

/* x as an index below `limit`, or -1. */
int64_t as_index(double x, int64_t limit);
/* CODA_INVALID: names the row, its id, and the rows of the table it had to point into. */
coda_status fail_index(const struct evaluation *e, const struct node *node, int ids, int64_t row, int table);

#endif
