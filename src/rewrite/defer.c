/* Rules of the forward: what waits for a whole row moves behind the next product. */
#include "rewrite/expand.h"
#include "rewrite/passes.h"
#include "rewrite/rules.h"

#include <stdlib.h>
#include <string.h>

/* One product of a late left operand: L = sum over groups of (late row factors) * (rest). */
struct group {
    struct term late;
    struct sum matrices; /* terms whose rest has both axes: one product */
    struct sum vectors;  /* terms whose rest is a row value times a column value: no product, a sum over the weight */
};

/* Late factors must be row values: they move to the other side of the product. */
static bool can_move(const struct rewriting *w, const struct term *late, int row_axis)
{
    const struct graph *graph = w->b->graph;
    for (int i = 0; i < late->count; i++) {
        const struct shape *shape = &graph->node[late->factor[i].node].shape;
        if (shape->rank == 2 ||
            (shape->rank == 1 && (shape->dim[0].axis != row_axis || shape->dim[0].form != DIM_WHOLE)))
            return false;
    }
    return true;
}

static bool sort_terms(const struct rewriting *w, const struct sum *sum, int row_axis, struct group *group, int *count)
{
    *count = 0;
    for (int i = 0; i < sum->count; i++) {
        struct term late, rest;
        int g = 0;
        split_late(w, &sum->term[i], &late, &rest);
        if (!can_move(w, &late, row_axis))
            return false;
        while (g < *count && !terms_alike(&group[g].late, &late))
            g++;
        if (g == *count) {
            memset(&group[g], 0, sizeof group[g]);
            group[(*count)++].late = late;
        }
        struct sum *to = has_matrix(w->b->graph, &rest) ? &group[g].matrices : &group[g].vectors;
        to->term[to->count++] = rest;
    }
    return true;
}

/* sum over k of v[k] W[n, k] for W.T on the right, of v[k] W[k, n] for W: one value a column of the product. */
static int weight_sum(struct rewriting *w, int right, int vector, int inner_axis)
{
    const struct node *node = &w->b->graph->node[right];
    int weight = node->op == OP_TRANSPOSE ? node->input[0] : right;
    int scaled = vector < 0 ? weight : build_binary(w->b, OP_MUL, weight, vector);
    return build_reduce(w->b, OP_SUM, scaled, inner_axis, no_run());
}

/* The term (row value) x (column value) @ right. */
static int build_outer(struct rewriting *w, const struct term *term, int right, int inner_axis)
{
    struct term rows, columns;
    term_start(&rows);
    term_start(&columns);
    rows.coefficient = term->coefficient;
    for (int i = 0; i < term->count; i++) {
        const struct factor *f = &term->factor[i];
        bool inner = has_axis(&w->b->graph->node[f->node].shape, inner_axis);
        term_multiply(w->b->graph, inner ? &columns : &rows, f->node, f->exponent, -1);
    }
    int vector = columns.count > 0 ? build_term(w->b, NULL, &columns) : -1;
    int factor = build_term(w->b, NULL, &rows);
    int made = build_binary(w->b, OP_MUL, weight_sum(w, right, vector, inner_axis), factor);
    return rows.coefficient < 0 ? build_negative(w->b, made) : made;
}

static int build_group(struct rewriting *w, struct group *group, const struct shape *left, int right, int *moved)
{
    int made = build_number(w->b, 0), inner_axis = left->dim[1].axis;
    if (group->matrices.count > 0) {
        int matrix = build_broadcast(w->b, build_sum(w->b, NULL, &group->matrices), left);
        made = build_gemm(w->b, matrix, right);
        *moved = matrix;
    }
    for (int i = 0; i < group->vectors.count; i++)
        made = build_binary(w->b, OP_ADD, made, build_outer(w, &group->vectors.term[i], right, inner_axis));
    return group->late.count == 0 ? made : build_binary(w->b, OP_MUL, made, build_term(w->b, NULL, &group->late));
}

/* The operand that is left takes the name of the one that is gone, if nothing else reads that. */
static void keep_name(struct rewriting *w, int matrix, int left)
{
    const char *name = w->graph->node[left].name;
    int gone = w->made[left];
    if (name == NULL || matrix < 0 || gone < 0 || matrix == gone || w->b->graph->node[matrix].name != NULL)
        return;
    for (int i = w->users.begin[left]; i < w->users.begin[left + 1]; i++)
        if (w->graph->node[w->users.user[i].node].op != OP_GEMM)
            return;
    if (w->users.out_count[left] > 0)
        return;
    free(w->b->graph->node[gone].name);
    w->b->graph->node[gone].name = NULL;
    build_name(w->b, matrix, name);
}

static bool has_stack(const struct rewriting *w, int right)
{
    const struct graph *graph = w->b->graph;
    return graph->node[strip_operand(graph, right)].op == OP_STACK;
}

/* Deferred scale: (r (x g) - m r g + b) @ W = r ((x g) @ W) - m r (g @ W) + b @ W, for r and m that are late. -1: no
 * rule. */
