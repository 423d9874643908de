/* Several sets of operands in one call: the bits of one set after the other, what is refused, and what a GPU is asked. */
#include "kit/standard.h"
#include "kit/stub_gpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_SETS = 11, MOST_OPERANDS = 8 };

struct sets {
    int count, operands;
    struct trial trial[MOST_SETS];
    coda_tensor tensor[MOST_SETS * MOST_OPERANDS];
};

/* Sets of different sizes, each with operands of its own. */
static void make_sets(struct sets *s, const char *program, int count)
{
    coda_error error = {0};
    memset(s, 0, sizeof *s);
    s->count = count;
    for (int i = 0; i < count; i++) {
        coda_dims dims = {3, {{"M", 5 + 40 * i}, {"N", 70 - 6 * i}, {"K", 33 + 7 * (i % 3)}}};
        struct layout layout = {i % 2 ? GUARD_END : GUARD_START, i};
        if (trial_new(&s->trial[i], standard_program(program), &dims, 90 + (uint64_t)i, layout, &error) != CODA_OK)
            fail_msg("%s", error.message);
        s->operands = s->trial[i].count;
        assert_true(s->operands <= MOST_OPERANDS);
        memcpy(s->tensor + i * s->operands, s->trial[i].tensor, (size_t)s->operands * sizeof *s->tensor);
    }
}

static void free_sets(struct sets *s)
{
    for (int i = 0; i < s->count; i++)
        trial_free(&s->trial[i]);
}

static void sets_give_the_bits_of_one_after_the_other(void **state)
{
    static const struct {
        const char *program;
        int sets;
    } rows[] = {{"gemm_wgrad", 3}, {"gemm", 1}, {"gemm_residual_rms", 2}, {"gemm_dgrad", MOST_SETS}};
    const struct devices *devices = *state;
    for (int d = 0; d < devices->count; d++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            struct sets s;
            struct bits alone[MOST_SETS];
            coda_error error = {0};
            coda_kernel *kernel = NULL;
            coda_options options = {.size = sizeof options, .sets = 4};
            make_sets(&s, rows[r].program, rows[r].sets);
            coda_status status = coda_kernel_create(devices->device[d], standard_program(rows[r].program), NULL,
                                                    &options, &kernel, &error);
            for (int i = 0; i < s.count && status == CODA_OK; i++) {
                trial_reset(&s.trial[i], POISON_BYTES);
                status = coda_kernel_launch(kernel, s.trial[i].tensor, s.operands, NULL, NULL, &error);
                take_bits(&s.trial[i], &alone[i]);
                trial_reset(&s.trial[i], POISON_NAN);
            }
            if (status == CODA_OK)
                status = coda_kernel_launch_sets(kernel, s.tensor, s.operands, s.count, NULL, NULL, &error);
            if (status != CODA_OK)
                fail_msg("%s on %s: %s", rows[r].program, devices->name[d], error.message);
            for (int i = 0; i < s.count; i++) {
                const char *differs = differing_out(&s.trial[i], &alone[i]);
                char text[256];
                if (differs)
                    fail_msg("%s on %s: %s of set %d differs", rows[r].program, devices->name[d], differs, i);
                if (!trial_untouched(&s.trial[i], text, sizeof text))
                    fail_msg("%s on %s, set %d: %s", rows[r].program, devices->name[d], i, text);
                free_bits(&alone[i]);
            }
            coda_kernel_free(kernel);
            free_sets(&s);
        }
}

