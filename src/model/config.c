/* Reading and checking of the configurations. */
#include "model/config.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST_CONFIG = 1 << 20 };

/* Keys of Hugging Face's config.json that are not fields here. */
static const struct {
    const char *name;
    const char *required; /* the one value, as JSON, that this Llama has; NULL: of no consequence */
} foreign_keys[] = {
    {"architectures", NULL},
    {"model_type", "\"llama\""},
    {"hidden_act", "\"silu\""},
    {"attention_bias", "false"},
    {"mlp_bias", "false"},
    {"attention_dropout", "0"},
    {"sliding_window", "null"},
    {"quantization_config", "null"},
    {"pretraining_tp", NULL},
    {"bos_token_id", NULL},
    {"eos_token_id", NULL},
    {"pad_token_id", NULL},
    {"initializer_range", NULL},
    {"torch_dtype", NULL},
    {"dtype", NULL},
    {"transformers_version", NULL},
    {"use_cache", NULL},
    {"_name_or_path", NULL},
    {"unsloth_version", NULL},
};
enum { FOREIGN_COUNT = sizeof foreign_keys / sizeof foreign_keys[0] };

coda_status read_file(const char *path, size_t limit, char **text, size_t *length, coda_error *error)
{
    coda_status status = CODA_OK;
    char *bytes = NULL;
    FILE *file = fopen(path, "rb");
    if (!file)
        return model_system_error(error, "open", path);
    size_t room = 4096, used = 0;
    for (;;) {
        char *grown = realloc(bytes, room);
        if (!grown) {
            status = model_no_memory(error, path, room);
            goto done;
        }
        bytes = grown;
        used += fread(bytes + used, 1, room - used, file);
        if (used < room)
            break;
        if (used > limit) {
            status = model_fail(error, CODA_INVALID, "'%s' is larger than %zu bytes: it is no such file", path, limit);
            goto done;
        }
        room *= 2;
    }
    if (ferror(file)) {
        status = model_system_error(error, "read", path);
        goto done;
    }
    *text = bytes;
    *length = used;
    bytes = NULL;
done:
    free(bytes);
    fclose(file);
    return status;
}

/* Names of a table as config_find's suggestions want them. */
static void collect(const struct config_key *keys, const char **names, int *count)
{
    for (; keys->name; keys++)
        names[(*count)++] = keys->name;
}

static const char *suggestion(const char *name, bool training)
{
    const char *names[64];
    int count = 0;
    if (training) {
        collect(train_keys, names, &count);
        names[count++] = "model";
    } else {
        collect(model_keys, names, &count);
    }
    names[count] = NULL;
    return nearest_name(name, names);
}

static void unknown_key(struct json_reader *json, size_t at, const char *name, bool training)
{
    const char *near = suggestion(name, training);
    const struct config_key *other = config_find(training ? model_keys : train_keys, name);
    if (other)
        json_read_fail(json, CODA_INVALID, at, "`%s` is a key of %s", name,
                       training ? "the model: put it inside \"model\": { }" : "training, not of the model");
    else if (near)
        json_read_fail(json, CODA_INVALID, at, "unknown key `%s`: did you mean `%s`?", name, near);
    else
        json_read_fail(json, CODA_INVALID, at, "unknown key `%s`: the known ones are in `coda train --help`", name);
}

static bool foreign_key(struct json_reader *json, const char *name, size_t at)
{
    int i = 0;
    while (i < FOREIGN_COUNT && strcmp(foreign_keys[i].name, name) != 0)
        i++;
    if (i == FOREIGN_COUNT)
        return false;
    const char *required = foreign_keys[i].required;
    json_read_peek(json);
    size_t start = json->at;
    if (!json_read_skip(json) || !required)
        return true;
    size_t length = json->at - start;
    double value = 1;
    bool same = length == strlen(required) && memcmp(json->text + start, required, length) == 0;
    same = same || (strcmp(required, "0") == 0 && json_parse_number(json->text + start, length, &value) && value == 0);
    same = same || (strcmp(required, "false") == 0 && length == 4 && memcmp(json->text + start, "null", 4) == 0);
    if (!same)
        json_read_fail(json, CODA_UNSUPPORTED, at, "`%s` must be %s: this Llama knows no other", name, required);
    return true;
}

