/* A program as the tile machine runs it.
 *
 * A tile of the output is finished in f32 by an array of steps, each a function over a few rows of virtual registers.
 * Values of one row or column, and of runs of rows, lie in arrays of their own. A value that needs a reduction over
 * rows of the tile is computed in a later pass over the tile, which recomputes what it needs: passes are few, registers
 * are cheap.
 *
 * Three phases read operands and write outs of their own: tiles, then row vectors, then column vectors. Vectors come
 * last because an out may take the memory of an `in` that every tile reads. */
#ifndef CODA_CPU_PLAN_H
#define CODA_CPU_PLAN_H

#include "cpu/instruction_set.h"
#include "cpu/vector_code.h"
#include "runtime/device.h"

enum {
    RUN_LIMIT = 4096,         /* the longest run */
    MULTIPLE_LIMIT = 1 << 15, /* of the least common multiple of all runs: the widest tile */
    MAX_FORMS = 16,           /* different widths of values in one program */
    MAX_PASSES = 8,
    TILE_LIMIT = 1 << 22, /* elements of a tile */
    SLOT = ROOM,          /* floats of a uniform value */
    MAX_STEP_INPUTS = 16,
    MAX_STEP_OUTPUTS = 8,
    COMPILED_RUN = 512, /* the longest run that machine code reduces */
};

/* Where a step computes, hence how many rows it has. */
enum site { SITE_UNIFORM, SITE_ROW, SITE_COLUMN, SITE_BAND, SITE_TILE };

enum storage {
    IN_UNIFORMS,     /* one value a launch */
    IN_ROWS,         /* one value a row of the tile */
    IN_COLUMNS,      /* one value a column, or run of columns */
    IN_BANDS,        /* one row of columns for each run of rows */
    IN_REGISTERS,    /* a few rows of the tile */
    IN_ACCUMULATORS, /* the product */
    STORAGE_COUNT,
    EITHER = STORAGE_COUNT, /* one of two values, by a uniform condition */
};

/* How many elements stand in a row of a value: one a column of the tile, a run of columns, or a pair of columns. */
struct width_form {
    enum dim_form form;
    int run;
};

struct value {
    enum storage storage;
    int form;       /* index of a width_form; 0 is every column */
    int row_run;    /* of bands */
    int64_t offset; /* floats from the start of its storage */
    int condition;  /* EITHER: the node that decides, and the two values */
    int yes, no;
    int copied_from, copied_form; /* value that this one repeats or materialises; -1 */
    bool inside;                  /* it is never stored: machine code keeps it in a register of the machine */
};

struct frame;
struct bound_step;
struct compiled;
typedef void step_function(const struct frame *frame, const struct bound_step *step);

struct step {
    step_function *run;
    const char *name; /* for listings */
    enum site site;
    int guard;  /* -1: always */
    int node;   /* of the graph, or -1 */
    int result; /* a value; -1: none */
    int input[MAX_STEP_INPUTS], input_count;
    int primitive; /* enum op, OP_COUNT + enum fused, or PRIMITIVE_REDUCE + enum reduction; -1: none of them */
    struct compiled *compiled;
    int form;         /* width of the step */
    int operand, ids; /* of loads, stores, tables; positions or indices */
    int length;       /* of runs, halves, heads */
    int row_run;      /* of bands */
    bool inplace;     /* the result may replace an input */
    bool flag;        /* rope: inverse; store: add */
    enum reduction reduction;
    coda_dtype dtype;
    rows_function *rows;
    run_function *runs;
};

/* A logsumexp's is its sum of exponentials. */
enum { PRIMITIVE_REDUCE = OP_COUNT + FUSED_COUNT };

struct step_list {
    int count, capacity;
    struct step *step;
};

/* Several steps as one, in machine code. Its streams are rows of values, read or written, and of operands. */
enum stream_kind { STREAM_INPUT, STREAM_OUTPUT, STREAM_READ, STREAM_WRITE, STREAM_TABLE };

struct compiled {
    struct vector_program program;
    int output_count, output[MAX_STEP_OUTPUTS]; /* values */
    int stream_count;
    struct stream {
        enum stream_kind kind;
        int index; /* of the step's input, of its output, or of an operand */
        coda_dtype dtype;
        bool repeats; /* one value a row */
        bool runs;    /* one value a run */
    } stream[MAX_STREAMS];
    int run, half;           /* as of its code */
    const struct step *rope; /* its rotation, in `list`; NULL: it has none */
    struct step_list list;   /* what it does, for listings */
};

