#include "model/operators.h"
#include "model/kernels.h"
#include <math.h>

/* Elements that are converted to f32 at a time, and rows or elements of a task. */
enum { PIECE = 512, TASK_ROWS = 16, TASK_ELEMENTS = 1 << 14 };

struct task {
    const struct operators *o;
    enum elementwise op;
    int64_t count, rows, width, heads, stride;
    const void *a, *b, *g;
    void *y;
    const float *table, *scale_in, *weights;
    float *scale, *partials, *loss;
    const int32_t *ids;
    double eps, divisor;
    bool inverse;
};

static void *at(const struct task *t, const void *data, int64_t element)
{
    return (char *)data + (size_t)element * coda_dtype_size(t->o->dtype);
}

static void load(const struct task *t, const void *data, int64_t element, int64_t count, float *to)
{
    coda_convert(to, CODA_F32, at(t, data, element), t->o->dtype, count);
}

static void store(const struct task *t, void *data, int64_t element, int64_t count, const float *from)
{
    coda_convert(at(t, data, element), t->o->dtype, from, CODA_F32, count);
}

static void count_bytes(const struct operators *o, double elements, double floats)
{
    *o->bytes += elements * (double)coda_dtype_size(o->dtype) + 4 * floats;
}

static void run_elementwise(void *context, int64_t index)
{
    const struct task *t = context;
    const struct operator_code *code = t->o->code;
    void (*const function[])(int64_t, const float *, const float *, float *) = {code->add, code->multiply, code->silu,
                                                                                code->silu_backward};
    float a[PIECE], b[PIECE] = {0}, y[PIECE];
    int64_t end = minimum(t->count, (index + 1) * TASK_ELEMENTS);
    for (int64_t i = index * TASK_ELEMENTS; i < end; i += PIECE) {
        int64_t count = minimum(PIECE, end - i);
        load(t, t->a, i, count, a);
        if (t->b)
            load(t, t->b, i, count, b);
        function[t->op](count, a, b, y);
        store(t, t->y, i, count, y);
    }
}

void operate(const struct operators *o, enum elementwise op, int64_t count, const void *a, const void *b, void *y)
{
    struct task task = {.o = o, .op = op, .count = count, .a = a, .b = b, .y = y};
    coda_parallel_for(o->device, ceiling(count, TASK_ELEMENTS), run_elementwise, &task);
    count_bytes(o, (double)count * (b ? 3 : 2), 0);
}

static void run_gather(void *context, int64_t row)
{
    const struct task *t = context;
    coda_convert(at(t, t->y, row * t->width), t->o->dtype, at(t, t->a, t->ids[row] * t->width), t->o->dtype, t->width);
}

void gather_rows(const struct operators *o, int64_t rows, int64_t width, const void *embedding, const int32_t *tokens,
                 void *y)
{
    struct task task = {.o = o, .width = width, .a = embedding, .ids = tokens, .y = y};
    coda_parallel_for(o->device, rows, run_gather, &task);
    count_bytes(o, 2 * (double)rows * (double)width, (double)rows);
}

/* Calls `body` for the rows of one task. */
static void each_row(const struct task *t, int64_t index, int64_t task_rows,
                     void (*body)(const struct task *task, int64_t row))
{
    int64_t end = minimum(t->rows, (index + 1) * task_rows);
    for (int64_t row = index * task_rows; row < end; row++)
        body(t, row);
}

static void norm_row(const struct task *t, int64_t row)
{
    const struct operator_code *code = t->o->code;
    float x[PIECE], g[PIECE], sum = 0;
    for (int64_t i = 0; i < t->width; i += PIECE) {
        int64_t count = minimum(PIECE, t->width - i);
        load(t, t->a, row * t->width + i, count, x);
        sum += code->dot(count, x, x);
    }
    float r = 1 / sqrtf(sum / (float)t->width + (float)t->eps);
    t->scale[row] = r;
    for (int64_t i = 0; i < t->width; i += PIECE) {
        int64_t count = minimum(PIECE, t->width - i);
        load(t, t->a, row * t->width + i, count, x);
        load(t, t->g, i, count, g);
        code->scale(count, x, r, x);
        store(t, t->y, row * t->width + i, count, x); /* rounds x / RMS, as Hugging Face does */
        load(t, t->y, row * t->width + i, count, x);
        code->multiply(count, x, g, x);
        store(t, t->y, row * t->width + i, count, x);
    }
}

