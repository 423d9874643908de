/* The CPU device's own state, and what a launch passes through. */
#ifndef CODA_CPU_CPU_H
#define CODA_CPU_CPU_H

#include "cpu/frame.h"
#include "cpu/machine.h"
#include "cpu/matrix.h"

#include <pthread.h>

enum { MAX_WORKERS = 256 };

/* Memory that a launch works in, made by prepare and used by one launch at a time. */
struct workspace {
    float *memory; /* `workers` parts of `part` floats */
    int64_t part;
    int workers;
    char *packed[2];      /* left and right operands */
    int64_t packed_size;  /* bytes of each */
    float *partial;       /* accumulators that wait for the next range of K */
    int64_t partial_size; /* floats */
};

struct cpu_state {
    struct machine machine;
    const char *name;  /* of the instruction set */
    unsigned features; /* that microkernels may use */
    const struct instruction_set *isa;
    pthread_mutex_t lock; /* of the workspace: launches and growth take turns */
    struct workspace workspace;
};

/* How a program's products are cut up: everything that does not depend on M, N and K. */
struct gemm_plan {
    const struct microkernel *microkernel;
    int64_t depth, depth_multiple; /* of a block of K: at most, and what it is a multiple of */
    int left_slots;                /* different left operands at one place of the accumulators' sums */
    int rank;                      /* products summed in an accumulator, at most */
    struct gemm_product {
        int left, right;                   /* nodes; left -1: the accumulator has no such product */
        int slot;                          /* of the packed left operand */
    } product[MAX_PRODUCTS][MAX_PRODUCTS]; /* [accumulator][place in its sum] */
    int64_t padded_columns;
};

/* Work in numbered pieces, which workers take in turn. */
struct tasks {
    int64_t count, next;
    void (*run)(struct tasks *tasks, int worker, int64_t task);
};

struct cpu_kernel;

/* A launch of products. Tiles, blocks of K and places in sums are numbered over the whole output. */
struct gemm_run {
    struct tasks tasks; /* first: tasks find the run by it */
    const struct gemm_plan *gemm;
    const struct microkernel *micro;
    const struct instruction_set *isa;
    const struct cpu_kernel *kernel;
    const struct workspace *space;
    struct side {
        int64_t lines; /* rows of the output, or columns */
        int64_t tile;  /* lines of a tile */
        int width;     /* of the microkernel's panels */
        int slots;     /* operands packed side by side for one tile */
        int64_t bytes; /* of one tile, slot and block of K, packed */
        char *packed;
        int64_t most;         /* tiles packed at a time */
        int64_t first, count; /* those now */
    } side[2];                /* left, right */
    int64_t stride;
    int accumulators;
    int64_t accumulator_size;
    int64_t strip; /* columns of a tile that all of K is multiplied out for at a time */
    struct product_operands {
        struct matrix left, right;
        int64_t depth; /* 0: the accumulator has no such product */
    } operands[MAX_PRODUCTS][MAX_PRODUCTS];
    int64_t depth;                              /* of a block of K */
    int64_t blocks[MAX_PRODUCTS], total_blocks; /* of each place, of all */
    int64_t chunk;                              /* blocks of K that are packed at a time */
    int64_t first_block, block_count;           /* those now */
    bool pack[2];
    bool local; /* a task packs its right panels itself, one at a time: no other task needs them */
    float *partial;
};

struct cpu_kernel {
    struct plan plan;
    struct gemm_plan gemm;
    struct binding binding; /* of the launch that holds the lock, as is `run` */
    struct gemm_run run;
    struct bound_step *bound;
    bool *active;
    double *uniform_value; /* one a node */
    float *uniforms;
    int64_t frame_floats, accumulator_floats, scratch_floats, panel_floats; /* of a worker's memory */
};

/* A worker's part of the workspace. */
struct worker_memory {
    float *frame, *accumulators, *scratch, *panel;
};

/* Sets name, features and functions: of the set that CODA_CPU forces, or of the best. */
coda_status cpu_choose_instruction_set(struct cpu_state *state, coda_error *error);

/* Evaluates the program's uniform values and decides guards and alternatives (bind.c). */
void cpu_bind_launch(struct cpu_kernel *k, const struct launch *launch, const struct machine *machine, int64_t threads);
/* In double: kernel->uniform_value and, in f32, kernel->uniforms (uniforms.c). */
void cpu_evaluate_uniforms(struct cpu_kernel *k, const struct launch *launch);
/* Refuses an id or position without a row (check.c). */
coda_status cpu_check_ids(const struct cpu_kernel *k, const struct launch *launch, coda_error *error);
/* Refuses an out that one tile writes while others read its memory. */
coda_status cpu_check_picks(const struct cpu_kernel *k, const struct launch *launch, coda_error *error);

/* Finds the products, their microkernel and its blocks of K (gemm_plan.c). */
coda_status cpu_gemm_prepare(struct cpu_kernel *k, const struct cpu_state *state, coda_error *error);
/* What the products need of the workspace. */
void cpu_gemm_measure(struct cpu_kernel *k, const struct cpu_state *state, int64_t *packed_size, int64_t *partial_size);
/* Where in a sum of products a block of K lies. */
struct k_block {
    int place;
    int64_t k;
};
struct k_block cpu_gemm_block_at(const struct gemm_run *run, int64_t index);
/* NULL: the accumulator's sum has no such place. */
const struct product_operands *cpu_gemm_operands_at(const struct gemm_run *run, int accumulator, int place);
char *cpu_gemm_packed(const struct gemm_run *run, int side, int64_t tile, int slot, int64_t block);
/* Packs one right panel: `count` lines from `first` on, `depth` steps from `k` on, of a matrix whose rows run along K. */
void cpu_gemm_pack_panel(const struct gemm_run *run, const struct matrix *matrix, int64_t first, int64_t count,
                         int64_t k, int64_t depth, const struct worker_memory *memory);
/* Packs the current tiles and blocks of the left and right operands (gemm_pack.c). */
void cpu_gemm_pack(struct gemm_run *run, coda_device *device, bool left, bool right);
/* Packs, multiplies, and calls the tile machine on each finished tile (gemm.c). */
void cpu_gemm_launch(const coda_kernel *kernel);
/* Tile sizes (tiles.c). */
coda_status cpu_choose_tile(struct cpu_kernel *k, const struct cpu_state *state, const coda_options *options,
                            coda_error *error);

/* The columns of a tile in a launch of this size. */
int cpu_launch_columns(const struct plan *plan, int64_t rows, int64_t columns, int64_t threads);

/* Grows the workspace to what a kernel needs; under the lock (workspace.c). */
coda_status cpu_workspace_grow(struct workspace *space, int64_t part, int64_t packed_size, int64_t partial_size,
                               coda_error *error);
void cpu_workspace_release(struct workspace *space);
struct worker_memory cpu_worker_memory(const struct cpu_kernel *k, const struct workspace *space, int worker);
/* Runs all tasks on the device's threads. */
void cpu_run_tasks(coda_device *device, struct tasks *tasks);

#endif
