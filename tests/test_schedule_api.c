/* What a schedule says of itself, and what it refuses. */
#include "kit/scheduled.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void values_say_what_they_are(void **state)
{
    static const struct {
        const char *name, *of, *dim[2];
        coda_value_kind kind;
        int phases, accumulated;
    } expected_values[] = {
        {"x", NULL, {"M", "D"}, CODA_INPUT, CODA_FORWARD, 0},
        {"y", NULL, {"M", "A"}, CODA_INPUT, CODA_FORWARD | CODA_BACKWARD, 0},
        {"QKV", NULL, {"M", "N"}, CODA_RESULT, CODA_FORWARD | CODA_BACKWARD, 0},
        {"dX", "X", {"M", "D"}, CODA_INPUT, CODA_BACKWARD, 0},
        {"dx", "x", {"M", "D"}, CODA_RESULT, CODA_BACKWARD, 0},
        {"dWo", "Wo", {"D", "A"}, CODA_RESULT, CODA_BACKWARD, 1},
        {"dg1", "g1", {"D", ""}, CODA_RESULT, CODA_BACKWARD, 1},
        {"dWq_Wk_Wv", "Wq,Wk,Wv", {"N", "D"}, CODA_RESULT, CODA_BACKWARD, 1},
        {"G", NULL, {"M", "F"}, CODA_SAVED, CODA_FORWARD | CODA_BACKWARD, 0},
        {"S", NULL, {"M", "D/128"}, CODA_SCRATCH, CODA_FORWARD, 0},
        {"dG", NULL, {"M", "F"}, CODA_SCRATCH, CODA_BACKWARD, 0},
    };
    (void)state;
    struct block_trial t;
    struct running r;
    coda_schedule_options options = with_backward();
    open_trial(&t, "cpu", "llama3", CODA_BF16, 20, 1);
    open_running(&r, &t, &options);
    for (size_t i = 0; i < sizeof expected_values / sizeof *expected_values; i++) {
        coda_value value;
        int index = coda_schedule_find(r.schedule, expected_values[i].name);
        assert_int_equal(coda_schedule_value(r.schedule, index, &value), CODA_OK);
        assert_int_equal(value.kind, expected_values[i].kind);
        assert_int_equal(value.phases, expected_values[i].phases);
        assert_int_equal(value.accumulated, expected_values[i].accumulated);
        for (int d = 0; d < 2; d++)
            assert_string_equal(value.dim[d], expected_values[i].dim[d]);
        if (expected_values[i].of == NULL)
            assert_null(value.of);
        else
            assert_string_equal(value.of, expected_values[i].of);
        assert_int_equal(index < r.count, value.kind == CODA_INPUT || value.kind == CODA_RESULT);
    }
    coda_value value;
    assert_int_equal(coda_schedule_value(r.schedule, -1, &value), CODA_INVALID);
    assert_int_equal(coda_schedule_value(r.schedule, coda_schedule_value_count(r.schedule), &value), CODA_INVALID);
    assert_int_equal(coda_schedule_find(r.schedule, "nothing"), -1);
    assert_string_equal(coda_schedule_parameter(r.schedule, 0, NULL), "eps");
    assert_null(coda_schedule_parameter(r.schedule, 1, NULL));
    close_running(&r);
    close_trial(&t);
}

static void steps_come_in_order(void **state)
{
    (void)state;
    struct block_trial t;
    struct running r;
    coda_schedule_options options = with_backward();
    int sums = 0, phase = CODA_FORWARD, programs = 0;
    open_trial(&t, "cpu", "llama3", CODA_BF16, 20, 1);
    open_running(&r, &t, &options);
    for (int i = 0; i < coda_schedule_step_count(r.schedule); i++) {
        coda_step step;
        assert_int_equal(coda_schedule_step(r.schedule, i, &step), CODA_OK);
        assert_true(step.phase >= phase);
        phase = step.phase;
        bool sum = strcmp(coda_program_name(step.program), "column_sum") == 0;
        sums += sum;
        if (!sum)
            assert_string_equal(coda_program_name(step.program),
                                coda_program_name(coda_module_program(t.programs, programs++)));
        assert_int_equal(step.chunked, 0);
        for (int o = 0; o < coda_program_operand_count(step.program); o++) {
            coda_operand info;
            coda_value value;
            assert_int_equal(coda_program_operand(step.program, o, &info), CODA_OK);
            assert_int_equal(coda_schedule_value(r.schedule, step.value[o], &value), CODA_OK);
            assert_int_equal(value.rank, info.rank);
            assert_int_equal(value.dtype, info.dtype);
            if (!sum)
                assert_string_equal(value.name, info.name);
        }
    }
    assert_int_equal(sums, 2);
    assert_int_equal(programs, coda_module_size(t.programs));
    launch(&r, CODA_FORWARD);
    launch(&r, CODA_BACKWARD);
    assert_true(coda_schedule_bytes_moved(r.schedule) > 0);
    close_running(&r);
    close_trial(&t);
}

