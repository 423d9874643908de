/* Attention in blocks against one row at a time in double. */
#include "kit/random.h"
#include "model/attention.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

struct shape {
    int batch, sequence, heads, kv_heads, depth;
};

static const struct shape shapes[] = {
    {1, 1, 1, 1, 2},   {2, 5, 4, 2, 4},   {1, 63, 2, 2, 6},   {1, 64, 2, 1, 16}, {1, 65, 2, 2, 6},
    {1, 128, 1, 1, 8}, {2, 130, 2, 1, 8}, {1, 200, 6, 2, 34}, {3, 7, 3, 1, 66},  {1, 17, 2, 1, 130},
};

struct trial {
    struct shape s;
    int64_t rows, row, out_row;
    float *qkv, *output, *lse, *d_output, *d_qkv;
    double *exact, *d_exact; /* output, and gradient of qkv */
};

static void *zeroed(int64_t count, size_t size)
{
    void *memory = calloc((size_t)count, size);
    assert_non_null(memory);
    return memory;
}

/* One query: its output, and what its gradient adds to that of queries, keys and values. */
static void exact_row(struct trial *t, int64_t batch, int64_t position, int head)
{
    const struct shape *s = &t->s;
    int64_t first = batch * s->sequence, here = first + position;
    int depth = s->depth, kv = head / (s->heads / s->kv_heads);
    const float *q = t->qkv + here * t->row + head * depth, *dy = t->d_output + here * t->out_row + head * depth;
    double *p = zeroed(position + 1, sizeof *p), largest = -INFINITY, total = 0, delta = 0;
    double *y = t->exact + here * t->out_row + head * depth, scale = 1 / sqrt(depth);
    for (int64_t j = 0; j <= position; j++) {
        const float *k = t->qkv + (first + j) * t->row + (s->heads + kv) * depth;
        for (int i = 0; i < depth; i++)
            p[j] += scale * q[i] * k[i];
        largest = fmax(largest, p[j]);
    }
    for (int64_t j = 0; j <= position; j++)
        total += p[j] = exp(p[j] - largest);
    for (int64_t j = 0; j <= position; j++) {
        const float *v = t->qkv + (first + j) * t->row + (s->heads + s->kv_heads + kv) * depth;
        p[j] /= total;
        for (int i = 0; i < depth; i++)
            y[i] += p[j] * v[i];
    }
    for (int i = 0; i < depth; i++)
        delta += y[i] * dy[i];
    for (int64_t j = 0; j <= position; j++) {
        int64_t k = (first + j) * t->row + (s->heads + kv) * depth, v = k + s->kv_heads * depth;
        double dp = -delta;
        for (int i = 0; i < depth; i++) {
            dp += dy[i] * t->qkv[v + i];
            t->d_exact[v + i] += p[j] * dy[i];
        }
        for (int i = 0; i < depth; i++) {
            t->d_exact[here * t->row + head * depth + i] += scale * p[j] * dp * t->qkv[k + i];
            t->d_exact[k + i] += scale * p[j] * dp * q[i];
        }
    }
    free(p);
}

static void open_trial(struct trial *t, const struct shape *s, uint64_t seed)
{
    struct random random = {seed};
    t->s = *s;
    t->rows = s->batch * s->sequence;
    t->row = (s->heads + 2 * s->kv_heads) * s->depth;
    t->out_row = s->heads * s->depth;
    t->qkv = zeroed(t->rows * t->row, sizeof(float));
    t->d_qkv = zeroed(t->rows * t->row, sizeof(float));
    t->output = zeroed(t->rows * t->out_row, sizeof(float));
    t->d_output = zeroed(t->rows * t->out_row, sizeof(float));
    t->lse = zeroed(t->rows * s->heads, sizeof(float));
    t->exact = zeroed(t->rows * t->out_row, sizeof(double));
    t->d_exact = zeroed(t->rows * t->row, sizeof(double));
    for (int64_t i = 0; i < t->rows * t->row; i++)
        t->qkv[i] = (float)random_normal(&random);
    for (int64_t i = 0; i < t->rows * t->out_row; i++)
        t->d_output[i] = (float)random_normal(&random);
    for (int b = 0; b < s->batch; b++)
        for (int i = 0; i < s->sequence; i++)
            for (int h = 0; h < s->heads; h++)
                exact_row(t, b, i, h);
}

static void close_trial(struct trial *t)
{
    free(t->qkv);
    free(t->d_qkv);
    free(t->output);
    free(t->d_output);
    free(t->lse);
    free(t->exact);
    free(t->d_exact);
}

