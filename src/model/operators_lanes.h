/* Loops over arrays in cache; included once an instruction set, after LANES is chosen. The elements past the last whole
 * vector are computed as one more vector with zeros behind them. */
#include "model/operators.h"
#include "runtime/elementary.h"

/* `count` elements, fewer than LANES. */
INLINE lanes load_some(const float *from, int64_t count, float rest)
{
    lanes x = lanes_set(rest);
    for (int64_t i = 0; i < count; i++)
        x[i] = from[i];
    return x;
}

INLINE void store_some(float *to, int64_t count, lanes x)
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
            lanes a = lanes_load(first + i), b = lanes_load(second + i);                                               \
            (void)b;                                                                                                   \
            lanes_store(y + i, expression);                                                                            \
        }                                                                                                              \
        if (whole < count) {                                                                                           \
            lanes a = load_some(first + whole, count - whole, 0), b = load_some(second + whole, count - whole, 0);     \
            (void)b;                                                                                                   \
            store_some(y + whole, count - whole, expression);                                                          \
        }                                                                                                              \
    }

INLINE lanes silu_gradient(lanes x, lanes dy)
{
    lanes s = lanes_sigmoid(x);
    return dy * lanes_fma(x * s, lanes_set(1) - s, s);
}

ELEMENTWISE(add, a + b)
ELEMENTWISE(multiply, a *b)
ELEMENTWISE(silu, lanes_silu(a))
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
        sum = lanes_fma(lanes_load(a + i), lanes_load(b + i), sum);
    return lanes_sum(sum);
}

static float largest(int64_t count, const float *x)
{
    int64_t whole = count / LANES * LANES;
    lanes best = load_some(x + whole, count - whole, x[0]);
    for (int64_t i = 0; i < whole; i += LANES)
        best = lanes_greater(best, lanes_load(x + i));
    return lanes_maximum(best);
}

static float sum_exp(int64_t count, const float *x, float shift)
{
    int64_t whole = count / LANES * LANES;
    lanes sum = lanes_set(0);
    if (whole < count)
        sum = exp_negative(load_some(x + whole, count - whole, shift - 1000) - lanes_set(shift), (lanes){0});
    for (int64_t i = 0; i < whole; i += LANES)
        sum = sum + exp_negative(lanes_load(x + i) - lanes_set(shift), (lanes){0});
    return lanes_sum(sum);
}

static void softmax(int64_t count, const float *x, float lse, float factor, float *y)
{
    int64_t whole = count / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        lanes_store(y + i, exp_negative(lanes_load(x + i) - lanes_set(lse), (lanes){0}) * lanes_set(factor));
    if (whole < count)
        store_some(y + whole, count - whole,
                   exp_negative(load_some(x + whole, count - whole, lse) - lanes_set(lse), (lanes){0}) *
                       lanes_set(factor));
}

#define OPERATOR_CODE                                                                                                  \
    {                                                                                                                  \
        add, multiply, silu, silu_backward, scale, dot, largest, sum_exp, softmax                                      \
    }
