/* The rule of the backward: a dot product along a row of a product moves to the product's other side,
 *   sum_n (dz @ B)[n] e[n] = sum_k dz[k] (e @ B.T)[k],
 * where e @ B.T is what the forward computed already. So no row of dz @ B has to be complete before its epilogue. */
#include "rewrite/expand.h"
#include "rewrite/passes.h"
#include "rewrite/rules.h"
#include "rewrite/users.h"

#include <stdlib.h>
#include <string.h>

enum { DEPTH = 24 };

struct moving {
    struct rewriting w;
    const bool *forward;
    struct users users;
    struct report *report;
};

static bool is_algebra(enum op op)
{
    return op == OP_ADD || op == OP_SUB || op == OP_MUL || op == OP_DIV || op == OP_NEG || op == OP_BROADCAST;
}

/* Values that the forward stores stay whole; only its scales, and shifts by what waits for a row, are opened. */
static bool opens(const struct moving *m, int n)
{
    const struct node *node = &m->w.graph->node[n];
    if (!is_algebra(node->op) || node->shape.rank < 2)
        return false;
    if ((node->op != OP_ADD && node->op != OP_SUB) || !m->forward[n])
        return true;
    bool shifted = m->w.graph->node[node->input[0]].shape.rank < 2 || m->w.graph->node[node->input[1]].shape.rank < 2;
    return shifted && is_late(&m->w.before, n); /* x - mean(x) */
}

static bool open_value(struct moving *m, int n, double sign, int depth, struct sum *sum);

static bool append_product(struct moving *m, const struct term *a, const struct term *b, int exponent, struct sum *sum)
{
    if (sum->count == MAX_TERMS)
        return false;
    struct term *product = &sum->term[sum->count++];
    *product = *a;
    product->coefficient = exponent > 0 ? a->coefficient * b->coefficient : a->coefficient / b->coefficient;
    for (int i = 0; i < b->count; i++)
        term_multiply(m->w.b->graph, product, b->factor[i].node, exponent * b->factor[i].exponent, b->factor[i].origin);
    return !product->full;
}

static bool open_product(struct moving *m, const struct node *node, double sign, int depth, struct sum *sum)
{
    struct sum *part = calloc(2, sizeof *part);
    if (part == NULL)
        refuse(&m->w.b->why, CODA_MEMORY, "", "no memory to move a sum");
    bool opened = part != NULL && open_value(m, node->input[0], sign, depth + 1, &part[0]) &&
                  open_value(m, node->input[1], 1, depth + 1, &part[1]) && (node->op == OP_MUL || part[1].count == 1);
    for (int i = 0; opened && i < part[0].count; i++)
        for (int k = 0; opened && k < part[1].count; k++)
            opened = append_product(m, &part[0].term[i], &part[1].term[k], node->op == OP_MUL ? 1 : -1, sum);
    free(part);
    return opened;
}

/* Node n as a sum of products of nodes of the new graph. */
static bool open_value(struct moving *m, int n, double sign, int depth, struct sum *sum)
{
    const struct node *node = &m->w.graph->node[n];
    if (depth > DEPTH)
        return false;
    if (!opens(m, n)) {
        if (sum->count == MAX_TERMS)
            return false;
        struct term *term = &sum->term[sum->count++];
        term_start(term);
        term->coefficient = sign;
        term_multiply(m->w.b->graph, term, m->w.made[n], 1, n);
        return !term->full;
    }
    switch (node->op) {
    case OP_ADD:
    case OP_SUB:
        return open_value(m, node->input[0], sign, depth + 1, sum) &&
               open_value(m, node->input[1], node->op == OP_SUB ? -sign : sign, depth + 1, sum);
    case OP_NEG:
        return open_value(m, node->input[0], -sign, depth + 1, sum);
    case OP_BROADCAST:
        return open_value(m, node->input[0], sign, depth + 1, sum);
    default:
        return open_product(m, node, sign, depth, sum);
    }
}

/* ---------------------------------------------------------------- e @ B.T, from what the forward has */

/* Factors that vary along the axis, and those that do not. The coefficient goes with the others. */
static void split_axis(const struct graph *graph, const struct term *term, int axis, struct term *along,
                       struct term *others)
{
    term_start(along);
    term_start(others);
    others->coefficient = term->coefficient;
    for (int i = 0; i < term->count; i++) {
        const struct factor *f = &term->factor[i];
        term_multiply(graph, has_axis(&graph->node[f->node].shape, axis) ? along : others, f->node, f->exponent,
                      f->origin);
    }
}

