/* Attention on bf16 products in pairs, as the matrix and dot product units of processors take them. Scores stand
 * transposed, keys by queries: a query is a column, so that maxima, sums and factors of queries need nothing across a
 * vector, and probabilities leave as the products read them. */
#ifndef CODA_MODEL_ATTENTION_PAIRS_H
#define CODA_MODEL_ATTENTION_PAIRS_H

#include <stdint.h>

/* Up to 64 rows of one head in memory. */
struct pairs_rows {
    const uint16_t *data;
    int64_t stride, count; /* elements from row to row; rows that there are */
};

struct pairs_shape {
    int64_t depth, width; /* elements of a head, and of a padded row */
    float scale;          /* 1/sqrt(depth) */
};

/* What products read of a block of 64 rows; each part has 64 * width elements and may be NULL where it is not needed. */
struct pairs_block {
    uint16_t *rows;      /* [64, width] */
    uint16_t *columns;   /* [width, 64] */
    uint16_t *by_row;    /* right operand whose K runs over the head's elements, its columns over the rows */
    uint16_t *by_column; /* right operand whose K runs over the rows */
};

/* A block of queries of one head against all blocks of keys up to its own. */
struct pairs_forward {
    struct pairs_shape shape;
    struct pairs_rows queries;
    const uint16_t *keys;   /* rows, block by block */
    const uint16_t *values; /* columns, likewise */
    int64_t block;
    uint16_t *output;
    int64_t output_stride;
    float lse[64];
    float *scratch; /* of pairs_forward_scratch floats */
};

/* One head: all of its queries, and every `parts`-th block of keys from block `part` on. Blocks lie 64 * width elements
 * apart. */
struct pairs_backward {
    struct pairs_shape shape;
    int64_t part, parts, blocks;
    struct pairs_block keys, values;      /* rows and columns; rows */
    struct pairs_block queries, d_output; /* by_row and by_column */
    const float *lse, *delta;             /* [64 * blocks] */
    float *d_queries;                     /* [width, 64] each block, added to; without the scale */
    float *d_keys, *d_values;             /* [64, width] each block, added to; keys without the scale */
    float *scratch;                       /* of PAIRS_BACKWARD_SCRATCH floats */
};

enum { PAIRS_BACKWARD_SCRATCH = 2 * 64 * 64 + 3 * 64 * 32 };

static inline int64_t pairs_forward_scratch(int64_t width)
{
    return 64 * 64 + 64 * 32 + 2 * 32 * width + 64 * width;
}

/* The arithmetic of one instruction set. */
struct attention_pairs_code {
    const char *name;
    void (*begin)(void), (*end)(void); /* around the work of a task, on its thread; may be NULL */
    void (*pack)(const struct pairs_shape *shape, const struct pairs_rows *from, const struct pairs_block *to);
    void (*forward)(struct pairs_forward *work);
    /* delta[i] = sum of a row of one matrix times that of another, both packed by_row */
    void (*row_products)(const struct pairs_shape *shape, const uint16_t *a, const uint16_t *b, float *delta);
    void (*backward)(const struct pairs_backward *work);
    /* Rounds `count` rows of [64, width] or, `transposed`, of [width, 64]; `memory` has 64 * width elements. */
    void (*write)(const struct pairs_shape *shape, const float *from, int transposed, float factor, uint16_t *to,
                  int64_t stride, int64_t count, uint16_t *memory);
};
extern const struct attention_pairs_code attention_pairs_amx, attention_pairs_avx512bf16; /* x86-64 alone */

#endif
