/* The same mathematics one operator at a time, as a framework without a compiler runs it: products by the bare `gemm`
 * programs, every other operator by itself, each result rounded and stored, and what the backward needs kept. */
#include "model/operators.h"
#include "model/pass.h"

static struct operators operators_of(struct pass *pass)
{
    return (struct operators){pass->llama->device, operator_code_choose(), pass->llama->dtype,
                              &pass->workspace->plain_bytes};
}

/* y = x W^T into columns of rows that lie `stride` apart */
static void linear_strided(struct pass *pass, const void *x, int weight, void *y, int64_t stride)
{
    const struct weight *w = &pass->llama->weight[weight];
    LAUNCH(pass, GEMM, NULL, pass_matrix(pass, x, w->columns), weight_operand(pass->llama, weight),
           strided_matrix(y, pass->llama->dtype, pass_rows(pass), w->rows, stride));
}

static void linear(struct pass *pass, const void *x, int weight, void *y)
{
    linear_strided(pass, x, weight, y, pass->llama->weight[weight].rows);
}

/* dx = dy W */
static void linear_backward(struct pass *pass, const void *dy, int64_t stride, int weight, void *dx)
{
    const struct weight *w = &pass->llama->weight[weight];
    LAUNCH(pass, GEMM_DGRAD, NULL, strided_matrix(dy, pass->llama->dtype, pass_rows(pass), w->rows, stride),
           weight_operand(pass->llama, weight), pass_matrix(pass, dx, w->columns));
}

static void elementwise(struct pass *pass, enum elementwise op, int64_t columns, const void *a, const void *b, void *y)
{
    struct operators o = operators_of(pass);
    if (pass->status == CODA_OK)
        operate(&o, op, pass_rows(pass) * columns, a, b, y);
}

static void norm(struct pass *pass, const void *x, int weight, void *y, float *scale)
{
    struct operators o = operators_of(pass);
    if (pass->status == CODA_OK)
        rms_norm(&o, pass_rows(pass), pass->llama->config.hidden_size, x, pass->llama->weight[weight].data,
                 pass->llama->config.rms_norm_eps, y, scale);
}

static void norm_backward(struct pass *pass, const void *dy, const void *x, int weight, const float *scale, void *dx)
{
    struct operators o = operators_of(pass);
    float *partial = pass->workspace->unfused.norm_partials;
    int64_t rows = pass_rows(pass), d = pass->llama->config.hidden_size;
    if (pass->status != CODA_OK)
        return;
    rms_norm_backward(&o, rows, d, dy, x, pass->llama->weight[weight].data, scale, dx, partial);
    LAUNCH(pass, COLUMN_SUM, NULL, matrix(partial, CODA_F32, ceiling(rows, ROW_RUN), d), pass_gradient(pass, weight));
}

/* Queries and keys, which lie side by side. */
static void rope(struct pass *pass, void *qkv, bool inverse)
{
    const coda_llama_config *c = &pass->llama->config;
    struct operators o = operators_of(pass);
    if (pass->status == CODA_OK)
        rotate(&o, pass_rows(pass), c->num_attention_heads + c->num_key_value_heads, c->head_dim,
               query_width(c) + 2 * key_width(c), qkv, pass->llama->rope_table, pass->workspace->positions, inverse);
}

static void *column(const struct pass *pass, void *data, int64_t index)
{
    return (char *)data + (size_t)index * coda_dtype_size(pass->llama->dtype);
}

void unfused_forward(struct pass *pass)
{
    const coda_llama_config *c = &pass->llama->config;
    struct workspace *w = pass->workspace;
    struct unfused *u = &w->unfused;
    struct operators o = operators_of(pass);
    int64_t d = c->hidden_size, f = c->intermediate_size, q = query_width(c), e = key_width(c), n = q + 2 * e;
    gather_rows(&o, pass_rows(pass), d, pass->llama->weight[EMBEDDING_INDEX].data, w->tokens, w->layer[0].input);
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        struct layer_values *l = &w->layer[i];
        struct layer_unfused *s = &u->layer[i];
        norm(pass, l->input, layer_index(i, INPUT_NORM), s->input_normed, s->input_scale);
        linear_strided(pass, s->input_normed, layer_index(i, QUERY), l->qkv, n);
        linear_strided(pass, s->input_normed, layer_index(i, KEY), column(pass, l->qkv, q), n);
        linear_strided(pass, s->input_normed, layer_index(i, VALUE), column(pass, l->qkv, q + e), n);
        rope(pass, l->qkv, false);
        pass_attention(pass, i);
        linear(pass, l->attended, layer_index(i, ATTENTION_OUTPUT), u->scratch[0]);
        elementwise(pass, ADD, d, u->scratch[0], l->input, s->middle);
        norm(pass, s->middle, layer_index(i, POST_ATTENTION_NORM), s->middle_normed, s->middle_scale);
        linear(pass, s->middle_normed, layer_index(i, GATE), s->gate);
        linear(pass, s->middle_normed, layer_index(i, UP), s->up);
        elementwise(pass, SILU, f, s->gate, NULL, s->activated);
        elementwise(pass, MULTIPLY, f, s->activated, s->up, s->product);
        linear(pass, s->product, layer_index(i, DOWN), u->scratch[0]);
        elementwise(pass, ADD, d, u->scratch[0], s->middle,
                    i + 1 < c->num_hidden_layers ? w->layer[i + 1].input : u->output);
    }
}

