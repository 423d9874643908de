/* Launches of a schedule, or of one list, that touch nothing of what may still run: a device that runs every other launch as
 * late as it may, after those that are said to be apart from it, gives the same results. */
#include "kit/scheduled.h"
#include "runtime/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* The CPU device, but late. */
static struct {
    struct device_operations operations;
    const struct device_operations *own;
    coda_kernel *kernel; /* NULL: nothing is held back */
    struct launch held;
    int64_t size[MAX_AXES];
    coda_tensor operand[MAX_OPERANDS];
    double parameter[MAX_OPERANDS];
    int launches, apart;
} late;

static coda_status run_held(coda_error *error)
{
    coda_kernel *kernel = late.kernel;
    late.kernel = NULL;
    return kernel ? late.own->launch(kernel, &late.held, error) : CODA_OK;
}

static coda_status launch_late(coda_kernel *kernel, const struct launch *launch, coda_error *error)
{
    late.launches++;
    late.apart += launch->apart;
    if (launch->apart)
        return late.own->launch(kernel, launch, error);
    coda_status status = run_held(error);
    memcpy(late.size, launch->size, (size_t)kernel->graph->axis_count * sizeof *late.size);
    memcpy(late.operand, launch->operand, (size_t)kernel->graph->operand_count * sizeof *late.operand);
    memcpy(late.parameter, launch->parameter, (size_t)kernel->graph->parameter_count * sizeof *late.parameter);
    late.held = (struct launch){late.size, late.operand, late.parameter, NULL, false};
    late.kernel = kernel;
    return status;
}

static void become_late(coda_device *device)
{
    memset(&late, 0, sizeof late);
    late.own = device->operations;
    late.operations = *late.own;
    late.operations.launch = launch_late;
    device->operations = &late.operations;
}

