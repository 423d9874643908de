#include "model/parts.h"
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- names in blocks/ */

static const struct {
    const char *name;
    int weight;
} weights[] = {
    {"B", WEIGHT_EMBEDDING},
    {"W", WEIGHT_HEAD},
    {"g1", INPUT_NORM},
    {"Wq", QUERY},
    {"Wk", KEY},
    {"Wv", VALUE},
    {"Wo", ATTENTION_OUTPUT},
    {"g0", POST_ATTENTION_NORM},
    {"Wg", GATE},
    {"Wu", UP},
    {"Wd", DOWN},
};

static const struct {
    const char *name;
    enum source source;
} values[] = {
    {"table", SOURCE_TABLE}, {"ids", SOURCE_TOKENS},    {"pos", SOURCE_POSITIONS}, {"t", SOURCE_TARGETS},
    {"y", SOURCE_ATTENDED},  {"x", SOURCE_INPUT},       {"X", SOURCE_OUTPUT},      {"QKV", SOURCE_QKV},
    {"ce", SOURCE_LOSS},     {"Z", SOURCE_LOGITS},      {"dce", SOURCE_D_LOSS},    {"dX", SOURCE_D_OUTPUT},
    {"dx", SOURCE_D_INPUT},  {"dy", SOURCE_D_ATTENDED}, {"dQKV", SOURCE_D_QKV},    {"dB", SOURCE_D_EMBEDDING},
};

static int find_weight(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        if (strlen(weights[i].name) == length && !strncmp(weights[i].name, name, length))
            return weights[i].weight;
    return -1;
}

/* A value first, then a weight, or the gradient of weights that lie one after the other. */
static coda_status bind(const coda_schedule *schedule, int index, struct part_operand *operand, coda_error *error)
{
    coda_value value;
    coda_status status = coda_schedule_value(schedule, index, &value);
    if (status != CODA_OK)
        return model_fail(error, status, "a schedule has no value %d", index);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (!strcmp(values[i].name, value.name)) {
            operand->source = values[i].source;
            return CODA_OK;
        }
    const char *name = value.of ? value.of : value.name;
    operand->source = value.of ? SOURCE_GRADIENT : SOURCE_WEIGHT;
    operand->weight = find_weight(name, strcspn(name, ","));
    bool known = operand->weight >= 0;
    for (operand->count = 0; *name && known; operand->count++) {
        size_t length = strcspn(name, ",");
        known = find_weight(name, length) == operand->weight + operand->count;
        name += length + (name[length] == ',');
    }
    return known ? CODA_OK
                 : model_fail(error, CODA_UNSUPPORTED, "the model has nothing that is the block's operand %s",
                              value.name);
}

int weight_of_block(const coda_llama *llama, int weight, int64_t block)
{
    if (weight == WEIGHT_EMBEDDING)
        return EMBEDDING_INDEX;
    if (weight == WEIGHT_HEAD)
        return head_index(llama);
    return layer_index(weight < ATTENTION_OUTPUT ? block : block - 1, (enum layer_tensor)weight);
}

/* ---------------------------------------------------------------- schedules */

/* The sizes that the program has of these; rows 0 are left out. */
static coda_dims dims_of(const coda_llama *llama, const coda_program *block, int64_t rows)
{
    const coda_llama_config *c = &llama->config;
    const struct {
        const char *axis;
        int64_t size;
    } size[] = {
        {"M", rows},           {"D", c->hidden_size}, {"F", c->intermediate_size}, {"A", query_width(c)},
        {"Q", query_width(c)}, {"E", key_width(c)},   {"H", c->head_dim},          {"P", c->max_position_embeddings},
        {"V", c->vocab_size}};
    coda_dims dims = {.count = 0};
    for (int i = 0; i < coda_program_axis_count(block); i++) {
        coda_axis axis;
        if (coda_program_axis(block, i, &axis) != CODA_OK || axis.derived)
            continue;
        for (size_t k = 0; k < sizeof size / sizeof *size; k++)
            if (!strcmp(axis.name, size[k].axis) && size[k].size > 0 && dims.count < CODA_MAX_DIMS) {
                dims.item[dims.count].axis = size[k].axis;
                dims.item[dims.count++].size = size[k].size;
            }
    }
    return dims;
}

