/* Values that one program's epilogue computes and another's needs: the cheapest set to store. */
#include "rewrite/cut.h"
#include "rewrite/mincut.h"

#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 64 };

const struct place *load_of(const struct cutting *cutting, int p, int n)
{
    const struct place *place = &cutting->value[n];
    bool stored = place->piece >= 0 && place->piece != p && cutting->graph->node[n].op != OP_IN;
    return stored && cutting->piece[place->piece].key < cutting->piece[p].key ? place : NULL;
}

/* Is the node computed in piece p from the products of p? */
static bool is_own(const struct cutting *cutting, int p, int n)
{
    return cutting->piece[p].gemm_count > 0 && cutting->time[n] == cutting->piece[p].key;
}

struct crossing {
    struct cutting *cutting;
    struct network network;
    bool *sink, *seen;
    moment *before; /* of sinks: the first program that reads it */
    int top;
};

static bool starts_walk(const struct cutting *cutting, int n)
{
    return cutting->graph->node[n].op == OP_GEMM;
}

/* Collects the values that the epilogue of p takes from outside. */
static void find_sinks(struct crossing *x, int p)
{
    struct cutting *cutting = x->cutting;
    const struct graph *graph = cutting->graph;
    int walk = ++cutting->walk, top = 0;
    for (int r = 0; r < cutting->piece[p].root_count; r++) {
        const struct root *root = &cutting->piece[p].root[r];
        int n = root->runs ? graph->node[root->node].input[0] : root->node;
        if (cutting->stamp[n] != walk)
            cutting->stack[top++] = n;
        cutting->stamp[n] = walk;
    }
    while (top > 0) {
        int n = cutting->stack[--top];
        const struct node *node = &graph->node[n];
        if (!is_own(cutting, p, n) && cutting->value[n].piece != p) {
            x->sink[n] = true;
            if (cutting->piece[p].key < x->before[n])
                x->before[n] = cutting->piece[p].key;
            continue;
        }
        for (int k = 0; k < node->input_count && node->op != OP_GEMM; k++)
            if (cutting->stamp[node->input[k]] != walk) {
                cutting->stamp[node->input[k]] = walk;
                cutting->stack[top++] = node->input[k];
            }
    }
}

/* Finished reductions and operands are read wherever they are needed; so they end the walk. */
static bool ends_walk(const struct cutting *cutting, int n)
{
    const struct node *node = &cutting->graph->node[n];
    return node->op == OP_IN || node->op == OP_PICK || is_whole_reduction_of_value(cutting->graph, n);
}

static bool add_to_network(struct crossing *x, int n)
{
    struct cutting *cutting = x->cutting;
    const struct graph *graph = cutting->graph;
    const struct node *node = &graph->node[n];
    bool late = cutting->time[n] < 0 || cutting->time[n] % PERIOD != 0;
    const struct place *place = &cutting->value[n];
    long cost = stored_elements(graph, n) * (late && node->shape.rank == 2 ? 64 : 1);
    if (place->piece >= 0) /* stored already: for those that run later */
        cost = cutting->piece[place->piece].key < x->before[n] ? 1 : UNLIMITED;
    if (ends_walk(cutting, n))
        return true;
    bool made = network_vertex(&x->network, n, cost < UNLIMITED ? cost : UNLIMITED);
    if (starts_walk(cutting, n))
        return made && network_source(&x->network, n);
    for (int k = 0; k < node->input_count && made; k++) {
        int from = node->input[k];
        made = network_edge(&x->network, from, n);
        if (!x->seen[from])
            cutting->stack[x->top++] = from;
        x->seen[from] = true;
    }
    return made;
}

/* The first program that reads a value, or one computed from it there. */
static void find_first_readers(struct crossing *x)
{
    const struct graph *graph = x->cutting->graph;
    for (int n = graph->node_count - 1; n >= 0; n--)
        for (int k = 0; k < graph->node[n].input_count && !ends_walk(x->cutting, n) && !starts_walk(x->cutting, n); k++)
            if (x->before[n] < x->before[graph->node[n].input[k]])
                x->before[graph->node[n].input[k]] = x->before[n];
}

static int find_cut(struct crossing *x, bool *chosen)
{
    struct cutting *cutting = x->cutting;
    bool made = true;
    x->top = 0;
    find_first_readers(x);
    for (int n = 0; n < cutting->graph->node_count && made; n++) {
        if (!x->sink[n])
            continue;
        made = network_sink(&x->network, n);
        if (!x->seen[n])
            cutting->stack[x->top++] = n;
        x->seen[n] = true;
        while (made && x->top > 0)
            made = add_to_network(x, cutting->stack[--x->top]);
    }
    return made ? network_cut(&x->network, chosen) : -1;
}

/* One round: new stores may make programs that need further values. */
static bool place_round(struct crossing *x, bool *chosen, bool *changed)
{
    struct cutting *cutting = x->cutting;
    const struct graph *graph = cutting->graph;
    for (int p = 0; p < cutting->piece_count; p++)
        find_sinks(x, p);
    int result = find_cut(x, chosen);
    if (result != 0) {
        refuse(&cutting->why, result < 0 ? CODA_MEMORY : CODA_UNSUPPORTED, "",
               result < 0 ? "no memory to choose what programs store" : "a transposed value crosses programs");
        return false;
    }
    *changed = false;
    for (int n = 0; n < graph->node_count; n++) {
        if (!chosen[n] || cutting->value[n].piece >= 0)
            continue;
        *changed = true;
        if (!place_value(cutting, n, x->before[n] - 1))
            return false;
    }
    return true;
}

static bool crossing_round(struct cutting *cutting, bool *changed)
{
    size_t count = (size_t)cutting->graph->node_count + 1;
    struct crossing x = {.cutting = cutting};
    bool *chosen = calloc(count, sizeof *chosen), done = false;
    x.sink = calloc(count, sizeof *x.sink);
    x.seen = calloc(count, sizeof *x.seen);
    x.before = malloc(count * sizeof *x.before);
    if (!chosen || !x.sink || !x.seen || !x.before || !network_open(&x.network, cutting->graph->node_count)) {
        refuse(&cutting->why, CODA_MEMORY, "", "no memory to choose what programs store");
    } else {
        for (size_t n = 0; n < count; n++)
            x.before[n] = NEVER;
        done = place_round(&x, chosen, changed);
    }
    network_close(&x.network);
    free(chosen);
    free(x.sink);
    free(x.seen);
    free(x.before);
    return done;
}

bool place_crossings(struct cutting *cutting)
{
    bool changed = true;
    for (int round = 0; changed && round < ROUNDS; round++)
        if (!crossing_round(cutting, &changed))
            return false;
    return true;
}
