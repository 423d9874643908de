/* The epilogue of one group of columns: passes over its elements, one a level of reductions. */
#include "cuda/pairs.h"

#include <stdio.h>

static enum op op_of(const struct emitter *e, int node)
{
    return e->graph->node[node].op;
}

static int out_level(const struct emitter *e, int operand)
{
    return e->plan->level[e->graph->operand[operand].node];
}

static enum space out_space(const struct emitter *e, int operand)
{
    const struct operand *out = &e->graph->operand[operand];
    return out->role == CODA_IN ? SPACE_NONE : e->plan->form->space[out->node];
}

/* What a tile's out is made of: a cast to its own type is what storing does. */
static int out_value(const struct emitter *e, int operand)
{
    const struct operand *out = &e->graph->operand[operand];
    const struct node *node = &e->graph->node[out->node];
    return node->op == OP_CAST && node->dtype == out->dtype && plan_adds(e->plan, operand) ? node->input[0] : out->node;
}

/* Which accumulator a bf16 out of the tile is; -1: none. Where the epilogue has it rounded, its words are stored as they are. */
static int out_product(const struct emitter *e, int operand)
{
    const struct operand *out = &e->graph->operand[operand];
    bool stored = out->role == CODA_OUT || plan_adds(e->plan, operand);
    if (out->role == CODA_IN || !stored || out->dtype != CODA_BF16)
        return -1;
    return emit_accumulator(e, out_value(e, operand));
}

static bool is_pick(const struct emitter *e, int operand)
{
    return out_space(e, operand) == SPACE_ROW && op_of(e, e->graph->operand[operand].node) == OP_PICK;
}

static const char *out_type(const struct emitter *e, int operand)
{
    return coda_dtype_name(e->graph->operand[operand].dtype);
}

static int reduction_level(const struct emitter *e, const struct reduction *reduction)
{
    return e->plan->level[e->graph->node[reduction->node].input[0]];
}

/* Finished runs that a group holds. */
static int runs_of_group(const struct plan *plan, int run)
{
    int columns = plan->blocks * BLOCK_COLUMNS;
    return run >= BLOCK_COLUMNS ? columns / run : run >= 8 ? plan->blocks : plan->blocks * 8 / run;
}

static int lanes_of_run(int run)
{
    return run >= BLOCK_COLUMNS ? 4 : run >= 8 ? run / 8 : 1;
}

/* ---------------------------------------------------------------- one element, all columns */

/* o = old + value: what memory adds has no old value here. */
static void accumulate(struct emitter *e, int operand, const char *value, char *text, size_t size)
{
    int old = plan_old_value(e->plan, operand);
    if (e->graph->operand[operand].role == CODA_ACCUMULATE && !plan_adds(e->plan, operand))
        snprintf(text, size, "coda_add(word_%s(in.i%d[b][h], x), %s)", out_type(e, operand), old, value);
    else
        snprintf(text, size, "%s", value);
}

static void full_element(struct emitter *e, int level, const struct place *at)
{
    const struct plan *plan = e->plan;
    char name[NAME_TEXT], value[128];
    for (int i = 0; i < e->graph->operand_count; i++) {
        bool pick = is_pick(e, i);
        if ((out_space(e, i) != SPACE_TILE && !pick) || out_level(e, i) != level)
            continue;
        int node = e->graph->operand[i].node;
        if (out_product(e, i) >= 0)
            continue;
        emit_value(e, pick ? e->graph->node[node].input[0] : out_value(e, i), at, name);
        accumulate(e, i, name, value, sizeof value);
        text_add(&e->element, "        o%d[x] = %s; /* %s */\n", i, pick ? name : value, e->graph->operand[i].name);
    }
    for (int i = 0; i < plan->reduction_count; i++) {
        const struct reduction *reduction = &plan->reduction[i];
        if (reduction_level(e, reduction) != level)
            continue;
        const struct node *node = &e->graph->node[reduction->node];
        emit_value(e, node->input[0], at, name);
        text_add(&e->element, node->op == OP_ABSMAX ? "        q%d%s[x] = coda_abs(%s);\n" : "        q%d%s[x] = %s;\n",
                 reduction->node, reduction->over_rows ? "[h]" : "", name);
    }
}

