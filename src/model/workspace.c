#include "model/workspace.h"
#include <stdlib.h>
#include <string.h>

/* Logits of a pass that need not be cut: 32 million elements. */
enum { LOGITS = 1 << 25 };

struct opening {
    struct workspace *workspace;
    const coda_llama *llama;
    double rows, size;
    enum part_use use;
    coda_status status;
    coda_error *error;
};

static void take(struct opening *o, void *pointer_to_pointer, double elements, double size)
{
    if (o->status == CODA_OK)
        o->status = memory_take(&o->workspace->memory, elements * size, pointer_to_pointer, o->error);
}

/* [rows, columns] of the model's dtype */
static void take_rows(struct opening *o, void *pointer_to_pointer, int64_t columns)
{
    take(o, pointer_to_pointer, o->rows * (double)columns, o->size);
}

static void take_floats(struct opening *o, void *pointer_to_pointer, double count)
{
    take(o, pointer_to_pointer, count, sizeof(float));
}

static void *list(struct opening *o, int64_t count, size_t size)
{
    void *items = calloc((size_t)count, size);
    if (!items && o->status == CODA_OK)
        o->status = model_no_memory(o->error, "a list of buffers", (size_t)count * size);
    return items;
}

/* Every layer has its own buffers in training. Generation keeps nothing, so all layers share one set, and the residual
 * stream is updated in place. */
static void take_layers(struct opening *o)
{
    const coda_llama_config *c = &o->llama->config;
    struct workspace *w = o->workspace;
    int64_t layers = c->num_hidden_layers, distinct = o->use == FOR_TRAINING ? layers : 1;
    w->layer = list(o, layers, sizeof *w->layer);
    for (int64_t i = 0; i < layers && w->layer; i++) {
        struct layer_values *layer = &w->layer[i];
        if (i >= distinct) {
            *layer = w->layer[0];
            continue;
        }
        take_rows(o, &layer->input, c->hidden_size);
        take_rows(o, &layer->qkv, query_width(c) + 2 * key_width(c));
        take_rows(o, &layer->attended, query_width(c));
        take_floats(o, &layer->lse, o->rows * (double)c->num_attention_heads);
    }
}

static void take_shared(struct opening *o)
{
    const coda_llama_config *c = &o->llama->config;
    struct workspace *w = o->workspace;
    take(o, &w->tokens, o->rows, sizeof(int32_t));
    take(o, &w->targets, o->rows, sizeof(int32_t));
    take(o, &w->positions, o->rows, sizeof(int32_t));
    if (o->use == FOR_GENERATION)
        return;
    take_floats(o, &w->weights, o->rows);
    take_floats(o, &w->loss, o->rows);
    take_rows(o, &w->d_stream[0], c->hidden_size);
    take_rows(o, &w->d_stream[1], c->hidden_size);
    take_rows(o, &w->d_attended, query_width(c));
    take_rows(o, &w->d_qkv, query_width(c) + 2 * key_width(c));
}

static void take_unfused(struct opening *o)
{
    const coda_llama_config *c = &o->llama->config;
    struct workspace *w = o->workspace;
    struct unfused *u = &w->unfused;
    int64_t d = c->hidden_size, f = c->intermediate_size, v = c->vocab_size, n = query_width(c) + 2 * key_width(c);
    u->layer = list(o, c->num_hidden_layers, sizeof *u->layer);
    for (int64_t i = 0; i < c->num_hidden_layers && u->layer; i++) {
        struct layer_unfused *layer = &u->layer[i];
        take_rows(o, &layer->input_normed, d);
        take_rows(o, &layer->middle_normed, d);
        take_rows(o, &layer->middle, d);
        take_rows(o, &layer->gate, f);
        take_rows(o, &layer->up, f);
        take_rows(o, &layer->activated, f);
        take_rows(o, &layer->product, f);
        take_floats(o, &layer->input_scale, o->rows);
        take_floats(o, &layer->middle_scale, o->rows);
    }
    take_rows(o, &u->output, d);
    take_rows(o, &u->output_normed, d);
    take_floats(o, &u->output_scale, o->rows);
    take_rows(o, &u->d_gate, f);
    take_rows(o, &u->d_up, f);
    take_rows(o, &u->scratch[0], maximum(maximum(d, f), n));
    take_rows(o, &u->scratch[1], maximum(maximum(d, f), n));
    take_floats(o, &u->norm_partials, ((double)w->rows / ROW_RUN + 1) * (double)d);
    take(o, &u->logits, (double)w->head_rows * (double)v, o->size);
    take_floats(o, &u->head_lse, (double)w->head_rows);
}

