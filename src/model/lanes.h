/* LANES floats at a time, in the compiler's vector extension: plain C on every machine. Who includes this defines
 * LANES, and the instruction set of its functions (instructions.h). */
#ifndef CODA_MODEL_LANES_H
#define CODA_MODEL_LANES_H

#include <stdint.h>
#include <string.h>

/* A product and the sum it is added to may round once. */
#if defined(__clang__)
#pragma clang fp contract(fast)
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=fast")
#endif

#define LANE_INLINE static inline __attribute__((always_inline))

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t integer_lanes __attribute__((vector_size(4 * LANES)));
typedef uint32_t bit_lanes __attribute__((vector_size(4 * LANES)));

LANE_INLINE lanes load_lanes(const float *from)
{
    lanes x;
    memcpy(&x, from, sizeof x);
    return x;
}

LANE_INLINE void store_lanes(float *to, lanes x)
{
    memcpy(to, &x, sizeof x);
}

LANE_INLINE lanes all_lanes(float x)
{
    return x - (lanes){0};
}

/* first, first + 1, .. */
LANE_INLINE integer_lanes count_lanes(int first)
{
    integer_lanes x = {0};
    for (int i = 0; i < LANES; i++)
        x[i] = first + i;
    return x;
}

/* mask: all bits or none */
LANE_INLINE lanes select_lanes(integer_lanes mask, lanes yes, lanes no)
{
    return (lanes)((mask & (integer_lanes)yes) | (~mask & (integer_lanes)no));
}

LANE_INLINE lanes larger_lanes(lanes a, lanes b)
{
    return select_lanes(a > b, a, b);
}

LANE_INLINE float sum_of_lanes(lanes x)
{
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            x[i] += x[i + width];
    return x[0];
}

LANE_INLINE float largest_of_lanes(lanes x)
{
    float best = x[0];
    for (int i = 1; i < LANES; i++)
        best = x[i] > best ? x[i] : best;
    return best;
}

/* e^x within 2 ulp for -87 <= x <= 88; below that 0 (e^-87 is the smallest result), above it as for 88. NaN stays. */
LANE_INLINE lanes exp_lanes(lanes x)
{
    const lanes rounding = all_lanes(0x1.8p23f);
    integer_lanes tiny = x < all_lanes(-87.0f);
    lanes bounded = select_lanes(x > all_lanes(88.0f), all_lanes(88.0f), x);
    bounded = select_lanes(tiny, all_lanes(-87.0f), bounded);
    lanes shifted =
        bounded * all_lanes(0x1.715476p0f) + rounding; /* the nearest integer to x log2(e), in the low bits */
    lanes whole = shifted - rounding;
    lanes r = bounded - whole * all_lanes(0x1.62e400p-1f); /* ln 2 in two parts: the first product is exact */
    r = r - whole * all_lanes(0x1.7f7d1cp-20f);
    lanes p = all_lanes(0x1.a01a02p-13f); /* 1/5040 */
    p = p * r + all_lanes(0x1.6c16c2p-10f);
    p = p * r + all_lanes(0x1.111112p-7f);
    p = p * r + all_lanes(0x1.555556p-5f);
    p = p * r + all_lanes(0x1.555556p-3f);
    p = p * r + all_lanes(0.5f);
    p = p * r + all_lanes(1.0f);
    p = p * r + all_lanes(1.0f);
    bit_lanes power = ((bit_lanes)shifted << 23) + (bit_lanes)all_lanes(1.0f);
    lanes y = p * (lanes)power;
    y = select_lanes(tiny, all_lanes(0.0f), y);
    return select_lanes((x < all_lanes(0.0f)) | (x >= all_lanes(0.0f)), y, x); /* neither: a NaN */
}

LANE_INLINE lanes sigmoid_lanes(lanes x)
{
    return all_lanes(1.0f) / (all_lanes(1.0f) + exp_lanes(-x));
}

#endif
