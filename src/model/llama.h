/* A model: its weights by name and place, its kernels. */
#ifndef CODA_MODEL_LLAMA_H
#define CODA_MODEL_LLAMA_H

#include "model/kernels.h"

enum { NAME_SIZE = 96 };

struct weight {
    char name[NAME_SIZE];
    int rank;
    int64_t rows, columns; /* a vector has one row */
    void *data;
};

/* Tensors of a layer, in the order of the model. */
enum layer_tensor {
    INPUT_NORM,
    QUERY,
    KEY,
    VALUE,
    ATTENTION_OUTPUT,
    POST_ATTENTION_NORM,
    GATE,
    UP,
    DOWN,
    LAYER_TENSORS
};

struct coda_llama {
    coda_device *device;
    coda_llama_config config;
    coda_dtype dtype;
    int weight_count;
    struct weight *weight;
    float *rope_table; /* [max_position_embeddings, head_dim]: cosines, then sines */
    struct kernels kernels;
};

enum { EMBEDDING_INDEX = 0 };

static inline int layer_index(int64_t layer, enum layer_tensor tensor)
{
    return 1 + (int)layer * LAYER_TENSORS + (int)tensor;
}

static inline int final_norm_index(const coda_llama *llama)
{
    return layer_index(llama->config.num_hidden_layers, INPUT_NORM);
}

static inline int head_index(const coda_llama *llama)
{
    return llama->config.tie_word_embeddings ? EMBEDDING_INDEX : final_norm_index(llama) + 1;
}

static inline int64_t elements(const struct weight *weight)
{
    return weight->rows * weight->columns;
}

static inline int64_t query_width(const coda_llama_config *config)
{
    return config->num_attention_heads * config->head_dim;
}

static inline int64_t key_width(const coda_llama_config *config)
{
    return config->num_key_value_heads * config->head_dim;
}

/* As the operand of a program. */
coda_tensor weight_operand(const coda_llama *llama, int index);

/* A model whose weights are allocated but not set. */
coda_status llama_allocate(coda_device *device, const coda_llama_config *config, coda_dtype dtype, coda_llama **llama,
                           coda_error *error);

/* Device memory that is released together. */
struct memory {
    coda_device *device;
    void **block;
    int count, room;
    double bytes;
};

coda_status memory_take(struct memory *memory, double bytes, void *pointer_to_pointer, coda_error *error); /* zeroed */
void memory_close(struct memory *memory);

#endif
