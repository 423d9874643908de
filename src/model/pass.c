#include "model/pass.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void pass_launch(struct pass *pass, enum kernel which, const double *parameters, const coda_tensor *operands, int count)
{
    if (pass->status == CODA_OK)
        pass->status =
            coda_kernel_launch(pass->llama->kernels.kernel[which], operands, count, parameters, NULL, pass->error);
}

coda_tensor pass_matrix(const struct pass *pass, const void *data, int64_t columns)
{
    return matrix(data, pass->llama->dtype, pass_rows(pass), columns);
}

coda_tensor pass_vector(const struct pass *pass, const float *data)
{
    return vector(data, CODA_F32, pass_rows(pass));
}

coda_tensor pass_gradient(const struct pass *pass, int index)
{
    const struct weight *weight = &pass->llama->weight[index];
    return weight->rank == 1 ? vector(pass->gradient[index], CODA_F32, weight->columns)
                             : matrix(pass->gradient[index], CODA_F32, weight->rows, weight->columns);
}

void pass_attention(struct pass *pass, int64_t layer)
{
    struct workspace *w = pass->workspace;
    struct saved *saved = &w->layer[layer];
    if (pass->status != CODA_OK)
        return;
    if (pass->attend)
        pass->attend(pass, layer);
    else
        pass->status = attention_forward(&w->attention, pass->sequences, pass->length, saved->qkv, saved->attended,
                                         saved->lse, pass->error);
}

void pass_wgrad(struct pass *pass, int index, const void *d_output, int64_t stride, const void *input)
{
    const struct weight *weight = &pass->llama->weight[index];
    LAUNCH(pass, GEMM_WGRAD, NULL, strided_matrix(d_output, pass->llama->dtype, pass_rows(pass), weight->rows, stride),
           pass_matrix(pass, input, weight->columns), pass_gradient(pass, index));
}

struct scatter {
    struct pass *pass;
    const void *d_input;
};

enum { SCATTER_COLUMNS = 32 };

/* One range of columns, all rows in order: the sum's order does not depend on threads. */
static void scatter_columns(void *context, int64_t index)
{
    const struct scatter *s = context;
    const struct pass *pass = s->pass;
    int64_t width = pass->llama->config.hidden_size, first = index * SCATTER_COLUMNS;
    int64_t count = minimum(SCATTER_COLUMNS, width - first);
    size_t size = coda_dtype_size(pass->llama->dtype);
    float chunk[SCATTER_COLUMNS];
    for (int64_t row = 0; row < pass_rows(pass); row++) {
        float *to = pass->gradient[EMBEDDING_INDEX] + pass->workspace->tokens[row] * width + first;
        coda_convert(chunk, CODA_F32, (const char *)s->d_input + (size_t)(row * width + first) * size,
                     pass->llama->dtype, count);
        for (int64_t i = 0; i < count; i++)
            to[i] += chunk[i];
    }
}

void pass_embedding_gradient(struct pass *pass, const void *d_input)
{
    if (pass->status != CODA_OK)
        return;
    struct scatter scatter = {pass, d_input};
    int64_t width = pass->llama->config.hidden_size;
    coda_parallel_for(pass->llama->device, ceiling(width, SCATTER_COLUMNS), scatter_columns, &scatter);
    pass->workspace->plain_bytes +=
        (double)pass_rows(pass) * (double)width * (8 + (double)coda_dtype_size(pass->llama->dtype));
}

static bool finite_floats(const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

static bool all_finite(coda_dtype dtype, const void *data, int64_t count)
{
    float chunk[256];
    size_t size = coda_dtype_size(dtype);
    for (int64_t i = 0; i < count; i += 256) {
        int64_t here = minimum(256, count - i);
        coda_convert(chunk, CODA_F32, (const char *)data + (size_t)i * size, dtype, here);
        if (!finite_floats(chunk, here))
            return false;
    }
    return true;
}

/* A weight is named before the values that it takes part in. */
static bool weight_is_trouble(const struct pass *pass, int index, char *name, size_t room)
{
    const struct weight *weight = &pass->llama->weight[index];
    if (all_finite(pass->llama->dtype, weight->data, elements(weight)))
        return false;
    snprintf(name, room, "the weight %s", weight->name);
    return true;
}

bool pass_find_trouble(const struct pass *pass, char *name, size_t room)
{
    const coda_llama_config *c = &pass->llama->config;
    const struct workspace *w = pass->workspace;
    int64_t rows = pass_rows(pass), queries = query_width(c);
    if (weight_is_trouble(pass, EMBEDDING_INDEX, name, room))
        return true;
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        const struct saved *s = &w->layer[i];
        const struct {
            const char *what;
            const void *data;
            int64_t columns;
            enum layer_tensor first, last; /* weights that made it; first > last: none */
        } value[] = {
            {"the input", s->input, c->hidden_size, 1, 0},
            {"queries, keys and values", s->qkv, queries + 2 * key_width(c), INPUT_NORM, VALUE},
            {"the attention's output", s->attended, queries, 1, 0},
            {"the residual stream after attention", s->middle, c->hidden_size, ATTENTION_OUTPUT, ATTENTION_OUTPUT},
            {"the MLP's gate", s->gate, c->intermediate_size, POST_ATTENTION_NORM, GATE},
            {"the MLP's up projection", s->up, c->intermediate_size, UP, UP},
            {"the output", w->layer[i + 1].input, c->hidden_size, DOWN, DOWN},
        };
        for (size_t v = 0; v < sizeof value / sizeof value[0]; v++) {
            for (int t = (int)value[v].first; t <= (int)value[v].last; t++)
                if (weight_is_trouble(pass, layer_index(i, (enum layer_tensor)t), name, room))
                    return true;
            if (!all_finite(pass->llama->dtype, value[v].data, rows * value[v].columns)) {
                snprintf(name, room, "%s of layer %lld", value[v].what, (long long)i);
                return true;
            }
        }
    }
    if (weight_is_trouble(pass, final_norm_index(pass->llama), name, room) ||
        weight_is_trouble(pass, head_index(pass->llama), name, room))
        return true;
    snprintf(name, room, "the logits");
    return !finite_floats(w->loss, rows);
}
