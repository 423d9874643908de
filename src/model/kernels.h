/* The programs that the unfused path and the optimizer run, compiled for the model's device and element type. */
#ifndef CODA_MODEL_KERNELS_H
#define CODA_MODEL_KERNELS_H

#include "model/common.h"

enum kernel { GEMM, GEMM_DGRAD, GEMM_WGRAD, COLUMN_SUM, SQUARE_SUM, ADAMW, KERNEL_COUNT };

struct kernels {
    coda_kernel *kernel[KERNEL_COUNT];
};

coda_status kernels_open(struct kernels *kernels, coda_device *device, coda_dtype dtype, coda_error *error);
void kernels_close(struct kernels *kernels);
/* Bytes moved by all of them but the optimizer's, or by those alone. */
double kernels_bytes(const struct kernels *kernels, bool optimizer);

static inline coda_tensor strided_matrix(const void *data, coda_dtype dtype, int64_t rows, int64_t columns,
                                         int64_t stride)
{
    return (coda_tensor){(void *)data, dtype, 2, {rows, columns}, stride};
}

static inline coda_tensor matrix(const void *data, coda_dtype dtype, int64_t rows, int64_t columns)
{
    return strided_matrix(data, dtype, rows, columns, columns);
}

static inline coda_tensor vector(const void *data, coda_dtype dtype, int64_t size)
{
    return (coda_tensor){(void *)data, dtype, 1, {size, 1}, 0};
}

enum { RUN = 128, ROW_RUN = 64 }; /* columns of a partial sum, and rows, in the standard programs */

/* Partial sums over runs of columns. */
static inline coda_tensor partials(const float *data, int64_t rows, int64_t columns)
{
    return matrix(data, CODA_F32, rows, ceiling(columns, RUN));
}

#endif
