/* A model as Hugging Face's files. */
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/files.h"
#include "model/weight_files.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONG_PATH = CODA_PATH_SIZE + 64 };

static const char weights_file[] = "model.safetensors", config_file[] = "config.json";

coda_status write_model(const coda_llama *llama, const char *directory, coda_error *error)
{
    char path[LONG_PATH];
    struct json_text text = {0};
    const struct safetensors_pair metadata[] = {{"format", "pt"}}; /* Hugging Face asks for it */
    struct safetensors_tensor *tensors = calloc((size_t)llama->weight_count, sizeof *tensors);
    if (!tensors)
        return model_no_memory(error, "a list of tensors", (size_t)llama->weight_count * sizeof *tensors);
    for (int i = 0; i < llama->weight_count; i++) {
        const struct weight *weight = &llama->weight[i];
        snprintf(tensors[i].name, sizeof tensors[i].name, "%s", weight->name);
        tensors[i].dtype = llama->dtype;
        tensors[i].rank = weight->rank;
        tensors[i].shape[0] = weight->rank == 1 ? weight->columns : weight->rows;
        tensors[i].shape[1] = weight->columns;
        tensors[i].data = weight->data;
    }
    coda_status status = join_path(path, sizeof path, directory, weights_file, error);
    if (status == CODA_OK)
        status = safetensors_write(path, tensors, llama->weight_count, metadata, 1, error);
    if (status == CODA_OK)
        status = join_path(path, sizeof path, directory, config_file, error);
    if (status != CODA_OK)
        goto done;
    write_model_config(&text, &llama->config, llama->dtype, "  ");
    status = text.failed ? model_no_memory(error, config_file, text.length)
                         : write_text_file(path, text.text, text.length, error);
done:
    free(text.text);
    free(tensors);
    return status;
}

coda_status coda_llama_save(const coda_llama *llama, const char *directory, coda_error *error)
{
    coda_status status = make_directories(directory, error);
    if (status == CODA_OK)
        status = write_model(llama, directory, error);
    return status == CODA_OK ? flush_directory(directory, error) : status;
}

/* Whether a tensor is a weight's, or one to pass over: a tied head, and the rotary frequencies that old files store. */
static bool is_known(const coda_llama *llama, const char *name)
{
    static const char frequencies[] = ".rotary_emb.inv_freq";
    size_t length = strlen(name), suffix = sizeof frequencies - 1;
    if (length > suffix && strcmp(name + length - suffix, frequencies) == 0)
        return true;
    for (int i = 0; i < llama->weight_count; i++)
        if (strcmp(llama->weight[i].name, name) == 0)
            return true;
    return llama->config.tie_word_embeddings && strcmp(name, "lm_head.weight") == 0;
}

/* Every weight has its tensor, and every tensor is a weight's. */
static coda_status match_tensors(const coda_llama *llama, const struct weight_files *files, coda_error *error)
{
    for (int i = 0; i < llama->weight_count; i++) {
        const struct weight *weight = &llama->weight[i];
        const struct safetensors *file = &files->file[0];
        const struct safetensors_entry *entry = weight_files_find(files, weight->name, &file);
        if (!entry)
            return model_fail(error, CODA_INVALID, "'%s'%s has no tensor `%s`, which its config.json asks for",
                              file->path, files->count > 1 ? " and the files beside it" : "", weight->name);
        int64_t rows = weight->rank == 1 ? weight->columns : weight->rows;
        if (entry->rank != weight->rank || entry->shape[0] != rows ||
            (weight->rank == 2 && entry->shape[1] != weight->columns))
            return model_fail(error, CODA_INVALID,
                              "'%s': `%s` has %d dimensions, %lld x %lld; config.json asks for %d, %lld x %lld",
                              file->path, weight->name, entry->rank, (long long)entry->shape[0],
                              entry->rank > 1 ? (long long)entry->shape[1] : 1LL, weight->rank, (long long)rows,
                              weight->rank > 1 ? (long long)weight->columns : 1LL);
    }
    for (int f = 0; f < files->count; f++)
        for (int64_t i = 0; i < files->file[f].count; i++)
            if (!is_known(llama, files->file[f].entry[i].name))
                return model_fail(
                    error, CODA_INVALID,
                    "'%s' has the tensor `%s`, which no Llama of its config.json has: %lld tensors, %d known",
                    files->file[f].path, files->file[f].entry[i].name, (long long)files->file[f].count,
                    llama->weight_count);
    return CODA_OK;
}

coda_status coda_llama_load(coda_device *device, const char *directory, coda_dtype dtype, coda_llama **llama,
                            coda_error *error)
{
    char path[LONG_PATH];
    coda_llama_config config;
    coda_llama *made = NULL;
    struct weight_files files = {NULL, 0};
    coda_status status = join_path(path, sizeof path, directory, config_file, error);
    if (status == CODA_OK)
        status = coda_llama_config_load(path, &config, error);
    if (status == CODA_OK)
        status = weight_files_open(&files, directory, error);
    if (status == CODA_OK)
        status = llama_allocate(device, &config, dtype, &made, error);
    if (status == CODA_OK)
        status = match_tensors(made, &files, error);
    for (int i = 0; status == CODA_OK && i < made->weight_count; i++) {
        const struct safetensors *file = NULL;
        const struct safetensors_entry *entry = weight_files_find(&files, made->weight[i].name, &file);
        status = safetensors_read(file, entry, dtype, made->weight[i].data, error);
    }
    weight_files_close(&files);
    if (status != CODA_OK) {
        coda_llama_free(made);
        return status;
    }
    *llama = made;
    return CODA_OK;
}
