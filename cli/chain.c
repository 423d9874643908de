#include "cli.h"

#include <stdlib.h>
#include <string.h>

struct step {
    coda_kernel *kernel, *library; /* the second for products, through cuBLASLt; NULL: none */
    bool product;
    int count;
    coda_tensor tensor[MAX_WORKLOAD];
    double parameter[MAX_WORKLOAD];
};

struct buffer {
    const char *name; /* lives as long as the module */
    coda_tensor tensor;
    bool owned;
};

struct chain {
    coda_device *device;
    coda_module *module;
    int step_count, buffer_count, buffer_room;
    struct step *step;
    struct buffer *buffer;
};

static coda_status no_memory(coda_error *error)
{
    if (error) {
        error->status = CODA_MEMORY;
        snprintf(error->message, sizeof error->message, "out of memory");
    }
    return CODA_MEMORY;
}

static struct buffer *find_buffer(const struct chain *chain, const char *name)
{
    for (int i = 0; i < chain->buffer_count; i++)
        if (strcmp(chain->buffer[i].name, name) == 0)
            return &chain->buffer[i];
    return NULL;
}

static coda_status add_buffer(struct chain *chain, const char *name, const coda_tensor *tensor, bool owned,
                              coda_error *error)
{
    if (chain->buffer_count == chain->buffer_room) {
        int room = chain->buffer_room ? 2 * chain->buffer_room : 32;
        struct buffer *larger = realloc(chain->buffer, (size_t)room * sizeof *larger);
        if (!larger)
            return no_memory(error);
        chain->buffer = larger;
        chain->buffer_room = room;
    }
    chain->buffer[chain->buffer_count++] = (struct buffer){name, *tensor, owned};
    return CODA_OK;
}

/* The fused kernel's `in`s are read where they are; everything that the chain writes is its own. */
static coda_status share_inputs(struct chain *chain, const struct workload *fused, coda_error *error)
{
    coda_status status = CODA_OK;
    coda_operand operand;
    for (int i = 0; i < fused->count && status == CODA_OK; i++)
        if ((status = coda_program_operand(fused->program, i, &operand)) == CODA_OK && operand.role == CODA_IN)
            status = add_buffer(chain, operand.name, &fused->tensor[i], false, error);
    return status;
}

static coda_status allocate_out(struct chain *chain, const coda_program *program, int index, const coda_dims *dims,
                                const struct workload *fused, uint64_t seed, coda_error *error)
{
    coda_operand operand, own;
    coda_tensor tensor = {0};
    coda_status status = coda_program_operand(program, index, &operand);
    if (status != CODA_OK || find_buffer(chain, operand.name))
        return status;
    tensor.dtype = operand.dtype;
    tensor.rank = operand.rank;
    status = coda_program_operand_shape(program, index, dims, tensor.shape, error);
    if (status != CODA_OK)
        return status;
    size_t bytes = coda_dtype_size(tensor.dtype);
    for (int i = 0; i < tensor.rank; i++)
        bytes *= (size_t)tensor.shape[i];
    void *host = calloc(1, bytes);
    if (!host)
        return no_memory(error);
    /* What a += or a patch starts from is what the fused kernel started from. */
    bool starts = operand.role == CODA_ACCUMULATE || operand.role == CODA_PATCH;
    for (int i = 0; i < fused->count && starts; i++)
        if (coda_program_operand(fused->program, i, &own) == CODA_OK && strcmp(own.name, operand.name) == 0)
            status = coda_program_fill(fused->program, i, dims, seed, host, error);
    if (status == CODA_OK)
        status = coda_allocate(chain->device, bytes, &tensor.data, error);
    if (status == CODA_OK)
        status = coda_copy_in(chain->device, tensor.data, host, bytes, error);
    free(host);
    if (status == CODA_OK)
        status = add_buffer(chain, operand.name, &tensor, true, error);
    return status;
}

static void take_parameters(struct step *step, const coda_program *program, const struct workload *fused)
{
    for (int i = 0; i < coda_program_parameter_count(program); i++) {
        const char *name = coda_program_parameter(program, i, &step->parameter[i]);
        for (int j = 0; j < coda_program_parameter_count(fused->program); j++)
            if (strcmp(name, coda_program_parameter(fused->program, j, NULL)) == 0)
                step->parameter[i] = fused->parameter[j];
    }
}

