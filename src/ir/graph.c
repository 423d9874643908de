/* Graphs: allocation, copies, names, and what a node is called. */
#include "ir/build.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- complaints */

int refuse(struct complaint *why, coda_status status, const char *advice, const char *reason, ...)
{
    if (!why)
        return -1;
    va_list arguments;
    va_start(arguments, reason);
    vsnprintf(why->reason, sizeof why->reason, reason, arguments);
    va_end(arguments);
    snprintf(why->advice, sizeof why->advice, "%s", advice);
    why->status = status;
    return -1;
}

int advise(struct complaint *why, const char *format, ...)
{
    if (!why)
        return -1;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why->advice, sizeof why->advice, format, arguments);
    va_end(arguments);
    return -1;
}

void append(char *text, int size, int *length, const char *format, ...)
{
    if (*length >= size - 1)
        return;
    va_list arguments;
    va_start(arguments, format);
    int added = vsnprintf(text + *length, (size_t)(size - *length), format, arguments);
    va_end(arguments);
    *length = added < 0 ? *length : added < size - *length ? *length + added : size - 1;
}

/* ---------------------------------------------------------------- allocation */

struct graph *graph_new(const char *name, bool is_block)
{
    struct graph *graph = calloc(1, sizeof *graph);
    if (!graph)
        return NULL;
    graph->is_block = is_block;
    graph->name = strdup(name ? name : "");
    if (!graph->name) {
        free(graph);
        return NULL;
    }
    return graph;
}

void graph_free(struct graph *graph)
{
    if (!graph)
        return;
    for (int i = 0; i < graph->axis_count; i++)
        free(graph->axis[i].name);
    for (int i = 0; i < graph->operand_count; i++)
        free(graph->operand[i].name);
    for (int i = 0; i < graph->parameter_count; i++)
        free(graph->parameter[i].name);
    for (int i = 0; i < graph->node_count; i++)
        free(graph->node[i].name);
    free(graph->node);
    free(graph->operand);
    free(graph->name);
    free(graph);
}

/* Replaces a borrowed name by an own copy; clears *complete where memory is short. */
static void own_name(char **name, bool *complete)
{
    if (!*name)
        return;
    *name = strdup(*name);
    if (!*name)
        *complete = false;
}

struct graph *graph_copy(const struct graph *graph)
{
    struct graph *copy = malloc(sizeof *copy);
    struct node *nodes = calloc(graph->node_count ? (size_t)graph->node_count : 1, sizeof *nodes);
    struct operand *operands = calloc(graph->operand_count ? (size_t)graph->operand_count : 1, sizeof *operands);
    if (!copy || !nodes || !operands) {
        free(copy);
        free(nodes);
        free(operands);
        return NULL;
    }
    *copy = *graph;
    copy->operand = operands;
    copy->operand_capacity = graph->operand_count ? graph->operand_count : 1;
    if (graph->operand_count)
        memcpy(operands, graph->operand, (size_t)graph->operand_count * sizeof *operands);
    copy->node = nodes;
    copy->node_capacity = graph->node_count ? graph->node_count : 1;
    if (graph->node_count)
        memcpy(nodes, graph->node, (size_t)graph->node_count * sizeof *nodes);

    bool complete = true;
    own_name(&copy->name, &complete);
    for (int i = 0; i < copy->axis_count; i++)
        own_name(&copy->axis[i].name, &complete);
    for (int i = 0; i < copy->operand_count; i++)
        own_name(&copy->operand[i].name, &complete);
    for (int i = 0; i < copy->parameter_count; i++)
        own_name(&copy->parameter[i].name, &complete);
    for (int i = 0; i < copy->node_count; i++)
        own_name(&copy->node[i].name, &complete);
    if (!complete) {
        graph_free(copy);
        return NULL;
    }
    return copy;
}

struct graph *graph_retype(const struct graph *graph, coda_dtype from, coda_dtype to)
{
    struct graph *copy = graph_copy(graph);
    if (!copy)
        return NULL;
    for (int i = 0; i < copy->operand_count; i++)
        if (copy->operand[i].dtype == from)
            copy->operand[i].dtype = to;
    for (int i = 0; i < copy->node_count; i++) {
        struct node *node = &copy->node[i];
        if ((node->op == OP_IN || node->op == OP_CAST) && node->dtype == from)
            node->dtype = to;
    }
    return copy;
}

struct node node_of(enum op op)
{
    struct node node;
    memset(&node, 0, sizeof node);
    node.op = op;
    node.axis = -1;
    node.run = no_run();
    node.rope_cols.axis = -1;
    node.rope_cols.run = no_run();
    node.shape = scalar_shape();
    return node;
}

int add_node(struct graph *graph, const struct node *node, struct complaint *why)
{
    if (graph->node_count >= MAX_NODES)
        return refuse(why, CODA_UNSUPPORTED, "Split the program in two.", "more than %d operations in `%s`", MAX_NODES,
                      graph->name);
    if (graph->node_count == graph->node_capacity) {
        int capacity = graph->node_capacity ? 2 * graph->node_capacity : 32;
        struct node *grown = realloc(graph->node, (size_t)capacity * sizeof *grown);
        if (!grown)
            return refuse(why, CODA_MEMORY, "", "no memory for %d operations", capacity);
        graph->node = grown;
        graph->node_capacity = capacity;
    }
    graph->node[graph->node_count] = *node;
    return graph->node_count++;
}

bool check_inputs(const struct graph *graph, const int *input, int count, struct complaint *why)
{
    for (int i = 0; i < count; i++)
        if (input[i] < 0 || input[i] >= graph->node_count) {
            refuse(why, CODA_INVALID, "", "input %d is no value of `%s`", i + 1, graph->name);
            return false;
        }
    return true;
}

