/* Attention in pairs of bf16: which processors have it, and its tasks. */
#include "model/attention_pairs.h"
#include "model/attention_call.h"
#include <math.h>
#include <string.h>

enum { BLOCK = ATTENTION_BLOCK };

/* The CPU device names what it uses, and has asked the system for it. */
const struct attention_pairs_code *attention_pairs_choose(const coda_device *device)
{
#if defined(__x86_64__)
    const char *description = coda_device_description(device);
    if (strncmp(description, "instruction set amx,", 20) == 0)
        return &attention_pairs_amx;
    if (strncmp(description, "instruction set avx512bf16,", 27) == 0)
        return &attention_pairs_avx512bf16;
#endif
    (void)device;
    return NULL;
}

static struct pairs_shape shape_of(const struct attention_call *call)
{
    return (struct pairs_shape){call->a->head_dim, call->width, 1 / sqrtf((float)call->a->head_dim)};
}

/* A block of rows of a head of a matrix that has `row` elements a row. */
static struct pairs_rows rows_of(const struct attention_call *call, const void *matrix, int64_t row, int64_t sequence,
                                 int64_t head, int64_t block)
{
    const int64_t first = sequence * call->sequence + block * BLOCK;
    return (struct pairs_rows){(const uint16_t *)matrix + first * row + head * call->a->head_dim, row,
                               minimum(BLOCK, call->sequence - block * BLOCK)};
}

static int64_t output_row(const struct attention_call *call)
{
    return call->a->heads * call->a->head_dim;
}

/* Hands out parts of a task's memory, in elements of bf16. */
static uint16_t *take(float **memory, int64_t elements)
{
    uint16_t *taken = (void *)*memory;
    *memory += elements / 2;
    return taken;
}

/* ---------------------------------------------------------------- forward */

static uint16_t *shared_keys(const struct attention_call *call, int64_t pair)
{
    uint16_t *first = (void *)call->shared;
    return first + pair * 2 * call->length * call->width;
}

/* Task: the keys and values of one sequence and key head, as products read them. */
static void gather_keys(struct attention_call *call, int64_t task, float *slot)
{
    const struct attention *a = call->a;
    const int64_t sequence = task / a->kv_heads, head = a->heads + task % a->kv_heads, size = BLOCK * call->width;
    const struct pairs_shape shape = shape_of(call);
    uint16_t *keys = shared_keys(call, task), *values = keys + call->length * call->width;
    uint16_t *rows = take(&slot, size), *by_column = take(&slot, size);
    for (int64_t block = 0; block < call->length / BLOCK; block++) {
        const struct pairs_rows k = rows_of(call, call->qkv, call->row, sequence, head, block);
        const struct pairs_rows v = rows_of(call, call->qkv, call->row, sequence, head + a->kv_heads, block);
        a->pairs->pack(&shape, &k, &(struct pairs_block){.rows = keys + block * size});
        a->pairs->pack(&shape, &v,
                       &(struct pairs_block){.rows = rows, .by_column = by_column, .columns = values + block * size});
    }
}

/* Task: one block of queries of all query heads that share a key head. The longest come first. */
static void attend(struct attention_call *call, int64_t task, float *slot) /* NOLINT(readability-non-const-parameter) */
{
    const struct attention *a = call->a;
    const int64_t pairs = call->batch * a->kv_heads, group = a->heads / a->kv_heads, pair = task % pairs;
    const int64_t block = call->length / BLOCK - 1 - task / pairs, sequence = pair / a->kv_heads;
    const int64_t first = sequence * call->sequence + block * BLOCK, head_first = pair % a->kv_heads * group;
    struct pairs_forward work = {.shape = shape_of(call),
                                 .keys = shared_keys(call, pair),
                                 .values = shared_keys(call, pair) + call->length * call->width,
                                 .block = block,
                                 .output_stride = output_row(call),
                                 .scratch = slot};
    if (a->pairs->begin)
        a->pairs->begin();
    for (int64_t head = head_first; head < head_first + group; head++) {
        work.queries = rows_of(call, call->qkv, call->row, sequence, head, block);
        work.output = (uint16_t *)call->out + first * output_row(call) + head * a->head_dim;
        a->pairs->forward(&work);
        for (int64_t i = 0; i < work.queries.count && call->lse; i++)
            call->lse[(first + i) * a->heads + head] = work.lse[i];
    }
    if (a->pairs->end)
        a->pairs->end();
}

coda_status attention_pairs_forward(struct attention *attention, struct attention_call *call, coda_error *error)
{
    const int64_t pairs = call->batch * attention->kv_heads, tasks = pairs * (call->length / BLOCK);
    call->slot_size = pairs_forward_scratch(call->width);
    coda_status status = attention_reserve(attention, call, pairs * call->length * call->width, tasks, error);
    if (status != CODA_OK)
        return status;
    attention_run(call, pairs, gather_keys);
    attention_run(call, tasks, attend);
    return CODA_OK;
}

/* ---------------------------------------------------------------- backward */

enum { BACKWARD_HALVES = 7, BACKWARD_MATRICES = 3 }; /* of bf16 and of f32, in the memory of a task */

static float *partial_queries(const struct attention_call *call, int64_t sequence, int64_t head, int64_t part)
{
    return call->partial + ((sequence * call->a->heads + head) * call->parts + part) * call->length * call->width;
}

