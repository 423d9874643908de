/* Epilogues in machine code give the bits of the interpreted ones. */
#include "kit/random.h"
#include "kit/standard.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const coda_options interpreted = {.size = sizeof interpreted, .schedule = "interpreted"};

static void check_program(const coda_program *program, coda_device *device, const char *name, const coda_dims *dims)
{
    struct trial trial;
    struct bits bits;
    assert_int_equal(trial_new(&trial, program, dims, 11, (struct layout){0}, NULL), CODA_OK);
    assert_int_equal(trial_run(&trial, device, &interpreted, NULL), CODA_OK);
    take_bits(&trial, &bits);
    trial_reset(&trial, POISON_NAN);
    assert_int_equal(trial_run(&trial, device, NULL, NULL), CODA_OK);
    const char *out = differing_out(&trial, &bits);
    if (out)
        fail_msg("%s on %s: other bits in %s than interpreted", coda_program_name(program), name, out);
    free_bits(&bits);
    trial_free(&trial);
}

static void standard_programs_have_the_bits_of_their_interpretation(void **state)
{
    const struct devices *devices = *state;
    static const int64_t sizes[] = {1, 8, 17, 130};
    for (int d = 1; d < devices->count; d++)
        for (int p = 0; p < coda_module_size(standard_module()); p++) {
            const coda_program *program = coda_module_program(standard_module(), p);
            coda_dims dims = large_sizes(program);
            check_program(program, devices->device[d], devices->name[d], &dims);
            for (int axis = 0; axis < dims.count && !is_length(dims.item[axis].axis); axis++)
                for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
                    dims = small_sizes(program, 16);
                    set_size(program, &dims, axis, sizes[i]);
                    check_program(program, devices->device[d], devices->name[d], &dims);
                }
        }
}

/* ---------------------------------------------------------------- one primitive at a time */

static const char *const formulas[] = {"-a",
                                       "abs(a)",
                                       "relu(a)",
                                       "sqrt(a)",
                                       "rsqrt(a)",
                                       "exp(a)",
                                       "sigmoid(a)",
                                       "silu(a)",
                                       "gelu_tanh(a)",
                                       "a + b",
                                       "a - b",
                                       "a * b",
                                       "a / b",
                                       "min(a, b)",
                                       "max(a, b)",
                                       "a < b",
                                       "a <= b",
                                       "a > b",
                                       "a >= b",
                                       "a == b",
                                       "a != b",
                                       "clamp(a, b, c)",
                                       "where(a, b, c)",
                                       "where(a < b, c, a)",
                                       "a * b + c",
                                       "a * b - c",
                                       "c - a * b",
                                       "a * 2 + c",
                                       "2 * a - c",
                                       "a * b + 3",
                                       "1 - a",
                                       "1 / a",
                                       "a * a + a",
                                       "min(3, a)",
                                       "b - a * a",
                                       "a * b + a",
                                       "tanh(a) * b",
                                       "log(abs(a) + 1) - b"};

enum { ROWS = 3, COLUMNS = 333, COUNT = ROWS * COLUMNS };

static void fill(float *to, struct random *random)
{
    static const uint32_t special[] = {0,          0x80000000, 1,          0x807fffff, 0x00800000,
                                       0x7f7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc01234,
                                       0x3f800000, 0xbf800000, 0x42ae0000, 0xc2ae0000, 0x42b17218,
                                       0xc2d00000, 0x3effffff, 0x33800000, 0x4effffff, 0xcf000000};
    for (int i = 0; i < COUNT; i++) {
        const uint64_t word = random_next(random);
        uint32_t bits = (uint32_t)(word >> 32);
        if (word % 4 == 0)
            bits = special[word / 4 % (sizeof special / sizeof *special)];
        else if (word % 4 != 1)
            bits = (bits & 0x81ffffff) | 0x3e000000; /* near 1 */
        memcpy(&to[i], &bits, sizeof bits);
    }
}

