#include "model/attention_call.h"
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = ATTENTION_BLOCK, WIDTH_STEP = 32 /* columns that the widest instruction set takes at once */ };

void attention_open(struct attention *attention, coda_device *device, const coda_llama_config *config, coda_dtype dtype)
{
    *attention = (struct attention){
        .device = device,
        .code = attention_code_choose(),
        .pairs = dtype == CODA_BF16 ? attention_pairs_choose(device) : NULL,
        .heads = config->num_attention_heads,
        .kv_heads = config->num_key_value_heads,
        .head_dim = config->head_dim,
        .dtype = dtype,
    };
}

void attention_close(struct attention *attention)
{
    free(attention->memory);
    attention->memory = NULL;
    attention->room = 0;
}

static void open_call(struct attention_call *call, const struct attention *attention, int64_t batch, int64_t sequence)
{
    memset(call, 0, sizeof *call);
    call->a = attention;
    call->batch = batch;
    call->sequence = sequence;
    call->length = ceiling(sequence, BLOCK) * BLOCK;
    call->width = ceiling(attention->head_dim, WIDTH_STEP) * WIDTH_STEP;
    call->row = (attention->heads + 2 * attention->kv_heads) * attention->head_dim;
}

static int64_t worker_count(const struct attention_call *call, int64_t tasks)
{
    return minimum(tasks, maximum(1, coda_device_threads(call->a->device)));
}

coda_status attention_reserve(struct attention *attention, struct attention_call *call, int64_t shared, int64_t tasks,
                              coda_error *error)
{
    const int64_t floats = shared + worker_count(call, tasks) * call->slot_size;
    if (floats > attention->room) {
        size_t bytes = (size_t)ceiling(floats * 4, 64) * 64;
        float *grown = aligned_alloc(64, bytes);
        if (!grown)
            return model_no_memory(error, "attention", bytes);
        free(attention->memory);
        attention->memory = grown;
        attention->room = floats;
    }
    call->shared = attention->memory;
    call->slots = attention->memory + shared;
    return CODA_OK;
}

/* Parts of a key head's blocks in the backward. */
static int64_t attention_parts(const struct attention_call *call)
{
    const int64_t pairs = call->batch * call->a->kv_heads,
                  all = call->batch * call->a->heads * call->length * call->width;
    const int64_t parts = minimum(call->length / BLOCK, ceiling(ENOUGH_TASKS, pairs));
    return maximum(1, minimum(parts, MOST_PARTIAL / all));
}

/* A worker takes tasks until none is left. Which one takes which does not matter: each writes its own results. */
static void run_worker(void *context, int64_t index)
{
    struct attention_call *call = context;
    float *slot = call->slots + index * call->slot_size;
    for (;;) {
        int64_t task = atomic_fetch_add(&call->next, 1);
        if (task >= call->tasks)
            return;
        call->work(call, task, slot);
    }
}

void attention_run(struct attention_call *call, int64_t tasks, attention_task *work)
{
    call->tasks = tasks;
    call->work = work;
    atomic_store(&call->next, 0);
    coda_parallel_for(call->a->device, worker_count(call, tasks), run_worker, call);
}

/* Reads head `head` of `count` rows as [count, width] f32 with zeros to the right and, to `padded` rows, below. */
static void read_rows(const struct attention_call *call, const char *from, int64_t row, int64_t first, int64_t head,
                      int64_t count, int64_t padded, float *to)
{
    int64_t size = (int64_t)coda_dtype_size(call->a->dtype), depth = call->a->head_dim;
    for (int64_t i = 0; i < count; i++) {
        float *into = to + i * call->width;
        coda_convert(into, CODA_F32, from + ((first + i) * row + head * depth) * size, call->a->dtype, depth);
        for (int64_t j = depth; j < call->width; j++)
            into[j] = 0;
    }
    memset(to + count * call->width, 0, (size_t)((padded - count) * call->width) * sizeof(float));
}

static void write_rows(const struct attention_call *call, char *to, int64_t row, int64_t first, int64_t head,
                       int64_t count, const float *from)
{
    int64_t size = (int64_t)coda_dtype_size(call->a->dtype), depth = call->a->head_dim;
    for (int64_t i = 0; i < count; i++)
        coda_convert(to + ((first + i) * row + head * depth) * size, call->a->dtype, from + i * call->width, CODA_F32,
                     depth);
}

