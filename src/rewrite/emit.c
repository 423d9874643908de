/* One program of a cut graph. */
#include "rewrite/cut.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct emission {
    struct cutting *cutting;
    struct builder *b;
    int piece, walk;
};

static bool depend(struct cutting *cutting, int piece, int on)
{
    for (int i = cutting->dependence_count - 1; i >= 0 && cutting->dependence[i].piece == piece; i--)
        if (cutting->dependence[i].on == on)
            return true;
    if (cutting->dependence_count == cutting->dependence_capacity) {
        int larger = cutting->dependence_capacity ? 2 * cutting->dependence_capacity : 64;
        struct dependence *grown = realloc(cutting->dependence, (size_t)larger * sizeof *grown);
        if (grown == NULL)
            return false;
        cutting->dependence = grown;
        cutting->dependence_capacity = larger;
    }
    cutting->dependence[cutting->dependence_count++] = (struct dependence){piece, on};
    return true;
}

static int load(struct emission *e, const struct place *place, coda_dtype dtype, const struct shape *shape)
{
    if (!depend(e->cutting, e->piece, place->piece))
        return refuse(&e->b->why, CODA_MEMORY, "", "no memory for the order of programs");
    return build_in(e->b, place->name, dtype, shape);
}

/* The type under which a value is stored: its out's, where it is one. */
static coda_dtype dtype_of_store(const struct cutting *cutting, const struct place *place, int n)
{
    int o = graph_find_operand(cutting->graph, place->name);
    return o >= 0 ? cutting->graph->operand[o].dtype : stored_dtype(cutting, n);
}

/* ---------------------------------------------------------------- nodes */

static int make_operand(struct emission *e, int n)
{
    const struct graph *graph = e->cutting->graph;
    const struct node *node = &graph->node[n];
    int input[MAX_INPUTS] = {0};
    if (node->op == OP_TRANSPOSE || node->op == OP_STACK) {
        for (int k = 0; k < node->input_count; k++)
            input[k] = make_operand(e, node->input[k]);
        return build_like(e->b, graph, n, input);
    }
    if (node->op == OP_IN)
        return build_like(e->b, graph, n, input);
    const struct place *place = &e->cutting->value[n];
    return load(e, place, dtype_of_store(e->cutting, place, n), &node->shape);
}

static int make_product(struct emission *e, int n)
{
    const struct node *node = &e->cutting->graph->node[n];
    int input[MAX_INPUTS];
    for (int k = 0; k < node->input_count; k++)
        input[k] = make_operand(e, node->input[k]);
    return build_like(e->b, e->cutting->graph, n, input);
}

static struct extent run_of(const struct piece *piece, int axis)
{
    return (struct extent){-1, axis == piece->row_axis ? ROW_RUN : COLUMN_RUN};
}

/* Finishes the stored runs of a reduction. */
static int make_finished(struct emission *e, int n)
{
    const struct graph *graph = e->cutting->graph;
    const struct node *node = &graph->node[n];
    const struct place *place = runs_of(e->cutting, n);
    struct shape shape = graph->node[node->input[0]].shape;
    if (place->piece < 0 || e->cutting->piece[place->piece].key >= e->cutting->piece[e->piece].key)
        return refuse(&e->b->why, CODA_UNSUPPORTED, "Store the value by an `out`.",
                      "a sum over a whole axis is read before it is known");
    for (int i = 0; i < shape.rank; i++)
        if (shape.dim[i].axis == node->axis && shape.dim[i].form == DIM_WHOLE) {
            shape.dim[i].form = DIM_RUNS;
            shape.dim[i].run = run_of(&e->cutting->piece[place->piece], node->axis);
        }
    return build_reduce(e->b, node->op, load(e, place, CODA_F32, &shape), node->axis, no_run());
}

/* A number or row value joined with a matrix is written out as one. */
static void spread_join(struct emission *e, int input[2])
{
    for (int k = 0; k < 2 && input[0] >= 0 && input[1] >= 0; k++)
        if (e->b->graph->node[input[k]].shape.rank < 2 && e->b->graph->node[input[1 - k]].shape.rank == 2)
            input[k] = build_broadcast(e->b, input[k], &e->b->graph->node[input[1 - k]].shape);
}

/* Everything a node is made from has been made. */
static void make_node(struct emission *e, int n)
{
    struct cutting *cutting = e->cutting;
    const struct graph *graph = cutting->graph;
    const struct node *node = &graph->node[n];
    const struct place *place = load_of(cutting, e->piece, n);
    int input[MAX_INPUTS] = {0};
    if (place != NULL) {
        cutting->made[n] = load(e, place, dtype_of_store(cutting, place, n), &node->shape);
        return;
    }
    if (node->op == OP_GEMM) {
        if (cutting->group[n] != e->piece)
            refuse(&e->b->why, CODA_UNSUPPORTED, "Store the value by an `out`.",
                   "a program reads the product of another one");
        cutting->made[n] = make_product(e, n);
    } else if (is_whole_reduction_of_value(graph, n)) {
        cutting->made[n] = make_finished(e, n);
    } else {
        for (int k = 0; k < node->input_count; k++)
            input[k] = cutting->made[node->input[k]];
        if (node->op == OP_JOIN || node->op == OP_JOIN_HALVES)
            spread_join(e, input);
        cutting->made[n] = build_like(e->b, graph, n, input);
    }
    build_name(e->b, cutting->made[n], node->name);
}

