/* Tidying a made program: no unused axes, `in`s before outs. */
#include "rewrite/cut.h"

#include <string.h>
#include <stdlib.h>

static void mark_dim(const struct dim *dim, bool *used)
{
    if (dim->form == DIM_ABSENT)
        return;
    if (dim->axis >= 0)
        used[dim->axis] = true;
    if (dim->form != DIM_WHOLE && dim->run.axis >= 0)
        used[dim->run.axis] = true;
}

static void mark_shape(const struct shape *shape, bool *used)
{
    for (int i = 0; i < shape->rank; i++)
        mark_dim(&shape->dim[i], used);
}

static void mark_axes(const struct graph *graph, bool *used)
{
    for (int o = 0; o < graph->operand_count; o++)
        mark_shape(&graph->operand[o].shape, used);
    for (int n = 0; n < graph->node_count; n++) {
        const struct node *node = &graph->node[n];
        mark_shape(&node->shape, used);
        mark_dim(&node->rope_cols, used);
        if (node->axis >= 0)
            used[node->axis] = true;
        if (node->run.axis >= 0)
            used[node->run.axis] = true;
    }
    for (int round = 0; round < graph->axis_count; round++)
        for (int i = 0; i < graph->axis_count; i++)
            for (int k = 0; used[i] && k < graph->axis[i].term_count; k++)
                if (graph->axis[i].term[k].axis >= 0)
                    used[graph->axis[i].term[k].axis] = true;
}

static void renumber_dim(struct dim *dim, const int *number)
{
    dim->axis = dim->axis >= 0 ? number[dim->axis] : -1;
    dim->run.axis = dim->run.axis >= 0 ? number[dim->run.axis] : -1;
}

static void renumber(struct graph *graph, const int *number)
{
    for (int o = 0; o < graph->operand_count; o++)
        for (int i = 0; i < graph->operand[o].shape.rank; i++)
            renumber_dim(&graph->operand[o].shape.dim[i], number);
    for (int n = 0; n < graph->node_count; n++) {
        struct node *node = &graph->node[n];
        for (int i = 0; i < node->shape.rank; i++)
            renumber_dim(&node->shape.dim[i], number);
        renumber_dim(&node->rope_cols, number);
        node->axis = node->axis >= 0 ? number[node->axis] : -1;
        node->run.axis = node->run.axis >= 0 ? number[node->run.axis] : -1;
    }
    for (int i = 0; i < graph->axis_count; i++)
        for (int k = 0; k < graph->axis[i].term_count; k++)
            if (graph->axis[i].term[k].axis >= 0)
                graph->axis[i].term[k].axis = number[graph->axis[i].term[k].axis];
}

void prune_axes(struct graph *graph)
{
    bool used[MAX_AXES] = {false};
    int number[MAX_AXES], count = 0;
    mark_axes(graph, used);
    for (int i = 0; i < graph->axis_count; i++) {
        number[i] = used[i] ? count : -1;
        if (used[i])
            graph->axis[count++] = graph->axis[i];
        else
            free(graph->axis[i].name);
    }
    graph->axis_count = count;
    renumber(graph, number);
}

void order_operands(struct graph *graph)
{
    struct operand sorted[MAX_GRAPH_OPERANDS] = {0};
    int count = 0, place[MAX_GRAPH_OPERANDS] = {0};
    for (int outs = 0; outs < 2; outs++)
        for (int o = 0; o < graph->operand_count; o++) {
            if ((graph->operand[o].role != CODA_IN) != outs)
                continue;
            if (!outs)
                graph->node[graph->operand[o].node].index = count;
            place[o] = count;
            sorted[count++] = graph->operand[o];
        }
    for (int o = 0; o < count; o++)
        sorted[o].ids = place[sorted[o].ids];
    graph->condition = place[graph->condition];
    memcpy(graph->operand, sorted, (size_t)count * sizeof *sorted);
}
