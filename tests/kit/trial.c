#include "trial.h"

#include "runtime/sizes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t tensor_rows(const coda_tensor *tensor)
{
    return tensor->rank == 2 ? tensor->shape[0] : 1;
}

int64_t tensor_columns(const coda_tensor *tensor)
{
    return tensor->rank == 2 ? tensor->shape[1] : tensor->rank == 1 ? tensor->shape[0] : 1;
}

static size_t row_bytes(const coda_tensor *tensor)
{
    return (size_t)tensor_columns(tensor) * coda_dtype_size(tensor->dtype);
}

static unsigned char *row_of(const coda_tensor *tensor, int64_t row)
{
    return (unsigned char *)tensor->data + (size_t)(row * tensor->stride) * coda_dtype_size(tensor->dtype);
}

void tensor_dense(const coda_tensor *tensor, void *dense)
{
    for (int64_t i = 0; i < tensor_rows(tensor); i++)
        memcpy((unsigned char *)dense + (size_t)i * row_bytes(tensor), row_of(tensor, i), row_bytes(tensor));
}

static coda_status make_operand(struct trial *trial, int i, uint64_t seed, struct layout layout, coda_error *error)
{
    coda_operand operand;
    coda_tensor *tensor = &trial->tensor[i];
    coda_status status = coda_program_operand(trial->program, i, &operand);
    if (status == CODA_OK)
        status = coda_program_operand_shape(trial->program, i, &trial->dims, tensor->shape, error);
    if (status != CODA_OK)
        return status;
    tensor->dtype = operand.dtype;
    tensor->rank = operand.rank;
    int64_t rows = tensor_rows(tensor), columns = tensor_columns(tensor);
    tensor->stride = tensor->rank == 2 ? columns + layout.padding : 0;
    size_t size = coda_dtype_size(tensor->dtype);
    size_t bytes = (size_t)((rows - 1) * tensor->stride + columns) * size;
    trial->initial[i] = malloc((size_t)(rows * columns) * size);
    if (!trial->initial[i] || !guarded_new(&trial->memory[i], bytes, layout.side))
        return fail_memory(error, "an operand", bytes);
    tensor->data = trial->memory[i].data;
    return coda_program_fill(trial->program, i, &trial->dims, seed, trial->initial[i], error);
}

coda_status trial_new(struct trial *trial, const coda_program *program, const coda_dims *dims, uint64_t seed,
                      struct layout layout, coda_error *error)
{
    memset(trial, 0, sizeof *trial);
    trial->program = program;
    trial->graph = program->graph;
    trial->dims = *dims;
    trial->count = coda_program_operand_count(program);
    coda_status status = sizes_from_dims(trial->graph, dims, trial->size, error);
    for (int i = 0; i < trial->count && status == CODA_OK; i++)
        status = make_operand(trial, i, seed, layout, error);
    if (status != CODA_OK) {
        trial_free(trial);
        return status;
    }
    for (int i = 0; i < trial->graph->parameter_count; i++)
        trial->parameter[i] = trial->graph->parameter[i].default_value;
    for (int i = 0; i < trial->count; i++)
        memset(trial->memory[i].data, 0xA5, trial->memory[i].bytes);
    trial_reset(trial, POISON_BYTES);
    return CODA_OK;
}

void trial_free(struct trial *trial)
{
    for (int i = 0; i < trial->count; i++) {
        guarded_free(&trial->memory[i]);
        free(trial->initial[i]);
    }
    memset(trial, 0, sizeof *trial);
}

static void poison_row(unsigned char *row, int64_t columns, coda_dtype dtype, enum poison poison)
{
    static const float nan_value = __builtin_nanf("");
    size_t size = coda_dtype_size(dtype);
    memset(row, 0xFF, (size_t)columns * size);
    if (poison == POISON_NAN && dtype != CODA_I32)
        for (int64_t j = 0; j < columns; j++)
            coda_convert(row + (size_t)j * size, dtype, &nan_value, CODA_F32, 1);
}

void trial_reset(struct trial *trial, enum poison poison)
{
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < trial->count; i++) {
            const coda_tensor *tensor = &trial->tensor[i];
            bool is_out = trial->graph->operand[i].role == CODA_OUT;
            for (int64_t row = 0; row < tensor_rows(tensor) && is_out == (pass == 0); row++) {
                if (is_out)
                    poison_row(row_of(tensor, row), tensor_columns(tensor), tensor->dtype, poison);
                else
                    memcpy(row_of(tensor, row), (unsigned char *)trial->initial[i] + (size_t)row * row_bytes(tensor),
                           row_bytes(tensor));
            }
        }
}

int trial_operand(const struct trial *trial, const char *name)
{
    return graph_find_operand(trial->graph, name);
}

void trial_alias(struct trial *trial, const char *out, const char *in)
{
    trial->tensor[trial_operand(trial, out)].data = trial->tensor[trial_operand(trial, in)].data;
}

bool trial_set_parameter(struct trial *trial, const char *name, double value)
{
    for (int i = 0; i < trial->graph->parameter_count; i++)
        if (strcmp(trial->graph->parameter[i].name, name) == 0) {
            trial->parameter[i] = value;
            return true;
        }
    return false;
}

static bool gaps_intact(const coda_tensor *tensor)
{
    for (int64_t row = 0; row + 1 < tensor_rows(tensor); row++)
        for (const unsigned char *p = row_of(tensor, row) + row_bytes(tensor); p < row_of(tensor, row + 1); p++)
            if (*p != 0xA5)
                return false;
    return true;
}

static bool contents_intact(const struct trial *trial, int i)
{
    const coda_tensor *tensor = &trial->tensor[i];
    for (int j = 0; j < trial->count; j++)
        if (j != i && trial->tensor[j].data == tensor->data)
            return true;
    for (int64_t row = 0; row < tensor_rows(tensor); row++)
        if (memcmp(row_of(tensor, row), (unsigned char *)trial->initial[i] + (size_t)row * row_bytes(tensor),
                   row_bytes(tensor)) != 0)
            return false;
    return true;
}

bool trial_untouched(const struct trial *trial, char *text, size_t size)
{
    for (int i = 0; i < trial->count; i++) {
        const struct operand *operand = &trial->graph->operand[i];
        const char *what = !guarded_intact(&trial->memory[i])                       ? "bytes outside"
                           : !gaps_intact(&trial->tensor[i])                        ? "bytes between the rows of"
                           : operand->role == CODA_IN && !contents_intact(trial, i) ? "elements of the in"
                                                                                    : NULL;
        if (what) {
            snprintf(text, size, "%s %s were written", what, operand->name);
            return false;
        }
    }
    return true;
}

coda_status trial_run(struct trial *trial, coda_device *device, const coda_options *options, coda_error *error)
{
    coda_dims fixed = {0};
    for (int i = 0; i < trial->graph->axis_count; i++)
        if (axis_is_fixed(trial->graph, i)) {
            fixed.item[fixed.count].axis = trial->graph->axis[i].name;
            fixed.item[fixed.count++].size = trial->size[i];
        }
    coda_kernel *kernel = NULL;
    coda_status status = coda_kernel_create(device, trial->program, &fixed, options, &kernel, error);
    if (status == CODA_OK)
        status = coda_kernel_launch(kernel, trial->tensor, trial->count, trial->parameter, NULL, error);
    coda_kernel_free(kernel);
    return status;
}