/* ---------------------------------------------------------------- names */

int graph_find_axis(const struct graph *graph, const char *name)
{
    for (int i = 0; i < graph->axis_count; i++)
        if (strcmp(graph->axis[i].name, name) == 0)
            return i;
    return -1;
}

int graph_add_axis(struct graph *graph, const char *name, struct complaint *why)
{
    int found = graph_find_axis(graph, name);
    if (found >= 0)
        return found;
    if (graph->axis_count >= MAX_AXES)
        return refuse(why, CODA_UNSUPPORTED, "Split the program, or share axes that have the same size.",
                      "`%.100s` is one axis too many: a program has at most %d", name, MAX_AXES);
    struct axis *axis = &graph->axis[graph->axis_count];
    memset(axis, 0, sizeof *axis);
    axis->name = strdup(name);
    if (!axis->name)
        return refuse(why, CODA_MEMORY, "", "no memory for the name of an axis");
    return graph->axis_count++;
}

int graph_find_operand(const struct graph *graph, const char *name)
{
    for (int i = 0; i < graph->operand_count; i++)
        if (strcmp(graph->operand[i].name, name) == 0)
            return i;
    return -1;
}

const char *axis_name(const struct graph *graph, int axis)
{
    return axis >= 0 && axis < graph->axis_count ? graph->axis[axis].name : "?";
}

void label(const struct graph *graph, int index, char *text, int size)
{
    const struct node *node = &graph->node[index];
    const char *name = node->name;
    char shape[SHAPE_TEXT];
    int length = 0;
    if (node->op == OP_IN && node->index >= 0 && node->index < graph->operand_count)
        name = graph->operand[node->index].name;
    if (node->op == OP_PARAM && node->index >= 0 && node->index < graph->parameter_count)
        name = graph->parameter[node->index].name;
    shape_print(graph, &node->shape, shape, sizeof shape);
    text[0] = '\0';
    if (node->op == OP_NUMBER)
        append(text, size, &length, "the number %g", node->number);
    else if (node->op == OP_SIZE)
        append(text, size, &length, "the size of %.60s", axis_name(graph, node->axis));
    else if (name)
        append(text, size, &length, "`%.60s`%s%s", name, node->shape.rank ? " " : "", node->shape.rank ? shape : "");
    else if (node->shape.rank)
        append(text, size, &length, "a value %s", shape);
    else
        append(text, size, &length, "a number");
}

/* ---------------------------------------------------------------- operations */

static const struct {
    const char *name;
    int arity;
    double cost;
} operations[OP_COUNT] = {
    [OP_IN] = {"in", 0, 0},
    [OP_PARAM] = {"param", 0, 0},
    [OP_NUMBER] = {"number", 0, 0},
    [OP_SIZE] = {"size", 0, 0},
    [OP_INDEX] = {"index", 0, 0},
    [OP_TRANSPOSE] = {".T", 0, 0},
    [OP_STACK] = {"stack", 0, 0},
    [OP_GEMM] = {"@", 0, 0},
#define PRIMITIVE(op, name, arity, meaning, cuda, da, db, dc, cost) [OP_##op] = {name, arity, cost},
#include "ir/primitives.def"
#undef PRIMITIVE
    [OP_CAST] = {"cast", 0, 1},
    [OP_BROADCAST] = {"broadcast", 0, 0},
    [OP_REPEAT] = {"repeat", 0, 0},
    [OP_EVEN] = {"pairs", 0, 0},
    [OP_ODD] = {"pairs", 0, 0},
    [OP_JOIN] = {"join", 0, 0},
    [OP_FIRST] = {"halves", 0, 0},
    [OP_SECOND] = {"halves", 0, 0},
    [OP_JOIN_HALVES] = {"join_halves", 0, 0},
    [OP_ROPE] = {"rope", 0, 3},
    [OP_SUM] = {"sum", 0, 1},
    [OP_REDUCE_MAX] = {"max", 0, 1},
    [OP_ABSMAX] = {"absmax", 0, 2},
    [OP_LOGSUMEXP] = {"logsumexp", 0, 10},
    [OP_PICK] = {"pick", 0, 1},
    [OP_ONEHOT] = {"onehot", 0, 1},
    [OP_GATHER] = {"gather", 0, 0},
};

bool op_is_elementwise(enum op op)
{
    return (int)op >= 0 && op < OP_COUNT && operations[op].arity > 0;
}

bool op_is_reduction(enum op op)
{
    return op >= OP_SUM && op <= OP_LOGSUMEXP;
}

const char *op_name(enum op op)
{
    return (int)op >= 0 && op < OP_COUNT ? operations[op].name : "?";
}

int op_arity(enum op op)
{
    return (int)op >= 0 && op < OP_COUNT ? operations[op].arity : 0;
}

double op_cost(enum op op)
{
    return (int)op >= 0 && op < OP_COUNT ? operations[op].cost : 0;
}

void graph_mark_used(const struct graph *graph, bool *used)
{
    for (int i = 0; i < graph->node_count; i++)
        used[i] = false;
    for (int i = 0; i < graph->operand_count; i++)
        if (graph->operand[i].role != CODA_IN && graph->operand[i].node >= 0)
            used[graph->operand[i].node] = true;
    for (int i = graph->node_count - 1; i >= 0; i--)
        for (int k = 0; used[i] && k < graph->node[i].input_count; k++)
            used[graph->node[i].input[k]] = true;
}