static int signed_term(struct builder *b, const struct term *term)
{
    int made = build_term(b, NULL, term);
    return term->coefficient < 0 ? build_negative(b, made) : made;
}

/* sum over the inner axis of v * (weight under `right`); -1 where the weight is a stack. */
static int weight_sum(struct moving *m, int right, const struct term *vector, int axis)
{
    struct builder *b = m->w.b;
    int weight = strip_operand(b->graph, right);
    if (b->graph->node[weight].op != OP_IN)
        return -1;
    int scaled = vector->count == 0 ? weight : build_binary(b, OP_MUL, weight, build_term(b, NULL, vector));
    return build_reduce(b, OP_SUM, scaled, axis, no_run());
}

/* The forward's product L @ right, L = rho tau + (row x column values): then tau @ right = (product - the others) /
 * rho. */
static int from_product(struct moving *m, int z, int left, int right, const struct term *tau, int axis)
{
    struct builder *b = m->w.b;
    struct sum *sum = calloc(1, sizeof *sum);
    struct term rho;
    int found = -1, value = m->w.made[z];
    if (sum == NULL)
        refuse(&b->why, CODA_MEMORY, "", "no memory to move a sum");
    if (sum == NULL || !open_value(m, left, 1, 0, sum))
        goto done;
    for (int i = 0; i < sum->count; i++) {
        struct term along, others;
        split_axis(b->graph, &sum->term[i], axis, &along, &others);
        if (has_matrix(b->graph, &along)) {
            if (found >= 0 || !terms_alike(&along, tau)) {
                found = -1;
                goto done;
            }
            found = i;
            rho = others;
            continue;
        }
        int column = weight_sum(m, right, &along, axis);
        if (column < 0)
            goto done;
        value = build_binary(b, OP_SUB, value, build_binary(b, OP_MUL, column, signed_term(b, &others)));
    }
done:
    free(sum);
    if (found < 0)
        return -1;
    return rho.count == 0 && rho.coefficient == 1 ? value : build_binary(b, OP_DIV, value, signed_term(b, &rho));
}

/* tau @ right, a value of the forward; -1: there is none. `right` is a node of the new graph. */
static int product_with(struct moving *m, const struct term *tau, int right, int axis)
{
    const struct graph *graph = m->w.graph;
    if (!has_matrix(m->w.b->graph, tau))
        return weight_sum(m, right, tau, axis);
    for (int z = 0; z < graph->node_count; z++) {
        const struct node *node = &graph->node[z];
        if (node->op != OP_GEMM || !m->forward[z] || node->input_count != 2 || m->w.made[z] < 0 ||
            m->w.made[node->input[1]] != right)
            continue;
        int value = from_product(m, z, node->input[0], right, tau, axis);
        if (value >= 0)
            return value;
    }
    return -1;
}

/* ---------------------------------------------------------------- the rule */

/* The product of the backward in a term, if there is exactly one: as a node of the graph before. */
static int only_product(const struct moving *m, const struct term *term)
{
    int found = -1;
    for (int i = 0; i < term->count; i++) {
        int n = term->factor[i].origin;
        if (n < 0 || m->w.graph->node[n].op != OP_GEMM || m->forward[n])
            continue;
        if (found >= 0 || term->factor[i].exponent != 1)
            return -1;
        found = n;
    }
    return found;
}

static int transposed(struct builder *b, int x)
{
    return b->graph->node[x].op == OP_TRANSPOSE ? b->graph->node[x].input[0] : build_transpose(b, x);
}

