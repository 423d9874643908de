/* The runtime: element types, devices, modules and what every launch is checked for. */
#include "coda.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void every_code_of_a_small_float_survives_a_trip_through_f32(void **state)
{
    (void)state;
    static const struct {
        coda_dtype dtype;
        int codes;
    } rows[] = {{CODA_BF16, 1 << 16}, {CODA_F16, 1 << 16}, {CODA_E4M3, 1 << 8}, {CODA_E5M2, 1 << 8}};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (int code = 0; code < rows[r].codes; code++) {
            uint16_t wide = (uint16_t)code, back16 = 0;
            uint8_t narrow = (uint8_t)code, back8 = 0;
            int one = coda_dtype_size(rows[r].dtype) == 1;
            float value;
            coda_convert(&value, CODA_F32, one ? (void *)&narrow : (void *)&wide, rows[r].dtype, 1);
            coda_convert(one ? (void *)&back8 : (void *)&back16, rows[r].dtype, &value, CODA_F32, 1);
            if (isnan(value)) {
                float again;
                coda_convert(&again, CODA_F32, one ? (void *)&back8 : (void *)&back16, rows[r].dtype, 1);
                assert_true(isnan(again));
            } else {
                assert_int_equal(one ? back8 : back16, code);
            }
        }
}

static void conversion_rounds_to_nearest_even(void **state)
{
    (void)state;
    static const struct {
        coda_dtype dtype;
        float from, to;
    } rows[] = {
        {CODA_BF16, 1.00390625f, 1.0f},
        {CODA_BF16, 1.01171875f, 1.015625f},
        {CODA_BF16, 3.3961775e38f, INFINITY},
        {CODA_F16, 65519.0f, 65504.0f},
        {CODA_F16, 65520.0f, INFINITY},
        {CODA_F16, 5.9604645e-8f, 5.9604645e-8f},
        {CODA_F16, 2.9802322e-8f, 0.0f},
        {CODA_E4M3, 448.0f, 448.0f},
        {CODA_E4M3, 463.9f, 448.0f},
        {CODA_E4M3, 465.0f, NAN},
        {CODA_E4M3, 0.001953125f, 0.001953125f},
        {CODA_E4M3, 0.0009765625f, 0.0f},
        {CODA_E5M2, 57344.0f, 57344.0f},
        {CODA_E5M2, 61440.0f, INFINITY},
        {CODA_E5M2, -1.125f, -1.0f},
        {CODA_E5M2, -1.375f, -1.5f},
        {CODA_I32, -2.9f, -2.0f},
        {CODA_I32, 3e9f, 2147483647.0f},
        {CODA_I32, NAN, 0.0f},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        uint32_t code = 0;
        float back;
        coda_convert(&code, rows[r].dtype, &rows[r].from, CODA_F32, 1);
        coda_convert(&back, CODA_F32, &code, rows[r].dtype, 1);
        if (isnan(rows[r].to))
            assert_true(isnan(back));
        else
            assert_true(back == rows[r].to);
    }
}

static void an_unknown_device_is_refused_with_the_names_that_exist(void **state)
{
    (void)state;
    coda_device *device = NULL;
    coda_error error;
    assert_int_equal(coda_device_open("gpu", &device, &error), CODA_INVALID);
    assert_non_null(strstr(error.message, "ref, cpu, cuda"));
    assert_null(device);
    assert_int_equal(coda_device_open("gpu", &device, NULL), CODA_INVALID);
}

static void thread_counts_outside_the_range_are_refused(void **state)
{
    (void)state;
    coda_device *device;
    coda_error error;
    setenv("CODA_THREADS", "two", 1);
    assert_int_equal(coda_device_open("cpu", &device, &error), CODA_INVALID);
    assert_non_null(strstr(error.message, "CODA_THREADS"));
    setenv("CODA_THREADS", "3", 1);
    assert_int_equal(coda_device_open("cpu", &device, &error), CODA_OK);
    assert_int_equal(coda_device_threads(device), 3);
    assert_int_equal(coda_device_set_threads(device, 0, &error), CODA_INVALID);
    coda_device_close(device);
    unsetenv("CODA_THREADS");
}

static void visit(void *context, int64_t index)
{
    __atomic_fetch_add(&((int *)context)[index], 1, __ATOMIC_RELAXED);
}

