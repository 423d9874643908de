/* A model as Hugging Face's files. */
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/files.h"
#include "model/safetensors.h"
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

/* Every weight has its tensor, and every tensor is a weight's. */
static coda_status match_tensors(const coda_llama *llama, const struct safetensors *file, coda_error *error)
{
    int64_t known = 0;
    for (int i = 0; i < llama->weight_count; i++) {
        const struct weight *weight = &llama->weight[i];
        const struct safetensors_entry *entry = safetensors_find(file, weight->name);
        if (!entry)
            return model_fail(error, CODA_INVALID, "'%s' has no tensor `%s`, which its config.json asks for",
                              file->path, weight->name);
        int64_t rows = weight->rank == 1 ? weight->columns : weight->rows;
        if (entry->rank != weight->rank || entry->shape[0] != rows ||
            (weight->rank == 2 && entry->shape[1] != weight->columns))
            return model_fail(error, CODA_INVALID,
                              "'%s': `%s` has %d dimensions, %lld x %lld; config.json asks for %d, %lld x %lld",
                              file->path, weight->name, entry->rank, (long long)entry->shape[0],
                              entry->rank > 1 ? (long long)entry->shape[1] : 1LL, weight->rank, (long long)rows,
                              weight->rank > 1 ? (long long)weight->columns : 1LL);
        known++;
    }
    bool tied = llama->config.tie_word_embeddings && safetensors_find(file, "lm_head.weight");
    if (known + tied == file->count)
        return CODA_OK;
    for (int64_t i = 0; i < file->count; i++) {
        int w = 0;
        while (w < llama->weight_count && strcmp(llama->weight[w].name, file->entry[i].name) != 0)
            w++;
        if (w == llama->weight_count && !(tied && strcmp(file->entry[i].name, "lm_head.weight") == 0))
            return model_fail(error, CODA_INVALID,
                              "'%s' has the tensor `%s`, which no Llama of its config.json has: %lld tensors, %d known",
                              file->path, file->entry[i].name, (long long)file->count, llama->weight_count);
    }
    return CODA_OK;
}

coda_status coda_llama_load(coda_device *device, const char *directory, coda_dtype dtype, coda_llama **llama,
                            coda_error *error)
{
    char path[LONG_PATH];
    coda_llama_config config;
    coda_llama *made = NULL;
    struct safetensors file = {.descriptor = -1};
    coda_status status = join_path(path, sizeof path, directory, config_file, error);
    if (status == CODA_OK)
        status = coda_llama_config_load(path, &config, error);
    if (status == CODA_OK)
        status = join_path(path, sizeof path, directory, weights_file, error);
    if (status == CODA_OK)
        status = safetensors_open(&file, path, error);
    if (status == CODA_OK)
        status = llama_allocate(device, &config, dtype, &made, error);
    if (status == CODA_OK)
        status = match_tensors(made, &file, error);
    for (int i = 0; status == CODA_OK && i < made->weight_count; i++)
        status =
            safetensors_read(&file, safetensors_find(&file, made->weight[i].name), dtype, made->weight[i].data, error);
    safetensors_close(&file);
    if (status != CODA_OK) {
        coda_llama_free(made);
        return status;
    }
    *llama = made;
    return CODA_OK;
}