static bool has_full(const struct emitter *e, int level)
{
    for (int i = 0; i < e->graph->operand_count; i++)
        if ((out_space(e, i) == SPACE_TILE || is_pick(e, i)) && out_level(e, i) == level)
            return true;
    for (int i = 0; i < e->plan->reduction_count; i++)
        if (reduction_level(e, &e->plan->reduction[i]) == level)
            return true;
    return false;
}

/* ---------------------------------------------------------------- after eight columns of a row */

static void store_tile(struct emitter *e, struct text *out, int i)
{
    const char *type = out_type(e, i);
    bool exchange = coda_dtype_size(e->graph->operand[i].dtype) == 4, adds = plan_adds(e->plan, i);
    const char *put = adds ? exchange ? "ADD" : "add" : exchange ? "PUT" : "put"; /* PUT, ADD: lanes exchange */
    char what[48];
    int product = out_product(e, i);
    snprintf(what, sizeof what, product < 0 ? "o%d" : "PRODUCT(%d)", product < 0 ? i : product);
    text_add(out, "        %s_%s%s(P.t[%d].data + ELEMENT(%d, row, column) * SIZE_%s, %s, count, WIDE(%d));\n", put,
             product < 0 ? type : "product", product < 0 ? "x8" : "", i, i, type, what, i);
}

/* The tile that holds the column writes; where no tile does, the first one writes 0. */
static void store_pick(struct emitter *e, struct text *out, int i)
{
    const struct node *node = &e->graph->node[e->graph->operand[i].node];
    int value = plan_value(e->plan, node->input[1], true);
    text_add(out,
             "        {\n        const int id = VALUE_ID(%d);\n"
             "        const bool none = (u32)id >= (u32)COLUMNS && column == 0;\n"
             "        if (INSIDE(row) && ((u32)(id - column) < 8 && id < COLUMNS || none)) {\n"
             "        const float picked = none ? 0.0f : choose(o%d, id - column);\n",
             value, i);
    emit_store(e, out, "        ", i, "row", "picked");
    text_add(out, "        }\n        }\n");
}

static void reduce_eight(struct emitter *e, struct text *out, const struct reduction *reduction)
{
    int node = reduction->node, run = reduction->run;
    enum op op = op_of(e, node);
    const char *combine = combine_text(op), *tree = op == OP_SUM ? "tree_sum" : "tree_max";
    char target[96];
    if (reduction->over_rows) {
        text_add(out, "        if (!INSIDE(row))\n            mask(q%d[h], 0, %s);\n", node, identity_text(op));
        return;
    }
    text_add(out, "        if (count < 8)\n            mask(q%d, count, %s);\n", node, identity_text(op));
    if (reduction->carried)
        snprintf(target, sizeof target, "state.s%d[h]", node);
    else
        snprintf(target, sizeof target, "%c%d[b / %d][h]", op == OP_LOGSUMEXP ? 'l' : 's', node,
                 run >= BLOCK_COLUMNS ? run / BLOCK_COLUMNS : 1);
    if (run < 8) {
        for (int j = 0; j < 8 / run; j++)
            if (op == OP_LOGSUMEXP)
                text_add(out, "        online_add(l%d[b * %d + %d][h], q%d + %d, %d);\n", node, 8 / run, j, node,
                         j * run, run);
            else
                text_add(out, "        s%d[b * %d + %d][h] = %s(q%d + %d, %d);\n", node, 8 / run, j, tree, node,
                         j * run, run);
    } else if (op == OP_LOGSUMEXP) {
        text_add(out, "        online_add(%s, q%d, 8);\n", target, node);
    } else {
        text_add(out, "        %s = %s(%s, %s(q%d, 8));\n", target, combine, target, tree, node);
    }
}

