/* Finds a cross-entropy among the programs of a block. */
#include "ir/build.h"
#include "rewrite/exponentials.h"

#include <string.h>

const struct operand *operand_named(const struct graph *graph, const char *name)
{
    int o = name ? graph_find_operand(graph, name) : -1;
    return o >= 0 ? &graph->operand[o] : NULL;
}

bool is_in_named(const struct graph *graph, int node, const char *name)
{
    const struct node *n = &graph->node[node];
    return name && n->op == OP_IN && strcmp(graph->operand[n->index].name, name) == 0;
}

static const struct operand *operand_of(const struct graph *graph, const char *name, bool out)
{
    const struct operand *operand = operand_named(graph, name);
    return operand && (operand->role != CODA_IN) == out ? operand : NULL;
}

/* The only program that reads (or writes) the value; -1: none does, or several do. */
static int only_user(const struct unit *unit, const char *name, bool writes)
{
    int found = -1;
    for (int p = 0; p < unit->count; p++) {
        if (!operand_of(unit->graph[p], name, writes))
            continue;
        if (found >= 0)
            return -1;
        found = p;
    }
    return found;
}

static bool has_product(const struct graph *graph)
{
    for (int n = 0; n < graph->node_count; n++)
        if (graph->node[n].op == OP_GEMM)
            return true;
    return false;
}

/* ---------------------------------------------------------------- the forward */

/* The out of the head whose value is op(z, ..). */
static const struct operand *out_of(const struct graph *graph, enum op op, int z)
{
    for (int o = 0; o < graph->operand_count; o++) {
        const struct operand *out = &graph->operand[o];
        const struct node *node = &graph->node[out->node];
        if (out->role == CODA_OUT && node->op == op && node->input[0] == z)
            return out;
    }
    return NULL;
}

static bool is_logits(const struct operand *out)
{
    return out->role == CODA_OUT && (out->dtype == CODA_BF16 || out->dtype == CODA_F32) && out->shape.rank == 2 &&
           out->shape.dim[0].form == DIM_WHOLE && out->shape.dim[1].form == DIM_WHOLE;
}

static bool read_head(const struct graph *graph, struct cross_entropy *c)
{
    for (int o = 0; o < graph->operand_count; o++) {
        const struct operand *out = &graph->operand[o];
        const struct operand *runs = is_logits(out) ? out_of(graph, OP_LOGSUMEXP, out->node) : NULL;
        const struct operand *target = runs ? out_of(graph, OP_PICK, out->node) : NULL;
        if (!target || graph->node[runs->node].axis != out->shape.dim[1].axis)
            continue;
        c->z = out->node;
        c->logits = out->name;
        c->runs = runs->name;
        c->target = target->name;
        c->ids = graph->operand[graph->node[graph->node[target->node].input[1]].index].name;
        return true;
    }
    return false;
}

static bool is_whole(const struct node *node)
{
    return op_is_reduction(node->op) && is_whole_run(node->run);
}

/* Is the `in` read by whole reductions of this kind alone? *node: the last of them. */
static bool only_reduced(const struct graph *graph, const char *name, enum op op, int *node)
{
    *node = -1;
    for (int n = 0; n < graph->node_count; n++)
        for (int k = 0; k < graph->node[n].input_count; k++) {
            if (!is_in_named(graph, graph->node[n].input[k], name))
                continue;
            if (graph->node[n].op != op || !is_whole(&graph->node[n]))
                return false;
            *node = n;
        }
    return *node >= 0;
}

static bool read_finish(const struct graph *graph, struct cross_entropy *c)
{
    if (has_product(graph) || !only_reduced(graph, c->runs, OP_LOGSUMEXP, &c->lse_node))
        return false;
    for (int o = 0; o < graph->operand_count; o++)
        if (graph->operand[o].role == CODA_OUT && graph->operand[o].node == c->lse_node)
            c->lse = graph->operand[o].name;
    return c->lse != NULL && graph->node[c->lse_node].shape.rank == 1;
}

/* ---------------------------------------------------------------- the pass */

/* exp(logits - lse) - onehot(ids, V) */
static bool is_softmax_less_one(const struct graph *graph, int node, const struct cross_entropy *c)
{
    const struct node *n = &graph->node[node];
    if (n->op != OP_SUB)
        return false;
    const struct node *p = &graph->node[n->input[0]], *one = &graph->node[n->input[1]];
    if (p->op != OP_EXP || one->op != OP_ONEHOT || !is_in_named(graph, one->input[0], c->ids))
        return false;
    const struct node *shifted = &graph->node[p->input[0]];
    return shifted->op == OP_SUB && is_in_named(graph, shifted->input[0], c->logits) &&
           is_in_named(graph, shifted->input[1], c->lse);
}