/* A set of the keys seen, to refuse one that is given twice. */
static void once(struct json_reader *json, uint64_t *seen, int index, const char *name, size_t at)
{
    if (*seen >> index & 1)
        json_read_fail(json, CODA_INVALID, at, "`%s` is given twice", name);
    *seen |= (uint64_t)1 << index;
}

static void read_model(struct json_reader *json, coda_train_config *config, uint64_t *seen)
{
    enum { ROPE_BIT = 63 };
    char name[64];
    json_read_object(json);
    while (json_read_key(json, name, sizeof name)) {
        size_t at = json->key_at;
        const struct config_key *key = config_find(model_keys, name);
        if (key) {
            once(json, seen, (int)(key - model_keys), name, at);
            if (key->kind != KEY_INTEGER || key->low > 0 || !json_read_null(json))
                config_read(json, key, config);
        } else if (strcmp(name, "rope_scaling") == 0 || strcmp(name, "rope_parameters") == 0) {
            once(json, seen, ROPE_BIT, name, at);
            config_read_rope(json, config);
        } else if (!foreign_key(json, name, at)) {
            unknown_key(json, at, name, false);
        }
    }
}

static void read_training(struct json_reader *json, coda_train_config *config)
{
    char name[64];
    uint64_t seen = 0, model_seen = 0;
    enum { MODEL_BIT = 63 };
    json_read_object(json);
    while (json_read_key(json, name, sizeof name)) {
        size_t at = json->key_at;
        const struct config_key *key = config_find(train_keys, name);
        if (key) {
            once(json, &seen, (int)(key - train_keys), name, at);
            config_read(json, key, config);
        } else if (strcmp(name, "model") == 0) {
            once(json, &seen, MODEL_BIT, name, at);
            read_model(json, config, &model_seen);
        } else {
            unknown_key(json, at, name, true);
        }
    }
}

/* Keys without which a config.json describes no model. */
static void require(struct json_reader *json, uint64_t seen)
{
    static const char *const needed[] = {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                                         "vocab_size"};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        const struct config_key *key = config_find(model_keys, needed[i]);
        if (!(seen >> (key - model_keys) & 1))
            json_read_fail(json, CODA_INVALID, 0, "the key `%s` is missing", needed[i]);
    }
}

coda_status coda_llama_config_load(const char *path, coda_llama_config *config, coda_error *error)
{
    char *text = NULL;
    size_t length = 0;
    coda_status status = read_file(path, LARGEST_CONFIG, &text, &length, error);
    if (status != CODA_OK)
        return status;
    coda_train_config read;
    memset(&read, 0, sizeof read);
    read.model.max_position_embeddings = 2048; /* what Hugging Face takes where the keys are absent */
    read.model.rms_norm_eps = 1e-6;
    read.model.rope_theta = 10000;
    struct json_reader json;
    uint64_t seen = 0;
    json_read_open(&json, text, length, path, error);
    read_model(&json, &read, &seen);
    if (json_read_end(&json) == CODA_OK)
        require(&json, seen);
    status = json.status;
    if (status == CODA_OK)
        status = coda_llama_config_check(&read.model, error);
    if (status == CODA_OK)
        *config = read.model;
    free(text);
    return status;
}

coda_status coda_train_config_load(const char *path, coda_train_config *config, coda_error *error)
{
    char *text = NULL;
    size_t length = 0;
    coda_status status = read_file(path, LARGEST_CONFIG, &text, &length, error);
    if (status != CODA_OK)
        return status;
    coda_train_config read = *config;
    struct json_reader json;
    json_read_open(&json, text, length, path, error);
    read_training(&json, &read);
    status = json_read_end(&json);
    if (status == CODA_OK)
        *config = read;
    free(text);
    return status;
}

static coda_status unknown_option(const char *name, coda_error *error)
{
    const char *near = suggestion(name, true);
    if (!near || strcmp(near, "model") == 0)
        near = suggestion(name, false);
    return model_fail(error, CODA_INVALID, "unknown key `%s`%s%s%s", name, near ? ": did you mean `" : "",
                      near ? near : "", near ? "`?" : "");
}

