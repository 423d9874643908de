/* Sampling with a cache of keys and values. */
#include "model/pass.h"
#include "model/sampler.h"
#include <stdlib.h>
#include <string.h>

struct session {
    coda_llama *llama;
    struct workspace workspace;
    int64_t capacity; /* positions of the cache */
    int64_t length;   /* filled */
    int32_t *context; /* the tokens in the cache */
    char *cache;      /* [layers, capacity, 2 kv_heads * head_dim] */
    float *logits;
    int32_t *order;
};

static int64_t cache_row(const struct session *s)
{
    return 2 * key_width(&s->llama->config);
}

static char *layer_cache(const struct session *s, int64_t layer)
{
    return s->cache + (size_t)(layer * s->capacity * cache_row(s)) * coda_dtype_size(s->llama->dtype);
}

/* Adds the pass's keys and values to the cache; attends to all of it. */
static void attend_with_cache(struct pass *pass, int64_t layer)
{
    struct session *s = pass->context;
    struct workspace *w = pass->workspace;
    struct layer_values *saved = &w->layer[layer];
    size_t size = coda_dtype_size(s->llama->dtype);
    int64_t queries = query_width(&s->llama->config), row = queries + cache_row(s), rows = pass_rows(pass);
    for (int64_t i = 0; i < rows; i++)
        memcpy(layer_cache(s, layer) + (size_t)((s->length + i) * cache_row(s)) * size,
               (char *)saved->qkv + (size_t)(i * row + queries) * size, (size_t)cache_row(s) * size);
    if (rows == 1)
        pass->status = attention_decode(&w->attention, saved->qkv, layer_cache(s, layer), s->length + 1,
                                        saved->attended, pass->error);
    else
        pass->status = attention_forward(&w->attention, 1, rows, saved->qkv, saved->attended, saved->lse, pass->error);
}

/* Takes in `count` tokens: one, or several at the start of an empty cache. Leaves the last one's logits. */
static coda_status take_in(struct session *s, const int32_t *tokens, int64_t count, coda_error *error)
{
    coda_llama *m = s->llama;
    struct workspace *w = &s->workspace;
    struct pass pass = {.llama = m,
                        .workspace = w,
                        .sequences = 1,
                        .length = count,
                        .attend = attend_with_cache,
                        .context = s,
                        .error = error};
    for (int64_t i = 0; i < count; i++) {
        w->tokens[i] = tokens[i];
        w->positions[i] = (int32_t)(s->length + i);
    }
    memmove(s->context + s->length, tokens, (size_t)count * sizeof *tokens);
    fused_forward(&pass);
    fused_logits(&pass);
    if (pass.status == CODA_OK) {
        s->length += count;
        coda_convert(s->logits, CODA_F32, w->fused.logits, m->dtype, m->config.vocab_size);
    }
    return pass.status;
}

/* A full cache keeps its newer half: read again from its start, for positions count from there. */
static coda_status make_room(struct session *s, coda_error *error)
{
    int64_t kept = s->capacity / 2;
    if (s->length < s->capacity || kept == 0) {
        s->length = s->length < s->capacity ? s->length : 0;
        return CODA_OK;
    }
    int64_t first = s->length - kept;
    memmove(s->context, s->context + first, (size_t)kept * sizeof *s->context);
    s->length = 0;
    return take_in(s, s->context, kept, error);
}

static void close_session(struct session *s)
{
    workspace_close(&s->workspace);
    free(s->context);
    free(s->cache);
    free(s->logits);
    free(s->order);
}

static coda_status open_session(struct session *s, coda_llama *llama, int64_t wanted, coda_error *error)
{
    const coda_llama_config *c = &llama->config;
    memset(s, 0, sizeof *s);
    s->llama = llama;
    s->capacity = minimum(wanted, c->max_position_embeddings);
    size_t row = (size_t)cache_row(s) * coda_dtype_size(llama->dtype);
    size_t cache = (size_t)c->num_hidden_layers * (size_t)s->capacity * row;
    coda_status status = workspace_open(&s->workspace, llama, s->capacity, CODA_FUSED, FOR_GENERATION, error);
    if (status != CODA_OK)
        return status;
    s->context = malloc((size_t)s->capacity * sizeof *s->context);
    s->cache = malloc(cache);
    s->logits = malloc((size_t)c->vocab_size * sizeof *s->logits);
    s->order = malloc((size_t)c->vocab_size * sizeof *s->order);
    if (s->context && s->cache && s->logits && s->order)
        return CODA_OK;
    close_session(s);
    return model_no_memory(error, "the cache of keys and values", cache);
}

static coda_status check_prompt(const coda_llama *llama, const int32_t *prompt, int64_t length,
                                const coda_sampling *sampling, int64_t count, coda_error *error)
{
    if (!prompt || length < 1 || count < 0 || !sampling || !(sampling->temperature >= 0) || sampling->top_k < 0)
        return model_fail(
            error, CODA_INVALID,
            "generation needs a prompt of at least one token, a count, a temperature and top_k, none below "
            "0");
    for (int64_t i = 0; i < length; i++)
        if (prompt[i] < 0 || prompt[i] >= llama->config.vocab_size)
            return model_fail(error, CODA_INVALID, "token %lld of the prompt is %d; expected 0 to %lld", (long long)i,
                              (int)prompt[i], (long long)llama->config.vocab_size - 1);
    return CODA_OK;
}

coda_status coda_llama_generate(coda_llama *llama, const int32_t *prompt, int64_t prompt_length,
                                const coda_sampling *sampling, int32_t *tokens, int64_t count, int64_t *produced,
                                coda_error *error)
{
    struct session s;
    int64_t made = 0;
    coda_status status = check_prompt(llama, prompt, prompt_length, sampling, count, error);
    if (status == CODA_OK)
        status = open_session(&s, llama, prompt_length + count, error);
    if (status != CODA_OK)
        return status;
    int64_t read = minimum(prompt_length, s.capacity);
    status = take_in(&s, prompt + prompt_length - read, read, error);
    while (status == CODA_OK && made < count) {
        int32_t token = choose_token(s.logits, s.order, llama->config.vocab_size, sampling->temperature,
                                     sampling->top_k, uniform(sampling->seed, (uint64_t)made));
        if (token < 0) {
            status = model_fail(error, CODA_INVALID, "the model gives no finite logit: its weights are damaged");
            break;
        }
        tokens[made++] = token;
        if (sampling->each && sampling->each(sampling->context, token))
            break;
        if (made < count)
            status = make_room(&s, error);
        if (status == CODA_OK && made < count)
            status = take_in(&s, &token, 1, error);
    }
    if (status == CODA_OK && produced)
        *produced = made;
    close_session(&s);
    return status;
}
