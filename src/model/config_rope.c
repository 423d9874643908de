/* Scaled rotary frequencies: the object `rope_scaling` of a config.json, which newer files call `rope_parameters` and where
 * `rope_theta` moved too. */
#include "model/config.h"
#include <math.h>
#include <string.h>

static const char *const type_names[] = {"default", "linear", "llama3"}; /* by coda_rope_type */
enum { TYPE_COUNT = sizeof type_names / sizeof *type_names };

#define ROPE(field) offsetof(coda_train_config, model.rope_scaling.field)

static const struct config_key rope_keys[] = {
    {"factor", KEY_REAL, ROPE(factor), 1, 1e6, NULL, "how much longer the contexts became"},
    {"low_freq_factor", KEY_REAL, ROPE(low_freq_factor), 1e-6, 1e6, NULL,
     "waves fewer than this in the original context are stretched by the whole factor"},
    {"high_freq_factor", KEY_REAL, ROPE(high_freq_factor), 1e-6, 1e6, NULL, "waves more than this are left alone"},
    {"original_max_position_embeddings", KEY_INTEGER, ROPE(original_max_position_embeddings), 1, 1 << 24, NULL,
     "the context before the stretching"},
    {NULL, KEY_TEXT, 0, 0, 0, NULL, NULL},
};

static int keys_of(coda_rope_type type)
{
    return type == CODA_ROPE_LLAMA3 ? 4 : type == CODA_ROPE_LINEAR ? 1 : 0;
}

static void read_type(struct json_reader *json, coda_rope_scaling *scaling)
{
    char name[64];
    json_read_peek(json);
    size_t at = json->at;
    if (!json_read_string(json, name, sizeof name))
        return;
    for (int i = 0; i < TYPE_COUNT; i++)
        if (strcmp(name, type_names[i]) == 0) {
            scaling->type = (coda_rope_type)i;
            return;
        }
    json_read_fail(json, CODA_UNSUPPORTED, at,
                   "the rotary embedding `%s` is not known here: `default`, `linear` and `llama3` are", name);
}

void config_read_rope(struct json_reader *json, coda_train_config *config)
{
    char name[64];
    unsigned seen = 0;
    enum { TYPE_BIT = 30, THETA_BIT = 31 };
    if (json_read_null(json))
        return;
    size_t start = json->key_at;
    json_read_object(json);
    while (json_read_key(json, name, sizeof name)) {
        const struct config_key *key = config_find(rope_keys, name);
        unsigned bit = key ? (unsigned)(key - rope_keys) : strcmp(name, "rope_theta") == 0 ? THETA_BIT : TYPE_BIT;
        if (!key && bit == TYPE_BIT && strcmp(name, "rope_type") != 0 && strcmp(name, "type") != 0) {
            json_read_fail(json, CODA_UNSUPPORTED, json->key_at,
                           "`%s` of the rotary embedding is not known here: rope_type, rope_theta, factor, "
                           "low_freq_factor, high_freq_factor and original_max_position_embeddings are",
                           name);
            return;
        }
        /* `type` is the older name of `rope_type`: files have been seen that carry both */
        if (seen >> bit & 1 && bit != TYPE_BIT)
            json_read_fail(json, CODA_INVALID, json->key_at, "`%s` is given twice", name);
        seen |= 1u << bit;
        if (bit == TYPE_BIT)
            read_type(json, &config->model.rope_scaling);
        else
            config_read(json, key ? key : config_find(model_keys, "rope_theta"), config);
    }
    for (int i = 0; i < keys_of(config->model.rope_scaling.type) && json->status == CODA_OK; i++)
        if (!(seen >> i & 1))
            json_read_fail(json, CODA_INVALID, start, "a rotary embedding of type `%s` needs `%s`",
                           type_names[config->model.rope_scaling.type], rope_keys[i].name);
}

void config_write_rope(struct json_text *text, const coda_train_config *config, const char *indent)
{
    coda_rope_type type = config->model.rope_scaling.type;
    if (type == CODA_ROPE_DEFAULT)
        return;
    json_print(text, ",\n%s\"rope_scaling\": {\"rope_type\": \"%s\"", indent, type_names[type]);
    for (int i = 0; i < keys_of(type); i++) {
        json_print(text, ", \"%s\": ", rope_keys[i].name);
        config_write(text, &rope_keys[i], config);
    }
    json_print(text, "}");
}

coda_status config_check_rope(const coda_train_config *config, coda_error *error)
{
    const coda_rope_scaling *scaling = &config->model.rope_scaling;
    if ((int)scaling->type < 0 || (int)scaling->type >= TYPE_COUNT)
        return model_fail(error, CODA_INVALID, "rope_scaling has the unknown type %d", (int)scaling->type);
    for (int i = 0; i < keys_of(scaling->type); i++) {
        const void *place = (const char *)config + rope_keys[i].offset;
        double value = rope_keys[i].kind == KEY_INTEGER ? (double)*(const int64_t *)place : *(const double *)place;
        if (!(value >= rope_keys[i].low && value <= rope_keys[i].high))
            return model_fail(error, CODA_INVALID, "`%s` of rope_scaling must be from %.15g to %.15g; found %.15g",
                              rope_keys[i].name, rope_keys[i].low, rope_keys[i].high, value);
    }
    if (scaling->type == CODA_ROPE_LLAMA3 && !(scaling->high_freq_factor > scaling->low_freq_factor))
        return model_fail(error, CODA_INVALID, "high_freq_factor (%g) must be above low_freq_factor (%g)",
                          scaling->high_freq_factor, scaling->low_freq_factor);
    return CODA_OK;
}

double config_rope_frequency(const coda_llama_config *config, int64_t i)
{
    const coda_rope_scaling *scaling = &config->rope_scaling;
    double frequency = pow(config->rope_theta, -2 * (double)i / (double)config->head_dim);
    if (scaling->type == CODA_ROPE_DEFAULT)
        return frequency;
    if (scaling->type == CODA_ROPE_LINEAR)
        return frequency / scaling->factor;
    /* Llama 3.1's frequencies: slow waves are stretched, quick ones kept, those between blended. */
    double waves = (double)scaling->original_max_position_embeddings * frequency / (2 * 3.14159265358979323846);
    double kept = (waves - scaling->low_freq_factor) / (scaling->high_freq_factor - scaling->low_freq_factor);
    kept = kept < 0 ? 0 : kept > 1 ? 1 : kept;
    return frequency * (kept + (1 - kept) / scaling->factor);
}
