/* Training data: tokens in one file or in the shards of a directory, sampled by seed and number alone. */
#ifndef CODA_MODEL_DATA_H
#define CODA_MODEL_DATA_H

#include "model/common.h"

struct shard {
    char *path;
    int descriptor;
    int64_t first, tokens; /* place in the whole, and length */
};

struct data {
    int64_t tokens;
    int width; /* bytes of a token: 1, 2 or 4 */
    int shard_count;
    struct shard *shard;
    uint64_t fingerprint; /* of every byte */
};

/* Opens and reads all of it once: every token must be below `vocabulary`, and there must be more than `sequence`. */
coda_status data_open(struct data *data, const char *path, coda_data_format format, int64_t vocabulary,
                      int64_t sequence, coda_error *error);
void data_close(struct data *data);

/* Sample `number` of an endless sequence: `length` tokens and the one that follows each. An epoch shows windows that
 * lie end to end, in random order; where they begin changes from epoch to epoch. */
coda_status data_sample(const struct data *data, uint64_t seed, int64_t number, int64_t length, int32_t *tokens,
                        int32_t *targets, coda_error *error);

#endif
