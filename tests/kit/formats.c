#include "formats.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

static const struct {
    int precision, minimum_exponent;
    double largest;
} formats[] = {
    [CODA_F32] = {24, -126, 0x1.fffffep127}, [CODA_BF16] = {8, -126, 0x1.fep127},
    [CODA_F16] = {11, -14, 65504},           [CODA_E4M3] = {4, -6, 448},
    [CODA_E5M2] = {3, -14, 57344},
};

static double spacing(coda_dtype dtype, double x)
{
    int exponent;
    frexp(x, &exponent);
    exponent--;
    if (x == 0 || exponent < formats[dtype].minimum_exponent)
        exponent = formats[dtype].minimum_exponent;
    return ldexp(1, exponent - formats[dtype].precision + 1);
}

double format_half_ulp(coda_dtype dtype, double x)
{
    return dtype == CODA_I32 ? 0 : isfinite(x) ? spacing(dtype, x) / 2 : 0;
}

double format_round(coda_dtype dtype, double x)
{
    if (!isfinite(x) || dtype == CODA_I32)
        return x;
    double unit = spacing(dtype, x), rounded = rint(x / unit) * unit;
    if (fabs(rounded) > formats[dtype].largest)
        return dtype == CODA_E4M3 ? NAN : copysign(INFINITY, x);
    return rounded;
}

double format_load(coda_dtype dtype, const void *element)
{
    if (dtype == CODA_I32) {
        int32_t id;
        memcpy(&id, element, sizeof id);
        return id;
    }
    float value;
    coda_convert(&value, CODA_F32, element, dtype, 1);
    return value;
}
