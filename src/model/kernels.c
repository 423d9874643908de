#include "model/kernels.h"
#include <string.h>

static const struct {
    const char *program;
    bool optimizer;
} table[KERNEL_COUNT] = {
    [GEMM] = {"gemm", false},
    [GEMM_DGRAD] = {"gemm_dgrad", false},
    [GEMM_WGRAD] = {"gemm_wgrad", false},
    [COLUMN_SUM] = {"column_sum", false},
    [SQUARE_SUM] = {"square_sum", true},
    [ADAMW] = {"adamw", true},
};

coda_status kernels_open(struct kernels *kernels, coda_device *device, coda_dtype dtype, coda_error *error)
{
    const coda_module *standard = NULL;
    coda_module *retyped = NULL;
    memset(kernels, 0, sizeof *kernels);
    coda_status status = coda_standard_module(&standard, error);
    if (status == CODA_OK && dtype != CODA_BF16)
        status = coda_module_retype(standard, CODA_BF16, dtype, &retyped, error);
    for (int i = 0; i < KERNEL_COUNT && status == CODA_OK; i++) {
        const coda_program *program = coda_module_find(retyped ? retyped : standard, table[i].program);
        status = program ? coda_kernel_create(device, program, NULL, NULL, &kernels->kernel[i], error)
                         : model_fail(error, CODA_UNSUPPORTED, "the library was built without the program %s",
                                      table[i].program);
    }
    coda_module_free(retyped);
    if (status != CODA_OK)
        kernels_close(kernels);
    return status;
}

void kernels_close(struct kernels *kernels)
{
    for (int i = 0; i < KERNEL_COUNT; i++) {
        coda_kernel_free(kernels->kernel[i]);
        kernels->kernel[i] = NULL;
    }
}

double kernels_bytes(const struct kernels *kernels, bool optimizer)
{
    double bytes = 0;
    for (int i = 0; i < KERNEL_COUNT; i++)
        if (table[i].optimizer == optimizer)
            bytes += coda_kernel_bytes_moved(kernels->kernel[i]);
    return bytes;
}
