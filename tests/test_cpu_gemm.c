/* Products on the CPU device: every layout, type and instruction set against double, and the same bits for every thread
 * count and tile. */
#include "coda.h"
#include "kit/sets.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const sets[] = {"portable", "avx2", "avx512", "avx512bf16", "amx"};
enum { SETS = sizeof sets / sizeof *sets, MOST_OPERANDS = 8 };

static struct {
    int count;
    coda_device *device[SETS];
} devices;

static int open_devices(void **state)
{
    (void)state;
    print_message("instruction sets:");
    for (int i = 0; i < SETS; i++) {
        setenv("CODA_CPU", sets[i], 1);
        if (!wanted_set(sets[i]) || coda_device_open("cpu", &devices.device[devices.count], NULL) != CODA_OK)
            continue;
        print_message(" %s", sets[i]);
        devices.count++;
    }
    print_message("\n");
    unsetenv("CODA_CPU");
    return devices.count > 0 ? 0 : -1;
}

static int close_devices(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count; i++)
        coda_device_close(devices.device[i]);
    return 0;
}

/* ---------------------------------------------------------------- layouts */

/* A product of the sum in out `out`: which operands, and how they are stored. `right` may be two operands, end to end. */
struct term {
    int out, left, right[2];
    bool left_transposed, right_transposed;
};

