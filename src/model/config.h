/* Configurations as tables of keys: one row serves the file, the command line, the help, the checks and the writer. */
#ifndef CODA_MODEL_CONFIG_H
#define CODA_MODEL_CONFIG_H

#include "model/json.h"

enum key_kind { KEY_INTEGER, KEY_REAL, KEY_BOOLEAN, KEY_TEXT, KEY_CHOICE };

struct config_key {
    const char *name;
    enum key_kind kind;
    size_t offset;              /* in coda_train_config */
    double low, high;           /* of numbers */
    const char *const *choices; /* of KEY_CHOICE, by value; ends in NULL; "" is not offered */
    const char *help;
};

extern const struct config_key model_keys[]; /* end in a row without a name */
extern const struct config_key train_keys[];

/* Reads one value. */
void config_read(struct json_reader *json, const struct config_key *key, coda_train_config *config);
/* Writes one value as JSON. */
void config_write(struct json_text *text, const struct config_key *key, const coda_train_config *config);
/* The rotary embedding: `rope_scaling`, or `rope_parameters` as newer files have it; nothing is written of the plain one. */
void config_read_rope(struct json_reader *json, coda_train_config *config);
void config_write_rope(struct json_text *text, const coda_train_config *config, const char *indent);
coda_status config_check_rope(const coda_train_config *config, coda_error *error);
/* Radians a position of pair i of a head. */
double config_rope_frequency(const coda_llama_config *config, int64_t i);
/* NULL if there is none of that name. */
const struct config_key *config_find(const struct config_key *keys, const char *name);

/* The text of config.json, as Hugging Face reads it, and of training.json. */
void write_model_config(struct json_text *text, const coda_llama_config *config, coda_dtype dtype, const char *indent);
void write_train_config(struct json_text *text, const coda_train_config *config);

/* Reads a whole file of at most `limit` bytes; release with free. */
coda_status read_file(const char *path, size_t limit, char **text, size_t *length, coda_error *error);

#endif
