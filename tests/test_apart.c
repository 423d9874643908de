/* Launches of a schedule that touch nothing of what may still run: a device that runs every other launch as late as it may,
 * after those that are said to be apart from it, gives the same results. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launches_that_are_apart_may_overtake_those_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
