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

coda_tensor pass_gradient(const struct pass *pass, int index)
{
    const struct weight *weight = &pass->llama->weight[index];
    return weight->rank == 1 ? vector(pass->gradient[index], CODA_F32, weight->columns)
                             : matrix(pass->gradient[index], CODA_F32, weight->rows, weight->columns);
}

void pass_attention(struct pass *pass, int64_t layer)
{
    struct workspace *w = pass->workspace;
    struct layer_values *saved = &w->layer[layer];
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
    coda_dtype dtype;
};

enum { SCATTER_COLUMNS = 32 };

/* One range of columns, all rows in order: the sum's order does not depend on threads. */
static void scatter_columns(void *context, int64_t index)
{
    const struct scatter *s = context;
    const struct pass *pass = s->pass;
    int64_t width = pass->llama->config.hidden_size, first = index * SCATTER_COLUMNS;
    int64_t count = minimum(SCATTER_COLUMNS, width - first);
    size_t size = coda_dtype_size(s->dtype);
    float chunk[SCATTER_COLUMNS];
    for (int64_t row = 0; row < pass_rows(pass); row++) {
        float *to = pass->gradient[EMBEDDING_INDEX] + pass->workspace->tokens[row] * width + first;
        coda_convert(chunk, CODA_F32, (const char *)s->d_input + (size_t)(row * width + first) * size, s->dtype, count);
        for (int64_t i = 0; i < count; i++)
            to[i] += chunk[i];
    }
}

void pass_embedding_gradient(struct pass *pass, const void *d_input, coda_dtype dtype)
{
    if (pass->status != CODA_OK)
        return;
    struct scatter scatter = {pass, d_input, dtype};
    int64_t width = pass->llama->config.hidden_size;
    coda_parallel_for(pass->llama->device, ceiling(width, SCATTER_COLUMNS), scatter_columns, &scatter);
    pass->workspace->plain_bytes += (double)pass_rows(pass) * (double)width * (8 + (double)coda_dtype_size(dtype));
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

/* A value of a layer, or of the block behind its attention. */
struct suspect {
    const char *what;
    coda_tensor value;
    enum layer_tensor first, last; /* weights that made it; first > last: none */
};

static bool is_trouble(const struct pass *pass, const struct suspect *suspect, int64_t layer, char *name, size_t room)
{
    const coda_tensor *t = &suspect->value;
    for (int w = (int)suspect->first; w <= (int)suspect->last; w++)
        if (weight_is_trouble(pass, layer_index(layer, (enum layer_tensor)w), name, room))
            return true;
    if (!t->data || all_finite(t->dtype, t->data, t->shape[0] * t->shape[1]))
        return false;
    snprintf(name, room, "%s of layer %lld", suspect->what, (long long)layer);
    return true;
}

/* What the path calls a value between the products; no data: it has none. */
static coda_tensor value_between(const struct pass *pass, int64_t layer, const char *name, const void *unfused,
                                 int64_t columns)
{
    coda_tensor found = {.data = NULL};
    if (pass->workspace->unfused.layer)
        return pass_matrix(pass, unfused, columns);
    return fused_value(pass, layer + 1, name, &found) ? found : (coda_tensor){.data = NULL};
}

bool pass_find_trouble(struct pass *pass, char *name, size_t room)
{
    const coda_llama_config *c = &pass->llama->config;
    const struct workspace *w = pass->workspace;
    int64_t last = c->num_hidden_layers - 1, d = c->hidden_size, f = c->intermediate_size, q = query_width(c);
    if (weight_is_trouble(pass, EMBEDDING_INDEX, name, room))
        return true;
    if (!w->unfused.layer)
        fused_recompute_end(pass);
    for (int64_t i = 0; i <= last; i++) {
        const struct layer_values *l = &w->layer[i];
        const struct layer_unfused none = {.gate = NULL}, *u = w->unfused.layer ? &w->unfused.layer[i] : &none;
        const struct suspect suspects[] = {
            {"the input", pass_matrix(pass, l->input, d), 1, 0},
            {"queries, keys and values", pass_matrix(pass, l->qkv, q + 2 * key_width(c)), INPUT_NORM, VALUE},
            {"the attention's output", pass_matrix(pass, l->attended, q), 1, 0},
            {"the residual stream after attention", value_between(pass, i, "X1", u->middle, d), ATTENTION_OUTPUT,
             ATTENTION_OUTPUT},
            {"the MLP's gate", value_between(pass, i, "G", u->gate, f), POST_ATTENTION_NORM, GATE},
            {"the MLP's up projection", value_between(pass, i, "U", u->up, f), UP, UP},
            {"the output",
             i < last ? pass_matrix(pass, w->layer[i + 1].input, d)
                      : value_between(pass, i, "X2", w->unfused.output, d),
             DOWN, DOWN},
        };
        for (size_t v = 0; v < sizeof suspects / sizeof suspects[0]; v++)
            if (is_trouble(pass, &suspects[v], i, name, room))
                return true;
    }
    if (weight_is_trouble(pass, final_norm_index(pass->llama), name, room) ||
        weight_is_trouble(pass, head_index(pass->llama), name, room))
        return true;
    snprintf(name, room, "the logits");
    return !finite_floats(w->loss, pass_rows(pass));
}
