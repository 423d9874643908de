#include "evaluate.h"

#include "evaluate_nodes.h"
#include "formats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Matrices stay in the widest type of the matrices they come from; a row or column operand does not widen them. */
static coda_dtype narrow_type(const struct evaluator *e, const struct node *n)
{
    const struct graph *graph = e->trial->graph;
    if (n->op == OP_IN)
        return n->dtype;
    if (n->op == OP_CAST)
        return n->dtype == CODA_I32 ? CODA_F32 : n->dtype;
    if (n->shape.rank < 2 || op_is_reduction(n->op))
        return CODA_F32;
    bool found = false;
    coda_dtype widest = CODA_F32;
    for (int i = 0; i < n->input_count; i++) {
        coda_dtype type = e->narrow[n->input[i]];
        if (graph->node[n->input[i]].shape.rank < 2 || type == CODA_I32)
            continue;
        if (coda_dtype_size(type) == 1)
            type = CODA_BF16;
        widest = found && type != widest ? CODA_F32 : type;
        found = true;
    }
    return widest;
}

static bool create(const struct evaluator *e, const struct shape *shape, struct numbers *y)
{
    int64_t size[2] = {1, 1};
    for (int d = 0; d < shape->rank; d++)
        size[d] = dim_size(&shape->dim[d], e->trial->size);
    y->rows = shape->rank == 2 ? size[0] : 1;
    y->columns = shape->rank == 2 ? size[1] : size[0];
    size_t count = (size_t)(y->rows * y->columns);
    y->value = calloc(3 * count, sizeof *y->value);
    y->plain = y->value + count;
    y->bound = y->plain + count;
    return y->value != NULL;
}

static void load(const struct evaluator *e, int operand, struct numbers *y)
{
    const coda_tensor *tensor = &e->trial->tensor[operand];
    const unsigned char *data = e->trial->initial[operand];
    for (int64_t i = 0; i < y->rows * y->columns; i++)
        y->value[i] = y->plain[i] = format_load(tensor->dtype, data + (size_t)i * coda_dtype_size(tensor->dtype));
}

static void set_number(struct numbers *y, double number)
{
    y->value[0] = y->plain[0] = number;
    y->bound[0] = fabs(number - (double)(float)number);
}

static bool evaluate_node(struct evaluator *e, int index)
{
    const struct trial *trial = e->trial;
    const struct node *n = &trial->graph->node[index];
    struct numbers *y = &e->node[index];
    if (!create(e, &n->shape, y)) {
        e->why = "no memory";
        return false;
    }
    switch (n->op) {
    case OP_IN:
        load(e, n->index, y);
        break;
    case OP_PARAM:
        set_number(y, trial->parameter[n->index]);
        break;
    case OP_NUMBER:
        set_number(y, n->number);
        break;
    case OP_SIZE:
        set_number(y, (double)trial->size[n->axis]);
        break;
    default:
        if (!evaluate_operation(e, n, y))
            return false;
    }
    e->narrow[index] = narrow_type(e, n);
    if (n->shape.rank == 2 && n->op != OP_IN)
        for (int64_t i = 0; i < y->rows * y->columns; i++)
            y->plain[i] = format_round(e->narrow[index], y->plain[i]);
    return true;
}

/* What the operand held, with one value a row where its id is a column. */
static void patch(const struct evaluator *e, int index, const struct numbers *x, struct numbers *y)
{
    const struct operand *operand = &e->trial->graph->operand[index];
    const int32_t *id = e->trial->initial[operand->ids];
    load(e, index, y);
    for (int64_t i = 0; i < y->rows; i++) {
        if (id[i] < 0 || id[i] >= y->columns)
            continue;
        int64_t at = i * y->columns + id[i];
        y->value[at] = x->value[i];
        y->plain[at] = format_round(operand->dtype, x->plain[i]);
        y->bound[at] = x->bound[i];
    }
}

static bool evaluate_out(struct evaluator *e, int index, struct numbers *y)
{
    const struct trial *trial = e->trial;
    const struct operand *operand = &trial->graph->operand[index];
    size_t size = coda_dtype_size(operand->dtype);
    if (!create(e, &operand->shape, y)) {
        e->why = "no memory";
        return false;
    }
    if (operand->role == CODA_PATCH) {
        patch(e, index, &e->node[operand->node], y);
        return true;
    }
    spread(e, &e->node[operand->node], &trial->graph->node[operand->node].shape, &operand->shape, y);
    for (int64_t i = 0; i < y->rows * y->columns; i++) {
        if (operand->role == CODA_ACCUMULATE) {
            double held = format_load(operand->dtype, (unsigned char *)trial->initial[index] + (size_t)i * size);
            y->value[i] += held;
            y->plain[i] += held;
            y->bound[i] += 0x1p-24 * fabs(y->value[i]);
        }
        y->plain[i] = format_round(operand->dtype, y->plain[i]);
    }
    return true;
}

bool evaluate_trial(const struct trial *trial, struct evaluation *evaluation, const char **why)
{
    const struct graph *graph = trial->graph;
    struct evaluator e = {.trial = trial, .why = "no memory"};
    bool done = true;
    memset(evaluation, 0, sizeof *evaluation);
    evaluation->count = trial->count;
    e.node = calloc((size_t)graph->node_count, sizeof *e.node);
    e.narrow = calloc((size_t)graph->node_count, sizeof *e.narrow);
    bool *used = calloc((size_t)graph->node_count, sizeof *used);
    if (!e.node || !e.narrow || !used)
        done = false;
    if (done)
        graph_mark_used(graph, used);
    for (int i = 0; i < graph->node_count && done; i++)
        if (used[i])
            done = evaluate_node(&e, i);
    for (int i = 0; i < trial->count && done; i++)
        if (graph->operand[i].role != CODA_IN)
            done = evaluate_out(&e, i, &evaluation->out[i]);
    for (int i = 0; i < graph->node_count && e.node; i++)
        free(e.node[i].value);
    free(e.node);
    free(e.narrow);
    free(used);
    if (!done) {
        *why = e.why;
        evaluation_free(evaluation);
    }
    return done;
}

void evaluation_free(struct evaluation *evaluation)
{
    for (int i = 0; i < evaluation->count; i++)
        free(evaluation->out[i].value);
    memset(evaluation, 0, sizeof *evaluation);
}