static int defer_product(struct rewriting *w, int left, int right, struct report *report)
{
    const struct shape shape = w->graph->node[left].shape;
    struct group *group = calloc(MAX_TERMS, sizeof *group);
    struct sum *sum = calloc(1, sizeof *sum);
    int count = 0, products = 0, vectors = 0, made = -1, matrix = -1;
    if (group == NULL || sum == NULL) {
        refuse(&w->b->why, CODA_MEMORY, "", "no memory to move a scale");
        goto done;
    }
    if (!expand_late(w, left, sum) || shape.dim[0].axis < 0 || shape.dim[1].axis < 0 ||
        !sort_terms(w, sum, shape.dim[0].axis, group, &count))
        goto done;
    for (int g = 0; g < count; g++) {
        products += group[g].matrices.count > 0;
        vectors += group[g].vectors.count;
    }
    if (products != 1 || (vectors > 0 && has_stack(w, w->made[right])))
        goto done;
    if (!apply_rule(report, vectors > 0 ? RULE_DEFERRED_MEAN : RULE_DEFERRED_SCALE, w->graph, left))
        goto done;
    made = build_number(w->b, 0);
    for (int g = 0; g < count; g++)
        made = build_binary(w->b, OP_ADD, made, build_group(w, &group[g], &shape, w->made[right], &matrix));
    keep_name(w, matrix, left);
done:
    free(group);
    free(sum);
    return made;
}

static int defer_products(struct rewriting *w, int n, struct report *report)
{
    const struct node node = w->graph->node[n];
    int made = -1;
    for (int i = 0; i < node.input_count; i += 2) {
        int left = node.input[i], part = -1;
        if (is_late(&w->before, left))
            part = defer_product(w, left, node.input[i + 1], report);
        if (part < 0)
            part = build_gemm(w->b, w->made[left], w->made[node.input[i + 1]]);
        made = i == 0 ? part : build_binary(w->b, OP_ADD, made, part);
    }
    return made;
}

/* A sum over a whole row of a value that waits for one: sum((x - m)^2) = sum(x^2) - 2 m sum(x) + N m^2. -1: no rule. */
static int expand_reduction(struct rewriting *w, int n, struct report *report)
{
    const struct node node = w->graph->node[n];
    struct sum *sum = calloc(1, sizeof *sum), *result = calloc(1, sizeof *result);
    int made = -1;
    if (sum == NULL || result == NULL) {
        refuse(&w->b->why, CODA_MEMORY, "", "no memory to expand a sum");
        goto done;
    }
    if (node.op != OP_SUM || w->graph->node[node.input[0]].shape.rank != 2 || !expand_late(w, node.input[0], sum))
        goto done;
    for (int i = 0; i < sum->count; i++) {
        struct term late, rest, *to = &result->term[result->count++];
        split_late(w, &sum->term[i], &late, &rest);
        for (int f = 0; f < late.count; f++)
            if (has_axis(&w->b->graph->node[late.factor[f].node].shape, node.axis))
                goto done;
        *to = late;
        to->coefficient = rest.coefficient;
        rest.coefficient = 1;
        if (has_matrix(w->b->graph, &rest)) {
            int x = build_term(w->b, NULL, &rest);
            term_multiply(w->b->graph, to, build_reduce(w->b, OP_SUM, x, node.axis, no_run()), 1, -1);
        } else if (rest.count == 0) {
            term_multiply(w->b->graph, to, build_size(w->b, node.axis), 1, -1);
        } else {
            goto done;
        }
    }
    if (apply_rule(report, RULE_EXPANDED_SUM, w->graph, n))
        made = build_sum(w->b, NULL, result);
    /* Terms of a sum of squares that cancel leave a rounding error, which may be below zero. Equal values are one node. */
    const struct node *x = &w->graph->node[node.input[0]];
    bool squared = x->op == OP_MUL && w->made[x->input[0]] == w->made[x->input[1]];
    if (made >= 0 && squared)
        made = build_binary(w->b, OP_MAX, made, build_number(w->b, 0));
done:
    free(sum);
    free(result);
    return made;
}

static int defer_node(struct rewriting *w, int n, struct report *report)
{
    const struct node *node = &w->graph->node[n];
    int input[MAX_INPUTS], made = -1;
    for (int k = 0; k < node->input_count; k++)
        input[k] = w->made[node->input[k]];
    if (node->op == OP_GEMM)
        return defer_products(w, n, report);
    if (is_whole_reduction_of_value(w->graph, n) && is_late(&w->before, node->input[0]))
        made = expand_reduction(w, n, report);
    return made >= 0 ? made : build_like(w->b, w->graph, n, input);
}

struct graph *defer_scales(const struct graph *graph, struct report *report, struct complaint *why)
{
    struct builder b;
    struct rewriting w = {.graph = graph, .b = &b};
    bool open = builder_open(&b, graph, graph->name, graph->is_block);
    w.made = calloc((size_t)graph->node_count + 1, sizeof *w.made);
    if (!open || w.made == NULL || !levels_extend(&w.before, graph) || !users_open(&w.users, graph, true)) {
        refuse(&b.why, CODA_MEMORY, "", "no memory to rewrite `%.60s`", graph->name);
        goto done;
    }
    for (int n = 0; n < graph->node_count && !builder_failed(&b); n++) {
        w.made[n] = defer_node(&w, n, report);
        build_name(&b, w.made[n], graph->node[n].name);
        if (!builder_failed(&b) && !levels_extend(&w.after, b.graph))
            refuse(&b.why, CODA_MEMORY, "", "no memory to rewrite `%.60s`", graph->name);
    }
    for (int o = 0; o < graph->operand_count && !builder_failed(&b); o++) {
        const struct operand *out = &graph->operand[o];
        if (out->role != CODA_IN)
            build_out(&b, out->name, out->role, out->dtype, w.made[out->node]);
    }
done:
    free(w.made);
    users_close(&w.users);
    levels_free(&w.before);
    levels_free(&w.after);
    *why = b.why;
    return builder_close(&b);
}
