#include "model/workspace.h"
#include <stdlib.h>
#include <string.h>

/* Logits of a pass that need not be cut: 32 million elements. */
enum { LOGITS = 1 << 25 };

struct opening {
    struct workspace *workspace;
    double rows, size;
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

static void take_layer(struct opening *o, struct saved *layer, const coda_llama_config *c, bool unfused)
{
    take_rows(o, &layer->input, c->hidden_size);
    take_rows(o, &layer->middle, c->hidden_size);
    take_rows(o, &layer->qkv, query_width(c) + 2 * key_width(c));
    take_rows(o, &layer->attended, query_width(c));
    take_rows(o, &layer->gate, c->intermediate_size);
    take_rows(o, &layer->up, c->intermediate_size);
    take_floats(o, &layer->input_scale, o->rows);
    take_floats(o, &layer->middle_scale, o->rows);
    take_floats(o, &layer->lse, o->rows * (double)c->num_attention_heads);
    if (!unfused)
        return;
    take_rows(o, &layer->input_normed, c->hidden_size);
    take_rows(o, &layer->middle_normed, c->hidden_size);
    take_rows(o, &layer->activated, c->intermediate_size);
    take_rows(o, &layer->product, c->intermediate_size);
}

/* Every layer has its own buffers in training. Generation keeps nothing, so all layers share one set, and the residual
 * stream is updated in place. */
static void take_layers(struct opening *o, const coda_llama_config *c, bool unfused, enum workspace_use use)
{
    struct workspace *w = o->workspace;
    int64_t layers = c->num_hidden_layers;
    w->layer = calloc((size_t)layers + 1, sizeof *w->layer);
    if (!w->layer) {
        o->status = model_no_memory(o->error, "the list of layers", (size_t)(layers + 1) * sizeof *w->layer);
        return;
    }
    int64_t distinct = use == FOR_TRAINING ? layers : 1;
    for (int64_t i = 0; i < distinct; i++)
        take_layer(o, &w->layer[i], c, unfused);
    if (use == FOR_TRAINING) {
        take_rows(o, &w->layer[layers].input, c->hidden_size);
        take_rows(o, &w->layer[layers].input_normed, unfused ? c->hidden_size : 0);
        return;
    }
    w->layer[0].middle = w->layer[0].input;
    for (int64_t i = 1; i <= layers; i++)
        w->layer[i] = w->layer[0];
}

static void take_backward(struct opening *o, const coda_llama_config *c, bool unfused)
{
    struct workspace *w = o->workspace;
    int64_t d = c->hidden_size, f = c->intermediate_size, v = c->vocab_size;
    int64_t q = query_width(c), n = q + 2 * key_width(c);
    take_rows(o, &w->d_stream[0], d);
    take_rows(o, &w->d_stream[1], d);
    take_rows(o, &w->d_attended, q);
    take_rows(o, &w->d_qkv, n);
    take_floats(o, &w->dots,
                o->rows * (double)ceiling(maximum(f, n), RUN) + (double)w->head_rows * (double)ceiling(v, RUN));
    take_floats(o, &w->norm_partials, ((double)w->rows / ROW_RUN + 1) * (double)d);
    if (!unfused)
        return;
    take_rows(o, &w->d_gate, f);
    take_rows(o, &w->d_up, f);
    take_rows(o, &w->scratch[0], maximum(maximum(d, f), n));
    take_rows(o, &w->scratch[1], maximum(maximum(d, f), n));
}

coda_status workspace_open(struct workspace *workspace, const coda_llama *llama, int64_t rows, coda_path path,
                           enum workspace_use use, coda_error *error)
{
    const coda_llama_config *c = &llama->config;
    memset(workspace, 0, sizeof *workspace);
    struct workspace *w = workspace;
    w->rows = rows;
    w->memory.device = llama->device;
    w->head_rows = maximum(ROW_RUN, LOGITS / c->vocab_size / ROW_RUN * ROW_RUN);
    w->head_rows = minimum(w->head_rows, ceiling(rows, ROW_RUN) * ROW_RUN);
    attention_open(&w->attention, llama->device, c, llama->dtype);
    struct opening opening = {w, (double)rows, (double)coda_dtype_size(llama->dtype), CODA_OK, error}, *o = &opening;
    take_layers(o, c, path == CODA_UNFUSED, use);
    take(o, &w->tokens, o->rows, sizeof(int32_t));
    take(o, &w->targets, o->rows, sizeof(int32_t));
    take(o, &w->positions, o->rows, sizeof(int32_t));
    take_floats(o, &w->weights, o->rows);
    take_rows(o, &w->normed, c->hidden_size);
    take_rows(o, &w->product, c->intermediate_size);
    take_floats(o, &w->squares, o->rows * (double)ceiling(c->hidden_size, RUN));
    take_floats(o, &w->final_scale, o->rows);
    take(o, &w->logits, (double)w->head_rows * (double)c->vocab_size, o->size);
    if (use == FOR_TRAINING) {
        take_floats(o, &w->head_lse, (double)w->head_rows * (double)ceiling(c->vocab_size, RUN));
        take_floats(o, &w->head_sum, (double)w->head_rows * (double)ceiling(c->vocab_size, RUN));
        take_floats(o, &w->target_logit, o->rows);
        take_floats(o, &w->loss, o->rows);
        take_floats(o, &w->z_loss, o->rows);
        take_backward(o, c, path == CODA_UNFUSED);
    }
    if (o->status != CODA_OK)
        workspace_close(w);
    return o->status;
}

void workspace_close(struct workspace *workspace)
{
    memory_close(&workspace->memory);
    attention_close(&workspace->attention);
    free(workspace->layer);
    workspace->layer = NULL;
}
