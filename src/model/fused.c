/* The fused schedule: between two products nothing runs but the epilogue of the first and the prologue of the second.
 */
#include "model/pass.h"

static coda_tensor rows_of(const struct pass *pass, int64_t columns, const void *data)
{
    return pass_matrix(pass, data, columns);
}

/* Queries, keys and values from the normed input; attention. */
static void forward_attention(struct pass *pass, int64_t layer)
{
    coda_llama *m = pass->llama;
    const coda_llama_config *c = &m->config;
    struct workspace *w = pass->workspace;
    struct saved *s = &w->layer[layer];
    int64_t rows = pass_rows(pass);
    LAUNCH(pass, GEMM_RMS_ROPE, &c->rms_norm_eps, rows_of(pass, c->hidden_size, w->normed),
           weight_operand(m, layer_index(layer, QUERY)), weight_operand(m, layer_index(layer, KEY)),
           weight_operand(m, layer_index(layer, VALUE)), partials(w->squares, rows, c->hidden_size),
           matrix(m->rope_table, CODA_F32, c->max_position_embeddings, c->head_dim),
           vector(w->positions, CODA_I32, rows), rows_of(pass, query_width(c) + 2 * key_width(c), s->qkv),
           pass_vector(pass, s->input_scale));
    pass_attention(pass, layer);
}

/* A projection back to the residual stream, and the first half of the norm that follows. */
static void forward_residual(struct pass *pass, const void *input, int64_t width, int weight, const void *stream,
                             int norm, void *out)
{
    coda_llama *m = pass->llama;
    struct workspace *w = pass->workspace;
    int64_t d = m->config.hidden_size;
    LAUNCH(pass, GEMM_RESIDUAL_RMS, NULL, rows_of(pass, width, input), weight_operand(m, weight),
           rows_of(pass, d, stream), weight_operand(m, norm), rows_of(pass, d, out),
           partials(w->squares, pass_rows(pass), d), rows_of(pass, d, w->normed));
}

static int next_norm(const struct pass *pass, int64_t layer)
{
    return layer + 1 < pass->llama->config.num_hidden_layers ? layer_index(layer + 1, INPUT_NORM)
                                                             : final_norm_index(pass->llama);
}

void fused_forward(struct pass *pass)
{
    coda_llama *m = pass->llama;
    const coda_llama_config *c = &m->config;
    struct workspace *w = pass->workspace;
    int64_t rows = pass_rows(pass), d = c->hidden_size, f = c->intermediate_size;
    LAUNCH(pass, EMBED_RMS, NULL, weight_operand(m, EMBEDDING_INDEX), vector(w->tokens, CODA_I32, rows),
           weight_operand(m, layer_index(0, INPUT_NORM)), rows_of(pass, d, w->layer[0].input),
           partials(w->squares, rows, d), rows_of(pass, d, w->normed));
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        struct saved *s = &w->layer[i];
        forward_attention(pass, i);
        forward_residual(pass, s->attended, query_width(c), layer_index(i, ATTENTION_OUTPUT), s->input,
                         layer_index(i, POST_ATTENTION_NORM), s->middle);
        LAUNCH(pass, GEMM_RMS_SWIGLU, &c->rms_norm_eps, rows_of(pass, d, w->normed),
               weight_operand(m, layer_index(i, GATE)), weight_operand(m, layer_index(i, UP)),
               partials(w->squares, rows, d), rows_of(pass, f, s->gate), rows_of(pass, f, s->up),
               pass_vector(pass, s->middle_scale), rows_of(pass, f, w->product));
        forward_residual(pass, w->product, f, layer_index(i, DOWN), s->middle, next_norm(pass, i),
                         w->layer[i + 1].input);
    }
}

/* Rows first.. of the pass, as a pass of their own that shares everything. */
struct rows {
    int64_t first, count;
};

static void *row_pointer(const struct pass *pass, void *data, int64_t row, int64_t columns)
{
    return (char *)data + (size_t)(row * columns) * coda_dtype_size(pass->llama->dtype);
}

