/* What a tile reads: packed words in registers, from memory at once or by way of shared memory. */
#include "cuda/pairs.h"

#include <stdio.h>

static int input_elements(const struct tile_input *input)
{
    return input->distance ? half_elements(input->distance) : 8;
}

static int input_bytes(const struct emitter *e, const struct tile_input *input)
{
    return input_elements(input) * (int)coda_dtype_size(e->graph->operand[input->operand].dtype);
}

static bool is_read(const struct emitter *e, const struct tile_input *input)
{
    return input->node >= 0 || !plan_adds(e->plan, input->operand);
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
    text_add(out, "        const int column = COLUMN(b), row = at.row + ROW_STEP * h;\n");
    if (input->distance)
        text_add(out, "        const int first = %s, count = COUNT(row, COLUMNS / 2 - first);\n", column);
    else
        text_add(out, "        const int first = column, count = COUNT(row, COLUMNS - first);\n");
}

/* 32 bytes a lane, which those beside each other may bring together. */
static bool is_paired(const struct emitter *e, const struct tile_input *input)
{
    return !input->distance && input_bytes(e, input) == 32;
}

static void emit_fetch(struct emitter *e, struct text *out, int i)
{
    const struct tile_input *input = &e->plan->input[i];
    const char *type = coda_dtype_name(e->graph->operand[input->operand].dtype);
    int elements = input_elements(input);
    open_element(e, out, input);
    const char *fetch = is_paired(e, input) ? "FETCH" : "fetch";
    if (input->id_value < 0) {
        text_add(out,
                 "        %s_%sx%d(in.i%d[b][h], P.t[%d].data + ELEMENT(%d, row, first) * SIZE_%s, count, "
                 "WIDE(%d));\n    }\n",
                 fetch, type, elements, i, input->operand, input->operand, type, input->operand);
        return;
    }
    text_add(out,
             "        const int id = VALUE_ID(%d);\n"
             "        const bool inside = (u32)id < (u32)P.t[%d].rows; /* NaN where there is no such row */\n"
             "        %s_%sx%d(in.i%d[b][h], P.t[%d].data + ((inside ? (long)id : 0) * P.t[%d].stride + first) * "
             "SIZE_%s, "
             "count, WIDE(%d));\n"
             "        if (!inside)\n            UNROLL for (int w = 0; w < %d; w++) in.i%d[b][h][w] = 0xffffffff;\n   "
             " }\n",
             input->id_value, input->operand, fetch, type, elements, i, input->operand, input->operand, type,
             input->operand, input_bytes(e, input) / 4, i);
}

/* The statement that loads eight columns of vector i from `column` on into an array; `prefix`, i and `suffix` are its name. */
void emit_column_load(struct emitter *e, struct text *text, int i, const char *prefix, const char *suffix,
                      const char *column)
{
    const struct column_input *input = &e->plan->column[i];
    const struct operand *operand = &e->graph->operand[input->operand];
    const char *type = coda_dtype_name(operand->dtype);
    int64_t size = input->repeats ? dim_size(&operand->shape.dim[0], e->plan->fixed) : 0;
    if (size > 0 && size % 8 == 0 && size < 1 << 20)
        text_add(text, "        fetch_column_%sx8(%s%d%s, P.t[%d].data + (u32)(%s) %% %d * SIZE_%s, 8, WIDE(%d));\n",
                 type, prefix, i, suffix, input->operand, column, (int)size, type, input->operand);
    else if (input->repeats)
        text_add(text, "        repeat_%s(%s%d%s, P.t[%d].data, %s, P.t[%d].rows, WIDE(%d));\n", type, prefix, i,
                 suffix, input->operand, column, input->operand, input->operand);
    else
        text_add(text,
                 "        fetch_column_%sx8(%s%d%s, P.t[%d].data + (long)(%s) * SIZE_%s, FAST ? 8 : COLUMNS - (%s), "
                 "WIDE(%d));\n",
                 type, prefix, i, suffix, input->operand, column, type, column, input->operand);
}

