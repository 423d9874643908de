/* Elementary functions on vectors. Bounds are against the exact value, in units in the last place of f32, where the
 * result is a normal number, and hold with fused multiply-add; without it (portable) they are 2 units more.
 * tests/test_cpu.c checks them. Subnormal results are rounded as the last step; NaN in gives NaN out. */
#ifndef CODA_RUNTIME_ELEMENTARY_H
#define CODA_RUNTIME_ELEMENTARY_H

#include "runtime/exp_table.h"
#include "runtime/lanes.h"

/* 1.5 * 2^23: adding it rounds to an integer, which stands in the low bits. */
#define ROUNDER 12582912.0f

/* 2^n for -126 <= n <= 127. */
INLINE lanes power_of_two(ints n)
{
    return (lanes)((n + 127) << 23);
}

/* exp(r), |r| <= ln(2) / 2 */
INLINE lanes exp_reduced(lanes r)
{
    lanes p = lanes_set(1.9875691500e-4f);
    p = lanes_fma(p, r, lanes_set(1.3981999507e-3f));
    p = lanes_fma(p, r, lanes_set(8.3334519073e-3f));
    p = lanes_fma(p, r, lanes_set(4.1665795894e-2f));
    p = lanes_fma(p, r, lanes_set(1.6666665459e-1f));
    p = lanes_fma(p, r, lanes_set(5.0000001201e-1f));
    return lanes_fma(p, r * r, r) + 1.0f;
}

/* x + low = n ln(2) + r, n whole: gives n in the low bits of *shifted, and exp(r). ln 2 is in two parts, the first with
 * zeros at its end. */
INLINE lanes exp_of_rest(lanes x, lanes low, lanes *shifted)
{
    *shifted = lanes_fma(x, lanes_set(1.44269504f), lanes_set(ROUNDER));
    lanes n = *shifted - ROUNDER;
    lanes r = lanes_fma(n, lanes_set(-0.693359375f), x);
    return exp_reduced(lanes_fma(n, lanes_set(2.12194440e-4f), r) + low);
}

#if defined(LANES_AVX512)
/* x + low = n ln(2) + r, n a multiple of 1/16: gives n, and exp(r) 2^(n - floor(n)), whose second factor is in a table. */
INLINE lanes exp_of_sixteenths(lanes x, lanes low, lanes *n)
{
    const words table = {EXP_SIXTEENTHS};
    lanes shifted = lanes_fma(x, lanes_set(1.44269504f), lanes_set(ROUNDER / 16));
    *n = shifted - ROUNDER / 16;
    lanes r = lanes_fma(*n, lanes_set(-0.693359375f), x);
    r = lanes_fma(*n, lanes_set(2.12194440e-4f), r) + low;
    lanes p = lanes_fma(r, lanes_set(EXP_CUBE), lanes_set(EXP_SQUARE)), power;
    p = lanes_fma(p, r * r, r);
    power = _mm512_permutexvar_ps((__m512i)shifted, (__m512)table);
    return lanes_fma(p, power, power);
}

/* exp(x + low) for x <= 0 and low small against it, as far as the result is a normal number; below, 0. */
INLINE lanes exp_negative(lanes x, lanes low)
{
    lanes n, p = exp_of_sixteenths(x, low, &n);
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, lanes_set(-87), _CMP_NLT_UQ), p, n);
}

/* 2 units */
INLINE lanes lanes_exp(lanes x)
{
    lanes n, p = exp_of_sixteenths(lanes_greater(lanes_set(-110), lanes_lesser(lanes_set(100), x)), (lanes){0}, &n);
    return _mm512_scalef_ps(p, n);
}
#else
/* Likewise. The exponent is set by one addition of integers. */
INLINE lanes exp_negative(lanes x, lanes low)
{
    lanes shifted, p = exp_of_rest(x, low, &shifted);
    words y = (words)p + ((words)shifted << 23);
    return (lanes)((y & ~(words)(x < -87.0f)) | (words)(x != x)); /* all ones are a NaN */
}

/* 2 units. Results beyond the normal range take two factors; where no lane has one, the same bits come for less. */
INLINE lanes lanes_exp(lanes x)
{
    lanes shifted;
    if (!lanes_any(~(lanes_abs(x) < 87.0f))) {
        lanes p = exp_of_rest(x, (lanes){0}, &shifted);
        return (lanes)((words)p + ((words)shifted << 23));
    }
    x = lanes_greater(lanes_set(-110), lanes_lesser(lanes_set(100), x));
    lanes p = exp_of_rest(x, (lanes){0}, &shifted);
    ints whole = (ints)shifted - (ints)lanes_set(ROUNDER), half = whole >> 1;
    return p * power_of_two(half) * power_of_two(whole - half);
}
#endif