static void sets_that_depend_on_each_other_or_are_wrong_are_refused(void **state)
{
    static const struct {
        const char *what, *message;
        int set, operand, from_set, from_operand; /* whose memory is taken; set -1: none */
        int sets, count;
    } rows[] = {
        {"nothing wrong", NULL, -1, 0, 0, 0, 3, 3},
        {"no sets", "0 sets of operands; expected at least 1", -1, 0, 0, 0, 0, 3},
        {"two operands", "2 operands in a set; expected 3", -1, 0, 0, 0, 3, 2},
        {"an out that another set reads", "operand dW of set 0 shares memory with operand X of set 2", 2, 1, 0, 2, 3,
         3},
        {"an out that another set writes", "operand dW of set 1 shares memory with operand dW of set 2", 2, 2, 1, 2, 3,
         3},
        {"an in that other sets read", NULL, 1, 0, 0, 0, 3, 3},
        {"set 1 without data", "set 1: ", 1, 0, -1, 0, 3, 3},
    };
    const struct devices *devices = *state;
    coda_kernel *kernel;
    assert_int_equal(coda_kernel_create(devices->device[0], standard_program("gemm_wgrad"), NULL, NULL, &kernel, NULL),
                     CODA_OK);
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        static float memory[9][32 * 32];
        coda_tensor tensor[9];
        coda_error error = {0};
        for (int i = 0; i < 9; i++) {
            tensor[i] = (coda_tensor){memory[i], i % 3 == 2 ? CODA_F32 : CODA_BF16, 2, {32, 32}, 0};
            for (int k = 0; k < 32 * 32; k++)
                memory[i][k] = 1;
        }
        if (rows[r].set >= 0)
            tensor[3 * rows[r].set + rows[r].operand].data =
                rows[r].from_set < 0 ? NULL : memory[3 * rows[r].from_set + rows[r].from_operand];
        coda_status status = coda_kernel_launch_sets(kernel, tensor, rows[r].count, rows[r].sets, NULL, NULL, &error);
        assert_int_equal(status, rows[r].message ? CODA_INVALID : CODA_OK);
        if (rows[r].message && !strstr(error.message, rows[r].message))
            fail_msg("%s: %s", rows[r].what, error.message);
        if (rows[r].message && memory[2][0] != 1)
            fail_msg("%s: something ran", rows[r].what);
    }
    coda_kernel_free(kernel);
    coda_options wrong = {.size = sizeof wrong, .sets = -1};
    coda_error error = {0};
    assert_int_equal(coda_kernel_create(devices->device[0], standard_program("gemm"), NULL, &wrong, &kernel, &error),
                     CODA_INVALID);
    assert_non_null(strstr(error.message, "sets is -1"));
}

/* ---------------------------------------------------------------- a GPU's side */

struct size {
    int64_t m, n, k;
};

/* Weight gradients in one pool of "device" memory that nothing reads: only addresses and sizes matter. */
static void place_products(coda_tensor *tensor, unsigned char *pool, const struct size *size, int count)
{
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        const struct size *s = &size[i];
        const int64_t shape[3][2] = {{s->k, s->m}, {s->k, s->n}, {s->m, s->n}};
        for (int o = 0; o < 3; o++) {
            coda_dtype dtype = o == 2 ? CODA_F32 : CODA_BF16;
            tensor[3 * i + o] = (coda_tensor){pool + at, dtype, 2, {shape[o][0], shape[o][1]}, shape[o][1]};
            at += ((size_t)(shape[o][0] * shape[o][1]) * coda_dtype_size(dtype) + 255) / 256 * 256;
        }
    }
}

struct gpu_subject {
    coda_device *device;
    coda_kernel *kernel;
    unsigned char *pool;
};

static const size_t pool_size = (size_t)1 << 32; /* addresses alone: never touched */

static void open_gpu(struct gpu_subject *s, int sets)
{
    coda_error error = {0};
    coda_options options = {.size = sizeof options, .sets = sets};
    s->device = stub_open();
    s->pool = (unsigned char *)((uintptr_t)1 << 40);
    stub_memory(s->pool, pool_size, MEMORY_IS_DEVICE, 0);
    if (coda_kernel_create(s->device, standard_program("gemm_wgrad"), NULL, &options, &s->kernel, &error) != CODA_OK)
        fail_msg("%s", error.message);
}

static void close_gpu(struct gpu_subject *s)
{
    coda_kernel_free(s->kernel);
    stub_close(s->device);
}

