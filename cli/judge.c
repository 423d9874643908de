#include "cli.h"

#include <math.h>

/* Half the distance of neighbours, relative: what one rounding to the type can be off by. */
static double unit_roundoff(coda_dtype dtype)
{
    switch (dtype) {
    case CODA_BF16:
        return 0x1p-8;
    case CODA_F16:
        return 0x1p-11;
    case CODA_E4M3:
        return 0x1p-4;
    case CODA_E5M2:
        return 0x1p-3;
    default:
        return 0x1p-24;
    }
}

static double difference(double a, double b)
{
    return a == b || (isnan(a) && isnan(b)) ? 0 : fabs(a - b);
}

struct verdict judge(const float *found, const float *reference, const float *plain, int64_t count, coda_dtype dtype)
{
    double error = 0, plain_error = 0, norm = 0, largest = 0, worst = 0, plain_worst = 0;
    bool finite = true;
    for (int64_t i = 0; i < count; i++) {
        double d = difference(found[i], reference[i]), p = plain ? difference(plain[i], reference[i]) : 0;
        finite = finite && isfinite(d);
        if (!isfinite(d) || !isfinite(p) || !isfinite(reference[i]))
            continue;
        error += d * d;
        plain_error += p * p;
        norm += (double)reference[i] * reference[i];
        worst = fmax(worst, d);
        plain_worst = fmax(plain_worst, p);
        largest = fmax(largest, fabs((double)reference[i]));
    }
    double scale = norm > 0 ? sqrt(norm) : 1, top = largest > 0 ? largest : 1;
    double rounding = 2 * unit_roundoff(dtype) + 64 * 0x1p-24;
    struct verdict verdict = {.error = sqrt(error) / scale,
                              .plain = sqrt(plain_error) / scale,
                              .max_error = worst / top,
                              .max_bound = 2 * plain_worst / top + rounding};
    verdict.bound = 2 * verdict.plain + rounding;
    verdict.good = finite && verdict.error <= verdict.bound && verdict.max_error <= verdict.max_bound;
    if (!finite)
        verdict.error = verdict.max_error = NAN;
    return verdict;
}
