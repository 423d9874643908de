/* A few programs with every schedule, once each on a ragged and on an aligned shape: short enough for compute-sanitizer
 * (`make -C tests/gpu sanitize`). Prints what could not run; results are test_programs' business. */
#include "image.h"
#include "sizes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const programs[] = {"gemm_residual_rms", "gemm_rms_swiglu",   "gemm_rms_lse", "gemm_swiglu_bwd",
                                       "gemm_rms_bwd",      "gemm_rms_bwd_twin", "gemm_wgrad",   "column_sum"};
static const char *const schedules[] = {"portable", "direct", "warps", "copied"};
static const int64_t sizes[] = {200, 256};

static coda_dims dims_of(const coda_program *program, int64_t size)
{
    coda_dims dims = sizes_small(program, 64);
    for (int i = 0; i < dims.count; i++)
        if (!sizes_is_length(dims.item[i].axis))
            sizes_set(program, &dims, i, size, 64);
    return dims;
}

static coda_status run(coda_device *device, const coda_program *program, const char *schedule, int64_t size,
                       coda_error *error)
{
    struct trial trial = {0};
    struct image image = {0};
    coda_kernel *kernel = NULL;
    coda_dims dims = dims_of(program, size), fixed = {0};
    coda_options options = {.size = sizeof options, .schedule = schedule};
    struct layout layout = {GUARD_END, 0};
    for (int i = 0; i < dims.count; i++)
        if (axis_is_fixed(program->graph, graph_find_axis(program->graph, dims.item[i].axis)))
            fixed.item[fixed.count++] = dims.item[i];
    coda_status status = trial_new(&trial, program, &dims, 3, layout, error);
    if (status != CODA_OK)
        return status;
    status = image_new(&image, device, &trial, PLACING_ALIGNED, error);
    if (status == CODA_OK)
        status = image_send(&image, &trial, error);
    if (status == CODA_OK)
        status = coda_kernel_create(device, program, &fixed, &options, &kernel, error);
    if (status == CODA_OK)
        status = coda_kernel_launch(kernel, image.tensor, image.count, trial.parameter, NULL, error);
    if (status == CODA_OK)
        status = coda_synchronize(device, NULL, error);
    coda_kernel_free(kernel);
    image_free(&image);
    trial_free(&trial);
    return status;
}

int main(void)
{
    const coda_module *module;
    coda_device *device;
    coda_error error = {0};
    int failures = 0, runs = 0;
    if (coda_standard_module(&module, &error) != CODA_OK || open_gpu(&device, &error) != CODA_OK) {
        printf("skipped: %s\n", error.message);
        return 77;
    }
    for (size_t p = 0; p < sizeof programs / sizeof *programs; p++)
        for (size_t s = 0; s < sizeof schedules / sizeof *schedules; s++)
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
                coda_status status = run(device, coda_module_find(module, programs[p]), schedules[s], sizes[i], &error);
                runs += status == CODA_OK;
                if (status == CODA_OK || status == CODA_UNSUPPORTED)
                    continue;
                failures++;
                printf("FAIL %s %s %d: %s\n", programs[p], schedules[s], (int)sizes[i], error.message);
            }
    printf("%d launches\n", runs);
    coda_device_close(device);
    return failures != 0 || runs == 0;
}
