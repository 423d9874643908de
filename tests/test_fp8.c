/* 8-bit floats in programs, on every device: scaled to a block's largest magnitude, saturated by `clamp`, as operands of
 * products, and their gradients. */
#include "kit/formats.h"
#include "kit/standard.h"
#include "rewrite/rewrite.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define QUANTISED(type, largest)                                                                                       \
    "a = absmax(y, N:64)\n s = max(a, 1e-12) / " largest "\n"                                                          \
    "out Q : " type "[M, N] = clamp(y / s, -" largest ", " largest ")\n out S : f32[M, N/64] = s }"

/* name, program; each runs on ragged shapes against the independent evaluation. */
static const char *const programs[] = {
    "program quantise { in y : bf16[M, N]\n" QUANTISED("e4m3", "448"),
    "program quantise_wide { in y : f32[M, N]\n" QUANTISED("e5m2", "57344"),
    "program epilogue { in A : bf16[M, K]; in W : bf16[N, K]\n y = silu(A @ W.T)\n" QUANTISED("e4m3", "448"),
    "program scaled_rows { in A : e4m3[M, K]; in W : e4m3[N, K]; in a : f32[M]; in b : f32[N]\n"
    "out Y : bf16[M, N] = (A @ W.T) * a * b }",
    "program mixed { in A : e5m2[M, K]; in W : e4m3[N, K]\n out Y : f32[M, N] = A @ W.T }",
    "program mixed_with_wide { in A : bf16[M, K]; in W : e4m3[K, N]\n out Y : f32[M, N] = A @ W }",
    "program twin { in A : e4m3[M, K]; in V, W : e4m3[N, K]; in a : f32[M]\n"
    "g = (A @ V.T) * a\n out Y : e4m3[M, N] = clamp(silu(g) * ((A @ W.T) * a), -448, 448) }",
    "program wgrad { in D : e5m2[M, K]; in A : e4m3[M, N]\n out G : f32[K, N] += D.T @ A }",
    "program tiles { in X : e4m3[M, N]; in g : e5m2[N]; in r : e4m3[M]\n out Y : f32[M, N] = X * g + r\n"
    "out Z : e5m2[M, N] = X * 0.5 }",
    "program dequantise { in Q : e4m3[M, N]; in S : f32[M, N/64]\n out Y : bf16[M, N] = Q * S }",
    "program casts { in X : f32[M, N]\n out Y : f32[M, N] = cast(X * 100, e4m3) + cast(X, e5m2) }",
    "program rounded_sums { in X : f32[M, N]\n out Y : bf16[M, N] += cast(X * 0.7, bf16)\n"
    "out Z : f16[M, N] += cast(X * 3, f16); out Q : e4m3[M, N] += cast(X, e4m3) }",
    "program rounded_wgrad { in D : bf16[M, K]; in B : bf16[M, N]\n out G : bf16[K, N] += cast((D.T @ B) * 2, bf16) }",
};

static coda_module *read_module(const char *text)
{
    coda_module *module;
    coda_error error = {0};
    if (coda_module_parse(text, strlen(text), "fp8", &module, &error) != CODA_OK)
        fail_msg("%s\n%s", text, error.message);
    return module;
}

static void check(const struct devices *devices, const coda_program *program, const coda_dims *dims, uint64_t seed)
{
    struct trial trial;
    struct evaluation evaluation;
    const char *why;
    char text[512];
    coda_error error = {0};
    if (trial_new(&trial, program, dims, seed, (struct layout){GUARD_END, (int64_t)(seed % 3)}, &error) != CODA_OK)
        fail_msg("%s: %s", coda_program_name(program), error.message);
    if (!evaluate_trial(&trial, &evaluation, &why))
        fail_msg("%s: %s", coda_program_name(program), why);
    for (int d = 0; d < devices->count; d++) {
        trial_reset(&trial, POISON_NAN);
        if (trial_run(&trial, devices->device[d], NULL, &error) != CODA_OK)
            fail_msg("%s on %s: %s", coda_program_name(program), devices->name[d], error.message);
        if (!compare_outs(&trial, &evaluation, devices->standard[d], text, sizeof text) ||
            !trial_untouched(&trial, text, sizeof text))
            fail_msg("%s on %s: %s", coda_program_name(program), devices->name[d], text);
    }
    evaluation_free(&evaluation);
    trial_free(&trial);
}

