/* Simplification: makes a derived graph read as a person would have written it. Equal up to rounding, and up to
 * removable singularities (x / x is 1). */
#include "rewrite/algebra.h"
#include "rewrite/passes.h"
#include "rewrite/rules.h"

#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 6 };

struct tidying {
    const struct graph *graph; /* before */
    struct builder b;
    struct report *report;
    struct users users;
    struct pairs pairs;
    int *made;     /* node -> node after */
    bool *inner;   /* absorbed by its only reader */
    int *size;     /* factors or terms that it absorbs itself */
    bool *sigmoid; /* sigmoid of the node is computed */
};

static bool is_product(enum op op)
{
    return op == OP_MUL || op == OP_DIV;
}

static bool is_sum(enum op op)
{
    return op == OP_ADD || op == OP_SUB;
}

static bool is_algebra(enum op op)
{
    return is_product(op) || is_sum(op) || op == OP_NEG;
}

/* A product inside a product or sum, a sum inside a sum, a sign inside either. */
static void mark_inner(struct tidying *t)
{
    const struct graph *graph = t->graph;
    for (int n = 0; n < graph->node_count; n++) {
        const struct node *node = &graph->node[n];
        t->size[n] = 1;
        for (int k = 0; k < node->input_count && is_algebra(node->op); k++)
            t->size[n] += t->inner[node->input[k]] ? t->size[node->input[k]] : 1;
        if (!t->users.used[n] || !is_algebra(node->op) || users_count(&t->users, n) != 1 ||
            t->users.out_count[n] != 0 || t->size[n] > MAX_FACTORS / 2)
            continue;
        enum op reader = graph->node[t->users.user[t->users.begin[n]].node].op;
        t->inner[n] = is_sum(node->op) ? is_sum(reader) || reader == OP_NEG : is_algebra(reader);
        for (int k = 0; k < node->input_count && node->op == OP_NEG && is_product(reader); k++)
            if (t->inner[node->input[k]] && is_sum(graph->node[node->input[k]].op))
                t->inner[n] = false;
    }
    for (int n = 0; n < graph->node_count; n++)
        if (graph->node[n].op == OP_SIGMOID && t->users.used[n])
            t->sigmoid[graph->node[n].input[0]] = true;
}

/* ---------------------------------------------------------------- gathering */

static void gather_factors(const struct tidying *t, int n, int exponent, bool root, struct term *term)
{
    const struct node *node = &t->graph->node[n];
    if ((root || t->inner[n]) && is_product(node->op)) {
        gather_factors(t, node->input[0], exponent, false, term);
        gather_factors(t, node->input[1], node->op == OP_MUL ? exponent : -exponent, false, term);
    } else if ((root || t->inner[n]) && node->op == OP_NEG) {
        term->coefficient *= exponent % 2 != 0 ? -1 : 1;
        gather_factors(t, node->input[0], exponent, false, term);
    } else {
        term_multiply(t->b.graph, term, t->made[n], exponent, n);
    }
}

static void gather_terms(const struct tidying *t, int n, double sign, bool root, struct sum *sum)
{
    const struct node *node = &t->graph->node[n];
    if ((root || t->inner[n]) && is_sum(node->op)) {
        gather_terms(t, node->input[0], sign, false, sum);
        gather_terms(t, node->input[1], node->op == OP_SUB ? -sign : sign, false, sum);
        return;
    }
    if ((root || t->inner[n]) && node->op == OP_NEG) {
        gather_terms(t, node->input[0], -sign, false, sum);
        return;
    }
    if (sum->count == MAX_TERMS) {
        sum->full = true;
        return;
    }
    struct term *term = &sum->term[sum->count++];
    term_start(term);
    gather_factors(t, n, 1, false, term);
    term->coefficient *= sign;
    term_cancel(t->b.graph, term);
    sum->full = sum->full || term->full;
}

/* The numerator of the product n, as nodes of the graph before. */
static int list_factors(const struct tidying *t, int n, int factor[MAX_FACTORS])
{
    int stack[2 * MAX_FACTORS], top = 0, count = 0;
    stack[top++] = n;
    while (top > 0 && count < MAX_FACTORS) {
        int m = stack[--top];
        const struct node *node = &t->graph->node[m];
        if ((m != n && !t->inner[m]) || !is_product(node->op) || top + 2 > 2 * MAX_FACTORS) {
            factor[count++] = m;
            continue;
        }
        if (node->op == OP_MUL)
            stack[top++] = node->input[1];
        stack[top++] = node->input[0];
    }
    return count;
}

/* Products that several others contain are worth a node of their own. */
static bool count_pairs(struct tidying *t)
{
    int factor[MAX_FACTORS];
    for (int n = 0; n < t->graph->node_count; n++) {
        bool maximal = t->users.used[n] && is_product(t->graph->node[n].op);
        if (maximal && t->inner[n])
            maximal = !is_product(t->graph->node[t->users.user[t->users.begin[n]].node].op);
        int count = maximal ? list_factors(t, n, factor) : 0;
        for (int i = 0; i < count; i++)
            for (int k = i + 1; k < count; k++)
                if (factor[i] != factor[k] && !pairs_add(&t->pairs, factor[i], factor[k]))
                    return false;
    }
    return true;
}

