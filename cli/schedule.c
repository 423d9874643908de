#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- sizes */

static int64_t layer_size(const struct arguments *arguments, bool cuda, const char *axis)
{
    int64_t width = arguments->width ? arguments->width : 1024;
    int64_t tokens = arguments->tokens ? arguments->tokens : 1024;
    switch (axis[1] ? 0 : axis[0]) {
    case 'M':
    case 'P':
        return tokens;
    case 'F':
        return (width * 8 / 3 + 255) / 256 * 256;
    case 'E':
        return cuda ? width : width / 4 > 64 ? width / 4 / 64 * 64 : 64;
    case 'H':
        return width >= 2048 ? 128 : 64;
    case 'V':
        return 32768;
    default:
        return width;
    }
}

int choose_block_sizes(const struct arguments *arguments, const coda_program *block, bool cuda, coda_dims *dims)
{
    coda_dims given;
    int status = choose_sizes(arguments, block, SIZES_GIVEN, &given);
    if (status >= 0)
        return status;
    *dims = given;
    for (int i = 0; i < coda_program_axis_count(block); i++) {
        coda_axis axis;
        bool known = false;
        if (coda_program_axis(block, i, &axis) != CODA_OK || axis.derived)
            continue;
        for (int k = 0; k < given.count; k++)
            known = known || strcmp(given.item[k].axis, axis.name) == 0;
        if (!known && dims->count < CODA_MAX_DIMS) {
            dims->item[dims->count].axis = axis.name;
            dims->item[dims->count++].size = layer_size(arguments, cuda, axis.name);
        }
    }
    return -1;
}

/* The size that the operands of a step give an axis; 0: none. */
static int64_t size_in_step(const coda_schedule *schedule, const coda_step *step, const coda_dims *dims,
                            const char *axis)
{
    for (int k = 0; k < coda_program_operand_count(step->program); k++) {
        coda_operand operand;
        int64_t shape[2];
        if (coda_program_operand(step->program, k, &operand) != CODA_OK ||
            coda_schedule_shape(schedule, step->value[k], dims, shape, NULL) != CODA_OK)
            continue;
        for (int d = 0; d < operand.rank; d++)
            if (strcmp(operand.dim[d], axis) == 0)
                return shape[d];
    }
    for (int k = 0; k < dims->count; k++)
        if (strcmp(dims->item[k].axis, axis) == 0)
            return dims->item[k].size;
    return 0;
}

/* A small program of the library has names of its own, which say nothing of its sizes. */
static bool names_values(const coda_schedule *schedule, const coda_program *program)
{
    coda_operand operand;
    for (int k = 0; k < coda_program_operand_count(program); k++)
        if (coda_program_operand(program, k, &operand) != CODA_OK || coda_schedule_find(schedule, operand.name) < 0)
            return false;
    return true;
}

bool step_sizes(const coda_schedule *schedule, const coda_step *step, const coda_dims *dims, int64_t chunk,
                coda_dims *sizes)
{
    sizes->count = 0;
    if (!names_values(schedule, step->program))
        return false;
    for (int i = 0; i < coda_program_axis_count(step->program); i++) {
        coda_axis axis;
        if (coda_program_axis(step->program, i, &axis) != CODA_OK || axis.derived)
            continue;
        int64_t size = size_in_step(schedule, step, dims, axis.name);
        if (size == 0 || sizes->count == CODA_MAX_DIMS)
            return false;
        if (step->chunked && chunk && strcmp(axis.name, "M") == 0 && size > chunk)
            size = chunk;
        sizes->item[sizes->count].axis = axis.name;
        sizes->item[sizes->count++].size = size;
    }
    return true;
}

/* ---------------------------------------------------------------- operands */