static void head_forward(struct pass *pass, struct rows r)
{
    coda_llama *m = pass->llama;
    const coda_llama_config *c = &m->config;
    struct workspace *w = pass->workspace;
    int64_t d = c->hidden_size, v = c->vocab_size, runs = ceiling(d, RUN);
    const double head[] = {c->rms_norm_eps, 0};
    const double loss[] = {-100, 0, 0, pass->divisor}; /* ignore, smoothing, zloss, divisor */
    coda_tensor targets = vector(w->targets + r.first, CODA_I32, r.count);
    coda_tensor target_logit = vector(w->target_logit + r.first, CODA_F32, r.count);
    LAUNCH(pass, GEMM_RMS_LSE, head, matrix(row_pointer(pass, w->normed, r.first, d), m->dtype, r.count, d),
           weight_operand(m, head_index(m)), partials(w->squares + r.first * runs, r.count, d), targets,
           matrix(w->logits, m->dtype, r.count, v), partials(w->head_lse, r.count, v), target_logit,
           partials(w->head_sum, r.count, v), vector(w->final_scale + r.first, CODA_F32, r.count));
    LAUNCH(pass, CROSS_ENTROPY_LOSS, loss, partials(w->head_lse, r.count, v), target_logit,
           partials(w->head_sum, r.count, v), targets, vector(w->weights + r.first, CODA_F32, r.count),
           vector(w->loss + r.first, CODA_F32, r.count), vector(w->z_loss + r.first, CODA_F32, r.count));
}

/* The gradient of the logits takes their place; then through the head and the final norm. */
static void head_backward(struct pass *pass, struct rows r)
{
    coda_llama *m = pass->llama;
    const coda_llama_config *c = &m->config;
    struct workspace *w = pass->workspace;
    int64_t d = c->hidden_size, v = c->vocab_size;
    const double loss[] = {-100, 0, 0, 0, pass->divisor}; /* ignore, smoothing, zloss, cap, divisor */
    coda_tensor logits = matrix(w->logits, m->dtype, r.count, v);
    coda_tensor normed = matrix(row_pointer(pass, w->normed, r.first, d), m->dtype, r.count, d);
    coda_tensor norm_partials = matrix(w->norm_partials, CODA_F32, ceiling(r.count, ROW_RUN), d);
    void *input = w->layer[c->num_hidden_layers].input;
    LAUNCH(pass, CROSS_ENTROPY_BWD, loss, logits, partials(w->head_lse, r.count, v),
           vector(w->targets + r.first, CODA_I32, r.count), vector(w->weights + r.first, CODA_F32, r.count), logits,
           partials(w->dots, r.count, v));
    LAUNCH(pass, GEMM_RMS_BWD_HEAD, NULL, logits, weight_operand(m, head_index(m)),
           matrix(row_pointer(pass, input, r.first, d), m->dtype, r.count, d), weight_operand(m, final_norm_index(m)),
           vector(w->final_scale + r.first, CODA_F32, r.count), partials(w->dots, r.count, v),
           matrix(row_pointer(pass, w->d_stream[0], r.first, d), m->dtype, r.count, d), normed, norm_partials);
    LAUNCH(pass, GEMM_WGRAD, NULL, logits, normed, pass_gradient(pass, head_index(m)));
    LAUNCH(pass, COLUMN_SUM, NULL, norm_partials, pass_gradient(pass, final_norm_index(m)));
}

void fused_head(struct pass *pass)
{
    int64_t rows = pass_rows(pass);
    for (int64_t first = 0; first < rows; first += pass->workspace->head_rows) {
        struct rows r = {first, minimum(pass->workspace->head_rows, rows - first)};
        head_forward(pass, r);
        if (pass->gradient)
            head_backward(pass, r);
    }
}

static coda_tensor norm_partials(const struct pass *pass)
{
    return matrix(pass->workspace->norm_partials, CODA_F32, ceiling(pass_rows(pass), ROW_RUN),
                  pass->llama->config.hidden_size);
}

