#include "ref/formats.h"

#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

struct format {
    int exponent_bits;
    int mantissa_bits;
    double largest;
    bool has_infinity; /* e4m3 spends the code on numbers: only an all-ones mantissa is NaN */
};

static const struct format formats[] = {
    [CODA_F32] = {8, 23, 0x1.fffffep127, true}, [CODA_BF16] = {8, 7, 0x1.fep127, true},
    [CODA_F16] = {5, 10, 65504, true},          [CODA_E4M3] = {4, 3, 448, false},
    [CODA_E5M2] = {5, 2, 57344, true},
};

static int bias_of(const struct format *f)
{
    return (1 << (f->exponent_bits - 1)) - 1;
}

/* The exponent of a unit in the last place of x, whose exponent stays that of the smallest normal number below it. */
static int quantum_exponent(const struct format *f, double x)
{
    int exponent = ilogb(x);
    int smallest = 1 - bias_of(f);
    return (exponent > smallest ? exponent : smallest) - f->mantissa_bits;
}

static double round_float(const struct format *f, double x)
{
    if (x == 0 || isnan(x))
        return x;
    double rounded = x;
    if (!isinf(x)) {
        int quantum = quantum_exponent(f, x);
        rounded = scalbn(nearbyint(scalbn(x, -quantum)), quantum);
    }
    if (fabs(rounded) <= f->largest)
        return rounded;
    return f->has_infinity ? copysign(INFINITY, x) : copysign(NAN, x);
}

static double round_integer(double x)
{
    if (isnan(x))
        return 0;
    if (x >= INT32_MAX)
        return INT32_MAX;
    if (x <= INT32_MIN)
        return INT32_MIN;
    return trunc(x);
}

double round_to(coda_dtype dtype, double x)
{
    return dtype == CODA_I32 ? round_integer(x) : round_float(&formats[dtype], x);
}

static double decode(const struct format *f, uint32_t code)
{
    uint32_t mantissa = code & ((1u << f->mantissa_bits) - 1);
    int exponent = (int)(code >> f->mantissa_bits) & ((1 << f->exponent_bits) - 1);
    bool negative = code >> (f->mantissa_bits + f->exponent_bits) & 1;
    bool top = exponent == (1 << f->exponent_bits) - 1;
    double x;
    if (top && f->has_infinity)
        x = mantissa == 0 ? INFINITY : NAN;
    else if (top && mantissa == (1u << f->mantissa_bits) - 1)
        x = NAN;
    else if (exponent == 0)
        x = scalbn(mantissa, 1 - bias_of(f) - f->mantissa_bits);
    else
        x = scalbn(mantissa + (1u << f->mantissa_bits), exponent - bias_of(f) - f->mantissa_bits);
    return negative ? -x : x;
}

static uint32_t encode(const struct format *f, double x)
{
    uint32_t sign = (uint32_t)(signbit(x) != 0) << (f->exponent_bits + f->mantissa_bits);
    uint32_t top = ((1u << f->exponent_bits) - 1) << f->mantissa_bits;
    x = fabs(round_float(f, x));
    if (isnan(x))
        return sign | top | (f->has_infinity ? 1u << (f->mantissa_bits - 1) : (1u << f->mantissa_bits) - 1);
    if (isinf(x))
        return sign | top;
    if (x == 0)
        return sign;
    int quantum = quantum_exponent(f, x);
    uint32_t significand = (uint32_t)scalbn(x, -quantum);
    /* A subnormal has no hidden bit and exponent 0; adding the hidden bit of a normal number makes its exponent right.
     */
    uint32_t exponent = (uint32_t)(quantum + f->mantissa_bits - (1 - bias_of(f)));
    return sign | ((exponent << f->mantissa_bits) + significand);
}

double load_element(coda_dtype dtype, const void *element)
{
    int32_t integer;
    float single;
    uint16_t half;
    switch (dtype) {
    case CODA_I32:
        memcpy(&integer, element, sizeof integer);
        return integer;
    case CODA_F32:
        memcpy(&single, element, sizeof single);
        return single;
    case CODA_BF16:
    case CODA_F16:
        memcpy(&half, element, sizeof half);
        return decode(&formats[dtype], half);
    default:
        return decode(&formats[dtype], *(const uint8_t *)element);
    }
}

void store_element(coda_dtype dtype, void *element, double x)
{
    if (dtype == CODA_I32) {
        int32_t integer = (int32_t)round_integer(x);
        memcpy(element, &integer, sizeof integer);
        return;
    }
    uint32_t code = encode(&formats[dtype], x);
    uint16_t half = (uint16_t)code;
    if (dtype == CODA_F32)
        memcpy(element, &code, sizeof code);
    else if (dtype == CODA_BF16 || dtype == CODA_F16)
        memcpy(element, &half, sizeof half);
    else
        *(uint8_t *)element = (uint8_t)code;
}
