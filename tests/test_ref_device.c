/* The reference as a device: rounding, strides, shared memory, refusals, blocks. */
#include "ref/formats.h"
#include "kit/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct device_test {
    coda_device *device;
    coda_module *module;
    coda_kernel *kernel;
};

static void open_kernel(struct device_test *t, const char *text, const coda_dims *dims)
{
    coda_error error = {0};
    memset(t, 0, sizeof *t);
    if (coda_device_open("ref", &t->device, &error) != CODA_OK ||
        coda_module_parse(text, strlen(text), NULL, &t->module, &error) != CODA_OK ||
        coda_kernel_create(t->device, coda_module_program(t->module, 0), dims, NULL, &t->kernel, &error) != CODA_OK)
        fail_msg("%s", error.message);
}

static void close_kernel(struct device_test *t)
{
    coda_kernel_free(t->kernel);
    coda_module_free(t->module);
    coda_device_close(t->device);
}

static void launch_ok(struct device_test *t, const coda_tensor *operands, int count)
{
    coda_error error = {0};
    if (coda_kernel_launch(t->kernel, operands, count, NULL, NULL, &error) != CODA_OK)
        fail_msg("%s", error.message);
}

static void outs_round_once_and_to_their_own_type(void **state)
{
    (void)state;
    struct device_test t;
    open_kernel(
        &t,
        "program p { in x : f32[N]\n y = x + 1e-3\n out h : bf16[N] = y\n out f : f32[N] = y\n out i : i32[N] = y }",
        NULL);
    float x[2] = {1, -2.75f}, f[2];
    uint16_t h[2];
    int32_t i[2];
    const coda_tensor operands[] = {
        {x, CODA_F32, 1, {2}, 0}, {h, CODA_BF16, 1, {2}, 0}, {f, CODA_F32, 1, {2}, 0}, {i, CODA_I32, 1, {2}, 0}};
    launch_ok(&t, operands, 4);
    for (int k = 0; k < 2; k++) {
        double y = (double)x[k] + 1e-3;
        assert_true(f[k] == (float)y);
        assert_true(load_element(CODA_BF16, &h[k]) == round_to(CODA_BF16, y));
        assert_int_equal(i[k], (int)y);
    }
    close_kernel(&t);
}

static void accumulation_reads_adds_and_rounds_once(void **state)
{
    (void)state;
    struct device_test t;
    open_kernel(&t, "program p { in x, z : f32[N]\n out y : f32[N] += x + z }", NULL);
    float x = 0x1p-24f, z = 0x1p-50f, y = 1; /* half a unit in the last place of 1, and a little more */
    const coda_tensor operands[] = {{&x, CODA_F32, 1, {1}, 0}, {&z, CODA_F32, 1, {1}, 0}, {&y, CODA_F32, 1, {1}, 0}};
    launch_ok(&t, operands, 3);
    assert_true(y == 1 + 0x1p-23f);
    close_kernel(&t);
}

static void row_strides_are_kept_and_gaps_untouched(void **state)
{
    (void)state;
    struct device_test t;
    open_kernel(&t, "program p { in x : f32[M, N]; in W : f32[N, K]\n out y : f32[M, K] = x @ W\n }", NULL);
    float x[] = {1, 2, NAN, 3, 4, NAN}, w[] = {1, NAN, NAN, 10, NAN, NAN}, y[] = {-1, -7, -1};
    const coda_tensor operands[] = {
        {x, CODA_F32, 2, {2, 2}, 3}, {w, CODA_F32, 2, {2, 1}, 3}, {y, CODA_F32, 2, {2, 1}, 2}};
    launch_ok(&t, operands, 3);
    assert_true(y[0] == 21 && y[1] == -7 && y[2] == 43);
    close_kernel(&t);
}

static void an_out_may_overwrite_the_in_that_it_is_computed_from(void **state)
{
    (void)state;
    struct device_test t;
    open_kernel(
        &t, "block p { in x, z : f32[M, N]\n out y : f32[M, N] = x - sum(x, N)\n out w : f32[M, N] = z + sum(x, N) }",
        NULL);
    float x[] = {1, 2, 3, 4}, z[] = {10, 20, 30, 40};
    const coda_tensor operands[] = {{x, CODA_F32, 2, {2, 2}, 0},
                                    {z, CODA_F32, 2, {2, 2}, 0},
                                    {x, CODA_F32, 2, {2, 2}, 0},
                                    {z, CODA_F32, 2, {2, 2}, 0}};
    launch_ok(&t, operands, 4);
    static const float y[] = {-2, -1, -4, -3}, w[] = {13, 23, 37, 47};
    assert_memory_equal(x, y, sizeof y);
    assert_memory_equal(z, w, sizeof w);
    close_kernel(&t);
}

