#include "rewrite/builder.h"

#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- opening and closing */

static bool copy_axes(const struct graph *from, struct graph *to)
{
    for (int i = 0; i < from->axis_count; i++) {
        to->axis[i] = from->axis[i];
        to->axis[i].name = strdup(from->axis[i].name);
        if (to->axis[i].name == NULL)
            return false;
        to->axis_count++;
    }
    return true;
}

bool builder_open(struct builder *b, const struct graph *like, const char *name, bool is_block)
{
    memset(b, 0, sizeof *b);
    b->slot_count = 256;
    b->slot = calloc((size_t)b->slot_count, sizeof *b->slot);
    b->graph = graph_new(name, is_block);
    if (b->graph != NULL)
        b->graph->between = true;
    if (b->slot != NULL && b->graph != NULL && copy_axes(like, b->graph))
        return true;
    refuse(&b->why, CODA_MEMORY, "", "no memory for a graph");
    return false;
}

struct graph *builder_close(struct builder *b)
{
    struct graph *graph = b->graph;
    if (b->why.status != CODA_OK) {
        graph_free(graph);
        graph = NULL;
    }
    b->graph = NULL;
    builder_release(b);
    return graph;
}

void builder_release(struct builder *b)
{
    graph_free(b->graph);
    free(b->slot);
    b->graph = NULL;
    b->slot = NULL;
}

bool builder_failed(const struct builder *b)
{
    return b->why.status != CODA_OK;
}

/* ---------------------------------------------------------------- equal nodes are one node */

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash ^= value + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
    hash *= 0xff51afd7ed558ccdu;
    return hash ^ hash >> 33;
}

static bool commutes(enum op op)
{
    return op == OP_ADD || op == OP_MUL;
}

static uint64_t hash_dim(uint64_t hash, const struct dim *dim)
{
    hash = mix(hash, (uint64_t)dim->form);
    hash = mix(hash, (uint64_t)dim->axis);
    hash = mix(hash, (uint64_t)dim->constant);
    return mix(hash, (uint64_t)dim->run.value ^ (uint64_t)dim->run.axis << 32);
}

static uint64_t hash_node(const struct node *node)
{
    uint64_t hash = mix(1, (uint64_t)node->op), number;
    if (commutes(node->op)) {
        bool ordered = node->input[0] < node->input[1];
        hash = mix(mix(hash, (uint64_t)node->input[!ordered]), (uint64_t)node->input[ordered]);
    } else {
        for (int i = 0; i < node->input_count; i++)
            hash = mix(hash, (uint64_t)node->input[i]);
    }
    memcpy(&number, &node->number, sizeof number);
    hash = mix(hash, number);
    hash = mix(hash, (uint64_t)node->axis ^ (uint64_t)node->dtype << 8);
    hash = mix(hash, (uint64_t)node->run.value ^ (uint64_t)node->run.axis << 32);
    hash = hash_dim(hash, &node->rope_cols);
    return node->op == OP_BROADCAST ? hash_dim(hash_dim(hash, &node->shape.dim[0]), &node->shape.dim[1]) : hash;
}

static bool nodes_equal(const struct node *a, const struct node *b)
{
    if (a->op != b->op || a->input_count != b->input_count || !shape_equal(&a->shape, &b->shape))
        return false;
    bool same = true, swapped = commutes(a->op) && a->input[0] == b->input[1] && a->input[1] == b->input[0];
    for (int i = 0; i < a->input_count; i++)
        same = same && a->input[i] == b->input[i];
    return (same || swapped) && a->number == b->number && a->axis == b->axis && a->dtype == b->dtype &&
           extent_equal(a->run, b->run) && a->rope_pairs == b->rope_pairs && a->rope_inverse == b->rope_inverse &&
           dim_equal(&a->rope_cols, &b->rope_cols);
}

static void place(struct builder *b, int node)
{
    uint64_t at = hash_node(&b->graph->node[node]);
    while (b->slot[at & (uint64_t)(b->slot_count - 1)] != 0)
        at++;
    b->slot[at & (uint64_t)(b->slot_count - 1)] = node + 1;
    b->slots_used++;
}

static bool grow(struct builder *b)
{
    int *old = b->slot, old_count = b->slot_count;
    int *larger = calloc((size_t)old_count * 2, sizeof *larger);
    if (larger == NULL) {
        refuse(&b->why, CODA_MEMORY, "", "no memory for a table of %d nodes", old_count * 2);
        return false;
    }
    b->slot = larger;
    b->slot_count = 2 * old_count;
    b->slots_used = 0;
    for (int i = 0; i < old_count; i++)
        if (old[i] != 0)
            place(b, old[i] - 1);
    free(old);
    return true;
}

