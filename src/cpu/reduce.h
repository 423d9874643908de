/* Reductions. Along columns a run is summed in 4 LANES interleaved parts, which are then added in a fixed tree: the
 * bits of a run depend on its elements alone, never on the tile. Along rows elements are added in order. */
#ifndef CODA_CPU_REDUCE_H
#define CODA_CPU_REDUCE_H

#include "runtime/elementary.h"
#include "cpu/instruction_set.h"
#include "cpu/interleave.h"

/* The last vector of a run, with `filler` behind its end. */
INLINE lanes load_tail(const float *x, int64_t count, float filler)
{
#if defined(LANES_AVX512)
    return _mm512_mask_loadu_ps(lanes_set(filler), (__mmask16)((1u << count) - 1), x);
#else
    float part[LANES];
    for (int i = 0; i < LANES; i++)
        part[i] = i < count ? x[i] : filler;
    return lanes_load(part);
#endif
}

/* Four vectors side by side hide the latency of an addition. `term` is a formula of a vector x; `tail` fills the last
 * one. */
#define WHOLE_REDUCTION(name, start, term, combine, tail, finish, ...)                                                 \
    static float name(const float *from, int64_t count __VA_ARGS__)                                                    \
    {                                                                                                                  \
        lanes part[4] = {start, start, start, start}, x;                                                               \
        int64_t j = 0;                                                                                                 \
        for (; j + 4 * LANES <= count; j += 4 * LANES)                                                                 \
            for (int u = 0; u < 4; u++) {                                                                              \
                x = lanes_load(from + j + u * LANES);                                                                  \
                part[u] = combine(part[u], term);                                                                      \
            }                                                                                                          \
        for (int u = 0; j < count; u++, j += LANES) {                                                                  \
            x = j + LANES <= count ? lanes_load(from + j) : load_tail(from + j, count - j, tail);                      \
            part[u] = combine(part[u], term);                                                                          \
        }                                                                                                              \
        return finish(combine(combine(part[0], part[1]), combine(part[2], part[3])));                                  \
    }

INLINE lanes lanes_add(lanes a, lanes b)
{
    return a + b;
}

#define COMMA ,
WHOLE_REDUCTION(sum_of, lanes_set(0), x, lanes_add, 0, lanes_sum, )
WHOLE_REDUCTION(maximum_of, lanes_set(-INFINITY), x, lanes_max, -INFINITY, lanes_maximum, )
WHOLE_REDUCTION(magnitude_of, lanes_set(0), lanes_abs(x), lanes_max, 0, lanes_maximum, )
WHOLE_REDUCTION(sum_of_exponentials, lanes_set(0), exp_negative(x - top, (lanes){0}), lanes_add, -INFINITY, lanes_sum,
                COMMA float top)

INLINE bool is_finite(float x)
{
    return x - x == 0;
}

#define RUN_REDUCTION(name, value)                                                                                     \
    static void reduce_##name(const struct rows *r, int run)                                                           \
    {                                                                                                                  \
        for (int i = 0; i < r->rows; i++)                                                                              \
            for (int first = 0, k = 0; first < r->width; first += run, k++) {                                          \
                const float *x = r->in[0] + i * r->in_stride[0] + first;                                               \
                int count = first + run < r->width ? run : r->width - first;                                           \
                r->out[i * r->out_stride + k] = value(x, count);                                                       \
            }                                                                                                          \
    }
RUN_REDUCTION(sum, sum_of)
RUN_REDUCTION(maximum, maximum_of)
RUN_REDUCTION(magnitude, magnitude_of)

/* A maximum that is not finite is the result itself. Logarithms are taken of many runs at a time. */
INLINE lanes finished_logsumexp(lanes sum, lanes top)
{
    return lanes_select(top - top == 0.0f, top + lanes_log(sum), top);
}

static void sum_run_exponentials(const struct rows *r, int run)
{
    for (int i = 0; i < r->rows; i++)
        for (int first = 0, k = 0; first < r->width; first += run, k++) {
            const float *x = r->in[0] + i * r->in_stride[0] + first;
            const float top = r->in[1][i * r->in_stride[1] + k];
            const int count = first + run < r->width ? run : r->width - first;
            r->out[i * r->out_stride + k] = is_finite(top) ? sum_of_exponentials(x, count, top) : 0;
        }
}

