/* Products of bf16 in pairs: VDPBF16PS adds two products a lane. 24 of 32 registers hold the sums. */
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512BF16__)
#define LANES_AVX512
#define MICRO_ROWS    12
#define MICRO_VECTORS 2
#include "cpu/machine.h"
#include "cpu/pack_pairs.h"

INLINE lanes multiply_word(const char *word, lanes column, lanes sum)
{
    int32_t pair;
    memcpy(&pair, word, sizeof pair);
    return (lanes)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)column);
}

#include "cpu/microkernel_product.h"

static void multiply_pairs(int64_t depth, const void *left, const void *right, float *c, int64_t stride, bool start,
                           const void *next)
{
    multiply_panels(depth / 2, left, packed_steps, right, c, stride, start, next);
}

static void multiply_pair_rows(int64_t depth, const void *left, int64_t row, const void *right, float *c,
                               int64_t stride, bool start, const void *next)
{
    multiply_panels(depth / 2, left, (struct left_steps){row, sizeof(float)}, right, c, stride, start, next);
}

#define PAIR_PACKING                                                                                                   \
    {                                                                                                                  \
        .step = 2, .deep = {[CODA_BF16] = pack_deep_pairs}, .wide = { [CODA_BF16] = pack_wide_pairs }                  \
    }

const struct microkernel microkernel_avx512bf16 = {
    .name = "avx512bf16",
    .needs = CPU_AVX512_BF16,
    .only_bf16 = true,
    .rows = MICRO_ROWS,
    .columns = MICRO_COLUMNS,
    .depth = 2,
    .tile_rows = 96,
    .tile_columns = 1024,
    .packed = CODA_BF16,
    .side = {PAIR_PACKING, PAIR_PACKING},
    .run = multiply_pairs,
    .run_rows = multiply_pair_rows,
};
#else
typedef int no_avx512bf16;
#endif
