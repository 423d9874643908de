#include "compare.h"

#include "formats.h"

#include <math.h>
#include <stdio.h>

static double element(const coda_tensor *tensor, int64_t i)
{
    int64_t columns = tensor_columns(tensor), row = i / columns;
    size_t at = (size_t)(row * tensor->stride + i % columns) * coda_dtype_size(tensor->dtype);
    return format_load(tensor->dtype, (unsigned char *)tensor->data + at);
}

/* What is no number must be the same thing on both sides; an overflow within reach of the bound is none. */
static bool same_kind(double found, double value, double bound, coda_dtype dtype)
{
    if (isnan(value))
        return isnan(found);
    if (isinf(bound))
        return true;
    double high = format_round(dtype, value + bound), low = format_round(dtype, value - bound);
    if (isnan(found) || isinf(found))
        return isfinite(found) == isfinite(high) ? found == high || (isnan(found) && isnan(high))
                                                 : found == low || (isnan(found) && isnan(low));
    return !(isinf(value) && isinf(high) && isinf(low));
}

struct sums {
    double error, plain, allowed; /* squares */
    double error_max, plain_max, allowed_max;
};

static void add(struct sums *sums, double error, double plain, double allowed)
{
    if (!isfinite(allowed) || !isfinite(plain))
        return;
    sums->error += error * error;
    sums->plain += plain * plain;
    sums->allowed += allowed * allowed;
    sums->error_max = fmax(sums->error_max, error);
    sums->plain_max = fmax(sums->plain_max, plain);
    sums->allowed_max = fmax(sums->allowed_max, allowed);
}

static bool compare_out(const coda_tensor *tensor, const char *name, const struct numbers *expected,
                        enum standard standard, char *text, size_t size)
{
    struct sums sums = {0};
    for (int64_t i = 0; i < expected->rows * expected->columns; i++) {
        double found = element(tensor, i), value = expected->value[i];
        double bound = standard == STANDARD_DOUBLE ? expected->bound[i] * 1e-6 : expected->bound[i];
        double allowed = 1.001 * bound + format_half_ulp(tensor->dtype, fabs(value) + bound) * (1 + 1e-6) + 0x1p-126;
        double error = fabs(found - value);
        bool good = same_kind(found, value, bound, tensor->dtype);
        if (good && isfinite(found) && isfinite(value)) {
            good = standard == STANDARD_PLAIN || !(error > allowed);
            add(&sums, error, fabs(expected->plain[i] - value), allowed);
        }
        if (!good) {
            snprintf(text, size, "%s[%lld, %lld] is %.9g; expected %.9g within %.3g (f32 arithmetic %.3g)", name,
                     (long long)(i / expected->columns), (long long)(i % expected->columns), found, value, allowed,
                     bound);
            return false;
        }
    }
    double norm = 2 * sqrt(sums.plain) + sqrt(sums.allowed), maximum = 2 * sums.plain_max + sums.allowed_max;
    if (sqrt(sums.error) > norm || sums.error_max > maximum) {
        snprintf(text, size, "%s is off by %.3g in norm (allowed %.3g) and %.3g at most (allowed %.3g)", name,
                 sqrt(sums.error), norm, sums.error_max, maximum);
        return false;
    }
    return true;
}

bool compare_outs(const struct trial *trial, const struct evaluation *evaluation, enum standard standard, char *text,
                  size_t size)
{
    for (int i = 0; i < trial->count; i++)
        if (trial->graph->operand[i].role != CODA_IN &&
            !compare_out(&trial->tensor[i], trial->graph->operand[i].name, &evaluation->out[i], standard, text, size))
            return false;
    return true;
}