static const struct layout {
    const char *text; /* %s: the type of the operands */
    int terms;
    struct term term[2];
} layouts[] = {
    {"program p { in A : %1$s[M, K]; in W : %1$s[N, K]; out Y : f32[M, N] = A @ W.T }",
     1,
     {{2, 0, {1, -1}, false, true}}},
    {"program p { in A : %1$s[M, K]; in W : %1$s[K, N]; out Y : f32[M, N] = A @ W }",
     1,
     {{2, 0, {1, -1}, false, false}}},
    {"program p { in A : %1$s[K, M]; in W : %1$s[N, K]; out Y : f32[M, N] = A.T @ W.T }",
     1,
     {{2, 0, {1, -1}, true, true}}},
    {"program p { in A : %1$s[K, M]; in W : %1$s[K, N]; out Y : f32[M, N] = A.T @ W }",
     1,
     {{2, 0, {1, -1}, true, false}}},
    {"program p { axis N = P + Q; in A : %1$s[M, K]; in U : %1$s[P, K]; in V : %1$s[Q, K]; "
     "out Y : f32[M, N] = A @ stack(U, V).T }",
     1,
     {{3, 0, {1, 2}, false, true}}},
    {"program p { axis K = P + Q; in A : %1$s[M, K]; in U : %1$s[P, N]; in V : %1$s[Q, N]; "
     "out Y : f32[M, N] = A @ stack(U, V) }",
     1,
     {{3, 0, {1, 2}, false, false}}},
    {"program p { in A : %1$s[M, K]; in W : %1$s[N, K]; in B : %1$s[L, M]; in V : %1$s[L, N]; "
     "out Y : f32[M, N] = A @ W.T + B.T @ V }",
     2,
     {{4, 0, {1, -1}, false, true}, {4, 2, {3, -1}, true, false}}},
    {"program p { in A : %1$s[M, K]; in W : %1$s[N, K]; in V : %1$s[K, N]; out Y : f32[M, N] = A @ W.T; "
     "out Z : f32[M, N] = A @ V }",
     2,
     {{3, 0, {1, -1}, false, true}, {4, 0, {2, -1}, false, false}}},
    {"program p { in A : %1$s[M, K]; in W : %1$s[N, K]; in B : %1$s[M, L]; in V : %1$s[L, N]; "
     "out Y : f32[M, N] = A @ W.T; out Z : f32[M, N] = B @ V }",
     2,
     {{4, 0, {1, -1}, false, true}, {5, 2, {3, -1}, false, false}}},
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

/* A parsed layout, with operands in memory whose rows stand `gap` elements apart. */
struct product {
    coda_module *module;
    const coda_program *program;
    int count;
    coda_tensor tensor[MOST_OPERANDS];
};

static coda_dims dims_of(int64_t m, int64_t n, int64_t k)
{
    /* P and Q are the parts of a stack along N or K: whichever the program has */
    return (coda_dims){.count = 5, .item = {{"M", m}, {"N", n}, {"K", k}, {"L", k / 2 + 1}, {"P", 0}}};
}

static bool has_axis(const coda_program *program, const char *name)
{
    for (int i = 0; i < coda_program_axis_count(program); i++) {
        coda_axis axis;
        coda_program_axis(program, i, &axis);
        if (!strcmp(axis.name, name))
            return true;
    }
    return false;
}

/* The sizes that the program's operands need; a stacked axis is cut in two. */
static coda_dims fit_dims(const coda_program *program, int64_t m, int64_t n, int64_t k)
{
    coda_dims all = dims_of(m, n, k), fitted = {0};
    coda_axis axis;
    for (int i = 0; i < coda_program_axis_count(program); i++) {
        coda_program_axis(program, i, &axis);
        for (int j = 0; j < 4; j++)
            if (!strcmp(axis.name, all.item[j].axis) && !axis.derived) {
                fitted.item[fitted.count].axis = all.item[j].axis;
                fitted.item[fitted.count++].size = all.item[j].size;
            } else if (!strcmp(axis.name, all.item[j].axis) && has_axis(program, "P")) {
                fitted.item[fitted.count].axis = "P";
                fitted.item[fitted.count++].size = all.item[j].size / 2;
                fitted.item[fitted.count].axis = "Q";
                fitted.item[fitted.count++].size = all.item[j].size - all.item[j].size / 2;
            }
    }
    return fitted;
}

static uint32_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

static void fill_random(coda_tensor *t, int64_t elements, uint64_t *seed)
{
    size_t size = coda_dtype_size(t->dtype);
    for (int64_t i = 0; i < elements; i++) {
        float x = (float)(next_random(seed) % 2001) / 1000 - 1;
        coda_convert((char *)t->data + (size_t)i * size, t->dtype, &x, CODA_F32, 1);
    }
}

static void product_create(struct product *p, const struct layout *layout, coda_dtype dtype, int64_t m, int64_t n,
                           int64_t k, int64_t gap)
{
    char text[512];
    coda_error error = {0};
    uint64_t seed = (uint64_t)(m * 131 + n * 17 + k);
    snprintf(text, sizeof text, layout->text, coda_dtype_name(dtype));
    if (coda_module_parse(text, strlen(text), NULL, &p->module, &error) != CODA_OK)
        fail_msg("%s", error.message);
    p->program = coda_module_program(p->module, 0);
    p->count = coda_program_operand_count(p->program);
    coda_dims dims = fit_dims(p->program, m, n, k);
    for (int i = 0; i < p->count; i++) {
        coda_operand operand;
        coda_tensor *t = &p->tensor[i];
        coda_program_operand(p->program, i, &operand);
        *t = (coda_tensor){.dtype = operand.dtype, .rank = operand.rank};
        if (coda_program_operand_shape(p->program, i, &dims, t->shape, &error) != CODA_OK)
            fail_msg("%s", error.message);
        t->stride = t->shape[1] + gap;
        int64_t elements = (t->shape[0] - 1) * t->stride + t->shape[1];
        t->data = malloc((size_t)elements * coda_dtype_size(t->dtype));
        assert_non_null(t->data);
        fill_random(t, elements, &seed);
    }
}

static void product_free(struct product *p)
{
    for (int i = 0; i < p->count; i++)
        free(p->tensor[i].data);
    coda_module_free(p->module);
}

static void run(struct product *p, coda_device *device, const coda_options *options)
{
    coda_kernel *kernel;
    coda_error error = {0};
    if (coda_kernel_create(device, p->program, NULL, options, &kernel, &error) != CODA_OK ||
        coda_kernel_launch(kernel, p->tensor, p->count, NULL, NULL, &error) != CODA_OK)
        fail_msg("%s", error.message);
    coda_kernel_free(kernel);
}

/* ---------------------------------------------------------------- against double */

/* The matrix (or two, row under row) as double, transposed where it is stored so. */
static double *dense(const struct product *p, const int *operand, bool transposed, int64_t rows, int64_t columns)
{
    double *x = malloc((size_t)(rows * columns) * sizeof *x);
    int64_t first = 0;
    assert_non_null(x);
    for (int part = 0; part < 2 && operand[part] >= 0; part++) {
        const coda_tensor *t = &p->tensor[operand[part]];
        for (int64_t i = 0; i < t->shape[0]; i++)
            for (int64_t j = 0; j < t->shape[1]; j++) {
                float value;
                const char *at = (const char *)t->data + (size_t)(i * t->stride + j) * coda_dtype_size(t->dtype);
                coda_convert(&value, CODA_F32, at, t->dtype, 1);
                x[transposed ? j * columns + first + i : (first + i) * columns + j] = (double)value;
            }
        first += t->shape[0];
    }
    return x;
}

/* Adds the product and the sum of its magnitudes. */
static void add_product(const struct product *p, const struct term *term, int64_t m, int64_t n, double *sum,
                        double *magnitude)
{
    const coda_tensor *a = &p->tensor[term->left];
    const int left[2] = {term->left, -1};
    int64_t k = a->shape[term->left_transposed ? 0 : 1];
    double *x = dense(p, left, term->left_transposed, m, k), *y = dense(p, term->right, term->right_transposed, k, n);
    for (int64_t i = 0; i < m; i++)
        for (int64_t l = 0; l < k; l++)
            for (int64_t j = 0; j < n; j++) {
                sum[i * n + j] += x[i * k + l] * y[l * n + j];
                magnitude[i * n + j] += fabs(x[i * k + l] * y[l * n + j]);
            }
    free(x);
    free(y);
}

/* An out in double; what every device must agree with. */
struct expected {
    int out;
    int64_t depth;
    double *sum, *magnitude;
};

static struct expected expected_of(const struct product *p, const struct layout *layout, int out)
{
    const int64_t m = p->tensor[out].shape[0], n = p->tensor[out].shape[1];
    struct expected e = {out, 0, calloc((size_t)(m * n), sizeof(double)), calloc((size_t)(m * n), sizeof(double))};
    assert_true(e.sum && e.magnitude);
    for (int i = 0; i < layout->terms; i++)
        if (layout->term[i].out == out) {
            add_product(p, &layout->term[i], m, n, e.sum, e.magnitude);
            e.depth += p->tensor[layout->term[i].left].shape[layout->term[i].left_transposed ? 0 : 1];
        }
    return e;
}

static void check_out(const struct product *p, const struct expected *e, const char *what)
{
    const coda_tensor *t = &p->tensor[e->out];
    const int64_t m = t->shape[0], n = t->shape[1];
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double y = (double)((const float *)t->data)[i * t->stride + j], bound = 0x1p-24 * (double)(e->depth + 8);
            if (!(fabs(y - e->sum[i * n + j]) <= bound * e->magnitude[i * n + j] + 1e-30))
                fail_msg("%s: [%d, %d] is %.9g; expected %.9g", what, (int)i, (int)j, y, e->sum[i * n + j]);
        }
}

