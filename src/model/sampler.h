/* Chooses a token from logits. */
#ifndef CODA_MODEL_SAMPLER_H
#define CODA_MODEL_SAMPLER_H

#include "model/common.h"

/* `random` is uniform in [0, 1). logits are used up as scratch; order has room for `count` ints.
 * Returns -1 where no logit is finite. */
int32_t choose_token(float *logits, int32_t *order, int64_t count, double temperature, int64_t top_k, double random);

#endif