static void run_formula(coda_device *device, const coda_program *program, const coda_options *options, float *in[3],
                        float *out, coda_dtype dtype)
{
    coda_kernel *kernel;
    coda_tensor operand[4];
    for (int i = 0; i < 4; i++)
        operand[i] = (coda_tensor){i < 3 ? in[i] : out, i < 3 ? CODA_F32 : dtype, 2, {ROWS, COLUMNS}, 0};
    assert_int_equal(coda_kernel_create(device, program, NULL, options, &kernel, NULL), CODA_OK);
    assert_int_equal(coda_kernel_launch(kernel, operand, 4, NULL, NULL, NULL), CODA_OK);
    coda_kernel_free(kernel);
}

/* NaNs may differ in their payload. */
static void compare(const float *found, const float *expected, coda_dtype dtype, const char *formula,
                    const char *device)
{
    float x[COUNT], y[COUNT];
    coda_convert(x, CODA_F32, found, dtype, COUNT);
    coda_convert(y, CODA_F32, expected, dtype, COUNT);
    for (int i = 0; i < COUNT; i++)
        if (memcmp(&x[i], &y[i], sizeof *x) != 0 && !(isnan(x[i]) && isnan(y[i])))
            fail_msg("%s in %s on %s: element %d is %a, interpreted %a", formula, coda_dtype_name(dtype), device, i,
                     (double)x[i], (double)y[i]);
}

static void every_primitive_has_the_bits_of_its_interpretation(void **state)
{
    const struct devices *devices = *state;
    static const coda_dtype dtypes[] = {CODA_F32, CODA_BF16, CODA_F16};
    static float memory[5][COUNT];
    struct random random = {7};
    float *in[3] = {memory[0], memory[1], memory[2]};
    for (int i = 0; i < 3; i++)
        fill(memory[i], &random);
    for (size_t f = 0; f < sizeof formulas / sizeof *formulas; f++)
        for (int t = 0; t < 3; t++) {
            char text[512];
            coda_module *module;
            snprintf(text, sizeof text,
                     "program p {\n in a : f32[M, N]\n in b : f32[M, N]\n in c : f32[M, N]\n"
                     " z = %s\n out y : %s[M, N] = where(index(N) < 0, b + c, z)\n}\n",
                     formulas[f], coda_dtype_name(dtypes[t]));
            coda_error error = {0};
            if (coda_module_parse(text, strlen(text), NULL, &module, &error) != CODA_OK)
                fail_msg("%s", error.message);
            for (int d = 1; d < devices->count; d++) {
                run_formula(devices->device[d], coda_module_program(module, 0), &interpreted, in, memory[3], dtypes[t]);
                run_formula(devices->device[d], coda_module_program(module, 0), NULL, in, memory[4], dtypes[t]);
                compare(memory[4], memory[3], dtypes[t], formulas[f], devices->name[d]);
            }
            coda_module_free(module);
        }
}

/* ---------------------------------------------------------------- runs and rotations */

static const struct {
    const char *text;
    int width; /* what N is a multiple of */
} groups[] = {
    {"out y : f32[M, N/64] = sum(a * w, N:64)", 1},
    {"out y : f32[M, N/192] = max(a - w, N:192)", 1},
    {"out y : f32[M, N/512] = absmax(a, N:512)", 1},
    {"out y : f32[M, N/128] = logsumexp(a * 3, N:128)", 1},
    {"out y : f32[M, N/128] = logsumexp(a, N:128)\n out z : bf16[M, N] = a + w\n out s : f32[M, N/128] = sum(w, N:128)",
     1},
    {"out y : f32[M, N/64] = sum(a, N:64)\n out z : f32[M, N/128] = sum(a, N:128)", 1},
    {"out y : f32[M, N/96] = sum(a, N:96)\n out z : f32[M, N/1024] = max(a, N:1024)", 1},
    {"out y : bf16[M, N] = a / (sum(a * a, N:64) + 1)\n out s : f32[M, N/64] = absmax(w, N:64)", 1},
    {"out y : bf16[M, N] = rope(a * w, table, pos)", 64},
    {"out y : f32[M, N] = rope(a, table, pos, cols = 128)\n out z : f32[M, N] = a * w", 64},
    {"out y : f16[M, N] = rope_inverse(a + w, table, pos)", 64},
    {"out y : bf16[M, N] = rope_pairs(a + w, table, pos)", 64},
    {"out y : bf16[M, N] = rope(a, table, pos)\n out s : f32[M, N/128] = sum(rope(a, table, pos) * w, N:128)", 64},
    {"out y : bf16[M, N] = rope(a, table, pos)\n out z : bf16[M, N] = rope_inverse(w, table, pos)", 64},
};

