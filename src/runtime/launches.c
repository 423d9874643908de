/* Launches of several kernels as one call, which knows what may overlap. */
#include "runtime/pending.h"

static coda_status check_list(coda_kernel *const *kernels, const int *sets, int launches, const coda_tensor *operands,
                              int count, coda_error *error)
{
    int64_t wanted = 0;
    if (!kernels || launches < 1)
        return fail(error, CODA_INVALID, "%d kernels; expected at least 1", kernels ? launches : 0);
    for (int i = 0; i < launches; i++) {
        if (!kernels[i])
            return fail(error, CODA_INVALID, "kernel %d of %d is NULL", i, launches);
        if (kernels[i]->device != kernels[0]->device)
            return fail(error, CODA_INVALID, "%s is a kernel of another device than %s; expected kernels of one device",
                        kernels[i]->graph->name, kernels[0]->graph->name);
        if (sets && sets[i] < 1)
            return fail(error, CODA_INVALID, "%s: %d sets of operands; expected at least 1", kernels[i]->graph->name,
                        sets[i]);
        wanted += (int64_t)kernels[i]->graph->operand_count * (sets ? sets[i] : 1);
    }
    if (!operands || count != wanted)
        return fail(error, CODA_INVALID, "%d operands for %d kernels; expected %lld, those of one after the other",
                    operands ? count : 0, launches, (long long)wanted);
    return CODA_OK;
}

coda_status coda_kernel_launch_list(coda_kernel *const *kernels, const int *sets, int launches,
                                    const coda_tensor *operands, int count, const double *parameters, void *stream,
                                    coda_error *error)
{
    struct pending pending = {0};
    coda_status status = check_list(kernels, sets, launches, operands, count, error);
    for (int i = 0; i < launches && status == CODA_OK; i++) {
        const struct graph *graph = kernels[i]->graph;
        int many = sets ? sets[i] : 1, each = graph->operand_count;
        bool apart = pending_is_apart(&pending, graph, operands, each, many);
        status = many > 1 ? kernel_launch_sets(kernels[i], operands, each, many, parameters, stream, apart, error)
                          : kernel_launch(kernels[i], operands, each, parameters, stream, apart, error);
        operands += (ptrdiff_t)each * many;
        parameters = parameters ? parameters + graph->parameter_count : NULL;
    }
    return status;
}

double coda_product_time(const coda_device *device, const int64_t *sizes, int count)
{
    struct product_size size[MAX_SETS];
    if (!device->operations->product_time || !sizes || count < 1 || count > MAX_SETS)
        return 0;
    for (int i = 0; i < count; i++) {
        size[i] = (struct product_size){sizes[3 * i], sizes[3 * i + 1], sizes[3 * i + 2]};
        if (size[i].rows < 1 || size[i].columns < 1 || size[i].depth < 1)
            return 0;
    }
    return device->operations->product_time(device, size, count);
}
