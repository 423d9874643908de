/* One program an operator: how a framework without fusion runs the same mathematics. Fused kernels are timed against
 * this chain, and their errors compared with its. */
#include "rewrite/rewrite.h"
#include "runtime/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct unfusing {
    const struct graph *graph;
    coda_dtype narrow; /* what tiles are stored as between operators */
    bool *stored;      /* one a node: written by a program of its own */
    int *direct;       /* one a node: the out that it is written to; -1: an intermediate of its own */
    int *copy;         /* one a node: its node in the program being built; -1: not there */
    struct graph *program;
    struct unit unit;
    int room;
    struct complaint why;
};

static bool is_tile(const struct shape *shape)
{
    return shape->rank == 2 && shape->dim[0].form == DIM_WHOLE && shape->dim[1].form != DIM_RUNS;
}

/* Views, constants and what a framework computes on the fly are part of the operator that reads them. */
static bool is_stored(const struct node *n)
{
    switch (n->op) {
    case OP_IN:
    case OP_PARAM:
    case OP_NUMBER:
    case OP_SIZE:
    case OP_INDEX:
    case OP_TRANSPOSE:
    case OP_STACK:
    case OP_BROADCAST:
    case OP_REPEAT:
    case OP_ONEHOT:
    case OP_EVEN:
    case OP_ODD:
    case OP_FIRST:
    case OP_SECOND:
        return false;
    default:
        break;
    }
    for (int i = 0; i < n->shape.rank; i++)
        if (n->shape.dim[i].form == DIM_HALVES ||
            (n->shape.dim[i].form == DIM_RUNS && n->shape.dim[i].run.axis < 0 && n->shape.dim[i].run.value == 2))
            return false;
    return n->shape.rank > 0;
}

/* The type of the products' operands, else of the widest tile operand. */
static coda_dtype narrow_type(const struct graph *graph)
{
    coda_dtype widest = CODA_BF16;
    bool has_product = false;
    for (int i = 0; i < graph->node_count; i++)
        has_product |= graph->node[i].op == OP_GEMM;
    for (int i = 0; i < graph->operand_count; i++) {
        const struct operand *operand = &graph->operand[i];
        if (operand->role != CODA_IN || operand->shape.rank != 2 || operand->dtype == CODA_I32)
            continue;
        if (operand->dtype == CODA_F16 && widest == CODA_BF16)
            widest = CODA_F16;
        if (operand->dtype == CODA_F32 && !has_product && is_tile(&operand->shape))
            widest = CODA_F32;
    }
    for (int i = 0; has_product && i < graph->node_count; i++) {
        const struct node *n = &graph->node[i];
        for (int k = 0; n->op == OP_GEMM && k < n->input_count; k++) {
            const struct node *x = &graph->node[n->input[k]];
            while (x->op == OP_TRANSPOSE || x->op == OP_STACK)
                x = &graph->node[x->input[0]];
            if (x->op == OP_IN && x->dtype == CODA_F32)
                return CODA_F32;
        }
    }
    return widest;
}

static coda_dtype stored_type(const struct unfusing *u, int node)
{
    const struct node *n = &u->graph->node[node];
    if (u->direct[node] >= 0)
        return u->graph->operand[u->direct[node]].dtype;
    if (n->op == OP_CAST && is_tile(&n->shape))
        return n->dtype;
    return is_tile(&n->shape) ? u->narrow : CODA_F32;
}

static void stored_name(const struct unfusing *u, int node, char *name, size_t size)
{
    const struct node *n = &u->graph->node[node];
    if (u->direct[node] >= 0)
        snprintf(name, size, "%s", u->graph->operand[u->direct[node]].name);
    else if (n->name)
        snprintf(name, size, "%s", n->name);
    else
        snprintf(name, size, "stored_%d", node);
}

/* A stored value that one out takes, and nothing else needs in another type, goes straight there. */
static void choose_direct(struct unfusing *u)
{
    for (int i = 0; i < u->graph->node_count; i++)
        u->direct[i] = -1;
    for (int i = 0; i < u->graph->operand_count; i++) {
        const struct operand *operand = &u->graph->operand[i];
        int node = operand->node;
        if (operand->role != CODA_OUT || !u->stored[node] || u->direct[node] >= 0 ||
            !shape_equal(&operand->shape, &u->graph->node[node].shape))
            continue;
        coda_dtype type = is_tile(&operand->shape) ? u->narrow : CODA_F32;
        if (operand->dtype == type)
            u->direct[node] = i;
    }
}