static void transpose(const float *from, int64_t rows, int64_t columns, float *to)
{
    for (int64_t i = 0; i < rows; i += 8) /* rows is a multiple of 8: a cache line of `to` at a time */
        for (int64_t j = 0; j < columns; j++)
            for (int64_t k = 0; k < 8; k++)
                to[j * rows + i + k] = from[(i + k) * columns + j];
}

static void scale_rows(float *x, int64_t count, float factor)
{
    for (int64_t i = 0; i < count; i++)
        x[i] *= factor;
}

static float *shared_keys(const struct attention_call *call, int64_t pair)
{
    return call->shared + pair * 2 * call->length * call->width;
}

/* Task: the keys, transposed, and values of one sequence and key head. */
static void gather_keys(struct attention_call *call, int64_t task, float *slot)
{
    int64_t sequence = task / call->a->kv_heads, head = task % call->a->kv_heads;
    int64_t first = sequence * call->sequence;
    float *keys = shared_keys(call, task), *values = keys + call->length * call->width;
    read_rows(call, call->qkv, call->row, first, call->a->heads + head, call->sequence, call->length, slot);
    transpose(slot, call->length, call->width, keys);
    read_rows(call, call->qkv, call->row, first, call->a->heads + call->a->kv_heads + head, call->sequence,
              call->length, values);
}

/* Task: one block of queries of all query heads that share a key head. The longest come first. */
static void attend(struct attention_call *call, int64_t task, float *slot)
{
    const struct attention *a = call->a;
    int64_t pairs = call->batch * a->kv_heads, blocks = call->length / BLOCK, group = a->heads / a->kv_heads;
    int64_t block = blocks - 1 - task / pairs, pair = task % pairs;
    int64_t sequence = pair / a->kv_heads, kv_head = pair % a->kv_heads;
    int64_t first = sequence * call->sequence + block * BLOCK;
    int64_t count = minimum(BLOCK, call->sequence - block * BLOCK);
    float lse[BLOCK], *queries = slot, *output = slot + BLOCK * call->width;
    struct attention_block work = {
        .queries = queries,
        .keys = shared_keys(call, pair),
        .values = shared_keys(call, pair) + call->length * call->width,
        .width = call->width,
        .length = call->length,
        .block = block,
        .output = output,
        .lse = lse,
        .scores = output + BLOCK * call->width,
    };
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
        read_rows(call, call->qkv, call->row, first, head, count, BLOCK, queries);
        scale_rows(queries, BLOCK * call->width, 1 / sqrtf((float)a->head_dim));
        a->code->forward(&work);
        write_rows(call, call->out, a->heads * a->head_dim, first, head, count, output);
        for (int64_t i = 0; i < count && call->lse; i++)
            call->lse[(first + i) * a->heads + head] = lse[i];
    }
}

static coda_status forward_in_f32(struct attention *attention, struct attention_call *call, coda_error *error)
{
    const int64_t pairs = call->batch * attention->kv_heads, tasks = pairs * (call->length / BLOCK);
    call->slot_size = maximum(call->length * call->width, 2 * BLOCK * call->width + BLOCK * BLOCK);
    coda_status status = attention_reserve(attention, call, pairs * 2 * call->length * call->width, tasks, error);
    if (status != CODA_OK)
        return status;
    attention_run(call, pairs, gather_keys);
    attention_run(call, tasks, attend);
    return CODA_OK;
}

coda_status attention_forward(struct attention *attention, int64_t batch, int64_t sequence, const void *qkv,
                              void *output, float *lse, coda_error *error)
{
    struct attention_call call;
    open_call(&call, attention, batch, sequence);
    call.qkv = qkv;
    call.out = output;
    call.lse = lse;
    coda_status status =
        attention->pairs ? attention_pairs_forward(attention, &call, error) : forward_in_f32(attention, &call, error);
    if (status != CODA_OK)
        return status;
    double tokens = (double)batch * (double)sequence, size = (double)coda_dtype_size(attention->dtype);
    attention->bytes_moved +=
        tokens * (size * (double)(call.row + attention->heads * attention->head_dim) + 4.0 * (double)attention->heads);
    return CODA_OK;
}

/* delta = sum of output * d_output over a head: what every score's gradient of that row has in common. */
static void row_products(const float *a, const float *b, int64_t rows, int64_t width, float *delta)
{
    for (int64_t i = 0; i < rows; i++) {
        float sum = 0;
        for (int64_t j = 0; j < width; j++)
            sum += a[i * width + j] * b[i * width + j];
        delta[i] = sum;
    }
}

enum { BACKWARD_MATRICES = 8 };

