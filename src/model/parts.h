/* The parts of a model as schedules: blocks/ says what they compute, the compiler what runs. */
#ifndef CODA_MODEL_PARTS_H
#define CODA_MODEL_PARTS_H

#include "model/llama.h"

enum part_use { FOR_TRAINING, FOR_GENERATION };

enum part {
    PART_START, /* embedding to the first layer's queries, keys and values */
    PART_LAYER, /* one layer's attention output to the next layer's queries, keys and values */
    PART_END,   /* the last attention's output to the losses of every row, or the logits of one */
    PART_COUNT
};

/* What an operand of a schedule is in the model. */
enum source {
    SOURCE_WEIGHT,
    SOURCE_GRADIENT, /* of a weight, or of weights that follow each other */
    SOURCE_TABLE,
    SOURCE_TOKENS,
    SOURCE_POSITIONS,
    SOURCE_TARGETS,
    SOURCE_ATTENDED, /* of the layer before the block */
    SOURCE_INPUT,    /* the residual stream that it reads: the input of the layer before */
    SOURCE_OUTPUT,   /* and writes: the input of the layer after */
    SOURCE_QKV,      /* of the layer after */
    SOURCE_LOSS,
    SOURCE_LOGITS,
    SOURCE_D_LOSS,
    SOURCE_D_OUTPUT,
    SOURCE_D_INPUT,
    SOURCE_D_ATTENDED,
    SOURCE_D_QKV,
    SOURCE_D_EMBEDDING,
};

/* Weights that belong to no layer, beside enum layer_tensor. */
enum { WEIGHT_EMBEDDING = LAYER_TENSORS, WEIGHT_HEAD };

enum { MOST_PART_OPERANDS = 64 };

struct part_operand {
    enum source source;
    int weight; /* WEIGHT, GRADIENT: an enum layer_tensor, or one of the above; the first of several */
    int count;  /* of weights */
};

struct parts {
    struct {
        coda_schedule *schedule;
        struct part_operand *operand;
        int count;
    } part[PART_COUNT];
    const coda_program *block[PART_COUNT];
    coda_module *retyped; /* the blocks in the model's dtype; NULL: it is theirs */
};

/* chunk_rows: rows of logits at a time */
coda_status parts_open(struct parts *parts, const coda_llama *llama, enum part_use use, int64_t chunk_rows,
                       coda_error *error);
void parts_close(struct parts *parts);
double parts_bytes(const struct parts *parts); /* moved by all launches */
/* Bytes of the saved and the scratch memory; 0 for a part that the model does not have. */
coda_status part_memory(const struct parts *parts, const coda_llama *llama, enum part part, int64_t rows, size_t *saved,
                        size_t *scratch, coda_error *error);
/* Generation needs the logits of the last row alone. */
static inline int64_t part_rows(enum part_use use, enum part part, int64_t rows)
{
    return use == FOR_GENERATION && part == PART_END ? 1 : rows;
}
/* A value that lies in saved or scratch memory; false: the part has none of the name. */
bool part_locate(const struct parts *parts, const coda_llama *llama, enum part part, const char *value, int64_t rows,
                 void *saved, void *scratch, coda_tensor *tensor);

static inline enum part part_of_block(const coda_llama *llama, int64_t block)
{
    return block == 0 ? PART_START : block < llama->config.num_hidden_layers ? PART_LAYER : PART_END;
}

/* The weight that an operand of a block is. The weights of a layer's attention belong to two blocks: the projections to
 * queries, keys and values to the one before the attention, that of its output to the one after. */
int weight_of_block(const coda_llama *llama, int weight, int64_t block);

#endif
