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
    [EMBED_RMS] = {"embed_rms", false},
    [GEMM_RMS] = {"gemm_rms", false},
    [GEMM_RMS_ROPE] = {"gemm_rms_rope", false},
    [GEMM_RESIDUAL_RMS] = {"gemm_residual_rms", false},
    [GEMM_RMS_SWIGLU] = {"gemm_rms_swiglu", false},
    [GEMM_RMS_LSE] = {"gemm_rms_lse", false},
    [CROSS_ENTROPY_LOSS] = {"cross_entropy_loss", false},
    [CROSS_ENTROPY_BWD] = {"cross_entropy_bwd", false},
    [GEMM_RMS_BWD_HEAD] = {"gemm_rms_bwd_head", false},
    [GEMM_SWIGLU_BWD] = {"gemm_swiglu_bwd", false},
    [GEMM_RMS_BWD_TWIN] = {"gemm_rms_bwd_twin", false},
    [GEMM_RMS_BWD_QKV] = {"gemm_rms_bwd_qkv", false},
    [ROPE_BWD] = {"rope_bwd", false},
};

/* The axes that programs need to know when their kernel is made. */
static int64_t fixed_size(const coda_llama_config *config, const char *axis)
{
    switch (axis[0]) {
    case 'D': /* a head */
        return config->head_dim;
    case 'T': /* the columns of queries and keys, which are rotated */
        return (config->num_attention_heads + config->num_key_value_heads) * config->head_dim;
    default: /* V */
        return config->vocab_size;
    }
}

static coda_status create(coda_kernel **kernel, int index, coda_device *device, const coda_module *module,
                          const coda_llama_config *config, coda_error *error)
{
    const coda_program *program = coda_module_find(module, table[index].program);
    if (!program)
        return model_fail(error, CODA_UNSUPPORTED, "the library was built without the program %s",
                          table[index].program);
    coda_dims dims = {.count = 0};
    for (int i = 0; i < coda_program_axis_count(program); i++) {
        coda_axis axis;
        coda_status status = coda_program_axis(program, i, &axis);
        if (status != CODA_OK)
            return status;
        if (axis.fixed && !axis.derived && dims.count < CODA_MAX_DIMS) {
            dims.item[dims.count].axis = axis.name;
            dims.item[dims.count++].size = fixed_size(config, axis.name);
        }
    }
    return coda_kernel_create(device, program, &dims, NULL, kernel, error);
}

coda_status kernels_open(struct kernels *kernels, coda_device *device, const coda_llama_config *config,
                         coda_dtype dtype, coda_error *error)
{
    const coda_module *standard = NULL;
    coda_module *retyped = NULL;
    memset(kernels, 0, sizeof *kernels);
    coda_status status = coda_standard_module(&standard, error);
    if (status == CODA_OK && dtype != CODA_BF16)
        status = coda_module_retype(standard, CODA_BF16, dtype, &retyped, error);
    for (int i = 0; i < KERNEL_COUNT && status == CODA_OK; i++)
        status = create(&kernels->kernel[i], i, device, retyped ? retyped : standard, config, error);
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