static void an_id_without_a_row_is_refused_by_name_and_writes_nothing(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int count;
        int32_t id;
        const char *message;
    } rows[] = {
        {"program p { in E : f32[V, N]; in ids : i32[M]\n out y : f32[M, N] = gather(E, ids) }", 3, 3, "is 3"},
        {"program p { in E : f32[V, N]; in ids : i32[M]\n out y : f32[M, N] = gather(E, ids) }", 3, -1, "is -1"},
        {"program p { in E : f32[V, D]; in ids : i32[M]; in x : f32[M, N]\n out y : f32[M, N] = rope(x, E, ids) }", 4,
         3, "is 3"},
        {"program p { in E : f32[V, D]; in ids : i32[M]; in x : f32[M, N]\n"
         "out y : f32[M, N] = rope_pairs_inverse(x, E, ids) }",
         4, INT32_MIN, "is -2147483648"},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct device_test t;
        coda_error error = {0};
        const coda_dims dims = {1, {{"D", 2}}};
        float table[6] = {0}, x[4] = {1, 2, 3, 4}, y[4] = {-7, -7, -7, -7};
        int32_t ids[2] = {0, rows[r].id};
        const coda_tensor e = {table, CODA_F32, 2, {3, 2}, 0}, i = {ids, CODA_I32, 1, {2}, 0},
                          out = {y, CODA_F32, 2, {2, 2}, 0}, in = {x, CODA_F32, 2, {2, 2}, 0};
        const coda_tensor operands[] = {e, i, rows[r].count == 3 ? out : in, out};
        open_kernel(&t, rows[r].text, rows[r].count == 3 ? NULL : &dims);
        assert_int_equal(coda_kernel_launch(t.kernel, operands, rows[r].count, NULL, NULL, &error), CODA_INVALID);
        if (strstr(error.message, "row 1 of `ids`") == NULL || strstr(error.message, rows[r].message) == NULL ||
            strstr(error.message, "`E` has 3 rows") == NULL)
            fail_msg("%s", error.message);
        assert_true(y[0] == -7 && y[3] == -7);
        ids[1] = 2;
        launch_ok(&t, operands, rows[r].count);
        assert_true(y[3] == 0);
        close_kernel(&t);
    }
}

static void a_nan_in_the_branch_not_taken_does_not_matter(void **state)
{
    (void)state;
    struct device_test t;
    open_kernel(&t,
                "program p { in x : f32[N]\n param cap = 0\n out y : f32[N] = where(cap > 0, cap * tanh(x / cap), x) }",
                NULL);
    float x[2] = {0, 3}, y[2];
    const double capped = 2;
    const coda_tensor operands[] = {{x, CODA_F32, 1, {2}, 0}, {y, CODA_F32, 1, {2}, 0}};
    launch_ok(&t, operands, 2);
    assert_true(y[0] == 0 && y[1] == 3);
    assert_int_equal(coda_kernel_launch(t.kernel, operands, 2, &capped, NULL, NULL), CODA_OK);
    assert_true(y[0] == 0 && y[1] == (float)(2 * tanh(1.5)));
    close_kernel(&t);
}

/* 300 wide, with values used again long after they were made. */
static void a_long_block_gives_the_same_bits_twice(void **state)
{
    (void)state;
    enum { SIDE = 300, COUNT = SIDE * SIDE };
    struct device_test t;
    struct random random = {11};
    open_kernel(&t,
                "block p { in A : f32[M, K]; in B : f32[K, N]; in C : f32[N, K]; in g : f32[K]\n"
                "x = A @ B\n y = silu(x) @ C + A\n z = rmsnorm(y, g, 1e-6)\n w = z @ C.T + x\n"
                "out r : f32[M, N] = softmax(w) + 0 * (A @ B) }",
                NULL);
    float *data[6];
    coda_tensor operands[5];
    for (int o = 0; o < 6; o++) {
        data[o] = calloc(COUNT, sizeof *data[o]);
        assert_non_null(data[o]);
        for (int64_t i = 0; i < COUNT; i++)
            data[o][i] = (float)random_normal(&random) / 17;
        if (o < 5)
            operands[o] = (coda_tensor){data[o], CODA_F32, o == 3 ? 1 : 2, {SIDE, o == 3 ? 1 : SIDE}, 0};
    }
    launch_ok(&t, operands, 5);
    operands[4].data = data[5];
    launch_ok(&t, operands, 5);
    assert_memory_equal(data[4], data[5], COUNT * sizeof *data[4]);
    for (int i = 0; i < SIDE; i++) {
        double sum = 0;
        for (int j = 0; j < SIDE; j++)
            sum += data[4][i * SIDE + j];
        assert_true(fabs(sum - 1) < 0x1p-24); /* 300 probabilities that add up to 1, each rounded to f32 */
    }
    for (int o = 0; o < 6; o++)
        free(data[o]);
    close_kernel(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outs_round_once_and_to_their_own_type),
        cmocka_unit_test(accumulation_reads_adds_and_rounds_once),
        cmocka_unit_test(row_strides_are_kept_and_gaps_untouched),
        cmocka_unit_test(an_out_may_overwrite_the_in_that_it_is_computed_from),
        cmocka_unit_test(an_id_without_a_row_is_refused_by_name_and_writes_nothing),
        cmocka_unit_test(a_nan_in_the_branch_not_taken_does_not_matter),
        cmocka_unit_test(a_long_block_gives_the_same_bits_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
