/* What kernels and launches refuse, on every device, and how they say it. Nothing is written then. */
#include "kit/standard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int tensor_index(struct trial *trial, const char *name)
{
    int index = trial_operand(trial, name);
    assert_true(index >= 0);
    return index;
}

static coda_tensor *tensor(struct trial *trial, const char *name)
{
    return &trial->tensor[tensor_index(trial, name)];
}

static void one_operand_less(struct trial *t)
{
    t->count--;
}

static void no_data(struct trial *t)
{
    tensor(t, "W")->data = NULL;
}

static void another_dtype(struct trial *t)
{
    tensor(t, "W")->dtype = CODA_F16;
}

static void another_rank(struct trial *t)
{
    tensor(t, "g")->rank = 2;
}

static void inner_sizes_differ(struct trial *t)
{
    tensor(t, "W")->shape[1]--;
    tensor(t, "W")->stride = 0;
}

static void too_few_runs(struct trial *t)
{
    tensor(t, "S")->shape[1]++;
    tensor(t, "S")->stride = 0;
}

static void zero_rows(struct trial *t)
{
    tensor(t, "A")->shape[0] = 0;
}

static void negative_columns(struct trial *t)
{
    tensor(t, "A")->shape[1] = -4;
}

static void short_stride(struct trial *t)
{
    tensor(t, "A")->stride = tensor(t, "A")->shape[1] - 1;
}

static void huge_stride(struct trial *t)
{
    tensor(t, "A")->stride = INT64_MAX / 4;
}

static void odd_address(struct trial *t)
{
    tensor(t, "A")->data = (char *)tensor(t, "A")->data - 1;
}

static void odd_address_of_f32(struct trial *t)
{
    tensor(t, "S")->data = (char *)tensor(t, "S")->data - 2;
}

static void out_over_product_operand(struct trial *t)
{
    *tensor(t, "X") = *tensor(t, "C");
    tensor(t, "X")->data = tensor(t, "A")->data;
}

static void two_outs_in_one_place(struct trial *t)
{
    tensor(t, "X")->data = tensor(t, "H")->data;
}

static void shifted_by_an_element(struct trial *t)
{
    tensor(t, "X")->data = (char *)tensor(t, "C")->data - 2;
}

static void shifted_by_a_row(struct trial *t)
{
    tensor(t, "X")->data = (char *)tensor(t, "C")->data - 2 * tensor(t, "C")->shape[1];
}

static void out_over_part_of_an_in(struct trial *t)
{
    tensor(t, "S")->data = (char *)tensor(t, "A")->data + 4 - (uintptr_t)tensor(t, "A")->data % 4;
}

static const struct refusal {
    void (*spoil)(struct trial *trial);
    const char *message;
} refusals[] = {
    {one_operand_less, "operands; expected 7"},
    {no_data, "no data"},
    {another_dtype, "is f16; expected bf16"},
    {another_rank, "has rank 2; expected 1"},
    {inner_sizes_differ, "axis K is"},
    {too_few_runs, "expected N/128 ="},
    {zero_rows, "expected at least 1"},
    {negative_columns, "expected at least 1"},
    {short_stride, "row stride"},
    {huge_stride, "larger than memory"},
    {odd_address, "multiple of 2"},
    {odd_address_of_f32, "multiple of 4"},
    {out_over_product_operand, "shares memory with"},
    {two_outs_in_one_place, "shares memory with"},
    {shifted_by_an_element, "shares memory with"},
    {shifted_by_a_row, "shares memory with"},
    {out_over_part_of_an_in, "shares memory with"},
};

static void launches_refuse_operands_that_do_not_fit(void **state)
{
    const struct devices *devices = *state;
    for (int d = 0; d < devices->count; d++)
        for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
            struct trial trial;
            struct bits before;
            coda_error error = {0};
            coda_dims dims = small_sizes(standard_program("gemm_residual_rms"), 16);
            assert_int_equal(
                trial_new(&trial, standard_program("gemm_residual_rms"), &dims, 4, (struct layout){0}, NULL), CODA_OK);
            take_bits(&trial, &before);
            struct trial spoiled = trial;
            refusals[i].spoil(&spoiled);
            assert_int_equal(trial_run(&spoiled, devices->device[d], NULL, &error), CODA_INVALID);
            assert_int_equal(error.status, CODA_INVALID);
            if (!strstr(error.message, refusals[i].message))
                fail_msg("\"%s\" does not say \"%s\"", error.message, refusals[i].message);
            assert_null(differing_out(&trial, &before));
            free_bits(&before);
            trial_free(&trial);
        }
}

