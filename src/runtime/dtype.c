/* Element types: sizes, names and conversion, each with one rounding to nearest even. */
#include "coda.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {{"f32", 4}, {"bf16", 2}, {"f16", 2}, {"e4m3", 1}, {"e5m2", 1}, {"i32", 4}};

const char *coda_dtype_name(coda_dtype dtype)
{
    return (unsigned)dtype <= CODA_I32 ? dtypes[dtype].name : "unknown";
}

size_t coda_dtype_size(coda_dtype dtype)
{
    return (unsigned)dtype <= CODA_I32 ? dtypes[dtype].size : 0;
}

/* A small float: `exponent` and `mantissa` bits; codes from `overflow` on mean infinity (or NaN where there is none).
 */
struct layout {
    int exponent, mantissa;
    unsigned overflow, nan;
};

static const struct layout layouts[] = {
    [CODA_BF16] = {8, 7, 0x7f80, 0x7fc0},
    [CODA_F16] = {5, 10, 0x7c00, 0x7e00},
    [CODA_E4M3] = {4, 3, 0x7f, 0x7f},
    [CODA_E5M2] = {5, 2, 0x7c, 0x7e},
};

static unsigned encode(double value, const struct layout *f)
{
    int bias = (1 << (f->exponent - 1)) - 1;
    unsigned sign = signbit(value) ? 1u << (f->exponent + f->mantissa) : 0;
    if (isnan(value))
        return sign | f->nan;
    value = fabs(value);
    if (isinf(value))
        return sign | f->overflow;
    if (value == 0)
        return sign;
    int exponent;
    frexp(value, &exponent);
    exponent--; /* value = 1.x * 2^exponent */
    if (exponent > bias + 1)
        return sign | f->overflow;
    int least = exponent < 1 - bias ? 1 - bias : exponent;
    /* In units of the last place; a carry out of the mantissa moves into the exponent by itself. */
    unsigned units = (unsigned)nearbyint(scalbn(value, f->mantissa - least));
    unsigned code = ((unsigned)(least + bias - 1) << f->mantissa) + units;
    return sign | (code >= f->overflow ? f->overflow : code);
}

static double decode(unsigned code, const struct layout *f)
{
    int bias = (1 << (f->exponent - 1)) - 1;
    unsigned magnitude = code & ((1u << (f->exponent + f->mantissa)) - 1);
    double sign = code >> (f->exponent + f->mantissa) ? -1 : 1;
    if (magnitude == f->overflow && f->overflow != f->nan)
        return sign * INFINITY;
    if (magnitude >= f->overflow)
        return NAN;
    int exponent = (int)(magnitude >> f->mantissa);
    double mantissa = magnitude & ((1u << f->mantissa) - 1);
    if (exponent == 0)
        return sign * scalbn(mantissa, 1 - bias - f->mantissa);
    return sign * scalbn(mantissa + (1u << f->mantissa), exponent - bias - f->mantissa);
}

static double load(const void *from, coda_dtype dtype, int64_t i)
{
    switch (dtype) {
    case CODA_F32:
        return ((const float *)from)[i];
    case CODA_I32:
        return ((const int32_t *)from)[i];
    case CODA_BF16:
    case CODA_F16:
        return decode(((const uint16_t *)from)[i], &layouts[dtype]);
    default:
        return decode(((const uint8_t *)from)[i], &layouts[dtype]);
    }
}

static int32_t saturate(double value)
{
    if (isnan(value))
        return 0;
    return value >= INT32_MAX ? INT32_MAX : value <= INT32_MIN ? INT32_MIN : (int32_t)value;
}

static void store(void *to, coda_dtype dtype, int64_t i, double value)
{
    switch (dtype) {
    case CODA_F32:
        ((float *)to)[i] = (float)value;
        break;
    case CODA_I32:
        ((int32_t *)to)[i] = saturate(value);
        break;
    case CODA_BF16:
    case CODA_F16:
        ((uint16_t *)to)[i] = (uint16_t)encode(value, &layouts[dtype]);
        break;
    default:
        ((uint8_t *)to)[i] = (uint8_t)encode(value, &layouts[dtype]);
        break;
    }
}

static void bf16_to_f32(float *to, const uint16_t *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)from[i] << 16;
        memcpy(&to[i], &bits, 4);
    }
}

static void f32_to_bf16(uint16_t *to, const float *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &from[i], 4);
        uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        to[i] = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16 & 0x8000) | 0x7fc0 : rounded);
    }
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Multiplying by 2^112 moves the exponent to f32's and makes subnormals normal. */
static void f16_to_f32(float *to, const uint16_t *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const uint32_t magnitude = from[i] & 0x7fffu, sign = (uint32_t)(from[i] & 0x8000u) << 16;
        const uint32_t finite = bits_of(float_of(magnitude << 13) * 0x1p112f) | sign;
        const uint32_t special = magnitude > 0x7c00 ? 0x7fc00000u : 0x7f800000u | sign;
        to[i] = float_of(magnitude >= 0x7c00 ? special : finite);
    }
}

/* Adding 1/2, whose last place is f16's smallest subnormal, rounds to it. */
static void f32_to_f16(uint16_t *to, const float *from, int64_t count)
{
    enum { INFINITE = 0x7f800000, OVERFLOW = 0x477ff000, LEAST = 0x38800000, HALF = 0x3f000000 };
    for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = bits_of(from[i]), magnitude = bits & 0x7fffffffu;
        const uint32_t normal = ((magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13) - (112u << 10);
        const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - HALF;
        const uint32_t finite = magnitude < LEAST ? subnormal : normal;
        const uint32_t special = magnitude > INFINITE ? 0x7e00 : 0x7c00;
        to[i] = (uint16_t)((magnitude >= OVERFLOW ? special : finite) | (bits >> 16 & 0x8000u));
    }
}

void coda_convert(void *to, coda_dtype to_dtype, const void *from, coda_dtype from_dtype, int64_t count)
{
    if (to_dtype == from_dtype)
        memmove(to, from, (size_t)count * coda_dtype_size(to_dtype));
    else if (to_dtype == CODA_F32 && from_dtype == CODA_BF16)
        bf16_to_f32(to, from, count);
    else if (to_dtype == CODA_BF16 && from_dtype == CODA_F32)
        f32_to_bf16(to, from, count);
    else if (to_dtype == CODA_F32 && from_dtype == CODA_F16)
        f16_to_f32(to, from, count);
    else if (to_dtype == CODA_F16 && from_dtype == CODA_F32)
        f32_to_f16(to, from, count);
    else
        for (int64_t i = 0; i < count; i++)
            store(to, to_dtype, i, load(from, from_dtype, i));
}