/* ---------------------------------------------------------------- reductions */

/* Rotations are orthogonal: sum of rope(x) rope(y) over whole rows = sum of x y. */
static bool drop_rotations(const struct graph *graph, struct term *term, int axis)
{
    if (term->count == 0 || term->count > 2)
        return false;
    const struct node *p = &graph->node[term->factor[0].node], *q = &graph->node[term->factor[term->count - 1].node];
    int powers = term->factor[0].exponent + (term->count == 2 ? term->factor[1].exponent : 0);
    if (p->op != OP_ROPE || q->op != OP_ROPE || powers != 2 || term->factor[0].exponent < 1 ||
        p->input[1] != q->input[1] || p->input[2] != q->input[2] || p->rope_pairs != q->rope_pairs ||
        p->rope_inverse != q->rope_inverse || !dim_equal(&p->rope_cols, &q->rope_cols) || p->shape.dim[1].axis != axis)
        return false;
    int x = p->input[0], y = q->input[0];
    double coefficient = term->coefficient;
    term_start(term);
    term->coefficient = coefficient;
    term_multiply(graph, term, x, 1, -1);
    term_multiply(graph, term, y, 1, -1);
    return true;
}

/* Splits a term in factors that vary along the axis and those that do not, which take the coefficient. */
static void split_along(const struct graph *graph, const struct term *all, int axis, struct term *inside,
                        struct term *outside)
{
    *inside = *all;
    term_start(outside);
    for (int i = 0; i < all->count; i++) {
        const struct factor *f = &all->factor[i];
        if (has_axis(&graph->node[f->node].shape, axis))
            continue;
        term_remove(inside, f->node, f->exponent);
        term_multiply(graph, outside, f->node, f->exponent, -1);
    }
    outside->coefficient *= inside->coefficient;
    inside->coefficient = 1;
}

/* The place of x in where(c, x, 0) or where(c, 0, x); 0: the node is neither. */
static int masked_place(const struct graph *graph, int node)
{
    const struct node *n = &graph->node[node];
    if (n->op != OP_WHERE)
        return 0;
    return is_number(graph, n->input[2], 0) ? 1 : is_number(graph, n->input[1], 0) ? 2 : 0;
}

/* sum(r x, N) = r sum(x, N) where r does not vary along N; also under a mask. */
static int build_sum_over(struct tidying *t, const struct node *node, int x)
{
    struct builder *b = &t->b;
    struct term all, inside, outside;
    if (x < 0 || b->graph->node[x].shape.rank < 2)
        return build_reduce(b, OP_SUM, x, node->axis, node->run);
    int place = masked_place(b->graph, x), inner = place ? b->graph->node[x].input[place] : x;
    term_start(&all);
    term_multiply(b->graph, &all, inner, 1, -1);
    term_expand(b->graph, &all);
    split_along(b->graph, &all, node->axis, &inside, &outside);
    struct term straight = inside;
    bool rotated = !place && is_whole_run(node->run) && drop_rotations(b->graph, &straight, node->axis) &&
                   apply_rule(t->report, RULE_DROPPED_ROTATION, b->graph, inside.factor[0].node);
    if (rotated)
        inside = straight;
    outside.coefficient *= inside.coefficient;
    inside.coefficient = 1;
    if (all.full || (outside.count == 0 && outside.coefficient == 1 && !rotated))
        return build_reduce(b, OP_SUM, x, node->axis, node->run);
    int rest = build_term(b, NULL, &inside);
    if (place && rest >= 0) {
        const struct node mask = b->graph->node[x];
        int zero = build_number(b, 0);
        rest = place == 1 ? build_where(b, mask.input[0], rest, zero) : build_where(b, mask.input[0], zero, rest);
    }
    if (rest < 0 || !shape_equal(&b->graph->node[rest].shape, &b->graph->node[x].shape))
        return build_reduce(b, OP_SUM, x, node->axis, node->run);
    term_multiply(b->graph, &outside, build_reduce(b, OP_SUM, rest, node->axis, node->run), 1, -1);
    int made = build_term(b, NULL, &outside);
    return outside.coefficient < 0 ? build_negative(b, made) : made;
}

/* ---------------------------------------------------------------- the pass */

/* Inputs that must have all their axes: pairs, rotations, products, picks, runs. */
static bool needs_shape(const struct node *node)
{
    return op_is_reduction(node->op) || (node->op >= OP_EVEN && node->op <= OP_ROPE) || node->op == OP_GEMM ||
           node->op == OP_PICK || node->op == OP_TRANSPOSE || node->op == OP_STACK;
}