/* What `coda rewrite --dims` says of the buffers is what the schedule asks for. */
static void the_report_tells_the_bytes_of_the_schedule(void **state)
{
    static const char *const names[] = {"llama3", "gpt2", "qwen3"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct block_trial t;
        struct running r;
        coda_error error;
        char expected[128], *report = NULL;
        coda_module *module;
        coda_schedule_options options = with_backward();
        open_trial(&t, "cpu", names[i], CODA_BF16, 300, 1);
        open_running(&r, &t, &options);
        coda_rewrite_options rewriting = {.backward = 1, .allow_passes = 1, .dims = &t.dims};
        check(coda_rewrite(t.block, &rewriting, &module, &report, &error), &error);
        snprintf(expected, sizeof expected, ", %.3f MB kept for the backward, %.3f MB scratch",
                 (double)r.saved_bytes / 1e6, (double)r.scratch_bytes / 1e6);
        if (strstr(report, expected) == NULL)
            fail_msg("%s: the report does not say \"%s\":\n%s", names[i], expected, report);
        coda_free(report);
        coda_module_free(module);
        close_running(&r);
        close_trial(&t);
    }
}

static void kept_values_can_be_looked_at(void **state)
{
    static const char *const names[] = {"X1", "G", "U", "R"};
    (void)state;
    struct block_trial t;
    struct running r;
    coda_error error;
    coda_tensor found;
    coda_schedule_options options = with_backward();
    open_trial(&t, "cpu", "llama3", CODA_BF16, 70, 1);
    open_running(&r, &t, &options);
    launch(&r, CODA_FORWARD);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int index = coda_schedule_find(r.schedule, names[i]);
        check(coda_schedule_locate(r.schedule, index, &t.dims, r.saved, r.scratch, &found, &error), &error);
        assert_memory_equal(found.data, find(&t.values, names[i])->data, bytes_of(&found));
    }
    int x = coda_schedule_find(r.schedule, "x"), kept = coda_schedule_find(r.schedule, "G");
    assert_int_equal(coda_schedule_locate(r.schedule, x, &t.dims, r.saved, r.scratch, &found, &error), CODA_INVALID);
    assert_int_equal(coda_schedule_locate(r.schedule, kept, &t.dims, NULL, r.scratch, &found, &error), CODA_INVALID);
    close_running(&r);
    close_trial(&t);
}

/* A row of logits has 260 bytes; what has all rows at any chunk is more, so most bounds here are the logits' alone. */
static void chunks_are_as_few_as_memory_allows_and_of_equal_size(void **state)
{
    static const struct {
        int64_t rows, bytes, expected;
    } rows[] = {{640, 0, 640},
                {640, 260 * 640, 640},
                {640, 260 * 639, 320},
                {640, 260 * 200, 192},
                {640, 1, 64},
                {1, 0, 64},
                {0, 260 * 1000, 960},
                {0, 260 * 3000, 2816},
                {640, 1273088, 640}, /* all memory, in one chunk */
                {640, 1273087, 320},
                {640, 1187328, 320}, /* in two */
                {640, 1187327, 640}, /* twice as many chunks do not keep it */
                {16384, 31000000, 8192},
                {16384, 260 * 16384, 16384},
                {16384, 260 * 9000, 8192},
                {16000, 260 * 9000, 8192}};
    (void)state;
    const coda_module *blocks_module;
    coda_device *device;
    coda_error error;
    check(coda_standard_blocks(&blocks_module, &error), &error);
    check(coda_device_open("cpu", &device, &error), &error);
    const coda_program *block = coda_module_find(blocks_module, "llama3_end");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        coda_dims dims = dims_of(block, rows[i].rows);
        coda_schedule_options options = with_backward();
        coda_schedule *schedule = NULL;
        options.wide_axis = "V";
        options.wide_bytes = rows[i].bytes;
        check(coda_schedule_create(device, block, &dims, &options, &schedule, &error), &error);
        if (coda_schedule_chunk_rows(schedule) != rows[i].expected)
            fail_msg("row %zu: %lld rows at a time", i, (long long)coda_schedule_chunk_rows(schedule));
        size_t saved = 0, scratch = 0;
        if (rows[i].bytes >= 1187328 && rows[i].rows == 640) {
            check(coda_schedule_memory(schedule, &dims, &saved, &scratch, &error), &error);
            assert_int_equal(saved + scratch, rows[i].expected == 640 ? 1273088 : 1187328);
        }
        coda_schedule_free(schedule);
    }
    coda_dims unknown = {0};
    coda_schedule_options options = with_backward();
    coda_schedule *schedule = NULL;
    options.wide_axis = "V";
    for (int i = 0; i < dims_of(block, 0).count; i++)
        if (strcmp(dims_of(block, 0).item[i].axis, "V") != 0)
            unknown.item[unknown.count++] = dims_of(block, 0).item[i];
    assert_int_equal(coda_schedule_create(device, block, &unknown, &options, &schedule, &error), CODA_INVALID);
    assert_non_null(strstr(error.message, "size of axis V"));
    assert_null(schedule);
    coda_device_close(device);
}

