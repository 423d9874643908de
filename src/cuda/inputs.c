/* What a tile reads: packed words in registers, from memory at once or by way of shared memory. */
#include "cuda/pairs.h"

static int input_elements(const struct tile_input *input)
{
    return input->distance ? half_elements(input->distance) : 8;
}

static int input_bytes(const struct emitter *e, const struct tile_input *input)
{
    return input_elements(input) * (int)coda_dtype_size(e->graph->operand[input->operand].dtype);
}

/* An f32 `out +=` is added in memory, so its old value is not read. */
static bool is_read(const struct emitter *e, const struct tile_input *input)
{
    return input->node >= 0 || e->graph->operand[input->operand].dtype != CODA_F32;
}

/* Opens the loops over the elements that an input holds in block b, row h; `count` of them are inside. */
static void open_element(struct emitter *e, struct text *out, const struct tile_input *input)
{
    bool other_blocks = input->distance && pairing_of(input->distance) == PAIRING_BLOCKS;
    char column[128] = "column";
    if (input->distance)
        half_column(input->distance, "column", column, sizeof column);
    text_add(out, "    UNROLL for (int b = 0; b < BLOCKS; b++)\n    UNROLL for (int h = 0; h < 2; h++) {\n");
    if (other_blocks)
        text_add(out, "        if (b & %d)\n            continue;\n", block_distance(e->plan, input->distance));
    text_add(out, "        const int column = COLUMN(b), row = at.row + 8 * h;\n");
    if (input->distance)
        text_add(out, "        const int first = %s, count = row < ROWS ? COLUMNS / 2 - first : 0;\n", column);
    else
        text_add(out, "        const int first = column, count = row < ROWS ? COLUMNS - first : 0;\n");
}

static void emit_fetch(struct emitter *e, struct text *out, int i)
{
    const struct tile_input *input = &e->plan->input[i];
    const char *type = coda_dtype_name(e->graph->operand[input->operand].dtype);
    int elements = input_elements(input);
    open_element(e, out, input);
    if (input->id_value < 0) {
        text_add(
            out,
            "        fetch_%sx%d(in.i%d[b][h], P.t[%d].data + ((long)row * P.t[%d].stride + first) * SIZE_%s, count, "
            "WIDE(%d));\n    }\n",
            type, elements, i, input->operand, input->operand, type, input->operand);
        return;
    }
    text_add(
        out,
        "        const int id = VALUE_ID(%d);\n"
        "        const bool inside = (u32)id < (u32)P.t[%d].rows; /* NaN where there is no such row */\n"
        "        fetch_%sx%d(in.i%d[b][h], P.t[%d].data + ((inside ? (long)id : 0) * P.t[%d].stride + first) * "
        "SIZE_%s, "
        "count, WIDE(%d));\n"
        "        if (!inside)\n            UNROLL for (int w = 0; w < %d; w++) in.i%d[b][h][w] = 0xffffffff;\n    }\n",
        input->id_value, input->operand, type, elements, i, input->operand, input->operand, type, input->operand,
        input_bytes(e, input) / 4, i);
}

/* The same by asynchronous copies into the thread's own 16-byte slots, for inputs whose rows are aligned. */
static void emit_issue(struct emitter *e, struct text *out, int i, int *slot)
{
    const struct tile_input *input = &e->plan->input[i];
    const char *type = coda_dtype_name(e->graph->operand[input->operand].dtype);
    int bytes = input_bytes(e, input), size = (int)coda_dtype_size(e->graph->operand[input->operand].dtype);
    open_element(e, out, input);
    text_add(
        out,
        "        const char *from = P.t[%d].data + (count > 0 ? ((long)row * P.t[%d].stride + first) * SIZE_%s : 0);\n"
        "        const int bytes = (count < 0 ? 0 : count < %d ? count : %d) * %d;\n",
        input->operand, input->operand, type, input_elements(input), input_elements(input), size);
    for (int part = 0; part * 16 < bytes; part++) {
        int piece = bytes < 16 ? bytes : 16;
        if (bytes > 16)
            text_add(out,
                     "        copy_%d(slots + SLOT(%d + (b * 2 + h) * %d + %d), from + (bytes > %d ? %d : 0), bytes < "
                     "%d ? 0 : "
                     "bytes - %d < 16 ? bytes - %d : 16);\n",
                     piece, *slot, (bytes + 15) / 16, part, 16 * part, 16 * part, 16 * part, 16 * part, 16 * part);
        else
            text_add(out, "        copy_%d(slots + SLOT(%d + b * 2 + h), from, bytes);\n", piece, *slot);
    }
    text_add(out, "    }\n");
    *slot += e->plan->blocks * 2 * ((bytes + 15) / 16);
}

static void emit_take(struct emitter *e, struct text *out, int i, int *slot)
{
    const struct tile_input *input = &e->plan->input[i];
    int bytes = input_bytes(e, input), pieces = (bytes + 15) / 16;
    bool other_blocks = input->distance && pairing_of(input->distance) == PAIRING_BLOCKS;
    text_add(out, "    UNROLL for (int b = 0; b < BLOCKS; b++)\n    UNROLL for (int h = 0; h < 2; h++) {\n");
    if (other_blocks)
        text_add(out, "        if (b & %d)\n            continue;\n", block_distance(e->plan, input->distance));
    for (int part = 0; part < pieces; part++) {
        if (bytes >= 16)
            text_add(out, "        shared_load_16(in.i%d[b][h] + %d, slots + SLOT(%d + (b * 2 + h) * %d + %d));\n", i,
                     4 * part, *slot, pieces, part);
        else
            text_add(out,
                     "        u32 w[4];\n        shared_load_16(w, slots + SLOT(%d + b * 2 + h));\n"
                     "        UNROLL for (int k = 0; k < %d; k++) in.i%d[b][h][k] = w[k];\n",
                     *slot, bytes / 4, i);
    }
    text_add(out, "    }\n");
    *slot += e->plan->blocks * 2 * pieces;
}

void emit_inputs(struct emitter *e, struct text *out)
{
    const struct plan *plan = e->plan;
    struct text fetch = {0}, issue = {0}, take = {0};
    int issued = 0, taken = 0, read = 0;
    text_add(out, "struct Inputs {\n");
    for (int i = 0; i < plan->input_count; i++) {
        const struct tile_input *input = &plan->input[i];
        if (!is_read(e, input))
            continue;
        text_add(out, "    u32 i%d[BLOCKS][2][%d]; /* %s */\n", i, input_bytes(e, input) / 4,
                 e->graph->operand[input->operand].name);
        emit_fetch(e, &fetch, i);
        emit_issue(e, &issue, i, &issued);
        emit_take(e, &take, i, &taken);
        read++;
    }
    text_add(out, "    u32 none;\n};\n#define INPUTS %d\n#define INPUT_SLOTS %d\n", read, issued);
    text_add(out, "INLINE void coda_fetch(const Params &P, const Place &at, const int c, Inputs &in)\n{\n%s}\n",
             text_of(&fetch));
    text_add(out,
             "INLINE void coda_issue(const Params &P, const Place &at, const int c, const u32 slots)\n{\n%s}\n"
             "INLINE void coda_take(Inputs &in, const u32 slots)\n{\n%s}\n\n",
             text_of(&issue), text_of(&take));
    e->input_slots = issued;
    out->failed |= fetch.failed || issue.failed || take.failed;
    text_free(&fetch);
    text_free(&issue);
    text_free(&take);
}
