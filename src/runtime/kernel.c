/* Kernels: what every device shares of their creation and launch. */
#include "runtime/device.h"
#include "runtime/sizes.h"

#include <stdlib.h>
#include <string.h>

/* Copies the caller's options as far as its struct reaches. */
static coda_status take_options(const coda_options *from, coda_options *to, coda_error *error)
{
    memset(to, 0, sizeof *to);
    to->size = sizeof *to;
    if (!from)
        return CODA_OK;
    if (from->size < sizeof from->size || from->size > 1 << 16)
        return fail(error, CODA_INVALID, "coda_options.size is %zu; set it to sizeof(coda_options)", from->size);
    memcpy(to, from, from->size < sizeof *to ? from->size : sizeof *to);
    to->size = sizeof *to;
    if (to->tile_rows < 0 || to->tile_columns < 0)
        return fail(error, CODA_INVALID,
                    "a tile of %d x %d; expected sizes of at least 1, or 0 for the device's choice", to->tile_rows,
                    to->tile_columns);
    return CODA_OK;
}

static coda_status check_program(const coda_device *device, coda_kernel *kernel, coda_error *error)
{
    const struct graph *graph = kernel->graph;
    struct complaint why = {0};
    if (graph->is_block) {
        if (!device->operations->runs_blocks)
            return fail(error, CODA_INVALID,
                        "%s is a block, which the device %s does not run; turn it into programs first "
                        "(coda_rewrite)",
                        graph->name, device->name);
    } else {
        int node;
        if (form_create(graph, &kernel->form, &node, &why) != CODA_OK)
            return fail_complaint(error, &why);
    }
    for (int i = 0; i < graph->axis_count; i++)
        if (axis_is_fixed(graph, i) && !kernel->fixed_size[i])
            return fail(error, CODA_INVALID, "%s: the size of axis %s must be given when the kernel is created",
                        graph->name, graph->axis[i].name);
    if (sizes_check(graph, kernel->fixed_size, &why) != CODA_OK) /* those that are given */
        return fail_complaint(error, &why);
    return CODA_OK;
}

coda_status coda_kernel_create(coda_device *device, const coda_program *program, const coda_dims *dims,
                               const coda_options *options, coda_kernel **kernel, coda_error *error)
{
    if (!device || !program || !kernel)
        return fail(error, CODA_INVALID, "coda_kernel_create needs a device, a program and a place for the kernel");
    coda_kernel *made = calloc(1, sizeof *made);
    if (!made)
        return fail_memory(error, "a kernel", sizeof *made);
    made->device = device;
    made->graph = graph_copy(program->graph);
    coda_status status = made->graph ? CODA_OK : fail_memory(error, "a copy of the program", sizeof *made->graph);
    if (status == CODA_OK)
        status = take_options(options, &made->options, error);
    if (status == CODA_OK)
        status = sizes_from_dims(made->graph, dims, made->fixed_size, error);
    if (status == CODA_OK)
        status = check_program(device, made, error);
    if (status == CODA_OK)
        status = device->operations->prepare(made, error);
    if (status != CODA_OK) {
        form_free(&made->form);
        graph_free(made->graph);
        free(made);
        return status;
    }
    *kernel = made;
    return CODA_OK;
}

void coda_kernel_free(coda_kernel *kernel)
{
    if (!kernel)
        return;
    kernel->device->operations->release(kernel);
    form_free(&kernel->form);
    graph_free(kernel->graph);
    free(kernel);
}

static void count_bytes(coda_kernel *kernel, const coda_tensor *operand)
{
    int64_t bytes = 0;
    for (int i = 0; i < kernel->graph->operand_count; i++) {
        int64_t size = operand[i].shape[0] * operand[i].shape[1] * (int64_t)coda_dtype_size(operand[i].dtype);
        bytes += kernel->graph->operand[i].role == CODA_ACCUMULATE ? 2 * size : size;
    }
    __atomic_fetch_add(&kernel->bytes_moved, bytes, __ATOMIC_RELAXED);
}

coda_status coda_kernel_launch(coda_kernel *kernel, const coda_tensor *operands, int count, const double *parameters,
                               void *stream, coda_error *error)
{
    const struct graph *graph = kernel->graph;
    coda_tensor operand[MAX_OPERANDS];
    int64_t sizes[MAX_AXES];
    double defaults[MAX_OPERANDS];
    if (!operands || count < 0 || count > MAX_OPERANDS)
        return fail(error, CODA_INVALID, "%s: %d operands; expected %d", graph->name, count, graph->operand_count);
    memcpy(operand, operands, (size_t)count * sizeof *operand);
    memcpy(sizes, kernel->fixed_size, sizeof sizes);
    coda_status status = sizes_from_operands(graph, operand, count, sizes, error);
    if (status == CODA_OK)
        status = check_sizes(kernel, sizes, error);
    if (status == CODA_OK)
        status = check_memory(kernel, operand, error);
    if (status != CODA_OK)
        return status;
    for (int i = 0; i < graph->parameter_count; i++)
        defaults[i] = graph->parameter[i].default_value;
    struct launch launch = {
        .size = sizes, .operand = operand, .parameter = parameters ? parameters : defaults, .stream = stream};
    status = kernel->device->operations->launch(kernel, &launch, error);
    if (status == CODA_OK)
        count_bytes(kernel, operand);
    return status;
}

double coda_kernel_bytes_moved(const coda_kernel *kernel)
{
    return (double)__atomic_load_n(&kernel->bytes_moved, __ATOMIC_RELAXED);
}

const char *coda_kernel_source(const coda_kernel *kernel)
{
    const char *(*source)(const coda_kernel *) = kernel->device->operations->source;
    return source ? source(kernel) : "";
}

const void *coda_kernel_binary(const coda_kernel *kernel, size_t *size)
{
    const void *(*binary)(const coda_kernel *, size_t *) = kernel->device->operations->binary;
    return binary ? binary(kernel, size) : NULL;
}