static void run_norm(void *context, int64_t index)
{
    each_row(context, index, TASK_ROWS, norm_row);
}

void rms_norm(const struct operators *o, int64_t rows, int64_t width, const void *x, const void *g, double eps, void *y,
              float *scale)
{
    struct task task = {.o = o, .rows = rows, .width = width, .a = x, .g = g, .eps = eps, .y = y};
    task.scale = scale;
    coda_parallel_for(o->device, ceiling(rows, TASK_ROWS), run_norm, &task);
    count_bytes(o, (double)width * (2 * (double)rows + 1), (double)rows);
}

/* dx = (dn - xn mean(dn xn)) / RMS with dn = dy g, xn = x / RMS */
static void norm_row_backward(const struct task *t, int64_t row)
{
    const struct operator_code *code = t->o->code;
    float dn[PIECE], g[PIECE], xn[PIECE], product[PIECE], sum = 0, r = t->scale_in[row];
    float *partial = t->partials + row / ROW_RUN * t->width;
    for (int64_t i = 0; i < t->width; i += PIECE) {
        int64_t count = minimum(PIECE, t->width - i);
        load(t, t->a, row * t->width + i, count, dn);
        load(t, t->b, row * t->width + i, count, xn);
        load(t, t->g, i, count, g);
        code->scale(count, xn, r, xn);
        code->multiply(count, dn, xn, product);
        for (int64_t j = 0; j < count; j++)
            partial[i + j] = (row % ROW_RUN ? partial[i + j] : 0) + product[j];
        sum += code->dot(count, product, g);
    }
    float mean = sum / (float)t->width;
    for (int64_t i = 0; i < t->width; i += PIECE) {
        int64_t count = minimum(PIECE, t->width - i);
        load(t, t->a, row * t->width + i, count, dn);
        load(t, t->b, row * t->width + i, count, xn);
        load(t, t->g, i, count, g);
        code->multiply(count, dn, g, dn);
        code->scale(count, xn, -r * mean, xn);
        code->add(count, dn, xn, dn);
        code->scale(count, dn, r, dn);
        store(t, t->y, row * t->width + i, count, dn);
    }
}

static void run_norm_backward(void *context, int64_t index)
{
    each_row(context, index, ROW_RUN, norm_row_backward);
}

void rms_norm_backward(const struct operators *o, int64_t rows, int64_t width, const void *dy, const void *x,
                       const void *g, const float *scale, void *dx, float *partials)
{
    struct task task = {.o = o, .rows = rows, .width = width, .a = dy, .b = x, .g = g, .scale_in = scale, .y = dx};
    task.partials = partials;
    coda_parallel_for(o->device, ceiling(rows, ROW_RUN), run_norm_backward, &task);
    count_bytes(o, (double)width * (3 * (double)rows + 1),
                (double)rows + (double)width * (double)ceiling(rows, ROW_RUN));
}

static void rotate_row(const struct task *t, int64_t row)
{
    enum { LARGEST_HEAD = 512 };
    float x[LARGEST_HEAD];
    int64_t half = t->width / 2;
    const float *cosine = t->table + t->ids[row] * t->width, *sine = cosine + half;
    float sign = t->inverse ? -1 : 1;
    for (int64_t head = 0; head < t->heads; head++) {
        int64_t place = row * t->stride + head * t->width;
        load(t, t->y, place, t->width, x);
        for (int64_t i = 0; i < half; i++) {
            float a = x[i], b = x[half + i], s = sign * sine[i];
            x[i] = a * cosine[i] - b * s;
            x[half + i] = b * cosine[i] + a * s;
        }
        store(t, t->y, place, t->width, x);
    }
}