/* Rounds blocks first, first + step, .. of a gradient into d_qkv. */
static void write_blocks(const struct attention_call *call, int64_t first, int64_t step, int64_t sequence, int64_t head,
                         const float *from, int transposed, float factor, uint16_t *memory)
{
    const struct pairs_shape shape = shape_of(call);
    for (int64_t block = first; block < call->length / BLOCK; block += step) {
        const struct pairs_rows to = rows_of(call, call->d_qkv, call->row, sequence, head, block);
        call->a->pairs->write(&shape, from + block * BLOCK * call->width, transposed, factor, (uint16_t *)to.data,
                              to.stride, to.count, memory);
    }
}

/* One query head of a task: adds to the gradients of keys and values, and makes those of the queries. */
static void attend_head_backward(const struct attention_call *call, struct pairs_backward *work, int64_t sequence,
                                 int64_t head, float *lse, float *delta, uint16_t *memory)
{
    const struct attention *a = call->a;
    const int64_t size = BLOCK * call->width, first = sequence * call->sequence;
    uint16_t *rows = memory, *output = memory + size;
    memset(lse, 0, (size_t)call->length * sizeof *lse);
    for (int64_t i = 0; i < call->sequence; i++)
        lse[i] = call->lse_in[(first + i) * a->heads + head];
    for (int64_t block = 0; block < work->blocks; block++) {
        const struct pairs_rows q = rows_of(call, call->qkv, call->row, sequence, head, block);
        const struct pairs_rows y = rows_of(call, call->output, output_row(call), sequence, head, block);
        const struct pairs_rows dy = rows_of(call, call->d_output, output_row(call), sequence, head, block);
        uint16_t *by_row = work->d_output.by_row + block * size;
        a->pairs->pack(&work->shape, &q,
                       &(struct pairs_block){.rows = rows,
                                             .by_row = work->queries.by_row + block * size,
                                             .by_column = work->queries.by_column + block * size});
        a->pairs->pack(&work->shape, &dy,
                       &(struct pairs_block){
                           .rows = rows, .by_row = by_row, .by_column = work->d_output.by_column + block * size});
        a->pairs->pack(&work->shape, &y, &(struct pairs_block){.rows = rows, .by_row = output});
        a->pairs->row_products(&work->shape, output, by_row, delta + block * BLOCK);
    }
    if (call->partial)
        work->d_queries = partial_queries(call, sequence, head, work->part);
    memset(work->d_queries, 0, (size_t)(call->length * call->width) * sizeof(float));
    a->pairs->backward(work);
    if (!call->partial)
        write_blocks(call, 0, 1, sequence, head, work->d_queries, 1, work->shape.scale, memory);
}

/* Task: the gradients of a part of one key head of one sequence, and of the query heads that share it. */
static void attend_backward(struct attention_call *call, int64_t task, float *slot)
{
    const struct attention *a = call->a;
    const int64_t part = task % call->parts, pair = task / call->parts, sequence = pair / a->kv_heads;
    const int64_t kv_head = pair % a->kv_heads, group = a->heads / a->kv_heads, key_head = a->heads + kv_head;
    const int64_t all = call->length * call->width, size = BLOCK * call->width;
    struct pairs_backward work = {
        .shape = shape_of(call), .part = part, .parts = call->parts, .blocks = call->length / BLOCK};
    uint16_t **halves[] = {&work.keys.rows,         &work.keys.columns,      &work.values.rows,
                           &work.queries.by_row,    &work.queries.by_column, &work.d_output.by_row,
                           &work.d_output.by_column};
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++)
        *halves[i] = take(&slot, all);
    uint16_t *memory = take(&slot, 2 * size);
    work.d_queries = slot;
    work.d_keys = slot + all;
    work.d_values = slot + 2 * all;
    float *lse = slot + BACKWARD_MATRICES * all, *delta = lse + call->length;
    work.lse = lse;
    work.delta = delta;
    work.scratch = delta + call->length;
    for (int64_t block = part; block < work.blocks; block += call->parts) {
        const struct pairs_rows k = rows_of(call, call->qkv, call->row, sequence, key_head, block);
        const struct pairs_rows v = rows_of(call, call->qkv, call->row, sequence, key_head + a->kv_heads, block);
        a->pairs->pack(&work.shape, &k,
                       &(struct pairs_block){.rows = work.keys.rows + block * size,
                                             .by_column = memory,
                                             .columns = work.keys.columns + block * size});
        a->pairs->pack(&work.shape, &v, &(struct pairs_block){.rows = work.values.rows + block * size});
    }
    memset(work.d_keys, 0, (size_t)(2 * all) * sizeof(float)); /* and d_values behind it */
    if (a->pairs->begin)
        a->pairs->begin();
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
        attend_head_backward(call, &work, sequence, head, lse, delta, memory);
    if (a->pairs->end)
        a->pairs->end();
    write_blocks(call, part, call->parts, sequence, key_head, work.d_keys, 0, work.shape.scale, memory);
    write_blocks(call, part, call->parts, sequence, key_head + a->kv_heads, work.d_values, 0, 1, memory);
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
    write_blocks(call, 0, 1, sequence, head, slot, 1, shape_of(call).scale, (void *)(slot + size));
}

coda_status attention_pairs_backward(struct attention *attention, struct attention_call *call, coda_error *error)
{
    const int64_t all = call->length * call->width;
    const int64_t slot_size = (BACKWARD_HALVES * all + 2 * BLOCK * call->width) / 2 + BACKWARD_MATRICES * all +
                              2 * call->length + PAIRS_BACKWARD_SCRATCH;
    return attention_run_backward(attention, call, slot_size, attend_backward, add_parts, error);
}
