/* The normal form of a program: the space of every value against the tile, and what is not block-local. */
#include "ir/tile.h"
#include <stdio.h>
#include <stdlib.h>

struct analysis {
    const struct graph *graph;
    struct form *form;
    bool *as_value;
    bool *bad; /* reported already, or built on such a value: says nothing more */
    int violations;
    report_violation *report;
    void *context;
};

static void report(struct analysis *a, int node, const struct complaint *why)
{
    a->bad[node] = true;
    a->violations++;
    if (a->report)
        a->report(a->context, node, why);
}

#define REPORT(a, node, status, advice, ...)                                                                           \
    do {                                                                                                               \
        struct complaint why_;                                                                                         \
        refuse(&why_, status, advice, __VA_ARGS__);                                                                    \
        report(a, node, &why_);                                                                                        \
    } while (0)

static void tile_text(const struct analysis *a, char *text, int size)
{
    const struct form *form = a->form;
    int length = 0;
    text[0] = '\0';
    append(text, size, &length, "[%.60s%s%.60s]", form->row_axis < 0 ? "" : axis_name(a->graph, form->row_axis),
           form->row_axis < 0 || form->column_axis < 0 ? "" : ", ",
           form->column_axis < 0 ? "" : axis_name(a->graph, form->column_axis));
}

/* ---------------------------------------------------------------- values that do not lie on the tile */

static void report_misfit(struct analysis *a, int node, int value)
{
    const struct shape *shape = &a->graph->node[value].shape;
    char found[LABEL], tile[SHAPE_TEXT];
    label(a->graph, value, found, sizeof found);
    tile_text(a, tile, sizeof tile);
    bool constant = false, swapped = false, vector_runs = shape->rank == 1 && shape->dim[0].axis >= 0;
    for (int i = 0; i < shape->rank; i++)
        constant = constant || shape->dim[i].axis < 0;
    if (shape->rank == 2)
        swapped = shape->dim[0].axis == a->form->column_axis && shape->dim[1].axis == a->form->row_axis;
    if (constant)
        REPORT(a, node, CODA_INVALID, "Give the axis a name, and its size when the kernel is created or launched.",
               "%s has a size for an axis, but the axes of a tile have names", found);
    else if (swapped)
        REPORT(a, node, CODA_INVALID, "Store it the other way round: only operands of a product can be transposed.",
               "%s lies across the tile %s", found, tile);
    else if (vector_runs && (shape->dim[0].axis == a->form->row_axis || shape->dim[0].axis == a->form->column_axis))
        REPORT(a, node, CODA_UNSUPPORTED, "Give one value a row or column, or a matrix such as [M/64, N].",
               "no epilogue holds %s: a vector of runs of rows, or of halves of columns", found);
    else if (shape->rank == 2 && shape->dim[0].axis == a->form->row_axis && shape->dim[1].axis == a->form->column_axis)
        REPORT(a, node, CODA_UNSUPPORTED, "Keep one of the two axes whole: [M, N/128] or [M/64, N].",
               "no epilogue holds %s: runs along both axes", found);
    else
        REPORT(a, node, CODA_INVALID,
               "A tile's values have its axes. Reduce the other axis first, such as sum(S) of an `in` S : f32[M, "
               "K/128], or give "
               "the value a program of its own: `coda rewrite` cuts a block so.",
               "%s does not lie on the tile %s", found, tile);
}

/* The space of an input that is read as a value; SPACE_NONE after a report. */
static enum space value_space(struct analysis *a, int node, int input)
{
    enum space space = a->form->space[input];
    if (space == SPACE_NONE && !a->bad[node])
        report_misfit(a, node, input);
    return space;
}

static bool need_in(struct analysis *a, int node, int input, const char *what)
{
    if (a->graph->node[input].op == OP_IN)
        return true;
    char found[LABEL];
    label(a->graph, input, found, sizeof found);
    REPORT(a, node, CODA_INVALID, "Store it by a program of its own, and read it here as an `in`.",
           "%s is an `in` of the program, but here it is %s, which the program computes", what, found);
    return false;
}