static bool is_end(const struct emission *e, int n)
{
    const struct graph *graph = e->cutting->graph;
    return graph->node[n].op == OP_GEMM || is_whole_reduction_of_value(graph, n) ||
           load_of(e->cutting, e->piece, n) != NULL;
}

static int make(struct emission *e, int root)
{
    struct cutting *cutting = e->cutting;
    const struct graph *graph = cutting->graph;
    int top = 0, *stack = cutting->stack;
    if (cutting->stamp[root] != e->walk)
        stack[top++] = root;
    while (top > 0 && !builder_failed(e->b)) {
        int n = stack[top - 1], waiting = top;
        if (cutting->stamp[n] == e->walk) {
            top--;
            continue;
        }
        for (int k = graph->node[n].input_count - 1; k >= 0 && !is_end(e, n); k--)
            if (cutting->stamp[graph->node[n].input[k]] != e->walk)
                stack[waiting++] = graph->node[n].input[k];
        if (waiting > top) {
            top = waiting;
            continue;
        }
        make_node(e, n);
        cutting->stamp[n] = e->walk;
        top--;
    }
    return builder_failed(e->b) ? -1 : cutting->made[root];
}

/* ---------------------------------------------------------------- the program */

static void make_root(struct emission *e, const struct root *root)
{
    const struct graph *graph = e->cutting->graph;
    const struct node *node = &graph->node[root->node];
    if (root->runs) {
        int x = make(e, node->input[0]);
        const struct piece *piece = &e->cutting->piece[e->piece];
        build_out(e->b, e->cutting->runs[root->node].name, CODA_OUT, CODA_F32,
                  build_reduce(e->b, node->op, x, node->axis, run_of(piece, node->axis)));
        return;
    }
    int x = make(e, root->node);
    if (root->out >= 0) {
        const struct operand *out = &graph->operand[root->out];
        build_out(e->b, out->name, out->role, out->dtype, x);
    } else {
        build_out(e->b, e->cutting->value[root->node].name, CODA_OUT, stored_dtype(e->cutting, root->node), x);
    }
}

/* Stores in the order in which their values are computed. */
static void sort_roots(const struct graph *graph, struct piece *piece)
{
    for (int i = 1; i < piece->root_count; i++)
        for (int k = i; k > 0; k--) {
            struct root *a = &piece->root[k - 1], *b = &piece->root[k], swap = *a;
            int x = a->runs ? graph->node[a->node].input[0] : a->node,
                y = b->runs ? graph->node[b->node].input[0] : b->node;
            if (x <= y)
                break;
            *a = *b;
            *b = swap;
        }
}

struct graph *emit_piece(struct cutting *cutting, int p)
{
    sort_roots(cutting->graph, &cutting->piece[p]);
    struct builder b;
    struct emission e = {cutting, &b, p, ++cutting->walk};
    if (builder_open(&b, cutting->graph, "", false)) {
        b.graph->between = false;
        const struct piece *piece = &cutting->piece[p];
        for (int g = 0; g < piece->gemm_count; g++)
            make(&e, piece->gemm[g]);
        for (int r = 0; r < piece->root_count && !builder_failed(&b); r++)
            make_root(&e, &piece->root[r]);
    }
    if (b.why.status == CODA_UNSUPPORTED && b.graph->operand_count == MAX_OPERANDS) {
        b.why.status = CODA_OK;
        refuse(&b.why, CODA_UNSUPPORTED, "Split it where few values pass from one part to the other.",
               "one of the programs that `%.60s` becomes would read and write more than %d values",
               cutting->graph->name, MAX_OPERANDS);
    }
    cutting->why = b.why;
    struct graph *graph = builder_close(&b);
    if (graph != NULL) {
        order_operands(graph);
        prune_axes(graph);
    }
    return graph;
}

static bool is_matrix(const struct shape *shape)
{
    return shape->rank == 2 && shape->dim[0].form == DIM_WHOLE &&
           (shape->dim[1].form != DIM_RUNS || is_pair_dim(&shape->dim[1]));
}

/* <stem>_<an out> */
bool name_piece(struct cutting *cutting, int p, const char *stem, struct graph *graph)
{
    char name[2 * STORED_NAME], made[STORED_NAME];
    const char *out = "";
    for (int matrices = 0; matrices < 2; matrices++) /* the first matrix, if there is one */
        for (int o = graph->operand_count - 1; o >= 0; o--)
            if (graph->operand[o].role != CODA_IN && (!matrices || is_matrix(&graph->operand[o].shape)))
                out = graph->operand[o].name;
    snprintf(name, sizeof name, "%.90s_%.90s", stem, out);
    (void)p;
    if (!names_make(&cutting->names, name, made))
        return false;
    free(graph->name);
    graph->name = strdup(made);
    return graph->name != NULL;
}
