/* Elements of memory to f32 and back, a vector at a time: round to nearest even, NaN kept, as coda_convert. */
#ifndef CODA_CPU_CONVERT_H
#define CODA_CPU_CONVERT_H

#include "coda.h"
#include "runtime/lanes.h"

enum { ELEMENT_MAX = 4 }; /* bytes of an element */

/* ---------------------------------------------------------------- to f32 */

INLINE words widen_halfwords(const void *from)
{
#if defined(LANES_AVX512)
    return (words)_mm512_cvtepu16_epi32(_mm256_loadu_si256(from));
#elif defined(LANES_AVX2)
    return (words)_mm256_cvtepu16_epi32(_mm_loadu_si128(from));
#else
    halfwords h;
    memcpy(&h, from, sizeof h);
    return __builtin_convertvector(h, words);
#endif
}

INLINE words widen_bytes(const void *from)
{
    bytes b;
    memcpy(&b, from, sizeof b);
    return __builtin_convertvector(b, words);
}

INLINE lanes load_bf16(const void *from)
{
    return (lanes)(widen_halfwords(from) << 16);
}

/* A small float with `mantissa` bits of mantissa, whose bits below the sign are `magnitude` and whose values stand
 * 2^-scale too small once moved under f32's: exact for subnormals too, because the product makes them normal. */
INLINE lanes expand_small(words magnitude, int mantissa, float scale)
{
    return (lanes)(magnitude << (23 - mantissa)) * scale;
}

INLINE lanes load_f16(const void *from)
{
#if defined(LANES_AVX512)
    return _mm512_cvtph_ps(_mm256_loadu_si256(from));
#elif defined(LANES_AVX2)
    return _mm256_cvtph_ps(_mm_loadu_si128(from));
#else
    words h = widen_halfwords(from), magnitude = h & 0x7fffu;
    words finite = (words)expand_small(magnitude, 10, 0x1p112f);
    words special = (magnitude << 13) | 0x7f800000u;
    return (lanes)(words_select((ints)magnitude >= 0x7c00, special, finite) | (h & 0x8000u) << 16);
#endif
}

INLINE lanes load_e4m3(const void *from)
{
    words b = widen_bytes(from), magnitude = b & 0x7fu;
    words finite = (words)expand_small(magnitude, 3, 0x1p120f);
    return (lanes)(words_select((ints)magnitude == 0x7f, words_set(0x7fc00000u), finite) | (b & 0x80u) << 24);
}

INLINE lanes load_e5m2(const void *from)
{
    words b = widen_bytes(from), magnitude = b & 0x7fu;
    words finite = (words)expand_small(magnitude, 2, 0x1p112f);
    words special = (magnitude << 21) | 0x7f800000u;
    return (lanes)(words_select((ints)magnitude >= 0x7c, special, finite) | (b & 0x80u) << 24);
}

INLINE lanes load_f32(const void *from)
{
    return lanes_load(from);
}

INLINE lanes load_i32(const void *from)
{
    ints i;
    memcpy(&i, from, sizeof i);
    return __builtin_convertvector(i, lanes);
}

/* ---------------------------------------------------------------- rounding: the bits of the narrow type, in 32 */

INLINE words bits_bf16(lanes x)
{
    words bits = (words)x;
    words rounded = (bits + (((bits >> 16) & 1u) + 0x7fffu)) >> 16;
    return words_select(x != x, ((bits >> 16) & 0x8000u) | 0x7fc0u, rounded);
}

/* The nearest float of `mantissa` bits whose least normal value is `least` (bits of f32); values at or above the bits
 * `overflow` become `large`. Its exponent is `bias` less than f32's. */
