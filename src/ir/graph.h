/* The graph of a program or block: nodes in order of creation, so inputs always come first and a cycle cannot be
 * written.
 *
 * A node's value is a scalar, a vector or a matrix whose dimensions are named. Elementwise operations join dimensions
 * by name: an absent one is broadcast, a value per run (`N/128`) is repeated over its run. */
#ifndef CODA_IR_GRAPH_H
#define CODA_IR_GRAPH_H

#include "coda.h"
#include <stdbool.h>
#include <stdint.h>

enum {
    MAX_AXES = 24,
    MAX_AXIS_TERMS = 6,
    MAX_NODES = 1 << 16,
    MAX_OPERANDS = 64,        /* of a program or block: what a launch takes */
    MAX_GRAPH_OPERANDS = 512, /* of a graph between: a block with its gradients */
    MAX_PRODUCTS = 8,         /* products summed in one accumulator */
    MAX_STACK = 8,            /* weights stacked in one operand */
    MAX_INPUTS = 2 * MAX_PRODUCTS,
};

/* An axis: free, or the sum of factor x axis + constant (`axis N = Q + 2*P`). */
struct axis {
    char *name;
    int term_count; /* 0: free */
    struct {
        int axis; /* -1: the factor is a constant term */
        int64_t factor;
    } term[MAX_AXIS_TERMS];
    bool declared_only; /* made by `axis`, used nowhere yet */
};

/* A length that kernels know when they are created: a number, or (size of an axis) / value. */
struct extent {
    int axis; /* -1: `value` itself */
    int64_t value;
};

enum dim_form {
    DIM_ABSENT = 0,
    DIM_WHOLE,  /* every element of the axis, or a constant size when axis is -1 */
    DIM_RUNS,   /* one element a run of `run` elements: ceil(size / run). Values of `pairs` are runs of 2 */
    DIM_HALVES, /* size / 2 elements: element i is column (i / h) * 2h + i % h of the axis (first) or h later (second),
                   h = run */
};

struct dim {
    enum dim_form form;
    int axis;          /* -1: a constant */
    int64_t constant;  /* the size where axis is -1 */
    struct extent run; /* RUNS: the run's length; HALVES: h */
};

/* dims[0] rows, dims[1] columns. A vector has rank 1 and uses dim[0] only; a scalar has rank 0. */
struct shape {
    int rank;
    struct dim dim[2];
};

enum op {
    /* leaves */
    OP_IN,     /* operand `operand` */
    OP_PARAM,  /* parameter `index` */
    OP_NUMBER, /* `number` */
    OP_SIZE,   /* the size of `axis`, as a number */
    OP_INDEX,  /* index(N): a vector, element j is j */
    /* matrix products */
    OP_TRANSPOSE, /* x.T */
    OP_STACK,     /* stack(W1, W2, ..): matrices with equal columns, rows end to end */
    OP_GEMM,      /* inputs are pairs: input[0] @ input[1] + input[2] @ input[3] + ... */
/* elementwise: generated from primitives.def */
#define PRIMITIVE(op, name, arity, meaning, cuda, da, db, dc, cost) OP_##op,
#include "primitives.def"
#undef PRIMITIVE
    OP_CAST,      /* cast(x, dtype): rounds to `dtype` and back */
    OP_BROADCAST, /* broadcast(x, [M, N]): repeats x to the shape; what elementwise operations do by themselves */
    OP_REPEAT,    /* repeat(g, N): element j of the result is g[j % size of g]: a weight of one head, for all heads */
    /* pairwise */
    OP_EVEN,        /* a of a, b = pairs(x): columns 0, 2, 4, .. */
    OP_ODD,         /* b of a, b = pairs(x): columns 1, 3, 5, .. */
    OP_JOIN,        /* join(a, b): the inverse of pairs */
    OP_FIRST,       /* a of a, b = halves(x, h): columns j of each run of 2h, j < h */
    OP_SECOND,      /* b of a, b = halves(x, h): columns j + h */
    OP_JOIN_HALVES, /* join_halves(a, b, h) */
    OP_ROPE,        /* rope(x, table, pos [, cols]) and its relatives: see struct node */
    /* reductions */
    OP_SUM,
    OP_REDUCE_MAX,
    OP_ABSMAX,
    OP_LOGSUMEXP,
    /* by index */
    OP_PICK,   /* pick(z, t): z[m, t[m]], 0 where t[m] is outside */
    OP_ONEHOT, /* onehot(t, N): 1 where the column equals t[m] */
    OP_GATHER, /* gather(E, t): row t[m] of E */
    OP_COUNT
};

/* Where a node stands in the text, as byte offsets; {0, 0} for nodes that a pass made. */
struct span {
    int begin, end;
};