static coda_dims sizes_of(const coda_program *program, int64_t m, int64_t n, int64_t k)
{
    const coda_dims all = {3, {{"M", m}, {"N", n}, {"K", k}}};
    coda_dims dims = {0};
    for (int i = 0; i < all.count; i++)
        if (graph_find_axis(program->graph, all.item[i].axis) >= 0)
            dims.item[dims.count++] = all.item[i];
    return dims;
}

static void programs_with_8_bit_operands_agree_on_every_device(void **state)
{
    static const int64_t shapes[][3] = {{1, 1, 1}, {7, 64, 33}, {65, 129, 300}, {17, 200, 64}, {128, 63, 31}};
    for (size_t p = 0; p < sizeof programs / sizeof *programs; p++) {
        coda_module *module = read_module(programs[p]);
        const coda_program *program = coda_module_program(module, 0);
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            coda_dims dims = sizes_of(program, shapes[i][0], shapes[i][1], shapes[i][2]);
            check(*state, program, &dims, 10 * p + i);
        }
        coda_module_free(module);
    }
}

/* Runs the first program of the text on a device, over the caller's operands. */
static void launch(coda_device *device, const char *text, coda_tensor *tensor, int count)
{
    coda_module *module = read_module(text);
    coda_kernel *kernel;
    coda_error error = {0};
    if (coda_kernel_create(device, coda_module_program(module, 0), NULL, NULL, &kernel, &error) != CODA_OK ||
        coda_kernel_launch(kernel, tensor, count, NULL, NULL, &error) != CODA_OK)
        fail_msg("%s", error.message);
    coda_kernel_free(kernel);
    coda_module_free(module);
}

/* Every block's largest element becomes 448, and what comes back is within half a unit of 3 mantissa bits. */
static void a_block_uses_the_whole_range_of_its_type(void **state)
{
    enum { M = 5, N = 150, RUN = 64, RUNS = 3 };
    const struct devices *devices = *state;
    static float x[M * N], scale[M * RUNS];
    static uint8_t q[M * N];
    static const char text[] = "program quantise { in y : f32[M, N]\n" QUANTISED("e4m3", "448");
    coda_tensor tensor[3] = {
        {x, CODA_F32, 2, {M, N}, 0}, {q, CODA_E4M3, 2, {M, N}, 0}, {scale, CODA_F32, 2, {M, RUNS}, 0}};
    for (int i = 0; i < M * N; i++) /* blocks of very different sizes, one of zeros */
        x[i] = i / N == 3 ? 0 : (float)(sin(i * 0.7) * pow(10, i / N * 6 - 8 + i % N / RUN));
    for (int d = 0; d < devices->count; d++) {
        launch(devices->device[d], text, tensor, 3);
        for (int i = 0; i < M; i++)
            for (int r = 0; r < RUNS; r++) {
                double most = 0;
                for (int j = r * RUN; j < (r + 1) * RUN && j < N; j++) {
                    double back = format_load(CODA_E4M3, &q[i * N + j]), s = scale[i * RUNS + r];
                    most = fmax(most, fabs(back));
                    if (!(fabs(back * s - x[i * N + j]) <= fmax(0x1p-4 * fabs(x[i * N + j]), 0x1p-10 * s) * 1.0001))
                        fail_msg("%s: [%d, %d] is %g, comes back as %g", devices->name[d], i, j, x[i * N + j],
                                 back * s);
                }
                if (most != (i == 3 ? 0 : 448))
                    fail_msg("%s: block [%d, %d] reaches %g", devices->name[d], i, r, most);
            }
    }
}