/* `created` is the node that a graph_* function just appended (or an older one, which is kept). */
static int intern(struct builder *b, int created, int count_before)
{
    struct graph *graph = b->graph;
    if (created < 0 || created < count_before)
        return created;
    uint64_t at = hash_node(&graph->node[created]);
    for (;; at++) {
        int found = b->slot[at & (uint64_t)(b->slot_count - 1)] - 1;
        if (found < 0)
            break;
        if (nodes_equal(&graph->node[found], &graph->node[created])) {
            graph->node_count--;
            return found;
        }
    }
    if (2 * b->slots_used >= b->slot_count && !grow(b))
        return -1;
    place(b, created);
    return created;
}

static bool ready(const struct builder *b, const int *input, int count)
{
    if (b->why.status != CODA_OK)
        return false;
    for (int i = 0; i < count; i++)
        if (input[i] < 0)
            return false;
    return true;
}

/* The first refusal is the one to report. */
#define MADE(b, call)                                                                                                  \
    do {                                                                                                               \
        int before_ = (b)->graph->node_count;                                                                          \
        return intern(b, call, before_);                                                                               \
    } while (0)

/* ---------------------------------------------------------------- leaves */

int build_in(struct builder *b, const char *name, coda_dtype dtype, const struct shape *shape)
{
    if (!ready(b, NULL, 0))
        return -1;
    int found = graph_find_operand(b->graph, name);
    return found >= 0 ? b->graph->operand[found].node : graph_in(b->graph, name, dtype, shape, &b->why);
}

int build_parameter(struct builder *b, const char *name, double default_value)
{
    if (!ready(b, NULL, 0))
        return -1;
    for (int i = 0; i < b->graph->parameter_count; i++)
        if (strcmp(b->graph->parameter[i].name, name) == 0)
            return b->graph->parameter[i].node;
    return graph_parameter(b->graph, name, default_value, &b->why);
}

int build_out(struct builder *b, const char *name, coda_role role, coda_dtype dtype, int value)
{
    if (value < 0 && b->why.status == CODA_OK)
        return refuse(&b->why, CODA_UNSUPPORTED, "", "no rule computes `%.60s`", name);
    if (!ready(b, &value, 1))
        return -1;
    struct shape shape = b->graph->node[value].shape;
    return graph_out(b->graph, name, role, dtype, &shape, value, &b->why);
}

int build_number(struct builder *b, double number)
{
    if (!ready(b, NULL, 0))
        return -1;
    MADE(b, graph_number(b->graph, number + 0.0, &b->why));
}

int build_size(struct builder *b, int axis)
{
    if (!ready(b, NULL, 0))
        return -1;
    MADE(b, graph_size(b->graph, axis, &b->why));
}

/* ---------------------------------------------------------------- operations */

int build_elementwise(struct builder *b, enum op op, const int *input, int count)
{
    if (!ready(b, input, count))
        return -1;
    int folded = fold(b, op, input);
    if (folded != NOT_FOLDED)
        return folded;
    MADE(b, graph_elementwise(b->graph, op, input, count, &b->why));
}

int build_binary(struct builder *b, enum op op, int x, int y)
{
    int input[2] = {x, y};
    return build_elementwise(b, op, input, 2);
}

int build_negative(struct builder *b, int x)
{
    return build_elementwise(b, OP_NEG, &x, 1);
}

int build_where(struct builder *b, int condition, int x, int y)
{
    int input[3] = {condition, x, y};
    return build_elementwise(b, OP_WHERE, input, 3);
}

int build_gemm(struct builder *b, int left, int right)
{
    int input[2] = {left, right};
    if (!ready(b, input, 2))
        return -1;
    MADE(b, graph_gemm(b->graph, left, right, &b->why));
}

int build_transpose(struct builder *b, int x)
{
    if (!ready(b, &x, 1))
        return -1;
    MADE(b, graph_transpose(b->graph, x, &b->why));
}

int build_reduce(struct builder *b, enum op op, int x, int axis, struct extent run)
{
    if (!ready(b, &x, 1))
        return -1;
    if (!b->plain && op == OP_SUM && is_number(b->graph, x, 0))
        return x;
    MADE(b, graph_reduce(b->graph, op, x, axis, run, &b->why));
}

int build_broadcast(struct builder *b, int x, const struct shape *shape)
{
    if (!ready(b, &x, 1))
        return -1;
    if (!b->plain && shape_equal(&b->graph->node[x].shape, shape))
        return x;
    if (!b->plain && b->graph->node[x].op == OP_BROADCAST)
        x = b->graph->node[x].input[0];
    MADE(b, graph_broadcast(b->graph, x, shape, &b->why));
}

