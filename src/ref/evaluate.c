/* The interpreter: nodes in order, each value freed after its last use. */
#include "ref/ref.h"
#include "ref/values.h"

#include <stdlib.h>
#include <string.h>

static coda_status step_in(const struct evaluation *e, const struct node *node, struct value *y)
{
    value_load(y, &e->launch->operand[node->index]);
    return CODA_OK;
}

static coda_status step_scalar(const struct evaluation *e, const struct node *node, struct value *y)
{
    if (node->op == OP_PARAM)
        y->data[0] = e->launch->parameter[node->index];
    else if (node->op == OP_SIZE)
        y->data[0] = (double)e->launch->size[node->axis];
    else
        y->data[0] = node->number;
    return CODA_OK;
}

static step *const steps[OP_COUNT] = {
#define PRIMITIVE(op, name, arity, meaning, cuda, da, db, dc, cost) [OP_##op] = ref_elementwise,
#include "ir/primitives.def"
#undef PRIMITIVE
    [OP_IN] = step_in,           [OP_PARAM] = step_scalar,
    [OP_NUMBER] = step_scalar,   [OP_SIZE] = step_scalar,
    [OP_INDEX] = ref_index,      [OP_TRANSPOSE] = ref_transpose,
    [OP_STACK] = ref_stack,      [OP_GEMM] = ref_gemm,
    [OP_CAST] = ref_cast,        [OP_BROADCAST] = ref_broadcast,
    [OP_REPEAT] = ref_repeat,    [OP_EVEN] = ref_split,
    [OP_ODD] = ref_split,        [OP_JOIN] = ref_join,
    [OP_FIRST] = ref_split,      [OP_SECOND] = ref_split,
    [OP_JOIN_HALVES] = ref_join, [OP_ROPE] = ref_rope,
    [OP_SUM] = ref_reduce,       [OP_REDUCE_MAX] = ref_reduce,
    [OP_ABSMAX] = ref_reduce,    [OP_LOGSUMEXP] = ref_reduce,
    [OP_PICK] = ref_pick,        [OP_ONEHOT] = ref_onehot,
    [OP_GATHER] = ref_gather,
};

/* last[n]: the last node that reads n; node_count where an out does. */
static void find_last_uses(const struct graph *graph, const bool *used, int *last)
{
    for (int n = 0; n < graph->node_count; n++) {
        last[n] = n;
        for (int k = 0; used[n] && k < graph->node[n].input_count; k++)
            last[graph->node[n].input[k]] = n;
    }
    for (int o = 0; o < graph->operand_count; o++)
        if (graph->operand[o].role != CODA_IN)
            last[graph->operand[o].node] = graph->node_count;
}

static coda_status evaluate_node(const struct evaluation *e, int n)
{
    const struct node *node = &e->graph->node[n];
    if (steps[node->op] == NULL)
        return fail(e->error, CODA_UNSUPPORTED, "the reference has no rule for `%s`", op_name(node->op));
    coda_status status = value_create(&node->shape, e->launch->size, &e->value[n], e->error);
    return status == CODA_OK ? steps[node->op](e, node, &e->value[n]) : status;
}

/* Leaves in `values` those that outs need. */
static coda_status evaluate_nodes(const struct evaluation *e)
{
    const struct graph *graph = e->graph;
    coda_status status = CODA_OK;
    bool *used = calloc((size_t)graph->node_count + 1, sizeof *used);
    int *last = calloc((size_t)graph->node_count + 1, sizeof *last);
    if (used == NULL || last == NULL) {
        status = fail_memory(e->error, "an evaluation", (size_t)graph->node_count * (sizeof *used + sizeof *last));
        goto done;
    }
    graph_mark_used(graph, used);
    find_last_uses(graph, used, last);
    for (int n = 0; n < graph->node_count && status == CODA_OK; n++) {
        if (!used[n])
            continue;
        status = evaluate_node(e, n);
        for (int k = 0; k < graph->node[n].input_count; k++)
            if (last[graph->node[n].input[k]] == n)
                value_release(&e->value[graph->node[n].input[k]]);
    }
done:
    free(used);
    free(last);
    return status;
}

/* What the out holds, with the value of each row at its column. */
static void patch_rows(const struct launch *launch, const struct operand *o, const struct value *x, struct value *out)
{
    const int32_t *id = launch->operand[o->ids].data;
    for (int64_t i = 0; i < out->rows; i++)
        if (id[i] >= 0 && id[i] < out->columns)
            out->data[i * out->columns + id[i]] = x->data[i];
}

/* The value in the shape of its out, plus what the out holds where it accumulates. */
static coda_status finish_out(const struct evaluation *e, int operand, struct value *out)
{
    const struct operand *o = &e->graph->operand[operand];
    const struct value *x = &e->value[o->node];
    struct reading reading = {0};
    coda_status status = value_create(&o->shape, e->launch->size, out, e->error);
    if (status == CODA_OK && o->role == CODA_PATCH) {
        value_load(out, &e->launch->operand[operand]);
        patch_rows(e->launch, o, x, out);
        return CODA_OK;
    }
    if (status == CODA_OK)
        status = reading_create(&x->shape, &o->shape, e->launch->size, &reading, e->error);
    if (status != CODA_OK)
        return status;
    bool accumulates = o->role == CODA_ACCUMULATE;
    if (accumulates)
        value_load(out, &e->launch->operand[operand]);
    for (int64_t i = 0; i < out->rows; i++)
        for (int64_t j = 0; j < out->columns; j++) {
            double *to = &out->data[i * out->columns + j];
            /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): what an out needs was evaluated before */
            *to = x->data[reading.row[i] + reading.column[j]] + (accumulates ? *to : 0);
        }
    reading_release(&reading);
    return CODA_OK;
}

coda_status evaluate(const struct graph *graph, const struct launch *launch, struct value *outs, coda_error *error)
{
    struct evaluation e = {graph, launch, NULL, error};
    e.value = calloc((size_t)graph->node_count + 1, sizeof *e.value);
    if (e.value == NULL)
        return fail_memory(error, "an evaluation", (size_t)graph->node_count * sizeof *e.value);
    coda_status status = evaluate_nodes(&e);
    for (int o = 0; o < graph->operand_count && status == CODA_OK; o++)
        if (graph->operand[o].role != CODA_IN)
            status = finish_out(&e, o, &outs[o]);
    for (int n = 0; n < graph->node_count; n++)
        value_release(&e.value[n]);
    free(e.value);
    return status;
}

coda_status ref_evaluate(const struct graph *graph, const struct launch *launch, double **out_values, coda_error *error)
{
    struct value outs[MAX_GRAPH_OPERANDS] = {0};
    coda_status status = evaluate(graph, launch, outs, error);
    for (int o = 0; o < graph->operand_count; o++) {
        if (status == CODA_OK && outs[o].data != NULL && out_values[o] != NULL)
            memcpy(out_values[o], outs[o].data, (size_t)(outs[o].rows * outs[o].columns) * sizeof(double));
        value_release(&outs[o]);
    }
    return status;
}