static void a_gpu_joins_sets_where_that_saves_waves(void **state)
{
    static const struct {
        const char *what;
        int option, count, launches;
        struct size size[MOST_SETS];
    } rows[] = {
        {"2.67 waves each, 8 together", 3, 3, 1, {{2048, 5632, 512}, {5632, 2048, 512}, {5632, 2048, 512}}},
        {"not asked for", 0, 3, 3, {{2048, 5632, 512}, {5632, 2048, 512}, {5632, 2048, 512}}},
        {"two at a time", 2, 3, 2, {{2048, 5632, 512}, {5632, 2048, 512}, {5632, 2048, 512}}},
        {"whole waves each", 2, 2, 2, {{256 * 66, 256, 16384}, {256, 256 * 66, 16384}}},
        {"a set alone", 2, 1, 1, {{2048, 5632, 512}}},
        {"a row that the copy engine cannot reach", 2, 2, 2, {{2048, 5632, 512}, {2044, 2048, 512}}},
        {"more than eight",
         8,
         10,
         2,
         {{256, 256, 64},
          {256, 256, 64},
          {256, 256, 64},
          {256, 256, 64},
          {256, 256, 64},
          {256, 256, 64},
          {256, 256, 64},
          {256, 256, 64},
          {256, 256, 64},
          {256, 256, 64}}},
    };
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct gpu_subject s;
        coda_tensor tensor[3 * MOST_SETS];
        coda_error error = {0};
        open_gpu(&s, rows[r].option);
        place_products(tensor, s.pool, rows[r].size, rows[r].count);
        for (int again = 0; again < 2; again++) {
            stub_reset();
            if (coda_kernel_launch_sets(s.kernel, tensor, 3, rows[r].count, NULL, NULL, &error) != CODA_OK)
                fail_msg("%s: %s", rows[r].what, error.message);
            if (stub_counts()->launches != rows[r].launches)
                fail_msg("%s: %d launches; expected %d", rows[r].what, stub_counts()->launches, rows[r].launches);
        }
        assert_int_equal(stub_counts()->maps, 0); /* the second time nothing is asked again */
        close_gpu(&s);
    }
}

static void a_joined_launch_tells_each_problem_its_tiles(void **state)
{
    static const struct size size[3] = {{304, 504, 128}, {1280, 248, 512}, {704, 256, 512}};
    struct gpu_subject s;
    coda_tensor tensor[9];
    (void)state;
    open_gpu(&s, 4);
    struct cuda_kernel *k = s.kernel->state;
    assert_non_null(k->joined);
    struct gpu *gpu = s.device->state;
    gpu->multiprocessors = 16;
    stub_copy_parameters(parameter_bytes(s.kernel->graph, &k->joined->variant));
    place_products(tensor, s.pool, size, 3);
    assert_int_equal(coda_kernel_launch_sets(s.kernel, tensor, 3, 3, NULL, NULL, NULL), CODA_OK);
    assert_int_equal(stub_counts()->launches, 1);
    assert_int_equal(stub_counts()->grid_x, 16);
    struct parameter_layout layout = parameter_layout(s.kernel->graph, k->joined->variant.map_count);
    /* The deeper ones first, in their order: 5 x 1, 3 x 1 and 2 x 2 tiles of 256 rows, of which the last 4 are halved. */
    static const int order[3] = {1, 2, 0}, row_tiles[3] = {5, 3, 2}, column_tiles[3] = {1, 1, 2};
    static const int32_t first[5] = {0, 5, 8, INT32_MAX, 12};
    const unsigned char *bytes = stub_counts()->parameters;
    assert_memory_equal(bytes + 4 * layout.total, first, sizeof first);
    for (int i = 0; i < 3; i++) {
        struct geometry geometry;
        struct device_tensor out;
        memcpy(&geometry, bytes + i * layout.total + layout.geometry, sizeof geometry);
        memcpy(&out, bytes + i * layout.total + layout.tensors + 2 * (int)sizeof out, sizeof out);
        assert_int_equal(geometry.row_tiles, row_tiles[i]);
        assert_int_equal(geometry.column_tiles, column_tiles[i]);
        assert_int_equal(geometry.whole, 8);
        assert_int_equal(out.data, (uint64_t)(uintptr_t)tensor[3 * order[i] + 2].data);
    }
    gpu->multiprocessors = 24; /* one wave of 12 */
    place_products(tensor, s.pool + 256, size, 3);
    assert_int_equal(coda_kernel_launch_sets(s.kernel, tensor, 3, 3, NULL, NULL, NULL), CODA_OK);
    assert_int_equal(stub_counts()->grid_x, 24);
    for (int i = 0; i < 3; i++) {
        struct geometry geometry;
        memcpy(&geometry, bytes + i * layout.total + layout.geometry, sizeof geometry);
        assert_int_equal(geometry.whole, 12);
    }
    close_gpu(&s);
}

