/* Causal grouped-query attention, forward and backward, in blocks: no sequence x sequence matrix is ever stored. Sums
 * run in an order that shapes fix, so results do not depend on the number of threads. */
#ifndef CODA_MODEL_ATTENTION_H
#define CODA_MODEL_ATTENTION_H

#include "model/common.h"

enum { ATTENTION_BLOCK = 64 }; /* queries, and keys, of a block */

/* One block of queries of one head. Rows are padded to `width` columns with zeros. */
struct attention_block {
    const float *queries; /* [64, width], scaled by 1/sqrt(head_dim) */
    const float *keys;    /* transposed: [width, length] */
    const float *values;  /* [length, width] */
    int64_t width, length;
    int64_t block; /* which block of queries */
    float *output; /* [64, width] */
    float *lse;    /* [64] */
    float *scores; /* [64, 64], scratch */
};

/* The gradient through one head: all of its queries, and every `parts`-th block of keys from block `part` on. */
struct attention_head {
    int64_t part, parts;
    const float *queries;           /* [length, width], scaled */
    const float *keys;              /* [length, width] */
    const float *keys_transposed;   /* [width, length] */
    const float *values_transposed; /* [width, length] */
    const float *d_output;          /* [length, width] */
    const float *lse, *delta;       /* [length]; delta: sum of output * d_output */
    int64_t width, length;
    float *d_queries, *d_keys,
        *d_values;                   /* [length, width], added to; d_queries still lacks the factor 1/sqrt(head_dim) */
    float *probabilities, *d_scores; /* [64, 64], scratch */
};

/* The arithmetic for one instruction set. */
struct attention_code {
    const char *name;
    void (*forward)(const struct attention_block *block);
    void (*backward)(const struct attention_head *head);
};
extern const struct attention_code attention_avx2, attention_avx512; /* x86-64 alone */
const struct attention_code *attention_code_choose(void);
/* For operands of bf16 where the device multiplies pairs of them; NULL: it does not. */
struct attention_pairs_code;
const struct attention_pairs_code *attention_pairs_choose(const coda_device *device);

/* Shapes of a call, and the scratch that calls share. */
struct attention {
    coda_device *device;
    const struct attention_code *code;
    const struct attention_pairs_code *pairs; /* NULL: `code` serves */
    int64_t heads, kv_heads, head_dim;
    coda_dtype dtype;
    int64_t room; /* floats in `memory` */
    float *memory;
    double bytes_moved;
};

void attention_open(struct attention *attention, coda_device *device, const coda_llama_config *config,
                    coda_dtype dtype);
void attention_close(struct attention *attention);

/* qkv      [batch * sequence, (heads + 2 kv_heads) * head_dim]: rotated queries and keys, values
 * output   [batch * sequence, heads * head_dim]
 * lse      [batch * sequence, heads] f32: log of the sum of exponentials, for the backward */
coda_status attention_forward(struct attention *attention, int64_t batch, int64_t sequence, const void *qkv,
                              void *output, float *lse, coda_error *error);
/* d_qkv: of the rotated queries and keys, and the values; every element is written */
coda_status attention_backward(struct attention *attention, int64_t batch, int64_t sequence, const void *qkv,
                               const void *output, const void *d_output, const float *lse, void *d_qkv,
                               coda_error *error);
/* One query at the end of `length` keys and values, [length, 2 kv_heads * head_dim] of a cache. */
coda_status attention_decode(struct attention *attention, const void *query, const void *cache, int64_t length,
                             void *output, coda_error *error);

#endif
