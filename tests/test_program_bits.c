/* The same bits for every run, thread count, tile and place in memory. */
#include "kit/standard.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void run_again(struct trial *trial, coda_device *device, const coda_options *options,
                      const struct bits *expected, const char *what)
{
    coda_error error = {0};
    trial_reset(trial, POISON_NAN);
    if (trial_run(trial, device, options, &error) != CODA_OK)
        fail_msg("%s %s: %s", coda_program_name(trial->program), what, error.message);
    const char *out = differing_out(trial, expected);
    if (out)
        fail_msg("%s %s: other bits in %s", coda_program_name(trial->program), what, out);
}

static void bits_do_not_depend_on_run_or_threads(void **state)
{
    const struct devices *devices = *state;
    static const int threads[] = {1, 2, 3, 7};
    for (int d = 1; d < devices->count; d++)
        for (int p = 0; p < coda_module_size(standard_module()); p++) {
            struct trial trial;
            struct bits bits;
            coda_dims dims = large_sizes(coda_module_program(standard_module(), p));
            assert_int_equal(
                trial_new(&trial, coda_module_program(standard_module(), p), &dims, 5, (struct layout){0}, NULL),
                CODA_OK);
            assert_int_equal(coda_device_set_threads(devices->device[d], 2, NULL), CODA_OK);
            assert_int_equal(trial_run(&trial, devices->device[d], NULL, NULL), CODA_OK);
            take_bits(&trial, &bits);
            run_again(&trial, devices->device[d], NULL, &bits, "run again");
            for (int t = 0; t < 4; t++) {
                char what[64];
                snprintf(what, sizeof what, "on %s with %d threads", devices->name[d], threads[t]);
                assert_int_equal(coda_device_set_threads(devices->device[d], threads[t], NULL), CODA_OK);
                run_again(&trial, devices->device[d], NULL, &bits, what);
            }
            assert_int_equal(coda_device_set_threads(devices->device[d], 2, NULL), CODA_OK);
            free_bits(&bits);
            trial_free(&trial);
        }
}

static void bits_do_not_depend_on_the_tile(void **state)
{
    const struct devices *devices = *state;
    static const int sizes[] = {0, 16, 48, 64, 128, 384};
    int offered = 0;
    for (int d = 1; d < devices->count; d++)
        assert_int_equal(coda_device_set_threads(devices->device[d], 1, NULL), CODA_OK);
    for (int d = 1; d < devices->count; d++)
        for (int p = 0; p < coda_module_size(standard_module()); p++) {
            struct trial trial;
            struct bits bits;
            coda_dims dims = large_sizes(coda_module_program(standard_module(), p));
            assert_int_equal(
                trial_new(&trial, coda_module_program(standard_module(), p), &dims, 6, (struct layout){0}, NULL),
                CODA_OK);
            assert_int_equal(trial_run(&trial, devices->device[d], NULL, NULL), CODA_OK);
            take_bits(&trial, &bits);
            for (int i = 0; i < 6 * 6; i += quick() ? 5 : 1) {
                coda_options options = {
                    .size = sizeof options, .tile_rows = sizes[i / 6], .tile_columns = sizes[i % 6]};
                coda_kernel *kernel;
                char what[64];
                coda_status status =
                    coda_kernel_create(devices->device[d], trial.program, &dims, &options, &kernel, NULL);
                if (status != CODA_OK) {
                    assert_true(status == CODA_INVALID || status == CODA_UNSUPPORTED);
                    continue;
                }
                coda_kernel_free(kernel);
                snprintf(what, sizeof what, "on %s with tiles of %d x %d", devices->name[d], options.tile_rows,
                         options.tile_columns);
                run_again(&trial, devices->device[d], &options, &bits, what);
                offered++;
            }
            free_bits(&bits);
            trial_free(&trial);
        }
    assert_true(offered > 2 * coda_module_size(standard_module()));
}

struct concurrent {
    coda_kernel *kernel;
    struct trial trial;
    coda_status status;
};

static void *launch_often(void *argument)
{
    struct concurrent *c = argument;
    for (int i = 0; i < 5 && c->status == CODA_OK; i++) {
        trial_reset(&c->trial, POISON_NAN);
        c->status = coda_kernel_launch(c->kernel, c->trial.tensor, c->trial.count, c->trial.parameter, NULL, NULL);
    }
    return NULL;
}

