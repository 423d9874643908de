/* Attention by VDPBF16PS, which adds two products a lane. */
#include "model/attention_pairs.h"
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512BF16__)
#define LANES_AVX512
#include "runtime/lanes.h"
#include <immintrin.h>

enum { ROWS = 8 };

/* ROWS x 32 sums. */
static void multiply_rows(int64_t depth, const uint16_t *a, int64_t a_stride, const uint16_t *b, int64_t b_step,
                          float *c, int64_t c_stride, int add)
{
    __m512 sum[ROWS][2];
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
        for (int h = 0; h < 2; h++)
            sum[i][h] = add ? _mm512_loadu_ps(c + i * c_stride + 16 * h) : _mm512_setzero_ps();
    for (int64_t k = 0; k < depth; k += 32, b += b_step)
        for (int p = 0; p < 16; p++) {
            const __m512bh low = (__m512bh)_mm512_loadu_si512(b + 32 * p),
                           high = (__m512bh)_mm512_loadu_si512(b + 512 + 32 * p);
#pragma GCC unroll 8
            for (int i = 0; i < ROWS; i++) {
                int32_t pair;
                memcpy(&pair, a + i * a_stride + k + 2 * p, sizeof pair);
                const __m512bh row = (__m512bh)_mm512_set1_epi32(pair);
                sum[i][0] = _mm512_dpbf16_ps(sum[i][0], row, low);
                sum[i][1] = _mm512_dpbf16_ps(sum[i][1], row, high);
            }
        }
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
        for (int h = 0; h < 2; h++)
            _mm512_storeu_ps(c + i * c_stride + 16 * h, sum[i][h]);
}

static void multiply(int64_t m, int64_t n, int64_t depth, const uint16_t *a, int64_t a_stride, const uint16_t *b,
                     float *c, int add)
{
    for (int64_t j = 0; j < n; j += 32)
        for (int64_t i = 0; i < m; i += ROWS)
            multiply_rows(depth, a + i * a_stride, a_stride, b + j / 16 * 512, n / 16 * 512, c + i * n + j, n, add);
}

#include "model/attention_pairs_tiles.h"

const struct attention_pairs_code attention_pairs_avx512bf16 = {"avx512bf16", NULL,         NULL,     pack,
                                                                forward,      row_products, backward, write};
#endif