static void take_fused(struct opening *o)
{
    struct workspace *w = o->workspace;
    struct fused *f = &w->fused;
    int64_t blocks = o->llama->config.num_hidden_layers + 1;
    size_t saved[PART_COUNT] = {0}, scratch[PART_COUNT] = {0}, most = 0;
    if (o->status == CODA_OK)
        o->status = parts_open(&f->parts, o->llama, o->use, w->head_rows, o->error);
    for (int p = 0; p < PART_COUNT && o->status == CODA_OK; p++)
        o->status = part_memory(&f->parts, o->llama, (enum part)p, part_rows(o->use, (enum part)p, w->rows), &saved[p],
                                &scratch[p], o->error);
    size_t behind_start = scratch[PART_START];
    if (o->use == FOR_TRAINING)
        scratch[PART_START] += (size_t)w->rows * (size_t)o->llama->config.hidden_size * sizeof(float);
    for (int p = 0; p < PART_COUNT; p++)
        most = scratch[p] > most ? scratch[p] : most;
    take(o, &f->scratch, (double)most, 1);
    f->saved = list(o, blocks, sizeof *f->saved);
    for (int64_t b = 0; b < blocks && f->saved && o->status == CODA_OK; b++)
        if (saved[part_of_block(o->llama, b)] > 0)
            take(o, &f->saved[b], (double)saved[part_of_block(o->llama, b)], 1);
    if (o->status != CODA_OK)
        return;
    if (o->use == FOR_GENERATION) {
        take(o, &f->logits, (double)o->llama->config.vocab_size, o->size);
        return;
    }
    f->d_embedding = (float *)(void *)((char *)f->scratch + behind_start);
    take_floats(o, &f->d_loss, o->rows);
}

coda_status workspace_open(struct workspace *workspace, const coda_llama *llama, int64_t rows, coda_path path,
                           enum part_use use, coda_error *error)
{
    const coda_llama_config *c = &llama->config;
    struct workspace *w = workspace;
    memset(workspace, 0, sizeof *workspace);
    w->rows = rows;
    w->memory.device = llama->device;
    w->head_rows = maximum(ROW_RUN, LOGITS / c->vocab_size / ROW_RUN * ROW_RUN);
    w->head_rows = minimum(w->head_rows, ceiling(rows, ROW_RUN) * ROW_RUN);
    attention_open(&w->attention, llama->device, c, llama->dtype);
    struct opening opening = {w, llama, (double)rows, (double)coda_dtype_size(llama->dtype), use, CODA_OK, error};
    take_layers(&opening);
    take_shared(&opening);
    if (path == CODA_UNFUSED)
        take_unfused(&opening);
    else
        take_fused(&opening);
    if (opening.status != CODA_OK)
        workspace_close(w);
    return opening.status;
}

void workspace_close(struct workspace *workspace)
{
    memory_close(&workspace->memory);
    attention_close(&workspace->attention);
    parts_close(&workspace->fused.parts);
    free(workspace->layer);
    free(workspace->unfused.layer);
    free(workspace->fused.saved);
    workspace->layer = NULL;
    workspace->unfused.layer = NULL;
    workspace->fused.saved = NULL;
}