static coda_status wrong_option(const struct config_key *key, const char *value, coda_error *error)
{
    char low[32], high[32];
    json_format_number(key->low, low);
    json_format_number(key->high, high);
    if (key->kind == KEY_INTEGER || key->kind == KEY_REAL)
        return model_fail(error, CODA_INVALID, "`%s` must be %s from %s to %s; found \"%.100s\"", key->name,
                          key->kind == KEY_INTEGER ? "an integer" : "a number", low, high, value);
    return model_fail(error, CODA_INVALID, "`%s` must be %s; found \"%.100s\"", key->name,
                      key->kind == KEY_BOOLEAN ? "true or false"
                      : key->kind == KEY_TEXT  ? "a text without control characters"
                                               : key->help,
                      value);
}

/* The value as JSON: texts in quotes. Returns its length. */
static size_t quote(const struct config_key *key, const char *value, char *quoted)
{
    size_t used = 0;
    bool text = key->kind == KEY_TEXT || key->kind == KEY_CHOICE;
    if (text)
        quoted[used++] = '"';
    for (; *value; value++) {
        if (text && (*value == '"' || *value == '\\'))
            quoted[used++] = '\\';
        quoted[used++] = *value;
    }
    if (text)
        quoted[used++] = '"';
    return used;
}

coda_status coda_train_config_set(coda_train_config *config, const char *key, const char *value, coda_error *error)
{
    char name[64], quoted[2 * CODA_PATH_SIZE + 2];
    size_t length = strlen(key);
    if (length >= sizeof name || strlen(value) >= CODA_PATH_SIZE)
        return model_fail(error, CODA_INVALID, "the key `%.60s` or its value is too long", key);
    for (size_t i = 0; i <= length; i++)
        name[i] = key[i] == '-' ? '_' : key[i];
    const struct config_key *found = config_find(train_keys, name);
    if (!found)
        found = config_find(model_keys, name);
    if (!found)
        return unknown_option(name, error);
    coda_train_config changed = *config;
    struct json_reader json;
    json_read_open(&json, quoted, quote(found, value, quoted), name, NULL);
    config_read(&json, found, &changed);
    if (json_read_end(&json) != CODA_OK)
        return wrong_option(found, value, error);
    *config = changed;
    return CODA_OK;
}

const char *coda_train_config_key(int index, const char **help, const coda_train_config *config, char *text)
{
    const struct config_key *key = NULL;
    for (int list = 0; list < 2 && !key; list++) {
        const struct config_key *keys = list ? model_keys : train_keys;
        int count = 0;
        while (keys[count].name)
            count++;
        if (index >= 0 && index < count)
            key = &keys[index];
        index -= count;
    }
    if (!key)
        return NULL;
    if (help)
        *help = key->help;
    if (text && key->kind == KEY_TEXT) {
        snprintf(text, CODA_PATH_SIZE, "%s", (const char *)config + key->offset);
    } else if (text && key->kind == KEY_CHOICE) {
        snprintf(text, CODA_PATH_SIZE, "%s", key->choices[*(const int *)((const char *)config + key->offset)]);
    } else if (text) {
        struct json_text printed = {0};
        config_write(&printed, key, config);
        snprintf(text, CODA_PATH_SIZE, "%s", printed.text && !printed.failed ? printed.text : "");
        free(printed.text);
    }
    return key->name;
}

void coda_llama_config_defaults(coda_llama_config *config)
{
    *config = (coda_llama_config){
        .hidden_size = 256,
        .intermediate_size = 688,
        .num_hidden_layers = 4,
        .num_attention_heads = 8,
        .num_key_value_heads = 4,
        .head_dim = 32,
        .vocab_size = 256,
        .max_position_embeddings = 256,
        .rms_norm_eps = 1e-6,
        .rope_theta = 10000,
        .tie_word_embeddings = 1,
    };
}

void coda_train_config_defaults(coda_train_config *config)
{
    memset(config, 0, sizeof *config);
    coda_llama_config_defaults(&config->model);
    config->steps = 500;
    config->batch = 4;
    config->sequence = 256;
    config->accumulation = 1;
    config->learning_rate = 2e-3;
    config->minimum_rate = 0.1;
    config->warmup = 20;
    config->weight_decay = 0.1;
    config->beta1 = 0.9;
    config->beta2 = 0.95;
    config->epsilon = 1e-8;
    config->clip = 1;
    config->seed = 1;
    config->dtype = CODA_BF16;
    config->checkpoint_interval = 250;
    config->keep = 2;
    snprintf(config->out, sizeof config->out, "checkpoints");
}