static int make_other(struct tidying *t, int n)
{
    const struct node *node = &t->graph->node[n];
    int input[MAX_INPUTS] = {0};
    bool joins = node->input_count == 2 && (node->op == OP_JOIN || node->op == OP_JOIN_HALVES);
    for (int k = 0; k < node->input_count; k++) {
        input[k] = t->made[node->input[k]];
        if (needs_shape(node) && !joins && !builder_failed(&t->b))
            input[k] = build_broadcast(&t->b, input[k], &t->graph->node[node->input[k]].shape);
    }
    if (joins && is_number(t->b.graph, input[0], 0) && is_number(t->b.graph, input[1], 0))
        return input[0];
    for (int k = 0; k < 2 && joins && !builder_failed(&t->b); k++) /* one of them must be a matrix */
        if (t->b.graph->node[input[1 - k]].shape.rank < 2)
            input[k] = build_broadcast(&t->b, input[k], &t->graph->node[node->input[k]].shape);
    if (node->op == OP_SUM)
        return build_sum_over(t, node, input[0]);
    if (node->op == OP_SILU && t->sigmoid[node->input[0]])
        return build_binary(&t->b, OP_MUL, input[0], build_elementwise(&t->b, OP_SIGMOID, input, 1));
    return build_like(&t->b, t->graph, n, input);
}

/* As the graph before has it: what is too large for lists. */
static int make_plain(struct tidying *t, int n)
{
    const struct node *node = &t->graph->node[n];
    for (int k = 0; k < node->input_count; k++)
        if (t->inner[node->input[k]] && t->made[node->input[k]] < 0)
            t->made[node->input[k]] = make_plain(t, node->input[k]);
    return make_other(t, n);
}

static int make_algebra(struct tidying *t, int n)
{
    const struct node *node = &t->graph->node[n];
    struct sum sum = {0};
    struct term term;
    if (!is_sum(node->op) &&
        !(node->op == OP_NEG && t->inner[node->input[0]] && is_sum(t->graph->node[node->input[0]].op))) {
        term_start(&term);
        gather_factors(t, n, 1, true, &term);
        term_cancel(t->b.graph, &term);
        if (term.full)
            return make_plain(t, n);
        int made = build_term(&t->b, &t->pairs, &term);
        return term.coefficient < 0 ? build_negative(&t->b, made) : made;
    }
    gather_terms(t, n, 1, true, &sum);
    return sum.full ? make_plain(t, n) : build_sum(&t->b, &t->pairs, &sum);
}

/* A matrix that turned out to be one value a run is repeated: it may meet runs of another length. */
static int keep_columns(struct builder *b, int made, const struct shape *shape)
{
    bool coarser = false;
    for (int i = 0; made >= 0 && i < b->graph->node[made].shape.rank; i++) {
        const struct dim *dim = &b->graph->node[made].shape.dim[i];
        for (int k = 0; k < shape->rank && dim->form == DIM_RUNS; k++)
            coarser = coarser || (shape->dim[k].axis == dim->axis && shape->dim[k].form == DIM_WHOLE);
    }
    return coarser ? build_broadcast(b, made, shape) : made;
}

static void make_all(struct tidying *t)
{
    const struct graph *graph = t->graph;
    for (int n = 0; n < graph->node_count && !builder_failed(&t->b); n++) {
        t->made[n] = -1;
        if (!t->users.used[n] || t->inner[n])
            continue;
        t->made[n] = is_algebra(graph->node[n].op) ? make_algebra(t, n) : make_other(t, n);
        t->made[n] = keep_columns(&t->b, t->made[n], &graph->node[n].shape);
        build_name(&t->b, t->made[n], graph->node[n].name);
    }
    for (int o = 0; o < graph->operand_count && !builder_failed(&t->b); o++) {
        const struct operand *out = &graph->operand[o];
        if (out->role != CODA_IN)
            build_out(&t->b, out->name, out->role, out->dtype,
                      build_broadcast(&t->b, t->made[out->node], &graph->node[out->node].shape));
    }
}

static struct graph *tidy_once(const struct graph *graph, struct report *report, struct complaint *why)
{
    size_t count = (size_t)graph->node_count + 1;
    struct tidying t = {.graph = graph, .report = report};
    bool open = builder_open(&t.b, graph, graph->name, graph->is_block) && users_open(&t.users, graph, true) &&
                pairs_open(&t.pairs);
    t.made = calloc(count, sizeof *t.made);
    t.inner = calloc(count, sizeof *t.inner);
    t.size = calloc(count, sizeof *t.size);
    t.sigmoid = calloc(count, sizeof *t.sigmoid);
    if (open && t.made && t.inner && t.size && t.sigmoid)
        mark_inner(&t);
    if (!open || !t.made || !t.inner || !t.size || !t.sigmoid || !count_pairs(&t))
        refuse(&t.b.why, CODA_MEMORY, "", "no memory to simplify `%.60s`", graph->name);
    else
        make_all(&t);
    users_close(&t.users);
    pairs_close(&t.pairs);
    free(t.made);
    free(t.inner);
    free(t.size);
    free(t.sigmoid);
    *why = t.b.why;
    return builder_close(&t.b);
}

struct graph *tidy(const struct graph *graph, struct report *report, struct complaint *why)
{
    struct graph *after = tidy_once(graph, report, why);
    bool settled = false;
    for (int round = 1; round < ROUNDS && after != NULL && !settled; round++) {
        struct graph *before = after;
        after = tidy_once(before, report, why);
        settled = after != NULL && graph_equal(before, after);
        graph_free(before);
    }
    return after;
}