/* v, or v times one value a row. */
static bool read_gradient(const struct graph *graph, int node, struct cross_entropy *c)
{
    const struct node *n = &graph->node[node];
    c->weight = -1;
    if (is_softmax_less_one(graph, node, c))
        return true;
    for (int k = 0; n->op == OP_MUL && k < 2; k++)
        if (is_softmax_less_one(graph, n->input[k], c) && graph->node[n->input[1 - k]].shape.rank < 2) {
            c->weight = n->input[1 - k];
            return true;
        }
    return false;
}

static bool is_dot(const struct graph *graph, int node, const struct cross_entropy *c)
{
    const struct node *n = &graph->node[node];
    if (n->op != OP_SUM || is_whole(n))
        return false;
    const struct node *product = &graph->node[n->input[0]];
    for (int k = 0; product->op == OP_MUL && k < 2; k++)
        if (is_in_named(graph, product->input[k], c->logits) && is_softmax_less_one(graph, product->input[1 - k], c))
            return true;
    return false;
}

static bool read_pass(const struct graph *graph, struct cross_entropy *c)
{
    if (has_product(graph))
        return false;
    for (int o = 0; o < graph->operand_count; o++) {
        const struct operand *out = &graph->operand[o];
        if (out->role == CODA_IN)
            continue;
        if (out->role == CODA_OUT && !c->dot && is_dot(graph, out->node, c))
            c->dot = out->name;
        else if (out->role == CODA_OUT && !c->gradient && is_logits(out) && read_gradient(graph, out->node, c))
            c->gradient = out->name;
        else
            return false;
    }
    return c->gradient != NULL &&
           operand_of(graph, c->gradient, true)->dtype == operand_of(graph, c->logits, false)->dtype;
}

/* ---------------------------------------------------------------- users of the gradient */

/* Is the operand of a product, and read by nothing else? */
static bool only_left(const struct graph *graph, int node, int *right)
{
    int users = 0;
    for (int n = 0; n < graph->node_count; n++)
        for (int k = 0; k < graph->node[n].input_count; k++) {
            if (graph->node[n].input[k] != node)
                continue;
            if (graph->node[n].op != OP_GEMM || graph->node[n].input_count != 2 || k != 0)
                return false;
            users++;
            *right = graph->node[n].input[1];
        }
    return users > 0;
}

static int transpose_of(const struct graph *graph, int node)
{
    for (int n = 0; n < graph->node_count; n++)
        if (graph->node[n].op == OP_TRANSPOSE && graph->node[n].input[0] == node)
            return n;
    return -1;
}

static int users_of(const struct graph *graph, int node)
{
    int users = 0;
    for (int n = 0; n < graph->node_count; n++)
        for (int k = 0; k < graph->node[n].input_count; k++)
            users += graph->node[n].input[k] == node;
    return users;
}

/* A product whose left operand it is; or, transposed, one with an `in` that nothing else reads. */
static bool read_user(const struct rewritten *made, const struct graph *graph, struct cross_entropy *c)
{
    int node = operand_of(graph, c->gradient, false)->node, transposed = transpose_of(graph, node), right = -1;
    if (transposed < 0)
        return only_left(graph, node, &right);
    if (c->input || users_of(graph, node) != 1 || !only_left(graph, transposed, &right) ||
        graph->node[right].op != OP_IN || users_of(graph, right) != 1)
        return false;
    c->input = graph->operand[graph->node[right].index].name;
    int writer = only_user(&made->unit, c->input, true);
    c->own_input = writer > c->pass && only_user(&made->unit, c->input, false) >= 0 &&
                   operand_of(made->unit.graph[writer], c->input, true)->role == CODA_OUT;
    return true;
}

static bool read_users(const struct rewritten *made, struct cross_entropy *c)
{
    for (int p = 0; p < made->unit.count; p++) {
        const struct graph *graph = made->unit.graph[p];
        int node;
        if (operand_of(graph, c->gradient, false) && !read_user(made, graph, c))
            return false;
        if (operand_of(graph, c->dot, false) && !only_reduced(graph, c->dot, OP_SUM, &node))
            return false;
    }
    return true;
}

bool find_cross_entropy(const struct rewritten *made, struct cross_entropy *found)
{
    const struct unit *unit = &made->unit;
    for (int p = 0; p < made->forward; p++) {
        struct cross_entropy c = {.head = p};
        if (!has_product(unit->graph[p]) || !read_head(unit->graph[p], &c))
            continue;
        c.finish = only_user(unit, c.runs, false);
        c.pass = only_user(unit, c.logits, false);
        if (c.finish < 0 || c.finish >= made->forward || c.pass < made->forward ||
            !read_finish(unit->graph[c.finish], &c) || !read_pass(unit->graph[c.pass], &c) || !read_users(made, &c))
            continue;
        *found = c;
        return true;
    }
    return false;
}
