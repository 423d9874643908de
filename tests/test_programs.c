/* Every standard program on every device and a sweep of shapes, between guard pages, against an independent evaluation.
 */
#include "kit/random.h"
#include "kit/standard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Values beside the defaults: every option of every program does something. */
static void set_parameters(struct trial *trial)
{
    static const struct {
        const char *name;
        double value;
    } rows[] = {{"eps", 1e-2},  {"cap", 2},     {"smoothing", 0.1}, {"zloss", 0.01}, {"divisor", 7}, {"ignore", 3},
                {"scale", 0.5}, {"decay", 0.2}, {"c1", 1.3},        {"c2", 1.7},     {"lr", 0.01},   {"b1", 0.8}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        trial_set_parameter(trial, rows[i].name, rows[i].value);
}

static void describe(const struct trial *trial, const char *device, char *text, size_t size)
{
    size_t at = (size_t)snprintf(text, size, "%s on %s,", coda_program_name(trial->program), device);
    for (int i = 0; i < trial->dims.count && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, " %s=%lld", trial->dims.item[i].axis,
                               (long long)trial->dims.item[i].size);
}

static void check_trial(const struct devices *devices, struct trial *trial, int threads)
{
    struct evaluation evaluation;
    const char *why;
    char what[512], text[512];
    if (!evaluate_trial(trial, &evaluation, &why))
        fail_msg("%s: %s", coda_program_name(trial->program), why);
    for (int d = 0; d < devices->count; d++) {
        coda_error error = {0};
        describe(trial, devices->name[d], what, sizeof what);
        coda_device_set_threads(devices->device[d], threads, NULL); /* the reference has one */
        trial_reset(trial, d % 2 ? POISON_NAN : POISON_BYTES);
        if (trial_run(trial, devices->device[d], NULL, &error) != CODA_OK)
            fail_msg("%s: %s", what, error.message);
        if (!compare_outs(trial, &evaluation, devices->standard[d], text, sizeof text) ||
            !trial_untouched(trial, text, sizeof text))
            fail_msg("%s: %s", what, text);
    }
    evaluation_free(&evaluation);
}

static void run_trial(const struct devices *devices, const coda_program *program, const coda_dims *dims, uint64_t seed,
                      bool other_parameters)
{
    struct trial trial;
    coda_error error = {0};
    struct layout layout = {seed % 4 == 3 ? GUARD_START : GUARD_END, (int64_t)(seed % 3)};
    if (trial_new(&trial, program, dims, seed, layout, &error) != CODA_OK)
        fail_msg("%s: %s", coda_program_name(program), error.message);
    if (other_parameters)
        set_parameters(&trial);
    check_trial(devices, &trial, seed % 8 ? 1 : 3);
    trial_free(&trial);
}

static const int64_t sweep[] = {1, 7, 8, 15, 16, 17, 63, 64, 65, 127, 128, 129, 300, 1000};

enum { SWEEP = sizeof sweep / sizeof *sweep };

static void every_program_agrees_along_each_axis(void **state)
{
    uint64_t seed = 1;
    for (int p = 0; p < coda_module_size(standard_module()); p++) {
        const coda_program *program = coda_module_program(standard_module(), p);
        for (int axis = 0; axis < small_sizes(program, 16).count; axis++)
            for (int i = 0; i < SWEEP; i += quick() ? 3 : 1) {
                coda_dims dims = small_sizes(program, 16);
                if (is_length(dims.item[axis].axis))
                    continue;
                set_size(program, &dims, axis, sweep[i]);
                run_trial(*state, program, &dims, seed++, false);
            }
    }
}

static void every_program_agrees_on_random_shapes_heads_and_parameters(void **state)
{
    struct random random = {42};
    for (int p = 0; p < coda_module_size(standard_module()); p++) {
        const coda_program *program = coda_module_program(standard_module(), p);
        for (int i = 0; i < (quick() ? 2 : 8); i++) {
            static const int64_t heads[] = {2, 8, 16, 32, 64, 128, 6, 20};
            coda_dims dims = small_sizes(program, heads[i]);
            for (int axis = 0; axis < dims.count; axis++)
                if (!is_length(dims.item[axis].axis))
                    set_size(program, &dims, axis, sweep[random_below(&random, SWEEP - 2)]);
            run_trial(*state, program, &dims, random_next(&random), i % 2);
        }
    }
}

static void f32_and_f16_forms_of_every_program_agree(void **state)
{
    static const coda_dtype types[] = {CODA_F32, CODA_F16};
    for (int t = 0; t < 2; t++) {
        coda_module *module;
        coda_error error = {0};
        if (coda_module_retype(standard_module(), CODA_BF16, types[t], &module, &error) != CODA_OK)
            fail_msg("%s", error.message);
        for (int p = 0; p < coda_module_size(module); p++) {
            const coda_program *program = coda_module_program(module, p);
            coda_dims dims = small_sizes(program, 16);
            run_trial(*state, program, &dims, (uint64_t)p, true);
        }
        coda_module_free(module);
    }
}

static void one_kernel_an_operator_moves_no_less(void **state)
{
    (void)state;
    for (int p = 0; p < coda_module_size(standard_module()); p++) {
        const coda_program *program = coda_module_program(standard_module(), p);
        coda_dims dims = large_sizes(program);
        coda_cost cost;
        assert_int_equal(coda_program_cost(program, &dims, &cost, NULL), CODA_OK);
        if (cost.unfused_bytes < cost.bytes || cost.unfused_kernels < 1)
            fail_msg("%s moves %g bytes, unfused %g", coda_program_name(program), cost.bytes, cost.unfused_bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_program_agrees_along_each_axis),
        cmocka_unit_test(every_program_agrees_on_random_shapes_heads_and_parameters),
        cmocka_unit_test(f32_and_f16_forms_of_every_program_agree),
        cmocka_unit_test(one_kernel_an_operator_moves_no_less),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
