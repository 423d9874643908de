/* Attention on tile registers. Permission to use them was asked when the CPU device opened, which names them. */
#include "model/attention_pairs.h"
#if (defined(__AMX_TILE__) || defined(__AMXTILE__)) && (defined(__AMX_BF16__) || defined(__AMXBF16__)) &&              \
    defined(__AVX512BW__)
#define LANES_AVX512
#include "runtime/lanes.h"
#include "runtime/amx_tiles.h"

/* 16 x 32 sums. Few tiles in use leave registers to rename. */
static void multiply_rows(int64_t depth, const uint16_t *a, int64_t a_stride, const uint16_t *b, int64_t b_step,
                          float *c, int64_t c_stride, int add)
{
    const int64_t a_bytes = 2 * a_stride, c_bytes = 4 * c_stride;
    if (add) {
        TILE_LOAD(0, c, c_bytes);
        TILE_LOAD(1, c + 16, c_bytes);
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
    }
    for (int64_t k = 0; k < depth; k += 32, b += b_step) {
        TILE_LOAD(2, a + k, a_bytes);
        TILE_LOAD(3, b, 64);
        TILE_DOT(0, 2, 3);
        TILE_LOAD(3, b + 512, 64);
        TILE_DOT(1, 2, 3);
    }
    TILE_STORE(0, c, c_bytes);
    TILE_STORE(1, c + 16, c_bytes);
}

static void multiply(int64_t m, int64_t n, int64_t depth, const uint16_t *a, int64_t a_stride, const uint16_t *b,
                     float *c, int add)
{
    for (int64_t i = 0; i < m; i += 16)
        for (int64_t j = 0; j < n; j += 32)
            multiply_rows(depth, a + i * a_stride, a_stride, b + j / 16 * 512, n / 16 * 512, c + i * n + j, n, add);
}

#include "model/attention_pairs_tiles.h"

const struct attention_pairs_code attention_pairs_amx = {"amx",   tiles_begin,  tiles_end, pack,
                                                         forward, row_products, backward,  write};
#endif