static const char *const block_name[2][PART_COUNT] = {
    [FOR_TRAINING] = {"llama3_start", "llama3", "llama3_end"},
    [FOR_GENERATION] = {"llama3_start", "llama3", "llama3_logits"},
};

static coda_status open_part(struct parts *parts, const coda_llama *llama, enum part which, const coda_program *block,
                             enum part_use use, int64_t chunk_rows, coda_error *error)
{
    bool training = use == FOR_TRAINING, end = which == PART_END;
    const coda_schedule_options options = {.size = sizeof options,
                                           .backward = training,
                                           .consumes = training && !end ? "dX,dQKV" : NULL,
                                           .wide_axis = training && end ? "V" : NULL,
                                           .chunk_rows = chunk_rows};
    coda_dims dims = dims_of(llama, block, 0);
    coda_schedule *schedule = NULL;
    coda_status status = coda_schedule_create(llama->device, block, &dims, &options, &schedule, error);
    if (status != CODA_OK)
        return status;
    parts->part[which].schedule = schedule;
    int count = coda_schedule_operand_count(schedule);
    if (count > MOST_PART_OPERANDS)
        return model_fail(error, CODA_UNSUPPORTED, "the block %s has %d operands; the model gives at most %d",
                          coda_program_name(block), count, MOST_PART_OPERANDS);
    struct part_operand *operand = calloc((size_t)count, sizeof *operand);
    if (!operand)
        return model_no_memory(error, "the operands of a block", (size_t)count * sizeof *operand);
    parts->part[which].operand = operand;
    parts->part[which].count = count;
    for (int i = 0; i < count && status == CODA_OK; i++)
        status = bind(schedule, i, &operand[i], error);
    return status;
}

coda_status parts_open(struct parts *parts, const coda_llama *llama, enum part_use use, int64_t chunk_rows,
                       coda_error *error)
{
    const coda_module *standard = NULL;
    memset(parts, 0, sizeof *parts);
    coda_status status = coda_standard_blocks(&standard, error);
    if (status == CODA_OK && llama->dtype != CODA_BF16)
        status = coda_module_retype(standard, CODA_BF16, llama->dtype, &parts->retyped, error);
    const coda_module *blocks = parts->retyped ? parts->retyped : standard;
    for (int p = 0; p < PART_COUNT && status == CODA_OK; p++) {
        const coda_program *block = coda_module_find(blocks, block_name[use][p]);
        if (!block)
            status =
                model_fail(error, CODA_UNSUPPORTED, "the library was built without the block %s", block_name[use][p]);
        else if (p != PART_LAYER || llama->config.num_hidden_layers > 1)
            status = open_part(parts, llama, (enum part)p, block, use, chunk_rows, error);
        parts->block[p] = block;
    }
    if (status != CODA_OK)
        parts_close(parts);
    return status;
}

void parts_close(struct parts *parts)
{
    for (int p = 0; p < PART_COUNT; p++) {
        coda_schedule_free(parts->part[p].schedule);
        free(parts->part[p].operand);
    }
    coda_module_free(parts->retyped);
    memset(parts, 0, sizeof *parts);
}

double parts_bytes(const struct parts *parts)
{
    double bytes = 0;
    for (int p = 0; p < PART_COUNT; p++)
        if (parts->part[p].schedule)
            bytes += coda_schedule_bytes_moved(parts->part[p].schedule);
    return bytes;
}

coda_status part_memory(const struct parts *parts, const coda_llama *llama, enum part part, int64_t rows, size_t *saved,
                        size_t *scratch, coda_error *error)
{
    if (!parts->part[part].schedule) {
        *saved = *scratch = 0;
        return CODA_OK;
    }
    coda_dims dims = dims_of(llama, parts->block[part], rows);
    return coda_schedule_memory(parts->part[part].schedule, &dims, saved, scratch, error);
}

bool part_locate(const struct parts *parts, const coda_llama *llama, enum part part, const char *value, int64_t rows,
                 void *saved, void *scratch, coda_tensor *tensor)
{
    const coda_schedule *schedule = parts->part[part].schedule;
    coda_dims dims = dims_of(llama, parts->block[part], rows);
    return coda_schedule_locate(schedule, coda_schedule_find(schedule, value), &dims, saved, scratch, tensor, NULL) ==
           CODA_OK;
}
