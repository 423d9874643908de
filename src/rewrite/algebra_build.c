/* Terms and sums back to nodes, in the order in which a person would write them: matrices first, then what is one value
 * a row or column, numbers with those; shared products before others. */
#include "rewrite/algebra.h"

#include <math.h>
#include <string.h>

static int rank_of(const struct builder *b, int node)
{
    return node < 0 ? 0 : b->graph->node[node].shape.rank;
}

/* Has it an element for each of a matrix, not one for a run of them? */
static bool is_matrix(const struct builder *b, int node)
{
    const struct shape *shape = &b->graph->node[node].shape;
    for (int d = 0; d < shape->rank; d++)
        if (shape->dim[d].form == DIM_RUNS && !is_pair_dim(&shape->dim[d]))
            return false;
    return shape->rank == 2;
}

static bool join(const struct builder *b, const struct shape *p, const struct shape *q)
{
    struct shape joined;
    return join_shapes(b->graph, p, q, &joined, NULL);
}

/* Multiplies `to` (-1: nothing yet) by node^exponent. */
static int times(struct builder *b, int to, int node, int exponent)
{
    for (; exponent > 0; exponent--)
        to = to < 0 ? node : build_binary(b, OP_MUL, to, node);
    for (; exponent < 0; exponent++)
        to = build_binary(b, OP_DIV, to < 0 ? build_number(b, 1) : to, node);
    return to;
}

/* ---------------------------------------------------------------- shared products first */

static bool is_shareable(const struct builder *b, const struct factor *p, const struct factor *q)
{
    return p->exponent > 0 && q->exponent > 0 && rank_of(b, p->node) > 0 && rank_of(b, q->node) > 0 &&
           (is_matrix(b, p->node) || is_matrix(b, q->node));
}

static void make_shared(struct builder *b, const struct pairs *pairs, struct term *term)
{
    for (;;) {
        int best = 1, first = -1, second = -1;
        for (int i = 0; i < term->count; i++)
            for (int k = i + 1; k < term->count; k++) {
                int count = pairs_count(pairs, term->factor[i].origin, term->factor[k].origin);
                if (count > best && is_shareable(b, &term->factor[i], &term->factor[k])) {
                    best = count;
                    first = i;
                    second = k;
                }
            }
        if (first < 0)
            return;
        int x = term->factor[first].node, y = term->factor[second].node;
        int made = build_binary(b, OP_MUL, x, y);
        if (made < 0)
            return;
        term_remove(term, y, 1);
        term_remove(term, x, 1);
        memmove(&term->factor[1], &term->factor[0], (size_t)term->count * sizeof term->factor[0]);
        term->factor[0] = (struct factor){made, 1, -1};
        term->count++;
    }
}

/* ---------------------------------------------------------------- one term */

/* The factors that have the shape of factor `first`: one node. */
static int build_vectors(struct builder *b, const struct term *term, int first)
{
    const struct shape shape = b->graph->node[term->factor[first].node].shape;
    int made = -1;
    for (int sign = 1; sign >= -1; sign -= 2)
        for (int i = first; i < term->count; i++) {
            const struct factor *f = &term->factor[i];
            if (shape_equal(&b->graph->node[f->node].shape, &shape) && (f->exponent > 0) == (sign > 0))
                made = times(b, made, f->node, f->exponent);
        }
    return made;
}

/* `made` (-1: nothing) times the coefficient and the scalars of the term. */
static int build_scalars(struct builder *b, const struct term *term, int made, double coefficient)
{
    if (coefficient != 1 && made >= 0)
        made = build_binary(b, OP_MUL, build_number(b, coefficient), made);
    else if (coefficient != 1)
        made = build_number(b, coefficient);
    for (int sign = 1; sign >= -1; sign -= 2)
        for (int i = 0; i < term->count; i++)
            if (rank_of(b, term->factor[i].node) == 0 && (term->factor[i].exponent > 0) == (sign > 0))
                made = times(b, made, term->factor[i].node, term->factor[i].exponent);
    return made;
}