static void run(struct trial *t, coda_device *device)
{
    coda_error error;
    struct attention attention;
    coda_llama_config config = {
        .num_attention_heads = t->s.heads, .num_key_value_heads = t->s.kv_heads, .head_dim = t->s.depth};
    attention_open(&attention, device, &config, CODA_F32);
    memset(t->d_qkv, 0xff, (size_t)(t->rows * t->row) * sizeof(float));
    assert_int_equal(attention_forward(&attention, t->s.batch, t->s.sequence, t->qkv, t->output, t->lse, &error),
                     CODA_OK);
    assert_int_equal(attention_backward(&attention, t->s.batch, t->s.sequence, t->qkv, t->output, t->d_output, t->lse,
                                        t->d_qkv, &error),
                     CODA_OK);
    attention_close(&attention);
}

/* In the 2-norm, relative: sums of up to `sequence` and `depth` terms, each rounded; scores of a few units multiply the
 * error of an exponent by as much. */
static double bound(const struct shape *s)
{
    return 0x1p-24 * (double)(2 * s->sequence * (s->heads / s->kv_heads) + 4 * s->depth + 100);
}

static double relative_error(const float *found, const double *exact, int64_t count)
{
    double off = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        off += pow(found[i] - exact[i], 2);
        size += pow(exact[i], 2);
    }
    return size > 0 ? sqrt(off / size) : sqrt(off);
}

static void attention_agrees_with_double(void **state)
{
    coda_device *device = *state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct trial t;
        open_trial(&t, &shapes[i], 5 + i);
        run(&t, device);
        double forward = relative_error(t.output, t.exact, t.rows * t.out_row);
        double backward = relative_error(t.d_qkv, t.d_exact, t.rows * t.row);
        if (!(forward <= bound(&shapes[i])) || !(backward <= bound(&shapes[i])))
            fail_msg("shape %zu: errors %.3g and %.3g, bound %.3g", i, forward, backward, bound(&shapes[i]));
        close_trial(&t);
    }
}

static void attention_does_not_depend_on_threads(void **state)
{
    coda_device *device = *state;
    struct trial t;
    int before = coda_device_threads(device);
    open_trial(&t, &shapes[7], 3);
    run(&t, device);
    float *output = zeroed(t.rows * t.out_row, sizeof(float)), *d_qkv = zeroed(t.rows * t.row, sizeof(float));
    memcpy(output, t.output, (size_t)(t.rows * t.out_row) * sizeof(float));
    memcpy(d_qkv, t.d_qkv, (size_t)(t.rows * t.row) * sizeof(float));
    static const int threads[] = {1, 2, 3, 7};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(coda_device_set_threads(device, threads[i], NULL), CODA_OK);
        run(&t, device);
        assert_memory_equal(output, t.output, (size_t)(t.rows * t.out_row) * sizeof(float));
        assert_memory_equal(d_qkv, t.d_qkv, (size_t)(t.rows * t.row) * sizeof(float));
    }
    coda_device_set_threads(device, before, NULL);
    free(output);
    free(d_qkv);
    close_trial(&t);
}

/* Large scores: the exponentials of plain softmax would overflow. */
static void large_scores_stay_finite(void **state)
{
    struct trial t;
    open_trial(&t, &shapes[6], 3);
    for (int64_t i = 0; i < t.rows * t.row; i++)
        t.qkv[i] *= 300;
    run(&t, *state);
    for (int64_t i = 0; i < t.rows * t.out_row; i++)
        assert_true(isfinite(t.output[i]));
    for (int64_t i = 0; i < t.rows * t.row; i++)
        assert_true(isfinite(t.d_qkv[i]));
    close_trial(&t);
}

static void decoding_one_token_equals_the_last_row(void **state)
{
    struct trial t;
    struct attention attention;
    coda_error error;
    const struct shape *s = &shapes[7];
    open_trial(&t, s, 3);
    coda_llama_config config = {
        .num_attention_heads = s->heads, .num_key_value_heads = s->kv_heads, .head_dim = s->depth};
    int64_t cached = 2 * s->kv_heads * s->depth, queries = s->heads * s->depth, last = t.rows - 1;
    float *cache = zeroed(t.rows * cached, sizeof(float));
    for (int64_t i = 0; i < t.rows; i++)
        memcpy(cache + i * cached, t.qkv + i * t.row + queries, (size_t)cached * sizeof(float));
    attention_open(&attention, *state, &config, CODA_F32);
    assert_int_equal(attention_decode(&attention, t.qkv + last * t.row, cache, t.rows, t.output, &error), CODA_OK);
    double off = relative_error(t.output, t.exact + last * t.out_row, t.out_row);
    if (!(off <= bound(s)))
        fail_msg("error %.3g, bound %.3g", off, bound(s));
    attention_close(&attention);
    free(cache);
    close_trial(&t);
}

static int open_cpu(void **state)
{
    return coda_device_open("cpu", (coda_device **)state, NULL) == CODA_OK ? 0 : -1;
}

static int close_cpu(void **state)
{
    coda_device_close(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_agrees_with_double),
        cmocka_unit_test(attention_does_not_depend_on_threads),
        cmocka_unit_test(large_scores_stay_finite),
        cmocka_unit_test(decoding_one_token_equals_the_last_row),
    };
    return cmocka_run_group_tests(tests, open_cpu, close_cpu);
}