/* ---- building one program */

static struct graph *empty_program(struct unfusing *u)
{
    char name[256];
    snprintf(name, sizeof name, "%.190s_%d", u->graph->name, u->unit.count + 1);
    struct graph *program = graph_new(name, false);
    if (!program)
        return NULL;
    for (int i = 0; i < u->graph->axis_count; i++) {
        if (graph_add_axis(program, u->graph->axis[i].name, &u->why) != i) {
            graph_free(program);
            return NULL;
        }
        program->axis[i].term_count = u->graph->axis[i].term_count;
        memcpy(program->axis[i].term, u->graph->axis[i].term, sizeof program->axis[i].term);
    }
    for (int i = 0; i < u->graph->node_count; i++)
        u->copy[i] = -1;
    return program;
}

static int build(struct unfusing *u, int node, bool root);

static int build_leaf(struct unfusing *u, int node)
{
    const struct node *n = &u->graph->node[node];
    switch (n->op) {
    case OP_IN:
        return graph_in(u->program, u->graph->operand[n->index].name, n->dtype, &n->shape, &u->why);
    case OP_PARAM:
        return graph_parameter(u->program, u->graph->parameter[n->index].name,
                               u->graph->parameter[n->index].default_value, &u->why);
    case OP_NUMBER:
        return graph_number(u->program, n->number, &u->why);
    case OP_SIZE:
        return graph_size(u->program, n->axis, &u->why);
    default:
        return graph_index(u->program, n->axis, &u->why);
    }
}

static int build_product(struct unfusing *u, const int *input, int count)
{
    int sum = -1;
    for (int i = 0; i < count; i += 2) {
        int product = graph_gemm(u->program, input[i], input[i + 1], &u->why);
        int both[2] = {sum, product};
        if (product < 0)
            return -1;
        sum = sum < 0 ? product : graph_elementwise(u->program, OP_ADD, both, 2, &u->why);
        if (sum < 0)
            return -1;
    }
    return sum;
}

static int build_operation(struct unfusing *u, const struct node *n, const int *x)
{
    struct graph *to = u->program;
    struct complaint *why = &u->why;
    switch (n->op) {
    case OP_TRANSPOSE:
        return graph_transpose(to, x[0], why);
    case OP_STACK:
        return graph_stack(to, x, n->input_count, why);
    case OP_GEMM:
        return build_product(u, x, n->input_count);
    case OP_CAST:
        return graph_cast(to, x[0], n->dtype, why);
    case OP_BROADCAST:
        return graph_broadcast(to, x[0], &n->shape, why);
    case OP_REPEAT:
        return graph_repeat(to, x[0], n->axis, why);
    case OP_EVEN:
    case OP_ODD:
        return graph_pair(to, n->op, x[0], why);
    case OP_JOIN:
        return graph_join(to, x[0], x[1], why);
    case OP_FIRST:
    case OP_SECOND:
        return graph_half(to, n->op, x[0], n->run, why);
    case OP_JOIN_HALVES:
        return graph_join_halves(to, x[0], x[1], n->run, why);
    case OP_ROPE:
        return graph_rope(to, x[0], x[1], x[2], n->rope_pairs, n->rope_inverse, &n->rope_cols, why);
    case OP_PICK:
        return graph_pick(to, x[0], x[1], why);
    case OP_ONEHOT:
        return graph_onehot(to, x[0], n->axis, why);
    case OP_GATHER:
        return graph_gather(to, x[0], x[1], why);
    default:
        if (op_is_reduction(n->op))
            return graph_reduce(to, n->op, x[0], n->axis, n->run, why);
        return graph_elementwise(to, n->op, x, n->input_count, why);
    }
}

