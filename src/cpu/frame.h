/* What the steps of one tile see. */
#ifndef CODA_CPU_FRAME_H
#define CODA_CPU_FRAME_H

#include "cpu/plan.h"

/* Where an input lies from a step's point of view: base[storage] + offset + (first row / run) * step, and `stride` on
 * from row to row. */
struct place {
    enum storage storage;
    int run;
    int64_t offset, step, stride;
};

/* A step of a launch, its alternatives decided. */
struct bound_step {
    const struct step *step;
    struct place result, input[MAX_STEP_INPUTS], output[MAX_STEP_OUTPUTS];
};

struct bound_list {
    int count;
    struct bound_step *step;
};

struct binding {
    const struct plan *plan;
    const struct launch *launch;
    const bool *active; /* one a guard */
    const float *uniforms;
    int tile_columns; /* in this launch */
    bool stream;      /* outs of the tile pass by the caches */
    struct bound_list list[PHASE_COUNT][LIST_COUNT];
};

/* One worker's view of one tile. */
struct frame {
    const struct binding *binding;
    float *base[STORAGE_COUNT];
    float *scratch; /* of SCRATCH_ROWS rows */
    int64_t scratch_stride;
    int64_t row, column; /* of the tile's first element */
    int rows, columns;   /* of this tile */
    int width[MAX_FORMS];
    int64_t start[MAX_FORMS]; /* of the tile, in elements of an operand's row */
    int first, count;         /* rows of the tile that the steps work on now */
};

enum { SCRATCH_ROWS = 3 };

/* Floats of one worker's memory, accumulators aside. */
int64_t cpu_frame_size(const struct plan *plan);
/* Divides `memory`, of cpu_frame_size floats, among the storages. */
void cpu_frame_create(struct frame *frame, const struct binding *binding, float *memory);
/* Runs a phase on the tile at (row, column); accumulators: its products, NULL where there are none. */
void cpu_frame_run(struct frame *frame, enum phase phase, int64_t row, int64_t column, float *accumulators);
/* Where a step's rows of an operand begin, and the distance between them in bytes. */
char *cpu_step_memory(const struct frame *frame, const struct step *step, int64_t *stride);
char *cpu_operand_memory(const struct frame *frame, const struct step *step, int operand, int64_t *stride);
/* Of a rotation: the columns of the tile that it rotates, and the row of its table for row i of the block. */
int cpu_rotated_columns(const struct frame *frame, const struct step *step);
const void *cpu_row_by_id(const struct frame *frame, const struct step *step, int i);
/* Operands of the tile that a step reads or writes and that are worth fetching: outs that pass by the caches are not. */
struct touched {
    int operand;
    coda_dtype dtype;
    bool written;
};
int cpu_step_touches(const struct frame *frame, const struct step *step, struct touched touched[MAX_STREAMS]);
/* Brings the rows of the next block nearer. */
void cpu_step_fetch_ahead(const struct frame *frame, const struct step *step);

/* Steps (steps.c, steps_memory.c). */
step_function cpu_step_compiled; /* step_compiled.c */
step_function cpu_step_rows, cpu_step_runs, cpu_step_rope, cpu_step_accumulate, cpu_step_finish, cpu_step_expand;
step_function cpu_step_load, cpu_step_store, cpu_step_gather, cpu_step_onehot, cpu_step_pick, cpu_step_patch,
    cpu_step_index, cpu_step_repeat, cpu_step_reduce_operand;

static inline float *place_of(const struct frame *frame, const struct place *place)
{
    int64_t first = place->run > 1 ? frame->first / place->run : frame->first;
    return frame->base[place->storage] + place->offset + first * place->step;
}

#endif
