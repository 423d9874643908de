#include "cli.h"

#include <stdlib.h>
#include <string.h>

static size_t operand_bytes(const coda_tensor *tensor)
{
    size_t count = 1;
    for (int i = 0; i < tensor->rank; i++)
        count *= (size_t)tensor->shape[i];
    return count * coda_dtype_size(tensor->dtype);
}

static coda_status make_operand(struct workload *workload, int index, const coda_dims *dims, uint64_t seed,
                                coda_error *error)
{
    coda_operand operand;
    coda_tensor *tensor = &workload->tensor[index];
    coda_status status = coda_program_operand(workload->program, index, &operand);
    if (status != CODA_OK)
        return status;
    *tensor = (coda_tensor){.dtype = operand.dtype, .rank = operand.rank};
    status = coda_program_operand_shape(workload->program, index, dims, tensor->shape, error);
    if (status != CODA_OK)
        return status;
    size_t bytes = operand_bytes(tensor);
    void *host = malloc(bytes);
    if (!host)
        return out_of_memory(error);
    status = coda_program_fill(workload->program, index, dims, seed, host, error);
    if (status == CODA_OK)
        status = coda_allocate(workload->device, bytes, &tensor->data, error);
    if (status == CODA_OK)
        status = coda_copy_in(workload->device, tensor->data, host, bytes, error);
    free(host);
    return status;
}

coda_status workload_new(struct workload *workload, coda_device *device, const coda_program *program,
                         const coda_dims *dims, const double *parameters, uint64_t seed, coda_error *error)
{
    memset(workload, 0, sizeof *workload);
    workload->device = device;
    workload->program = program;
    for (int i = 0; i < coda_program_parameter_count(program); i++)
        workload->parameter[i] = parameters[i];
    coda_status status = coda_kernel_create(device, program, dims, NULL, &workload->kernel, error);
    int count = coda_program_operand_count(program);
    for (int i = 0; i < count && status == CODA_OK; i++) {
        status = make_operand(workload, i, dims, seed, error);
        workload->count = i + 1;
    }
    if (status != CODA_OK)
        workload_free(workload);
    return status;
}

coda_status workload_start(struct workload *workload, void *stream, coda_error *error)
{
    return coda_kernel_launch(workload->kernel, workload->tensor, workload->count, workload->parameter, stream, error);
}

coda_status workload_launch(struct workload *workload, coda_error *error)
{
    coda_status status = workload_start(workload, NULL, error);
    return status == CODA_OK ? coda_synchronize(workload->device, NULL, error) : status;
}

float *workload_read(const struct workload *workload, int index, int64_t *count, coda_error *error)
{
    const coda_tensor *tensor = &workload->tensor[index];
    size_t bytes = operand_bytes(tensor);
    *count = (int64_t)(bytes / coda_dtype_size(tensor->dtype));
    void *host = malloc(bytes);
    float *values = malloc((size_t)*count * sizeof *values);
    if (!host || !values)
        out_of_memory(error);
    else if (coda_copy_out(workload->device, host, tensor->data, bytes, error) == CODA_OK) {
        coda_convert(values, CODA_F32, host, tensor->dtype, *count);
        free(host);
        return values;
    }
    free(host);
    free(values);
    return NULL;
}

void workload_free(struct workload *workload)
{
    coda_kernel_free(workload->kernel);
    for (int i = 0; i < workload->count; i++)
        coda_release(workload->device, workload->tensor[i].data);
    memset(workload, 0, sizeof *workload);
}