static bool has_scalars(const struct builder *b, const struct term *term, double coefficient)
{
    bool found = coefficient != 1;
    for (int i = 0; i < term->count; i++)
        found = found || rank_of(b, term->factor[i].node) == 0;
    return found;
}

/* One node for each shape of what is no matrix and no number: rows, columns, runs. */
static int build_all_vectors(struct builder *b, const struct term *term, int vectors[MAX_FACTORS])
{
    int count = 0;
    for (int i = 0; i < term->count; i++) {
        bool seen = rank_of(b, term->factor[i].node) == 0 || is_matrix(b, term->factor[i].node);
        for (int k = 0; k < i && !seen; k++)
            seen =
                shape_equal(&b->graph->node[term->factor[k].node].shape, &b->graph->node[term->factor[i].node].shape);
        if (!seen)
            vectors[count++] = build_vectors(b, term, i);
    }
    return count;
}

/* The coefficient without its sign. */
int build_term(struct builder *b, const struct pairs *pairs, const struct term *whole)
{
    struct term term = *whole;
    double coefficient = fabs(term.coefficient);
    int made = -1, vectors[MAX_FACTORS];
    if (builder_failed(b))
        return -1;
    make_shared(b, pairs, &term);
    for (int i = 0; i < term.count; i++)
        if (is_matrix(b, term.factor[i].node) && term.factor[i].exponent > 0)
            made = times(b, made, term.factor[i].node, term.factor[i].exponent);
    int count = build_all_vectors(b, &term, vectors);
    if (count > 0) {
        vectors[0] = build_scalars(b, &term, vectors[0], coefficient);
    } else if (has_scalars(b, &term, coefficient)) {
        int scalars = build_scalars(b, &term, -1, coefficient);
        bool number = scalars >= 0 && b->graph->node[scalars].op == OP_NUMBER;
        made = made < 0 ? scalars
               : number ? build_binary(b, OP_MUL, scalars, made)
                        : build_binary(b, OP_MUL, made, scalars);
    }
    for (int v = 0; v < count; v++)
        made = made < 0 ? vectors[v] : build_binary(b, OP_MUL, made, vectors[v]);
    for (int i = 0; i < term.count; i++)
        if (is_matrix(b, term.factor[i].node) && term.factor[i].exponent < 0)
            made = times(b, made, term.factor[i].node, term.factor[i].exponent);
    return made < 0 ? build_number(b, coefficient) : made;
}

/* ---------------------------------------------------------------- sums */

static void remove_term(struct sum *sum, int i)
{
    memmove(&sum->term[i], &sum->term[i + 1], (size_t)(--sum->count - i) * sizeof sum->term[0]);
}

/* 2 x + 3 x = 5 x, also where one of them is hidden in a product that has a node of its own. */
static void join_like_terms(const struct graph *graph, struct sum *sum)
{
    for (int i = 0; i < sum->count; i++)
        for (int k = i + 1; k < sum->count; k++) {
            struct term p = sum->term[i], q = sum->term[k];
            if (!terms_alike(&p, &q)) {
                term_expand(graph, &p);
                term_expand(graph, &q);
                if (p.full || q.full || !terms_alike(&p, &q))
                    continue;
            }
            p.coefficient += q.coefficient;
            sum->term[i] = p;
            remove_term(sum, k--);
        }
    for (int i = 0; i < sum->count; i++)
        if (sum->term[i].coefficient == 0)
            remove_term(sum, i--);
}

/* The only factor that is a sum over a whole axis; -1: none, or several. */
static int whole_sum(const struct graph *graph, const struct term *term)
{
    int found = -1;
    for (int i = 0; i < term->count; i++) {
        const struct node *n = &graph->node[term->factor[i].node];
        if (n->op != OP_SUM || !is_whole_run(n->run))
            continue;
        if (found >= 0 || term->factor[i].exponent != 1)
            return -1;
        found = term->factor[i].node;
    }
    return found;
}