static float *partial_queries(const struct attention_call *call, int64_t sequence, int64_t head, int64_t part)
{
    return call->partial + ((sequence * call->a->heads + head) * call->parts + part) * call->length * call->width;
}

/* Rows of the key blocks that a part has. */
static void write_blocks(const struct attention_call *call, int64_t part, int64_t sequence, int64_t head,
                         const float *from)
{
    for (int64_t block = part; block < call->length / BLOCK; block += call->parts) {
        const int64_t row = block * BLOCK;
        write_rows(call, call->d_qkv, call->row, sequence * call->sequence + row, head,
                   minimum(BLOCK, call->sequence - row), from + row * call->width);
    }
}

/* The gradient of one query head, to which all parts contribute. */
static void finish_queries(const struct attention_call *call, int64_t sequence, int64_t head, float *sum)
{
    scale_rows(sum, call->length * call->width, 1 / sqrtf((float)call->a->head_dim));
    write_rows(call, call->d_qkv, call->row, sequence * call->sequence, head, call->sequence, sum);
}

/* One query head of a task: adds to the gradients of keys and values, and makes those of the queries. */
static void attend_head_backward(const struct attention_call *call, struct attention_head *work, int64_t sequence,
                                 int64_t head, float *queries, float *d_output, float *lse, float *delta)
{
    const struct attention *a = call->a;
    const int64_t first = sequence * call->sequence, count = call->sequence, size = call->length * call->width;
    const int64_t y_row = a->heads * a->head_dim;
    read_rows(call, call->output, y_row, first, head, count, call->length, queries);
    read_rows(call, call->d_output, y_row, first, head, count, call->length, d_output);
    row_products(queries, d_output, call->length, call->width, delta);
    read_rows(call, call->qkv, call->row, first, head, count, call->length, queries);
    scale_rows(queries, size, 1 / sqrtf((float)a->head_dim));
    memset(lse, 0, (size_t)call->length * sizeof(float));
    for (int64_t i = 0; i < count; i++)
        lse[i] = call->lse_in[(first + i) * a->heads + head];
    if (call->partial)
        work->d_queries = partial_queries(call, sequence, head, work->part);
    memset(work->d_queries, 0, (size_t)size * sizeof(float));
    a->code->backward(work);
    if (!call->partial)
        finish_queries(call, sequence, head, work->d_queries);
}

/* Task: the gradients of a part of one key head of one sequence, and of the query heads that share it. */
static void attend_backward(struct attention_call *call, int64_t task, float *slot)
{
    const struct attention *a = call->a;
    const int64_t part = task % call->parts, pair = task / call->parts;
    int64_t sequence = pair / a->kv_heads, kv_head = pair % a->kv_heads, group = a->heads / a->kv_heads;
    int64_t first = sequence * call->sequence, count = call->sequence, size = call->length * call->width;
    float *matrix[BACKWARD_MATRICES];
    for (int i = 0; i < BACKWARD_MATRICES; i++)
        matrix[i] = slot + i * size;
    float *lse = slot + BACKWARD_MATRICES * size, *delta = lse + call->length;
    struct attention_head work = {
        .part = part,
        .parts = call->parts,
        .queries = matrix[0],
        .keys = matrix[1],
        .keys_transposed = matrix[2],
        .values_transposed = matrix[3],
        .d_output = matrix[4],
        .lse = lse,
        .delta = delta,
        .width = call->width,
        .length = call->length,
        .d_queries = matrix[5],
        .d_keys = matrix[6],
        .d_values = matrix[7],
        .probabilities = delta + call->length,
        .d_scores = delta + call->length + BLOCK * BLOCK,
    };
    const int64_t key_head = a->heads + kv_head, value_head = key_head + a->kv_heads;
    read_rows(call, call->qkv, call->row, first, key_head, count, call->length, matrix[1]);
    transpose(matrix[1], call->length, call->width, matrix[2]);
    read_rows(call, call->qkv, call->row, first, value_head, count, call->length, matrix[0]);
    transpose(matrix[0], call->length, call->width, matrix[3]);
    memset(work.d_keys, 0, (size_t)(2 * size) * sizeof(float)); /* and d_values behind it */
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
        attend_head_backward(call, &work, sequence, head, matrix[0], matrix[4], lse, delta);
    write_blocks(call, part, sequence, key_head, work.d_keys);
    write_blocks(call, part, sequence, value_head, work.d_values);
}