/* Ranges again: the fields may have been set by a program instead of a file. */
static coda_status check_keys(const struct config_key *keys, const coda_train_config *config, coda_error *error)
{
    for (; keys->name; keys++) {
        const void *place = (const char *)config + keys->offset;
        double value = keys->kind == KEY_INTEGER ? (double)*(const int64_t *)place
                       : keys->kind == KEY_REAL  ? *(const double *)place
                                                 : 0;
        int choices = 0;
        while (keys->kind == KEY_CHOICE && keys->choices[choices])
            choices++;
        if (keys->kind == KEY_CHOICE && (*(const int *)place < 0 || *(const int *)place >= choices))
            return model_fail(error, CODA_INVALID, "`%s` must be %s; found %d", keys->name, keys->help,
                              *(const int *)place);
        if (keys->kind == KEY_TEXT && !memchr(place, 0, CODA_PATH_SIZE))
            return model_fail(error, CODA_INVALID, "`%s` is not zero-terminated", keys->name);
        if ((keys->kind == KEY_INTEGER || keys->kind == KEY_REAL) && !(value >= keys->low && value <= keys->high))
            return model_fail(error, CODA_INVALID, "`%s` must be from %.15g to %.15g; found %.15g", keys->name,
                              keys->low, keys->high, value);
    }
    return CODA_OK;
}

coda_status coda_llama_config_check(coda_llama_config *config, coda_error *error)
{
    coda_train_config whole;
    memset(&whole, 0, sizeof whole);
    whole.model = *config;
    coda_llama_config *model = &whole.model;
    coda_status status = check_keys(model_keys, &whole, error);
    if (status == CODA_OK)
        status = config_check_rope(&whole, error);
    if (status != CODA_OK)
        return status;
    if (model->num_key_value_heads == 0)
        model->num_key_value_heads = model->num_attention_heads;
    if (model->num_attention_heads % model->num_key_value_heads)
        return model_fail(error, CODA_INVALID,
                          "num_attention_heads (%lld) must be a multiple of num_key_value_heads (%lld)",
                          (long long)model->num_attention_heads, (long long)model->num_key_value_heads);
    if (model->head_dim == 0 && model->hidden_size % model->num_attention_heads)
        return model_fail(error, CODA_INVALID,
                          "hidden_size (%lld) must be a multiple of num_attention_heads (%lld), or head_dim be given",
                          (long long)model->hidden_size, (long long)model->num_attention_heads);
    if (model->head_dim == 0)
        model->head_dim = model->hidden_size / model->num_attention_heads;
    if (model->head_dim % 2 || model->head_dim > 512)
        return model_fail(error, CODA_INVALID,
                          "head_dim must be even, because RoPE rotates pairs, and at most 512; found %lld",
                          (long long)model->head_dim);
    if (coda_llama_parameters(model) > (int64_t)1 << 40)
        return model_fail(error, CODA_INVALID, "a model of %.3g parameters is out of reach: the limit is 2^40",
                          (double)coda_llama_parameters(model));
    *config = *model;
    return CODA_OK;
}

/* No overflow: the factors are bounded by the table of keys. */
int64_t coda_llama_parameters(const coda_llama_config *c)
{
    int64_t query = c->num_attention_heads * c->head_dim, key = c->num_key_value_heads * c->head_dim;
    int64_t layer = c->hidden_size * (2 * query + 2 * key + 3 * c->intermediate_size + 2);
    return c->num_hidden_layers * layer + c->hidden_size * (1 + c->vocab_size * (c->tie_word_embeddings ? 1 : 2));
}

coda_status coda_train_config_check(coda_train_config *config, coda_error *error)
{
    coda_train_config checked = *config;
    coda_status status = check_keys(train_keys, &checked, error);
    if (status == CODA_OK)
        status = coda_llama_config_check(&checked.model, error);
    if (status != CODA_OK)
        return status;
    if (checked.sequence > checked.model.max_position_embeddings)
        return model_fail(error, CODA_INVALID,
                          "sequence (%lld) must not exceed max_position_embeddings (%lld): raise that or shorten the "
                          "sequence",
                          (long long)checked.sequence, (long long)checked.model.max_position_embeddings);
    if ((double)checked.batch * (double)checked.sequence > 0x1p30)
        return model_fail(error, CODA_INVALID, "batch x sequence must be at most 2^30 tokens; use accumulation");
    *config = checked;
    return CODA_OK;
}