INLINE words bits_small(lanes x, int mantissa, int bias, uint32_t least, uint32_t overflow, uint32_t large,
                        uint32_t nan, int sign)
{
    const int shift = 23 - mantissa;
    words bits = (words)x, magnitude = bits & 0x7fffffffu;
    words normal = ((magnitude + (((magnitude >> shift) & 1u) + ((1u << (shift - 1)) - 1))) >> shift) -
                   ((uint32_t)bias << mantissa);
    /* adding a number whose last place is the smallest subnormal rounds to it */
    lanes unit = (lanes)words_set(((least >> 23) + (uint32_t)shift) << 23);
    words subnormal = (words)((lanes)magnitude + unit) - (words)unit;
    words y = words_select((ints)magnitude < (int32_t)least, subnormal, normal);
    y = words_select((ints)magnitude >= (int32_t)overflow, words_set(large), y);
    y = words_select(x != x, words_set(nan), y);
    return y | (bits >> 31) << sign;
}

INLINE words bits_f16(lanes x)
{
    return bits_small(x, 10, 112, 0x38800000u, 0x477ff000u, 0x7c00u, 0x7e00u, 15);
}

/* 464 is halfway from the largest value, 448, to the next, and the tie goes to the even neighbour 448 */
INLINE words bits_e4m3(lanes x)
{
    return bits_small(x, 3, 120, 0x3c800000u, 0x43e80001u, 0x7fu, 0x7fu, 7);
}

INLINE words bits_e5m2(lanes x)
{
    return bits_small(x, 2, 112, 0x38800000u, 0x47700000u, 0x7cu, 0x7eu, 7);
}

INLINE words bits_i32(lanes x)
{
    ints y = __builtin_convertvector(
        lanes_lesser(lanes_set(2147483520.0f), lanes_greater(x, lanes_set(-2147483648.0f))), ints);
    y = (ints)words_select(x >= 2147483648.0f, words_set(0x7fffffffu), (words)y);
    return words_select(x == x, (words)y, (words){0});
}

/* ---------------------------------------------------------------- to memory */

INLINE void narrow_halfwords(void *to, words bits)
{
#if defined(LANES_AVX512)
    _mm256_storeu_si256(to, _mm512_cvtepi32_epi16((__m512i)bits));
#elif defined(LANES_AVX2)
    __m128i low = _mm256_castsi256_si128((__m256i)bits), high = _mm256_extracti128_si256((__m256i)bits, 1);
    _mm_storeu_si128(to, _mm_packus_epi32(low, high));
#else
    halfwords h = __builtin_convertvector(bits, halfwords);
    memcpy(to, &h, sizeof h);
#endif
}

INLINE void narrow_bytes(void *to, words bits)
{
    bytes b = __builtin_convertvector(bits, bytes);
    memcpy(to, &b, sizeof b);
}

INLINE void store_bf16(void *to, lanes x)
{
    narrow_halfwords(to, bits_bf16(x));
}

INLINE void store_f16(void *to, lanes x)
{
#if defined(LANES_AVX512)
    _mm256_storeu_si256(to, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(LANES_AVX2)
    _mm_storeu_si128(to, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#else
    narrow_halfwords(to, bits_f16(x));
#endif
}

INLINE void store_e4m3(void *to, lanes x)
{
    narrow_bytes(to, bits_e4m3(x));
}

INLINE void store_e5m2(void *to, lanes x)
{
    narrow_bytes(to, bits_e5m2(x));
}

INLINE void store_f32(void *to, lanes x)
{
    lanes_store(to, x);
}

INLINE void store_i32(void *to, lanes x)
{
    words bits = bits_i32(x);
    memcpy(to, &bits, sizeof bits);
}

#if defined(LANES_AVX512) || defined(LANES_AVX2)
/* Sixteen bf16 in one vector. */
INLINE __m256i sixteen_bf16(const float *from)
{
#if defined(LANES_AVX512)
    return _mm512_cvtepi32_epi16((__m512i)bits_bf16(lanes_load(from)));
#else
    words low = bits_bf16(lanes_load(from)), high = bits_bf16(lanes_load(from + 8));
    return _mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)low, (__m256i)high), 0xd8);
#endif
}

#endif

#endif