void unfused_head(struct pass *pass)
{
    coda_llama *m = pass->llama;
    const coda_llama_config *c = &m->config;
    struct workspace *w = pass->workspace;
    struct unfused *u = &w->unfused;
    struct operators o = operators_of(pass);
    int64_t rows = pass_rows(pass), d = c->hidden_size, v = c->vocab_size;
    norm(pass, u->output, final_norm_index(m), u->output_normed, u->output_scale);
    for (int64_t first = 0; first < rows && pass->status == CODA_OK; first += w->head_rows) {
        int64_t count = minimum(w->head_rows, rows - first);
        coda_tensor normed = matrix(column(pass, u->output_normed, first * d), m->dtype, count, d);
        coda_tensor logits = matrix(u->logits, m->dtype, count, v);
        LAUNCH(pass, GEMM, NULL, normed, weight_operand(m, head_index(m)), logits);
        if (pass->status != CODA_OK)
            return;
        cross_entropy(&o, count, v, u->logits, w->targets + first, w->weights + first, pass->divisor, u->head_lse,
                      w->loss + first);
        if (!pass->gradient)
            continue;
        cross_entropy_backward(&o, count, v, u->logits, w->targets + first, w->weights + first, pass->divisor,
                               u->head_lse);
        LAUNCH(pass, GEMM_DGRAD, NULL, logits, weight_operand(m, head_index(m)),
               matrix(column(pass, u->scratch[0], first * d), m->dtype, count, d));
        LAUNCH(pass, GEMM_WGRAD, NULL, logits, normed, pass_gradient(pass, head_index(m)));
    }
    if (pass->gradient)
        norm_backward(pass, u->scratch[0], u->output, final_norm_index(m), u->output_scale, w->d_stream[0]);
}

/* From the gradient of a layer's output (d_stream[0]) to that of its middle (d_stream[1]). */
static void backward_mlp(struct pass *pass, int64_t layer)
{
    const coda_llama_config *c = &pass->llama->config;
    struct workspace *w = pass->workspace;
    struct unfused *u = &w->unfused;
    struct layer_unfused *s = &u->layer[layer];
    int64_t d = c->hidden_size, f = c->intermediate_size;
    int gate = layer_index(layer, GATE), up = layer_index(layer, UP), down = layer_index(layer, DOWN);
    linear_backward(pass, w->d_stream[0], d, down, u->scratch[0]);
    pass_wgrad(pass, down, w->d_stream[0], d, s->product);
    elementwise(pass, MULTIPLY, f, u->scratch[0], s->activated, u->d_up);
    elementwise(pass, MULTIPLY, f, u->scratch[0], s->up, u->scratch[1]);
    elementwise(pass, SILU_BACKWARD, f, s->gate, u->scratch[1], u->d_gate);
    linear_backward(pass, u->d_gate, f, gate, u->scratch[0]);
    linear_backward(pass, u->d_up, f, up, u->scratch[1]);
    elementwise(pass, ADD, d, u->scratch[0], u->scratch[1], u->scratch[0]);
    pass_wgrad(pass, gate, u->d_gate, f, s->middle_normed);
    pass_wgrad(pass, up, u->d_up, f, s->middle_normed);
    norm_backward(pass, u->scratch[0], s->middle, layer_index(layer, POST_ATTENTION_NORM), s->middle_scale,
                  u->scratch[1]);
    elementwise(pass, ADD, d, u->scratch[1], w->d_stream[0], w->d_stream[1]);
}

/* From the gradient of a layer's middle (d_stream[1]) to that of its input (d_stream[0]). */
static void backward_attention(struct pass *pass, int64_t layer)
{
    const coda_llama_config *c = &pass->llama->config;
    struct workspace *w = pass->workspace;
    struct layer_values *l = &w->layer[layer];
    struct unfused *u = &w->unfused;
    struct layer_unfused *s = &u->layer[layer];
    int64_t d = c->hidden_size, q = query_width(c), e = key_width(c), n = q + 2 * e;
    int output = layer_index(layer, ATTENTION_OUTPUT);
    const int projection[3] = {layer_index(layer, QUERY), layer_index(layer, KEY), layer_index(layer, VALUE)};
    const int64_t start[3] = {0, q, q + e};
    linear_backward(pass, w->d_stream[1], d, output, w->d_attended);
    pass_wgrad(pass, output, w->d_stream[1], d, l->attended);
    if (pass->status == CODA_OK)
        pass->status = attention_backward(&w->attention, pass->sequences, pass->length, l->qkv, l->attended,
                                          w->d_attended, l->lse, w->d_qkv, pass->error);
    rope(pass, w->d_qkv, true);
    for (int i = 0; i < 3; i++) {
        void *part = column(pass, w->d_qkv, start[i]);
        linear_backward(pass, part, n, projection[i], u->scratch[i > 0]);
        if (i > 0)
            elementwise(pass, ADD, d, u->scratch[0], u->scratch[1], u->scratch[0]);
        pass_wgrad(pass, projection[i], part, n, s->input_normed);
    }
    norm_backward(pass, u->scratch[0], l->input, layer_index(layer, INPUT_NORM), s->input_scale, u->scratch[1]);
    elementwise(pass, ADD, d, u->scratch[1], w->d_stream[1], w->d_stream[0]);
}

void unfused_backward(struct pass *pass)
{
    for (int64_t i = pass->llama->config.num_hidden_layers - 1; i >= 0; i--) {
        backward_mlp(pass, i);
        backward_attention(pass, i);
    }
    pass_embedding_gradient(pass, pass->workspace->d_stream[0], pass->llama->dtype);
}
