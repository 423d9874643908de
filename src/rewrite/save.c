#include "rewrite/save.h"
#include "rewrite/cut.h"
#include "rewrite/expand.h"
#include "rewrite/mincut.h"
#include "rewrite/users.h"

#include <stdlib.h>
#include <string.h>

enum { INVERSE_DEPTH = 8 };

struct choice {
    struct saving *s;
    struct users users;
    bool *needed; /* the backward reads it */
    bool *source; /* depends on a product or a whole reduction that cannot run again */
    bool *visited;
    int *stack;
    struct network network;
    struct levels levels;
};

static bool is_leaf(const struct node *node)
{
    return node->op == OP_IN || node->op == OP_PARAM || node->op == OP_NUMBER || node->op == OP_SIZE ||
           node->op == OP_INDEX;
}

/* A finished partial is finished again; other whole reductions and products are not repeated. */
static bool runs_once(const struct graph *graph, const struct node *node)
{
    if (node->op == OP_GEMM || node->op == OP_PICK)
        return true;
    bool whole = op_is_reduction(node->op) && is_whole_run(node->run);
    return whole && (graph->is_block ? true : graph->node[node->input[0]].op != OP_IN);
}

static void mark_needs(struct choice *c)
{
    const struct graph *graph = c->s->graph;
    for (int n = 0; n < graph->node_count; n++)
        for (int k = 0; k < graph->node[n].input_count && !c->s->forward[n] && c->users.used[n]; k++)
            c->needed[graph->node[n].input[k]] |= c->s->forward[graph->node[n].input[k]];
    for (int o = 0; o < graph->operand_count; o++)
        if (graph->operand[o].role != CODA_IN && c->s->forward[graph->operand[o].node])
            c->needed[graph->operand[o].node] = true;
}

static void mark_sources(struct choice *c)
{
    const struct graph *graph = c->s->graph;
    for (int n = 0; n < graph->node_count; n++) {
        const struct node *node = &graph->node[n];
        if (!c->s->forward[n] || c->s->available[n])
            continue;
        c->source[n] = runs_once(graph, node);
        for (int k = 0; k < node->input_count; k++)
            c->source[n] = c->source[n] || c->source[node->input[k]];
    }
}

/* ---------------------------------------------------------------- steps backwards */

static bool in_memory(const struct choice *c, int n)
{
    return c->s->available[n] || c->s->saved[n] || is_leaf(&c->s->graph->node[n]);
}

/* Can input `place` of node u be computed from u and the other inputs? */
static bool is_invertible(const struct choice *c, int u, int place)
{
    const struct graph *graph = c->s->graph;
    const struct node *node = &graph->node[u];
    if (node->op == OP_NEG || (node->op == OP_ROPE && place == 0))
        return true;
    if (node->op != OP_ADD && node->op != OP_SUB && node->op != OP_MUL && node->op != OP_DIV)
        return false;
    int other = node->input[1 - place];
    const struct shape *x = &graph->node[node->input[place]].shape;
    if (other == node->input[place] || !shape_equal(x, &node->shape))
        return false;
    if ((node->op == OP_MUL || node->op == OP_DIV) && (!is_nonzero(graph, other) || (node->op == OP_DIV && place == 1)))
        return false;
    return in_memory(c, other) || graph->node[other].shape.rank < 2;
}

/* Finds a chain of invertible users from n to a value that is in memory or, for a product, that the backward needs
 * anyway. */
static bool find_inverse(struct choice *c, int n, bool product, int depth)
{
    if (c->s->inverse[n] >= 0)
        return true;
    for (int i = c->users.begin[n]; i < c->users.begin[n + 1] && depth < INVERSE_DEPTH; i++) {
        int u = c->users.user[i].node;
        if (!c->s->forward[u] || !is_invertible(c, u, c->users.user[i].place))
            continue;
        if (!in_memory(c, u) && !(product && c->needed[u]) && !find_inverse(c, u, product, depth + 1))
            continue;
        if (c->needed[u] && !in_memory(c, u) && c->s->inverse[u] < 0)
            c->s->saved[u] = true;
        c->s->inverse[n] = u;
        c->visited[u] = false; /* it may be computed in another way now */
        return true;
    }
    return false;
}

/* The nodes that n is computed from; returns their number. */
static int recipe(const struct choice *c, int n, int from[MAX_INPUTS])
{
    const struct node *node = &c->s->graph->node[n];
    int u = c->s->inverse[n], count = 0;
    if (u < 0) {
        memcpy(from, node->input, (size_t)node->input_count * sizeof *from);
        return node->input_count;
    }
    const struct node *user = &c->s->graph->node[u];
    from[count++] = u;
    for (int k = 0; k < user->input_count; k++)
        if (user->input[k] != n)
            from[count++] = user->input[k];
    return count;
}

