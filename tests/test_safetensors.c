/* The safetensors reader: what it accepts, and what it says about everything else. */
#include "kit/scratch.h"
#include "model/safetensors.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <signal.h>
#include <cmocka.h>

/* A file of `header` and `data` zero bytes. `claimed`: the length that it claims for the header, or -1 for the truth.
 */
static size_t build(char *bytes, const char *header, size_t data, long claimed)
{
    size_t length = strlen(header);
    uint64_t claim = claimed < 0 ? length : (uint64_t)claimed;
    for (int i = 0; i < 8; i++)
        bytes[i] = (char)(claim >> (8 * i));
    memcpy(bytes + 8, header, length);
    memset(bytes + 8 + length, 0, data);
    return 8 + length + data;
}

#define TENSOR(name, dtype, shape, begin, end)                                                                         \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" begin "," end "]}"

static const struct {
    const char *header;
    size_t data;
    long claimed;
    const char *says; /* part of the message; NULL: it is accepted */
} files[] = {
    {"{}", 0, -1, NULL},
    {"{}   ", 0, -1, NULL},
    {"{" TENSOR("a", "F32", "2,3", "0", "24") "}", 24, -1, NULL},
    {"{" TENSOR("a", "F32", "", "0", "4") "}", 4, -1, NULL},
    {"{" TENSOR("a", "F32", "0,3", "0", "0") "}", 0, -1, NULL},
    {"{\"__metadata__\":{\"x\":\"y\"}," TENSOR("a", "BF16", "2", "4", "8") "," TENSOR("b", "F16", "2", "0", "4") "}", 8,
     -1, NULL},
    {"{" TENSOR("\\u0061\\n", "U8", "1", "0", "1") "}", 1, -1, NULL},
    /* lengths */
    {"", 0, -1, "expected an object"},
    {"{}", 0, 3, "truncated"},
    {"{}", 0, 1L << 40, "truncated"},
    {"{}", 4, -1, "4 bytes of data"},
    {"{" TENSOR("a", "F32", "2", "0", "8") "}", 7, -1, "truncated"},
    {"{" TENSOR("a", "F32", "2", "0", "8") "}", 9, -1, "9 bytes of data"},
    /* types and shapes */
    {"{" TENSOR("a", "F33", "2", "0", "8") "}", 8, -1, "unknown dtype"},
    {"{" TENSOR("a", "F32", "3", "0", "8") "}", 8, -1, "needs 12 bytes"},
    {"{" TENSOR("a", "F32", "-1", "0", "8") "}", 8, -1, "dimensions"},
    {"{" TENSOR("a", "F32", "1.5", "0", "8") "}", 8, -1, "an integer"},
    {"{" TENSOR("a", "F32", "1,1,1,1,1,1,1,1,1", "0", "4") "}", 4, -1, "dimensions"},
    {"{" TENSOR("a", "F32", "140737488355328,140737488355328", "0", "8") "}", 8, -1, "too large"},
    {"{" TENSOR("a", "F32", "999999999999999999999", "0", "8") "}", 8, -1, "integer"},
    {"{" TENSOR("a", "F32", "\"2\"", "0", "8") "}", 8, -1, "expected a number"},
    /* places */
    {"{" TENSOR("a", "F32", "2", "8", "0") "}", 8, -1, "occupies"},
    {"{" TENSOR("a", "F32", "2", "-8", "0") "}", 8, -1, "occupies"},
    {"{" TENSOR("a", "F32", "2", "4", "12") "}", 12, -1, "begins at byte 4"},
    {"{" TENSOR("a", "F32", "2", "0", "8") "," TENSOR("b", "F32", "2", "4", "12") "}", 12, -1, "inside the tensor"},
    {"{" TENSOR("a", "F32", "2", "0", "8") "," TENSOR("b", "F32", "2", "0", "8") "}", 8, -1, "inside the tensor"},
    {"{" TENSOR("a", "F32", "1", "0", "4") "," TENSOR("a", "F32", "1", "4", "8") "}", 8, -1, "twice"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, -1, "two data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, -1, "two data_offsets"},
    /* keys */
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, -1, "must have"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, -1, "twice"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, -1, "no key of a tensor"},
    {"{\"__metadata__\":{\"x\":1}}", 0, -1, "expected a string"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, -1, "twice"},
    /* JSON */
    {"[]", 0, -1, "expected an object"},
    {"{\"a\"}", 0, -1, "expected `:`"},
    {"{\"a\":{}", 0, -1, "must have"},
    {"{\"a", 0, -1, "not closed"},
    {"{\"a\\x\":1}", 0, -1, "escape"},
    {"{\"a\\u0000\":1}", 0, -1, "escape"},
    {"{\"a\\ud800\":1}", 0, -1, "escape"},
    {"{} {}", 0, -1, "end of the file"},
    {"{,}", 0, -1, "expected a string"},
    {"nonsense, from another program", 0, -1, "expected an object"},
};

