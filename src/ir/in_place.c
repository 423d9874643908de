/* Which outs may take the place of which `in`s. */
#include "ir/graph.h"

static bool reads_by_index(const struct node *user)
{
    switch (user->op) {
    case OP_TRANSPOSE:
    case OP_STACK:
    case OP_GEMM:
    case OP_GATHER:
    case OP_ROPE:
    case OP_REPEAT:
        return true;
    default:
        return op_is_reduction(user->op) && user->run.axis < 0 && user->run.value == 0;
    }
}

/* A row or column of values is read by every tile beside it, before or after one of them writes. */
static bool is_read_by_one_tile(const struct graph *graph, const struct form *form, int node)
{
    enum space space = form->space[node];
    if (space != SPACE_ROW && space != SPACE_COLUMN)
        return true;
    for (int n = 0; n < graph->node_count; n++)
        if (form->space[n] > SPACE_UNIFORM && form->space[n] != space)
            return false;
    return true;
}

/* A condition is asked by every tile, and the ids of a patch may be read after other outs are written. */
static bool steers(const struct graph *graph, int in)
{
    bool found = graph->conditional && graph->condition == in;
    for (int i = 0; i < graph->operand_count; i++)
        found |= graph->operand[i].role == CODA_PATCH && graph->operand[i].ids == in;
    return found;
}

bool is_read_in_place(const struct graph *graph, const struct form *form, int in)
{
    int node = graph->operand[in].node;
    if (steers(graph, in))
        return false;
    if (!form->space || form->space[node] == SPACE_NONE || !is_read_by_one_tile(graph, form, node))
        return false;
    for (int n = 0; n < graph->node_count; n++) {
        const struct node *user = &graph->node[n];
        for (int k = 0; reads_by_index(user) && k < user->input_count; k++)
            if (user->input[k] == node && !(user->op == OP_ROPE && k == 0))
                return false;
    }
    return true;
}

bool may_replace(const struct graph *graph, const struct form *form, int out, int in)
{
    const struct operand *o = &graph->operand[out], *i = &graph->operand[in];
    return form->space && i->role == CODA_IN && o->role == CODA_OUT && o->dtype == i->dtype &&
           shape_equal(&o->shape, &i->shape) && form->space[o->node] == SPACE_TILE &&
           form->space[i->node] == SPACE_TILE && is_read_in_place(graph, form, in);
}
