/* Training data: formats, samples, and everything that can be wrong with a file. */
#include "kit/scratch.h"
#include "model/data.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static const struct {
    const char *name, *bytes;
    size_t length;
    coda_data_format format;
    int64_t vocabulary, sequence, tokens; /* tokens: -1: refused */
    const char *says;
} files[] = {
    {"a.txt", "hello", 5, CODA_DATA_AUTO, 256, 4, 5, NULL},
    {"a.txt", "hello\377", 6, CODA_DATA_AUTO, 256, 4, 6, NULL},
    {"a.bin", "\1\0\2\0\3\0", 6, CODA_DATA_AUTO, 4, 2, 3, NULL},
    {"a.bin", "\1\0\2\0\3\0", 6, CODA_DATA_BYTES, 4, 2, 6, NULL},
    {"a.dat", "\1\0\0\0\2\0\1\0", 8, CODA_DATA_U32, 65539, 1, 2, NULL},
    {"a.txt", "", 0, CODA_DATA_AUTO, 256, 1, -1, "has 0 tokens, but one sample takes 2"},
    {"a.txt", "x", 1, CODA_DATA_AUTO, 256, 1, -1, "has 1 tokens"},
    {"a.txt", "hello", 5, CODA_DATA_AUTO, 256, 5, -1, "one sample takes 6"},
    {"a.txt", "hello", 5, CODA_DATA_AUTO, 108, 1, -1, "token 2 is 108, but the vocabulary has 108"},
    {"a.bin", "\1\0\2", 3, CODA_DATA_AUTO, 256, 1, -1, "3 bytes, no multiple of the 2"},
    {"a.bin", "\1\0\2\0\3\0", 6, CODA_DATA_U32, 256, 1, -1, "no multiple of the 4"},
    {"a.bin", "\1\0\2\1", 4, CODA_DATA_AUTO, 256, 1, -1, "token 1 is 258"},
    {"a.bin", "\0\0\0\377\0\0\0\0", 8, CODA_DATA_U32, 256, 1, -1, "token 0 is 4278190080"},
};

static void files_are_read_or_refused_with_the_reason(void **state)
{
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char path[SCRATCH_PATH];
        struct data data;
        coda_error error = {CODA_OK, ""};
        scratch_write(*state, files[i].name, files[i].bytes, files[i].length, path);
        coda_status status = data_open(&data, path, files[i].format, files[i].vocabulary, files[i].sequence, &error);
        if (files[i].says ? status != CODA_INVALID || !strstr(error.message, files[i].says) : status != CODA_OK)
            fail_msg("file %zu: %s: %s", i, coda_status_name(status), error.message);
        if (status == CODA_OK) {
            assert_int_equal(data.tokens, files[i].tokens);
            data_close(&data);
        }
        unlink(path);
    }
}

static void missing_files_and_directories_without_shards_are_refused(void **state)
{
    struct data data;
    coda_error error;
    char directory[SCRATCH_PATH + 16];
    assert_int_equal(data_open(&data, "/nowhere/x", CODA_DATA_AUTO, 256, 1, &error), CODA_IO);
    assert_non_null(strstr(error.message, "/nowhere/x"));
    snprintf(directory, sizeof directory, "%s/empty", (char *)*state);
    assert_int_equal(mkdir(directory, 0777), 0);
    assert_int_equal(data_open(&data, directory, CODA_DATA_AUTO, 256, 1, &error), CODA_INVALID);
    assert_non_null(strstr(error.message, "0 files *.bin"));
    assert_int_equal(data_open(&data, "/dev/zero", CODA_DATA_AUTO, 256, 1, &error), CODA_INVALID);
    assert_non_null(strstr(error.message, "no regular file"));
}

