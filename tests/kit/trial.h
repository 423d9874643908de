/* One program with sizes, operands between guard pages, and parameters: everything a launch needs. */
#ifndef KIT_TRIAL_H
#define KIT_TRIAL_H

#include "guard.h"
#include "runtime/device.h"

struct layout {
    enum guard_side side;
    int64_t padding; /* elements between the rows of a matrix, beyond its columns */
};

struct trial {
    const coda_program *program;
    const struct graph *graph;
    coda_dims dims;
    int64_t size[MAX_AXES];
    int count;
    coda_tensor tensor[MAX_OPERANDS];
    struct guarded memory[MAX_OPERANDS];
    void *initial[MAX_OPERANDS]; /* dense copies of the contents: random `in`s and `+=`s, NaN in `out`s */
    double parameter[MAX_OPERANDS];
};

/* Makes and fills the operands. dims must give every free axis; parameters take their defaults. On failure *trial is
 * empty, and `error` says why. */
coda_status trial_new(struct trial *trial, const coda_program *program, const coda_dims *dims, uint64_t seed,
                      struct layout layout, coda_error *error);
void trial_free(struct trial *trial); /* an empty trial is allowed */

/* Poisons every byte of the `out`s with 0xFF (a NaN of every float type) or with quiet NaNs, then restores what the
 * `in`s and `+=`s held. An out may have been pointed at an in's memory. */
enum poison { POISON_BYTES, POISON_NAN };
void trial_reset(struct trial *trial, enum poison poison);
/* Lets operand `out` use the memory of operand `in`. */
void trial_alias(struct trial *trial, const char *out, const char *in);
int trial_operand(const struct trial *trial, const char *name); /* -1: absent */
/* Sets a parameter by name; false where the program has none of that name. */
bool trial_set_parameter(struct trial *trial, const char *name, double value);

/* Are the slack around the operands, the gaps between rows and the `in`s (those that no out shares) as they were?
 * If not, text says which operand. */
bool trial_untouched(const struct trial *trial, char *text, size_t size);

/* Rows and columns as memory has them: a vector is one row, a scalar 1 x 1. */
int64_t tensor_rows(const coda_tensor *tensor);
int64_t tensor_columns(const coda_tensor *tensor);
/* Copies the elements, rows end to end. */
void tensor_dense(const coda_tensor *tensor, void *dense);

/* Launches `trial` with a kernel made for it; the kernel knows only the fixed axes. */
coda_status trial_run(struct trial *trial, coda_device *device, const coda_options *options, coda_error *error);

#endif