static coda_status add_step(struct chain *chain, int index, const struct workload *fused, const coda_dims *dims,
                            uint64_t seed, coda_error *error)
{
    const coda_program *program = coda_module_program(chain->module, index);
    struct step *step = &chain->step[index];
    coda_primitives primitives;
    coda_operand operand;
    coda_program_primitives(program, &primitives);
    step->product = primitives.gemms > 0;
    step->count = coda_program_operand_count(program);
    take_parameters(step, program, fused);
    coda_status status = coda_kernel_create(chain->device, program, dims, NULL, &step->kernel, error);
    for (int i = 0; i < step->count && status == CODA_OK; i++) {
        status = coda_program_operand(program, i, &operand);
        if (status == CODA_OK && operand.role != CODA_IN)
            status = allocate_out(chain, program, i, dims, fused, seed, error);
        struct buffer *buffer = find_buffer(chain, operand.name);
        if (status == CODA_OK && buffer)
            step->tensor[i] = buffer->tensor;
    }
    return status;
}

coda_status chain_new(struct chain **chain, const struct workload *fused, const coda_dims *dims, uint64_t seed,
                      coda_error *error)
{
    struct chain *made = calloc(1, sizeof *made);
    if (!made)
        return no_memory(error);
    made->device = fused->device;
    coda_status status = coda_unfuse(fused->program, &made->module, error);
    if (status == CODA_OK) {
        made->step_count = coda_module_size(made->module);
        made->step = calloc((size_t)made->step_count + 1, sizeof *made->step);
        status = made->step ? share_inputs(made, fused, error) : no_memory(error);
    }
    for (int i = 0; i < made->step_count && status == CODA_OK; i++)
        status = add_step(made, i, fused, dims, seed, error);
    if (status == CODA_OK)
        *chain = made;
    else
        chain_free(made);
    return status;
}

bool chain_add_library(struct chain *chain, const coda_dims *dims)
{
    bool all = true;
    coda_options options = {.size = sizeof options, .schedule = "cublas"};
    for (int i = 0; i < chain->step_count && all; i++) {
        const coda_program *program = coda_module_program(chain->module, i);
        coda_dims own = own_sizes(program, dims);
        if (chain->step[i].product)
            all = coda_kernel_create(chain->device, program, &own, &options, &chain->step[i].library, NULL) == CODA_OK;
    }
    return all;
}

coda_status chain_launch(struct chain *chain, enum chain_part part, void *stream, coda_error *error)
{
    coda_status status = CODA_OK;
    for (int i = 0; i < chain->step_count && status == CODA_OK; i++) {
        struct step *step = &chain->step[i];
        coda_kernel *kernel = part == CHAIN_LIBRARY ? step->library : step->kernel;
        if (part == CHAIN_ALL || step->product)
            status = coda_kernel_launch(kernel, step->tensor, step->count, step->parameter, stream, error);
    }
    return status;
}

float *chain_read(const struct chain *chain, const char *out, int64_t *count, coda_error *error)
{
    const struct buffer *buffer = find_buffer(chain, out);
    if (!buffer)
        return NULL;
    struct workload view = {.device = chain->device, .count = 1, .tensor = {buffer->tensor}};
    return workload_read(&view, 0, count, error);
}

int chain_length(const struct chain *chain)
{
    return chain->step_count;
}

int chain_products(const struct chain *chain)
{
    int count = 0;
    for (int i = 0; i < chain->step_count; i++)
        count += chain->step[i].product;
    return count;
}

void chain_free(struct chain *chain)
{
    if (!chain)
        return;
    for (int i = 0; i < chain->step_count && chain->step; i++) {
        coda_kernel_free(chain->step[i].kernel);
        coda_kernel_free(chain->step[i].library);
    }
    for (int i = 0; i < chain->buffer_count; i++)
        if (chain->buffer[i].owned)
            coda_release(chain->device, chain->buffer[i].tensor.data);
    coda_module_free(chain->module);
    free(chain->step);
    free(chain->buffer);
    free(chain);
}
