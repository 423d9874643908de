/* What the generator knows of a program before it writes text: products, groups of columns, vectors, levels.
 *
 * A warpgroup of 128 threads computes a band of 64 rows. Its thread holds, in each block of 32 columns, rows r and r +
 * 8 and 8 neighbouring columns. Text is written once for a *group* of blocks: as few as hold a pair of halves or a run
 * that the epilogue reads back, so that every value needs only what its group holds. */
#ifndef CODA_CUDA_PLAN_H
#define CODA_CUDA_PLAN_H

#include "runtime/device.h"

enum {
    MAX_SEGMENTS = 16,
    MAX_VALUES = 24, /* row values of a tile */
    MAX_TILE_INPUTS = 12,
    MAX_COLUMN_INPUTS = 16,
    MAX_REDUCTIONS = 24,
    MAX_USED_NODES = 768, /* a kernel's text stays compilable */
    BAND_ROWS = 64,
    BLOCK_COLUMNS = 32,
};

/* An operand of a product, or its transpose. */
struct factor {
    int operand;
    bool k_major; /* neighbours in memory are neighbours along K */
};

/* A range of K of one accumulator: left [M, K] times right [K, N], the right one possibly stacked along N. */
struct segment {
    struct factor left;
    int right_count;
    struct factor right[MAX_STACK];
    bool continues; /* the left operand goes on where the segment before stopped: the right one is stacked along K */
};

struct product {
    int segment_count;
    struct segment segment[MAX_SEGMENTS];
};

struct tile_input {
    int operand;
    int node;     /* the OP_IN or OP_GATHER that it serves; -1: the old value of an `out +=` */
    int distance; /* 0: all columns; else it has N/2, enumerated as halves of so many (1: pairs) */
    int id_value; /* gather: index into `value`; -1 */
};

struct column_input {
    int operand;
    int node; /* OP_IN or OP_REPEAT */
    bool repeats;
};

/* A value per row that the prologue leaves for the tile. */
struct row_value {
    int node;
    bool id; /* an i32, kept as such */
};

struct reduction {
    int node;
    int run;        /* length */
    bool over_rows; /* M:run */
    bool carried;   /* the run is longer than the group: a state lives across groups */
};

struct plan {
    const struct graph *graph;
    const struct form *form;
    const int64_t *fixed;

    int accumulator_count;
    struct product product[MAX_PRODUCTS];
    bool joint;                       /* one pass over K feeds all accumulators: they share the left operand */
    bool uniform;                     /* all factors have one type and every side one layout */
    bool left_k_major, right_k_major; /* where uniform */
    coda_dtype factor_type;

    int blocks, step; /* of a group: block b is 32 * step * b columns after the first */
    int run_columns;  /* tiles hold a multiple of so many columns */
    int *level;       /* one a node: how many reductions must be finished before it */
    int level_count;
    int value_count;
    struct row_value value[MAX_VALUES];
    int input_count;
    struct tile_input input[MAX_TILE_INPUTS];
    int column_count;
    struct column_input column[MAX_COLUMN_INPUTS];
    int reduction_count;
    struct reduction reduction[MAX_REDUCTIONS];
    int over_rows_count;
    bool writes_rows; /* some out holds one value a row that the prologue knows */
    int copied_out; /* the one out of a tile, bf16 or f32, where it is the product as it stands, its row's factor included; -1 */
    bool adds_halves; /* the GPU adds numbers of 16 bits in memory */
    bool exact;       /* an out of the tile is wider than bf16, and a rounded accumulator would spoil it */
};

/* Returns CODA_OK, CODA_UNSUPPORTED (the limit named) or CODA_MEMORY. */
coda_status plan_create(const coda_kernel *kernel, bool adds_halves, struct plan *plan, coda_error *error);
void plan_free(struct plan *plan);

/* The h of a value's halves (1: pairs); 0 where the value has all columns. */
int plan_distance(const struct plan *plan, const struct dim *dim);
int plan_extent(const struct plan *plan, const struct extent *extent);
int plan_value(const struct plan *plan, int node, bool id);      /* index into value[]; -1 */
int plan_input(const struct plan *plan, int node, int distance); /* index into input[]; -1 */
int plan_old_value(const struct plan *plan, int operand);        /* likewise */
int plan_column(const struct plan *plan, int node);              /* index into column[]; -1 */
const struct reduction *plan_reduction(const struct plan *plan, int node);
bool is_run_reduction(const struct node *node);
/* The product of an accumulator and a value a row that is all that is made of it; -1: there is none. */
int plan_factored(const struct plan *plan, int accumulator);
/* The out of a tile to which nothing is done but what storing does; -1: there is none, or another out beside it. */
int plan_copied_out(const struct plan *plan);
/* Is an `out +=` of a tile added in memory, so that its old value is not read? */
bool plan_adds(const struct plan *plan, int operand);
/* Has a tile an out of 4 bytes an element? */
bool plan_stores_wide(const struct plan *plan);
/* Are column vectors and angles loaded a group ahead? Wide groups would hold too many. */
bool plan_loads_ahead(const struct plan *plan);
/* Bytes of the tile's inputs that a lane reads for a group of columns (inputs.c). */
int plan_copy_bytes(const struct plan *plan);
bool plan_gathers(const struct plan *plan); /* rows by their ids */
/* After how many groups the angles of the program's rotations are the same again; 0: it has none, or of several heads. */
int plan_angle_period(const struct plan *plan);
/* Columns from the first of a group to one past its last. */
int plan_span(const struct plan *plan);

#endif