static void ids_outside_a_table_are_refused(void **state)
{
    const struct devices *devices = *state;
    static const struct {
        const char *program, *ids;
        int32_t id;
    } rows[] = {{"embed_rms", "t", -1},
                {"embed_rms", "t", 1 << 20},
                {"gemm_rope", "pos", -1},
                {"gemm_rope", "pos", INT32_MAX},
                {"gemm_qknorm_rope", "pos", INT32_MIN},
                {"rope_bwd", "pos", 1000}};
    for (int d = 0; d < devices->count; d++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            struct trial trial;
            coda_error error = {0};
            coda_dims dims = small_sizes(standard_program(rows[i].program), 16);
            assert_int_equal(trial_new(&trial, standard_program(rows[i].program), &dims, 4, (struct layout){0}, NULL),
                             CODA_OK);
            coda_tensor *ids = tensor(&trial, rows[i].ids);
            ((int32_t *)ids->data)[ids->shape[0] - 1] = rows[i].id;
            assert_int_equal(trial_run(&trial, devices->device[d], NULL, &error), CODA_INVALID);
            char number[32];
            snprintf(number, sizeof number, "%d", rows[i].id);
            if (!strstr(error.message, number))
                fail_msg("\"%s\" does not name the id %s", error.message, number);
            trial_free(&trial);
        }
}

static void kernels_refuse_sizes_that_contradict(void **state)
{
    const struct devices *devices = *state;
    static const struct {
        const char *program;
        coda_dims dims;
        const char *message;
    } rows[] = {
        {"gemm_rope", {0}, "D must be given"},
        {"rope_bwd", {1, {{"D", 16}}}, "T must be given"},
        {"gemm", {1, {{"Q", 16}}}, "no axis \"Q\""},
        {"gemm", {1, {{"M", 0}}}, "at least 1"},
        {"gemm", {1, {{"M", -5}}}, "at least 1"},
        {"gemm", {2, {{"M", 5}, {"M", 6}}}, "given twice"},
        {"gemm_rms_rope", {4, {{"D", 16}, {"Q", 32}, {"E", 16}, {"N", 65}}}, "N is 65"},
        {"gemm_rope", {2, {{"D", 16}, {"N", 40}}}, "40"},
        {"gemm_rope", {1, {{"D", 15}}}, "15"},
    };
    for (int d = 0; d < devices->count; d++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            coda_kernel *kernel = NULL;
            coda_error error = {0};
            coda_status status = coda_kernel_create(devices->device[d], standard_program(rows[i].program),
                                                    &rows[i].dims, NULL, &kernel, &error);
            if (status != CODA_INVALID || kernel)
                fail_msg("%s row %zu on %s: %s", rows[i].program, i, devices->name[d], coda_status_name(status));
            if (!strstr(error.message, rows[i].message))
                fail_msg("\"%s\" does not say \"%s\"", error.message, rows[i].message);
        }
}

static void sizes_given_to_a_kernel_bind_its_launches(void **state)
{
    const struct devices *devices = *state;
    for (int d = 0; d < devices->count; d++) {
        struct trial trial;
        coda_kernel *kernel;
        coda_error error = {0};
        coda_dims dims = small_sizes(standard_program("gemm"), 16), other = {1, {{"M", 123}}};
        assert_int_equal(trial_new(&trial, standard_program("gemm"), &dims, 4, (struct layout){0}, NULL), CODA_OK);
        assert_int_equal(coda_kernel_create(devices->device[d], trial.program, &other, NULL, &kernel, NULL), CODA_OK);
        assert_int_equal(coda_kernel_launch(kernel, trial.tensor, trial.count, NULL, NULL, &error), CODA_INVALID);
        assert_non_null(strstr(error.message, "123"));
        coda_kernel_free(kernel);
        trial_free(&trial);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launches_refuse_operands_that_do_not_fit),
        cmocka_unit_test(ids_outside_a_table_are_refused),
        cmocka_unit_test(kernels_refuse_sizes_that_contradict),
        cmocka_unit_test(sizes_given_to_a_kernel_bind_its_launches),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
