/* The header of a safetensors file, checked completely before anything is believed. */
#include "model/json.h"
#include "model/safetensors.h"
#include <stdlib.h>
#include <string.h>

static const struct safetensors_type types[] = {
    {"F32", 4, CODA_F32},
    {"BF16", 2, CODA_BF16},
    {"F16", 2, CODA_F16},
    {"F64", 8, -1},
    {"I64", 8, -1},
    {"I32", 4, -1},
    {"I16", 2, -1},
    {"I8", 1, -1},
    {"U64", 8, -1},
    {"U32", 4, -1},
    {"U16", 2, -1},
    {"U8", 1, -1},
    {"BOOL", 1, -1},
    {"C64", 8, -1},
    {"F8_E4M3", 1, CODA_E4M3},
    {"F8_E5M2", 1, CODA_E5M2},
    {"F8_E8M0", 1, -1},
};
enum { TYPE_COUNT = sizeof types / sizeof types[0], LARGEST_DIMENSION_BITS = 48 };

/* Where decoded strings go: as many bytes as the header, which its quotes make enough. */
struct strings {
    char *at;
    size_t room;
};

static const char *take_string(struct json_reader *json, struct strings *strings)
{
    if (!json_read_string(json, strings->at, strings->room))
        return NULL;
    const char *text = strings->at;
    size_t used = strlen(text) + 1;
    strings->at += used;
    strings->room -= used;
    return text;
}

static void read_type(struct json_reader *json, struct safetensors_entry *entry)
{
    char name[32];
    json_read_peek(json);
    size_t at = json->at;
    if (!json_read_string(json, name, sizeof name))
        return;
    for (int i = 0; i < TYPE_COUNT; i++)
        if (strcmp(types[i].name, name) == 0)
            entry->type = &types[i];
    if (!entry->type)
        json_read_fail(json, CODA_INVALID, at, "`%s` has the unknown dtype \"%s\"", entry->name, name);
}

static void read_shape(struct json_reader *json, struct safetensors_entry *entry)
{
    int64_t size = 0;
    json_read_array(json);
    entry->rank = 0;
    while (json_read_element(json) && json_read_integer(json, &size)) {
        if (size < 0 || size >> LARGEST_DIMENSION_BITS || entry->rank == SAFETENSORS_RANK) {
            json_read_fail(json, CODA_INVALID, json->at, "`%s` must have at most %d dimensions from 0 to 2^%d",
                           entry->name, SAFETENSORS_RANK, LARGEST_DIMENSION_BITS);
            return;
        }
        entry->shape[entry->rank++] = size;
    }
}

static void read_offsets(struct json_reader *json, struct safetensors_entry *entry)
{
    int64_t *offset[2] = {&entry->begin, &entry->end};
    int count = 0;
    json_read_array(json);
    while (json_read_element(json)) {
        if (count == 2) {
            json_read_fail(json, CODA_INVALID, json->at, "`%s` must have two data_offsets", entry->name);
            return;
        }
        json_read_integer(json, offset[count++]);
    }
    if (count != 2)
        json_read_fail(json, CODA_INVALID, json->at, "`%s` must have two data_offsets", entry->name);
}

static void read_entry(struct json_reader *json, struct safetensors_entry *entry, int64_t data_length)
{
    enum { TYPE = 1, SHAPE = 2, OFFSETS = 4 };
    char key[32];
    unsigned seen = 0;
    size_t start = json->key_at;
    json_read_object(json);
    while (json_read_key(json, key, sizeof key)) {
        unsigned bit = strcmp(key, "dtype") == 0          ? TYPE
                       : strcmp(key, "shape") == 0        ? SHAPE
                       : strcmp(key, "data_offsets") == 0 ? OFFSETS
                                                          : 0;
        if (!bit || seen & bit) {
            json_read_fail(json, CODA_INVALID, json->key_at, "`%s` of `%s` is %s", key, entry->name,
                           bit ? "given twice" : "no key of a tensor (dtype, shape, data_offsets)");
            return;
        }
        seen |= bit;
        if (bit == TYPE)
            read_type(json, entry);
        else if (bit == SHAPE)
            read_shape(json, entry);
        else
            read_offsets(json, entry);
    }
    if (json->status != CODA_OK)
        return;
    if (seen != (TYPE | SHAPE | OFFSETS)) {
        json_read_fail(json, CODA_INVALID, start, "`%s` must have dtype, shape and data_offsets", entry->name);
        return;
    }
    int64_t bytes = entry->type->size;
    for (int i = 0; i < entry->rank; i++)
        if (__builtin_mul_overflow(bytes, entry->shape[i], &bytes)) {
            json_read_fail(json, CODA_INVALID, start, "the shape of `%s` is too large", entry->name);
            return;
        }
    if (entry->begin < 0 || entry->end > data_length || entry->end < entry->begin)
        json_read_fail(json, CODA_INVALID, start, "`%s` occupies bytes %lld to %lld of the data, which has %lld%s",
                       entry->name, (long long)entry->begin, (long long)entry->end, (long long)data_length,
                       entry->end > data_length ? ": the file is truncated" : "");
    else if (entry->end - entry->begin != bytes)
        json_read_fail(json, CODA_INVALID, start, "`%s` needs %lld bytes by its shape and dtype, but has %lld",
                       entry->name, (long long)bytes, (long long)(entry->end - entry->begin));
}

