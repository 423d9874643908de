#include "cuda/pairs.h"

#include <stdio.h>
#include <string.h>

enum { ROOM = 2 * PLACE_TEXT + 32, PARTNER_TEXT = 64 }; /* places check their own length */

enum pairing pairing_of(int distance)
{
    return distance >= BLOCK_COLUMNS ? PAIRING_BLOCKS : distance >= 8 ? PAIRING_LANES : PAIRING_EIGHT;
}

int half_elements(int distance)
{
    return pairing_of(distance) == PAIRING_EIGHT ? 4 : 8;
}

void half_column(int distance, const char *column, char *text, int size)
{
    if (pairing_of(distance) == PAIRING_EIGHT)
        snprintf(text, (size_t)size, "((%s) / 2)", column);
    else
        snprintf(text, (size_t)size, "HALF_COLUMN(%s, %d)", column, distance);
}

int block_distance(const struct plan *plan, int distance)
{
    return distance / BLOCK_COLUMNS / plan->step;
}

static int distance_of(const struct plan *plan, const struct node *node)
{
    if (node->op == OP_FIRST || node->op == OP_SECOND || node->op == OP_JOIN_HALVES)
        return plan_extent(plan, &node->run);
    return 1;
}

/* A place of all columns in the block that `operator` and `bit` make of another. */
static struct place full_at(const struct place *at, const char *operator, int bit)
{
    char b[ROOM], column[ROOM + 16];
    if (*operator)
        snprintf(b, sizeof b, "(%s %s%d)", at->b, operator, bit);
    else
        snprintf(b, sizeof b, "%s", at->b);
    snprintf(column, sizeof column, "COLUMN(%s)", b);
    return place_at(AT_FULL, b, at->x, strcmp(b, "b") ? column : "column");
}

static struct place half_at(const struct place *full, int distance, const char *x)
{
    char column[ROOM];
    half_column(distance, full->column, column, sizeof column);
    struct place half = place_at(AT_HALF, full->b, x, column);
    half.distance = distance;
    return half;
}

/* The value of another lane; every lane takes part. */
static void exchange(struct emitter *e, int index, const char *own, int distance, char *partner)
{
    snprintf(partner, PARTNER_TEXT, "p%d_%s", index, own);
    text_add(&e->element, "        const float %s = __shfl_xor_sync(ALL_LANES, %s, %d);\n", partner, own, distance / 8);
}

/* ---------------------------------------------------------------- splitting and joining */

static void split(struct emitter *e, int index, const struct place *at, char *text)
{
    const struct node *node = &e->graph->node[index];
    int distance = distance_of(e->plan, node);
    bool second = node->op == OP_SECOND || node->op == OP_ODD;
    struct place wide = full_at(at, "", 0);
    char own[NAME_TEXT], partner[PARTNER_TEXT], x[ROOM];
    switch (pairing_of(distance)) {
    case PAIRING_BLOCKS:
        wide = full_at(at, second ? "| " : "& ~", block_distance(e->plan, distance));
        emit_value(e, node->input[0], &wide, own);
        snprintf(text, EXPRESSION_TEXT, "%s", own);
        return;
    case PAIRING_LANES:
        emit_value(e, node->input[0], &wide, own);
        exchange(e, index, own, distance, partner);
        snprintf(text, EXPRESSION_TEXT, "(at.quad & %d ? %s : %s)", distance / 8, second ? own : partner,
                 second ? partner : own);
        return;
    default:
        snprintf(x, sizeof x, "HALF_X(%s, %d, %d)", at->x, distance, second ? distance : 0);
        wide = place_at(AT_FULL, wide.b, x, wide.column);
        emit_value(e, node->input[0], &wide, own);
        snprintf(text, EXPRESSION_TEXT, "%s", own);
    }
}

static void join(struct emitter *e, int index, const struct place *at, char *text)
{
    const struct node *node = &e->graph->node[index];
    int distance = distance_of(e->plan, node);
    struct place full = full_at(at, "", 0), half;
    char a[NAME_TEXT], b[NAME_TEXT], x[ROOM], side[ROOM];
    switch (pairing_of(distance)) {
    case PAIRING_BLOCKS:
        full = full_at(at, "& ~", block_distance(e->plan, distance));
        half = half_at(&full, distance, at->x);
        snprintf(side, sizeof side, "%s & %d", at->b, block_distance(e->plan, distance));
        break;
    case PAIRING_LANES:
        half = half_at(&full, distance, at->x);
        snprintf(side, sizeof side, "at.quad & %d", distance / 8);
        break;
    default:
        snprintf(x, sizeof x, "FULL_X(%s, %d)", at->x, distance);
        half = half_at(&full, distance, x);
        snprintf(side, sizeof side, "%s & %d", at->x, distance);
    }
    emit_value(e, node->input[0], &half, a);
    emit_value(e, node->input[1], &half, b);
    snprintf(text, EXPRESSION_TEXT, "(%s ? %s : %s)", side, b, a);
}

/* ---------------------------------------------------------------- rotations */

static int head_of(const struct emitter *e, int node)
{
    return (int)dim_size(&e->graph->node[e->graph->node[node].input[1]].shape.dim[1], e->plan->fixed);
}