static void launches_that_are_apart_may_overtake_those_before(void **state)
{
    static const struct {
        const char *block;
        coda_schedule_options options;
        int together, least; /* launches that are apart */
    } rows[] = {
        {"llama3", {.join = -1}, 0, 6},
        {"llama3", {.join = 1}, 0, 5},
        {"llama3", {.join = 1, .overwrite = 1, .keep_saved = 1}, 0, 5},
        {"llama3", {.save = "y1", .overwrite = 1}, 0, 5},
        {"qwen3", {.join = 1}, 0, 5},
        {"gpt2", {.join = -1}, 0, 5},
        {"llama3_head", {.join = -1, .exponentials = -1}, 0, 1},
        {"llama3_head", {.wide_axis = "V", .chunk_rows = 128, .exponentials = -1}, 1, 2},
        {"llama3_head", {.exponentials = 1}, 1, 1},
        {"llama3_head", {.wide_axis = "V", .chunk_rows = 128, .exponentials = 1}, 1, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct block_trial t;
        struct running r;
        coda_error error;
        coda_schedule_options options = rows[i].options;
        options.size = sizeof options, options.backward = options.allow_passes = 1;
        open_trial(&t, "cpu", rows[i].block, CODA_BF16, 300, 1);
        become_late(t.device);
        options.together = rows[i].together;
        open_running(&r, &t, &options);
        for (int phases = rows[i].together ? 3 : 1; phases <= (rows[i].together ? 3 : 2); phases++) {
            launch(&r, phases);
            check(run_held(&error), &error);
        }
        compare(&r, &t, options.save || rows[i].together ? 0.02 : 0, CODA_FORWARD | CODA_BACKWARD);
        if (late.apart < rows[i].least || late.apart == late.launches)
            fail_msg("%s: %d of %d launches are apart", rows[i].block, late.apart, late.launches);
        t.device->operations = late.own;
        close_running(&r);
        close_trial(&t);
    }
}

/* x of three rows and their products' sums: every launch of the list below adds what it reads to what it writes. */
enum { PLACES = 4, ROWS = 3, WIDTH = 40 };

static coda_tensor place(float (*memory)[ROWS * WIDTH], int index)
{
    return (coda_tensor){memory[index], CODA_F32, 2, {ROWS, WIDTH}, 0};
}

static void a_list_overlaps_what_is_apart_and_nothing_else(void **state)
{
    static const struct {
        int read, write, second_read, second_write; /* second_write < 0: one set */
        bool apart;
    } rows[] = {
        {0, 1, 0, -1, false}, /* nothing is known before the first */
        {0, 2, 0, -1, true},  /* both read */
        {2, 3, 0, -1, false}, /* reads what was written */
        {0, 1, 0, -1, true},  /* those before the last one that waited are over */
        {0, 2, 0, -1, false}, /* writes what may still be read */
        {0, 1, 0, 3, true},   /* two sets */
        {2, 0, 3, 1, false},
    };
    enum { LAUNCHES = sizeof rows / sizeof *rows };
    static const char text[] = "program add { in X : f32[M, N]; in U : f32[M, N]; param a = 1\n"
                               "    out Y : f32[M, N] = a * X + U }\n";
    float memory[2][PLACES][ROWS * WIDTH];
    coda_tensor operand[2][3 * 2 * LAUNCHES];
    double parameter[LAUNCHES];
    int sets[LAUNCHES], count = 0, expected = 0;
    coda_kernel *kernel[LAUNCHES];
    coda_device *device;
    coda_module *module;
    coda_error error;
    (void)state;
    check(coda_device_open("cpu", &device, &error), &error);
    check(coda_module_parse(text, sizeof text - 1, NULL, &module, &error), &error);
    check(coda_kernel_create(device, coda_module_program(module, 0), NULL, NULL, &kernel[0], &error), &error);
    for (int p = 0; p < PLACES; p++)
        for (int i = 0; i < ROWS * WIDTH; i++)
            memory[0][p][i] = memory[1][p][i] = (float)(p * 7 + i % 5);
    for (int i = 0; i < LAUNCHES; i++) {
        kernel[i] = kernel[0];
        sets[i] = rows[i].second_write < 0 ? 1 : 2;
        parameter[i] = i + 2;
        expected += rows[i].apart ? sets[i] : 0;
        for (int s = 0; s < sets[i]; s++, count += 3)
            for (int m = 0; m < 2; m++) {
                int read = s ? rows[i].second_read : rows[i].read, write = s ? rows[i].second_write : rows[i].write;
                operand[m][count] = place(memory[m], read);
                operand[m][count + 1] = operand[m][count + 2] = place(memory[m], write);
            }
    }
    for (int i = 0, at = 0; i < LAUNCHES; at += 3 * sets[i++])
        check(coda_kernel_launch_sets(kernel[0], operand[0] + at, 3, sets[i], &parameter[i], NULL, &error), &error);
    become_late(device);
    check(coda_kernel_launch_list(kernel, sets, LAUNCHES, operand[1], count, parameter, NULL, &error), &error);
    check(run_held(&error), &error);
    device->operations = late.own;
    assert_int_equal(late.apart, expected);
    assert_memory_equal(memory[0], memory[1], sizeof memory[0]);
    coda_kernel_free(kernel[0]);
    coda_module_free(module);
    coda_device_close(device);
}

static void a_list_that_does_not_fit_is_refused(void **state)
{
    static const char text[] = "program copy { in X : f32[M]; out Y : f32[M] = X }\n";
    float x[4] = {1, 2, 3, 4}, y[4] = {0};
    coda_tensor operand[] = {{x, CODA_F32, 1, {4, 1}, 0}, {y, CODA_F32, 1, {4, 1}, 0}};
    coda_kernel *kernel, *other;
    coda_device *device[2];
    coda_module *module;
    coda_error error;
    (void)state;
    check(coda_module_parse(text, sizeof text - 1, NULL, &module, &error), &error);
    for (int i = 0; i < 2; i++) {
        check(coda_device_open("cpu", &device[i], &error), &error);
        check(coda_kernel_create(device[i], coda_module_program(module, 0), NULL, NULL, i ? &other : &kernel, &error),
              &error);
    }
    coda_kernel *none[] = {NULL}, *one[] = {kernel}, *mixed[] = {kernel, other};
    const struct {
        coda_kernel *const *kernels;
        int sets, launches, count;
        const char *message;
    } rows[] = {
        {NULL, 1, 1, 2, "0 kernels"},
        {one, 1, 0, 2, "0 kernels"},
        {none, 1, 1, 2, "kernel 0 of 1 is NULL"},
        {mixed, 1, 2, 4, "another device"},
        {one, 0, 1, 2, "0 sets of operands"},
        {one, 1, 1, 3, "3 operands for 1 kernels; expected 2"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int sets[] = {rows[i].sets, rows[i].sets};
        assert_int_equal(coda_kernel_launch_list(rows[i].kernels, sets, rows[i].launches, operand, rows[i].count, NULL,
                                                 NULL, &error),
                         CODA_INVALID);
        if (!strstr(error.message, rows[i].message))
            fail_msg("\"%s\" is not in: %s", rows[i].message, error.message);
        assert_true(y[0] == 0);
    }
    check(coda_kernel_launch_list(one, NULL, 1, operand, 2, NULL, NULL, &error), &error);
    assert_memory_equal(x, y, sizeof x);
    coda_kernel_free(kernel);
    coda_kernel_free(other);
    coda_module_free(module);
    coda_device_close(device[0]);
    coda_device_close(device[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_overlaps_what_is_apart_and_nothing_else),
        cmocka_unit_test(a_list_that_does_not_fit_is_refused),
        cmocka_unit_test(launches_that_are_apart_may_overtake_those_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
