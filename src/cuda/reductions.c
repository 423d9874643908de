/* Reductions as text: whole ones of operands in memory, and runs that registers or totals hold. */
#include "cuda/emit.h"

#include <stdio.h>
#include <string.h>

const char *combine_text(enum op op)
{
    return op == OP_SUM ? "coda_add" : "coda_max";
}

const char *identity_text(enum op op)
{
    return op == OP_SUM || op == OP_ABSMAX ? "0.0f" : "-INFINITE";
}

static void emit_total(struct emitter *e, int index, const struct level *level, char *name)
{
    if (e->total_count == (int)(sizeof e->total / sizeof *e->total)) {
        emit_fail(e, "more than %d reductions over columns in one CUDA kernel", e->total_count);
        return;
    }
    emit_define(e, level, index, name, "total[%d]", e->total_count);
    e->total[e->total_count++] = index;
}

void emit_whole(struct emitter *e, int index, const struct place *at, const struct level *level, char *name)
{
    const struct node *node = &e->graph->node[index];
    const struct node *in = &e->graph->node[node->input[0]];
    const char *type = coda_dtype_name(e->graph->operand[in->index].dtype);
    const char *kind = node->op == OP_SUM          ? "sum"
                       : node->op == OP_REDUCE_MAX ? "max"
                       : node->op == OP_ABSMAX     ? "absmax"
                                                   : "logsumexp";
    int position = in->shape.dim[0].axis == node->axis ? 0 : 1;
    char line[160];
    const char *count = in->shape.rank == 2 ? (position ? "columns" : "rows") : "rows";
    if (in->shape.rank == 1) {
        emit_define(e, level, index, name, "whole_%s_%s(P.t[%d].data, P.t[%d].rows, 1)", kind, type, in->index,
                    in->index);
    } else if (position == 1) {
        /* One value a row of the operand, which is a row or a column of the tile. */
        bool is_long = at->region == AT_ROW && !strcmp(type, "f32");
        int ahead = e->plan->form->column_axis < 0 ? 8 : 4; /* of a tile's prologue, rows are shorter */
        if (at->region == AT_ROW)
            snprintf(line, sizeof line, "(long)m");
        else if (at->region == AT_FINISH || at->region == AT_TOTALS)
            snprintf(line, sizeof line, "(long)n");
        else
            snprintf(line, sizeof line, "CLAMP(%s + %s, P.t[%d].rows)", at->column, at->x, in->index);
        if (is_long)
            emit_define(e, level, index, name, "long_%s<%d>(P.t[%d].data + %s * P.t[%d].stride * 4, P.t[%d].columns)",
                        kind, ahead, in->index, line, in->index, in->index);
        else
            emit_define(e, level, index, name,
                        "whole_%s_%s(P.t[%d].data + %s * P.t[%d].stride * SIZE_%s, P.t[%d].%s, 1)", kind, type,
                        in->index, line, in->index, type, in->index, count);
    } else if (at->region == AT_TOTALS) {
        emit_total(e, index, level, name);
    } else {
        emit_define(
            e, level, index, name,
            "whole_%s_%s(P.t[%d].data + CLAMP(%s + %s, P.t[%d].columns) * SIZE_%s, P.t[%d].rows, P.t[%d].stride)", kind,
            type, in->index, at->region == AT_FINISH ? "n" : at->column, at->region == AT_FINISH ? "0" : at->x,
            in->index, type, in->index, in->index);
    }
}

void emit_run(struct emitter *e, int index, const struct place *at, const struct level *level, char *name)
{
    const struct reduction *reduction = plan_reduction(e->plan, index);
    int run = reduction->run;
    if (reduction->over_rows) {
        if (at->region != AT_FINISH)
            emit_fail(e, "runs of rows are read back by the tile");
        else
            emit_define(e, level, index, name, "total%d", index);
    } else if (at->region == AT_RUN) {
        emit_define(e, level, index, name, "s%d[%s][h]", index, at->b);
    } else if (run >= BLOCK_COLUMNS) {
        emit_define(e, level, index, name, "s%d[(%s) / %d][h]", index, at->b, run / BLOCK_COLUMNS);
    } else if (run >= 8) {
        emit_define(e, level, index, name, "s%d[%s][h]", index, at->b);
    } else {
        emit_define(e, level, index, name, "s%d[(%s) * %d + (%s) / %d][h]", index, at->b, 8 / run, at->x, run);
    }
}
