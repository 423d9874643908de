/* Values with one axis: the prologue of rows, runs of rows when a band is finished, programs of columns. */
#include "cuda/emit.h"

#include <stdio.h>

static enum space space_of_out(const struct emitter *e, int operand)
{
    return e->plan->form->space[e->graph->operand[operand].node];
}

static bool is_out(const struct emitter *e, int operand)
{
    return e->graph->operand[operand].role != CODA_IN;
}

static bool is_row_out(const struct emitter *e, int operand)
{
    return is_out(e, operand) && space_of_out(e, operand) == SPACE_ROW &&
           e->graph->node[e->graph->operand[operand].node].op != OP_PICK;
}

/* One element of row m, where its id is a column. */
static void patch_out(struct emitter *e, struct text *out, int operand, const char *value)
{
    char index[64];
    snprintf(index, sizeof index, "(long)m * P.t[%d].stride + column%d", operand, operand);
    text_add(
        out,
        "        const int column%d = load_id(P.t[%d].data, m);\n        if ((u32)column%d < (u32)P.t[%d].columns)\n",
        operand, e->graph->operand[operand].ids, operand, operand);
    emit_store(e, out, "            ", operand, index, value);
}

void emit_rows(struct emitter *e, struct text *out)
{
    const struct plan *plan = e->plan;
    struct place at = place_at(AT_ROW, "", "", "");
    struct text stores = {0};
    char name[NAME_TEXT];
    emit_new_group(e);
    for (int i = 0; i < plan->value_count; i++) {
        const struct row_value *value = &plan->value[i];
        if (value->id) {
            text_add(&stores, "    values[%d * VALUE_ROWS] = __int_as_float(load_id(P.t[%d].data, m));\n", i,
                     e->graph->node[value->node].index);
            continue;
        }
        emit_value(e, value->node, &at, name);
        text_add(&stores, "    values[%d * VALUE_ROWS] = %s;\n", i, name);
    }
    text_add(&stores, "    if (store) {\n");
    for (int i = 0; i < e->graph->operand_count; i++)
        if (is_row_out(e, i)) {
            emit_value(e, e->graph->operand[i].node, &at, name);
            if (e->graph->operand[i].role == CODA_PATCH)
                patch_out(e, &stores, i, name);
            else
                emit_store(e, &stores, "        ", i, "m", name);
        }
    text_add(
        out,
        "/* Row m of the values that the tile needs, and of outs that hold one value a row. */\n"
        "INLINE void coda_rows(const Params &P, const int m, float *values, const bool store)\n{\n%s%s%s    }\n}\n\n",
        text_of(&e->group), text_of(&e->element), text_of(&stores));
    if (stores.failed)
        out->failed = true;
    text_free(&stores);
    emit_new_group(e);
}

/* ---------------------------------------------------------------- runs of rows */

static void finish_out(struct emitter *e, struct text *out, int operand)
{
    const struct plan *plan = e->plan;
    int node = e->graph->operand[operand].node, number = 0;
    const struct node *n = &e->graph->node[node];
    struct place at = place_at(AT_FINISH, "", "", "n");
    char name[NAME_TEXT], index[96];
    int run = plan_extent(plan, &n->shape.dim[0].run);
    emit_new_row(e);
    emit_value(e, node, &at, name);
    text_add(out,
             "    for (int j = thread; j < SCRATCH_COLUMNS && at.origin + j < COLUMNS; j += threads)\n"
             "        for (int i = 0; i < %d && at.band + i * %d < ROWS; i++) {\n"
             "        const int n = at.origin + j, run = at.band / %d + i;\n",
             BAND_ROWS / run, run, run);
    for (int i = 0; i < plan->reduction_count; i++) {
        const struct reduction *reduction = &plan->reduction[i];
        if (!reduction->over_rows)
            continue;
        if (reduction->run == run) {
            const char *combine = combine_text(e->graph->node[reduction->node].op);
            text_add(out, "        float total%d = SCRATCH(%d, i * %d, j);\n", reduction->node, number, run / 16);
            text_add(out,
                     "        UNROLL for (int w = 1; w < %d; w++) total%d = %s(total%d, SCRATCH(%d, i * %d + w, j));\n",
                     run / 16, reduction->node, combine, reduction->node, number, run / 16);
        }
        number++;
    }
    snprintf(index, sizeof index, "(long)run * P.t[%d].stride + n", operand);
    text_append(out, text_of(&e->element));
    emit_store(e, out, "        ", operand, index, name);
    text_add(out, "        (void)n, (void)run;\n    }\n");
}

void emit_finish(struct emitter *e, struct text *out)
{
    struct text body = {0};
    emit_new_group(e);
    for (int i = 0; i < e->graph->operand_count; i++)
        if (is_out(e, i) && space_of_out(e, i) == SPACE_COLUMN_RUNS)
            finish_out(e, &body, i);
    text_add(
        out,
        "/* Outs with one value a run of rows and column, from the four warps' parts in shared memory. */\n"
        "INLINE void coda_finish(const Params &P, const Place &at, const int thread, const int threads)\n{\n%s%s}\n\n",
        text_of(&e->group), text_of(&body));
    out->failed |= body.failed;
    text_free(&body);
    emit_new_group(e);
}

/* ---------------------------------------------------------------- programs of columns */

void emit_totals(struct emitter *e, struct text *out)
{
    struct place at = place_at(AT_TOTALS, "", "", "n");
    struct text stores = {0}, partials = {0}, joins = {0};
    char name[NAME_TEXT];
    emit_new_group(e);
    for (int i = 0; i < e->graph->operand_count; i++)
        if (is_out(e, i)) {
            emit_value(e, e->graph->operand[i].node, &at, name);
            emit_store(e, &stores, "    ", i, "n", name);
        }
    for (int i = 0; i < e->total_count; i++) {
        const struct node *node = &e->graph->node[e->total[i]];
        int operand = e->graph->node[node->input[0]].index;
        const char *type = coda_dtype_name(e->graph->operand[operand].dtype), *combine = combine_text(node->op);
        if (node->op == OP_LOGSUMEXP)
            emit_fail(e, "`logsumexp` over rows has no CUDA path; reduce along the columns");
        text_add(&partials,
                 "    part[%d] = %s;\n    for (int r = slice; r < P.t[%d].rows; r += slices)\n        part[%d] = "
                 "%s(part[%d], %sload_%s(P.t[%d].data, (long)r * P.t[%d].stride + n)));\n",
                 i, identity_text(node->op), operand, i, combine, i, node->op == OP_ABSMAX ? "coda_abs(" : "(", type,
                 operand, operand);
        text_add(&joins, "    to[%d] = %s(to[%d], from[%d]);\n", i, combine, i, i);
    }
    text_add(
        out,
        "enum { TOTALS = %d };\n"
        "/* A slice of the rows of column n. */\n"
        "INLINE void coda_partial(const Params &P, const int n, const int slice, const int slices, float *part)\n{\n"
        "%s}\n"
        "INLINE void coda_join(float *to, const float *from)\n{\n%s}\n"
        "INLINE void coda_column(const Params &P, const int n, const float *total)\n{\n%s%s%s}\n\n",
        e->total_count, text_of(&partials), text_of(&joins), text_of(&e->group), text_of(&e->element),
        text_of(&stores));
    out->failed |= stores.failed || partials.failed || joins.failed;
    text_free(&stores);
    text_free(&partials);
    text_free(&joins);
}