struct node {
    enum op op;
    int input_count;
    int input[MAX_INPUTS];
    struct shape shape;
    char *name; /* of the statement that defines it; NULL for inner nodes */
    struct span span;
    /* attributes, by op */
    double number;    /* NUMBER */
    int index;        /* IN: operand; PARAM: parameter */
    coda_dtype dtype; /* CAST; IN: the operand's */
    int axis;         /* SIZE, INDEX, reductions, REPEAT, ONEHOT */
    struct extent
        run; /* reductions: the run's length, value 0 with axis -1 for the whole axis; FIRST/SECOND/JOIN_HALVES: h */
    /* ROPE: rotates pairs of columns of each head by the angles of row pos[m] of table [P, H]: cosines in columns
     * 0..H/2-1, sines in the rest. With c, s of pair i: first = a*c - b*s, second = b*c + a*s. Columns from `cols` on
     * pass through. */
    bool rope_pairs;      /* the pair is columns (2i, 2i+1) of a head: rope_pairs; else (i, i + H/2): rope */
    bool rope_inverse;    /* the rotation by the opposite angle */
    struct dim rope_cols; /* DIM_ABSENT: all; else the limit as an axis (possibly derived) or a constant */
};

struct operand {
    char *name;
    coda_role role;
    coda_dtype dtype;
    struct shape shape; /* as declared */
    int node;           /* IN: its OP_IN node; outs: the value */
    int ids;            /* PATCH: the `in` with the column of each row */
    struct span span;
};

struct parameter {
    char *name;
    double default_value;
    int node;
};

struct graph {
    char *name;
    bool is_block;
    bool between; /* a step of the compiler, which no launch takes: up to MAX_GRAPH_OPERANDS operands */
    int axis_count;
    struct axis axis[MAX_AXES];
    int node_count, node_capacity;
    struct node *node;
    int operand_count, operand_capacity;
    struct operand *operand; /* in the order of the text */
    bool conditional;        /* runs only where an element of operand `condition` is not 0 */
    int condition;
    int parameter_count;
    struct parameter parameter[MAX_OPERANDS];
};

/* Why a construction was refused: one line of reason, and what to do about it (may be empty). */
struct complaint {
    coda_status status; /* CODA_OK: nothing was refused */
    char reason[384];
    char advice[512];
};

/* ---------------------------------------------------------------- building (graph.c, infer.c)
 * Each add function returns the index of a node, or -1 with *why set. Shapes are inferred at once. Names are copied. */

struct graph *graph_new(const char *name, bool is_block); /* NULL: no memory */
struct graph *graph_copy(const struct graph *graph);
/* A copy in which every operand and cast of type `from` has type `to`: a bf16 program as an f32 one. */
struct graph *graph_retype(const struct graph *graph, coda_dtype from, coda_dtype to);
void graph_free(struct graph *graph);

int graph_find_axis(const struct graph *graph, const char *name);                 /* -1: absent */
int graph_add_axis(struct graph *graph, const char *name, struct complaint *why); /* finds or adds a free axis */
int graph_find_operand(const struct graph *graph, const char *name);              /* -1: absent */

int graph_in(struct graph *graph, const char *name, coda_dtype dtype, const struct shape *shape, struct complaint *why);
int graph_parameter(struct graph *graph, const char *name, double default_value, struct complaint *why);
int graph_number(struct graph *graph, double number, struct complaint *why);
int graph_size(struct graph *graph, int axis, struct complaint *why);
int graph_index(struct graph *graph, int axis, struct complaint *why);
int graph_transpose(struct graph *graph, int x, struct complaint *why);
int graph_stack(struct graph *graph, const int *parts, int count, struct complaint *why);
int graph_gemm(struct graph *graph, int left, int right, struct complaint *why);
/* Elementwise, by op. An ADD of two GEMM nodes becomes one GEMM node with the products of both. */
int graph_elementwise(struct graph *graph, enum op op, const int *input, int count, struct complaint *why);
int graph_cast(struct graph *graph, int x, coda_dtype dtype, struct complaint *why);
int graph_broadcast(struct graph *graph, int x, const struct shape *shape, struct complaint *why);
int graph_repeat(struct graph *graph, int x, int axis, struct complaint *why);
int graph_pair(struct graph *graph, enum op op, int x, struct complaint *why); /* EVEN, ODD */
int graph_join(struct graph *graph, int a, int b, struct complaint *why);
int graph_half(struct graph *graph, enum op op, int x, struct extent h, struct complaint *why); /* FIRST, SECOND */
int graph_join_halves(struct graph *graph, int a, int b, struct extent h, struct complaint *why);
int graph_rope(struct graph *graph, int x, int table, int positions, bool pairs, bool inverse, const struct dim *cols,
               struct complaint *why);
/* axis -1 reduces the operand along its partial dimension (`sum(S)`, S : f32[M, K/128]). run {-1, 0}: the whole axis.
 */
