/* Vectors of f32 of one instruction set. A file that needs them defines LANES_AVX512, LANES_AVX2 or nothing (portable:
 * four lanes, or LANES of them, which every compiler maps to what the machine has), includes this header and then the
 * templates written on it. */
#ifndef CODA_RUNTIME_LANES_H
#define CODA_RUNTIME_LANES_H

#include "runtime/shuffle.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(LANES_AVX512)
#define LANES 16
#elif defined(LANES_AVX2)
#define LANES 8
#elif !defined(LANES)
#define LANES 4
#endif
#if defined(LANES_AVX512) || defined(LANES_AVX2)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline, unused))

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef uint16_t halfwords __attribute__((vector_size(2 * LANES)));
typedef uint8_t bytes __attribute__((vector_size(LANES)));

INLINE lanes lanes_load(const void *from)
{
    lanes x;
    memcpy(&x, from, sizeof x);
    return x;
}

INLINE void lanes_store(void *to, lanes x)
{
    memcpy(to, &x, sizeof x);
}

/* Subtracting zero keeps -0, which adding zero does not. */
INLINE lanes lanes_set(float x)
{
    return x - (lanes){0};
}

INLINE words words_set(uint32_t x)
{
    return x - (words){0};
}

/* first, first + 1, .. */
INLINE ints lanes_count(int first)
{
    ints x = {0};
    for (int i = 0; i < LANES; i++)
        x[i] = first + i;
    return x;
}

/* mask: all ones or all zeros a lane, as comparisons give. */
INLINE lanes lanes_select(ints mask, lanes yes, lanes no)
{
#if defined(LANES_AVX2)
    return _mm256_blendv_ps(no, yes, (__m256)mask);
#else
    return (lanes)(((ints)yes & mask) | ((ints)no & ~mask));
#endif
}

INLINE words words_select(ints mask, words yes, words no)
{
    return (words)lanes_select(mask, (lanes)yes, (lanes)no);
}

/* a * b + c, rounded once where the machine can. */
INLINE lanes lanes_fma(lanes a, lanes b, lanes c)
{
#if defined(LANES_AVX512)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(LANES_AVX2)
    return _mm256_fmadd_ps(a, b, c);
#elif defined(__ARM_FEATURE_FMA)
    for (int i = 0; i < LANES; i++)
        c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
#else
    return a * b + c;
#endif
}

/* a < b ? a : b, so b where either is a NaN. */
INLINE lanes lanes_lesser(lanes a, lanes b)
{
#if defined(LANES_AVX512)
    return _mm512_min_ps(a, b);
#elif defined(LANES_AVX2)
    return _mm256_min_ps(a, b);
#elif LANES == 4 && defined(__SSE2__)
    return _mm_min_ps(a, b);
#else
    return lanes_select(a < b, a, b);
#endif
}

INLINE lanes lanes_greater(lanes a, lanes b)
{
#if defined(LANES_AVX512)
    return _mm512_max_ps(a, b);
#elif defined(LANES_AVX2)
    return _mm256_max_ps(a, b);
#elif LANES == 4 && defined(__SSE2__)
    return _mm_max_ps(a, b);
#else
    return lanes_select(a > b, a, b);
#endif
}

/* A NaN in either is the result. */
INLINE lanes lanes_min(lanes a, lanes b)
{
    return lanes_select(a != a, a, lanes_lesser(a, b));
}

INLINE lanes lanes_max(lanes a, lanes b)
{
    return lanes_select(a != a, a, lanes_greater(a, b));
}

INLINE lanes lanes_sqrt(lanes x)
{
#if defined(LANES_AVX512)
    return _mm512_sqrt_ps(x);
#elif defined(LANES_AVX2)
    return _mm256_sqrt_ps(x);
#elif LANES == 4 && defined(__SSE2__)
    return _mm_sqrt_ps(x);
#else
    for (int i = 0; i < LANES; i++)
        x[i] = sqrtf(x[i]);
    return x;
#endif
}

INLINE lanes lanes_abs(lanes x)
{
    return (lanes)((words)x & 0x7fffffffu);
}

/* The magnitude of x with the sign of y. */
INLINE lanes lanes_copysign(lanes x, lanes y)
{
    return (lanes)(((words)x & 0x7fffffffu) | ((words)y & 0x80000000u));
}

/* Is a lane true? */
INLINE bool lanes_any(ints mask)
{
#if defined(LANES_AVX512)
    return _mm512_movepi32_mask((__m512i)mask) != 0;
#elif defined(LANES_AVX2)
    return _mm256_movemask_ps((__m256)mask) != 0;
#elif LANES == 4 && defined(__SSE2__)
    return _mm_movemask_ps((__m128)mask) != 0;
#else
    int32_t any = 0;
    for (int i = 0; i < LANES; i++)
        any |= mask[i];
    return any != 0;
#endif
}

/* x with the lanes of each pair of groups of 1, 2, 4 or 8 swapped. */
#if LANES == 16
#define SWAP_1(x) SHUFFLE(ints, x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#define SWAP_2(x) SHUFFLE(ints, x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)
#define SWAP_4(x) SHUFFLE(ints, x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)
#define SWAP_8(x) SHUFFLE(ints, x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)
#elif LANES == 8
#define SWAP_1(x) SHUFFLE(ints, x, x, 1, 0, 3, 2, 5, 4, 7, 6)
#define SWAP_2(x) SHUFFLE(ints, x, x, 2, 3, 0, 1, 6, 7, 4, 5)
#define SWAP_4(x) SHUFFLE(ints, x, x, 4, 5, 6, 7, 0, 1, 2, 3)
#else
#define SWAP_1(x) SHUFFLE(ints, x, x, 1, 0, 3, 2)
#define SWAP_2(x) SHUFFLE(ints, x, x, 2, 3, 0, 1)
#endif

/* Sums and maxima of all lanes, always in the same tree. */
INLINE float lanes_sum(lanes x)
{
#if LANES > 8
    x += SWAP_8(x);
#endif
#if LANES > 4
    x += SWAP_4(x);
#endif
    x += SWAP_2(x);
    x += SWAP_1(x);
    return x[0];
}

INLINE float lanes_maximum(lanes x)
{
#if LANES > 8
    x = lanes_max(x, SWAP_8(x));
#endif
#if LANES > 4
    x = lanes_max(x, SWAP_4(x));
#endif
    x = lanes_max(x, SWAP_2(x));
    x = lanes_max(x, SWAP_1(x));
    return x[0];
}

#endif