static void check_product(const struct layout *layout, coda_dtype dtype, int64_t m, int64_t n, int64_t k, int64_t gap)
{
    struct product p;
    struct expected expected[2];
    int outs = layout->terms > 1 && layout->term[1].out != layout->term[0].out ? 2 : 1;
    char what[1024];
    product_create(&p, layout, dtype, m, n, k, gap);
    for (int i = 0; i < outs; i++)
        expected[i] = expected_of(&p, layout, layout->term[i].out);
    for (int d = 0; d < devices.count; d++) {
        snprintf(what, sizeof what, "%.60s\n%s M=%d N=%d K=%d of %s", coda_device_description(devices.device[d]),
                 layout->text, (int)m, (int)n, (int)k, coda_dtype_name(dtype));
        for (int i = 0; i < outs; i++) {
            coda_tensor *t = &p.tensor[expected[i].out];
            memset(t->data, 0xff, (size_t)((m - 1) * t->stride + n) * sizeof(float));
        }
        run(&p, devices.device[d], NULL);
        for (int i = 0; i < outs; i++)
            check_out(&p, &expected[i], what);
    }
    for (int i = 0; i < outs; i++) {
        free(expected[i].sum);
        free(expected[i].magnitude);
    }
    product_free(&p);
}

static const int64_t sweep[] = {1, 7, 8, 15, 16, 17, 63, 64, 65, 127, 128, 129, 300};
enum { SWEEP = sizeof sweep / sizeof *sweep };
static const coda_dtype types[] = {CODA_BF16, CODA_F32, CODA_F16, CODA_E4M3, CODA_E5M2};
enum { TYPES = sizeof types / sizeof *types };

