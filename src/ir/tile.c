/* The tile of a program: which axes its rows and columns are. */
#include "ir/tile.h"

bool is_whole_reduction(const struct node *node)
{
    return op_is_reduction(node->op) && is_whole_run(node->run);
}

bool reads_as_value(const struct node *node, int input)
{
    switch (node->op) {
    case OP_TRANSPOSE:
    case OP_STACK:
    case OP_GEMM:
    case OP_REPEAT:
    case OP_ONEHOT:
    case OP_GATHER:
        return false;
    case OP_ROPE:
    case OP_PICK:
        return input == 0;
    default:
        return !is_whole_reduction(node);
    }
}

void mark_values(const struct graph *graph, const bool *used, bool *as_value)
{
    for (int i = 0; i < graph->node_count; i++)
        as_value[i] = false;
    for (int i = 0; i < graph->operand_count; i++)
        if (graph->operand[i].role != CODA_IN)
            as_value[graph->operand[i].node] = true;
    for (int i = graph->node_count - 1; i >= 0; i--)
        for (int k = 0; used[i] && as_value[i] && k < graph->node[i].input_count; k++)
            if (reads_as_value(&graph->node[i], k))
                as_value[graph->node[i].input[k]] = true;
}

static bool adopt(const struct shape *shape, struct form *form)
{
    if (shape->rank != 2 || shape->dim[0].axis < 0 || shape->dim[1].axis < 0)
        return false;
    form->row_axis = shape->dim[0].axis;
    form->column_axis = shape->dim[1].axis;
    return true;
}

/* Does a used matrix have the axis at this position? */
static bool occurs(const struct graph *graph, const bool *used, int axis, int position)
{
    for (int i = 0; i < graph->node_count; i++)
        if (used[i] && graph->node[i].shape.rank == 2 && graph->node[i].shape.dim[position].axis == axis)
            return true;
    return false;
}

/* A program of vectors alone: a column vector is one whose axis is the columns of a matrix that is reduced. */
static void find_vectors(const struct graph *graph, const bool *used, struct form *form)
{
    for (int i = 0; i < graph->operand_count; i++) {
        const struct operand *out = &graph->operand[i];
        const struct shape *shape = out->role == CODA_PATCH ? &graph->node[out->node].shape : &out->shape;
        int axis = shape->dim[0].axis;
        if (out->role == CODA_IN || shape->rank != 1 || axis < 0 || axis == form->row_axis || axis == form->column_axis)
            continue;
        bool columns = occurs(graph, used, axis, 1) && !occurs(graph, used, axis, 0);
        int *place = columns ? &form->column_axis : &form->row_axis,
            *other = columns ? &form->row_axis : &form->column_axis;
        if (*place < 0)
            *place = axis;
        else if (*other < 0)
            *other = axis;
    }
}

void find_tile(const struct graph *graph, const bool *used, const bool *as_value, struct form *form)
{
    form->row_axis = form->column_axis = -1;
    for (int read = 1; read >= 0; read--)
        for (int i = 0; i < graph->node_count; i++)
            if (used[i] && as_value[i] == (read == 1) && graph->node[i].op == OP_GEMM &&
                adopt(&graph->node[i].shape, form))
                return;
    for (int i = 0; i < graph->operand_count; i++)
        if (graph->operand[i].role != CODA_IN && graph->operand[i].role != CODA_PATCH &&
            adopt(&graph->operand[i].shape, form))
            return;
    for (int i = 0; i < graph->node_count; i++) {
        enum op op = graph->node[i].op;
        if (used[i] && as_value[i] && op != OP_TRANSPOSE && op != OP_STACK && adopt(&graph->node[i].shape, form))
            return;
    }
    find_vectors(graph, used, form);
}

static bool is_runs(const struct dim *dim)
{
    return dim->form == DIM_RUNS;
}

static enum space vector_space(const struct form *form, const struct dim *dim)
{
    if (dim->axis == form->row_axis)
        return dim->form == DIM_WHOLE ? SPACE_ROW : SPACE_NONE;
    if (dim->axis != form->column_axis || dim->form == DIM_HALVES)
        return SPACE_NONE;
    return dim->form == DIM_WHOLE ? SPACE_COLUMN : SPACE_COLUMN_PARTS;
}

enum space space_of_shape(const struct form *form, const struct shape *shape)
{
    if (shape->rank == 0)
        return SPACE_UNIFORM;
    const struct dim *rows = &shape->dim[0], *columns = &shape->dim[1];
    if (rows->axis < 0 || (shape->rank == 2 && columns->axis < 0))
        return SPACE_NONE;
    if (shape->rank == 1)
        return vector_space(form, rows);
    if (rows->axis != form->row_axis || columns->axis != form->column_axis)
        return SPACE_NONE;
    if (is_runs(rows))
        return columns->form == DIM_WHOLE ? SPACE_COLUMN_RUNS : SPACE_NONE;
    if (rows->form != DIM_WHOLE)
        return SPACE_NONE;
    if (columns->form == DIM_WHOLE)
        return SPACE_TILE;
    return columns->form == DIM_HALVES || is_pair_dim(columns) ? SPACE_HALF : SPACE_ROW_RUNS;
}
