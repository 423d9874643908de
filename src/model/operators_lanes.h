/* Loops over arrays in cache; included once an instruction set, after LANES is chosen. The elements past the last whole
 * vector are computed as one more vector with zeros behind them. */
#include "model/lanes.h"
#include "model/operators.h"

/* `count` elements, fewer than LANES. */
LANE_INLINE lanes load_some(const float *from, int64_t count, float rest)
{
    lanes x = all_lanes(rest);
    for (int64_t i = 0; i < count; i++)
        x[i] = from[i];
    return x;
}

LANE_INLINE void store_some(float *to, int64_t count, lanes x)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = x[i];
}

/* y[i] = expression of lanes a and b */
#define ELEMENTWISE(name, expression)                                                                                  \
    static void name(int64_t count, const float *first, const float *second, float *y)                                 \
    {                                                                                                                  \
        int64_t whole = count / LANES * LANES;                                                                         \
        for (int64_t i = 0; i < whole; i += LANES) {                                                                   \
            lanes a = load_lanes(first + i), b = load_lanes(second + i);                                               \
            (void)b;                                                                                                   \
            store_lanes(y + i, expression);                                                                            \
        }                                                                                                              \
        if (whole < count) {                                                                                           \
            lanes a = load_some(first + whole, count - whole, 0), b = load_some(second + whole, count - whole, 0);     \
            (void)b;                                                                                                   \
            store_some(y + whole, count - whole, expression);                                                          \
        }                                                                                                              \
    }

LANE_INLINE lanes silu_gradient(lanes x, lanes dy)
{
    lanes s = sigmoid_lanes(x);
    return dy * (s + x * s * (all_lanes(1) - s));
}

ELEMENTWISE(add, a + b)
ELEMENTWISE(multiply, a *b)
ELEMENTWISE(silu, a *sigmoid_lanes(a))
ELEMENTWISE(silu_backward, silu_gradient(a, b))

static void scale(int64_t count, const float *x, float factor, float *y)
{
    for (int64_t i = 0; i < count; i++)
        y[i] = x[i] * factor;
}

static float dot(int64_t count, const float *a, const float *b)
{
    int64_t whole = count / LANES * LANES;
    lanes sum = load_some(a + whole, count - whole, 0) * load_some(b + whole, count - whole, 0);
    for (int64_t i = 0; i < whole; i += LANES)
        sum = sum + load_lanes(a + i) * load_lanes(b + i);
    return sum_of_lanes(sum);
}

static float largest(int64_t count, const float *x)
{
    int64_t whole = count / LANES * LANES;
    lanes best = load_some(x + whole, count - whole, x[0]);
    for (int64_t i = 0; i < whole; i += LANES)
        best = larger_lanes(best, load_lanes(x + i));
    return largest_of_lanes(best);
}

static float sum_exp(int64_t count, const float *x, float shift)
{
    int64_t whole = count / LANES * LANES;
    lanes sum = all_lanes(0);
    if (whole < count)
        sum = exp_lanes(load_some(x + whole, count - whole, shift - 1000) - all_lanes(shift));
    for (int64_t i = 0; i < whole; i += LANES)
        sum = sum + exp_lanes(load_lanes(x + i) - all_lanes(shift));
    return sum_of_lanes(sum);
}

static void softmax(int64_t count, const float *x, float lse, float factor, float *y)
{
    int64_t whole = count / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        store_lanes(y + i, exp_lanes(load_lanes(x + i) - all_lanes(lse)) * all_lanes(factor));
    if (whole < count)
        store_some(y + whole, count - whole,
                   exp_lanes(load_some(x + whole, count - whole, lse) - all_lanes(lse)) * all_lanes(factor));
}

#define OPERATOR_CODE                                                                                                  \
    {                                                                                                                  \
        add, multiply, silu, silu_backward, scale, dot, largest, sum_exp, softmax                                      \
    }