/* ---------------------------------------------------------------- products */

static bool is_product_operand(const struct graph *graph, int index, bool right)
{
    const struct node *node = &graph->node[index];
    if (node->op == OP_TRANSPOSE)
        node = &graph->node[node->input[0]];
    if (node->op == OP_STACK && right) {
        for (int i = 0; i < node->input_count; i++)
            if (graph->node[node->input[i]].op != OP_IN)
                return false;
        return true;
    }
    return node->op == OP_IN;
}

static bool is_stack(const struct graph *graph, int index)
{
    const struct node *node = &graph->node[index];
    return node->op == OP_STACK || (node->op == OP_TRANSPOSE && graph->node[node->input[0]].op == OP_STACK);
}

static void visit_product(struct analysis *a, int index)
{
    const struct node *node = &a->graph->node[index];
    struct form *form = a->form;
    char found[LABEL], tile[SHAPE_TEXT];
    for (int i = 0; i < node->input_count; i++) {
        int input = node->input[i];
        if (is_product_operand(a->graph, input, i % 2 == 1))
            continue;
        label(a->graph, input, found, sizeof found);
        if (is_stack(a->graph, input) && i % 2 == 0)
            REPORT(a, index, CODA_UNSUPPORTED,
                   "Stack weights on the right of `@`, or store the left operand as one matrix.",
                   "the left operand of a product is a stack");
        else
            REPORT(a, index, CODA_INVALID,
                   "A program has one mainloop, whose operands lie in memory: store the value by one program and "
                   "multiply in the "
                   "next. In a block, `coda rewrite` makes this cut.",
                   "a product of a computed value: %s is no `in`, `.T` of one, or stack of them", found);
        return;
    }
    form->space[index] = space_of_shape(form, &node->shape);
    if (form->space[index] != SPACE_TILE) {
        shape_print(a->graph, &node->shape, found, sizeof found);
        tile_text(a, tile, sizeof tile);
        if (node->shape.dim[0].axis < 0 || node->shape.dim[1].axis < 0)
            report_misfit(a, index, index);
        else
            REPORT(a, index, CODA_INVALID,
                   "Products of one program share the tile: give this one a program of its own.",
                   "a product %s beside the tile %s", found, tile);
    } else if (form->accumulator_count == MAX_PRODUCTS) {
        REPORT(a, index, CODA_UNSUPPORTED, "Add products up in one accumulator (A @ B + C @ D), or split the program.",
               "more than %d products side by side", MAX_PRODUCTS);
    } else {
        form->accumulator[form->accumulator_count++] = index;
    }
}

static bool same_left(const struct graph *graph, int p, int q)
{
    const struct node *a = &graph->node[p], *b = &graph->node[q];
    if (a->input_count != b->input_count)
        return false;
    for (int i = 0; i < a->input_count; i += 2) {
        const struct node *x = &graph->node[a->input[i]], *y = &graph->node[b->input[i]];
        bool same = a->input[i] == b->input[i] ||
                    (x->op == OP_TRANSPOSE && y->op == OP_TRANSPOSE && x->input[0] == y->input[0]);
        if (!same)
            return false;
    }
    return true;
}

/* ---------------------------------------------------------------- reductions */

static void report_whole_row(struct analysis *a, int index, int input)
{
    const struct node *node = &a->graph->node[index];
    const char *axis = axis_name(a->graph, node->axis), *name = op_name(node->op);
    bool columns = node->axis == a->form->column_axis;
    char found[LABEL];
    struct complaint why;
    label(a->graph, input, found, sizeof found);
    refuse(&why, CODA_INVALID, "", "`%s(.., %.60s)` needs %s of %s, but a program computes one tile at a time", name,
           axis,
           node->shape.rank == 0 ? "all"
           : columns             ? "the whole row"
                                 : "the whole column",
           found);
    if (columns)
        advise(&why,
               "A tile sees a part of the %.60s columns. Store runs and let the consumer finish them in its prologue "
               "(out S : "
               "f32[M, %.60s/128] = %s(.., %.60s:128), there %s(S)): `coda rewrite` does this. Or reduce over a run "
               "that fits the "
               "tile, such as %.60s:128.",
               axis, axis, name, axis, name, axis);
    else
        advise(&why,
               "A tile sees a part of the %.60s rows. Store runs and let a second program finish them (out P : "
               "f32[%.60s/64, N] = "
               "%s(.., %.60s:64), there P : f32[R, N] and %s(P, R)).",
               axis, axis, name, axis, name);
    report(a, index, &why);
}