/* ---------------------------------------------------------------- refusals */

static void wrong_options_are_refused(void **state)
{
    static const struct {
        coda_schedule_options options;
        const char *block, *says;
    } rows[] = {
        {{.size = 1}, "llama3", "coda_schedule_options.size is 1"},
        {{.size = sizeof(coda_schedule_options), .consumes = "dX"}, "llama3", "`dX` is no input"},
        {{.size = sizeof(coda_schedule_options), .consumes = "X"}, "llama3", "`X` is no input"},
        {{.size = sizeof(coda_schedule_options), .wide_axis = "W", .chunk_rows = 64}, "llama3", "has no axis W"},
        {{.size = sizeof(coda_schedule_options), .wide_axis = "V", .row_axis = "R", .chunk_rows = 64},
         "llama3_end",
         "has no axis R"},
        {{.size = sizeof(coda_schedule_options), .wide_axis = "V", .chunk_rows = 100}, "llama3_end", "multiple of 64"},
        {{.size = sizeof(coda_schedule_options), .wide_axis = "V", .wide_bytes = -1}, "llama3_end", "wide_bytes is -1"},
        {{.size = sizeof(coda_schedule_options), .wide_axis = "P"}, "llama3", "no value has the axes"},
        {{.size = sizeof(coda_schedule_options), .wide_axis = "P", .chunk_rows = 64},
         "llama3",
         "no value has the axes"},
        {{.size = sizeof(coda_schedule_options), .wide_axis = "F", .row_axis = "D", .chunk_rows = 64},
         "llama3",
         "cannot run for some rows of D"},
        {{.size = sizeof(coda_schedule_options)}, "gemma", "--allow-passes"},
    };
    (void)state;
    const coda_module *blocks_module;
    coda_device *device;
    coda_error error;
    check(coda_standard_blocks(&blocks_module, &error), &error);
    check(coda_device_open("cpu", &device, &error), &error);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const coda_program *block = coda_module_find(blocks_module, rows[i].block);
        coda_dims dims = dims_of(block, 0);
        coda_schedule *schedule = NULL;
        coda_status status = coda_schedule_create(device, block, &dims, &rows[i].options, &schedule, &error);
        if (status == CODA_OK || strstr(error.message, rows[i].says) == NULL)
            fail_msg("row %zu: %s: %s", i, coda_status_name(status), status == CODA_OK ? "" : error.message);
        assert_null(schedule);
    }
    const coda_program *block = coda_module_find(blocks_module, "llama3");
    coda_schedule *schedule = NULL;
    assert_int_equal(coda_schedule_create(device, block, NULL, NULL, &schedule, &error), CODA_INVALID);
    assert_non_null(strstr(error.message, "must be given")); /* a head's size */
    assert_int_equal(coda_schedule_create(NULL, block, NULL, NULL, &schedule, &error), CODA_INVALID);
    coda_device_close(device);
}

enum fault {
    NO_DATA,
    OTHER_TYPE,
    OTHER_RANK,
    OTHER_ROWS,
    NARROW_STRIDE,
    SHARED, /* with the operand named second */
    IN_SCRATCH,
    COUNT,
    NO_SAVED,
    CROOKED_SCRATCH,
    ONE_MEMORY,
    PHASES,
};

