#include "model/llama.h"
#include "model/config.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

coda_status memory_take(struct memory *memory, double bytes, void *pointer_to_pointer, coda_error *error)
{
    if (bytes > 0x1p46)
        return model_fail(error, CODA_MEMORY, "%.3g bytes are out of reach: use a smaller model, batch or sequence",
                          bytes);
    if (memory->count == memory->room) {
        int room = 2 * memory->room + 32;
        void **grown = realloc(memory->block, (size_t)room * sizeof *grown);
        if (!grown)
            return model_no_memory(error, "a list of buffers", (size_t)room * sizeof *grown);
        memory->block = grown;
        memory->room = room;
    }
    void *block;
    size_t size = bytes > 0 ? (size_t)bytes : 1;
    coda_status status = coda_allocate(memory->device, size, &block, error);
    if (status != CODA_OK)
        return status;
    memset(block, 0, size);
    memory->block[memory->count++] = block;
    memory->bytes += bytes;
    memcpy(pointer_to_pointer, &block, sizeof block);
    return CODA_OK;
}

void memory_close(struct memory *memory)
{
    for (int i = 0; i < memory->count; i++)
        coda_release(memory->device, memory->block[i]);
    free(memory->block);
    memory->block = NULL;
    memory->count = memory->room = 0;
}

coda_tensor weight_operand(const coda_llama *llama, int index)
{
    const struct weight *weight = &llama->weight[index];
    return weight->rank == 1 ? vector(weight->data, llama->dtype, weight->columns)
                             : matrix(weight->data, llama->dtype, weight->rows, weight->columns);
}

static void describe(struct weight *weight, const char *name, int rank, int64_t rows, int64_t columns)
{
    snprintf(weight->name, sizeof weight->name, "%s", name);
    weight->rank = rank;
    weight->rows = rows;
    weight->columns = columns;
}

static void describe_layer(coda_llama *llama, int64_t layer)
{
    const coda_llama_config *c = &llama->config;
    int64_t d = c->hidden_size, f = c->intermediate_size, q = query_width(c), e = key_width(c);
    const struct {
        const char *name;
        int rank;
        int64_t rows, columns;
    } tensor[LAYER_TENSORS] = {
        [INPUT_NORM] = {"input_layernorm", 1, 1, d},
        [QUERY] = {"self_attn.q_proj", 2, q, d},
        [KEY] = {"self_attn.k_proj", 2, e, d},
        [VALUE] = {"self_attn.v_proj", 2, e, d},
        [ATTENTION_OUTPUT] = {"self_attn.o_proj", 2, d, q},
        [POST_ATTENTION_NORM] = {"post_attention_layernorm", 1, 1, d},
        [GATE] = {"mlp.gate_proj", 2, f, d},
        [UP] = {"mlp.up_proj", 2, f, d},
        [DOWN] = {"mlp.down_proj", 2, d, f},
    };
    for (int i = 0; i < LAYER_TENSORS; i++) {
        char name[NAME_SIZE];
        snprintf(name, sizeof name, "model.layers.%lld.%s.weight", (long long)layer, tensor[i].name);
        describe(&llama->weight[layer_index(layer, (enum layer_tensor)i)], name, tensor[i].rank, tensor[i].rows,
                 tensor[i].columns);
    }
}

/* Frequencies and angles in double: a table in f32 then has one rounding. */
static void fill_rope_table(const coda_llama_config *config, float *table)
{
    int64_t half = config->head_dim / 2;
    for (int64_t position = 0; position < config->max_position_embeddings; position++)
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)position * config_rope_frequency(config, i);
            table[position * 2 * half + i] = (float)cos(angle);
            table[position * 2 * half + half + i] = (float)sin(angle);
        }
}

static coda_status check_arguments(coda_device *device, const coda_llama_config *config, coda_dtype dtype,
                                   coda_error *error)
{
    if (!device || !config)
        return model_fail(error, CODA_INVALID, "a model needs a device and a configuration");
    if (dtype != CODA_F32 && dtype != CODA_BF16 && dtype != CODA_F16)
        return model_fail(error, CODA_INVALID, "a model of dtype %s; expected f32, bf16 or f16",
                          coda_dtype_name(dtype));
    const char *name = coda_device_name(device);
    if (strcmp(name, "cpu") != 0 && strcmp(name, "ref") != 0)
        return model_fail(error, CODA_UNSUPPORTED,
                          "the model runs on the devices cpu and ref; on %s its programs run one by one", name);
    return CODA_OK;
}