static int build(struct unfusing *u, int node, bool root)
{
    const struct node *n = &u->graph->node[node];
    int input[MAX_INPUTS] = {0};
    if (u->copy[node] >= 0)
        return u->copy[node];
    if (u->stored[node] && !root) {
        char name[256];
        stored_name(u, node, name, sizeof name);
        return u->copy[node] = graph_in(u->program, name, stored_type(u, node), &n->shape, &u->why);
    }
    if (n->input_count == 0)
        return u->copy[node] = build_leaf(u, node);
    for (int i = 0; i < n->input_count; i++)
        if ((input[i] = build(u, n->input[i], false)) < 0)
            return -1;
    return u->copy[node] = build_operation(u, n, input);
}

/* Keeps the program that was begun, if it was `made`. */
static coda_status keep_program(struct unfusing *u, bool made)
{
    if (!made) {
        graph_free(u->program);
        return u->why.status ? u->why.status : CODA_MEMORY;
    }
    if (u->unit.count == u->room) {
        int room = u->room ? 2 * u->room : 16;
        struct graph **larger = realloc(u->unit.graph, (size_t)room * sizeof *larger);
        if (!larger) {
            graph_free(u->program);
            return CODA_MEMORY;
        }
        u->unit.graph = larger;
        u->room = room;
    }
    u->unit.graph[u->unit.count++] = u->program;
    return CODA_OK;
}

static coda_status add_program(struct unfusing *u, int node, bool root, const char *name, coda_role role,
                               coda_dtype dtype, const struct shape *shape)
{
    u->program = empty_program(u);
    if (!u->program)
        return u->why.status ? u->why.status : CODA_MEMORY;
    int value = build(u, node, root);
    return keep_program(u, value >= 0 && graph_out(u->program, name, role, dtype, shape, value, &u->why) == 0);
}

static coda_status add_patch(struct unfusing *u, const struct operand *out)
{
    u->program = empty_program(u);
    if (!u->program)
        return u->why.status ? u->why.status : CODA_MEMORY;
    int value = build(u, out->node, false), ids = value < 0 ? -1 : build(u, u->graph->operand[out->ids].node, false);
    return keep_program(u, ids >= 0 &&
                               graph_patch(u->program, out->name, out->dtype, &out->shape, value, ids, &u->why) == 0);
}

static coda_status add_programs(struct unfusing *u)
{
    coda_status status = CODA_OK;
    for (int i = 0; i < u->graph->node_count && status == CODA_OK; i++) {
        const struct node *n = &u->graph->node[i];
        if (!u->stored[i])
            continue;
        char name[256];
        stored_name(u, i, name, sizeof name);
        status = add_program(u, i, true, name, CODA_OUT, stored_type(u, i), &n->shape);
    }
    for (int i = 0; i < u->graph->operand_count && status == CODA_OK; i++) {
        const struct operand *operand = &u->graph->operand[i];
        if (operand->role == CODA_IN || u->direct[operand->node] == i)
            continue;
        status = operand->role == CODA_PATCH ? add_patch(u, operand)
                                             : add_program(u, operand->node, false, operand->name, operand->role,
                                                           operand->dtype, &operand->shape);
    }
    return status;
}

coda_status unfuse(const struct graph *graph, struct unit *unit, coda_error *error)
{
    size_t nodes = (size_t)graph->node_count + 1;
    struct unfusing u = {.graph = graph, .narrow = narrow_type(graph)};
    coda_status status = CODA_MEMORY;
    u.stored = calloc(nodes, sizeof *u.stored);
    u.direct = calloc(nodes, sizeof *u.direct);
    u.copy = calloc(nodes, sizeof *u.copy);
    if (u.stored && u.direct && u.copy) {
        graph_mark_used(graph, u.stored);
        for (int i = 0; i < graph->node_count; i++)
            u.stored[i] = u.stored[i] && is_stored(&graph->node[i]);
        choose_direct(&u);
        status = add_programs(&u);
    }
    free(u.stored);
    free(u.direct);
    free(u.copy);
    if (status == CODA_OK) {
        *unit = u.unit;
        return CODA_OK;
    }
    unit_free(&u.unit);
    if (u.why.status != CODA_OK)
        return fail_complaint(error, &u.why);
    return fail_memory(error, "the unfused programs", nodes * sizeof *u.copy);
}