/* Column vectors and angles of rotations: few enough to be loaded a group ahead into registers. */
static void emit_column(struct emitter *e, struct text *members, struct text *loads, int i)
{
    const struct column_input *column = &e->plan->column[i];
    coda_dtype dtype = e->graph->operand[column->operand].dtype;
    text_add(members, "    u32 c%d[BLOCKS][%d]; /* %s */\n", i, (int)coda_dtype_size(dtype) * 2,
             e->graph->operand[column->operand].name);
    text_add(loads, "    UNROLL for (int b = 0; b < BLOCKS; b++)\n");
    emit_column_load(e, loads, i, "ahead.c", "[b]", "COLUMN(b)");
}

static void emit_angles(struct emitter *e, struct text *members, struct text *loads, int index)
{
    const struct node *node = &e->graph->node[index];
    int table = e->graph->node[node->input[1]].index, angles = rotation_angles(e, index);
    int distance = rotation_distance(e, index);
    char base[128];
    rotation_base(e, index, "COLUMN(b)", base, sizeof base);
    text_add(members, "    float cos%d[BLOCKS][2][%d], sin%d[BLOCKS][2][%d]; /* of row pos[m] of %s */\n", index,
             angles, index, angles, e->graph->operand[table].name);
    text_add(loads, "    UNROLL for (int b = 0; b < BLOCKS; b++)\n    UNROLL for (int h = 0; h < 2; h++)\n");
    if (pairing_of(distance) == PAIRING_BLOCKS)
        text_add(loads, "        if (!(b & %d))\n", block_distance(e->plan, distance));
    text_add(loads,
             "        angles_%s<%d>(ahead.cos%d[b][h], ahead.sin%d[b][h], P.t[%d], VALUE_ID(%d), %s, %d, "
             "WIDE(%d));\n",
             coda_dtype_name(e->graph->operand[table].dtype), angles, index, index, table,
             plan_value(e->plan, node->input[2], true), base,
             (int)dim_size(&e->graph->node[node->input[1]].shape.dim[1], e->plan->fixed) / 2, table);
}

/* Copies to a slot of shared memory and loads from it: pieces of 16 bytes a lane (or 8, or 4), those of a warp side by side. */
static void emit_copy(struct emitter *e, struct text *copy, struct text *take, int i, int *offset)
{
    const struct tile_input *input = &e->plan->input[i];
    const char *type = coda_dtype_name(e->graph->operand[input->operand].dtype);
    int bytes = input_bytes(e, input), piece = bytes < 16 ? bytes : 16;
    bool other_blocks = input->distance && pairing_of(input->distance) == PAIRING_BLOCKS;
    open_element(e, copy, input);
    text_add(copy,
             "        const char *from = P.t[%d].data + ELEMENT(%d, row, first) * SIZE_%s;\n        "
             "(void)count;\n",
             input->operand, input->operand, type);
    text_add(take, "    UNROLL for (int b = 0; b < BLOCKS; b++)\n    UNROLL for (int h = 0; h < 2; h++) {\n");
    if (other_blocks)
        text_add(take, "        if (b & %d)\n            continue;\n", block_distance(e->plan, input->distance));
    for (int at = 0; at < bytes; at += piece) {
        text_add(copy, "        copy_%d(slot + (%d + (2 * b + h) * %d) * 32 + at.lane * %d, from + %d, %d);\n", piece,
                 *offset + at, bytes, piece, at, piece);
        text_add(take, "        shared_load_%d(in.i%d[b][h] + %d, slot + (%d + (2 * b + h) * %d) * 32 + lane * %d);\n",
                 piece, i, at / 4, *offset + at, bytes, piece);
    }
    text_add(copy, "    }\n");
    text_add(take, "    }\n");
    *offset += bytes * 2 * e->plan->blocks;
}

int plan_copy_bytes(const struct plan *plan)
{
    struct emitter e = {.plan = plan, .graph = plan->graph};
    int bytes = 0;
    for (int i = 0; i < plan->input_count; i++)
        if (is_read(&e, &plan->input[i]))
            bytes += input_bytes(&e, &plan->input[i]) * 2 * plan->blocks;
    return bytes;
}

/* Makes the compiler keep words as they were loaded: unpacked ahead of their use, they would be waited for. */
static void emit_hold(struct text *out, const char *member, int words)
{
    text_add(out, "    UNROLL for (int b = 0; b < BLOCKS; b++)\n    UNROLL for (int i = 0; i < %d; i++) HOLD(%s[i]);\n",
             words, member);
}

