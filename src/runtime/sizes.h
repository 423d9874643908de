/* Sizes of axes: from a caller's names, and from the shapes of a launch's operands. */
#ifndef CODA_RUNTIME_SIZES_H
#define CODA_RUNTIME_SIZES_H

#include "runtime/device.h"

/* sizes[MAX_AXES]: those that dims gives (may be NULL) and what follows from them; 0 elsewhere. */
coda_status sizes_from_dims(const struct graph *graph, const coda_dims *dims, int64_t *sizes, coda_error *error);

/* Checks count, rank, dtype, strides and shapes of the operands and finds every axis. `sizes` starts with what is known
 * from the kernel's creation. operand[] is a copy whose strides are filled in. */
coda_status sizes_from_operands(const struct graph *graph, coda_tensor *operand, int count, int64_t *sizes,
                                coda_error *error);

/* Refuses sizes that runs, heads or memory do not allow. Those of the launch before are not looked at again. */
coda_status check_sizes(coda_kernel *kernel, const int64_t *sizes, coda_error *error);

/* Have they an element in common? Column ranges of one matrix have none although their bytes interleave. */
bool tensors_overlap(const coda_tensor *a, const coda_tensor *b);

/* Refuses misaligned operands, and outs that share memory with another operand other than element by element. */
coda_status check_memory(const coda_kernel *kernel, const coda_tensor *operand, coda_error *error);

/* Refuses outs of one of two sets that share memory with an operand of the other. Strides are filled in. */
coda_status check_apart(const coda_kernel *kernel, const coda_tensor *first, int first_set, const coda_tensor *second,
                        int second_set, coda_error *error);

#endif
