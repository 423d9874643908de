/* A block of the library with inputs, run as the compiler's programs with each value in memory of its own, and as a
 * schedule. Everything fails the test where the library refuses. */
#ifndef KIT_SCHEDULED_H
#define KIT_SCHEDULED_H

#include "coda.h"

enum { MAX_VALUES = 192, NAME = 128 };

/* Memory by name. */
struct store {
    struct {
        char name[NAME];
        coda_tensor tensor;
    } item[MAX_VALUES];
    int count;
};

struct block_trial {
    coda_device *device;
    const coda_program *block;
    coda_module *module, *programs; /* module NULL: the library's blocks */
    coda_dims dims;
    struct store values; /* inputs, and what the programs gave with memory of their own */
};

struct running {
    coda_schedule *schedule;
    struct store own; /* copies of inputs, and results */
    coda_tensor operand[MAX_VALUES];
    int count;
    void *saved, *scratch;
    size_t saved_bytes, scratch_bytes;
};

void check(coda_status status, const coda_error *error);
coda_tensor *find(struct store *store, const char *name); /* NULL: absent */
size_t bytes_of(const coda_tensor *tensor);
coda_dims dims_of(const coda_program *program, int64_t rows); /* rows 0: left out */
coda_schedule_options with_backward(void);                    /* of the programs that coda_rewrite gives by default */

/* Fills the block's inputs and runs its programs. */
void open_trial(struct block_trial *trial, const char *device, const char *block, coda_dtype dtype, int64_t rows,
                int backward);
/* The same, with logits as exponentials if so. */
void open_trial_of(struct block_trial *trial, const char *device, const char *block, coda_dtype dtype, int64_t rows,
                   int backward, int exponentials);
/* The first block of the text, with its backward. */
void open_trial_of_text(struct block_trial *trial, const char *device, const char *text, int64_t rows);
void close_trial(struct block_trial *trial);

/* A schedule of the block on the trial's device and inputs; sums start at 0. */
void open_running(struct running *running, struct block_trial *trial, const coda_schedule_options *options);
void close_running(struct running *running);
coda_tensor *operand(struct running *running, const char *name);
/* Nothing is in the scratch memory before a launch. */
void launch(struct running *running, int phases);
/* Compares the results of the phases with the trial's. tolerance 0: the same bits, but for sums over runs, whose order is
 * the kernel's. Results without data were not wanted. */
void compare(struct running *running, struct block_trial *trial, double tolerance, int phases);

#endif