/* From the gradient of a layer's output (d_stream[0]) to that of its middle (d_stream[1]). */
static void backward_mlp(struct pass *pass, int64_t layer)
{
    coda_llama *m = pass->llama;
    const coda_llama_config *c = &m->config;
    struct workspace *w = pass->workspace;
    struct saved *s = &w->layer[layer];
    int64_t rows = pass_rows(pass), d = c->hidden_size, f = c->intermediate_size;
    int gate = layer_index(layer, GATE), up = layer_index(layer, UP), down = layer_index(layer, DOWN);
    int norm = layer_index(layer, POST_ATTENTION_NORM);
    coda_tensor d_gate = rows_of(pass, f, s->gate), d_up = rows_of(pass, f, s->up); /* take the place of gate and up */
    LAUNCH(pass, GEMM_SWIGLU_BWD, NULL, rows_of(pass, d, w->d_stream[0]), weight_operand(m, down),
           rows_of(pass, f, s->gate), rows_of(pass, f, s->up), d_gate, d_up, partials(w->dots, rows, f),
           rows_of(pass, f, w->product));
    pass_wgrad(pass, down, w->d_stream[0], d, w->product);
    LAUNCH(pass, GEMM_RMS_BWD_TWIN, NULL, d_gate, d_up, weight_operand(m, gate), weight_operand(m, up),
           rows_of(pass, d, s->middle), weight_operand(m, norm), pass_vector(pass, s->middle_scale),
           partials(w->dots, rows, f), rows_of(pass, d, w->d_stream[0]), rows_of(pass, d, w->d_stream[1]),
           rows_of(pass, d, w->normed), norm_partials(pass));
    pass_wgrad(pass, gate, s->gate, f, w->normed);
    pass_wgrad(pass, up, s->up, f, w->normed);
    LAUNCH(pass, COLUMN_SUM, NULL, norm_partials(pass), pass_gradient(pass, norm));
}

/* From the gradient of a layer's middle (d_stream[1]) to that of its input (d_stream[0]). */
static void backward_attention(struct pass *pass, int64_t layer)
{
    coda_llama *m = pass->llama;
    const coda_llama_config *c = &m->config;
    struct workspace *w = pass->workspace;
    struct saved *s = &w->layer[layer];
    int64_t rows = pass_rows(pass), d = c->hidden_size, q = query_width(c), e = key_width(c), n = q + 2 * e;
    int output = layer_index(layer, ATTENTION_OUTPUT), norm = layer_index(layer, INPUT_NORM);
    int query = layer_index(layer, QUERY), key = layer_index(layer, KEY), value = layer_index(layer, VALUE);
    const char *d_qkv = w->d_qkv;
    size_t size = coda_dtype_size(m->dtype);
    LAUNCH(pass, GEMM_DGRAD, NULL, rows_of(pass, d, w->d_stream[1]), weight_operand(m, output),
           rows_of(pass, q, w->d_attended));
    pass_wgrad(pass, output, w->d_stream[1], d, s->attended);
    if (pass->status == CODA_OK)
        pass->status = attention_backward(&w->attention, pass->sequences, pass->length, s->qkv, s->attended,
                                          w->d_attended, s->lse, w->d_qkv, pass->error);
    LAUNCH(pass, ROPE_BWD, NULL, rows_of(pass, n, w->d_qkv), rows_of(pass, n, s->qkv),
           matrix(m->rope_table, CODA_F32, c->max_position_embeddings, c->head_dim),
           vector(w->positions, CODA_I32, rows), rows_of(pass, n, w->d_qkv), partials(w->dots, rows, n));
    LAUNCH(pass, GEMM_RMS_BWD_QKV, NULL, rows_of(pass, n, w->d_qkv), weight_operand(m, query), weight_operand(m, key),
           weight_operand(m, value), rows_of(pass, d, s->input), weight_operand(m, norm),
           pass_vector(pass, s->input_scale), partials(w->dots, rows, n), rows_of(pass, d, w->d_stream[1]),
           rows_of(pass, d, w->d_stream[0]), rows_of(pass, d, w->normed), norm_partials(pass));
    pass_wgrad(pass, query, d_qkv, n, w->normed);
    pass_wgrad(pass, key, d_qkv + (size_t)q * size, n, w->normed);
    pass_wgrad(pass, value, d_qkv + (size_t)(q + e) * size, n, w->normed);
    LAUNCH(pass, COLUMN_SUM, NULL, norm_partials(pass), pass_gradient(pass, norm));
}

void fused_backward(struct pass *pass)
{
    for (int64_t i = pass->llama->config.num_hidden_layers - 1; i >= 0; i--) {
        backward_mlp(pass, i);
        backward_attention(pass, i);
    }
    pass_embedding_gradient(pass, pass->workspace->d_stream[0]);
}