/* `sum(S)`: of an `in` whose reduced dimension is a partial, or an axis that the tile does not have. */
static void visit_whole_reduction(struct analysis *a, int index)
{
    const struct node *node = &a->graph->node[index];
    int input = node->input[0];
    const struct shape *shape = &a->graph->node[input].shape;
    const struct dim *dim = &shape->dim[shape->dim[0].axis == node->axis ? 0 : 1];
    bool partial = dim->form == DIM_RUNS;
    bool on_tile = node->axis == a->form->row_axis || node->axis == a->form->column_axis;
    bool is_in = a->graph->node[input].op == OP_IN;
    if ((on_tile && !partial) || (on_tile && !is_in)) {
        report_whole_row(a, index, input);
        return;
    }
    if (!need_in(a, index, input, "what a program reduces whole"))
        return;
    a->form->space[index] = space_of_shape(a->form, &node->shape);
    if (a->form->space[index] == SPACE_NONE)
        report_misfit(a, index, index);
}

static void visit_run_reduction(struct analysis *a, int index)
{
    const struct node *node = &a->graph->node[index];
    int input = node->input[0];
    enum space from = value_space(a, index, input);
    char found[LABEL];
    label(a->graph, input, found, sizeof found);
    if (from == SPACE_NONE)
        return;
    if (from == SPACE_HALF) {
        REPORT(a, index, CODA_UNSUPPORTED, "Put the columns together first (join, join_halves), and reduce those.",
               "`%s` over runs of %s, which has half of the columns", op_name(node->op), found);
        return;
    }
    if (from != SPACE_TILE && from != SPACE_COLUMN) {
        REPORT(a, index, CODA_UNSUPPORTED, "Reduce a value of the tile along one axis.",
               "`%s` over runs of %s: a program reduces tiles and column vectors over runs", op_name(node->op), found);
        return;
    }
    if (node->run.axis < 0 && node->run.value == 2 && node->axis == a->form->column_axis) {
        REPORT(a, index, CODA_UNSUPPORTED, "Write `a, b = pairs(x)` and combine a and b.",
               "`%s` over runs of 2 columns: they are pairs", op_name(node->op));
        return;
    }
    a->form->space[index] = space_of_shape(a->form, &node->shape);
    if (a->form->space[index] == SPACE_NONE)
        report_misfit(a, index, index);
}

/* ---------------------------------------------------------------- elementwise and pairwise */

/* Values of pairs have half of the tile's columns, so nothing of the full width joins them. */
static bool check_halves(struct analysis *a, int index)
{
    const struct node *node = &a->graph->node[index];
    for (int i = 0; i < node->input_count; i++) {
        enum space to = a->form->space[index], from = a->form->space[node->input[i]];
        if (from != SPACE_HALF || to == SPACE_HALF)
            continue;
        char found[LABEL];
        label(a->graph, node->input[i], found, sizeof found);
        REPORT(a, index, CODA_INVALID, "Put pairs together first: join(a, b), or join(a, a) to repeat one.",
               "%s has half of the columns, and meets a value that has all of them", found);
        return false;
    }
    return true;
}