static void one_kernel_serves_several_threads_at_once(void **state)
{
    const struct devices *devices = *state;
    const coda_program *program = standard_program("gemm_rms_swiglu");
    for (int d = 1; d < devices->count; d++) {
        struct concurrent concurrent[4] = {0};
        struct bits bits[4];
        pthread_t thread[4];
        coda_kernel *kernel;
        assert_int_equal(coda_kernel_create(devices->device[d], program, NULL, NULL, &kernel, NULL), CODA_OK);
        for (int i = 0; i < 4; i++) {
            coda_dims dims = large_sizes(program);
            dims.item[0].size = 50 + 37 * i;
            concurrent[i].kernel = kernel;
            assert_int_equal(trial_new(&concurrent[i].trial, program, &dims, (uint64_t)i, (struct layout){0}, NULL),
                             CODA_OK);
            assert_int_equal(trial_run(&concurrent[i].trial, devices->device[d], NULL, NULL), CODA_OK);
            take_bits(&concurrent[i].trial, &bits[i]);
        }
        for (int i = 0; i < 4; i++)
            assert_int_equal(pthread_create(&thread[i], NULL, launch_often, &concurrent[i]), 0);
        for (int i = 0; i < 4; i++)
            pthread_join(thread[i], NULL);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(concurrent[i].status, CODA_OK);
            assert_null(differing_out(&concurrent[i].trial, &bits[i]));
            free_bits(&bits[i]);
            trial_free(&concurrent[i].trial);
        }
        coda_kernel_free(kernel);
    }
}

/* ---------------------------------------------------------------- in place */

static bool same_layout(const coda_tensor *a, const coda_tensor *b)
{
    return a->dtype == b->dtype && a->rank == b->rank && a->shape[0] == b->shape[0] && a->shape[1] == b->shape[1] &&
           a->stride == b->stride;
}

/* Runs with `out` over `in`: the bits of two places, or a refusal. */
static bool runs_in_place(struct trial *trial, coda_device *device, int out, int in, const char *what)
{
    struct bits bits;
    coda_error error = {0};
    void *own = trial->tensor[out].data;
    trial_reset(trial, POISON_NAN);
    assert_int_equal(trial_run(trial, device, NULL, NULL), CODA_OK);
    take_bits(trial, &bits);
    trial->tensor[out].data = trial->tensor[in].data;
    trial_reset(trial, POISON_NAN);
    coda_status status = trial_run(trial, device, NULL, &error);
    const char *different = status == CODA_OK ? differing_out(trial, &bits) : NULL;
    if (different)
        fail_msg("%s on %s: %s over %s is accepted but changes %s", coda_program_name(trial->program), what,
                 trial->graph->operand[out].name, trial->graph->operand[in].name, different);
    if (status != CODA_OK) {
        assert_int_equal(status, CODA_INVALID);
        assert_non_null(strstr(error.message, "shares memory"));
    }
    trial->tensor[out].data = own;
    free_bits(&bits);
    return status == CODA_OK;
}

static void outs_over_ins_give_the_same_bits_or_are_refused(void **state)
{
    const struct devices *devices = *state;
    for (int d = 0; d < devices->count; d++)
        for (int p = 0; p < coda_module_size(standard_module()); p++) {
            const coda_program *program = coda_module_program(standard_module(), p);
            struct trial trial;
            coda_dims dims = small_sizes(program, 16);
            assert_int_equal(trial_new(&trial, program, &dims, 8, (struct layout){0}, NULL), CODA_OK);
            for (int out = 0; out < trial.count; out++)
                for (int in = 0; in < trial.count; in++)
                    if (trial.graph->operand[out].role == CODA_OUT && trial.graph->operand[in].role == CODA_IN &&
                        same_layout(&trial.tensor[out], &trial.tensor[in]))
                        runs_in_place(&trial, devices->device[d], out, in, devices->name[d]);
            trial_free(&trial);
        }
}

