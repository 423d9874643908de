/* What all packing is made of: stores of narrow steps, and transposition. */
#ifndef CODA_CPU_MICROKERNEL_PACKING_H
#define CODA_CPU_MICROKERNEL_PACKING_H

#include "cpu/convert.h"
#include "cpu/instruction_set.h"
#include "cpu/interleave.h"

/* A vector is stored at the end of a narrower step only where what it spills over is written later, or else in part. */
INLINE void store_step(float *to, lanes x, int count, bool may_spill)
{
    if (count >= LANES || may_spill)
        lanes_store(to, x);
    else
        store_part(to, x, count);
}

enum { SOME_STEPS = 4 }; /* as many as store_steps joins */

/* `count` steps one after the other, each narrower than a vector. Four of twelve words are three whole vectors: stores that
 * overlap take much longer. */
INLINE void store_steps(float *to, const lanes *step, int count, int width, bool may_spill)
{
    int done = 0;
#if defined(LANES_AVX512)
    for (; width == 12 && done + 4 <= count; done += 4) {
        const __m512i *x = (const __m512i *)(step + done);
        float *at = to + done * 12;
        _mm512_storeu_si512(at, _mm512_mask_expand_epi32(x[0], 0xf000, x[1]));
        _mm512_storeu_si512(at + 16, _mm512_mask_expand_epi32(_mm512_alignr_epi32(x[1], x[1], 4), 0xff00, x[2]));
        _mm512_storeu_si512(at + 32, _mm512_mask_expand_epi32(_mm512_alignr_epi32(x[2], x[2], 8), 0xfff0, x[3]));
    }
#endif
    for (; done < count; done++)
        store_step(to + done * width, step[done], width, may_spill || done + 1 < count);
}

/* Rows become columns: log2(LANES) rounds, each of which interleaves row i with row i + LANES / 2. */
INLINE void transpose(lanes row[LANES])
{
    for (int round = 1; round < LANES; round *= 2) {
        float next[LANES * LANES];
#pragma GCC unroll 8
        for (int i = 0; i < LANES / 2; i++)
            store_interleaved(next + 2 * i * LANES, row[i], row[i + LANES / 2]);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            row[i] = lanes_load(next + i * LANES);
    }
}

#if defined(LANES_AVX512) || defined(LANES_AVX2)
INLINE __m128 four_words(const char *from)
{
    __m128 x;
    memcpy(&x, from, sizeof x);
    return x;
}
#endif

#if defined(LANES_AVX512)
#define UNPACK_LOW(a, b)        _mm512_unpacklo_ps(a, b)
#define UNPACK_HIGH(a, b)       _mm512_unpackhi_ps(a, b)
#define UNPACK_LOW_PAIRS(a, b)  _mm512_unpacklo_pd((__m512d)(a), (__m512d)(b))
#define UNPACK_HIGH_PAIRS(a, b) _mm512_unpackhi_pd((__m512d)(a), (__m512d)(b))
#elif defined(LANES_AVX2)
#define UNPACK_LOW(a, b)        _mm256_unpacklo_ps(a, b)
#define UNPACK_HIGH(a, b)       _mm256_unpackhi_ps(a, b)
#define UNPACK_LOW_PAIRS(a, b)  _mm256_unpacklo_pd((__m256d)(a), (__m256d)(b))
#define UNPACK_HIGH_PAIRS(a, b) _mm256_unpackhi_pd((__m256d)(a), (__m256d)(b))
#endif

/* Rows of LANES words in memory become columns: parts of four words are loaded into their places, so that only four by four
 * words are left to be turned within parts. Rows from `rows` on repeat the last. */
INLINE void transpose_memory(const char *from, int64_t stride, int rows, lanes column[LANES])
{
#if defined(LANES_AVX512) || defined(LANES_AVX2)
    const char *row[LANES];
    for (int i = 0; i < LANES; i++) {
        row[i] = from + (i < rows ? i : rows - 1) * stride;
        __builtin_prefetch(row[i] + 256); /* so many rows are too many for the processor to foresee */
    }
#pragma GCC unroll 4
    for (int q = 0; q < LANES / 4; q++) {
        lanes part[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
#if defined(LANES_AVX512)
            __m512 x = _mm512_castps128_ps512(four_words(row[i] + 16 * q));
            x = _mm512_insertf32x4(x, four_words(row[i + 4] + 16 * q), 1);
            x = _mm512_insertf32x4(x, four_words(row[i + 8] + 16 * q), 2);
            part[i] = _mm512_insertf32x4(x, four_words(row[i + 12] + 16 * q), 3);
#else
            const __m256 x = _mm256_castps128_ps256(four_words(row[i] + 16 * q));
            part[i] = _mm256_insertf128_ps(x, four_words(row[i + 4] + 16 * q), 1);
#endif
        }
        const lanes a = UNPACK_LOW(part[0], part[1]), b = UNPACK_HIGH(part[0], part[1]);
        const lanes c = UNPACK_LOW(part[2], part[3]), d = UNPACK_HIGH(part[2], part[3]);
        column[4 * q] = (lanes)UNPACK_LOW_PAIRS(a, c);
        column[4 * q + 1] = (lanes)UNPACK_HIGH_PAIRS(a, c);
        column[4 * q + 2] = (lanes)UNPACK_LOW_PAIRS(b, d);
        column[4 * q + 3] = (lanes)UNPACK_HIGH_PAIRS(b, d);
    }
#else
    for (int i = 0; i < LANES; i++)
        column[i] = lanes_load(from + (i < rows ? i : rows - 1) * stride);
    transpose(column);
#endif
}

#endif