static void a_parallel_loop_visits_every_index_once(void **state)
{
    (void)state;
    coda_device *device;
    int visits[1000] = {0};
    assert_int_equal(coda_device_open("cpu", &device, NULL), CODA_OK);
    assert_int_equal(coda_device_set_threads(device, 7, NULL), CODA_OK);
    coda_parallel_for(device, 1000, visit, visits);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(visits[i], 1);
    coda_device_close(device);
}

static void the_standard_module_has_every_program_file(void **state)
{
    (void)state;
    static const char *const names[] = {"gemm_residual_rms", "gemm_rms",          "gemm_swiglu",    "gemm_rms_swiglu",
                                        "gemm_rope",         "gemm_rms_rope",     "gemm_lse",       "gemm_rms_lse",
                                        "gemm_rms_bwd",      "gemm_swiglu_bwd",   "gemm_wgrad",     "rope_bwd",
                                        "embed_rms",         "cross_entropy_bwd", "gemm_rms_geglu", "gemm_qknorm_rope"};
    const coda_module *module;
    coda_error error;
    assert_int_equal(coda_standard_module(&module, &error), CODA_OK);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_non_null(coda_module_find(module, names[i]));
    assert_null(coda_module_find(module, "gemm_"));
    assert_null(coda_module_program(module, -1));
    assert_null(coda_module_program(module, coda_module_size(module)));
}

/* ---- launches of gemm (A[M,K], W[N,K], Y[M,N]) with one thing wrong */

struct fixture {
    coda_device *device;
    coda_kernel *kernel;
    uint16_t a[64], w[64], y[64];
    coda_tensor operand[3];
};

static void open_gemm(struct fixture *f)
{
    const coda_module *module;
    memset(f, 0, sizeof *f);
    assert_int_equal(coda_device_open("cpu", &f->device, NULL), CODA_OK);
    assert_int_equal(coda_standard_module(&module, NULL), CODA_OK);
    assert_int_equal(coda_kernel_create(f->device, coda_module_find(module, "gemm"), NULL, NULL, &f->kernel, NULL),
                     CODA_OK);
    f->operand[0] = (coda_tensor){.data = f->a, .dtype = CODA_BF16, .rank = 2, .shape = {4, 5}};
    f->operand[1] = (coda_tensor){.data = f->w, .dtype = CODA_BF16, .rank = 2, .shape = {3, 5}};
    f->operand[2] = (coda_tensor){.data = f->y, .dtype = CODA_BF16, .rank = 2, .shape = {4, 3}};
}

static void close_gemm(struct fixture *f)
{
    coda_kernel_free(f->kernel);
    coda_device_close(f->device);
}

static void wrong_operands_are_refused_before_anything_runs(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        int operand;
        coda_tensor change; /* fields that are not zero replace */
        int shift;          /* of the address */
        const char *expected;
    } rows[] = {
        {"dtype", 0, {.dtype = CODA_F16}, 0, "expected bf16"},     {"rank", 1, {.rank = 1}, 0, "expected 2"},
        {"inner size", 1, {.shape = {3, 4}}, 0, "axis K"},         {"out rows", 2, {.shape = {5, 3}}, 0, "axis M"},
        {"negative size", 2, {.shape = {-4, 3}}, 0, "at least 1"}, {"stride", 0, {.stride = 4}, 0, "row stride 4"},
        {"alignment", 0, {.rank = 2}, 1, "multiple of 2"},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct fixture f;
        coda_error error = {0};
        open_gemm(&f);
        coda_tensor *t = &f.operand[rows[r].operand];
        t->dtype = rows[r].change.dtype ? rows[r].change.dtype : t->dtype;
        t->rank = rows[r].change.rank ? rows[r].change.rank : t->rank;
        t->stride = rows[r].change.stride ? rows[r].change.stride : t->stride;
        for (int d = 0; d < 2; d++)
            t->shape[d] = rows[r].change.shape[d] ? rows[r].change.shape[d] : t->shape[d];
        t->data = (char *)t->data + rows[r].shift;
        memset(f.y, 0xab, sizeof f.y);
        assert_int_equal(coda_kernel_launch(f.kernel, f.operand, 3, NULL, NULL, &error), CODA_INVALID);
        if (!strstr(error.message, rows[r].expected))
            fail_msg("%s: \"%s\" lacks \"%s\"", rows[r].what, error.message, rows[r].expected);
        for (int i = 0; i < 64; i++)
            assert_int_equal(f.y[i], 0xabab);
        close_gemm(&f);
    }
}

