#include "rewrite/expand.h"
#include "rewrite/cut.h"

#include <stdlib.h>

enum { DEPTH = 24 };

bool levels_extend(struct levels *levels, const struct graph *graph)
{
    if (graph->node_count > levels->room) {
        int room = 2 * graph->node_count + 64;
        int *level = realloc(levels->level, (size_t)room * sizeof *level);
        if (level == NULL)
            return false;
        levels->level = level;
        levels->room = room;
    }
    for (int n = levels->count; n < graph->node_count; n++) {
        const struct node *node = &graph->node[n];
        int level = 0;
        for (int k = 0; k < node->input_count; k++)
            level = levels->level[node->input[k]] > level ? levels->level[node->input[k]] : level;
        if (node->op == OP_GEMM)
            level = (level | 1) + 1;
        else if (is_whole_reduction_of_value(graph, n))
            level |= 1;
        levels->level[n] = level;
    }
    levels->count = graph->node_count;
    return true;
}

bool is_late(const struct levels *levels, int node)
{
    return levels->level[node] % 2 != 0;
}

void levels_free(struct levels *levels)
{
    free(levels->level);
    *levels = (struct levels){NULL, 0, 0};
}

static bool append_term(struct sum *sum, const struct term *term, double sign)
{
    if (sum->count == MAX_TERMS || term->full)
        return false;
    sum->term[sum->count] = *term;
    sum->term[sum->count++].coefficient *= sign;
    return true;
}

static bool multiply_terms(const struct graph *graph, const struct term *a, const struct term *b, struct term *product)
{
    *product = *a;
    product->coefficient *= b->coefficient;
    for (int i = 0; i < b->count; i++)
        term_multiply(graph, product, b->factor[i].node, b->factor[i].exponent, b->factor[i].origin);
    return !product->full;
}

static bool expand(struct rewriting *w, int n, double sign, int depth, struct sum *sum);

static bool expand_product(struct rewriting *w, const struct node *node, double sign, int depth, struct sum *sum)
{
    struct sum *part = calloc(2, sizeof *part);
    if (part == NULL)
        refuse(&w->b->why, CODA_MEMORY, "", "no memory to expand a value");
    bool expanded = part != NULL && expand(w, node->input[0], sign, depth + 1, &part[0]) &&
                    expand(w, node->input[1], 1, depth + 1, &part[1]);
    if (node->op == OP_DIV && expanded)
        expanded = part[1].count == 1 && part[1].term[0].coefficient != 0;
    if (node->op == OP_DIV && expanded) {
        struct term *divisor = &part[1].term[0];
        divisor->coefficient = 1 / divisor->coefficient;
        for (int i = 0; i < divisor->count; i++)
            divisor->factor[i].exponent = -divisor->factor[i].exponent;
    }
    for (int i = 0; expanded && i < part[0].count; i++)
        for (int k = 0; expanded && k < part[1].count; k++) {
            struct term product;
            expanded = multiply_terms(w->b->graph, &part[0].term[i], &part[1].term[k], &product) &&
                       append_term(sum, &product, 1);
        }
    free(part);
    return expanded;
}

static bool expand(struct rewriting *w, int n, double sign, int depth, struct sum *sum)
{
    const struct node *node = &w->graph->node[n];
    struct term atom;
    if (depth > DEPTH)
        return false;
    if (!is_late(&w->before, n) || node->shape.rank < 2) {
        term_start(&atom);
        term_multiply(w->b->graph, &atom, w->made[n], 1, n);
        return append_term(sum, &atom, sign);
    }
    switch (node->op) {
    case OP_ADD:
    case OP_SUB:
        return expand(w, node->input[0], sign, depth + 1, sum) &&
               expand(w, node->input[1], node->op == OP_SUB ? -sign : sign, depth + 1, sum);
    case OP_NEG:
        return expand(w, node->input[0], -sign, depth + 1, sum);
    case OP_BROADCAST:
        return expand(w, node->input[0], sign, depth + 1, sum);
    case OP_MUL:
    case OP_DIV:
        return expand_product(w, node, sign, depth, sum);
    default:
        return false;
    }
}

bool expand_late(struct rewriting *w, int n, struct sum *sum)
{
    sum->count = 0;
    sum->full = false;
    return expand(w, n, 1, 0, sum);
}

void split_late(const struct rewriting *w, const struct term *term, struct term *late, struct term *rest)
{
    term_start(late);
    term_start(rest);
    rest->coefficient = term->coefficient;
    for (int i = 0; i < term->count; i++)
        term_multiply(w->b->graph, is_late(&w->after, term->factor[i].node) ? late : rest, term->factor[i].node,
                      term->factor[i].exponent, term->factor[i].origin);
}

bool has_matrix(const struct graph *graph, const struct term *term)
{
    for (int i = 0; i < term->count; i++)
        if (graph->node[term->factor[i].node].shape.rank == 2)
            return true;
    return false;
}
