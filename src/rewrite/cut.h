/* Cutting a graph into block-local programs. */
#ifndef CODA_REWRITE_CUT_H
#define CODA_REWRITE_CUT_H

#include "lang/lang.h"
#include "rewrite/builder.h"
#include "rewrite/names.h"
#include "rewrite/report.h"
#include "rewrite/users.h"

/* When a value is known: PERIOD * p in the epilogue of the p-th group of products, a little later where it needs
 * reductions over whole rows of that epilogue, BOUNDARY where operands alone give it. */
typedef long moment;
enum { PERIOD = 1024, BOUNDARY = -PERIOD, ROW_RUN = 64, COLUMN_RUN = 128 };
static const moment NEVER = 1L << 40;

/* A value, or the runs of a reduction over a whole axis, that a program stores. */
struct root {
    int node;
    bool runs;
    int out; /* the operand of the graph whose out it is; -1: an intermediate */
};

struct piece {
    moment key;
    bool leaf; /* its products feed no other product */
    int gemm[MAX_PRODUCTS], gemm_count;
    int row_axis, column_axis; /* -1: none */
    struct root root[MAX_OPERANDS];
    int root_count;
};

struct place {
    int piece; /* -1: not stored */
    char name[STORED_NAME];
};

struct cutting {
    const struct graph *graph, *origin;
    const struct unit *unit; /* programs made before */
    bool allow_passes;
    coda_dtype matrix_dtype;
    const char *runs_stem; /* names of stored runs that have none */
    struct users users;
    struct names names;
    moment *time, *need; /* one a node: when it is known, and when it is needed at last */
    int *group;          /* one a node: the piece of a product; -1 */
    bool *gradient;      /* one a node: it depends on a gradient that arrives */
    struct place *value; /* one a node: where it is stored */
    struct place *runs;  /* one a node: where the runs of a whole reduction are stored */
    struct piece *piece;
    int piece_count, piece_capacity;
    int *made, *stamp, *stack; /* of a walk: valid where stamp[n] is the walk's number */
    int walk;
    struct dependence {
        int piece, on;
    } * dependence;
    int dependence_count, dependence_capacity;
    struct report *report;
    struct complaint why;
};

/* Cuts `graph`, whose outs are the results. programs/`unit` receives them in the order to run; names of values that one
 * program stores and another loads are the same in both. Names
 * of `origin` (may be NULL) and of the programs that the unit has are taken. */
coda_status cut_graph(const struct graph *graph, const struct graph *origin, const char *name, bool backward,
                      bool allow_passes, struct unit *unit, struct report *report, struct complaint *why);

/* Steps, each in a file of its own. All set cutting->why and return false on failure. */
bool find_moments(struct cutting *cutting);                       /* moments.c: groups products, times every node */
bool time_nodes(struct cutting *cutting);                         /* again, after runs were placed */
bool place_stores(struct cutting *cutting);                       /* stores.c: what is stored in any case, and where */
bool place_value(struct cutting *cutting, int node, moment last); /* last: when a program may store it at the latest */
bool place_crossings(struct cutting *cutting); /* crossing.c: values that an epilogue needs from another */
struct graph *emit_piece(struct cutting *cutting, int piece); /* emit.c: the program, and what it depends on */
bool name_piece(struct cutting *cutting, int piece, const char *stem, struct graph *graph);

/* The stored value or runs that piece p loads instead of computing node n; NULL: it computes n. */
const struct place *load_of(const struct cutting *cutting, int p, int n);
const struct place *runs_of(const struct cutting *cutting, int n);
bool is_whole_reduction_of_value(const struct graph *graph, int node); /* not one that an `in` partial finishes */
coda_dtype stored_dtype(const struct cutting *cutting, int node);
coda_dtype matrix_dtype(const struct graph *graph); /* of the matrices that it computes with */
coda_dtype shape_dtype(const struct shape *shape, coda_dtype matrix);
int strip_operand(const struct graph *graph, int node); /* the matrix under `.T` */
bool add_piece(struct cutting *cutting, moment key, bool leaf, int row_axis, int column_axis);
long stored_elements(const struct graph *graph, int node); /* relative to a matrix of 4096 elements */

void prune_axes(struct graph *graph);
void order_operands(struct graph *graph);
bool unit_append(struct unit *unit, struct graph *graph); /* false: no memory; the graph is freed */

#endif