static void a_missing_operand_or_data_is_refused(void **state)
{
    (void)state;
    struct fixture f;
    coda_error error;
    open_gemm(&f);
    assert_int_equal(coda_kernel_launch(f.kernel, f.operand, 2, NULL, NULL, &error), CODA_INVALID);
    assert_non_null(strstr(error.message, "expected 3"));
    f.operand[1].data = NULL;
    assert_int_equal(coda_kernel_launch(f.kernel, f.operand, 3, NULL, NULL, &error), CODA_INVALID);
    assert_non_null(strstr(error.message, "(W) has no data"));
    close_gemm(&f);
}

static void an_out_over_a_product_operand_is_refused_and_interleaved_views_are_not(void **state)
{
    (void)state;
    struct fixture f;
    coda_error error;
    uint16_t shared[128] = {0};
    open_gemm(&f);
    f.operand[0].data = shared;
    f.operand[2].data = shared + 2;
    assert_int_equal(coda_kernel_launch(f.kernel, f.operand, 3, NULL, NULL, &error), CODA_INVALID);
    assert_non_null(strstr(error.message, "shares memory"));
    /* A in columns 0..4 and Y in columns 5..7 of one matrix of 8 columns */
    f.operand[0].stride = f.operand[2].stride = 8;
    f.operand[2].data = shared + 5;
    assert_int_equal(coda_kernel_launch(f.kernel, f.operand, 3, NULL, NULL, &error), CODA_OK);
    f.operand[2].data = shared + 4;
    assert_int_equal(coda_kernel_launch(f.kernel, f.operand, 3, NULL, NULL, &error), CODA_INVALID);
    close_gemm(&f);
}

static void a_kernel_needs_the_sizes_that_no_operand_gives(void **state)
{
    (void)state;
    coda_device *device;
    coda_kernel *kernel = NULL;
    const coda_module *module;
    coda_error error;
    assert_int_equal(coda_device_open("cpu", &device, NULL), CODA_OK);
    assert_int_equal(coda_standard_module(&module, NULL), CODA_OK);
    const coda_program *program = coda_module_find(module, "rope_bwd");
    assert_int_equal(coda_kernel_create(device, program, NULL, NULL, &kernel, &error), CODA_INVALID);
    assert_non_null(strstr(error.message, "must be given when the kernel is created"));
    coda_dims unknown = {.count = 1, .item = {{"Z", 4}}};
    assert_int_equal(coda_kernel_create(device, program, &unknown, NULL, &kernel, &error), CODA_INVALID);
    assert_non_null(strstr(error.message, "no axis \"Z\""));
    coda_dims twice = {.count = 2, .item = {{"T", 4}, {"T", 5}}};
    assert_int_equal(coda_kernel_create(device, program, &twice, NULL, &kernel, &error), CODA_INVALID);
    coda_options options = {.size = 1};
    assert_int_equal(coda_kernel_create(device, program, NULL, &options, &kernel, &error), CODA_INVALID);
    assert_null(kernel);
    coda_device_close(device);
}

static void a_retyped_module_computes_in_the_other_type(void **state)
{
    (void)state;
    const coda_module *module;
    coda_module *retyped;
    coda_operand operand;
    assert_int_equal(coda_standard_module(&module, NULL), CODA_OK);
    assert_int_equal(coda_module_retype(module, CODA_BF16, CODA_F32, &retyped, NULL), CODA_OK);
    assert_int_equal(coda_module_size(retyped), coda_module_size(module));
    assert_int_equal(coda_program_operand(coda_module_find(retyped, "gemm"), 0, &operand), CODA_OK);
    assert_int_equal(operand.dtype, CODA_F32);
    assert_string_equal(operand.dim[1], "K");
    coda_module_free(retyped);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_of_a_small_float_survives_a_trip_through_f32),
        cmocka_unit_test(conversion_rounds_to_nearest_even),
        cmocka_unit_test(an_unknown_device_is_refused_with_the_names_that_exist),
        cmocka_unit_test(thread_counts_outside_the_range_are_refused),
        cmocka_unit_test(a_parallel_loop_visits_every_index_once),
        cmocka_unit_test(the_standard_module_has_every_program_file),
        cmocka_unit_test(wrong_operands_are_refused_before_anything_runs),
        cmocka_unit_test(a_missing_operand_or_data_is_refused),
        cmocka_unit_test(an_out_over_a_product_operand_is_refused_and_interleaved_views_are_not),
        cmocka_unit_test(a_kernel_needs_the_sizes_that_no_operand_gives),
        cmocka_unit_test(a_retyped_module_computes_in_the_other_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