static void visit_elementwise(struct analysis *a, int index)
{
    const struct node *node = &a->graph->node[index];
    for (int i = 0; i < node->input_count; i++) {
        int input = node->input[i];
        if (value_space(a, index, input) == SPACE_NONE)
            return;
        if (a->graph->node[input].op != OP_PICK)
            continue;
        REPORT(
            a, index, CODA_INVALID,
            "Store it (out T : f32[M] = pick(z, t)) and compute with it in the next program, or use where(index(N) == "
            "t, ..).",
            "a picked value is known only to the tile that holds its column, and nothing can be computed with it here");
        return;
    }
    a->form->space[index] = space_of_shape(a->form, &node->shape);
    if (a->form->space[index] == SPACE_NONE)
        report_misfit(a, index, index);
    else
        check_halves(a, index);
}

static bool need_space(struct analysis *a, int index, int input, enum space wanted, const char *what)
{
    enum space space = value_space(a, index, input);
    if (space == wanted)
        return true;
    if (space == SPACE_NONE)
        return false;
    char found[LABEL], tile[SHAPE_TEXT];
    label(a->graph, input, found, sizeof found);
    tile_text(a, tile, sizeof tile);
    REPORT(a, index, CODA_INVALID, "", "`%s` takes a value of the tile %s, found %s", what, tile, found);
    return false;
}

static void visit_pairwise(struct analysis *a, int index)
{
    const struct node *node = &a->graph->node[index];
    bool joins = node->op == OP_JOIN || node->op == OP_JOIN_HALVES;
    for (int i = 0; joins && i < node->input_count; i++)
        if (value_space(a, index, node->input[i]) == SPACE_NONE)
            return;
    if (!joins && !need_space(a, index, node->input[0], SPACE_TILE, op_name(node->op)))
        return;
    a->form->space[index] = joins ? SPACE_TILE : SPACE_HALF;
}

static void visit_rope(struct analysis *a, int index)
{
    const struct node *node = &a->graph->node[index];
    if (need_space(a, index, node->input[0], SPACE_TILE, "rope") &&
        need_in(a, index, node->input[1], "the table of a rotation") &&
        need_in(a, index, node->input[2], "the positions of a rotation"))
        a->form->space[index] = SPACE_TILE;
}

static void visit_indexed(struct analysis *a, int index)
{
    const struct node *node = &a->graph->node[index];
    if (node->op == OP_PICK && !need_space(a, index, node->input[0], SPACE_TILE, "pick"))
        return;
    if (node->op == OP_GATHER && !need_in(a, index, node->input[0], "the table of `gather`"))
        return;
    if (!need_in(a, index, node->input[node->input_count - 1], "what a program uses as indices"))
        return;
    a->form->space[index] = space_of_shape(a->form, &node->shape);
    if (a->form->space[index] == SPACE_NONE)
        report_misfit(a, index, index);
}

static void visit_repeat(struct analysis *a, int index)
{
    const struct node *node = &a->graph->node[index];
    if (a->graph->node[node->input[0]].op != OP_IN) {
        char found[LABEL];
        label(a->graph, node->input[0], found, sizeof found);
        REPORT(a, index, CODA_INVALID, "Repeat the `in` first, then compute with it.",
               "`repeat` of a computed value: %s", found);
        return;
    }
    a->form->space[index] = space_of_shape(a->form, &node->shape);
    if (a->form->space[index] == SPACE_NONE)
        report_misfit(a, index, index);
}

/* ---------------------------------------------------------------- the walk */

