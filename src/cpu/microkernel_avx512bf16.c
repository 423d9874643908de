/* Products of bf16 in pairs: VDPBF16PS adds two products a lane. 24 of 32 registers hold the sums. */
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512BF16__)
#define LANES_AVX512
#include "cpu/machine.h"
#include "cpu/pack_pairs.h"

enum { PAIR_ROWS = 12, PAIR_VECTORS = 2, PAIR_COLUMNS = PAIR_VECTORS * LANES, TURN = 8 /* steps of K */ };

INLINE __m512bh load_columns(const char *b)
{
    return (__m512bh)_mm512_loadu_si512(b);
}

INLINE __m512bh repeat_pair(const char *a)
{
    int32_t pair;
    memcpy(&pair, a, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

INLINE void multiply_steps(const char *a, const char *b, int64_t steps, __m512 sum[PAIR_ROWS][PAIR_VECTORS])
{
    for (int64_t k = 0; k < steps; k++) {
        const __m512bh low = load_columns(b), high = load_columns(b + 64);
#pragma GCC unroll 16
        for (int i = 0; i < PAIR_ROWS; i++) {
            const __m512bh row = repeat_pair(a + 4 * i);
            sum[i][0] = _mm512_dpbf16_ps(sum[i][0], row, low);
            sum[i][1] = _mm512_dpbf16_ps(sum[i][1], row, high);
        }
        a += 4 * PAIR_ROWS;
        b += 4 * PAIR_COLUMNS;
    }
}

static void multiply_pairs(int64_t depth, const void *left, const void *right, float *c, int64_t stride, bool start,
                           const void *next)
{
    const char *a = left, *b = right;
    const char *line = next;
    const float *below = c + PAIR_ROWS * stride, *end = below + PAIR_ROWS * stride;
    __m512 sum[PAIR_ROWS][PAIR_VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < PAIR_ROWS; i++)
#pragma GCC unroll 4
        for (int v = 0; v < PAIR_VECTORS; v++)
            sum[i][v] = start ? _mm512_setzero_ps() : _mm512_loadu_ps(c + i * stride + v * LANES);
    for (; depth >= TURN; depth -= TURN) {
        __builtin_prefetch(line, 0, 2);
        line += 64;
        for (int v = 0; below < end && v < PAIR_VECTORS; v++) /* the sums that come next */
            __builtin_prefetch(below + v * LANES, 1, 3);
        below += stride;
        multiply_steps(a, b, TURN / 2, sum);
        a += 2 * TURN * PAIR_ROWS;
        b += 2 * TURN * PAIR_COLUMNS;
    }
    multiply_steps(a, b, depth / 2, sum);
#pragma GCC unroll 16
    for (int i = 0; i < PAIR_ROWS; i++)
#pragma GCC unroll 4
        for (int v = 0; v < PAIR_VECTORS; v++)
            _mm512_storeu_ps(c + i * stride + v * LANES, sum[i][v]);
}

#define PAIR_PACKING                                                                                                   \
    {                                                                                                                  \
        .step = 2, .deep = {[CODA_BF16] = pack_deep_pairs}, .wide = { [CODA_BF16] = pack_wide_pairs }                  \
    }

const struct microkernel microkernel_avx512bf16 = {
    .name = "avx512bf16",
    .needs = CPU_AVX512_BF16,
    .only_bf16 = true,
    .rows = PAIR_ROWS,
    .columns = PAIR_COLUMNS,
    .depth = 2,
    .tile_rows = 96,
    .tile_columns = 1024,
    .packed = CODA_BF16,
    .side = {PAIR_PACKING, PAIR_PACKING},
    .run = multiply_pairs,
};
#else
typedef int no_avx512bf16;
#endif
