#include "model/weight_files.h"
#include "model/config.h"
#include "model/files.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LONG_PATH = CODA_PATH_SIZE + 64, LARGEST_INDEX = 1 << 26, NAME_LENGTH = 256 };

static const char single_file[] = "model.safetensors", index_file[] = "model.safetensors.index.json";

static coda_status add_file(struct weight_files *files, const char *path, coda_error *error)
{
    struct safetensors *grown = realloc(files->file, (size_t)(files->count + 1) * sizeof *grown);
    if (!grown)
        return model_no_memory(error, "the list of weight files", (size_t)(files->count + 1) * sizeof *grown);
    files->file = grown;
    coda_status status = safetensors_open(&grown[files->count], path, error);
    if (status == CODA_OK)
        files->count++;
    return status;
}

/* The file of that name in the directory, opened when it is named first. */
static int file_named(struct weight_files *files, const char *directory, struct json_reader *json, const char *name)
{
    char path[LONG_PATH];
    size_t length = strlen(name), suffix = strlen(".safetensors");
    if (strchr(name, '/') || length <= suffix || strcmp(name + length - suffix, ".safetensors") != 0) {
        json_read_fail(json, CODA_INVALID, json->key_at, "\"%s\" is no safetensors file beside the index", name);
        return -1;
    }
    coda_status status = join_path(path, sizeof path, directory, name, json->error);
    for (int i = 0; i < files->count && status == CODA_OK; i++)
        if (strcmp(files->file[i].path, path) == 0)
            return i;
    if (status == CODA_OK)
        status = add_file(files, path, json->error);
    if (status == CODA_OK)
        return files->count - 1;
    json->status = status;
    return -1;
}

static void read_map(struct weight_files *files, const char *directory, struct json_reader *json)
{
    char tensor[NAME_LENGTH], name[NAME_LENGTH];
    json_read_object(json);
    while (json_read_key(json, tensor, sizeof tensor) && json_read_string(json, name, sizeof name)) {
        int file = file_named(files, directory, json, name);
        if (file >= 0 && !safetensors_find(&files->file[file], tensor))
            json_read_fail(json, CODA_INVALID, json->key_at, "`%s` is not in '%s'", tensor, files->file[file].path);
    }
}

static coda_status read_index(struct weight_files *files, const char *directory, const char *path, coda_error *error)
{
    char *text = NULL, key[NAME_LENGTH];
    size_t length = 0;
    coda_status status = read_file(path, LARGEST_INDEX, &text, &length, error);
    if (status != CODA_OK)
        return status;
    struct json_reader json;
    json_read_open(&json, text, length, path, error);
    json_read_object(&json);
    while (json_read_key(&json, key, sizeof key))
        if (strcmp(key, "weight_map") == 0)
            read_map(files, directory, &json);
        else
            json_read_skip(&json);
    status = json_read_end(&json);
    if (status == CODA_OK && files->count == 0)
        status = model_fail(error, CODA_INVALID, "'%s' names no file: its `weight_map` is missing or empty", path);
    free(text);
    return status;
}

/* A tensor of two files could be either. */
static coda_status check_once(const struct weight_files *files, coda_error *error)
{
    for (int i = 1; i < files->count; i++)
        for (int64_t e = 0; e < files->file[i].count; e++)
            for (int j = 0; j < i; j++)
                if (safetensors_find(&files->file[j], files->file[i].entry[e].name))
                    return model_fail(error, CODA_INVALID, "`%s` is in both '%s' and '%s'",
                                      files->file[i].entry[e].name, files->file[j].path, files->file[i].path);
    return CODA_OK;
}

coda_status weight_files_open(struct weight_files *files, const char *directory, coda_error *error)
{
    char path[LONG_PATH], index[LONG_PATH];
    *files = (struct weight_files){NULL, 0};
    coda_status status = join_path(path, sizeof path, directory, single_file, error);
    if (status == CODA_OK)
        status = join_path(index, sizeof index, directory, index_file, error);
    if (status != CODA_OK)
        return status;
    bool parts = access(path, F_OK) != 0 && errno == ENOENT && access(index, F_OK) == 0;
    status = parts ? read_index(files, directory, index, error) : add_file(files, path, error);
    if (status == CODA_OK)
        status = check_once(files, error);
    if (status != CODA_OK)
        weight_files_close(files);
    return status;
}

void weight_files_close(struct weight_files *files)
{
    for (int i = 0; i < files->count; i++)
        safetensors_close(&files->file[i]);
    free(files->file);
    *files = (struct weight_files){NULL, 0};
}

const struct safetensors_entry *weight_files_find(const struct weight_files *files, const char *name,
                                                  const struct safetensors **file)
{
    for (int i = 0; i < files->count; i++) {
        const struct safetensors_entry *entry = safetensors_find(&files->file[i], name);
        if (entry) {
            *file = &files->file[i];
            return entry;
        }
    }
    return NULL;
}