static void after_row(struct emitter *e, struct text *out, int level)
{
    for (int i = 0; i < e->graph->operand_count; i++) {
        if (out_level(e, i) != level)
            continue;
        if (out_space(e, i) == SPACE_TILE)
            store_tile(e, out, i);
        else if (is_pick(e, i))
            store_pick(e, out, i);
    }
    for (int i = 0; i < e->plan->reduction_count; i++)
        if (reduction_level(e, &e->plan->reduction[i]) == level)
            reduce_eight(e, out, &e->plan->reduction[i]);
}

/* ---------------------------------------------------------------- a pass over all columns */

static void declare_runs(struct emitter *e, struct text *out, int level)
{
    for (int i = 0; i < e->plan->reduction_count; i++) {
        const struct reduction *reduction = &e->plan->reduction[i];
        int node = reduction->node, runs = reduction->carried ? 1 : runs_of_group(e->plan, reduction->run);
        if (reduction->over_rows || reduction_level(e, reduction) != level)
            continue;
        text_add(out, "    float s%d[%d][2]; /* %s over runs of %d columns */\n", node, runs, op_name(op_of(e, node)),
                 reduction->run);
        if (reduction->carried)
            continue;
        if (op_of(e, node) == OP_LOGSUMEXP)
            text_add(out,
                     "    Online l%d[%d][2];\n"
                     "    UNROLL for (int i = 0; i < %d; i++) l%d[i][0] = l%d[i][1] = online_start();\n",
                     node, runs, runs, node, node);
        else
            text_add(out, "    UNROLL for (int i = 0; i < %d; i++) s%d[i][0] = s%d[i][1] = %s;\n", runs, node, node,
                     identity_text(op_of(e, node)));
    }
}

/* Runs of rows: the two rows of a thread, then the eight lanes above each other; one part a warp. */
static void reduce_rows(struct emitter *e, struct text *out, int level)
{
    int number = 0;
    for (int i = 0; i < e->plan->reduction_count; i++) {
        const struct reduction *reduction = &e->plan->reduction[i];
        int node = reduction->node;
        if (!reduction->over_rows)
            continue;
        if (reduction_level(e, reduction) == level)
            text_add(out,
                     "    UNROLL for (int x = 0; x < 8; x++) q%d[0][x] = %s(q%d[0][x], q%d[1][x]);\n"
                     "    SCRATCH(%d, at.warp, column - at.origin + (at.lane >> 2)) = %s(q%d[0], at.lane);\n",
                     node, combine_text(op_of(e, node)), node, node, number,
                     op_of(e, node) == OP_SUM ? "columns_sum" : "columns_max", node);
        number++;
    }
}

static void declare_elements(struct emitter *e, struct text *rows, struct text *block, int level)
{
    for (int i = 0; i < e->graph->operand_count; i++)
        if ((out_space(e, i) == SPACE_TILE || is_pick(e, i)) && out_level(e, i) == level && out_product(e, i) < 0)
            text_add(rows, "        float o%d[8];\n", i);
    for (int i = 0; i < e->plan->reduction_count; i++) {
        const struct reduction *reduction = &e->plan->reduction[i];
        if (reduction_level(e, reduction) == level)
            text_add(reduction->over_rows ? block : rows,
                     reduction->over_rows ? "    float q%d[2][8];\n" : "        float q%d[8];\n", reduction->node);
    }
}