static coda_status allocate_weights(coda_llama *llama, coda_error *error)
{
    const coda_llama_config *c = &llama->config;
    llama->weight_count = head_index(llama) == EMBEDDING_INDEX ? final_norm_index(llama) + 1 : head_index(llama) + 1;
    llama->weight = calloc((size_t)maximum(llama->weight_count, 1), sizeof *llama->weight);
    if (!llama->weight)
        return model_no_memory(error, "the list of weights", (size_t)llama->weight_count * sizeof *llama->weight);
    describe(&llama->weight[EMBEDDING_INDEX], "model.embed_tokens.weight", 2, c->vocab_size, c->hidden_size);
    for (int64_t layer = 0; layer < c->num_hidden_layers; layer++)
        describe_layer(llama, layer);
    describe(&llama->weight[final_norm_index(llama)], "model.norm.weight", 1, 1, c->hidden_size);
    if (!c->tie_word_embeddings)
        describe(&llama->weight[head_index(llama)], "lm_head.weight", 2, c->vocab_size, c->hidden_size);
    for (int i = 0; i < llama->weight_count; i++) {
        size_t bytes = (size_t)elements(&llama->weight[i]) * coda_dtype_size(llama->dtype);
        coda_status status = coda_allocate(llama->device, bytes, &llama->weight[i].data, error);
        if (status != CODA_OK)
            return status;
    }
    return CODA_OK;
}

coda_status llama_allocate(coda_device *device, const coda_llama_config *config, coda_dtype dtype, coda_llama **llama,
                           coda_error *error)
{
    coda_status status = check_arguments(device, config, dtype, error);
    if (status != CODA_OK)
        return status;
    coda_llama *made = calloc(1, sizeof *made);
    if (!made)
        return model_no_memory(error, "a model", sizeof *made);
    made->device = device;
    made->config = *config;
    made->dtype = dtype;
    status = coda_llama_config_check(&made->config, error);
    if (status != CODA_OK)
        goto failed;
    size_t table = (size_t)(made->config.max_position_embeddings * made->config.head_dim) * sizeof(float);
    void *pointer = NULL;
    status = coda_allocate(device, table, &pointer, error);
    if (status != CODA_OK)
        goto failed;
    made->rope_table = pointer;
    fill_rope_table(&made->config, made->rope_table);
    status = allocate_weights(made, error);
    if (status == CODA_OK)
        status = kernels_open(&made->kernels, device, dtype, error);
    if (status != CODA_OK)
        goto failed;
    *llama = made;
    return CODA_OK;
failed:
    coda_llama_free(made);
    return status;
}

void coda_llama_free(coda_llama *llama)
{
    if (!llama)
        return;
    kernels_close(&llama->kernels);
    for (int i = 0; i < llama->weight_count && llama->weight; i++)
        coda_release(llama->device, llama->weight[i].data);
    coda_release(llama->device, llama->rope_table);
    free(llama->weight);
    free(llama);
}

/* Normal numbers by Box and Muller, each from its own place in the sequence. */
static float normal(uint64_t seed, uint64_t counter)
{
    double radius = sqrt(-2 * log(1 - uniform(seed, 2 * counter)));
    return (float)(radius * cos(6.283185307179586 * uniform(seed, 2 * counter + 1)));
}

struct filling {
    coda_llama *llama;
    const struct weight *weight;
    uint64_t seed;
    float deviation; /* 0: ones */
};

static void fill_row(void *context, int64_t row)
{
    const struct filling *f = context;
    size_t size = coda_dtype_size(f->llama->dtype);
    float chunk[256];
    int64_t columns = f->weight->columns;
    for (int64_t first = 0; first < columns; first += 256) {
        int64_t count = minimum(256, columns - first);
        for (int64_t i = 0; i < count; i++)
            chunk[i] = f->deviation > 0 ? f->deviation * normal(f->seed, (uint64_t)(row * columns + first + i)) : 1;
        coda_convert((char *)f->weight->data + (size_t)(row * columns + first) * size, f->llama->dtype, chunk, CODA_F32,
                     count);
    }
}

static bool ends_in_residual(const coda_llama *llama, int index)
{
    int place = (index - 1) % LAYER_TENSORS;
    return index > EMBEDDING_INDEX && index < final_norm_index(llama) && (place == ATTENTION_OUTPUT || place == DOWN);
}

coda_status coda_llama_create(coda_device *device, const coda_llama_config *config, coda_dtype dtype, uint64_t seed,
                              coda_llama **llama, coda_error *error)
{
    coda_llama *made = NULL;
    coda_status status = llama_allocate(device, config, dtype, &made, error);
    if (status != CODA_OK)
        return status;
    for (int i = 0; i < made->weight_count; i++) {
        struct filling filling = {made, &made->weight[i], mix64(seed) + (uint64_t)i, 0};
        if (made->weight[i].rank == 2)
            filling.deviation = 0.02f;
        if (ends_in_residual(made, i))
            filling.deviation /= sqrtf(2 * (float)made->config.num_hidden_layers);
        coda_parallel_for(device, made->weight[i].rows, fill_row, &filling);
    }
    *llama = made;
    return CODA_OK;
}

const coda_llama_config *coda_llama_configuration(const coda_llama *llama)
{
    return &llama->config;
}

coda_dtype coda_llama_dtype(const coda_llama *llama)
{
    return llama->dtype;
}

int coda_llama_tensor_count(const coda_llama *llama)
{
    return llama->weight_count;
}

coda_status coda_llama_tensor(const coda_llama *llama, int index, const char **name, coda_tensor *tensor)
{
    if (index < 0 || index >= llama->weight_count)
        return CODA_INVALID;
    if (name)
        *name = llama->weight[index].name;
    if (tensor)
        *tensor = weight_operand(llama, index);
    return CODA_OK;
}
