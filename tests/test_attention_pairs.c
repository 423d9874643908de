/* Attention in pairs of bf16, by plain products everywhere and by the machine's where it has them, against one row at a
 * time in double. */
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wpsabi" /* vectors wider than the machine's pass between inlined functions alone */
#endif
#define LANES 16
#include "kit/random.h"

#include <stdint.h>
#include <string.h>

/* What an instruction set brings along. */
static float widen(uint16_t x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

static void multiply(int64_t m, int64_t n, int64_t depth, const uint16_t *a, int64_t a_stride, const uint16_t *b,
                     float *c, int add)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float sum = add ? c[i * n + j] : 0;
            for (int64_t k = 0; k < depth; k++)
                sum += widen(a[i * a_stride + k]) *
                       widen(b[(k / 32 * (n / 16) + j / 16) * 512 + k % 32 / 2 * 32 + j % 16 * 2 + k % 2]);
            c[i * n + j] = sum;
        }
}

#include "model/attention_pairs_tiles.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static const struct attention_pairs_code plain = {"plain", NULL, NULL, pack, forward, row_products, backward, write};

struct dims {
    int batch, sequence, heads, kv_heads, depth;
};

static const struct dims shapes[] = {{1, 1, 1, 1, 2},    {2, 5, 4, 2, 4},   {1, 63, 2, 2, 6},   {1, 64, 2, 1, 16},
                                     {1, 65, 2, 2, 32},  {2, 130, 2, 1, 8}, {1, 200, 6, 2, 34}, {3, 7, 3, 1, 66},
                                     {1, 17, 2, 1, 130}, {1, 300, 1, 1, 64}};

/* Results in bf16, and in double: exact, and with every intermediate matrix rounded to bf16. */
struct trial {
    struct dims s;
    int64_t row, out_row, in_count, out_count;
    uint16_t *qkv, *d_output, *output, *d_qkv;
    float *lse;
    double *exact[2], *d_exact[2];
};

static void *zeroed(int64_t count, size_t size)
{
    void *memory = calloc((size_t)count, size);
    assert_non_null(memory);
    return memory;
}

static double rounded(double x, int in_bf16)
{
    uint16_t bits;
    const float y = (float)x;
    coda_convert(&bits, CODA_BF16, &y, CODA_F32, 1);
    return in_bf16 ? (double)widen(bits) : x;
}

static double dot(const uint16_t *a, const uint16_t *b, int count)
{
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += (double)widen(a[i]) * (double)widen(b[i]);
    return sum;
}

/* One query: its output, and what its gradient adds to that of queries, keys and values. */
static void exact_row(struct trial *t, int64_t batch, int64_t position, int head, int in_bf16)
{
    const struct dims *s = &t->s;
    const int depth = s->depth, kv = head / (s->heads / s->kv_heads);
    const int64_t first = batch * s->sequence, here = first + position, q_at = here * t->row + head * depth;
    const uint16_t *q = t->qkv + q_at, *dy = t->d_output + here * t->out_row + head * depth;
    double *p = zeroed(position + 1, sizeof *p), largest = -INFINITY, total = 0, delta = 0, scale = 1 / sqrt(depth);
    double *y = t->exact[in_bf16] + here * t->out_row + head * depth, *d = t->d_exact[in_bf16];
    for (int64_t j = 0; j <= position; j++) {
        p[j] = rounded(scale * dot(q, t->qkv + (first + j) * t->row + (s->heads + kv) * depth, depth), in_bf16);
        largest = fmax(largest, p[j]);
    }
    for (int64_t j = 0; j <= position; j++)
        total += p[j] = exp(p[j] - largest);
    for (int64_t j = 0; j <= position; j++) {
        const uint16_t *v = t->qkv + (first + j) * t->row + (s->heads + s->kv_heads + kv) * depth;
        p[j] = rounded(p[j] / total, in_bf16);
        for (int i = 0; i < depth; i++)
            y[i] += p[j] * (double)widen(v[i]);
    }
    for (int i = 0; i < depth; i++) {
        y[i] = rounded(y[i], in_bf16);
        delta += y[i] * (double)widen(dy[i]);
    }
    for (int64_t j = 0; j <= position; j++) {
        const int64_t k = (first + j) * t->row + (s->heads + kv) * depth, v = k + s->kv_heads * depth;
        const double ds = rounded(scale * p[j] * (rounded(dot(dy, t->qkv + v, depth), in_bf16) - delta), in_bf16);
        for (int i = 0; i < depth; i++) {
            d[v + i] += p[j] * (double)widen(dy[i]);
            d[q_at + i] += ds * (double)widen(t->qkv[k + i]);
            d[k + i] += ds * (double)widen(q[i]);
        }
    }
    free(p);
}

