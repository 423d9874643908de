/* Sizes of a program's axes for the sweeps on the GPU. */
#ifndef GPU_SIZES_H
#define GPU_SIZES_H

#include "kit/trial.h"

/* Every free axis some tens; heads of `head` columns. */
coda_dims sizes_small(const coda_program *program, int64_t head);
/* Sets one axis, or the next size that the program accepts. */
void sizes_set(const coda_program *program, coda_dims *dims, int index, int64_t size, int64_t head);
bool sizes_is_length(const char *axis);
void sizes_print(const coda_dims *dims, char *text, size_t size);

#endif
