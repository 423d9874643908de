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
    if (to->sets < 0)
        return fail(error, CODA_INVALID, "coda_options.sets is %d; expected a number of sets, or 0", to->sets);
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
    const struct graph *graph = kernel->graph;
    int64_t bytes = 0;
    for (int i = 0; i < graph->operand_count; i++) {
        if (graph->conditional && i != graph->condition)
            continue; /* mostly that is all that it reads */
        coda_role role = graph->operand[i].role;
        int64_t columns = role == CODA_PATCH ? 1 : operand[i].shape[1];
        int64_t size = operand[i].shape[0] * columns * (int64_t)coda_dtype_size(operand[i].dtype);
        bytes += role == CODA_ACCUMULATE ? 2 * size : size;
    }
    __atomic_fetch_add(&kernel->bytes_moved, bytes, __ATOMIC_RELAXED);
}

/* Operands as the caller gave them, checked and with their strides. */
struct set {
    coda_tensor operand[MAX_OPERANDS];
    int64_t sizes[MAX_AXES];
};

static coda_status take_set(coda_kernel *kernel, const coda_tensor *operands, int count, struct set *set,
                            coda_error *error)
{
    const struct graph *graph = kernel->graph;
    if (!operands || count < 0 || count > MAX_OPERANDS)
        return fail(error, CODA_INVALID, "%s: %d operands; expected %d", graph->name, count, graph->operand_count);
    memcpy(set->operand, operands, (size_t)count * sizeof *operands);
    memcpy(set->sizes, kernel->fixed_size, sizeof set->sizes);
    coda_status status = sizes_from_operands(graph, set->operand, count, set->sizes, error);
    if (status == CODA_OK)
        status = check_sizes(kernel, set->sizes, error);
    if (status == CODA_OK)
        status = check_memory(kernel, set->operand, error);
    return status;
}

static const double *parameters_of(const struct graph *graph, const double *given, double defaults[MAX_OPERANDS])
{
    for (int i = 0; i < graph->parameter_count; i++)
        defaults[i] = graph->parameter[i].default_value;
    return given ? given : defaults;
}

coda_status kernel_launch(coda_kernel *kernel, const coda_tensor *operands, int count, const double *parameters,
                          void *stream, bool apart, coda_error *error)
{
    struct set set;
    double defaults[MAX_OPERANDS];
    coda_status status = take_set(kernel, operands, count, &set, error);
    if (status != CODA_OK)
        return status;
    struct launch launch = {.size = set.sizes,
                            .operand = set.operand,
                            .parameter = parameters_of(kernel->graph, parameters, defaults),
                            .stream = stream,
                            .apart = apart};
    status = kernel->device->operations->launch(kernel, &launch, error);
    if (status == CODA_OK)
        count_bytes(kernel, set.operand);
    return status;
}

coda_status coda_kernel_launch(coda_kernel *kernel, const coda_tensor *operands, int count, const double *parameters,
                               void *stream, coda_error *error)
{
    return kernel_launch(kernel, operands, count, parameters, stream, false, error);
}

/* ---------------------------------------------------------------- sets */

static coda_status take_set_of(coda_kernel *kernel, const coda_tensor *operands, int count, int index, struct set *set,
                               coda_error *error)
{
    coda_error why = {0};
    coda_status status = take_set(kernel, operands + (ptrdiff_t)index * count, count, set, &why);
    return status == CODA_OK ? CODA_OK : fail(error, status, "set %d: %.4000s", index, why.message);
}

/* Every set by itself, and every two of them. held: receives the last MAX_SETS, set i at i % MAX_SETS. */
static coda_status check_sets(coda_kernel *kernel, const coda_tensor *operands, int count, int sets, struct set *held,
                              coda_error *error)
{
    struct set again;
    coda_status status = CODA_OK;
    for (int i = 0; i < sets && status == CODA_OK; i++) {
        struct set *set = &held[i % MAX_SETS];
        status = take_set_of(kernel, operands, count, i, set, error);
        for (int k = 0; k < i && status == CODA_OK; k++) {
            const struct set *other = &held[k % MAX_SETS];
            if (i - k >= MAX_SETS) {
                status = take_set_of(kernel, operands, count, k, &again, error);
                other = &again;
            }
            if (status == CODA_OK)
                status = check_apart(kernel, other->operand, k, set->operand, i, error);
        }
    }
    return status;
}

static coda_status launch_sets(coda_kernel *kernel, const struct launch *launch, int count, coda_error *error)
{
    const struct device_operations *operations = kernel->device->operations;
    coda_status status = CODA_OK;
    if (operations->launch_sets)
        return operations->launch_sets(kernel, launch, count, error);
    for (int i = 0; i < count && status == CODA_OK; i++)
        status = operations->launch(kernel, &launch[i], error);
    return status;
}

coda_status kernel_launch_sets(coda_kernel *kernel, const coda_tensor *operands, int count, int sets,
                               const double *parameters, void *stream, bool apart, coda_error *error)
{
    struct set set[MAX_SETS];
    struct launch launch[MAX_SETS];
    double defaults[MAX_OPERANDS];
    if (sets < 1)
        return fail(error, CODA_INVALID, "%s: %d sets of operands; expected at least 1", kernel->graph->name, sets);
    if (!operands || count != kernel->graph->operand_count)
        return fail(error, CODA_INVALID, "%s: %d operands in a set; expected %d", kernel->graph->name,
                    operands ? count : 0, kernel->graph->operand_count);
    const double *parameter = parameters_of(kernel->graph, parameters, defaults);
    coda_status status = check_sets(kernel, operands, count, sets, set, error);
    for (int first = 0; first < sets && status == CODA_OK; first += MAX_SETS) {
        int together = sets - first < MAX_SETS ? sets - first : MAX_SETS;
        for (int i = 0; i < together && status == CODA_OK; i++) {
            if (sets > MAX_SETS)
                status = take_set_of(kernel, operands, count, first + i, &set[i], error);
            launch[i] = (struct launch){set[i].sizes, set[i].operand, parameter, stream, apart && sets <= MAX_SETS};
        }
        if (status == CODA_OK)
            status = launch_sets(kernel, launch, together, error);
        for (int i = 0; i < together && status == CODA_OK; i++)
            count_bytes(kernel, set[i].operand);
    }
    return status;
}

coda_status coda_kernel_launch_sets(coda_kernel *kernel, const coda_tensor *operands, int count, int sets,
                                    const double *parameters, void *stream, coda_error *error)
{
    return kernel_launch_sets(kernel, operands, count, sets, parameters, stream, false, error);
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