static void fill(uint16_t *to, int64_t count, struct random *random)
{
    for (int64_t i = 0; i < count; i++) {
        const float x = (float)random_normal(random);
        coda_convert(&to[i], CODA_BF16, &x, CODA_F32, 1);
    }
}

static void open_trial(struct trial *t, const struct dims *s, uint64_t seed)
{
    struct random random = {seed};
    t->s = *s;
    t->row = (s->heads + 2 * s->kv_heads) * s->depth;
    t->out_row = s->heads * s->depth;
    t->in_count = s->batch * s->sequence * t->row;
    t->out_count = s->batch * s->sequence * t->out_row;
    t->qkv = zeroed(t->in_count, sizeof *t->qkv);
    t->d_qkv = zeroed(t->in_count, sizeof *t->d_qkv);
    t->output = zeroed(t->out_count, sizeof *t->output);
    t->d_output = zeroed(t->out_count, sizeof *t->d_output);
    t->lse = zeroed(s->batch * s->sequence * s->heads, sizeof *t->lse);
    fill(t->qkv, t->in_count, &random);
    fill(t->d_output, t->out_count, &random);
    for (int in_bf16 = 0; in_bf16 < 2; in_bf16++) {
        t->exact[in_bf16] = zeroed(t->out_count, sizeof(double));
        t->d_exact[in_bf16] = zeroed(t->in_count, sizeof(double));
        for (int b = 0; b < s->batch; b++)
            for (int i = 0; i < s->sequence; i++)
                for (int h = 0; h < s->heads; h++)
                    exact_row(t, b, i, h, in_bf16);
        for (int64_t i = 0; i < t->in_count; i++)
            t->d_exact[in_bf16][i] = rounded(t->d_exact[in_bf16][i], in_bf16);
    }
}

static void close_trial(struct trial *t)
{
    free(t->qkv);
    free(t->d_qkv);
    free(t->output);
    free(t->d_output);
    free(t->lse);
    for (int i = 0; i < 2; i++) {
        free(t->exact[i]);
        free(t->d_exact[i]);
    }
}

static void run(struct trial *t, coda_device *device, const struct attention_pairs_code *code)
{
    coda_error error;
    struct attention attention;
    coda_llama_config config = {
        .num_attention_heads = t->s.heads, .num_key_value_heads = t->s.kv_heads, .head_dim = t->s.depth};
    attention_open(&attention, device, &config, CODA_BF16);
    attention.pairs = code;
    memset(t->output, 0xff, (size_t)t->out_count * sizeof *t->output);
    memset(t->d_qkv, 0xff, (size_t)t->in_count * sizeof *t->d_qkv);
    assert_int_equal(attention_forward(&attention, t->s.batch, t->s.sequence, t->qkv, t->output, t->lse, &error),
                     CODA_OK);
    assert_int_equal(attention_backward(&attention, t->s.batch, t->s.sequence, t->qkv, t->output, t->d_output, t->lse,
                                        t->d_qkv, &error),
                     CODA_OK);
    attention_close(&attention);
}

/* In the 2-norm. */
static double distance(const uint16_t *found, const double *other, const double *exact, int64_t count)
{
    double off = 0;
    for (int64_t i = 0; i < count; i++)
        off += pow((found ? (double)widen(found[i]) : other[i]) - exact[i], 2);
    return sqrt(off);
}

