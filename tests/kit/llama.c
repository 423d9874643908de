#include "llama.h"
#include "random.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

coda_llama_config llama_small(int wide)
{
    coda_llama_config config = {
        .hidden_size = wide ? 150 : 20,
        .intermediate_size = wide ? 131 : 28,
        .num_hidden_layers = 2,
        .num_attention_heads = 4,
        .num_key_value_heads = 2,
        .head_dim = wide ? 34 : 6,
        .vocab_size = wide ? 139 : 17,
        .max_position_embeddings = 80,
        .rms_norm_eps = 1e-5,
        .rope_theta = 100,
        .tie_word_embeddings = wide,
    };
    return config;
}

static double *doubles(int64_t count)
{
    double *x = calloc((size_t)count, sizeof *x);
    assert_non_null(x);
    return x;
}

struct llama_weights llama_weights_of(const coda_llama *llama)
{
    struct llama_weights w = {*coda_llama_configuration(llama), coda_llama_tensor_count(llama), NULL, NULL};
    w.weight = calloc((size_t)w.count, sizeof *w.weight);
    w.size = calloc((size_t)w.count, sizeof *w.size);
    assert_non_null(w.weight);
    assert_non_null(w.size);
    for (int i = 0; i < w.count; i++) {
        coda_tensor t;
        assert_int_equal(coda_llama_tensor(llama, i, NULL, &t), CODA_OK);
        w.size[i] = t.shape[0] * t.shape[1];
        w.weight[i] = doubles(w.size[i]);
        for (int64_t j = 0; j < w.size[i]; j++) {
            float x;
            coda_convert(&x, CODA_F32, (char *)t.data + (size_t)j * coda_dtype_size(t.dtype), t.dtype, 1);
            w.weight[i][j] = x;
        }
    }
    return w;
}

void llama_weights_free(struct llama_weights *weights)
{
    for (int i = 0; i < weights->count; i++)
        free(weights->weight[i]);
    free(weights->weight);
    free(weights->size);
}

static void normalize(int64_t d, double eps, const double *x, const double *g, double *y)
{
    double sum = 0;
    for (int64_t i = 0; i < d; i++)
        sum += x[i] * x[i];
    for (int64_t i = 0; i < d; i++)
        y[i] = x[i] * g[i] / sqrt(sum / (double)d + eps);
}

/* y (+)= W x, W [rows, columns] */
static void multiply(int64_t rows, int64_t columns, const double *w, const double *x, double *y, int add)
{
    for (int64_t i = 0; i < rows; i++) {
        double sum = add ? y[i] : 0;
        for (int64_t j = 0; j < columns; j++)
            sum += w[i * columns + j] * x[j];
        y[i] = sum;
    }
}

static void rotate(const coda_llama_config *c, int64_t position, double *head)
{
    int64_t half = c->head_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        double angle = (double)position * pow(c->rope_theta, -(double)i / (double)half);
        double a = head[i], b = head[half + i];
        head[i] = a * cos(angle) - b * sin(angle);
        head[half + i] = b * cos(angle) + a * sin(angle);
    }
}

/* One query head against keys and values 0..position, which lie `row` apart. */
static void attend(int64_t depth, int64_t position, const double *q, const double *k, const double *v, int64_t row,
                   double *y)
{
    double total = 0;
    memset(y, 0, (size_t)depth * sizeof *y);
    for (int64_t j = 0; j <= position; j++) {
        double score = 0;
        for (int64_t i = 0; i < depth; i++)
            score += q[i] * k[j * row + i];
        double p = exp(score / sqrt((double)depth));
        total += p;
        for (int64_t i = 0; i < depth; i++)
            y[i] += p * v[j * row + i];
    }
    for (int64_t i = 0; i < depth; i++)
        y[i] /= total;
}