static void read_metadata(struct json_reader *json, struct safetensors *file, struct strings *strings, int64_t *room)
{
    json_read_object(json);
    while (json->status == CODA_OK) {
        struct safetensors_pair pair;
        if (file->metadata_count == *room) {
            int64_t larger = 2 * *room + 8;
            void *grown = realloc(file->metadata, (size_t)larger * sizeof *file->metadata);
            if (!grown) {
                json_read_fail(json, CODA_MEMORY, json->at, "cannot allocate memory for the metadata");
                return;
            }
            file->metadata = grown;
            *room = larger;
        }
        /* A key goes where strings go, so it is read as one after json_key's own steps. */
        pair.key = strings->at;
        if (!json_read_key(json, strings->at, strings->room))
            return;
        size_t used = strlen(pair.key) + 1;
        strings->at += used;
        strings->room -= used;
        pair.value = take_string(json, strings);
        if (pair.value)
            file->metadata[file->metadata_count++] = pair;
    }
}

static void read_header(struct json_reader *json, struct safetensors *file, struct strings *strings)
{
    int64_t room = 0, metadata_room = 0;
    bool metadata = false;
    json_read_object(json);
    while (json->status == CODA_OK) {
        const char *name = strings->at;
        if (!json_read_key(json, strings->at, strings->room))
            return;
        if (strcmp(name, "__metadata__") == 0) {
            if (metadata)
                json_read_fail(json, CODA_INVALID, json->key_at, "`__metadata__` is given twice");
            metadata = true;
            read_metadata(json, file, strings, &metadata_room);
            continue;
        }
        strings->at += strlen(name) + 1;
        strings->room -= strlen(name) + 1;
        if (file->count == room) {
            room = 2 * room + 64;
            void *grown = realloc(file->entry, (size_t)room * sizeof *file->entry);
            if (!grown) {
                json_read_fail(json, CODA_MEMORY, json->at, "cannot allocate memory for %lld tensors", (long long)room);
                return;
            }
            file->entry = grown;
        }
        struct safetensors_entry *entry = &file->entry[file->count++];
        memset(entry, 0, sizeof *entry);
        entry->name = name;
        read_entry(json, entry, file->data_length);
    }
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct safetensors_entry *)a)->name, ((const struct safetensors_entry *)b)->name);
}

static int by_place(const void *a, const void *b)
{
    const struct safetensors_entry *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* The data belongs to the tensors end to end. Leaves the entries in order of name. */
static coda_status check_layout(struct safetensors *file, coda_error *error)
{
    int64_t at = 0;
    if (file->count)
        qsort(file->entry, (size_t)file->count, sizeof *file->entry, by_place);
    for (int64_t i = 0; i < file->count; i++) {
        const struct safetensors_entry *entry = &file->entry[i];
        if (entry->begin != at)
            return model_fail(error, CODA_INVALID, "'%s': `%s` begins at byte %lld of the data, %s %lld", file->path,
                              entry->name, (long long)entry->begin,
                              entry->begin < at ? "inside the tensor before it, which ends at"
                                                : "but the tensor before it ends at",
                              (long long)at);
        at = entry->end;
    }
    if (at != file->data_length)
        return model_fail(error, CODA_INVALID, "'%s' has %lld bytes of data, but its tensors take %lld", file->path,
                          (long long)file->data_length, (long long)at);
    if (file->count)
        qsort(file->entry, (size_t)file->count, sizeof *file->entry, by_name);
    for (int64_t i = 1; i < file->count; i++)
        if (strcmp(file->entry[i - 1].name, file->entry[i].name) == 0)
            return model_fail(error, CODA_INVALID, "'%s' has `%s` twice", file->path, file->entry[i].name);
    return CODA_OK;
}

coda_status safetensors_parse(struct safetensors *file, const char *path, const char *bytes, size_t available,
                              int64_t file_length, coda_error *error)
{
    memset(file, 0, sizeof *file);
    file->descriptor = -1;
    if (strlen(path) >= sizeof file->path)
        return model_fail(error, CODA_INVALID, "the path '%.100s...' is longer than %zu bytes", path,
                          sizeof file->path - 1);
    memcpy(file->path, path, strlen(path) + 1);
    uint64_t header = 0;
    for (int i = 7; i >= 0 && available >= 8; i--)
        header = header << 8 | (unsigned char)bytes[i];
    if (file_length < 8 || available < 8 || header > SAFETENSORS_LARGEST_HEADER ||
        header > (uint64_t)(file_length - 8) || header > available - 8)
        return model_fail(error, CODA_INVALID,
                          "'%s' is no safetensors file, or is truncated: its %lld bytes cannot hold a header of %llu",
                          path, (long long)file_length, (unsigned long long)header);
    file->data_start = 8 + (int64_t)header;
    file->data_length = file_length - file->data_start;
    struct strings strings = {malloc((size_t)header + 1), (size_t)header + 1};
    file->strings = strings.at;
    if (!strings.at)
        return model_no_memory(error, "the header of a safetensors file", (size_t)header + 1);
    struct json_reader json;
    json_read_open(&json, bytes + 8, (size_t)header, path, error);
    read_header(&json, file, &strings);
    coda_status status = json_read_end(&json);
    if (status == CODA_OK)
        status = check_layout(file, error);
    if (status != CODA_OK)
        safetensors_close(file);
    return status;
}

const struct safetensors_entry *safetensors_find(const struct safetensors *file, const char *name)
{
    struct safetensors_entry wanted = {.name = name};
    return file->count ? bsearch(&wanted, file->entry, (size_t)file->count, sizeof wanted, by_name) : NULL;
}

const char *safetensors_metadata(const struct safetensors *file, const char *key)
{
    for (int64_t i = 0; i < file->metadata_count; i++)
        if (strcmp(file->metadata[i].key, key) == 0)
            return file->metadata[i].value;
    return NULL;
}