/* Task: one query head, whose parts are added up in their order. */
static void add_parts(struct attention_call *call, int64_t task, float *slot)
{
    const int64_t sequence = task / call->a->heads, head = task % call->a->heads, size = call->length * call->width;
    memcpy(slot, partial_queries(call, sequence, head, 0), (size_t)size * sizeof(float));
    for (int64_t part = 1; part < call->parts; part++) {
        const float *from = partial_queries(call, sequence, head, part);
        for (int64_t i = 0; i < size; i++)
            slot[i] += from[i];
    }
    finish_queries(call, sequence, head, slot);
}

coda_status attention_run_backward(struct attention *attention, struct attention_call *call, int64_t slot_size,
                                   attention_task *attend, attention_task *add, coda_error *error)
{
    const int64_t heads = call->batch * attention->heads;
    call->parts = attention_parts(call);
    call->slot_size = slot_size;
    const int64_t partial = call->parts > 1 ? heads * call->length * call->width * call->parts : 0,
                  tasks = call->batch * attention->kv_heads * call->parts;
    coda_status status = attention_reserve(attention, call, partial, maximum(tasks, heads), error);
    if (status != CODA_OK)
        return status;
    call->partial = partial > 0 ? call->shared : NULL;
    attention_run(call, tasks, attend);
    if (call->partial)
        attention_run(call, heads, add);
    return CODA_OK;
}

static coda_status backward_in_f32(struct attention *attention, struct attention_call *call, coda_error *error)
{
    const int64_t slot_size = BACKWARD_MATRICES * call->length * call->width + 2 * call->length + 2 * BLOCK * BLOCK;
    return attention_run_backward(attention, call, slot_size, attend_backward, add_parts, error);
}

coda_status attention_backward(struct attention *attention, int64_t batch, int64_t sequence, const void *qkv,
                               const void *output, const void *d_output, const float *lse, void *d_qkv,
                               coda_error *error)
{
    struct attention_call call;
    open_call(&call, attention, batch, sequence);
    call.qkv = qkv;
    call.output = output;
    call.d_output = d_output;
    call.lse_in = lse;
    call.d_qkv = d_qkv;
    coda_status status =
        attention->pairs ? attention_pairs_backward(attention, &call, error) : backward_in_f32(attention, &call, error);
    if (status != CODA_OK)
        return status;
    double tokens = (double)batch * (double)sequence, size = (double)coda_dtype_size(attention->dtype);
    attention->bytes_moved += tokens * (size * 2 * (double)(call.row + attention->heads * attention->head_dim) +
                                        4.0 * (double)attention->heads);
    return CODA_OK;
}

/* Task: one query head against the cache. */
static void attend_cache(struct attention_call *call, int64_t head, float *slot)
{
    const struct attention *a = call->a;
    int64_t depth = a->head_dim, kv_head = head / (a->heads / a->kv_heads), row = 2 * a->kv_heads * depth;
    int64_t size = (int64_t)coda_dtype_size(a->dtype);
    float *query = slot, *other = query + depth, *output = other + depth, *scores = output + depth;
    coda_convert(query, CODA_F32, call->qkv + head * depth * size, a->dtype, depth);
    scale_rows(query, depth, 1 / sqrtf((float)depth));
    float largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < call->sequence; i++) {
        coda_convert(other, CODA_F32, call->output + (i * row + kv_head * depth) * size, a->dtype, depth);
        row_products(query, other, 1, depth, &scores[i]);
        largest = fmaxf(largest, scores[i]);
    }
    memset(output, 0, (size_t)depth * sizeof(float));
    for (int64_t i = 0; i < call->sequence; i++) {
        float p = expf(scores[i] - largest);
        sum += p;
        coda_convert(other, CODA_F32, call->output + (i * row + (a->kv_heads + kv_head) * depth) * size, a->dtype,
                     depth);
        for (int64_t j = 0; j < depth; j++)
            output[j] += p * other[j];
    }
    scale_rows(output, depth, 1 / sum);
    coda_convert(call->out + head * depth * size, a->dtype, output, CODA_F32, depth);
}

coda_status attention_decode(struct attention *attention, const void *query, const void *cache, int64_t length,
                             void *output, coda_error *error)
{
    struct attention_call call;
    open_call(&call, attention, 1, length);
    call.qkv = query;
    call.output = cache;
    call.out = output;
    call.slot_size = 3 * attention->head_dim + length;
    coda_status status = attention_reserve(attention, &call, 0, attention->heads, error);
    if (status != CODA_OK)
        return status;
    attention_run(&call, attention->heads, attend_cache);
    return CODA_OK;
}