static void shards_read_as_one_text_in_order_of_name(void **state)
{
    char directory[SCRATCH_PATH], path[SCRATCH_PATH];
    struct data data;
    coda_error error;
    snprintf(directory, sizeof directory, "%.400s/shards", (char *)*state);
    assert_int_equal(mkdir(directory, 0777), 0);
    scratch_write(directory, "b.bin", "\3\0\4\0", 4, path);
    scratch_write(directory, "a.bin", "\0\0\1\0\2\0", 6, path);
    scratch_write(directory, "c.bin", "", 0, path);
    scratch_write(directory, "d.bin", "\5\0", 2, path);
    scratch_write(directory, "readme.txt", "x", 1, path);
    assert_int_equal(data_open(&data, directory, CODA_DATA_AUTO, 6, 5, &error), CODA_OK);
    assert_int_equal(data.tokens, 6);
    int32_t tokens[5], targets[5];
    assert_int_equal(data_sample(&data, 1, 0, 5, tokens, targets, &error), CODA_OK);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(tokens[i], i);
        assert_int_equal(targets[i], i + 1);
    }
    data_close(&data);
}

enum { TOKENS = 1000, LENGTH = 32 };

static void open_counting(void **state, struct data *data)
{
    char path[SCRATCH_PATH];
    uint16_t tokens[TOKENS];
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = (uint16_t)i;
    scratch_write(*state, "count.bin", tokens, sizeof tokens, path);
    assert_int_equal(data_open(data, path, CODA_DATA_AUTO, TOKENS, LENGTH, NULL), CODA_OK);
}

/* Token i is i, so a sample tells where it came from. */
static void an_epoch_shows_every_window_once(void **state)
{
    struct data data;
    open_counting(state, &data);
    int64_t windows = (TOKENS - LENGTH) / LENGTH;
    int32_t tokens[LENGTH], targets[LENGTH], first[64], other_epoch = 0;
    for (int epoch = 0; epoch < 3; epoch++) {
        bool seen[TOKENS] = {false};
        for (int64_t i = 0; i < windows; i++) {
            assert_int_equal(data_sample(&data, 9, epoch * windows + i, LENGTH, tokens, targets, NULL), CODA_OK);
            for (int j = 0; j < LENGTH; j++) {
                assert_int_equal(tokens[j], tokens[0] + j);
                assert_int_equal(targets[j], tokens[j] + 1);
                assert_false(seen[tokens[j]]);
                seen[tokens[j]] = true;
            }
            if (epoch == 0)
                first[i] = tokens[0];
            else
                other_epoch += tokens[0] != first[i];
        }
    }
    assert_true(other_epoch > windows); /* another order, another shift */
    data_close(&data);
}

static void a_sample_depends_on_seed_and_number_alone(void **state)
{
    struct data data;
    open_counting(state, &data);
    int32_t tokens[2][LENGTH], targets[LENGTH];
    int differing = 0;
    for (int64_t i = 50; i >= 0; i--) {
        data_sample(&data, 9, i, LENGTH, tokens[0], targets, NULL);
        data_sample(&data, 9, 3 * i + 7, LENGTH, tokens[1], targets, NULL);
        data_sample(&data, 9, i, LENGTH, tokens[1], targets, NULL);
        assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
        data_sample(&data, 10, i, LENGTH, tokens[1], targets, NULL);
        differing += tokens[0][0] != tokens[1][0];
    }
    assert_true(differing > 40);
    data_close(&data);
}

static void a_file_that_shrinks_is_noticed(void **state)
{
    struct data data;
    coda_error error;
    char path[SCRATCH_PATH + 16];
    int32_t tokens[LENGTH], targets[LENGTH];
    open_counting(state, &data);
    snprintf(path, sizeof path, "%s/count.bin", (char *)*state);
    assert_int_equal(truncate(path, 10), 0);
    assert_int_equal(data_sample(&data, 1, 0, LENGTH, tokens, targets, &error), CODA_IO);
    assert_non_null(strstr(error.message, "shorter"));
    data_close(&data);
}

static int setup(void **state)
{
    char *directory = malloc(SCRATCH_PATH);
    if (!directory)
        return -1;
    scratch_new(directory);
    *state = directory;
    return 0;
}

static int teardown(void **state)
{
    scratch_free(*state);
    free(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_read_or_refused_with_the_reason),
        cmocka_unit_test(missing_files_and_directories_without_shards_are_refused),
        cmocka_unit_test(shards_read_as_one_text_in_order_of_name),
        cmocka_unit_test(an_epoch_shows_every_window_once),
        cmocka_unit_test(a_sample_depends_on_seed_and_number_alone),
        cmocka_unit_test(a_file_that_shrinks_is_noticed),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