/* ---------------------------------------------------------------- the cheapest set */

long stored_elements(const struct graph *graph, int n)
{
    const struct node *node = &graph->node[n];
    long count = node->shape.rank == 2 ? 4096 : node->shape.rank == 1 ? 16 : 4;
    for (int i = 0; i < node->shape.rank; i++) {
        const struct dim *dim = &node->shape.dim[i];
        if (dim->form == DIM_HALVES || is_pair_dim(dim))
            count /= 2;
        else if (dim->form == DIM_RUNS)
            count /= 32;
    }
    /* Which element is the largest is asked of the value as the backward has it: a stored maximum may equal none. */
    if (node->op == OP_TRANSPOSE || node->op == OP_STACK || node->op == OP_REDUCE_MAX || node->op == OP_ABSMAX)
        return UNLIMITED;
    return 2 * count + (node->name == NULL); /* of equal ones, those that have a name */
}

/* A matrix that a later product's epilogue reads is stored by the forward in any case; one that waits for a row is not
 * computed as a whole by it. */
static long cost(const struct choice *c, int n)
{
    long elements = stored_elements(c->s->graph, n);
    if (elements == UNLIMITED || c->s->graph->node[n].shape.rank < 2)
        return elements;
    for (int i = c->users.begin[n]; i < c->users.begin[n + 1]; i++) {
        int u = c->users.user[i].node;
        bool crosses = c->s->forward[u] && c->levels.level[u] / 2 > c->levels.level[n] / 2;
        if (crosses && c->s->graph->node[u].op != OP_GEMM && !is_late(&c->levels, n))
            return elements / 4 * 3;
    }
    return is_late(&c->levels, n) ? elements / 4 * 5 : elements;
}

static bool push(struct choice *c, int *top, int n)
{
    if (!c->visited[n])
        c->stack[(*top)++] = n;
    c->visited[n] = true;
    return true;
}

static bool visit(struct choice *c, int n, int *top)
{
    const struct graph *graph = c->s->graph;
    int from[MAX_INPUTS];
    if (in_memory(c, n) || !c->source[n])
        return true;
    if (graph->node[n].shape.rank == 2 && c->s->inverse[n] < 0)
        find_inverse(c, n, graph->node[n].op == OP_GEMM && c->needed[n], 0);
    if (in_memory(c, n))
        return true;
    bool made = network_vertex(&c->network, n, cost(c, n));
    if (c->s->inverse[n] < 0 && runs_once(graph, &graph->node[n]))
        return made && network_source(&c->network, n);
    int count = recipe(c, n, from);
    for (int k = 0; k < count && made; k++)
        made = push(c, top, from[k]) && network_edge(&c->network, from[k], n);
    return made;
}

static coda_status cut(struct choice *c, struct complaint *why)
{
    const struct graph *graph = c->s->graph;
    int top = 0, result = 0;
    bool made = true, *chosen = calloc((size_t)graph->node_count + 1, sizeof *chosen);
    for (int n = graph->node_count - 1; n >= 0 && chosen != NULL && made; n--) {
        if (!c->needed[n])
            continue;
        made = network_sink(&c->network, n) && push(c, &top, n);
        while (made && top > 0) {
            int next = c->stack[--top];
            made = visit(c, next, &top);
        }
    }
    if (chosen != NULL && made)
        result = network_cut(&c->network, chosen);
    for (int n = 0; n < graph->node_count && chosen != NULL; n++)
        c->s->saved[n] |= chosen[n] && !in_memory(c, n);
    bool memory = chosen == NULL || !made || result < 0;
    free(chosen);
    if (memory)
        return refuse(why, CODA_MEMORY, "", "no memory to choose what the backward keeps"), CODA_MEMORY;
    if (result > 0)
        return refuse(why, CODA_UNSUPPORTED, "Name the value and store it by an `out`.",
                      "the backward needs a transposed or stacked value that no out stores"),
               CODA_UNSUPPORTED;
    return CODA_OK;
}

coda_status choose_saved(struct saving *s, struct complaint *why)
{
    const struct graph *graph = s->graph;
    size_t count = (size_t)graph->node_count + 1;
    struct choice c = {.s = s};
    coda_status status = CODA_MEMORY;
    c.needed = calloc(count, sizeof *c.needed);
    c.source = calloc(count, sizeof *c.source);
    c.visited = calloc(count, sizeof *c.visited);
    c.stack = calloc(count, sizeof *c.stack);
    if (!c.needed || !c.source || !c.visited || !c.stack || !users_open(&c.users, graph, false) ||
        !network_open(&c.network, graph->node_count) || !levels_extend(&c.levels, graph)) {
        refuse(why, CODA_MEMORY, "", "no memory to choose what the backward keeps");
        goto done;
    }
    for (int n = 0; n < graph->node_count; n++) {
        s->inverse[n] = -1;
        s->saved[n] = s->forced[n] && !s->available[n];
    }
    mark_needs(&c);
    mark_sources(&c);
    status = cut(&c, why);
done:
    users_close(&c.users);
    network_close(&c.network);
    levels_free(&c.levels);
    free(c.needed);
    free(c.source);
    free(c.visited);
    free(c.stack);
    return status;
}