int graph_reduce(struct graph *graph, enum op op, int x, int axis, struct extent run, struct complaint *why);
int graph_pick(struct graph *graph, int x, int ids, struct complaint *why);
int graph_onehot(struct graph *graph, int ids, int axis, struct complaint *why);
int graph_gather(struct graph *graph, int table, int ids, struct complaint *why);
/* Returns 0, or -1 with *why set. */
int graph_out(struct graph *graph, const char *name, coda_role role, coda_dtype dtype, const struct shape *shape,
              int value, struct complaint *why);

/* `out X[ids] = value`: element ids[m] of row m, where that is a column. Likewise. */
int graph_patch(struct graph *graph, const char *name, coda_dtype dtype, const struct shape *shape, int value, int ids,
                struct complaint *why);
/* `when x`: x is the node of an `in`. Likewise. */
int graph_when(struct graph *graph, int x, struct complaint *why);

/* ---------------------------------------------------------------- asking (graph.c) */

bool op_is_elementwise(enum op op); /* a row of primitives.def */
bool op_is_reduction(enum op op);
const char *op_name(enum op op); /* as in the language */
int op_arity(enum op op);        /* of elementwise primitives; 0 for others */
double op_cost(enum op op);

bool dim_equal(const struct dim *a, const struct dim *b);
bool shape_equal(const struct shape *a, const struct shape *b);
/* Do the graphs compute the same, node for node (names of inner values and order of creation aside)? */
bool graph_equal(const struct graph *a, const struct graph *b);
/* Marks the nodes that some out needs: used[node_count]. */
void graph_mark_used(const struct graph *graph, bool *used);

/* "M", "N/128", "64", "H/2": into text[size]. */
void dim_print(const struct graph *graph, const struct dim *dim, char *text, int size);
void shape_print(const struct graph *graph, const struct shape *shape, char *text, int size); /* "[M, N/128]" */

/* ---------------------------------------------------------------- sizes (sizes.c) */

/* Sizes of all axes: sizes[axis_count], 0 where unknown. Derived axes are filled from their terms, and one unknown term
 * of factor 1 from its axis. Returns CODA_INVALID with *why where they contradict. */
coda_status sizes_complete(const struct graph *graph, int64_t *sizes, struct complaint *why);
int64_t extent_size(const struct extent *extent, const int64_t *sizes);
int64_t dim_size(const struct dim *dim, const int64_t *sizes); /* 0: unknown */
/* Must kernels know the size when they are created? True of the length of a run or of a head, and of an axis that no
 * operand's shape gives (only `cols =`, `index` or a number uses it). */
bool axis_is_fixed(const struct graph *graph, int axis);
/* Divisibility that pairs, halves, rope, repeat ask of the sizes. */
coda_status sizes_check(const struct graph *graph, const int64_t *sizes, struct complaint *why);

/* ---------------------------------------------------------------- the normal form (form.c) */

/* How a value of a program lies against its tile. */
enum space {
    SPACE_NONE = 0,     /* not a value of the epilogue: product operands, tables, partials, ids used by index */
    SPACE_UNIFORM,      /* a scalar */
    SPACE_ROW,          /* [M]: one value a row, from the prologue (or the row out `pick`) */
    SPACE_COLUMN,       /* [N] */
    SPACE_TILE,         /* [M, N] */
    SPACE_HALF,         /* [M, N/2]: a value of pairs or halves, or a tile operand of that width */
    SPACE_ROW_RUNS,     /* [M, N/r]: one value a row and run of columns */
    SPACE_COLUMN_RUNS,  /* [M/r, N]: one value a column and run of rows */
    SPACE_COLUMN_PARTS, /* [N/r]: one value a run of columns, e.g. a repeated head weight's scale */
};

struct form {
    int row_axis, column_axis; /* of the tile; -1 where the program has no such axis */
    int accumulator_count;
    int accumulator[MAX_PRODUCTS]; /* GEMM nodes */
    bool shared_left;              /* several accumulators with the same left operand: a twin */
    enum space *space;             /* one a node */
    bool *used;                    /* one a node: some out needs it */
    bool *prologue;                /* one a node: computed before the tile (row, column and uniform values) */
};

/* Finds the tile of a program and the space of every value. *failed_node is the node the complaint is about (-1: none).
 * Returns CODA_INVALID where the program is not block-local, with reason and advice. */
coda_status form_create(const struct graph *graph, struct form *form, int *failed_node, struct complaint *why);
void form_free(struct form *form);
/* Is the `in` read only where the tile that may overwrite it is computed (in_place.c)? */
bool is_read_in_place(const struct graph *graph, const struct form *form, int in);
/* May the out be the very same elements as the `in`: both matrices of the tile, of one type and shape, read in place? */
bool may_replace(const struct graph *graph, const struct form *form, int out, int in);

/* The block-local check: reports every violation, in order, through `report` (node index, complaint). Returns their
 * number. */
int graph_check(const struct graph *graph, void (*report)(void *context, int node, const struct complaint *why),
                void *context);

#endif