static void every_layout_agrees_with_double_along_each_axis(void **state)
{
    (void)state;
    for (int l = 0; l < LAYOUTS; l++)
        for (int i = 0; i < SWEEP; i++) {
            int64_t size = sweep[i] < 2 ? 2 : sweep[i]; /* a stack cuts its axis in two */
            coda_dtype dtype = types[(i + l) % 2];
            check_product(&layouts[l], dtype, sweep[i], 20, 18, i % 3);
            check_product(&layouts[l], dtype, 10, l < 4 ? sweep[i] : size, 33, i % 2);
            check_product(&layouts[l], dtype, 14, 19, l < 4 ? sweep[i] : size, 0);
        }
}

static void every_layout_and_type_agrees_with_double_on_random_shapes(void **state)
{
    uint64_t seed = 7;
    (void)state;
    for (int l = 0; l < LAYOUTS; l++)
        for (int t = 0; t < TYPES; t++)
            for (int i = 0; i < 4; i++)
                check_product(&layouts[l], types[t], 1 + next_random(&seed) % 120, 2 + next_random(&seed) % 300,
                              2 + next_random(&seed) % 320, next_random(&seed) % 4);
}

/* Sizes at which not all of K, of the rows or of the columns is packed at once. */
static void large_axes_agree_with_double(void **state)
{
    static const int64_t sizes[][3] = {
        {3, 20, 100000}, {6, 270, 40000}, {12000, 5, 700}, {3, 12000, 700}, {97, 600, 3000}};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int l = (int)i; l < LAYOUTS; l += 4)
            check_product(&layouts[l], CODA_BF16, sizes[i][0], sizes[i][1], sizes[i][2], 0);
}

/* ---------------------------------------------------------------- bits */

static void check_bits(struct product *p, const struct layout *layout, const void *expected, const char *what)
{
    const coda_tensor *t = &p->tensor[layout->term[layout->terms - 1].out];
    if (memcmp(t->data, expected, (size_t)(t->shape[0] * t->shape[1]) * sizeof(float)))
        fail_msg("%s: %s gives other bits", layout->text, what);
}

static void *copy_out(struct product *p, const struct layout *layout)
{
    const coda_tensor *t = &p->tensor[layout->term[layout->terms - 1].out];
    size_t bytes = (size_t)(t->shape[0] * t->shape[1]) * sizeof(float);
    void *copy = malloc(bytes);
    assert_non_null(copy);
    memcpy(copy, t->data, bytes);
    memset(t->data, 0xff, bytes);
    return copy;
}

static void bits_depend_neither_on_threads_nor_on_the_tile(void **state)
{
    static const int threads[] = {2, 3, 7, 1}, rows[] = {8, 16, 48, 96, 128, 192, 256, 512},
                     columns[] = {32, 64, 96, 128, 256, 384, 1024};
    int64_t depth = getenv("CODA_TEST_QUICK") ? 200 : 600; /* under a sanitizer */
    (void)state;
    for (int d = 0; d < devices.count; d++)
        for (int l = 0; l < LAYOUTS; l++) {
            struct product p;
            char what[64];
            product_create(&p, &layouts[l], CODA_BF16, 301, 530, depth, 0);
            coda_device_set_threads(devices.device[d], 1, NULL);
            run(&p, devices.device[d], NULL);
            void *expected = copy_out(&p, &layouts[l]);
            for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
                coda_device_set_threads(devices.device[d], threads[i], NULL);
                run(&p, devices.device[d], NULL);
                snprintf(what, sizeof what, "%d threads", threads[i]);
                check_bits(&p, &layouts[l], expected, what);
                free(copy_out(&p, &layouts[l]));
            }
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
                coda_options options = {.size = sizeof options, .tile_rows = rows[r], .tile_columns = columns[r % 7]};
                run(&p, devices.device[d], &options);
                snprintf(what, sizeof what, "a tile of %d x %d", options.tile_rows, options.tile_columns);
                check_bits(&p, &layouts[l], expected, what);
                free(copy_out(&p, &layouts[l]));
            }
            free(expected);
            product_free(&p);
        }
}