/* One layer over one sequence: x [length, hidden] in place. weight: the layer's first tensor. */
static void run_layer(const coda_llama_config *c, double *const *weight, int64_t length, double *x)
{
    int64_t d = c->hidden_size, f = c->intermediate_size, depth = c->head_dim, heads = c->num_attention_heads;
    int64_t q = heads * depth, e = c->num_key_value_heads * depth, n = q + 2 * e,
            group = heads / c->num_key_value_heads;
    double *normed = doubles(d), *qkv = doubles(length * n), *y = doubles(q), *gate = doubles(f), *up = doubles(f);
    for (int64_t t = 0; t < length; t++) {
        double *row = qkv + t * n;
        normalize(d, c->rms_norm_eps, x + t * d, weight[0], normed);
        multiply(q, d, weight[1], normed, row, 0);
        multiply(e, d, weight[2], normed, row + q, 0);
        multiply(e, d, weight[3], normed, row + q + e, 0);
        for (int64_t h = 0; h < heads + c->num_key_value_heads; h++)
            rotate(c, t, row + h * depth);
        for (int64_t h = 0; h < heads; h++)
            attend(depth, t, row + h * depth, qkv + q + h / group * depth, qkv + q + e + h / group * depth, n,
                   y + h * depth);
        multiply(d, q, weight[4], y, x + t * d, 1);
        normalize(d, c->rms_norm_eps, x + t * d, weight[5], normed);
        multiply(f, d, weight[6], normed, gate, 0);
        multiply(f, d, weight[7], normed, up, 0);
        for (int64_t i = 0; i < f; i++)
            gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
        multiply(d, f, weight[8], gate, x + t * d, 1);
    }
    free(normed);
    free(qkv);
    free(y);
    free(gate);
    free(up);
}

double llama_loss(const struct llama_weights *weights, const coda_batch *batch)
{
    const coda_llama_config *c = &weights->config;
    int64_t d = c->hidden_size, v = c->vocab_size, length = batch->length;
    int final = 1 + 9 * (int)c->num_hidden_layers;
    const double *head = weights->weight[c->tie_word_embeddings ? 0 : final + 1];
    double *x = doubles(length * d), *normed = doubles(d), *z = doubles(v), loss = 0, live = 0;
    for (int64_t s = 0; s < batch->sequences; s++) {
        for (int64_t t = 0; t < length; t++)
            memcpy(x + t * d, weights->weight[0] + batch->tokens[s * length + t] * d, (size_t)d * sizeof *x);
        for (int64_t l = 0; l < c->num_hidden_layers; l++)
            run_layer(c, weights->weight + 1 + 9 * l, length, x);
        for (int64_t t = 0; t < length; t++) {
            int32_t target = batch->targets[s * length + t];
            double weight = batch->weights ? batch->weights[s * length + t] : 1, sum = 0;
            if (target == -100)
                continue;
            normalize(d, c->rms_norm_eps, x + t * d, weights->weight[final], normed);
            multiply(v, d, head, normed, z, 0);
            for (int64_t i = 0; i < v; i++)
                sum += exp(z[i]);
            loss += weight * (log(sum) - z[target]);
            live += weight;
        }
    }
    free(x);
    free(normed);
    free(z);
    return live > 0 ? loss / live : 0;
}

/* With step h the difference is f' + a h^2 + ..: from h and 2h the error of the first is about a third of their
 * difference; double's own rounding, some 2^-45 of the loss after so many operations, is divided by h. */
double llama_derivative(struct llama_weights *weights, const coda_batch *batch, int tensor, int64_t element,
                        double *error)
{
    const double step = 0x1p-12;
    double *place = &weights->weight[tensor][element], middle = *place, difference[2], loss = 0;
    for (int i = 0; i < 2; i++) {
        double h = step * (i + 1);
        *place = middle + h;
        loss = llama_loss(weights, batch);
        *place = middle - h;
        difference[i] = (loss - llama_loss(weights, batch)) / (2 * h);
    }
    *place = middle;
    *error = fabs(difference[1] - difference[0]) + 0x1p-45 * (1 + loss) / step;
    return difference[0] + (difference[0] - difference[1]) / 3;
}

void llama_randomize(coda_llama *llama, double spread, uint64_t seed)
{
    struct random random = {seed};
    for (int i = 0; i < coda_llama_tensor_count(llama); i++) {
        coda_tensor t;
        assert_int_equal(coda_llama_tensor(llama, i, NULL, &t), CODA_OK);
        for (int64_t j = 0; j < t.shape[0] * t.shape[1]; j++) {
            double normal = random_normal(&random);
            float x = (float)(t.rank == 1 ? 1 + 0.2 * normal : spread * normal / sqrt((double)t.shape[1]));
            coda_convert((char *)t.data + (size_t)j * coda_dtype_size(t.dtype), t.dtype, &x, CODA_F32, 1);
        }
    }
}