static void finish_runs(struct emitter *e, struct text *out, int level)
{
    for (int i = 0; i < e->plan->reduction_count; i++) {
        const struct reduction *reduction = &e->plan->reduction[i];
        int node = reduction->node, run = reduction->run, lanes = lanes_of_run(run);
        int groups = run / (e->plan->blocks * BLOCK_COLUMNS);
        enum op op = op_of(e, node);
        if (reduction->over_rows || reduction_level(e, reduction) != level)
            continue;
        if (!reduction->carried) {
            text_add(out, "    UNROLL for (int i = 0; i < %d; i++)\n    UNROLL for (int h = 0; h < 2; h++)\n",
                     runs_of_group(e->plan, run));
            if (op == OP_LOGSUMEXP)
                text_add(out, "        s%d[i][h] = online_finish(online_lanes(l%d[i][h], %d));\n", node, node, lanes);
            else
                text_add(out, "        s%d[i][h] = lanes_%s(s%d[i][h], %d);\n", node, op == OP_SUM ? "sum" : "max",
                         node, lanes);
            continue;
        }
        text_add(out, "    if (RUN_ENDS(c, %d))\n    UNROLL for (int h = 0; h < 2; h++) {\n", groups);
        if (op == OP_LOGSUMEXP)
            text_add(out,
                     "        s%d[0][h] = online_finish(online_lanes(state.s%d[h], RUN_LANES(%d)));\n        "
                     "state.s%d[h] = online_start();\n",
                     node, node, groups, node);
        else
            text_add(out, "        s%d[0][h] = lanes_%s(state.s%d[h], RUN_LANES(%d));\n        state.s%d[h] = %s;\n",
                     node, op == OP_SUM ? "sum" : "max", node, groups, node, identity_text(op));
        text_add(out, "    }\n");
    }
}

/* The loops over a group's elements, and what follows each eight of them. */
static void full_loops(struct emitter *e, struct text *out, int level)
{
    struct place at = place_at(AT_FULL, "b", "x", "column");
    struct text rows = {0}, block = {0}, after = {0};
    emit_new_row(e);
    declare_elements(e, &rows, &block, level);
    full_element(e, level, &at);
    after_row(e, &after, level);
    text_add(out,
             "    UNROLL for (int b = 0; b < BLOCKS; b++) {\n    const int column = COLUMN(b);\n%s"
             "    UNROLL for (int h = 0; h < 2; h++) {\n"
             "        const int row = at.row + ROW_STEP * h, count = COUNT(row, COLUMNS - column);\n%s%s"
             "        UNROLL for (int x = 0; x < 8; x++) {\n%s        }\n%s    }\n",
             text_of(&block), text_of(&rows), text_of(&e->row), text_of(&e->element), text_of(&after));
    reduce_rows(e, out, level);
    text_add(out, "    }\n");
    out->failed |= rows.failed || block.failed || after.failed;
    text_free(&rows);
    text_free(&block);
    text_free(&after);
}

/* The only scalar condition that elements branch on; -1 where there is none, or several. */
static int scalar_condition(const struct emitter *e)
{
    const enum space *space = e->plan->form->space;
    int found = -1;
    for (int i = 0; i < e->graph->node_count; i++) {
        const struct node *node = &e->graph->node[i];
        bool per_element = space[i] == SPACE_TILE || space[i] == SPACE_HALF;
        if (!e->plan->form->used[i] || node->op != OP_WHERE || !per_element || space[node->input[0]] != SPACE_UNIFORM)
            continue;
        if (found >= 0 && found != node->input[0])
            return -1;
        found = node->input[0];
    }
    return found;
}

static void full_pass(struct emitter *e, struct text *out, int level)
{
    int condition = scalar_condition(e);
    if (!has_full(e, level))
        return;
    declare_runs(e, out, level);
    if (condition < 0) {
        full_loops(e, out, level);
    } else {
        /* One branch a pass instead of one an element. */
        struct place at = place_at(AT_FULL, "b", "x", "column");
        char name[NAME_TEXT];
        emit_value(e, condition, &at, name);
        e->assumed = condition;
        for (int side = 1; side >= 0; side--) {
            e->assumed_true = side;
            text_add(out, side ? "    if (%s != 0.0f) {\n" : "    } else { /* %s is 0 */\n", name);
            full_loops(e, out, level);
        }
        text_add(out, "    }\n");
        e->assumed = -1;
    }
    finish_runs(e, out, level);
}

/* ---------------------------------------------------------------- outs of half the columns */