/* r sum(x, N) + r sum(y, N) = r sum(x + y, N): one partial instead of two. */
static void merge_reductions(struct builder *b, struct sum *sum)
{
    for (int i = 0; i < sum->count; i++)
        for (int k = i + 1; k < sum->count && !builder_failed(b); k++) {
            struct term p = sum->term[i], q = sum->term[k];
            int x = whole_sum(b->graph, &p), y = whole_sum(b->graph, &q);
            if (x < 0 || y < 0 || x == y || b->graph->node[x].axis != b->graph->node[y].axis ||
                fabs(p.coefficient) != fabs(q.coefficient))
                continue;
            term_remove(&p, x, 1);
            term_remove(&q, y, 1);
            int xs = b->graph->node[x].input[0], ys = b->graph->node[y].input[0], axis = b->graph->node[x].axis;
            if (!terms_alike(&p, &q) || !shape_equal(&b->graph->node[xs].shape, &b->graph->node[ys].shape) ||
                b->graph->node[xs].op == OP_IN || b->graph->node[ys].op == OP_IN)
                continue;
            int both = build_binary(b, p.coefficient == q.coefficient ? OP_ADD : OP_SUB, xs, ys);
            term_multiply(b->graph, &p, build_reduce(b, OP_SUM, both, axis, no_run()), 1, -1);
            sum->term[i] = p;
            remove_term(sum, k--);
        }
}

/* The shape of a term without one power of a factor. */
static bool shape_without(const struct builder *b, const struct term *term, int node, struct shape *shape)
{
    *shape = scalar_shape();
    for (int matrices = 1; matrices >= 0; matrices--)
        for (int f = 0; f < term->count; f++) {
            const struct factor *factor = &term->factor[f];
            struct shape joined;
            if (is_matrix(b, factor->node) != matrices ||
                (factor->node == node && (factor->exponent == 1 || factor->exponent == -1)))
                continue;
            if (!join_shapes(b->graph, shape, &b->graph->node[factor->node].shape, &joined, NULL))
                return false;
            *shape = joined;
        }
    return true;
}

/* Do the terms that have the factor still join when it is gone? Runs of different lengths do not. */
static bool can_take_out(const struct builder *b, const struct sum *sum, int node, int sign)
{
    struct shape shape[MAX_TERMS];
    int count = 0;
    for (int i = 0; i < sum->count; i++) {
        if (term_exponent(&sum->term[i], node) * sign <= 0)
            continue;
        if (!shape_without(b, &sum->term[i], node, &shape[count]))
            return false;
        for (int k = 0; k < count; k++)
            if (!join(b, &shape[k], &shape[count]))
                return false;
        count++;
    }
    return true;
}

/* The factor that most terms have, if two have it. */
static bool find_common(const struct builder *b, const struct sum *sum, int *node, int *sign)
{
    int best = 1;
    for (int i = 0; i < sum->count; i++)
        for (int f = 0; f < sum->term[i].count; f++) {
            const struct factor *factor = &sum->term[i].factor[f];
            int s = factor->exponent > 0 ? 1 : -1, count = 0;
            for (int k = 0; k < sum->count; k++)
                count += term_exponent(&sum->term[k], factor->node) * s > 0;
            if (count > best && can_take_out(b, sum, factor->node, s)) {
                best = count;
                *node = factor->node;
                *sign = s;
            }
        }
    return best > 1;
}

static int origin_of(const struct sum *sum, int node)
{
    for (int i = 0; i < sum->count; i++)
        for (int f = 0; f < sum->term[i].count; f++)
            if (sum->term[i].factor[f].node == node)
                return sum->term[i].factor[f].origin;
    return -1;
}

/* a c + b c + .. = (a + b) c + .. */
static void take_out(struct builder *b, const struct pairs *pairs, struct sum *sum, int node, int sign)
{
    struct sum inner = {0};
    struct term product;
    int place = -1, origin = origin_of(sum, node);
    for (int i = 0; i < sum->count; i++) {
        if (term_exponent(&sum->term[i], node) * sign <= 0)
            continue;
        inner.term[inner.count] = sum->term[i];
        term_remove(&inner.term[inner.count++], node, sign);
        place = place < 0 ? i : place;
    }
    if (place < 0)
        return;
    term_start(&product);
    term_multiply(b->graph, &product, build_sum(b, pairs, &inner), 1, -1);
    term_multiply(b->graph, &product, node, sign, origin);
    for (int i = sum->count - 1; i >= 0; i--)
        if (term_exponent(&sum->term[i], node) * sign > 0 && i != place)
            remove_term(sum, i);
    sum->term[place] = product;
}