static void only_kernels_that_round_alike_are_joined(void **state)
{
    static const struct {
        const char *program, *schedule;
        bool joined;
    } rows[] = {{"gemm", NULL, true},
                {"gemm_wgrad", NULL, true},
                {"gemm_wgrad", "portable", false},
                {"gemm_residual_rms", NULL, false},
                {"gemm_residual_rms", "direct", true},
                {"column_sum", NULL, false}};
    coda_device *device = stub_open();
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        coda_options options = {.size = sizeof options, .schedule = rows[r].schedule, .sets = 8};
        coda_error error = {0};
        coda_kernel *kernel;
        if (coda_kernel_create(device, standard_program(rows[r].program), NULL, &options, &kernel, &error) != CODA_OK)
            fail_msg("%s: %s", rows[r].program, error.message);
        const struct cuda_kernel *k = kernel->state;
        if ((k->joined != NULL) != rows[r].joined)
            fail_msg("%s %s is %sjoined", rows[r].program, rows[r].schedule ? rows[r].schedule : "",
                     k->joined ? "" : "not ");
        if (k->joined)
            assert_true(parameter_bytes(kernel->graph, &k->joined->variant) <= PARAMETER_BYTES);
        coda_kernel_free(kernel);
    }
    stub_close(device);
}

/* ---------------------------------------------------------------- a schedule's choice */

static void a_schedule_joins_the_gradients_that_save_waves(void **state)
{
    static const struct {
        const char *what, *joined; /* in the order of the schedule */
        int64_t width, ffn, tokens;
        int join;
    } rows[] = {
        {"8 waves instead of 9", "llama3_bwd_dWd llama3_bwd_dWg llama3_bwd_dWu ", 2048, 5632, 16384, 0},
        {"the same, saved values kept", "llama3_bwd_dWd llama3_bwd_dWg llama3_bwd_dWu ", 2048, 5632, 16384, 0},
        {"nothing asked", "", 2048, 5632, 16384, -1},
        {"31.5 waves, or three times 10.5", "", 4096, 11008, 16384, 0},
        {"sizes that come with the launch", "", 0, 0, 0, 0},
    };
    const coda_module *blocks;
    coda_device *device = stub_open();
    (void)state;
    assert_int_equal(coda_standard_blocks(&blocks, NULL), CODA_OK);
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        const int64_t width = rows[r].width;
        coda_dims dims = {3, {{"H", 128}, {"Q", 2048}, {"E", 2048}}};
        const coda_dims all = {8,
                               {{"M", rows[r].tokens},
                                {"A", width},
                                {"D", width},
                                {"F", rows[r].ffn},
                                {"Q", width},
                                {"E", width},
                                {"P", 8192},
                                {"H", 128}}};
        coda_schedule_options options = {
            .size = sizeof options, .backward = 1, .keep_saved = r % 2, .overwrite = r % 2, .join = rows[r].join};
        coda_schedule *schedule;
        coda_error error = {0};
        char joined[512] = "";
        if (coda_schedule_create(device, coda_module_find(blocks, "llama3"), width ? &all : &dims, &options, &schedule,
                                 &error) != CODA_OK)
            fail_msg("%s: %s", rows[r].what, error.message);
        for (int i = 0; i < coda_schedule_step_count(schedule); i++) {
            coda_step step;
            assert_int_equal(coda_schedule_step(schedule, i, &step), CODA_OK);
            if (step.list) {
                strcat(joined, coda_program_name(step.program));
                strcat(joined, " ");
            }
        }
        if (strcmp(joined, rows[r].joined) != 0)
            fail_msg("%s: %s joined; expected %s", rows[r].what, joined, rows[r].joined);
        coda_schedule_free(schedule);
    }
    stub_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(sets_give_the_bits_of_one_after_the_other, open_devices, close_devices),
        cmocka_unit_test_setup_teardown(sets_that_depend_on_each_other_or_are_wrong_are_refused, open_devices,
                                        close_devices),
        cmocka_unit_test(a_gpu_joins_sets_where_that_saves_waves),
        cmocka_unit_test(a_joined_launch_tells_each_problem_its_tiles),
        cmocka_unit_test(only_kernels_that_round_alike_are_joined),
        cmocka_unit_test(a_schedule_joins_the_gradients_that_save_waves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