/* Steps under it run where the uniform node `condition` is (wanted) or is not 0, and under `parent` too. */
struct guard {
    int parent, condition, depth;
    bool wanted;
};

enum phase { PHASE_TILES, PHASE_ROWS, PHASE_COLUMNS, PHASE_COUNT };

/* Lists in the order in which a tile runs them: rows, columns, then for each pass bands and tile; bands of the end
 * last. */
enum {
    LIST_ROWS,
    LIST_COLUMNS,
    LIST_BANDS,
    LIST_TILE = LIST_BANDS + MAX_PASSES + 1,
    LIST_COUNT = LIST_TILE + MAX_PASSES
};

struct phase_plan {
    bool used;
    struct step_list list[LIST_COUNT];
};

struct plan {
    const struct graph *graph;
    const struct form *form;
    const struct instruction_set *isa;
    enum machine_code machine_code; /* that is made of steps */
    int passes;
    struct phase_plan phase[PHASE_COUNT];
    int value_count, value_capacity;
    struct value *value;
    int guard_count, guard_capacity;
    struct guard *guard;
    int form_count;
    struct width_form width[MAX_FORMS];
    int *uniform_slot; /* one a node: its place among the uniforms, or -1 */
    int uniform_count;
    int column_multiple, row_multiple, row_gcd; /* what runs ask of tiles and of blocks of rows */
    int tile_rows, tile_columns; /* the columns: at most; a launch may take a half, a quarter, .. of them */
    int least_columns;           /* and at least */
    int64_t stride;              /* floats of a row of registers, accumulators, bands */
    int64_t padded_rows;         /* rows of an accumulator */
    int block_rows;              /* rows that steps work on at a time */
    int register_count, row_count, column_count;
    int64_t band_size; /* floats */
    char *listing;
};

/* Builds everything but the tile's sizes and what follows from them. Release with cpu_plan_release, on failure too. */
coda_status cpu_plan_create(struct plan *plan, const coda_kernel *kernel, const struct instruction_set *isa,
                            enum machine_code machine_code, coda_error *error);
/* Gives values their places, once tile_rows, tile_columns, stride and block_rows are set. */
void cpu_plan_place(struct plan *plan);
/* Replaces groups of a pass's steps by machine code where the instruction set has it (compile.c). */
coda_status cpu_plan_compile(struct plan *plan, struct step_list *list, coda_error *error);
void cpu_compiled_free(struct compiled *compiled); /* NULL is allowed */
/* Gives the values of one pass registers, by number. */
coda_status cpu_plan_allocate_registers(struct plan *plan, const struct step_list *list, coda_error *error);
void cpu_plan_release(struct plan *plan);
/* A readable text of the steps; NULL: no memory. */
char *cpu_plan_listing(const struct plan *plan, const char *head);

/* ---------------------------------------------------------------- parts of cpu_plan_create */

struct builder {
    struct plan *plan;
    const struct graph *graph;
    const struct form *form;
    const int64_t *fixed_size;
    coda_error *error;
    enum site *site; /* one a node */
    int *level;      /* one a node: the pass from which on it is known */
    int *guard;      /* one a node */
    int *user_count; /* one a node: used nodes and outs that read it */
    int *fused;      /* one a node: the addition that a product is part of, or -1 */
    bool *need;      /* one a node, of the phase or pass */
    int *value;      /* one a node: its value in this phase and pass, or -1 */
    int first_value; /* of this pass */
    enum phase phase;
    int pass;
};

/* Guards and fused multiply-adds (analysis.c). */
coda_status cpu_analyse(struct builder *b);
/* Appends the steps of a node; its inputs have theirs (emit.c). */
coda_status cpu_emit_node(struct builder *b, int node);
coda_status cpu_emit_row_reduction(struct builder *b, int node); /* of a tile value along rows: the accumulating step */
coda_status cpu_emit_finishes(struct builder *b); /* of the logsumexps along rows that the last pass added up */
coda_status cpu_emit_store(struct builder *b, int operand);

#endif