/* ---------------------------------------------------------------- the backward alone */

struct separation {
    const struct saving *saving;
    const struct stored *stored;
    struct builder *b;
    struct choice choice; /* only `s` is set */
    int *made;            /* node -> node of the backward; -1: not yet */
    int *stack;
    bool *open;
};

/* n = inverse of its user, given the other inputs. */
static int make_inverse(struct separation *t, int n, int u)
{
    const struct graph *graph = t->saving->graph;
    const struct node *user = &graph->node[u];
    int y = t->made[u];
    struct node like = *user;
    struct graph single = {.node = &like, .node_count = 1};
    if (user->op == OP_NEG)
        return build_negative(t->b, y);
    if (user->op == OP_ROPE) {
        int input[3] = {y, t->made[user->input[1]], t->made[user->input[2]]};
        like.rope_inverse = !user->rope_inverse;
        return build_like(t->b, &single, 0, input);
    }
    bool first = user->input[0] == n;
    int other = t->made[user->input[first ? 1 : 0]];
    switch (user->op) {
    case OP_ADD:
        return build_binary(t->b, OP_SUB, y, other);
    case OP_SUB:
        return first ? build_binary(t->b, OP_ADD, y, other) : build_binary(t->b, OP_SUB, other, y);
    case OP_MUL:
        return build_binary(t->b, OP_DIV, y, other);
    default:
        return build_binary(t->b, OP_MUL, y, other);
    }
}

static void make_node(struct separation *t, int n, const int *from, int count)
{
    const struct graph *graph = t->saving->graph;
    const struct stored *stored = &t->stored[n];
    int input[MAX_INPUTS] = {0};
    if (stored->present) {
        t->made[n] = build_in(t->b, stored->name, stored->dtype, &stored->shape);
        return;
    }
    for (int k = 0; k < count; k++)
        if (t->made[from[k]] < 0)
            refuse(&t->b->why, CODA_UNSUPPORTED, "Name the value and store it by an `out`.",
                   "the backward cannot compute a value of the forward again");
    if (t->saving->forward[n] && t->saving->inverse[n] >= 0) {
        t->made[n] = make_inverse(t, n, t->saving->inverse[n]);
    } else {
        for (int k = 0; k < count; k++)
            input[k] = t->made[from[k]];
        t->made[n] = build_like(t->b, graph, n, input);
    }
    build_name(t->b, t->made[n], graph->node[n].name);
}

/* Depth first with an own stack: chains may be as long as the text. */
static bool make(struct separation *t, int root)
{
    int top = 0, from[MAX_INPUTS] = {0};
    t->stack[top++] = root;
    while (top > 0 && !builder_failed(t->b)) {
        int n = t->stack[top - 1], count = 0, waiting = top;
        if (t->made[n] >= 0) {
            top--;
            continue;
        }
        if (!t->stored[n].present)
            count = recipe(&t->choice, n, from);
        for (int k = count - 1; k >= 0 && !t->open[n]; k--)
            if (t->made[from[k]] < 0)
                t->stack[waiting++] = from[k];
        t->open[n] = true;
        if (waiting > top) {
            top = waiting;
            continue;
        }
        make_node(t, n, from, count);
        top--;
    }
    return !builder_failed(t->b);
}

struct graph *separate_backward(const struct saving *saving, const struct stored *stored, const char *name,
                                struct complaint *why)
{
    const struct graph *graph = saving->graph;
    struct builder b;
    size_t count = (size_t)graph->node_count + 1;
    struct separation t = {.saving = saving, .stored = stored, .b = &b, .choice.s = (struct saving *)saving};
    bool open = builder_open(&b, graph, name, true);
    t.made = malloc(count * sizeof *t.made);
    t.stack = malloc(count * (MAX_INPUTS + 1) * sizeof *t.stack);
    t.open = calloc(count, sizeof *t.open);
    if (!open || !t.made || !t.stack || !t.open) {
        refuse(&b.why, CODA_MEMORY, "", "no memory for the backward");
        goto done;
    }
    for (int n = 0; n < graph->node_count; n++)
        t.made[n] = -1;
    for (int o = 0; o < graph->operand_count; o++) {
        const struct operand *out = &graph->operand[o];
        if (out->role != CODA_IN && make(&t, out->node))
            build_out(&b, out->name, out->role, out->dtype, t.made[out->node]);
    }
done:
    free(t.made);
    free(t.stack);
    free(t.open);
    *why = b.why;
    return builder_close(&b);
}
