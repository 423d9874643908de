#include "rewrite/algebra.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void term_start(struct term *term)
{
    term->coefficient = 1;
    term->count = 0;
    term->full = false;
}

void term_multiply(const struct graph *graph, struct term *term, int node, int exponent, int origin)
{
    if (node < 0) {
        term->full = true;
        return;
    }
    while (graph->node[node].op == OP_NEG) {
        term->coefficient *= exponent % 2 != 0 ? -1 : 1;
        node = graph->node[node].input[0];
        origin = -1;
    }
    const struct node *n = &graph->node[node];
    if (n->op == OP_NUMBER) {
        double coefficient = term->coefficient * pow(n->number, exponent);
        bool holds = isnormal(coefficient) || (n->number == 0 && exponent > 0);
        term->coefficient = holds ? coefficient : term->coefficient;
        term->full = term->full || !holds; /* beyond what a number holds: stays as it is written */
        return;
    }
    for (int i = 0; i < term->count; i++)
        if (term->factor[i].node == node) {
            term->factor[i].exponent += exponent;
            if (term->factor[i].exponent == 0)
                memmove(&term->factor[i], &term->factor[i + 1], (size_t)(--term->count - i) * sizeof term->factor[0]);
            return;
        }
    if (term->count == MAX_FACTORS)
        term->full = true;
    else
        term->factor[term->count++] = (struct factor){node, exponent, origin};
}

static bool is_product(const struct graph *graph, int node)
{
    return graph->node[node].op == OP_MUL || graph->node[node].op == OP_DIV;
}

/* Replaces factor i, a product, by its two inputs. */
static void open_factor(const struct graph *graph, struct term *term, int i)
{
    struct factor factor = term->factor[i];
    const struct node *n = &graph->node[factor.node];
    memmove(&term->factor[i], &term->factor[i + 1], (size_t)(--term->count - i) * sizeof term->factor[0]);
    term_multiply(graph, term, n->input[0], factor.exponent, -1);
    term_multiply(graph, term, n->input[1], n->op == OP_MUL ? factor.exponent : -factor.exponent, -1);
}

void term_expand(const struct graph *graph, struct term *term)
{
    for (int i = 0, opened = 0; i < term->count && !term->full && opened < MAX_FACTORS;) {
        if (!is_product(graph, term->factor[i].node)) {
            i++;
            continue;
        }
        open_factor(graph, term, i);
        opened++;
        i = 0;
    }
}

static int weight(const struct term *term)
{
    int weight = 0;
    for (int i = 0; i < term->count; i++)
        weight += abs(term->factor[i].exponent);
    return weight;
}

/* Would opening factor i cancel something? */
static bool cancels(const struct graph *graph, const struct term *term, int i)
{
    struct term single, rest = *term;
    term_start(&single);
    term_multiply(graph, &single, term->factor[i].node, term->factor[i].exponent, -1);
    memmove(&rest.factor[i], &rest.factor[i + 1], (size_t)(--rest.count - i) * sizeof rest.factor[0]);
    term_expand(graph, &single);
    for (int k = 0; k < single.count && !single.full; k++) {
        int exponent = term_exponent(&rest, single.factor[k].node);
        if (exponent != 0 && (exponent > 0) != (single.factor[k].exponent > 0))
            return true;
    }
    return false;
}

void term_cancel(const struct graph *graph, struct term *term)
{
    bool changed = true;
    for (int round = 0; changed && round < MAX_FACTORS && !term->full; round++) {
        changed = false;
        for (int i = 0; i < term->count && !changed; i++)
            if (is_product(graph, term->factor[i].node) && cancels(graph, term, i)) {
                open_factor(graph, term, i);
                changed = true;
            }
    }
}

int term_exponent(const struct term *term, int node)
{
    for (int i = 0; i < term->count; i++)
        if (term->factor[i].node == node)
            return term->factor[i].exponent;
    return 0;
}

void term_remove(struct term *term, int node, int exponent)
{
    for (int i = 0; i < term->count; i++)
        if (term->factor[i].node == node) {
            term->factor[i].exponent -= exponent;
            if (term->factor[i].exponent == 0)
                memmove(&term->factor[i], &term->factor[i + 1], (size_t)(--term->count - i) * sizeof term->factor[0]);
            return;
        }
}

bool terms_alike(const struct term *a, const struct term *b)
{
    if (a->count != b->count || weight(a) != weight(b))
        return false;
    for (int i = 0; i < a->count; i++)
        if (term_exponent(b, a->factor[i].node) != a->factor[i].exponent)
            return false;
    return true;
}

/* ---------------------------------------------------------------- pairs of factors */

bool pairs_open(struct pairs *pairs)
{
    pairs->slot_count = 1024;
    pairs->used = 0;
    pairs->slot = calloc((size_t)pairs->slot_count, sizeof *pairs->slot);
    return pairs->slot != NULL;
}

void pairs_close(struct pairs *pairs)
{
    free(pairs->slot);
    pairs->slot = NULL;
}

static struct pair *find_pair(const struct pairs *pairs, int a, int b)
{
    uint64_t at = ((uint64_t)a * 0x9e3779b97f4a7c15u) ^ ((uint64_t)b * 0xff51afd7ed558ccdu);
    at ^= at >> 31;
    for (;; at++) {
        struct pair *pair = &pairs->slot[at & (uint64_t)(pairs->slot_count - 1)];
        if (pair->count == 0 || (pair->a == a && pair->b == b))
            return pair;
    }
}

static bool grow_pairs(struct pairs *pairs)
{
    struct pairs larger = {calloc((size_t)pairs->slot_count * 2, sizeof *larger.slot), pairs->slot_count * 2,
                           pairs->used};
    if (larger.slot == NULL)
        return false;
    for (int i = 0; i < pairs->slot_count; i++)
        if (pairs->slot[i].count > 0)
            *find_pair(&larger, pairs->slot[i].a, pairs->slot[i].b) = pairs->slot[i];
    free(pairs->slot);
    *pairs = larger;
    return true;
}

bool pairs_add(struct pairs *pairs, int a, int b)
{
    if (2 * pairs->used >= pairs->slot_count && !grow_pairs(pairs))
        return false;
    struct pair *pair = find_pair(pairs, a < b ? a : b, a < b ? b : a);
    pairs->used += pair->count == 0;
    pair->a = a < b ? a : b;
    pair->b = a < b ? b : a;
    pair->count++;
    return true;
}

int pairs_count(const struct pairs *pairs, int a, int b)
{
    if (pairs == NULL || a < 0 || b < 0)
        return 0;
    return find_pair(pairs, a < b ? a : b, a < b ? b : a)->count;
}
