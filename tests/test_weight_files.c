/* Checkpoints in several files, as model.safetensors.index.json lists them. */
#include "coda.h"
#include "kit/llama.h"
#include "kit/scratch.h"
#include "model/safetensors.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { PARTS = 3, INDEX_ROOM = 1 << 16 };

enum fault {
    NONE,
    OLD_FREQUENCIES, /* a tensor that is computed here */
    NO_PART,
    CUT_PART,
    OTHER_PART, /* the index names the wrong file */
    OUTSIDE,    /* a file of another directory */
    TWICE,
    FOREIGN,
    UNNAMED, /* a weight in no file */
    NO_MAP,
    NO_JSON,
    HUGE_NAME,
};

static const struct {
    enum fault fault;
    coda_status status;
    const char *says;
} rows[] = {
    {NONE, CODA_OK, NULL},
    {OLD_FREQUENCIES, CODA_OK, NULL},
    {NO_PART, CODA_IO, "part-1.safetensors"},
    {CUT_PART, CODA_INVALID, "part-1.safetensors"},
    {OTHER_PART, CODA_INVALID, "is not in '"},
    {OUTSIDE, CODA_INVALID, "no safetensors file beside the index"},
    {TWICE, CODA_INVALID, "is in both '"},
    {FOREIGN, CODA_INVALID, "`model.extra`, which no Llama"},
    {UNNAMED, CODA_INVALID, "no tensor `model.norm.weight`"},
    {NO_MAP, CODA_INVALID, "`weight_map` is missing or empty"},
    {NO_JSON, CODA_INVALID, "expected an object"},
    {HUGE_NAME, CODA_INVALID, "index.json"},
};

static struct safetensors_tensor tensor_of(const coda_llama *llama, int index)
{
    const char *name;
    coda_tensor t;
    struct safetensors_tensor tensor = {.name = ""};
    coda_llama_tensor(llama, index, &name, &t);
    snprintf(tensor.name, sizeof tensor.name, "%s", name);
    tensor.dtype = t.dtype;
    tensor.rank = t.rank;
    memcpy(tensor.shape, t.shape, sizeof tensor.shape);
    tensor.data = t.data;
    return tensor;
}

static void name_in_index(char *text, const char *tensor, const char *file)
{
    size_t used = strlen(text);
    int more = snprintf(text + used, INDEX_ROOM - used, "%s\n    \"%s\": \"%s\"", text[used - 1] == '{' ? "" : ",",
                        tensor, file);
    assert_true(more > 0 && used + (size_t)more < INDEX_ROOM - 8);
}

/* Tensor i goes to part i % PARTS. */
static void write_part(const coda_llama *llama, const char *directory, int part, enum fault fault, char *index)
{
    static const float zeros[16];
    struct safetensors_tensor *tensors = calloc(64, sizeof *tensors);
    char file[64], path[SCRATCH_PATH + 128];
    int count = 0;
    assert_non_null(tensors);
    snprintf(file, sizeof file, "part-%d.safetensors", part);
    for (int i = 0; i < coda_llama_tensor_count(llama); i++) {
        struct safetensors_tensor tensor = tensor_of(llama, i);
        bool again = fault == TWICE && part == 1 && i == 0;
        if (i % PARTS != part && !again)
            continue;
        if (fault == UNNAMED && strcmp(tensor.name, "model.norm.weight") == 0)
            continue;
        tensors[count++] = tensor;
        if (!again)
            name_in_index(index, tensor.name, fault == OTHER_PART && i == 1 ? "part-0.safetensors" : file);
    }
    const char *extra = fault == FOREIGN           ? "model.extra"
                        : fault == OLD_FREQUENCIES ? "model.layers.0.self_attn.rotary_emb.inv_freq"
                                                   : NULL;
    if (extra && part == 2) {
        tensors[count] = (struct safetensors_tensor){"", CODA_F32, 1, {16, 0}, zeros};
        snprintf(tensors[count++].name, sizeof tensors->name, "%s", extra);
        name_in_index(index, extra, file);
    }
    snprintf(path, sizeof path, "%s/%s", directory, file);
    assert_int_equal(safetensors_write(path, tensors, count, NULL, 0, NULL), CODA_OK);
    if (part == 1 && fault == NO_PART)
        unlink(path);
    if (part == 1 && fault == CUT_PART)
        assert_int_equal(truncate(path, 1000), 0);
    free(tensors);
}

static void write_parts(const coda_llama *llama, const char *directory, enum fault fault)
{
    char path[SCRATCH_PATH + 128], *index = calloc(1, INDEX_ROOM);
    assert_non_null(index);
    assert_int_equal(coda_llama_save(llama, directory, NULL), CODA_OK);
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    unlink(path);
    snprintf(index, INDEX_ROOM, "{\"metadata\": {\"total_size\": 1}, \"%s\": {",
             fault == NO_MAP ? "a_map" : "weight_map");
    for (int part = 0; part < PARTS; part++)
        write_part(llama, directory, part, fault, index);
    if (fault == OUTSIDE)
        name_in_index(index, "model.norm.weight", "../part-0.safetensors");
    if (fault == HUGE_NAME) {
        char huge[2000];
        memset(huge, 'a', sizeof huge - 1);
        huge[sizeof huge - 1] = 0;
        name_in_index(index, huge, "part-0.safetensors");
    }
    strcat(index, "}}");
    if (fault == NO_JSON)
        strcpy(index, "weights");
    scratch_write(directory, "model.safetensors.index.json", index, strlen(index), path);
    free(index);
}

static void checkpoints_in_parts(void **state)
{
    (void)state;
    char directory[SCRATCH_PATH], place[SCRATCH_PATH + 32];
    coda_device *device = NULL;
    coda_llama *llama = NULL;
    coda_llama_config config = llama_small(0);
    scratch_new(directory);
    assert_int_equal(coda_device_open("cpu", &device, NULL), CODA_OK);
    assert_int_equal(coda_llama_create(device, &config, CODA_BF16, 3, &llama, NULL), CODA_OK);
    llama_randomize(llama, 1, 2);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        coda_error error = {CODA_OK, ""};
        coda_llama *loaded = NULL;
        snprintf(place, sizeof place, "%s/%zu", directory, i);
        write_parts(llama, place, rows[i].fault);
        coda_status status = coda_llama_load(device, place, CODA_BF16, &loaded, &error);
        if (status != rows[i].status || (rows[i].says && !strstr(error.message, rows[i].says)))
            fail_msg("row %zu: %s: %s", i, coda_status_name(status), error.message);
        for (int t = 0; loaded && t < coda_llama_tensor_count(llama); t++) {
            struct safetensors_tensor a = tensor_of(llama, t), b = tensor_of(loaded, t);
            assert_memory_equal(a.data, b.data, (size_t)(a.shape[0] * a.shape[1]) * 2);
        }
        coda_llama_free(loaded);
    }
    coda_llama_free(llama);
    coda_device_close(device);
    scratch_free(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(checkpoints_in_parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
