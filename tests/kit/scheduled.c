#include "scheduled.h"
#include "random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const struct {
    const char *axis;
    int64_t size;
} sizes[] = {{"A", 16}, {"D", 144}, {"F", 136}, {"Q", 16}, {"E", 8}, {"H", 8}, {"P", 40}, {"V", 130}, {"N", 32}};

void check(coda_status status, const coda_error *error)
{
    if (status != CODA_OK)
        fail_msg("%s", error->message);
}

coda_tensor *find(struct store *store, const char *name)
{
    for (int i = 0; i < store->count; i++)
        if (strcmp(store->item[i].name, name) == 0)
            return &store->item[i].tensor;
    return NULL;
}

size_t bytes_of(const coda_tensor *t)
{
    return (size_t)(t->shape[0] * t->shape[1]) * coda_dtype_size(t->dtype);
}

/* Every byte 0xFF: a NaN. */
static coda_tensor *add(struct store *store, const char *name, coda_dtype dtype, int rank, const int64_t shape[2])
{
    coda_tensor tensor = {NULL, dtype, rank, {1, 1}, 0};
    assert_true(store->count < MAX_VALUES);
    for (int i = 0; i < rank; i++)
        tensor.shape[i] = shape[i];
    tensor.data = malloc(bytes_of(&tensor));
    assert_non_null(tensor.data);
    memset(tensor.data, 0xFF, bytes_of(&tensor));
    snprintf(store->item[store->count].name, NAME, "%s", name);
    store->item[store->count].tensor = tensor;
    return &store->item[store->count++].tensor;
}

static void drop(struct store *store)
{
    for (int i = 0; i < store->count; i++)
        free(store->item[i].tensor.data);
    store->count = 0;
}

static void fill_normal(coda_tensor *tensor, uint64_t seed)
{
    struct random random = {seed};
    for (int64_t i = 0; i < tensor->shape[0] * tensor->shape[1]; i++) {
        float value = (float)random_normal(&random);
        coda_convert((char *)tensor->data + (size_t)i * coda_dtype_size(tensor->dtype), tensor->dtype, &value, CODA_F32,
                     1);
    }
}

/* The dims that the program has. */
coda_dims dims_of(const coda_program *program, int64_t rows)
{
    coda_dims dims = {0};
    for (int i = 0; i < coda_program_axis_count(program); i++) {
        coda_axis axis;
        assert_int_equal(coda_program_axis(program, i, &axis), CODA_OK);
        int64_t size = strcmp(axis.name, "M") == 0 ? rows : 0;
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
            if (strcmp(axis.name, sizes[k].axis) == 0)
                size = sizes[k].size;
        if (size && !axis.derived) {
            dims.item[dims.count].axis = axis.name;
            dims.item[dims.count++].size = size;
        }
    }
    return dims;
}

/* Launches the programs in order; operands are found or made by name. Sums that are added to start at 0. */
static void run_programs(struct block_trial *t, int64_t rows)
{
    coda_error error;
    for (int p = 0; p < coda_module_size(t->programs); p++) {
        const coda_program *program = coda_module_program(t->programs, p);
        coda_dims dims = dims_of(program, rows);
        coda_tensor operand[MAX_VALUES];
        coda_kernel *kernel;
        for (int o = 0; o < coda_program_operand_count(program); o++) {
            coda_operand info;
            int64_t shape[2];
            assert_int_equal(coda_program_operand(program, o, &info), CODA_OK);
            check(coda_program_operand_shape(program, o, &dims, shape, &error), &error);
            coda_tensor *value = find(&t->values, info.name);
            if (value == NULL) {
                value = add(&t->values, info.name, info.dtype, info.rank, shape);
                if (info.role == CODA_ACCUMULATE)
                    memset(value->data, 0, bytes_of(value));
                if (info.role == CODA_IN) /* a gradient that arrives */
                    fill_normal(value, (uint64_t)t->values.count);
            }
            operand[o] = *value;
        }
        check(coda_kernel_create(t->device, program, &dims, NULL, &kernel, &error), &error);
        check(coda_kernel_launch(kernel, operand, coda_program_operand_count(program), NULL, NULL, &error), &error);
        coda_kernel_free(kernel);
    }
}

/* Fills the inputs and runs the programs of trial->block. */
static void begin(struct block_trial *t, int64_t rows, int backward, int exponentials)
{
    coda_error error;
    t->dims = dims_of(t->block, rows);
    for (int o = 0; o < coda_program_operand_count(t->block); o++) {
        coda_operand info;
        int64_t shape[2];
        assert_int_equal(coda_program_operand(t->block, o, &info), CODA_OK);
        check(coda_program_operand_shape(t->block, o, &t->dims, shape, &error), &error);
        if (info.role == CODA_IN)
            check(coda_program_fill(t->block, o, &t->dims, 5,
                                    add(&t->values, info.name, info.dtype, info.rank, shape)->data, &error),
                  &error);
    }
    coda_rewrite_options options = {.backward = backward, .allow_passes = 1, .exponentials = exponentials};
    check(coda_rewrite(t->block, &options, &t->programs, NULL, &error), &error);
    run_programs(t, rows);
}

void open_trial(struct block_trial *t, const char *device, const char *block, coda_dtype dtype, int64_t rows,
                int backward)
{
    open_trial_of(t, device, block, dtype, rows, backward, 0);
}

