/* A block's programs on a device, and the memory between them. */
#ifndef CODA_RUNTIME_SCHEDULE_H
#define CODA_RUNTIME_SCHEDULE_H

#include "rewrite/buffers.h"
#include "rewrite/rewrite.h"
#include "runtime/device.h"

/* A program, its kernel, and the block's parameter behind each of its own. */
struct schedule_kernel {
    coda_program program;
    coda_kernel *kernel;
    int *parameter;
    struct graph *written; /* overwrite: the program with sums that are written, not added to; NULL: there are none */
    coda_kernel *writes;
};

/* Products that run as sets of one launch, and the kernel that all of them have. */
struct schedule_list {
    coda_module *module; /* of the one program */
    coda_kernel *kernel;
    int count;
};

struct coda_schedule {
    coda_device *device;
    struct graph *block; /* own copy */
    int64_t fixed_size[MAX_AXES];
    bool backward, together, overwrite;
    struct memory_plan plan;
    struct unit unit;               /* the programs; the plan's steps count in it */
    struct schedule_kernel *kernel; /* one a program of the unit, then column_sum */
    int *list_of;                   /* one a program of the unit: 1 more than the index of its list; 0: none */
    struct schedule_list *list;
    int list_count;
    char **of; /* one a value of the caller: what a gradient belongs to; NULL */
};

enum { MAX_CALLER = 3 * MAX_OPERANDS }; /* a block's operands, and gradients that arrive and leave */

/* Bytes, saturated; offset[] is of the slot in its memory. */
struct slot_layout {
    size_t offset[MAX_SLOTS];
    size_t saved, scratch;
};

/* schedule_overwrite.c */
/* Does the step write the value at operand `index`, which it would add to, before any other step does? */
bool step_writes_first(const coda_schedule *schedule, int step, int index);
/* A copy of the step's program that writes such outs; NULL in *written: it has none. */
coda_status step_written(const coda_schedule *schedule, int step, const struct graph *graph, struct graph **written,
                         coda_error *error);

/* schedule_sets.c */
/* Makes lists, and the plan again with their members side by side, where that needs no more memory. join: 0 where the
 * device gains by it, 1 wherever it can be, -1 nowhere. */
coda_status schedule_join(coda_schedule *schedule, const struct rewritten *made, struct plan_options *planning,
                          int join, coda_error *error);
coda_status schedule_make_list(coda_schedule *schedule, int index, const coda_options *options, coda_error *error);
int schedule_list_of(const coda_schedule *schedule, int step); /* list_of its program; 0 for a sum */

/* schedule_memory.c */
/* Bytes of saved and scratch slots; with sizes that are not known, of matrices of 4096 by 4096. */
double schedule_plan_bytes(const coda_schedule *schedule, const struct memory_plan *plan);
/* Slots that the phases do not use may have unknown sizes. */
coda_status schedule_layout(const coda_schedule *schedule, int phases, const int64_t *sizes, struct slot_layout *layout,
                            coda_error *error);
/* The value as a dense tensor at `data`; wide values have the rows of a chunk. */
coda_tensor schedule_tensor(const coda_schedule *schedule, int value, const int64_t *sizes, void *data);
/* Does a launch of the phases with this tensor use the value? */
bool is_operand_used(const struct plan_value *value, const coda_tensor *tensor, int phases);
bool is_value_used(const struct plan_value *value, int phases);
/* The axis of a value whose size is not known; -1: there is none. */
int unknown_axis(const struct plan_value *value, const int64_t *sizes);

/* schedule_check.c: the caller's tensors. Fills in strides and finds the sizes of all axes that the phases use. */
coda_status schedule_check(const coda_schedule *schedule, int phases, coda_tensor *operand, int count, int64_t *sizes,
                           coda_error *error);
/* Refuses results that share memory with what is still read, and memory that is missing or misaligned. */
coda_status schedule_check_memory(const coda_schedule *schedule, int phases, const coda_tensor *operand,
                                  const struct slot_layout *layout, const void *saved, const void *scratch,
                                  coda_error *error);

#endif
