/* The host's side of CUDA launches, with a driver that counts what it is asked. */
#include "kit/standard.h"
#include "kit/stub_gpu.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { COUNT = 8, POOL = 1 << 22, OTHER_KIND = 1 };

/* A gemm_residual_rms on the stub, its operands carved out of one pool of "device" memory. */
struct subject {
    coda_device *device;
    coda_kernel *kernel;
    unsigned char *pool;
    coda_tensor tensor[COUNT];
    int count;
    coda_dims dims;
};

static void place(struct subject *s, int64_t rows)
{
    const coda_program *program = standard_program("gemm_residual_rms");
    size_t at = 0;
    s->dims = (coda_dims){3, {{"M", rows}, {"N", 256}, {"K", 64}}};
    s->count = coda_program_operand_count(program);
    assert_true(s->count <= COUNT);
    for (int i = 0; i < s->count; i++) {
        coda_operand operand;
        assert_int_equal(coda_program_operand(program, i, &operand), CODA_OK);
        coda_tensor *t = &s->tensor[i];
        *t = (coda_tensor){.data = s->pool + at, .dtype = operand.dtype, .rank = operand.rank};
        assert_int_equal(coda_program_operand_shape(program, i, &s->dims, t->shape, NULL), CODA_OK);
        size_t bytes = coda_dtype_size(t->dtype) * (size_t)t->shape[0] * (size_t)(t->rank == 2 ? t->shape[1] : 1);
        at += (bytes + 255) / 256 * 256;
    }
    assert_true(at <= POOL);
}

static void open_subject_on(struct subject *s, const char *gpu)
{
    coda_error error = {0};
    memset(s, 0, sizeof *s);
    s->device = stub_open_as(gpu);
    s->pool = aligned_alloc(1 << 21, POOL);
    assert_non_null(s->pool);
    stub_memory(s->pool, POOL, MEMORY_IS_DEVICE, 0);
    place(s, 256);
    if (coda_kernel_create(s->device, standard_program("gemm_residual_rms"), NULL, NULL, &s->kernel, &error) != CODA_OK)
        fail_msg("%s", error.message);
}

static void open_subject(struct subject *s)
{
    open_subject_on(s, "cuda:sm_90a");
}

static void close_subject(struct subject *s)
{
    coda_kernel_free(s->kernel);
    stub_close(s->device);
    free(s->pool);
}

static void run(struct subject *s, void *stream)
{
    coda_error error = {0};
    if (coda_kernel_launch(s->kernel, s->tensor, s->count, NULL, stream, &error) != CODA_OK)
        fail_msg("%s", error.message);
}

static struct parameter_layout layout_of(const struct subject *s)
{
    const struct cuda_kernel *k = s->kernel->state;
    return parameter_layout(s->kernel->graph, k->compiled[0].variant.map_count);
}

/* ---------------------------------------------------------------- what is asked */

static void a_repeated_launch_asks_the_driver_for_the_launch_alone(void **state)
{
    struct subject s;
    (void)state;
    open_subject(&s);
    run(&s, NULL);
    assert_true(stub_counts()->maps > 0);
    assert_true(stub_counts()->pointer_questions > 0);
    stub_reset();
    for (int i = 0; i < 100; i++)
        run(&s, NULL);
    assert_int_equal(stub_counts()->launches, 100);
    assert_int_equal(stub_counts()->maps, 0);
    assert_int_equal(stub_counts()->pointer_questions, 0);
    close_subject(&s);
}

static void an_allocation_is_asked_about_once(void **state)
{
    struct subject s;
    (void)state;
    open_subject(&s);
    run(&s, NULL);
    int first = stub_counts()->pointer_questions;
    assert_true(first <= 2); /* a question for each 2 MB page that the pool has */
    for (int64_t rows = 300; rows < 320; rows++) {
        place(&s, rows);
        run(&s, NULL);
    }
    assert_int_equal(stub_counts()->pointer_questions, first);
    close_subject(&s);
}

static void launches_that_take_turns_are_both_remembered(void **state)
{
    struct subject s;
    (void)state;
    open_subject(&s);
    for (int i = 0; i < 20; i++) {
        if (i == 2 * RECENT_LAUNCHES)
            stub_reset();
        place(&s, 256 + i % RECENT_LAUNCHES);
        run(&s, NULL);
    }
    assert_int_equal(stub_counts()->maps, 0);
    assert_int_equal(stub_counts()->launches, 20 - 2 * RECENT_LAUNCHES);
    close_subject(&s);
}

/* ---------------------------------------------------------------- what the driver receives */