/* 2 units */
INLINE lanes lanes_log(lanes x)
{
    ints tiny = x < 1.17549435e-38f;
    lanes scaled = lanes_select(tiny, x * 8388608.0f, x);
    /* x = m 2^e, sqrt(1/2) <= m < sqrt(2) */
    words offset = (words)scaled - 0x3f3504f3u;
    ints e = (ints)offset >> 23;
    lanes m = (lanes)((offset & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    lanes exponent = __builtin_convertvector(e - (tiny & 23), lanes);
    lanes p = lanes_set(7.0376836292e-2f);
    p = lanes_fma(p, m, lanes_set(-1.1514610310e-1f));
    p = lanes_fma(p, m, lanes_set(1.1676998740e-1f));
    p = lanes_fma(p, m, lanes_set(-1.2420140846e-1f));
    p = lanes_fma(p, m, lanes_set(1.4249322787e-1f));
    p = lanes_fma(p, m, lanes_set(-1.6668057665e-1f));
    p = lanes_fma(p, m, lanes_set(2.0000714765e-1f));
    p = lanes_fma(p, m, lanes_set(-2.4999993993e-1f));
    p = lanes_fma(p, m, lanes_set(3.3333331174e-1f));
    lanes square = m * m;
    lanes tail = p * m * square;
    tail = lanes_fma(exponent, lanes_set(-2.12194440e-4f), tail);
    tail = lanes_fma(square, lanes_set(-0.5f), tail);
    lanes y = lanes_fma(exponent, lanes_set(0.693359375f), m + tail);
    y = lanes_select(x == INFINITY, x, y);
    y = lanes_select(x == 0.0f, lanes_set(-INFINITY), y);
    return lanes_select(x >= 0.0f, y, lanes_set(NAN));
}

/* 1 unit */
INLINE lanes lanes_rsqrt(lanes x)
{
    return 1.0f / lanes_sqrt(x);
}

/* 3 units */
INLINE lanes lanes_tanh(lanes x)
{
    lanes a = lanes_abs(x), z = x * x;
    lanes p = lanes_set(-5.70498872745e-3f);
    p = lanes_fma(p, z, lanes_set(2.06390887954e-2f));
    p = lanes_fma(p, z, lanes_set(-5.37397155531e-2f));
    p = lanes_fma(p, z, lanes_set(1.33314422036e-1f));
    p = lanes_fma(p, z, lanes_set(-3.33332819422e-1f));
    lanes near = lanes_fma(p * z, x, x);
    lanes e = exp_negative(-2.0f * a, (lanes){0}), far = (1.0f - e) / (1.0f + e);
    return lanes_select(a < 0.625f, near, lanes_copysign(far, x));
}

/* 1 / (1 + exp(-x)) with e = exp(-|x|), which cannot overflow; 4 units */
INLINE lanes lanes_sigmoid(lanes x)
{
    lanes e = exp_negative(-lanes_abs(x), (lanes){0});
    return lanes_select(x < 0.0f, e, lanes_set(1)) / (1.0f + e);
}

/* 5 units */
INLINE lanes lanes_silu(lanes x)
{
    return x * lanes_sigmoid(x);
}

/* erfc(a) for a >= 0: exp(-a^2) P((a - 2) / (a + 2)) / (1 + 2 a), with the rounding of a^2 made good; 8 units */
INLINE lanes erfc_positive(lanes a)
{
    a = lanes_lesser(lanes_set(12), a);
    lanes q = (a - 2.0f) / (a + 2.0f);
    lanes p = lanes_set(8.168829e-05f);
    p = lanes_fma(p, q, lanes_set(0.00017462407f));
    p = lanes_fma(p, q, lanes_set(-0.0003994289f));
    p = lanes_fma(p, q, lanes_set(-0.0014253923f));
    p = lanes_fma(p, q, lanes_set(0.0012500238f));
    p = lanes_fma(p, q, lanes_set(0.008710347f));
    p = lanes_fma(p, q, lanes_set(-0.0080298744f));
    p = lanes_fma(p, q, lanes_set(-0.054217931f));
    p = lanes_fma(p, q, lanes_set(0.16405092f));
    p = lanes_fma(p, q, lanes_set(-0.16603053f));
    p = lanes_fma(p, q, lanes_set(-0.092763819f));
    p = lanes_fma(p, q, lanes_set(1.2769784f));
    /* a = high + low with high^2 exact: high has 12 bits */
    lanes high = (lanes)((words)a & 0xfffff000u), low = a - high;
    lanes rest = -low * (a + high);
    return exp_negative(-high * high, rest) * p / lanes_fma(a, lanes_set(2), lanes_set(1));
}

/* 4 units */
INLINE lanes lanes_erf(lanes x)
{
    lanes a = lanes_abs(x), z = x * x;
    lanes p = lanes_set(7.853865827200934e-05f);
    p = lanes_fma(p, z, lanes_set(-0.0008010194287635386f));
    p = lanes_fma(p, z, lanes_set(0.005188327748328447f));
    p = lanes_fma(p, z, lanes_set(-0.026853810995817184f));
    p = lanes_fma(p, z, lanes_set(0.1128358542919159f));
    p = lanes_fma(p, z, lanes_set(-0.3761262595653534f));
    p = lanes_fma(p, z, lanes_set(0.12837916f));
    lanes near = lanes_fma(x, p, x);
    lanes far = 1.0f - erfc_positive(a);
    return lanes_select(a < 1.0f, near, lanes_select(x == x, lanes_copysign(far, x), x));
}

/* x Phi(x), Phi(-|x|) = erfc(|x| / sqrt(2)) / 2 so that nothing cancels. The rounding of |x| / sqrt(2) grows with x^2
 * in the exponent: 8 + x^2 units */
INLINE lanes lanes_gelu(lanes x)
{
    lanes a = lanes_abs(x);
    lanes tail = 0.5f * a * erfc_positive(a * 0.70710678f);
    lanes y = lanes_select(x < 0.0f, -tail, x - tail);
    return lanes_select(x == INFINITY, x, y);
}

/* x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3): 8 + 4 |u| units */
INLINE lanes lanes_gelu_tanh(lanes x)
{
    lanes u = x * lanes_fma(x * x, lanes_set(0.071354816f), lanes_set(1.5957691f));
    return x * lanes_sigmoid(u);
}

#endif