static void emit_ahead(struct emitter *e, struct text *out)
{
    struct text members = {0}, loads = {0}, angles = {0}, holds = {0};
    int rotations = 0;
    char member[48];
    for (int i = 0; i < e->plan->column_count && plan_loads_ahead(e->plan); i++) {
        snprintf(member, sizeof member, "ahead.c%d[b]", i);
        emit_hold(&holds, member, (int)coda_dtype_size(e->graph->operand[e->plan->column[i].operand].dtype) * 2);
    }
    for (int i = 0; i < e->plan->input_count; i++)
        if (is_read(e, &e->plan->input[i])) {
            snprintf(member, sizeof member, "in.i%d[b][0]", i);
            emit_hold(&holds, member, input_bytes(e, &e->plan->input[i]) / 4);
            snprintf(member, sizeof member, "in.i%d[b][1]", i);
            emit_hold(&holds, member, input_bytes(e, &e->plan->input[i]) / 4);
        }
    for (int i = 0; i < e->plan->column_count && plan_loads_ahead(e->plan); i++)
        emit_column(e, &members, &loads, i);
    for (int i = 0; i < e->graph->node_count; i++)
        if (plan_loads_ahead(e->plan) && e->plan->form->used[i] && e->graph->node[i].op == OP_ROPE) {
            emit_angles(e, &members, &angles, i);
            rotations++;
        }
    text_add(out,
             "struct Ahead {\n%s    u32 none;\n};\n"
             "template <bool FAST> INLINE void coda_ahead(const Params &P, const Place &at, const int c, Ahead "
             "&ahead)\n{\n%s}\n"
             "template <bool FAST>\n"
             "INLINE void coda_angles(const Params &P, const Place &at, const int c, Ahead &ahead)\n{\n%s}\n",
             text_of(&members), text_of(&loads), text_of(&angles));
    text_add(out, "#define ROTATIONS %d\n", rotations);
    text_add(out, "INLINE void coda_hold(Inputs &in, Ahead &ahead)\n{\n%s}\n", text_of(&holds));
    out->failed |= members.failed || loads.failed || holds.failed || angles.failed;
    text_free(&holds);
    text_free(&angles);
    text_free(&members);
    text_free(&loads);
}

void emit_inputs(struct emitter *e, struct text *out)
{
    const struct plan *plan = e->plan;
    struct text fetch = {0}, copy = {0}, take = {0}, exchange = {0};
    int bytes = 0;
    text_add(out, "struct Inputs {\n");
    for (int i = 0; i < plan->input_count; i++) {
        const struct tile_input *input = &plan->input[i];
        if (!is_read(e, input))
            continue;
        text_add(out, "    u32 i%d[BLOCKS][2][%d]; /* %s */\n", i, input_bytes(e, input) / 4,
                 e->graph->operand[input->operand].name);
        emit_fetch(e, &fetch, i);
        if (is_paired(e, input))
            text_add(&exchange,
                     "    UNROLL for (int b = 0; b < BLOCKS; b++)\n    UNROLL for (int h = 0; h < 2; h++)\n"
                     "        exchange_halves(in.i%d[b][h], odd);\n",
                     i);
        if (input->id_value < 0)
            emit_copy(e, &copy, &take, i, &bytes);
    }
    text_add(out,
             "    u32 none;\n};\n"
             "template <bool FAST> INLINE void coda_fetch(const Params &P, const Place &at, const "
             "int c, Inputs "
             "&in)\n{\n%s}\n",
             text_of(&fetch));
    text_add(out,
             "#define COPY_BYTES %d /* a lane */\n"
             "INLINE void coda_copy(const Params &P, const Place &at, const int c, const u32 slot)\n{\n"
             "    const bool FAST = true;\n%s}\n"
             "INLINE void coda_take(Inputs &in, const u32 slot, const int lane)\n{\n%s}\n",
             bytes, text_of(&copy), text_of(&take));
    text_add(out, "INLINE void coda_exchange(Inputs &in, const bool odd)\n{\n%s}\n", text_of(&exchange));
    out->failed |= fetch.failed || copy.failed || take.failed || exchange.failed;
    text_free(&exchange);
    text_free(&copy);
    text_free(&take);
    text_free(&fetch);
    emit_ahead(e, out);
}