static void the_model_s_in_place_launches_are_accepted(void **state)
{
    const struct devices *devices = *state;
    static const char *const rows[][3] = {
        {"cross_entropy_bwd", "dZ", "Z"},
        {"adamw", "m2", "m"},
        {"adamw", "v2", "v"},
        {"adamw", "w2", "w"},
        {"rope_bwd", "dZ", "dY"},
        {"gemm_swiglu_bwd", "dG", "G"},
        {"gemm_swiglu_bwd", "dU", "U"},
        {"gemm_rms_bwd", "dX", "dR"},
        {"gemm_residual_rms", "X", "C"},
    };
    for (int d = 0; d < devices->count; d++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            const coda_program *program = standard_program(rows[i][0]);
            struct trial trial;
            coda_dims dims = large_sizes(program);
            assert_int_equal(trial_new(&trial, program, &dims, 9, (struct layout){0}, NULL), CODA_OK);
            if (!runs_in_place(&trial, devices->device[d], trial_operand(&trial, rows[i][1]),
                               trial_operand(&trial, rows[i][2]), devices->name[d]))
                fail_msg("%s on %s: %s over %s is refused", rows[i][0], devices->name[d], rows[i][1], rows[i][2]);
            trial_free(&trial);
        }
}

static void an_out_may_replace_a_vector_only_where_one_tile_reads_it(void **state)
{
    const struct devices *devices = *state;
    static const struct {
        const char *text;
        bool accepted;
    } rows[] = {
        {"program p { in A : bf16[M, K]; in W : bf16[N, K]; in r : f32[M]\n"
         "out R : f32[M] = r * 2\nout Y : bf16[M, N] = (A @ W.T) * r }",
         false},
        {"program p { in X : bf16[M, N]; in r : f32[N]; in s : f32[M, N/128]\n"
         "out R : f32[N] = r * 2\nout Y : bf16[M, N] = X * r + sum(s) }",
         false},
        {"program p { in r, s : f32[M]; out R : f32[M] = r * s }", true},
    };
    for (int d = 0; d < devices->count; d++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            coda_module *module;
            struct trial trial;
            assert_int_equal(coda_module_parse(rows[i].text, strlen(rows[i].text), NULL, &module, NULL), CODA_OK);
            const coda_program *program = coda_module_program(module, 0);
            coda_dims dims = large_sizes(program);
            assert_int_equal(trial_new(&trial, program, &dims, 9, (struct layout){0}, NULL), CODA_OK);
            bool accepted = runs_in_place(&trial, devices->device[d], trial_operand(&trial, "R"),
                                          trial_operand(&trial, "r"), devices->name[d]);
            if (accepted != rows[i].accepted)
                fail_msg("%s on %s: R over r is %s", rows[i].text, devices->name[d], accepted ? "accepted" : "refused");
            trial_free(&trial);
            coda_module_free(module);
        }
}

static void ignored_targets_give_zero_gradients(void **state)
{
    const struct devices *devices = *state;
    for (int d = 0; d < devices->count; d++) {
        const coda_program *program = standard_program("cross_entropy_bwd");
        struct trial trial;
        coda_dims dims = small_sizes(program, 16);
        assert_int_equal(trial_new(&trial, program, &dims, 3, (struct layout){0}, NULL), CODA_OK);
        int32_t *ids = trial.initial[trial_operand(&trial, "t")];
        for (int64_t i = 0; i < trial.tensor[trial_operand(&trial, "t")].shape[0]; i++)
            ids[i] = -100;
        trial_reset(&trial, POISON_NAN);
        assert_int_equal(trial_run(&trial, devices->device[d], NULL, NULL), CODA_OK);
        struct bits bits;
        take_bits(&trial, &bits);
        int out = trial_operand(&trial, "dZ");
        for (size_t i = 0; i < bits.size[out] / 2; i++)
            assert_true((((uint16_t *)bits.data[out])[i] & 0x7FFF) == 0);
        free_bits(&bits);
        trial_free(&trial);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_do_not_depend_on_run_or_threads),
        cmocka_unit_test(bits_do_not_depend_on_the_tile),
        cmocka_unit_test(one_kernel_serves_several_threads_at_once),
        cmocka_unit_test(outs_over_ins_give_the_same_bits_or_are_refused),
        cmocka_unit_test(the_model_s_in_place_launches_are_accepted),
        cmocka_unit_test(an_out_may_replace_a_vector_only_where_one_tile_reads_it),
        cmocka_unit_test(ignored_targets_give_zero_gradients),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