/* Each difference from the launch before must reach the kernel, and going back must give the first bytes again. */
static void what_differs_from_the_launch_before_reaches_the_kernel(void **state)
{
    static const struct {
        const char *what;
        int operand;
        int64_t rows, shift; /* bytes */
        double eps;
    } rows[] = {
        {"nothing", 0, 256, 0, 1e-6},         {"fewer rows", 0, 128, 0, 1e-6},    {"another A", 0, 256, 1 << 20, 1e-6},
        {"another X", 4, 256, 1 << 20, 1e-6}, {"nothing again", 0, 256, 0, 1e-6},
    };
    struct subject s;
    (void)state;
    open_subject(&s);
    int bytes = layout_of(&s).total;
    stub_copy_parameters(bytes);
    unsigned char first[PARAMETER_BYTES] = {0};
    unsigned first_grid = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        place(&s, rows[i].rows);
        assert_true(rows[i].operand < s.count);
        s.tensor[rows[i].operand].data = (char *)s.tensor[rows[i].operand].data + rows[i].shift;
        run(&s, (void *)(uintptr_t)(16 + i));
        assert_ptr_equal(stub_counts()->stream, (void *)(uintptr_t)(16 + i));
        if (i == 0) {
            memcpy(first, stub_counts()->parameters, (size_t)bytes);
            first_grid = stub_counts()->grid_x;
            continue;
        }
        bool same = !memcmp(first, stub_counts()->parameters, (size_t)bytes) && first_grid == stub_counts()->grid_x;
        if (same != (strncmp(rows[i].what, "nothing", 7) == 0))
            fail_msg("%s: the parameters are %s", rows[i].what, same ? "those of the first launch" : "others");
        struct device_tensor seen;
        memcpy(&seen, stub_counts()->parameters + layout_of(&s).tensors + rows[i].operand * (int)sizeof seen,
               sizeof seen);
        assert_int_equal(seen.data, (uint64_t)(uintptr_t)s.tensor[rows[i].operand].data);
        assert_int_equal(seen.rows, s.tensor[rows[i].operand].shape[0]);
    }
    close_subject(&s);
}

static void parameters_of_the_program_reach_the_kernel(void **state)
{
    struct subject s;
    coda_error error = {0};
    coda_kernel *kernel;
    (void)state;
    open_subject(&s);
    const coda_program *program = standard_program("gemm_rms");
    coda_tensor tensor[COUNT];
    int count = coda_program_operand_count(program);
    for (int i = 0; i < count; i++) {
        coda_operand operand;
        coda_program_operand(program, i, &operand);
        tensor[i] = (coda_tensor){.data = s.pool + ((size_t)i << 18), .dtype = operand.dtype, .rank = operand.rank};
        assert_int_equal(coda_program_operand_shape(program, i, &s.dims, tensor[i].shape, NULL), CODA_OK);
    }
    assert_int_equal(coda_kernel_create(s.device, program, NULL, NULL, &kernel, &error), CODA_OK);
    const struct cuda_kernel *k = kernel->state;
    struct parameter_layout layout = parameter_layout(kernel->graph, k->compiled[0].variant.map_count);
    stub_copy_parameters(layout.total);
    for (int i = 0; i < 6; i++) {
        double value = i % 3 * 0.5;
        float seen;
        assert_int_equal(coda_kernel_launch(kernel, tensor, count, &value, NULL, &error), CODA_OK);
        memcpy(&seen, stub_counts()->parameters + layout.parameters, sizeof seen);
        assert_true(seen == (float)value);
    }
    coda_kernel_free(kernel);
    close_subject(&s);
}

static void a_launch_may_begin_early_where_gpu_and_driver_know_how(void **state)
{
    static const struct {
        const char *gpu;
        int driver;
        bool early;
    } rows[] = {{"cuda:sm_90a", 13000, true}, {"cuda:sm_90a", 12020, false}, {"cuda:sm_80", 13000, false}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct subject s;
        open_subject_on(&s, rows[i].gpu);
        ((struct gpu *)s.device->state)->driver.version = rows[i].driver;
        stub_copy_parameters(layout_of(&s).total);
        run(&s, NULL);
        assert_int_equal(stub_counts()->begins_early, rows[i].early);
        run(&s, NULL);
        assert_int_equal(stub_counts()->begins_early, rows[i].early);
        close_subject(&s);
    }
}

/* ---------------------------------------------------------------- what is refused, also after a good launch */