int rotation_distance(const struct emitter *e, int node)
{
    return e->graph->node[node].rope_pairs ? 1 : head_of(e, node) / 2;
}

int rotation_angles(const struct emitter *e, int node)
{
    int half = head_of(e, node) / 2, most = e->graph->node[node].rope_pairs ? 4 : 8;
    return half < most ? half : most;
}

void rotation_base(const struct emitter *e, int node, const char *column, char *text, int size)
{
    int head = head_of(e, node), half = head / 2;
    if (e->graph->node[node].rope_pairs && head >= 8)
        snprintf(text, (size_t)size, "((%s & %d) / 2)", column, head - 1);
    else if (!e->graph->node[node].rope_pairs && half >= 8)
        snprintf(text, (size_t)size, "(%s & %d)", column, half - 1);
    else
        snprintf(text, (size_t)size, "0");
}

/* The arrays that hold this row's cosines and sines, "cos" being written as %s: those that were loaded ahead at the
 * place where text usually stands, else of their own. */
static void angle_arrays(struct emitter *e, int index, const struct place *at, char *text, int size)
{
    const struct node *node = &e->graph->node[index];
    int table = e->graph->node[node->input[1]].index, distance = rotation_distance(e, index);
    int angles = rotation_angles(e, index);
    char base[ROOM];
    if (plan_loads_ahead(e->plan) && !strcmp(at->b, "b") && !strcmp(at->column, "column")) {
        if (pairing_of(distance) == PAIRING_BLOCKS)
            snprintf(text, (size_t)size, "ahead.%%s%d[b & ~%d][h]", index, block_distance(e->plan, distance));
        else
            snprintf(text, (size_t)size, "ahead.%%s%d[b][h]", index);
        return;
    }
    struct place key = place_at(AT_FULL, at->b, "", at->column);
    int place = emit_place(e, &key);
    snprintf(text, (size_t)size, "%%s%d_%d", index, place);
    if (!emit_first_in_rows(e, index, place))
        return;
    rotation_base(e, index, at->column, base, sizeof base);
    text_add(&e->row,
             "        float cos%d_%d[%d], sin%d_%d[%d];\n"
             "        angles_%s<%d>(cos%d_%d, sin%d_%d, P.t[%d], VALUE_ID(%d), %s, %d, WIDE(%d));\n",
             index, place, angles, index, place, angles, coda_dtype_name(e->graph->operand[table].dtype), angles, index,
             place, index, place, table, plan_value(e->plan, node->input[2], true), base, head_of(e, index) / 2, table);
}

static void rotate(struct emitter *e, int index, const struct place *at, char *text)
{
    const struct node *node = &e->graph->node[index];
    int half = head_of(e, index) / 2, distance = rotation_distance(e, index);
    char arrays[ROOM], cosines[ROOM + 8], sines[ROOM + 8];
    char own[NAME_TEXT], partner[PARTNER_TEXT], x[ROOM], side[ROOM], limit[48] = "COLUMNS";
    struct place other = full_at(at, "", 0);
    emit_value(e, node->input[0], at, own);
    switch (pairing_of(distance)) {
    case PAIRING_BLOCKS:
        other = full_at(at, "^ ", block_distance(e->plan, distance));
        emit_value(e, node->input[0], &other, partner);
        snprintf(side, sizeof side, "%s & %d", at->b, block_distance(e->plan, distance));
        break;
    case PAIRING_LANES:
        exchange(e, index, own, distance, partner);
        snprintf(side, sizeof side, "at.quad & %d", distance / 8);
        break;
    default:
        snprintf(x, sizeof x, "(%s ^ %d)", at->x, distance);
        other = place_at(AT_FULL, at->b, x, at->column);
        emit_value(e, node->input[0], &other, partner);
        snprintf(side, sizeof side, "%s & %d", at->x, distance);
    }
    angle_arrays(e, index, at, arrays, sizeof arrays);
    snprintf(cosines, sizeof cosines, arrays, "cos");
    snprintf(sines, sizeof sines, arrays, "sin");
    if (node->rope_pairs)
        snprintf(x, sizeof x, "(%s) / 2 & %d", at->x, half < 4 ? half - 1 : 3);
    else
        snprintf(x, sizeof x, "(%s) & %d", at->x, half < 8 ? half - 1 : 7);
    if (node->rope_cols.form != DIM_ABSENT && node->rope_cols.axis >= 0)
        snprintf(limit, sizeof limit, "P.size[%d]", node->rope_cols.axis);
    else if (node->rope_cols.form != DIM_ABSENT)
        snprintf(limit, sizeof limit, "%d", (int)node->rope_cols.constant);
    snprintf(text, EXPRESSION_TEXT, "(%s + %s < %s ? rotate(%s, %s, %s[%s], %s[%s], %s(%s)) : %s)", at->column, at->x,
             limit, own, partner, cosines, x, sines, x, node->rope_inverse ? "" : "!", side, own);
}

void pair_expression(struct emitter *e, int node, const struct place *at, char text[EXPRESSION_TEXT])
{
    text[0] = '\0';
    switch (e->graph->node[node].op) {
    case OP_JOIN:
    case OP_JOIN_HALVES:
        join(e, node, at, text);
        return;
    case OP_ROPE:
        rotate(e, node, at, text);
        return;
    default:
        split(e, node, at, text);
    }
}