static const struct {
    enum fault fault;
    int phase;
    const char *name, *other, *says;
} faults[] = {
    {NO_DATA, CODA_FORWARD, "Wu", NULL, "(Wu) has no data"},
    {NO_DATA, CODA_BACKWARD, "QKV", NULL, "(QKV) has no data"},
    {NO_DATA, CODA_BACKWARD, "dx", NULL, "(dx) has no data"},
    {OTHER_TYPE, CODA_FORWARD, "x", NULL, "(x) is f32; expected bf16"},
    {OTHER_RANK, CODA_FORWARD, "g0", NULL, "(g0) has rank 2; expected 1"},
    {OTHER_ROWS, CODA_FORWARD, "x", NULL, "axis M is 70"},
    {OTHER_ROWS, CODA_BACKWARD, "dWo", NULL, "axis D is 144"},
    {NARROW_STRIDE, CODA_FORWARD, "x", NULL, "row stride 3"},
    {SHARED, CODA_FORWARD, "QKV", "Wd", "share memory"},
    {SHARED, CODA_BACKWARD, "y", "dx", "share memory"},
    {SHARED, CODA_BACKWARD, "dWg", "dWu", "share memory"},
    {IN_SCRATCH, CODA_FORWARD, "x", NULL, "lies in the scratch memory"},
    {COUNT, CODA_FORWARD, NULL, NULL, "expected"},
    {NO_SAVED, CODA_FORWARD, NULL, NULL, "the saved memory is NULL"},
    {CROOKED_SCRATCH, CODA_FORWARD, NULL, NULL, "a multiple of 256"},
    {ONE_MEMORY, CODA_FORWARD, NULL, NULL, "overlap"},
    {PHASES, 0, NULL, NULL, "phases 0"},
    {PHASES, 4, NULL, NULL, "phases 4"},
};
static void make_fault(struct running *r, enum fault fault, const char *name, const char *other, int *count,
                       void **saved, void **scratch)
{
    coda_tensor *o = name ? operand(r, name) : NULL;
    switch (fault) {
    case NO_DATA:
        o->data = NULL;
        break;
    case OTHER_TYPE:
        o->dtype = CODA_F32;
        break;
    case OTHER_RANK:
        o->rank = 2;
        break;
    case OTHER_ROWS:
        o->shape[0]--;
        break;
    case NARROW_STRIDE:
        o->stride = 3;
        break;
    case SHARED:
        o->data = operand(r, other)->data;
        break;
    case IN_SCRATCH:
        o->data = *scratch;
        break;
    case COUNT:
        --*count;
        break;
    case NO_SAVED:
        *saved = NULL;
        break;
    case CROOKED_SCRATCH:
        *scratch = (char *)*scratch + 4;
        break;
    case ONE_MEMORY:
        *saved = *scratch;
        break;
    case PHASES:
        break;
    }
}

static void a_wrong_launch_is_refused_and_writes_nothing(void **state)
{
    (void)state;
    struct block_trial t;
    struct running r;
    coda_error error;
    coda_schedule_options options = with_backward();
    open_trial(&t, "cpu", "llama3", CODA_BF16, 70, 1);
    open_running(&r, &t, &options);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        coda_tensor kept[MAX_VALUES];
        int count = r.count;
        void *saved = r.saved, *scratch = r.scratch;
        memcpy(kept, r.operand, sizeof kept);
        memset(r.scratch, 0xFF, r.scratch_bytes);
        make_fault(&r, faults[i].fault, faults[i].name, faults[i].other, &count, &saved, &scratch);
        coda_status status =
            coda_schedule_launch(r.schedule, faults[i].phase, r.operand, count, saved, scratch, NULL, NULL, &error);
        if (status != CODA_INVALID || strstr(error.message, faults[i].says) == NULL)
            fail_msg("fault %zu: %s: %s", i, coda_status_name(status), status == CODA_OK ? "" : error.message);
        for (size_t b = 0; b < r.scratch_bytes; b++)
            assert_int_equal(((unsigned char *)r.scratch)[b], 0xFF);
        memcpy(r.operand, kept, sizeof kept);
    }
    close_running(&r);
    options.together = 1;
    open_running(&r, &t, &options);
    assert_int_equal(
        coda_schedule_launch(r.schedule, CODA_BACKWARD, r.operand, r.count, NULL, r.scratch, NULL, NULL, &error),
        CODA_INVALID);
    assert_non_null(strstr(error.message, "in one launch"));
    close_running(&r);
    close_trial(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_say_what_they_are),
        cmocka_unit_test(steps_come_in_order),
        cmocka_unit_test(the_report_tells_the_bytes_of_the_schedule),
        cmocka_unit_test(kept_values_can_be_looked_at),
        cmocka_unit_test(chunks_are_as_few_as_memory_allows_and_of_equal_size),
        cmocka_unit_test(wrong_options_are_refused),
        cmocka_unit_test(a_wrong_launch_is_refused_and_writes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