static void half_out(struct emitter *e, struct text *out, int i)
{
    const struct node *node = &e->graph->node[e->graph->operand[i].node];
    int distance = plan_distance(e->plan, &node->shape.dim[1]), elements = half_elements(distance);
    enum pairing pairing = pairing_of(distance);
    const char *type = out_type(e, i);
    char name[NAME_TEXT], value[128], first[128];
    struct place at = place_at(AT_HALF, "b", "x", "half");
    at.distance = distance;
    emit_new_row(e);
    emit_value(e, out_value(e, i), &at, name);
    accumulate(e, i, name, value, sizeof value);
    half_column(distance, "column", first, sizeof first);
    text_add(out, "    UNROLL for (int b = 0; b < BLOCKS; b++) {\n");
    if (pairing == PAIRING_BLOCKS)
        text_add(out, "        if (b & %d)\n            continue;\n", block_distance(e->plan, distance));
    text_add(out,
             "    const int column = COLUMN(b), half = %s;\n    UNROLL for (int h = 0; h < 2; h++) {\n"
             "        const int row = at.row + ROW_STEP * h, count = COUNT(row, COLUMNS / 2 - half);\n        float "
             "o%d[%d];\n%s"
             "        UNROLL for (int x = 0; x < %d; x++) {\n%s        o%d[x] = %s; /* %s */\n        }\n",
             first, i, elements, text_of(&e->row), elements, text_of(&e->element), i, value, e->graph->operand[i].name);
    if (pairing == PAIRING_LANES)
        text_add(out, "        if (!(at.quad & %d))\n", distance / 8);
    text_add(out,
             "        %s_%sx%d(P.t[%d].data + ELEMENT(%d, row, half) * SIZE_%s, o%d, count, WIDE(%d));\n  "
             "  }\n    "
             "}\n",
             plan_adds(e->plan, i) ? "add" : "put", type, elements, i, i, type, i, i);
}

/* ---------------------------------------------------------------- outs of runs and columns */

static void run_out(struct emitter *e, struct text *out, int i)
{
    const struct plan *plan = e->plan;
    const struct node *node = &e->graph->node[e->graph->operand[i].node];
    int run = plan_extent(plan, &node->shape.dim[1].run), columns = plan->blocks * BLOCK_COLUMNS;
    bool carried = run > columns;
    char name[NAME_TEXT], index[96], owner[48];
    struct place at = place_at(AT_RUN, carried ? "0" : "i", "0", "column");
    emit_new_row(e);
    emit_value(e, e->graph->operand[i].node, &at, name);
    if (carried)
        text_add(out, "    if (RUN_ENDS(c, %d)) {\n    const int column = COLUMN(BLOCKS - 1) / %d * %d;\n",
                 run / columns, run, run);
    else if (run >= BLOCK_COLUMNS)
        text_add(out,
                 "    UNROLL for (int i = 0; i < %d; i++) {\n    const int column = COLUMN(i * %d) - 8 * at.quad;\n",
                 columns / run, run / BLOCK_COLUMNS);
    else if (run >= 8)
        text_add(out, "    UNROLL for (int i = 0; i < BLOCKS; i++) {\n    const int column = COLUMN(i) / %d * %d;\n",
                 run, run);
    else
        text_add(out,
                 "    UNROLL for (int i = 0; i < BLOCKS * %d; i++) {\n    const int column = COLUMN(i / %d) + i %% %d "
                 "* %d;\n",
                 8 / run, 8 / run, 8 / run, run);
    if (carried)
        snprintf(owner, sizeof owner, "(at.lane & RUN_LANES(%d) - 1) == 0", run / columns);
    else
        snprintf(owner, sizeof owner, "(at.quad & %d) == 0", lanes_of_run(run) - 1);
    snprintf(index, sizeof index, "ELEMENT(%d, row, column / %d)", i, run);
    text_add(out,
             "    UNROLL for (int h = 0; h < 2; h++) {\n        const int row = at.row + ROW_STEP * h;\n%s%s"
             "        if (%s && (FAST || row < ROWS && column < COLUMNS)) /* %s */\n",
             text_of(&e->row), text_of(&e->element), owner, e->graph->operand[i].name);
    emit_store(e, out, "            ", i, index, name);
    text_add(out, "    }\n    }\n");
}