static void files_are_accepted_or_refused_with_the_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        struct safetensors file;
        coda_error error = {CODA_OK, ""};
        char *bytes = malloc(8 + strlen(files[i].header) + files[i].data); /* exact, for the sanitizers */
        assert_non_null(bytes);
        size_t length = build(bytes, files[i].header, files[i].data, files[i].claimed);
        coda_status status = safetensors_parse(&file, "f", bytes, length, (int64_t)length, &error);
        if (files[i].says ? status != CODA_INVALID || !strstr(error.message, files[i].says) : status != CODA_OK)
            fail_msg("file %zu: %s: %s", i, coda_status_name(status), error.message);
        if (status == CODA_OK)
            safetensors_close(&file);
        free(bytes);
    }
}

static void every_shorter_file_is_refused(void **state)
{
    (void)state;
    const char *header = "{\"__metadata__\":{\"k\":\"v\"}," TENSOR("a", "F32", "2", "0", "8") "}";
    char whole[512];
    size_t length = build(whole, header, 8, -1);
    for (size_t cut = 0; cut <= length; cut++) {
        struct safetensors file;
        coda_error error = {CODA_OK, ""};
        char *bytes = malloc(cut ? cut : 1);
        assert_non_null(bytes);
        memcpy(bytes, whole, cut);
        coda_status status = safetensors_parse(&file, "f", bytes, cut, (int64_t)cut, &error);
        assert_int_equal(status, cut == length ? CODA_OK : CODA_INVALID);
        if (status == CODA_OK)
            safetensors_close(&file);
        else
            assert_true(strlen(error.message) > 10);
        free(bytes);
    }
}

static void what_is_written_is_read_again(void **state)
{
    (void)state;
    char directory[SCRATCH_PATH], path[SCRATCH_PATH + 32];
    coda_error error;
    struct safetensors file;
    const float a[6] = {1, -2, 3.5f, 0x1p-30f, 1e30f, 0};
    const uint16_t b[2] = {0x3f80, 0xc000}; /* 1 and -2 */
    struct safetensors_tensor tensors[] = {{"first \"one\"", CODA_F32, 2, {2, 3}, a},
                                           {"second", CODA_BF16, 1, {2, 0}, b}};
    const struct safetensors_pair pairs[] = {{"key", "a\nvalue \\"}};
    scratch_new(directory);
    snprintf(path, sizeof path, "%s/x.safetensors", directory);
    assert_int_equal(safetensors_write(path, tensors, 2, pairs, 1, &error), CODA_OK);
    assert_int_equal(scratch_count(directory), 1);
    assert_int_equal(safetensors_open(&file, path, &error), CODA_OK);
    assert_int_equal(file.count, 2);
    assert_string_equal(safetensors_metadata(&file, "key"), "a\nvalue \\");
    assert_null(safetensors_metadata(&file, "other"));
    assert_null(safetensors_find(&file, "third"));
    float back[6];
    assert_int_equal(safetensors_read(&file, safetensors_find(&file, "first \"one\""), CODA_F32, back, &error),
                     CODA_OK);
    assert_memory_equal(back, a, sizeof a);
    assert_int_equal(safetensors_read(&file, safetensors_find(&file, "second"), CODA_F32, back, &error), CODA_OK);
    assert_true(back[0] == 1 && back[1] == -2);
    safetensors_close(&file);
    scratch_free(directory);
}

static void a_full_disk_leaves_the_old_file(void **state)
{
    (void)state;
    char directory[SCRATCH_PATH], path[SCRATCH_PATH];
    coda_error error;
    size_t length;
    static float a[4096];
    struct safetensors_tensor tensor = {"a", CODA_F32, 1, {4096, 0}, a};
    struct rlimit before, small;
    scratch_new(directory);
    scratch_write(directory, "x", "old", 3, path);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 5000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    coda_status status = safetensors_write(path, &tensor, 1, NULL, 0, &error);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(status, CODA_IO);
    assert_non_null(strstr(error.message, "cannot write"));
    char *old = scratch_read(path, &length);
    assert_string_equal(old, "old");
    assert_int_equal(scratch_count(directory), 1);
    free(old);
    scratch_free(directory);
}

static void missing_files_and_foreign_types_are_named(void **state)
{
    (void)state;
    char directory[SCRATCH_PATH], path[SCRATCH_PATH], bytes[256];
    coda_error error;
    struct safetensors file;
    float out[2];
    scratch_new(directory);
    assert_int_equal(safetensors_open(&file, directory, &error), CODA_IO);
    assert_int_equal(safetensors_open(&file, "/nowhere/x", &error), CODA_IO);
    assert_non_null(strstr(error.message, "/nowhere/x"));
    size_t length = build(bytes, "{" TENSOR("a", "I64", "1", "0", "8") "}", 8, -1);
    scratch_write(directory, "x", bytes, length, path);
    assert_int_equal(safetensors_open(&file, path, &error), CODA_OK);
    assert_int_equal(safetensors_read(&file, &file.entry[0], CODA_F32, out, &error), CODA_UNSUPPORTED);
    assert_non_null(strstr(error.message, "I64"));
    safetensors_close(&file);
    scratch_free(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_accepted_or_refused_with_the_reason),
        cmocka_unit_test(every_shorter_file_is_refused),
        cmocka_unit_test(what_is_written_is_read_again),
        cmocka_unit_test(a_full_disk_leaves_the_old_file),
        cmocka_unit_test(missing_files_and_foreign_types_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