static void finish_run_logsumexp(const struct rows *r)
{
    for (int i = 0; i < r->rows; i++)
        for (int j = 0; j < r->width; j += LANES)
            lanes_store(r->out + i * r->out_stride + j,
                        finished_logsumexp(lanes_load(r->in[0] + i * r->in_stride[0] + j),
                                           lanes_load(r->in[1] + i * r->in_stride[1] + j)));
}

/* ---------------------------------------------------------------- whole rows, piece by piece */

static void fold_sum(struct partial *p, const float *x, int64_t count)
{
    p->sum += sum_of(x, count);
}

static void fold_maximum(struct partial *p, const float *x, int64_t count)
{
    float top = maximum_of(x, count);
    p->top = top != top || top > p->top ? top : p->top;
}

static void fold_magnitude(struct partial *p, const float *x, int64_t count)
{
    float top = magnitude_of(x, count);
    p->top = top != top || top > p->top ? top : p->top;
}

static void fold_logsumexp(struct partial *p, const float *x, int64_t count)
{
    float top = maximum_of(x, count);
    if (p->top != p->top || top <= p->top) {
        if (is_finite(p->top))
            p->sum += sum_of_exponentials(x, count, p->top);
        return;
    }
    float sum = is_finite(top) ? sum_of_exponentials(x, count, top) : 0;
    p->sum = (p->top == -INFINITY ? 0 : p->sum * lanes_exp(lanes_set(p->top - top))[0]) + sum;
    p->top = top;
}

/* ---------------------------------------------------------------- along rows */

/* `top` is logsumexp's: all have one type. */
#define ROW_REDUCTION(name, formula)                                                                                   \
    static void accumulate_##name(const struct rows *rows, float *top)                                                 \
    {                                                                                                                  \
        const struct rows r = *rows;                                                                                   \
        (void)top;                                                                                                     \
        for (int j = 0; j < r.width; j += LANES) {                                                                     \
            lanes so_far = lanes_load(r.out + j);                                                                      \
            for (int i = 0; i < r.rows; i++) {                                                                         \
                lanes x = lanes_load(r.in[0] + i * r.in_stride[0] + j);                                                \
                so_far = formula;                                                                                      \
            }                                                                                                          \
            lanes_store(r.out + j, so_far);                                                                            \
        }                                                                                                              \
    }
ROW_REDUCTION(sum, so_far + x)                            /* NOLINT(readability-non-const-parameter) */
ROW_REDUCTION(maximum, lanes_max(so_far, x))              /* NOLINT(readability-non-const-parameter) */
ROW_REDUCTION(magnitude, lanes_max(so_far, lanes_abs(x))) /* NOLINT(readability-non-const-parameter) */

/* out holds the sum of exp(x - top). One exponential serves both cases: of the old sum's scale or of the new term. */
static void accumulate_logsumexp(const struct rows *r, float *top)
{
    for (int i = 0; i < r->rows; i++)
        for (int j = 0; j < r->width; j += LANES) {
            lanes x = lanes_load(r->in[0] + i * r->in_stride[0] + j);
            lanes m = lanes_load(top + j), sum = lanes_load(r->out + j);
            ints greater = x > m;
            lanes higher = lanes_max(m, x);
            lanes e = exp_negative(lanes_select(greater, m - x, x - m), (lanes){0});
            e = lanes_select(higher - higher == 0.0f, e, (lanes){0});
            sum = lanes_select(greater, lanes_fma(sum, e, lanes_set(1)), sum + e);
            lanes_store(top + j, higher);
            lanes_store(r->out + j, sum);
        }
}

static void finish_logsumexp(float *sum, const float *top, int width)
{
    for (int j = 0; j < width; j += LANES)
        lanes_store(sum + j, finished_logsumexp(lanes_load(sum + j), lanes_load(top + j)));
}

#endif
