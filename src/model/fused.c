/* The fused path: the blocks of the model one after the other, attention between them. What runs inside a block, and
 * where its values lie, the compiler found out. */
#include "model/pass.h"

static coda_tensor gradient_of(const struct pass *pass, int index, int count)
{
    coda_tensor gradient = pass_gradient(pass, index);
    for (int i = 1; i < count; i++)
        gradient.shape[0] += pass->llama->weight[index + i].rows;
    return gradient;
}

/* A block, and the gradient that goes through it from d_stream[d_output] to the other one. */
struct step {
    int64_t block;
    int d_output;
    int64_t first, count; /* rows of the pass */
};

static coda_tensor rows_of(const struct pass *pass, const struct step *s, void *data, int64_t columns)
{
    size_t size = coda_dtype_size(pass->llama->dtype);
    return matrix((char *)data + (size_t)(s->first * columns) * size, pass->llama->dtype, s->count, columns);
}

static coda_tensor operand_of(const struct pass *pass, const struct part_operand *o, const struct step *s)
{
    const coda_llama *m = pass->llama;
    const coda_llama_config *c = &m->config;
    struct workspace *w = pass->workspace;
    int64_t d = c->hidden_size, q = query_width(c), n = q + 2 * key_width(c);
    struct layer_values *before = &w->layer[s->block - (s->block > 0)];
    struct layer_values *after = &w->layer[s->block - (s->block == c->num_hidden_layers)];
    switch (o->source) {
    case SOURCE_WEIGHT:
        return weight_operand(m, weight_of_block(m, o->weight, s->block));
    case SOURCE_GRADIENT:
        return pass->gradient ? gradient_of(pass, weight_of_block(m, o->weight, s->block), o->count)
                              : (coda_tensor){.data = NULL};
    case SOURCE_TABLE:
        return matrix(m->rope_table, CODA_F32, c->max_position_embeddings, c->head_dim);
    case SOURCE_TOKENS:
        return vector(w->tokens + s->first, CODA_I32, s->count);
    case SOURCE_POSITIONS:
        return vector(w->positions + s->first, CODA_I32, s->count);
    case SOURCE_TARGETS:
        return vector(w->targets + s->first, CODA_I32, s->count);
    case SOURCE_ATTENDED:
        return rows_of(pass, s, before->attended, q);
    case SOURCE_INPUT:
        return rows_of(pass, s, before->input, d);
    case SOURCE_OUTPUT:
        return rows_of(pass, s, after->input, d);
    case SOURCE_QKV:
        return rows_of(pass, s, after->qkv, n);
    case SOURCE_LOSS:
        return vector(w->loss + s->first, CODA_F32, s->count);
    case SOURCE_LOGITS:
        return matrix(w->fused.logits, m->dtype, s->count, c->vocab_size);
    case SOURCE_D_LOSS:
        return vector(w->fused.d_loss + s->first, CODA_F32, s->count);
    case SOURCE_D_OUTPUT:
        return rows_of(pass, s, w->d_stream[s->d_output], d);
    case SOURCE_D_INPUT:
        return rows_of(pass, s, w->d_stream[1 - s->d_output], d);
    case SOURCE_D_ATTENDED:
        return rows_of(pass, s, w->d_attended, q);
    case SOURCE_D_QKV:
        return rows_of(pass, s, w->d_qkv, n);
    case SOURCE_D_EMBEDDING:
        return matrix(w->fused.d_embedding, CODA_F32, s->count, d);
    }
    return (coda_tensor){.data = NULL};
}

static void run_block(struct pass *pass, const struct step *s, int phases)
{
    const struct fused *f = &pass->workspace->fused;
    enum part p = part_of_block(pass->llama, s->block);
    int count = f->parts.part[p].count;
    coda_tensor operand[MOST_PART_OPERANDS];
    const double parameters[] = {pass->llama->config.rms_norm_eps};
    if (pass->status != CODA_OK)
        return;
    for (int i = 0; i < count; i++)
        operand[i] = operand_of(pass, &f->parts.part[p].operand[i], s);
    pass->status = coda_schedule_launch(f->parts.part[p].schedule, phases, operand, count, f->saved[s->block],
                                        f->scratch, parameters, NULL, pass->error);
}

void fused_forward(struct pass *pass)
{
    for (int64_t layer = 0; layer < pass->llama->config.num_hidden_layers; layer++) {
        run_block(pass, &(struct step){layer, 0, 0, pass_rows(pass)}, CODA_FORWARD);
        pass_attention(pass, layer);
    }
}

void fused_logits(struct pass *pass)
{
    run_block(pass, &(struct step){pass->llama->config.num_hidden_layers, 0, pass_rows(pass) - 1, 1}, CODA_FORWARD);
}

/* The loss of a row counts by its weight, that of an ignored target not at all. */
void fused_head(struct pass *pass)
{
    struct workspace *w = pass->workspace;
    const struct step end = {pass->llama->config.num_hidden_layers, 1, 0, pass_rows(pass)};
    for (int64_t i = 0; i < pass_rows(pass); i++)
        w->fused.d_loss[i] = w->targets[i] == IGNORED ? 0 : (float)(w->weights[i] / pass->divisor);
    run_block(pass, &end, pass->gradient ? CODA_FORWARD | CODA_BACKWARD : CODA_FORWARD);
    for (int64_t i = 0; i < pass_rows(pass) && pass->status == CODA_OK; i++)
        w->loss[i] = w->targets[i] == IGNORED ? 0 : w->loss[i] * w->fused.d_loss[i];
}

/* The end has left the gradient of its input in d_stream[0]. */
void fused_backward(struct pass *pass)
{
    struct workspace *w = pass->workspace;
    int d_output = 0;
    for (int64_t layer = pass->llama->config.num_hidden_layers - 1; layer >= 0; layer--) {
        const struct layer_values *l = &w->layer[layer];
        if (pass->status == CODA_OK)
            pass->status = attention_backward(&w->attention, pass->sequences, pass->length, l->qkv, l->attended,
                                              w->d_attended, l->lse, w->d_qkv, pass->error);
        run_block(pass, &(struct step){layer, d_output, 0, pass_rows(pass)}, CODA_BACKWARD);
        d_output = 1 - d_output;
    }
    pass_embedding_gradient(pass, w->fused.d_embedding, CODA_F32);
}

/* ---------------------------------------------------------------- looking for values that are not finite */

void fused_recompute_end(struct pass *pass)
{
    run_block(pass, &(struct step){pass->llama->config.num_hidden_layers, 1, 0, pass_rows(pass)}, CODA_FORWARD);
}

bool fused_value(const struct pass *pass, int64_t block, const char *name, coda_tensor *tensor)
{
    const struct fused *f = &pass->workspace->fused;
    return part_locate(&f->parts, pass->llama, part_of_block(pass->llama, block), name, pass_rows(pass),
                       f->saved[block], f->scratch, tensor);
}