/* All coefficients are c or -c: c (x - y + ..). */
static double common_coefficient(struct sum *sum)
{
    double c = fabs(sum->term[0].coefficient);
    for (int i = 1; i < sum->count; i++)
        if (fabs(sum->term[i].coefficient) != c)
            return 1;
    for (int i = 0; i < sum->count && c != 1; i++)
        sum->term[i].coefficient /= c;
    return c;
}

static bool is_masked(enum op op)
{
    return op == OP_WHERE || op == OP_JOIN || op == OP_JOIN_HALVES;
}

/* where(c, x, 0) + where(c, 0, y) and the like become one. */
static void join_masks(struct builder *b, int *node, const double *sign, int count)
{
    for (int i = 0; i < count && !builder_failed(b); i++)
        for (int k = i + 1; k < count; k++) {
            int pair[2] = {node[i], node[k]};
            if (sign[i] != 1 || sign[k] != 1 || pair[0] < 0 || pair[1] < 0 || !is_masked(b->graph->node[pair[0]].op) ||
                b->graph->node[pair[0]].op != b->graph->node[pair[1]].op)
                continue;
            int folded = fold(b, OP_ADD, pair);
            if (folded == NOT_FOLDED)
                continue;
            node[i] = folded;
            node[k] = build_number(b, 0);
        }
}

/* The order of a sum: products of matrices first, so that two make one accumulator; then positive terms. Where runs of
 * different lengths occur, matrices come first. */
static int place_of(const struct builder *b, int node, bool positive, bool by_shape)
{
    bool gemm = b->graph->node[node].op == OP_GEMM;
    int place = positive ? (gemm ? 0 : 1) : (gemm ? 2 : 3);
    return by_shape && !is_matrix(b, node) ? place + 4 : place;
}

static int add_up(struct builder *b, const int *node, const double *sign, int count)
{
    int made = -1;
    bool first_positive = true, by_shape = false;
    for (int i = 0; i < count; i++) {
        if (node[i] < 0)
            return -1;
        for (int k = 0; k < i; k++)
            by_shape = by_shape || !join(b, &b->graph->node[node[i]].shape, &b->graph->node[node[k]].shape);
    }
    for (int place = 0; place < 8; place++)
        for (int i = 0; i < count && !builder_failed(b); i++) {
            bool positive = sign[i] > 0;
            if (place_of(b, node[i], positive, by_shape) != place || is_number(b->graph, node[i], 0))
                continue;
            if (made < 0)
                first_positive = positive;
            made = made < 0 ? node[i] : build_binary(b, positive == first_positive ? OP_ADD : OP_SUB, made, node[i]);
        }
    if (made < 0)
        return build_number(b, 0);
    return first_positive ? made : build_negative(b, made);
}

int build_sum(struct builder *b, const struct pairs *pairs, struct sum *sum)
{
    int node[MAX_TERMS], common = -1, sign = 1;
    double signs[MAX_TERMS];
    join_like_terms(b->graph, sum);
    if (sum->count == 0)
        return build_number(b, 0);
    double coefficient = sum->count > 1 ? common_coefficient(sum) : 1;
    merge_reductions(b, sum);
    while (sum->count > 1 && find_common(b, sum, &common, &sign) && !builder_failed(b))
        take_out(b, pairs, sum, common, sign);
    for (int i = 0; i < sum->count; i++) {
        node[i] = build_term(b, pairs, &sum->term[i]);
        signs[i] = sum->term[i].coefficient < 0 ? -1 : 1;
    }
    int count = sum->count;
    join_masks(b, node, signs, count);
    int made = add_up(b, node, signs, count);
    return coefficient == 1 ? made : build_binary(b, OP_MUL, build_number(b, coefficient), made);
}