static void run_rotate(void *context, int64_t index)
{
    each_row(context, index, TASK_ROWS, rotate_row);
}

void rotate(const struct operators *o, int64_t rows, int64_t heads, int64_t head_dim, int64_t stride, void *x,
            const float *table, const int32_t *positions, bool inverse)
{
    struct task task = {.o = o,
                        .rows = rows,
                        .heads = heads,
                        .width = head_dim,
                        .stride = stride,
                        .y = x,
                        .table = table,
                        .ids = positions,
                        .inverse = inverse};
    coda_parallel_for(o->device, ceiling(rows, TASK_ROWS), run_rotate, &task);
    count_bytes(o, 2 * (double)rows * (double)(heads * head_dim), (double)rows * (1 + (double)head_dim));
}

enum { IGNORED = -100 };

static void loss_row(const struct task *t, int64_t row)
{
    const struct operator_code *code = t->o->code;
    float z[PIECE], best = -INFINITY, sum = 0, target = 0;
    int64_t i = 0;
    do { /* at least one piece: the sum is not 0 */
        int64_t count = minimum(PIECE, t->width - i);
        load(t, t->a, row * t->width + i, count, z);
        float here = code->largest(count, z), now = here > best ? here : best;
        sum = sum * expf(best - now) + code->sum_exp(count, z, now);
        best = now;
        if (t->ids[row] >= i && t->ids[row] < i + count)
            target = z[t->ids[row] - i];
        i += PIECE;
    } while (i < t->width);
    t->scale[row] = best + logf(sum);
    float weight = t->weights[row] / (float)t->divisor;
    t->loss[row] = t->ids[row] == IGNORED ? 0 : (t->scale[row] - target) * weight;
}

static void run_loss(void *context, int64_t index)
{
    each_row(context, index, TASK_ROWS, loss_row);
}

void cross_entropy(const struct operators *o, int64_t rows, int64_t width, const void *logits, const int32_t *targets,
                   const float *weights, double divisor, float *lse, float *loss)
{
    struct task task = {
        .o = o, .rows = rows, .width = width, .a = logits, .ids = targets, .weights = weights, .divisor = divisor};
    task.scale = lse;
    task.loss = loss;
    coda_parallel_for(o->device, ceiling(rows, TASK_ROWS), run_loss, &task);
    count_bytes(o, (double)rows * (double)width, 4 * (double)rows);
}

static void loss_row_backward(const struct task *t, int64_t row)
{
    float z[PIECE];
    bool live = t->ids[row] != IGNORED;
    float factor = live ? t->weights[row] / (float)t->divisor : 0;
    for (int64_t i = 0; i < t->width; i += PIECE) {
        int64_t count = minimum(PIECE, t->width - i);
        load(t, t->y, row * t->width + i, count, z);
        t->o->code->softmax(count, z, t->scale_in[row], factor, z);
        if (live && t->ids[row] >= i && t->ids[row] < i + count)
            z[t->ids[row] - i] -= factor;
        for (int64_t j = 0; j < count && !live; j++)
            z[j] = 0;
        store(t, t->y, row * t->width + i, count, z);
    }
}

static void run_loss_backward(void *context, int64_t index)
{
    each_row(context, index, TASK_ROWS, loss_row_backward);
}

void cross_entropy_backward(const struct operators *o, int64_t rows, int64_t width, void *logits,
                            const int32_t *targets, const float *weights, double divisor, const float *lse)
{
    struct task task = {.o = o,
                        .rows = rows,
                        .width = width,
                        .y = logits,
                        .ids = targets,
                        .weights = weights,
                        .divisor = divisor,
                        .scale_in = lse};
    coda_parallel_for(o->device, ceiling(rows, TASK_ROWS), run_loss_backward, &task);
    count_bytes(o, 2 * (double)rows * (double)width, 3 * (double)rows);
}
