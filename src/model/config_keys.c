#include "model/config.h"
#include <stdio.h>
#include <string.h>

static const char *const dtype_names[] = {"f32", "bf16", "f16", NULL}; /* by coda_dtype */
static const char *const path_names[] = {"fused", "unfused", NULL};
static const char *const data_format_names[] = {"auto", "bytes", "u16", "u32", NULL};

#define MODEL(field) offsetof(coda_train_config, model.field)
#define TRAIN(field) offsetof(coda_train_config, field)

const struct config_key model_keys[] = {
    {"hidden_size", KEY_INTEGER, MODEL(hidden_size), 1, 1 << 20, NULL, "width of the residual stream"},
    {"intermediate_size", KEY_INTEGER, MODEL(intermediate_size), 1, 1 << 22, NULL, "width of the MLP"},
    {"num_hidden_layers", KEY_INTEGER, MODEL(num_hidden_layers), 1, 1024, NULL, "layers"},
    {"num_attention_heads", KEY_INTEGER, MODEL(num_attention_heads), 1, 4096, NULL, "query heads"},
    {"num_key_value_heads", KEY_INTEGER, MODEL(num_key_value_heads), 0, 4096, NULL,
     "key and value heads, which divide the query heads (0: as many)"},
    {"head_dim", KEY_INTEGER, MODEL(head_dim), 0, 512, NULL, "width of a head, even (0: hidden_size / heads)"},
    {"vocab_size", KEY_INTEGER, MODEL(vocab_size), 1, 1 << 24, NULL, "tokens of the vocabulary (256 for bytes)"},
    {"max_position_embeddings", KEY_INTEGER, MODEL(max_position_embeddings), 1, 1 << 24, NULL, "longest sequence"},
    {"rms_norm_eps", KEY_REAL, MODEL(rms_norm_eps), 0, 1, NULL, "added to the mean square in a norm"},
    {"rope_theta", KEY_REAL, MODEL(rope_theta), 1, 1e12, NULL, "base of the rotary frequencies"},
    {"tie_word_embeddings", KEY_BOOLEAN, MODEL(tie_word_embeddings), 0, 1, NULL, "the head is the embedding"},
    {NULL, KEY_TEXT, 0, 0, 0, NULL, NULL},
};

const struct config_key train_keys[] = {
    {"data", KEY_TEXT, TRAIN(data), 0, 0, NULL, "text file, .bin file, or directory of .bin files"},
    {"data_format", KEY_CHOICE, TRAIN(data_format), 0, 0, data_format_names,
     "auto, bytes, u16 or u32 (tokens without a header, little-endian)"},
    {"out", KEY_TEXT, TRAIN(out), 0, 0, NULL, "directory of the checkpoints"},
    {"steps", KEY_INTEGER, TRAIN(steps), 1, 1e12, NULL, "optimizer steps"},
    {"batch", KEY_INTEGER, TRAIN(batch), 1, 1 << 20, NULL, "sequences of a forward pass"},
    {"sequence", KEY_INTEGER, TRAIN(sequence), 1, 1 << 24, NULL, "tokens of a sequence"},
    {"accumulation", KEY_INTEGER, TRAIN(accumulation), 1, 1 << 20, NULL, "passes whose gradients make one step"},
    {"learning_rate", KEY_REAL, TRAIN(learning_rate), 0, 100, NULL, "the highest, reached after the warmup"},
    {"minimum_rate", KEY_REAL, TRAIN(minimum_rate), 0, 1, NULL, "share of it left at the end of the cosine"},
    {"warmup", KEY_INTEGER, TRAIN(warmup), 0, 1e12, NULL, "steps in which the rate rises"},
    {"weight_decay", KEY_REAL, TRAIN(weight_decay), 0, 100, NULL, "of matrices; norm weights have none"},
    {"beta1", KEY_REAL, TRAIN(beta1), 0, 0.999999, NULL, "of AdamW's mean"},
    {"beta2", KEY_REAL, TRAIN(beta2), 0, 0.999999, NULL, "of AdamW's mean square"},
    {"epsilon", KEY_REAL, TRAIN(epsilon), 0, 1, NULL, "of AdamW"},
    {"clip", KEY_REAL, TRAIN(clip), 0, 1e30, NULL, "largest global norm of the gradient (0: none)"},
    {"seed", KEY_INTEGER, TRAIN(seed), 0, 0x1p53, NULL, "of the weights and of the order of the data"},
    {"dtype", KEY_CHOICE, TRAIN(dtype), 0, 0, dtype_names, "f32, bf16 or f16, of weights and activations"},
    {"path", KEY_CHOICE, TRAIN(path), 0, 0, path_names, "fused, or unfused for comparison"},
    {"checkpoint_interval", KEY_INTEGER, TRAIN(checkpoint_interval), 0, 1e12, NULL,
     "steps from checkpoint to checkpoint (0: only at the end)"},
    {"keep", KEY_INTEGER, TRAIN(keep), 0, 1e9, NULL, "newest checkpoints that are kept (0: all)"},
    {NULL, KEY_TEXT, 0, 0, 0, NULL, NULL},
};