static void runs_and_rotations_have_the_bits_of_their_interpretation(void **state)
{
    const struct devices *devices = *state;
    static const int64_t columns[] = {1, 16, 63, 64, 65, 130, 256, 333, 700, 1300};
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        char text[1024];
        coda_module *module;
        coda_error error = {0};
        const bool rotates = strstr(groups[g].text, "table") != NULL;
        snprintf(text, sizeof text, "program p {\n in a%s : f32[M, N]\n%s %s\n}\n",
                 strchr(groups[g].text, 'w') ? ", w" : "", rotates ? " in table : f32[P, 64]\n in pos : i32[M]\n" : "",
                 groups[g].text);
        if (coda_module_parse(text, strlen(text), NULL, &module, &error) != CODA_OK)
            fail_msg("%s", error.message);
        for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
            const int64_t n = (columns[i] + groups[g].width - 1) / groups[g].width * groups[g].width;
            coda_dims dims = {.count = 2 + rotates, .item = {{"M", 5}, {"N", n < 128 && rotates ? 128 : n}, {"P", 9}}};
            for (int d = 1; d < devices->count; d++)
                check_program(coda_module_program(module, 0), devices->device[d], devices->name[d], &dims);
        }
        coda_module_free(module);
    }
}

static void a_schedule_that_is_not_offered_is_refused(void **state)
{
    const struct devices *devices = *state;
    const coda_options options = {.size = sizeof options, .schedule = "warps"};
    for (int d = 1; d < devices->count; d++) {
        coda_kernel *kernel;
        coda_error error = {0};
        assert_int_equal(
            coda_kernel_create(devices->device[d], standard_program("gemm"), NULL, &options, &kernel, &error),
            CODA_UNSUPPORTED);
        assert_non_null(strstr(error.message, "interpreted"));
    }
}

/* The listing shows what became machine code; where there is none, nothing may claim it. */
static void listings_show_what_is_compiled(void **state)
{
    const struct devices *devices = *state;
    for (int d = 1; d < devices->count; d++) {
        coda_kernel *kernel;
        for (int i = 0; i < 2; i++) {
            assert_int_equal(coda_kernel_create(devices->device[d], standard_program("gemm_swiglu_bwd"), NULL,
                                                i ? &interpreted : NULL, &kernel, NULL),
                             CODA_OK);
            const bool compiled = strstr(coda_kernel_source(kernel), "compiled") != NULL;
            const bool expected = i == 0 && !strstr(devices->name[d], "portable");
#if defined(__x86_64__) && defined(__linux__)
            assert_int_equal(compiled, expected);
#else
            assert_false(compiled && !expected);
#endif
            coda_kernel_free(kernel);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(standard_programs_have_the_bits_of_their_interpretation),
        cmocka_unit_test(every_primitive_has_the_bits_of_its_interpretation),
        cmocka_unit_test(runs_and_rotations_have_the_bits_of_their_interpretation),
        cmocka_unit_test(a_schedule_that_is_not_offered_is_refused),
        cmocka_unit_test(listings_show_what_is_compiled),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