static void the_middle_of_a_product_does_not_depend_on_its_edges(void **state)
{
    (void)state;
    for (int d = 0; d < devices.count; d++) {
        struct product whole, part;
        product_create(&whole, &layouts[0], CODA_F32, 200, 300, 257, 0);
        product_create(&part, &layouts[0], CODA_F32, 37, 41, 257, 0);
        memcpy(part.tensor[0].data, whole.tensor[0].data, 37 * 257 * sizeof(float));
        memcpy(part.tensor[1].data, whole.tensor[1].data, 41 * 257 * sizeof(float));
        run(&whole, devices.device[d], NULL);
        run(&part, devices.device[d], NULL);
        for (int i = 0; i < 37; i++)
            assert_memory_equal((float *)part.tensor[2].data + i * 41, (float *)whole.tensor[2].data + i * 300,
                                41 * sizeof(float));
        product_free(&whole);
        product_free(&part);
    }
}

/* Rows that lie a power of two apart are multiplied from packed copies, others where they are. */
static void bits_do_not_depend_on_how_far_rows_lie_apart(void **state)
{
    enum { M = 50, N = 70, K = 600, FAR = 2048 };
    (void)state;
    for (int d = 0; d < devices.count; d++) {
        struct product near, far;
        product_create(&near, &layouts[0], CODA_BF16, M, N, K, 0);
        product_create(&far, &layouts[0], CODA_BF16, M, N, K, FAR - K);
        for (int o = 0; o < 2; o++)
            for (int i = 0; i < near.tensor[o].shape[0]; i++)
                memcpy((uint16_t *)far.tensor[o].data + i * FAR, (uint16_t *)near.tensor[o].data + i * K,
                       K * sizeof(uint16_t));
        run(&near, devices.device[d], NULL);
        run(&far, devices.device[d], NULL);
        for (int i = 0; i < M; i++)
            assert_memory_equal((float *)far.tensor[2].data + i * far.tensor[2].stride,
                                (float *)near.tensor[2].data + i * N, N * sizeof(float));
        product_free(&near);
        product_free(&far);
    }
}

/* ---------------------------------------------------------------- refusals */

static void an_instruction_set_that_is_not_there_is_refused(void **state)
{
    static const char *const names[] = {"sse9", "avx", "AVX2", " "};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        coda_device *device = NULL;
        coda_error error = {0};
        setenv("CODA_CPU", names[i], 1);
        assert_int_equal(coda_device_open("cpu", &device, &error), CODA_INVALID);
        assert_non_null(strstr(error.message, names[i]));
        assert_non_null(strstr(error.message, "portable"));
        assert_null(device);
    }
    for (int i = 0; i < SETS && devices.count < SETS; i++) {
        coda_device *device = NULL;
        setenv("CODA_CPU", sets[i], 1);
        coda_status status = coda_device_open("cpu", &device, NULL);
        assert_true(status == CODA_OK || status == CODA_UNSUPPORTED || status == CODA_INVALID);
        coda_device_close(device);
    }
    setenv("CODA_CPU", "portable", 1);
    coda_device *device;
    assert_int_equal(coda_device_open("cpu", &device, NULL), CODA_OK);
    assert_non_null(strstr(coda_device_description(device), "portable"));
    coda_device_close(device);
    unsetenv("CODA_CPU");
}

static void a_tile_that_is_not_offered_is_refused(void **state)
{
    static const struct {
        int rows, columns;
    } tiles[] = {{7, 0}, {0, 100}, {8192, 0}, {0, 16}};
    struct product p;
    (void)state;
    product_create(&p, &layouts[0], CODA_BF16, 8, 8, 8, 0);
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++) {
        coda_kernel *kernel = NULL;
        coda_error error = {0};
        coda_options options = {.size = sizeof options, .tile_rows = tiles[i].rows, .tile_columns = tiles[i].columns};
        assert_int_equal(coda_kernel_create(devices.device[0], p.program, NULL, &options, &kernel, &error),
                         CODA_UNSUPPORTED);
        assert_non_null(strstr(error.message, "tile"));
        assert_null(kernel);
    }
    product_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_agrees_with_double_along_each_axis),
        cmocka_unit_test(every_layout_and_type_agrees_with_double_on_random_shapes),
        cmocka_unit_test(large_axes_agree_with_double),
        cmocka_unit_test(bits_depend_neither_on_threads_nor_on_the_tile),
        cmocka_unit_test(the_middle_of_a_product_does_not_depend_on_its_edges),
        cmocka_unit_test(bits_do_not_depend_on_how_far_rows_lie_apart),
        cmocka_unit_test(an_instruction_set_that_is_not_there_is_refused),
        cmocka_unit_test(a_tile_that_is_not_offered_is_refused),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