static void clamp_saturates_and_nothing_else_does(void **state)
{
    const struct devices *devices = *state;
    static const float x[8] = {1, 447, 449, 1e6f, -1e6f, 70000, INFINITY, NAN};
    static const double expected[4][8] = {{1, 448, 448, 448, -448, 448, 448, NAN},
                                          {1, 448, 448, NAN, NAN, NAN, NAN, NAN},
                                          {1, 448, 448, 57344, -57344, 57344, 57344, NAN},
                                          {1, 448, 448, INFINITY, -INFINITY, INFINITY, INFINITY, NAN}};
    static const char text[] = "program p { in x : f32[M, N]\n out A : e4m3[M, N] = clamp(x, -448, 448)\n"
                               "out B : e4m3[M, N] = x\n out C : e5m2[M, N] = clamp(x, -57344, 57344)\n"
                               "out D : e5m2[M, N] = x }";
    uint8_t y[4][8];
    coda_tensor tensor[5] = {{(void *)x, CODA_F32, 2, {1, 8}, 0}};
    for (int o = 0; o < 4; o++)
        tensor[o + 1] = (coda_tensor){y[o], o < 2 ? CODA_E4M3 : CODA_E5M2, 2, {1, 8}, 0};
    for (int d = 0; d < devices->count; d++) {
        memset(y, 0x55, sizeof y);
        launch(devices->device[d], text, tensor, 5);
        for (int o = 0; o < 4; o++)
            for (int i = 0; i < 8; i++) {
                double found = format_load(o < 2 ? CODA_E4M3 : CODA_E5M2, &y[o][i]), right = expected[o][i];
                if (!(found == right || (isnan(found) && isnan(right))))
                    fail_msg("%s: out %d of %g is %g, expected %g", devices->name[d], o, x[i], found, right);
            }
    }
}

static const struct operand *find(const struct unit *unit, const char *name)
{
    for (int i = 0; i < unit->count; i++) {
        int o = graph_find_operand(unit->graph[i], name);
        if (o >= 0)
            return &unit->graph[i]->operand[o];
    }
    fail_msg("no operand %s", name);
    return NULL;
}

/* A gradient has no scale of its own: 8 bits would lose it. */
static void gradients_of_8_bit_values_are_bf16(void **state)
{
    static const struct {
        const char *text, *name;
        coda_dtype dtype;
    } rows[] = {
        {"program p { in A : e4m3[M, K]; in W : e5m2[N, K]\n out Y : e4m3[M, N] = tanh(A @ W.T) }", "dA", CODA_BF16},
        {"program p { in A : e4m3[M, K]; in W : e5m2[N, K]\n out Y : e4m3[M, N] = tanh(A @ W.T) }", "dY", CODA_BF16},
        {"program p { in A : e4m3[M, K]; in W : e5m2[N, K]\n out Y : e4m3[M, N] = tanh(A @ W.T) }", "dW", CODA_F32},
        {"program p { in X : e5m2[M, N]\n out Y : f16[M, N] = tanh(X) }", "dX", CODA_BF16},
        {"program p { in X : e5m2[M, N]\n out Y : f16[M, N] = tanh(X) }", "dY", CODA_F16},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct unit unit = {0}, made = {0};
        coda_error error = {0};
        if (parse(rows[i].text, strlen(rows[i].text), "fp8", &unit, &error) != CODA_OK ||
            differentiate(unit.graph[0], NULL, NULL, &made, &error) != CODA_OK)
            fail_msg("%s", error.message);
        assert_int_equal(find(&made, rows[i].name)->dtype, rows[i].dtype);
        unit_free(&made);
        unit_free(&unit);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(programs_with_8_bit_operands_agree_on_every_device),
        cmocka_unit_test(a_block_uses_the_whole_range_of_its_type),
        cmocka_unit_test(clamp_saturates_and_nothing_else_does),
        cmocka_unit_test(gradients_of_8_bit_values_are_bf16),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