static void visit(struct analysis *a, int index)
{
    const struct node *node = &a->graph->node[index];
    for (int i = 0; i < node->input_count; i++)
        if (a->bad[node->input[i]]) {
            a->bad[index] = true;
            return;
        }
    if (!a->as_value[index] && node->input_count > 0)
        return; /* not of the epilogue: whoever takes a computed table or product operand is told so */
    switch (node->op) {
    case OP_IN:
    case OP_INDEX: /* one that does not lie on the tile is reported where it is read */
        a->form->space[index] = a->as_value[index] ? space_of_shape(a->form, &node->shape) : SPACE_NONE;
        break;
    case OP_PARAM:
    case OP_NUMBER:
    case OP_SIZE:
        a->form->space[index] = SPACE_UNIFORM;
        break;
    case OP_TRANSPOSE:
    case OP_STACK:
        REPORT(a, index, CODA_INVALID, "Store the value transposed, or stacked, in memory.",
               "`%s` is for operands of a product, but this one is used elementwise", op_name(node->op));
        break;
    case OP_GEMM:
        visit_product(a, index);
        break;
    case OP_REPEAT:
        visit_repeat(a, index);
        break;
    case OP_EVEN:
    case OP_ODD:
    case OP_JOIN:
    case OP_FIRST:
    case OP_SECOND:
    case OP_JOIN_HALVES:
        visit_pairwise(a, index);
        break;
    case OP_ROPE:
        visit_rope(a, index);
        break;
    case OP_PICK:
    case OP_ONEHOT:
    case OP_GATHER:
        visit_indexed(a, index);
        break;
    default:
        if (is_whole_reduction(node))
            visit_whole_reduction(a, index);
        else if (op_is_reduction(node->op))
            visit_run_reduction(a, index);
        else
            visit_elementwise(a, index);
        break;
    }
}

static void visit_outs(struct analysis *a)
{
    for (int i = 0; i < a->graph->operand_count; i++) {
        const struct operand *operand = &a->graph->operand[i];
        if (operand->role == CODA_IN || a->bad[operand->node])
            continue;
        if (a->form->space[operand->node] == SPACE_NONE)
            report_misfit(a, operand->node, operand->node);
        else if (operand->role == CODA_PATCH && a->form->column_axis >= 0)
            REPORT(a, operand->node, CODA_UNSUPPORTED, "Store the values, and patch in the next program.",
                   "`%.60s` is patched at a column of each row, which a program of row vectors does, but this one has "
                   "the columns %.60s",
                   operand->name, axis_name(a->graph, a->form->column_axis));
    }
}

static void mark_prologue(const struct graph *graph, struct form *form)
{
    for (int i = 0; i < graph->node_count; i++) {
        enum space space = form->space[i];
        form->prologue[i] = form->used[i] && (space == SPACE_UNIFORM || space == SPACE_ROW || space == SPACE_COLUMN ||
                                              space == SPACE_COLUMN_PARTS);
        for (int k = 0; k < graph->node[i].input_count; k++)
            if (reads_as_value(&graph->node[i], k) && !form->prologue[graph->node[i].input[k]])
                form->prologue[i] = false;
    }
}

coda_status form_analyse(const struct graph *graph, struct form *form, report_violation *report_to, void *context,
                         int *violations)
{
    size_t count = graph->node_count ? (size_t)graph->node_count : 1;
    struct analysis a = {.graph = graph, .form = form, .report = report_to, .context = context};
    coda_status status = CODA_MEMORY;
    *form = (struct form){.row_axis = -1, .column_axis = -1};
    form->space = calloc(count, sizeof *form->space);
    form->used = calloc(count, sizeof *form->used);
    form->prologue = calloc(count, sizeof *form->prologue);
    a.as_value = calloc(count, sizeof *a.as_value);
    a.bad = calloc(count, sizeof *a.bad);
    if (!form->space || !form->used || !form->prologue || !a.as_value || !a.bad)
        goto done;

    graph_mark_used(graph, form->used);
    mark_values(graph, form->used, a.as_value);
    find_tile(graph, form->used, a.as_value, form);
    for (int i = 0; i < graph->node_count; i++)
        if (form->used[i])
            visit(&a, i);
    visit_outs(&a);
    mark_prologue(graph, form);
    form->shared_left = form->accumulator_count > 1;
    for (int i = 1; i < form->accumulator_count; i++)
        form->shared_left = form->shared_left && same_left(graph, form->accumulator[0], form->accumulator[i]);
    *violations = a.violations;
    status = CODA_OK;
done:
    free(a.as_value);
    free(a.bad);
    if (status != CODA_OK)
        form_free(form);
    return status;
}

void form_free(struct form *form)
{
    free(form->space);
    free(form->used);
    free(form->prologue);
    *form = (struct form){.row_axis = -1, .column_axis = -1};
}