static int move_term(struct moving *m, const struct term *term, int axis)
{
    struct builder *b = m->w.b;
    struct term cofactor = *term, along, others;
    int product = only_product(m, term), total = -1;
    if (product < 0 || m->w.graph->node[product].shape.dim[1].axis != axis)
        return -1;
    const struct node *node = &m->w.graph->node[product];
    term_remove(&cofactor, m->w.made[product], 1);
    split_axis(b->graph, &cofactor, axis, &along, &others);
    for (int i = 0; i < node->input_count; i += 2) {
        int dz = m->w.made[node->input[i]], right = transposed(b, m->w.made[node->input[i + 1]]);
        int value = right < 0 ? -1 : product_with(m, &along, right, axis);
        if (value < 0 || b->graph->node[dz].op == OP_TRANSPOSE)
            return -1;
        int inner = b->graph->node[dz].shape.dim[1].axis;
        int dot = build_reduce(b, OP_SUM, build_binary(b, OP_MUL, dz, value), inner, no_run());
        total = total < 0 ? dot : build_binary(b, OP_ADD, total, dot);
    }
    return build_binary(b, OP_MUL, total, signed_term(b, &others));
}

/* A term without a product of the backward stays a sum over its row. */
static int keep_term(struct moving *m, const struct term *term, int axis)
{
    struct term along, others;
    struct builder *b = m->w.b;
    split_axis(b->graph, term, axis, &along, &others);
    if (along.count > 0 && !has_matrix(b->graph, &along))
        return -1;
    if (along.count == 0) /* the same in every column */
        return build_binary(b, OP_MUL, build_size(b, axis), signed_term(b, &others));
    int sum = build_reduce(b, OP_SUM, build_term(b, NULL, &along), axis, no_run());
    return build_binary(b, OP_MUL, sum, signed_term(b, &others));
}

static bool has_product(const struct moving *m, const struct sum *sum)
{
    for (int i = 0; i < sum->count; i++)
        if (only_product(m, &sum->term[i]) >= 0)
            return true;
    return false;
}

/* -1: the rule does not apply. */
static int move_sum(struct moving *m, int n)
{
    const struct node node = m->w.graph->node[n];
    struct sum *sum = calloc(1, sizeof *sum);
    int total = -1;
    if (sum == NULL) {
        refuse(&m->w.b->why, CODA_MEMORY, "", "no memory to move a sum");
        return -1;
    }
    bool applies = m->w.graph->node[node.input[0]].shape.rank == 2 && open_value(m, node.input[0], 1, 0, sum) &&
                   has_product(m, sum);
    for (int i = 0; i < sum->count && applies; i++) {
        int part = only_product(m, &sum->term[i]) >= 0 ? move_term(m, &sum->term[i], node.axis)
                                                       : keep_term(m, &sum->term[i], node.axis);
        applies = part >= 0;
        total = total < 0 ? part : build_binary(m->w.b, OP_ADD, total, part);
    }
    free(sum);
    return applies && apply_rule(m->report, RULE_MOVED_DOT, m->w.graph, n) ? total : -1;
}

static int move_node(struct moving *m, int n)
{
    const struct node *node = &m->w.graph->node[n];
    int input[MAX_INPUTS], made = -1;
    for (int k = 0; k < node->input_count; k++)
        input[k] = m->w.made[node->input[k]];
    bool sum = node->op == OP_SUM && is_whole_reduction_of_value(m->w.graph, n);
    if (sum && !m->forward[n] && m->users.used[n] && node->shape.rank == 1)
        made = move_sum(m, n);
    if (made >= 0 || builder_failed(m->w.b))
        return made;
    m->w.b->plain = m->forward[n];
    made = build_like(m->w.b, m->w.graph, n, input);
    m->w.b->plain = false;
    return made;
}

struct graph *move_dots(const struct graph *graph, const bool *forward, int *made, struct report *report,
                        struct complaint *why)
{
    struct builder b;
    struct moving m = {.w = {.graph = graph, .b = &b, .made = made}, .forward = forward, .report = report};
    if (!builder_open(&b, graph, graph->name, graph->is_block) || !users_open(&m.users, graph, true) ||
        !levels_extend(&m.w.before, graph))
        refuse(&b.why, CODA_MEMORY, "", "no memory to rewrite `%.60s`", graph->name);
    for (int n = 0; n < graph->node_count && !builder_failed(&b); n++) {
        made[n] = move_node(&m, n);
        build_name(&b, made[n], graph->node[n].name);
    }
    for (int o = 0; o < graph->operand_count && !builder_failed(&b); o++) {
        const struct operand *out = &graph->operand[o];
        if (out->role != CODA_IN)
            build_out(&b, out->name, out->role, out->dtype, made[out->node]);
    }
    users_close(&m.users);
    levels_free(&m.w.before);
    *why = b.why;
    return builder_close(&b);
}