static void column_out(struct emitter *e, struct text *out, int i)
{
    char name[NAME_TEXT];
    struct place at = place_at(AT_COLUMN, "b", "x", "column");
    emit_new_row(e);
    emit_value(e, e->graph->operand[i].node, &at, name);
    text_add(out,
             "    if (HAS_FIRST_ROW)\n    UNROLL for (int b = 0; b < "
             "BLOCKS; b++) {\n"
             "    const int column = COLUMN(b);\n%s    UNROLL for (int x = 0; x < 8; x++) {\n%s"
             "        if (column + x < COLUMNS) /* %s */\n",
             text_of(&e->row), text_of(&e->element), e->graph->operand[i].name);
    emit_store(e, out, "            ", i, "column + x", name);
    text_add(out, "    }\n    }\n");
}

/* One value a run of columns, without rows. */
static void part_out(struct emitter *e, struct text *out, int i)
{
    const struct node *node = &e->graph->node[e->graph->operand[i].node];
    int run = plan_extent(e->plan, &node->shape.dim[0].run);
    char name[NAME_TEXT], index[64];
    struct place at = place_at(AT_COLUMN, "b", "x", "column");
    emit_new_row(e);
    emit_value(e, e->graph->operand[i].node, &at, name);
    snprintf(index, sizeof index, "(column + x) / %d", run);
    text_add(out,
             "    if (HAS_FIRST_ROW)\n    UNROLL for (int b = 0; b < "
             "BLOCKS; b++) {\n"
             "    const int column = COLUMN(b);\n%s    UNROLL for (int x = 0; x < 8; x++) {\n%s"
             "        if (column + x < COLUMNS && (column + x) %% %d == 0) /* %s */\n",
             text_of(&e->row), text_of(&e->element), run, e->graph->operand[i].name);
    emit_store(e, out, "            ", i, index, name);
    text_add(out, "    }\n    }\n");
}

/* ---------------------------------------------------------------- the group */

static void pass(struct emitter *e, struct text *out, int level)
{
    for (int i = 0; i < e->graph->operand_count; i++) {
        enum space space = out_space(e, i);
        if (space == SPACE_NONE || out_level(e, i) != level)
            continue;
        if (space == SPACE_ROW_RUNS)
            run_out(e, out, i);
        else if (space == SPACE_HALF)
            half_out(e, out, i);
        else if (space == SPACE_COLUMN)
            column_out(e, out, i);
        else if (space == SPACE_COLUMN_PARTS)
            part_out(e, out, i);
    }
    full_pass(e, out, level);
}

static void emit_state(struct emitter *e, struct text *out)
{
    struct text start = {0};
    text_add(out, "/* What runs longer than a group carry from one to the next. */\nstruct State {\n");
    for (int i = 0; i < e->plan->reduction_count; i++) {
        const struct reduction *reduction = &e->plan->reduction[i];
        bool online = op_of(e, reduction->node) == OP_LOGSUMEXP;
        if (!reduction->carried)
            continue;
        text_add(out, "    %s s%d[2];\n", online ? "Online" : "float", reduction->node);
        text_add(&start, "    state.s%d[0] = state.s%d[1] = %s;\n", reduction->node, reduction->node,
                 online ? "online_start()" : identity_text(op_of(e, reduction->node)));
    }
    text_add(out, "    u32 none;\n};\nINLINE void coda_start(State &state)\n{\n%s}\n\n", text_of(&start));
    out->failed |= start.failed;
    text_free(&start);
}

void emit_group(struct emitter *e, struct text *out)
{
    struct text passes = {0};
    emit_state(e, out);
    emit_new_group(e);
    for (int level = 0; level < e->plan->level_count; level++)
        pass(e, &passes, level);
    text_add(out, "/* Columns of group c: everything that the program does to them. */\n"
                  "template <bool FAST>\nINLINE void coda_group(const Params &P, const Place &at, const int "
                  "c, const "
                  "Accumulators &acc, const Inputs "
                  "&in, const Ahead &ahead, State &state)\n{\n");
    text_add(out, "%s%s}\n\n", text_of(&e->group), text_of(&passes));
    out->failed |= passes.failed;
    text_free(&passes);
    emit_new_group(e);
}