static int build_pairwise(struct builder *b, const struct node *node, const int *input)
{
    struct graph *graph = b->graph;
    int folded = fold(b, node->op, input);
    if (folded >= 0 && node->op != OP_ROPE) {
        const struct node *x = &graph->node[input[0]];
        bool halves = node->op == OP_FIRST || node->op == OP_SECOND;
        if (!halves || extent_equal(x->run, node->run))
            return folded;
    }
    switch (node->op) {
    case OP_EVEN:
    case OP_ODD:
        MADE(b, graph_pair(graph, node->op, input[0], &b->why));
    case OP_JOIN:
        MADE(b, graph_join(graph, input[0], input[1], &b->why));
    case OP_FIRST:
    case OP_SECOND:
        MADE(b, graph_half(graph, node->op, input[0], node->run, &b->why));
    case OP_JOIN_HALVES:
        MADE(b, graph_join_halves(graph, input[0], input[1], node->run, &b->why));
    default:
        MADE(b, graph_rope(graph, input[0], input[1], input[2], node->rope_pairs, node->rope_inverse, &node->rope_cols,
                           &b->why));
    }
}

static int build_products(struct builder *b, const struct node *node, const int *input)
{
    int sum = build_gemm(b, input[0], input[1]);
    for (int i = 2; i < node->input_count; i += 2) {
        int next = build_gemm(b, input[i], input[i + 1]);
        int pair[2] = {sum, next};
        if (!ready(b, pair, 2))
            return -1;
        int before = b->graph->node_count;
        sum = intern(b, graph_elementwise(b->graph, OP_ADD, pair, 2, &b->why), before);
    }
    return sum;
}

static int build_leaf(struct builder *b, const struct graph *from, const struct node *node)
{
    switch (node->op) {
    case OP_IN:
        return build_in(b, from->operand[node->index].name, node->dtype, &node->shape);
    case OP_PARAM:
        return build_parameter(b, from->parameter[node->index].name, from->parameter[node->index].default_value);
    case OP_NUMBER:
        return build_number(b, node->number);
    case OP_SIZE:
        return build_size(b, node->axis);
    default:
        MADE(b, graph_index(b->graph, node->axis, &b->why));
    }
}

int build_like(struct builder *b, const struct graph *from, int index, const int *input)
{
    const struct node *node = &from->node[index];
    struct graph *graph = b->graph;
    if (!ready(b, input, node->input_count))
        return -1;
    if (op_is_elementwise(node->op))
        return build_elementwise(b, node->op, input, node->input_count);
    if (op_is_reduction(node->op))
        return build_reduce(b, node->op, input[0], node->axis, node->run);
    switch (node->op) {
    case OP_IN:
    case OP_PARAM:
    case OP_NUMBER:
    case OP_SIZE:
    case OP_INDEX:
        return build_leaf(b, from, node);
    case OP_TRANSPOSE:
        return build_transpose(b, input[0]);
    case OP_STACK:
        MADE(b, graph_stack(graph, input, node->input_count, &b->why));
    case OP_GEMM:
        return build_products(b, node, input);
    case OP_CAST:
        MADE(b, graph_cast(graph, input[0], node->dtype, &b->why));
    case OP_BROADCAST:
        return build_broadcast(b, input[0], &node->shape);
    case OP_REPEAT:
        MADE(b, graph_repeat(graph, input[0], node->axis, &b->why));
    case OP_PICK:
        MADE(b, graph_pick(graph, input[0], input[1], &b->why));
    case OP_ONEHOT:
        MADE(b, graph_onehot(graph, input[0], node->axis, &b->why));
    case OP_GATHER:
        MADE(b, graph_gather(graph, input[0], input[1], &b->why));
    default:
        return build_pairwise(b, node, input);
    }
}

/* ---------------------------------------------------------------- names and questions */

void build_name(struct builder *b, int node, const char *name)
{
    if (!ready(b, &node, 1) || name == NULL || b->graph->node[node].name != NULL)
        return;
    enum op op = b->graph->node[node].op;
    if (op == OP_IN || op == OP_PARAM || op == OP_NUMBER || op == OP_SIZE)
        return;
    b->graph->node[node].name = strdup(name);
    if (b->graph->node[node].name == NULL)
        refuse(&b->why, CODA_MEMORY, "", "no memory for a name");
}

bool is_number(const struct graph *graph, int node, double number)
{
    return node >= 0 && graph->node[node].op == OP_NUMBER && graph->node[node].number == number;
}

bool has_axis(const struct shape *shape, int axis)
{
    for (int i = 0; i < shape->rank; i++)
        if (shape->dim[i].axis == axis)
            return true;
    return false;
}

bool is_nonzero(const struct graph *graph, int node)
{
    const struct node *n = &graph->node[node];
    switch (n->op) {
    case OP_SIZE:
    case OP_RSQRT:
    case OP_EXP:
    case OP_SIGMOID:
        return true;
    case OP_NUMBER:
        return n->number != 0;
    case OP_MUL:
        return is_nonzero(graph, n->input[0]) && is_nonzero(graph, n->input[1]);
    case OP_BROADCAST:
    case OP_NEG:
        return is_nonzero(graph, n->input[0]);
    default:
        return false;
    }
}