void open_trial_of(struct block_trial *t, const char *device, const char *block, coda_dtype dtype, int64_t rows,
                   int backward, int exponentials)
{
    const coda_module *blocks;
    coda_error error;
    memset(t, 0, sizeof *t);
    check(coda_device_open(device, &t->device, &error), &error);
    check(coda_standard_blocks(&blocks, &error), &error);
    if (dtype != CODA_BF16)
        check(coda_module_retype(blocks, CODA_BF16, dtype, &t->module, &error), &error);
    t->block = coda_module_find(t->module ? t->module : blocks, block);
    assert_non_null(t->block);
    begin(t, rows, backward, exponentials);
}

void open_trial_of_text(struct block_trial *t, const char *device, const char *text, int64_t rows)
{
    coda_error error;
    memset(t, 0, sizeof *t);
    check(coda_device_open(device, &t->device, &error), &error);
    check(coda_module_parse(text, strlen(text), NULL, &t->module, &error), &error);
    t->block = coda_module_program(t->module, 0);
    begin(t, rows, 1, 0);
}

void close_trial(struct block_trial *t)
{
    drop(&t->values);
    coda_module_free(t->programs);
    coda_module_free(t->module);
    coda_device_close(t->device);
}

/* ---------------------------------------------------------------- a schedule of the block */

static void *block_of(size_t bytes)
{
    void *memory = aligned_alloc(256, bytes + 256 - bytes % 256);
    assert_non_null(memory);
    memset(memory, 0xFF, bytes);
    return memory;
}

void open_running(struct running *r, struct block_trial *t, const coda_schedule_options *options)
{
    coda_error error;
    memset(r, 0, sizeof *r);
    check(coda_schedule_create(t->device, t->block, &t->dims, options, &r->schedule, &error), &error);
    check(coda_schedule_memory(r->schedule, &t->dims, &r->saved_bytes, &r->scratch_bytes, &error), &error);
    r->saved = block_of(r->saved_bytes);
    r->scratch = block_of(r->scratch_bytes);
    r->count = coda_schedule_operand_count(r->schedule);
    for (int i = 0; i < r->count; i++) {
        coda_value value;
        int64_t shape[2];
        assert_int_equal(coda_schedule_value(r->schedule, i, &value), CODA_OK);
        check(coda_schedule_shape(r->schedule, i, &t->dims, shape, &error), &error);
        coda_tensor *mine = add(&r->own, value.name, value.dtype, value.rank, shape);
        coda_tensor *given = find(&t->values, value.name);
        if (value.kind == CODA_INPUT && given != NULL)
            memcpy(mine->data, given->data, bytes_of(given));
        if (value.accumulated)
            memset(mine->data, 0, bytes_of(mine));
        r->operand[i] = *mine;
    }
}

void close_running(struct running *r)
{
    coda_schedule_free(r->schedule);
    drop(&r->own);
    free(r->saved);
    free(r->scratch);
}

/* Nothing is in the scratch memory before a launch, and a launch needs no more than it is said to. */
void launch(struct running *r, int phases)
{
    coda_error error;
    memset(r->scratch, 0xFF, r->scratch_bytes);
    check(coda_schedule_launch(r->schedule, phases, r->operand, r->count, r->saved_bytes ? r->saved : NULL,
                               r->scratch_bytes ? r->scratch : NULL, NULL, NULL, &error),
          &error);
}

/* What the programs gave: itself, or the sum of the runs of a vector's gradient, several vectors side by side. */
static double expected(const coda_tensor *own, const coda_tensor *runs, int64_t element)
{
    float sum = 0;
    int64_t size = own->shape[0] * own->shape[1], total = runs->shape[0] * runs->shape[1];
    for (int64_t i = element; i < total; i += size) {
        float value;
        size_t width = coda_dtype_size(runs->dtype);
        coda_convert(&value, CODA_F32, (char *)runs->data + (size_t)i * width, runs->dtype, 1);
        sum += value;
    }
    return sum;
}

/* tolerance 0: the same bits, but for sums over runs, whose order is the kernel's. NULL results were not wanted. */
void compare(struct running *r, struct block_trial *t, double tolerance, int phases)
{
    for (int i = 0; i < r->count; i++) {
        coda_value value;
        assert_int_equal(coda_schedule_value(r->schedule, i, &value), CODA_OK);
        const coda_tensor *own = &r->operand[i], *given = find(&t->values, value.name);
        if (value.kind != CODA_RESULT || !(value.phases & phases) || own->data == NULL)
            continue;
        assert_non_null(given);
        int64_t count = own->shape[0] * own->shape[1];
        bool summed = given->shape[0] * given->shape[1] != count;
        double error = 0, norm = 0;
        if (!summed && tolerance == 0 && memcmp(own->data, given->data, bytes_of(own)) != 0)
            fail_msg("%s of %s has other bits", value.name, coda_program_name(t->block));
        for (int64_t e = 0; e < count; e++) {
            float mine;
            size_t width = coda_dtype_size(own->dtype);
            coda_convert(&mine, CODA_F32, (char *)own->data + (size_t)e * width, own->dtype, 1);
            double theirs = expected(own, given, e);
            error += (mine - theirs) * (mine - theirs);
            norm += theirs * theirs;
        }
        double bound = fmax(tolerance, summed ? 1e-6 : 0) * sqrt(norm);
        if (!(sqrt(error) <= bound) || norm == 0)
            fail_msg("%s of %s is %g off, norm %g", value.name, coda_program_name(t->block), sqrt(error), sqrt(norm));
    }
}

coda_schedule_options with_backward(void)
{
    return (coda_schedule_options){
        .size = sizeof(coda_schedule_options), .backward = 1, .allow_passes = 1, .exponentials = -1};
}

coda_tensor *operand(struct running *r, const char *name)
{
    int index = coda_schedule_find(r->schedule, name);
    if (index < 0 || index >= r->count)
        fail_msg("the caller gives no %s", name);
    return &r->operand[index];
}