static void memory_that_is_not_the_gpus_is_refused(void **state)
{
    static unsigned char host[1 << 20], elsewhere[1 << 20], registered[1 << 20];
    struct subject s;
    coda_error error = {0};
    (void)state;
    open_subject(&s);
    stub_memory(elsewhere, sizeof elsewhere, MEMORY_IS_DEVICE, 1);
    stub_memory(registered, sizeof registered, OTHER_KIND, 0);
    run(&s, NULL);
    const struct {
        void *data;
        const char *part;
    } rows[] = {
        {host, "does not lie in the GPU's memory"}, {elsewhere, "memory of GPU 1"}, {registered, "does not lie"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int twice = 0; twice < 2; twice++) {
            place(&s, 256);
            s.tensor[0].data = (void *)(((uintptr_t)rows[i].data + 255) / 256 * 256);
            assert_int_equal(coda_kernel_launch(s.kernel, s.tensor, s.count, NULL, NULL, &error), CODA_INVALID);
            assert_non_null(strstr(error.message, rows[i].part));
        }
    place(&s, 256);
    run(&s, NULL);
    close_subject(&s);
}

static void memory_that_was_released_is_asked_about_again(void **state)
{
    struct subject s;
    (void)state;
    open_subject(&s);
    run(&s, NULL);
    stub_reset();
    coda_release(s.device, s.pool); /* and the same address may come back as other memory */
    s.pool = aligned_alloc(1 << 21, POOL);
    assert_non_null(s.pool);
    stub_memory(s.pool, POOL, MEMORY_IS_DEVICE, 0);
    place(&s, 256);
    run(&s, NULL);
    assert_true(stub_counts()->pointer_questions > 0);
    close_subject(&s);
}

/* ---------------------------------------------------------------- threads */

static void *launch_often(void *argument)
{
    struct subject own = *(struct subject *)argument;
    for (int i = 0; i < 500; i++) {
        place(&own, 200 + i % 24);
        if (coda_kernel_launch(own.kernel, own.tensor, own.count, NULL, NULL, NULL) != CODA_OK)
            return argument;
    }
    return NULL;
}

static void threads_launch_one_kernel_at_once(void **state)
{
    struct subject s;
    pthread_t thread[4];
    (void)state;
    open_subject(&s);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, launch_often, &s), 0);
    for (int i = 0; i < 4; i++) {
        void *failed;
        pthread_join(thread[i], &failed);
        assert_null(failed);
    }
    assert_int_equal(stub_counts()->launches, 2000);
    assert_int_equal(stub_counts()->pushes, stub_counts()->pops);
    close_subject(&s);
}

static void a_pointer_table_forgets_what_was_released(void **state)
{
    static struct pointer_table table;
    uint64_t base = UINT64_C(0x7f0000000000);
    (void)state;
    assert_false(pointers_know(&table, base));
    pointers_learn(&table, base + 5, base, 64 << 20);
    assert_true(pointers_know(&table, base));
    assert_false(pointers_know(&table, base - 1));
    assert_false(pointers_know(&table, base + (64 << 20)));
    for (uint64_t page = 0; page < 32; page++)
        pointers_learn(&table, base + (page << 21), base, 64 << 20);
    assert_true(pointers_know(&table, base + (31 << 21)));
    pointers_learn(&table, base + (100 << 20), base, 64 << 20); /* outside of what it says */
    assert_false(pointers_know(&table, base + (100 << 20)));
    pointers_forget(&table, base);
    for (uint64_t page = 0; page < 32; page++)
        assert_false(pointers_know(&table, base + (page << 21)));
    assert_int_equal(table.generation, 1);
}

/* ---------------------------------------------------------------- binaries */

static void the_binary_is_what_the_compiler_made(void **state)
{
    struct subject s;
    size_t size = 0;
    (void)state;
    open_subject(&s);
    const char *binary = coda_kernel_binary(s.kernel, &size);
    assert_int_equal(size, 16);
    assert_memory_equal(binary, "a stub's kernel", 16);
    assert_int_equal(stub_counts()->compilations, ((struct cuda_kernel *)s.kernel->state)->variant_count);
    close_subject(&s);
    coda_device *cpu;
    coda_kernel *kernel;
    size = 7;
    assert_int_equal(coda_device_open("cpu", &cpu, NULL), CODA_OK);
    assert_int_equal(coda_kernel_create(cpu, standard_program("gemm"), NULL, NULL, &kernel, NULL), CODA_OK);
    assert_null(coda_kernel_binary(kernel, &size));
    assert_int_equal(size, 7);
    coda_kernel_free(kernel);
    coda_device_close(cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_repeated_launch_asks_the_driver_for_the_launch_alone),
        cmocka_unit_test(an_allocation_is_asked_about_once),
        cmocka_unit_test(launches_that_take_turns_are_both_remembered),
        cmocka_unit_test(what_differs_from_the_launch_before_reaches_the_kernel),
        cmocka_unit_test(parameters_of_the_program_reach_the_kernel),
        cmocka_unit_test(a_launch_may_begin_early_where_gpu_and_driver_know_how),
        cmocka_unit_test(memory_that_is_not_the_gpus_is_refused),
        cmocka_unit_test(memory_that_was_released_is_asked_about_again),
        cmocka_unit_test(threads_launch_one_kernel_at_once),
        cmocka_unit_test(a_pointer_table_forgets_what_was_released),
        cmocka_unit_test(the_binary_is_what_the_compiler_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