static void check_errors(const struct trial *t, const char *name)
{
    const double forward = distance(t->output, NULL, t->exact[0], t->out_count),
                 forward_bf16 = distance(NULL, t->exact[1], t->exact[0], t->out_count),
                 backward = distance(t->d_qkv, NULL, t->d_exact[0], t->in_count),
                 backward_bf16 = distance(NULL, t->d_exact[1], t->d_exact[0], t->in_count);
    if (!(forward <= 2 * forward_bf16) || !(backward <= 2 * backward_bf16))
        fail_msg("%s, sequence %d of %d: errors %.3g and %.3g, of plain bf16 %.3g and %.3g", name, t->s.sequence,
                 t->s.depth, forward, backward, forward_bf16, backward_bf16);
}

/* The plain products, and the machine's own. */
static int codes(const coda_device *device, const struct attention_pairs_code *found[2])
{
    found[0] = &plain;
    found[1] = attention_pairs_choose(device);
    return found[1] ? 2 : 1;
}

static void errors_are_at_most_twice_those_of_plain_bf16(void **state)
{
    const struct attention_pairs_code *code[2];
    const int count = codes(*state, code);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct trial t;
        open_trial(&t, &shapes[i], 5 + i);
        for (int c = 0; c < count; c++) {
            run(&t, *state, code[c]);
            check_errors(&t, code[c]->name);
        }
        close_trial(&t);
    }
}

static void results_do_not_depend_on_threads(void **state)
{
    const struct attention_pairs_code *code[2];
    const int count = codes(*state, code), before = coda_device_threads(*state);
    struct trial t;
    open_trial(&t, &shapes[6], 3);
    uint16_t *output = zeroed(t.out_count, sizeof *output), *d_qkv = zeroed(t.in_count, sizeof *d_qkv);
    for (int c = 0; c < count; c++)
        for (int threads = 1; threads < 8; threads += 2) {
            assert_int_equal(coda_device_set_threads(*state, threads, NULL), CODA_OK);
            run(&t, *state, code[c]);
            if (threads == 1) {
                memcpy(output, t.output, (size_t)t.out_count * sizeof *output);
                memcpy(d_qkv, t.d_qkv, (size_t)t.in_count * sizeof *d_qkv);
            }
            assert_memory_equal(output, t.output, (size_t)t.out_count * sizeof *output);
            assert_memory_equal(d_qkv, t.d_qkv, (size_t)t.in_count * sizeof *d_qkv);
        }
    coda_device_set_threads(*state, before, NULL);
    free(output);
    free(d_qkv);
    close_trial(&t);
}

/* Large scores: the exponentials of plain softmax would overflow. */
static void large_scores_stay_finite(void **state)
{
    const struct attention_pairs_code *code[2];
    const int count = codes(*state, code);
    struct trial t;
    open_trial(&t, &shapes[5], 3);
    for (int64_t i = 0; i < t.in_count; i++) {
        const float x = widen(t.qkv[i]) * 300;
        coda_convert(&t.qkv[i], CODA_BF16, &x, CODA_F32, 1);
    }
    for (int c = 0; c < count; c++) {
        run(&t, *state, code[c]);
        for (int64_t i = 0; i < t.out_count; i++)
            assert_true(isfinite(widen(t.output[i])));
        for (int64_t i = 0; i < t.in_count; i++)
            assert_true(isfinite(widen(t.d_qkv[i])));
    }
    close_trial(&t);
}

/* What is not a number reaches the rows that see it, and no others. */
static void nan_reaches_later_rows_alone(void **state)
{
    enum { WHERE = 70 };
    const struct attention_pairs_code *code[2];
    const int count = codes(*state, code);
    struct trial t;
    open_trial(&t, &shapes[9], 3);
    t.qkv[WHERE * t.row + t.s.depth] = 0x7fc0; /* a key */
    for (int c = 0; c < count; c++) {
        run(&t, *state, code[c]);
        for (int64_t i = 0; i < t.s.sequence; i++)
            assert_int_equal(isnan(widen(t.output[i * t.out_row])) != 0, i >= WHERE);
    }
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
        cmocka_unit_test(errors_are_at_most_twice_those_of_plain_bf16),
        cmocka_unit_test(results_do_not_depend_on_threads),
        cmocka_unit_test(large_scores_stay_finite),
        cmocka_unit_test(nan_reaches_later_rows_alone),
    };
    return cmocka_run_group_tests(tests, open_cpu, close_cpu);
}