const struct config_key *config_find(const struct config_key *keys, const char *name)
{
    for (; keys->name; keys++)
        if (strcmp(keys->name, name) == 0)
            return keys;
    return NULL;
}

static void read_text(struct json_reader *json, const struct config_key *key, void *place)
{
    char text[CODA_PATH_SIZE];
    json_read_peek(json);
    size_t at = json->at;
    if (!json_read_string(json, text, sizeof text))
        return;
    if (key->kind == KEY_TEXT) {
        memcpy(place, text, strlen(text) + 1);
        return;
    }
    for (int i = 0; key->choices[i]; i++)
        if (strcmp(key->choices[i], text) == 0) {
            *(int *)place = i;
            return;
        }
    json_read_fail(json, CODA_INVALID, at, "`%s` must be %s; found \"%.60s\"", key->name, key->help, text);
}

void config_read(struct json_reader *json, const struct config_key *key, coda_train_config *config)
{
    void *place = (char *)config + key->offset;
    json_read_peek(json);
    size_t at = json->at;
    double real = 0;
    int64_t integer = 0;
    bool boolean = false;
    switch (key->kind) {
    case KEY_INTEGER:
        if (!json_read_integer(json, &integer))
            return;
        real = (double)integer;
        *(int64_t *)place = integer;
        break;
    case KEY_REAL:
        if (!json_read_number(json, &real))
            return;
        *(double *)place = real;
        break;
    case KEY_BOOLEAN:
        if (json_read_boolean(json, &boolean))
            *(int *)place = boolean;
        return;
    case KEY_TEXT:
    case KEY_CHOICE:
        read_text(json, key, place);
        return;
    }
    if (real < key->low || real > key->high) {
        char low[32], high[32], value[32];
        json_format_number(key->low, low);
        json_format_number(key->high, high);
        json_format_number(real, value);
        json_read_fail(json, CODA_INVALID, at, "`%s` must be from %s to %s; found %s", key->name, low, high, value);
    }
}

void config_write(struct json_text *text, const struct config_key *key, const coda_train_config *config)
{
    const void *place = (const char *)config + key->offset;
    char number[32];
    switch (key->kind) {
    case KEY_INTEGER:
        json_print(text, "%lld", (long long)*(const int64_t *)place);
        break;
    case KEY_REAL:
        json_format_number(*(const double *)place, number);
        json_print(text, "%s", number);
        break;
    case KEY_BOOLEAN:
        json_print(text, "%s", *(const int *)place ? "true" : "false");
        break;
    case KEY_TEXT:
        json_print_string(text, place);
        break;
    case KEY_CHOICE:
        json_print_string(text, key->choices[*(const int *)place]);
        break;
    }
}

static void write_keys(struct json_text *text, const struct config_key *keys, const coda_train_config *config,
                       const char *indent)
{
    for (; keys->name; keys++) {
        json_print(text, ",\n%s\"%s\": ", indent, keys->name);
        config_write(text, keys, config);
    }
}

void write_model_config(struct json_text *text, const coda_llama_config *config, coda_dtype dtype, const char *indent)
{
    static const char *const torch_names[] = {"float32", "bfloat16", "float16"};
    coda_train_config whole;
    memset(&whole, 0, sizeof whole);
    whole.model = *config;
    json_print(text, "{\n%s\"architectures\": [\"LlamaForCausalLM\"],\n%s\"model_type\": \"llama\"", indent, indent);
    json_print(text, ",\n%s\"hidden_act\": \"silu\",\n%s\"attention_bias\": false,\n%s\"mlp_bias\": false", indent,
               indent, indent);
    json_print(text, ",\n%s\"torch_dtype\": \"%s\"", indent, torch_names[dtype]);
    write_keys(text, model_keys, &whole, indent);
    config_write_rope(text, &whole, indent);
    json_print(text, "\n}\n");
}

void write_train_config(struct json_text *text, const coda_train_config *config)
{
    json_print(text, "{\n    \"model\": {\n        \"model_type\": \"llama\"");
    write_keys(text, model_keys, config, "        ");
    config_write_rope(text, config, "        ");
    json_print(text, "\n    }");
    write_keys(text, train_keys, config, "    ");
    json_print(text, "\n}\n");
}