static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* A gradient that arrives: about normal, from a period of random numbers, in any type. */
static void fill_gradient(void *data, coda_dtype dtype, int64_t count, uint64_t seed)
{
    enum { PERIOD = 65521 };
    static float values[PERIOD];
    size_t size = coda_dtype_size(dtype);
    for (int i = 0; i < PERIOD; i++) {
        double sum = 0;
        for (int k = 0; k < 12; k++)
            sum += (double)(next(&seed) >> 11) * 0x1p-53;
        values[i] = (float)(sum - 6);
    }
    for (int64_t i = 0; i < count; i += PERIOD)
        coda_convert((char *)data + (size_t)i * size, dtype, values, CODA_F32, count - i < PERIOD ? count - i : PERIOD);
}

coda_status out_of_memory(coda_error *error)
{
    if (error) {
        error->status = CODA_MEMORY;
        snprintf(error->message, sizeof error->message, "out of memory");
    }
    return CODA_MEMORY;
}

static coda_status make_value(struct scheduled *s, const coda_program *block, int i, const coda_dims *dims,
                              uint64_t seed, coda_error *error)
{
    coda_value value;
    coda_tensor *t = &s->operand[i];
    coda_status status = coda_schedule_value(s->schedule, i, &value);
    if (status != CODA_OK)
        return status;
    *t = (coda_tensor){.dtype = value.dtype, .rank = value.rank};
    status = coda_schedule_shape(s->schedule, i, dims, t->shape, error);
    if (status != CODA_OK)
        return status;
    int64_t count = 1;
    for (int d = 0; d < t->rank; d++)
        count *= t->shape[d];
    size_t bytes = (size_t)count * coda_dtype_size(t->dtype);
    void *host = calloc(1, bytes);
    if (!host)
        return out_of_memory(error);
    if (value.kind == CODA_INPUT && i < coda_program_operand_count(block))
        status = coda_program_fill(block, i, dims, seed, host, error);
    else if (value.kind == CODA_INPUT)
        fill_gradient(host, t->dtype, count, seed + (uint64_t)i);
    if (status == CODA_OK)
        status = coda_allocate(s->device, bytes, &t->data, error);
    if (status == CODA_OK)
        status = coda_copy_in(s->device, t->data, host, bytes, error);
    free(host);
    return status;
}

coda_status scheduled_new(struct scheduled *scheduled, coda_device *device, const coda_program *block,
                          const coda_dims *dims, const coda_schedule_options *options, uint64_t seed, coda_error *error)
{
    memset(scheduled, 0, sizeof *scheduled);
    scheduled->device = device;
    scheduled->phases = CODA_FORWARD | (options && options->backward ? CODA_BACKWARD : 0);
    coda_status status = coda_schedule_create(device, block, dims, options, &scheduled->schedule, error);
    if (status != CODA_OK)
        return status;
    int count = coda_schedule_operand_count(scheduled->schedule);
    scheduled->operand = calloc((size_t)count + 1, sizeof *scheduled->operand);
    status = scheduled->operand ? coda_schedule_memory(scheduled->schedule, dims, &scheduled->saved_bytes,
                                                       &scheduled->scratch_bytes, error)
                                : out_of_memory(error);
    for (int i = 0; i < count && status == CODA_OK; i++) {
        status = make_value(scheduled, block, i, dims, seed, error);
        scheduled->count = i + 1;
    }
    if (status == CODA_OK && scheduled->saved_bytes)
        status = coda_allocate(device, scheduled->saved_bytes, &scheduled->saved, error);
    if (status == CODA_OK && scheduled->scratch_bytes)
        status = coda_allocate(device, scheduled->scratch_bytes, &scheduled->scratch, error);
    if (status != CODA_OK)
        scheduled_free(scheduled);
    return status;
}

coda_status scheduled_launch(const struct scheduled *s, int phases, void *stream, coda_error *error)
{
    return coda_schedule_launch(s->schedule, phases, s->operand, s->count, s->saved, s->scratch, NULL, stream, error);
}

void scheduled_free(struct scheduled *scheduled)
{
    for (int i = 0; i < scheduled->count; i++)
        coda_release(scheduled->device, scheduled->operand[i].data);
    coda_release(scheduled->device, scheduled->saved);
    coda_release(scheduled->device, scheduled->scratch);
    coda_schedule_free(scheduled->schedule);
    free(scheduled->operand);
    memset(scheduled, 0, sizeof *scheduled);
}
