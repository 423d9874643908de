/* exp(z - lse) - onehot(t) is E = exp(z), which the head can store, with one element a row changed, times one factor a row:
 * a factor goes behind the product of the row, and into the other operand of the transposed one. It holds while lse is so
 * small that E neither overflows nor loses what counts; rows where it does not are marked, and computed again on that
 * condition, with exp(z - lse). */
#include "rewrite/exponentials.h"
#include "ir/build.h"
#include "rewrite/cut.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double WINDOW = 45; /* |lse| below it: docs/numerics.md */

/* Names of the new values. */
struct new_names {
    char marked[STORED_NAME], again[STORED_NAME]; /* rows to be computed again, and runs of their log-sum-exps */
    char lse[STORED_NAME];                        /* these finished */
    char dots[STORED_NAME];                       /* runs of sums of z E */
    char sum[STORED_NAME], dotted[STORED_NAME];   /* of E and z E over a row */
    char factor[STORED_NAME], dot[STORED_NAME];   /* s, and what the dots sum up to */
    char scaled[STORED_NAME];                     /* the input times s */
};

struct rewriting {
    const struct rewritten *made;
    const struct graph *block;
    struct cross_entropy c;
    struct names names;
    struct new_names name;
    struct complaint *why;
};

/* A new program made from a graph, node by node. */
struct copying {
    const struct graph *from;
    struct builder b;
    int *made; /* one a node of `from`: -1 not yet */
};

static bool copy_open(struct copying *copy, const struct graph *from)
{
    *copy = (struct copying){.from = from};
    copy->made = malloc(((size_t)from->node_count + 1) * sizeof *copy->made);
    bool open = builder_open(&copy->b, from, from->name, false);
    if (copy->made == NULL)
        refuse(&copy->b.why, CODA_MEMORY, "", "no memory for a graph");
    for (int n = 0; copy->made != NULL && n < from->node_count; n++)
        copy->made[n] = -1;
    if (copy->b.graph != NULL)
        copy->b.graph->between = false;
    return open && copy->made != NULL;
}

/* Nodes that are not made yet, with what they read; those that are stand for themselves. */
static int copy_node(struct copying *copy, int node)
{
    bool *need = calloc((size_t)copy->from->node_count + 1, sizeof *need);
    if (need == NULL)
        return refuse(&copy->b.why, CODA_MEMORY, "", "no memory for a graph");
    need[node] = true;
    for (int n = node; n >= 0; n--)
        for (int k = 0; need[n] && copy->made[n] < 0 && k < copy->from->node[n].input_count; k++)
            need[copy->from->node[n].input[k]] = true;
    for (int n = 0; n <= node; n++) {
        int input[MAX_INPUTS] = {0};
        if (!need[n] || copy->made[n] >= 0)
            continue;
        for (int k = 0; k < copy->from->node[n].input_count; k++)
            input[k] = copy->made[copy->from->node[n].input[k]];
        copy->made[n] = build_like(&copy->b, copy->from, n, input);
        build_name(&copy->b, copy->made[n], copy->from->node[n].name);
    }
    free(need);
    return builder_failed(&copy->b) ? -1 : copy->made[node];
}

/* The finished program under a new name, `stem`; `when` (NULL: always) names its condition. */
static struct graph *copy_close(struct rewriting *r, struct copying *copy, const char *stem, const char *when)
{
    char name[STORED_NAME], wanted[STORED_NAME];
    if (copy->b.why.status != CODA_OK)
        *r->why = copy->b.why;
    struct graph *graph = builder_close(&copy->b);
    free(copy->made);
    if (graph == NULL)
        return NULL;
    order_operands(graph);
    prune_axes(graph);
    bool good = when == NULL || graph_when(graph, graph->operand[graph_find_operand(graph, when)].node, r->why) == 0;
    if (good && stem != NULL) {
        snprintf(wanted, sizeof wanted, "%.150s_%.40s", r->block->name, stem);
        good = names_make(&r->names, wanted, name);
        free(graph->name);
        graph->name = good ? strdup(name) : NULL;
        good = graph->name != NULL || refuse(r->why, CODA_MEMORY, "", "no memory for the name of a program") == 0;
    }
    if (good)
        return graph;
    graph_free(graph);
    return NULL;
}

/* ---------------------------------------------------------------- values that the programs share */

static int row_value(struct copying *copy, const char *name, const struct shape *rows)
{
    return build_in(&copy->b, name, CODA_F32, rows);
}

static int log_of(struct builder *b, int x)
{
    return build_elementwise(b, OP_LOG, &x, 1);
}

static int exp_of(struct builder *b, int x)
{
    return build_elementwise(b, OP_EXP, &x, 1);
}

/* The shape of one value a row, in the axes of a program that has the operand `like` with rows first. */
static struct shape rows_of(const struct operand *like)
{
    return vector_shape(like->shape.dim[0]);
}

/* A sum (or log-sum-exp) over the runs of a row, which lie as those of the logits do. */
static int whole(struct rewriting *r, struct copying *copy, enum op op, const char *name)
{
    const struct operand *runs = operand_named(copy->from, r->c.runs);
    int in = build_in(&copy->b, name, CODA_F32, &runs->shape);
    return build_reduce(&copy->b, op, in, runs->shape.dim[1].axis, no_run());
}

/* `value` in the rows that are marked, 0 in the others. */
static int where_marked(struct rewriting *r, struct copying *copy, int value)
{
    struct shape rows = rows_of(operand_named(copy->from, r->c.runs));
    return build_where(&copy->b, row_value(copy, r->name.marked, &rows), value, build_number(&copy->b, 0));
}

/* ---------------------------------------------------------------- the head */

/* Outs that stay as they are. */
static void copy_other_outs(struct rewriting *r, struct copying *copy)
{
    for (int o = 0; o < copy->from->operand_count; o++) {
        const struct operand *out = &copy->from->operand[o];
        bool ours = strcmp(out->name, r->c.logits) == 0 || strcmp(out->name, r->c.runs) == 0 ||
                    strcmp(out->name, r->c.target) == 0;
        if (out->role != CODA_IN && !ours)
            build_out(&copy->b, out->name, out->role, out->dtype, copy_node(copy, out->node));
    }
}

static void store_head(struct rewriting *r, struct copying *copy, int e)
{
    const struct graph *head = copy->from;
    struct builder *b = &copy->b;
    const struct operand *logits = operand_named(head, r->c.logits), *runs = operand_named(head, r->c.runs),
                         *target = operand_named(head, r->c.target);
    const struct node *run = &head->node[runs->node];
    int z = copy_node(copy, r->c.z);
    build_out(b, logits->name, CODA_OUT, logits->dtype, e);
    build_out(b, runs->name, CODA_OUT, runs->dtype, build_reduce(b, OP_SUM, e, run->axis, run->run));
    if (r->c.dot != NULL)
        build_out(b, r->name.dots, CODA_OUT, CODA_F32,
                  build_reduce(b, OP_SUM, build_binary(b, OP_MUL, z, e), run->axis, run->run));
    build_out(b, target->name, CODA_OUT, target->dtype, copy_node(copy, target->node));
}

static struct graph *make_head(struct rewriting *r)
{
    struct copying copy;
    if (copy_open(&copy, r->made->unit.graph[r->c.head])) {
        copy_other_outs(r, &copy);
        store_head(r, &copy, exp_of(&copy.b, copy_node(&copy, r->c.z)));
    }
    return copy_close(r, &copy, NULL, NULL);
}

/* Sums of rows, and marks where they are out of the window. */
static struct graph *make_marks(struct rewriting *r)
{
    struct copying copy;
    if (copy_open(&copy, r->made->unit.graph[r->c.finish])) {
        struct builder *b = &copy.b;
        int sum = whole(r, &copy, OP_SUM, r->c.runs), x = log_of(b, sum);
        int inside = build_binary(b, OP_LT, build_elementwise(b, OP_ABS, &x, 1), build_number(b, WINDOW));
        build_out(b, r->name.marked, CODA_OUT, CODA_F32, build_binary(b, OP_SUB, build_number(b, 1), inside));
        build_out(b, r->name.sum, CODA_OUT, CODA_F32, sum);
        if (r->c.dot != NULL)
            build_out(b, r->name.dotted, CODA_OUT, CODA_F32, whole(r, &copy, OP_SUM, r->name.dots));
    }
    return copy_close(r, &copy, "marks", NULL);
}

static struct graph *make_runs_again(struct rewriting *r)
{
    struct copying copy;
    if (copy_open(&copy, r->made->unit.graph[r->c.head])) {
        const struct operand *runs = operand_named(copy.from, r->c.runs);
        struct shape rows = rows_of(runs);
        build_out(&copy.b, r->name.again, CODA_OUT, CODA_F32, copy_node(&copy, runs->node));
        row_value(&copy, r->name.marked, &rows);
    }
    return copy_close(r, &copy, "runs_again", r->name.marked);
}

static struct graph *make_head_again(struct rewriting *r)
{
    struct copying copy;
    if (copy_open(&copy, r->made->unit.graph[r->c.head])) {
        int below = where_marked(r, &copy, whole(r, &copy, OP_LOGSUMEXP, r->name.again));
        store_head(r, &copy, exp_of(&copy.b, build_binary(&copy.b, OP_SUB, copy_node(&copy, r->c.z), below)));
    }
    return copy_close(r, &copy, "head_again", r->name.marked);
}

/* ---------------------------------------------------------------- the rows */

static struct graph *make_sums_again(struct rewriting *r)
{
    struct copying copy;
    if (copy_open(&copy, r->made->unit.graph[r->c.finish])) {
        struct builder *b = &copy.b;
        struct shape rows = rows_of(operand_named(copy.from, r->c.runs));
        build_out(b, r->name.lse, CODA_OUT, CODA_F32, whole(r, &copy, OP_LOGSUMEXP, r->name.again));
        build_out(b, r->name.sum, CODA_OUT, CODA_F32, whole(r, &copy, OP_SUM, r->c.runs));
        if (r->c.dot != NULL)
            build_out(b, r->name.dotted, CODA_OUT, CODA_F32, whole(r, &copy, OP_SUM, r->name.dots));
        row_value(&copy, r->name.marked, &rows);
    }
    return copy_close(r, &copy, "sums_again", r->name.marked);
}

static struct graph *make_finish(struct rewriting *r)
{
    struct copying copy;
    if (copy_open(&copy, r->made->unit.graph[r->c.finish])) {
        struct shape rows = rows_of(operand_named(copy.from, r->c.runs));
        struct builder *b = &copy.b;
        int sum = row_value(&copy, r->name.sum, &rows);
        int below = where_marked(r, &copy, row_value(&copy, r->name.lse, &rows));
        copy.made[r->c.lse_node] = build_binary(b, OP_ADD, below, log_of(b, sum));
        build_name(b, copy.made[r->c.lse_node], copy.from->node[r->c.lse_node].name);
        for (int o = 0; o < copy.from->operand_count; o++) {
            const struct operand *out = &copy.from->operand[o];
            if (out->role != CODA_IN)
                build_out(b, out->name, out->role, out->dtype, copy_node(&copy, out->node));
        }
        if (r->c.dot != NULL) {
            int mean = build_binary(b, OP_DIV, row_value(&copy, r->name.dotted, &rows), sum);
            build_out(b, r->name.dot, CODA_OUT, CODA_F32,
                      build_binary(b, OP_SUB, mean, row_value(&copy, r->c.target, &rows)));
        }
    }
    return copy_close(r, &copy, NULL, NULL);
}

/* In the place of the pass: the factor of every row, and the element at the target. What its rounding changes goes into the
 * factor, so that the largest element of the row is exact. */
static struct graph *make_patch(struct rewriting *r)
{
    struct copying copy;
    if (copy_open(&copy, r->made->unit.graph[r->c.pass])) {
        struct builder *b = &copy.b;
        const struct operand *logits = operand_named(copy.from, r->c.logits), *ids = operand_named(copy.from, r->c.ids);
        struct shape rows = rows_of(logits);
        int one = build_number(b, 1), zero = build_number(b, 0);
        int sum = row_value(&copy, r->name.sum, &rows), lse = row_value(&copy, r->c.lse, &rows);
        int above = build_binary(b, OP_SUB, row_value(&copy, r->c.target, &rows), lse);
        int p = exp_of(b, build_binary(b, OP_MIN, above, zero)); /* an ignored target has any lse */
        int e = build_binary(b, OP_MUL, sum, build_binary(b, OP_SUB, p, one));
        int near = e < 0 ? -1 : graph_cast(b->graph, e, logits->dtype, &b->why);
        int ratio = build_where(b, near, build_binary(b, OP_DIV, e, near), one);
        int weight = r->c.weight < 0 ? one : copy_node(&copy, r->c.weight);
        int factor = build_binary(b, OP_MUL, build_binary(b, OP_DIV, weight, sum), ratio);
        int t = build_in(b, ids->name, ids->dtype, &ids->shape);
        build_out(b, r->name.factor, CODA_OUT, CODA_F32, factor);
        if (!builder_failed(b))
            graph_patch(b->graph, logits->name, logits->dtype, &logits->shape, e, t, &b->why);
    }
    return copy_close(r, &copy, "patch", NULL);
}

/* ---------------------------------------------------------------- who read the gradient */

static void make_user_node(struct rewriting *r, struct copying *copy, int n)
{
    const struct graph *from = copy->from;
    const struct node *node = &from->node[n];
    const struct operand *gradient = operand_named(from, r->c.gradient), *dot = operand_named(from, r->c.dot);
    if (is_in_named(from, n, r->c.gradient)) {
        copy->made[n] = build_in(&copy->b, r->c.logits, node->dtype, &node->shape);
    } else if (gradient != NULL && !r->c.own_input && is_in_named(from, n, r->c.input)) {
        copy->made[n] = build_in(&copy->b, r->name.scaled, node->dtype, &node->shape);
    } else if (node->op == OP_GEMM && is_in_named(from, node->input[0], r->c.gradient)) {
        struct shape rows = rows_of(gradient);
        int product = copy_node(copy, n);
        copy->made[n] = build_binary(&copy->b, OP_MUL, product, row_value(copy, r->name.factor, &rows));
    } else if (node->op == OP_SUM && is_in_named(from, node->input[0], r->c.dot)) {
        struct shape rows = rows_of(dot);
        copy->made[n] = row_value(copy, r->name.dot, &rows);
    }
}

static struct graph *make_user(struct rewriting *r, int program)
{
    struct copying copy;
    if (copy_open(&copy, r->made->unit.graph[program])) {
        const struct operand *input = operand_named(copy.from, r->c.input);
        for (int n = 0; n < copy.from->node_count && !builder_failed(&copy.b); n++)
            make_user_node(r, &copy, n);
        for (int o = 0; o < copy.from->operand_count && !builder_failed(&copy.b); o++) {
            const struct operand *out = &copy.from->operand[o];
            if (out->role == CODA_IN)
                continue;
            int value = copy_node(&copy, out->node);
            if (out == input && r->c.own_input) {
                struct shape rows = rows_of(out);
                value = build_binary(&copy.b, OP_MUL, value, row_value(&copy, r->name.factor, &rows));
            }
            build_out(&copy.b, out->name, out->role, out->dtype, value);
        }
    }
    return copy_close(r, &copy, NULL, NULL);
}

/* The input of the transposed product times s, where no program makes that input for it. */
static struct graph *make_scaled(struct rewriting *r)
{
    struct copying copy;
    const struct graph *reader = NULL;
    for (int p = 0; p < r->made->unit.count; p++)
        if (operand_named(r->made->unit.graph[p], r->c.gradient) != NULL &&
            operand_named(r->made->unit.graph[p], r->c.input) != NULL)
            reader = r->made->unit.graph[p];
    if (copy_open(&copy, reader)) {
        const struct operand *input = operand_named(reader, r->c.input);
        struct shape rows = rows_of(input);
        int x = build_in(&copy.b, input->name, input->dtype, &input->shape);
        build_out(&copy.b, r->name.scaled, CODA_OUT, input->dtype,
                  build_binary(&copy.b, OP_MUL, x, row_value(&copy, r->name.factor, &rows)));
    }
    return copy_close(r, &copy, "scaled", NULL);
}

static bool is_user(const struct rewriting *r, int program)
{
    const struct graph *graph = r->made->unit.graph[program];
    const struct operand *input = operand_named(graph, r->c.input);
    return program != r->c.pass &&
           (operand_named(graph, r->c.gradient) != NULL || operand_named(graph, r->c.dot) != NULL ||
            (input != NULL && input->role != CODA_IN && r->c.own_input));
}

/* ---------------------------------------------------------------- the list */

static bool name_values(struct rewriting *r)
{
    bool named = names_open(&r->names, r->block);
    for (int p = 0; p < r->made->unit.count && named; p++)
        named = names_add(&r->names, r->made->unit.graph[p]) && names_take(&r->names, r->made->unit.graph[p]->name);
    return named && names_make(&r->names, "marked", r->name.marked) && names_make(&r->names, "L", r->name.again) &&
           names_make(&r->names, "B", r->name.lse) && names_make(&r->names, "ZE", r->name.dots) &&
           names_make(&r->names, "Q", r->name.dotted) && names_make(&r->names, "N", r->name.sum) &&
           names_make(&r->names, "s", r->name.factor) && names_make(&r->names, "H_s", r->name.scaled) &&
           names_make(&r->names, "q", r->name.dot);
}

/* Appends what program p becomes. */
static bool append_program(struct rewriting *r, int p, struct unit *unit)
{
    static struct graph *(*const parts[])(struct rewriting *) = {make_head, make_marks, make_runs_again,
                                                                 make_head_again, make_sums_again};
    const int count = sizeof parts / sizeof *parts;
    for (int i = 0; p == r->c.head && i < count; i++) {
        struct graph *graph = parts[i](r);
        if (graph == NULL || !unit_append(unit, graph))
            return false;
    }
    if (p == r->c.head)
        return true;
    struct graph *graph = p == r->c.finish ? make_finish(r)
                          : p == r->c.pass ? make_patch(r)
                          : is_user(r, p)  ? make_user(r, p)
                                           : graph_copy(r->made->unit.graph[p]);
    if (graph == NULL || !unit_append(unit, graph))
        return false;
    graph = p == r->c.pass && r->c.input != NULL && !r->c.own_input ? make_scaled(r) : NULL;
    return graph == NULL ? r->why->status == CODA_OK : unit_append(unit, graph);
}

bool store_exponentials(struct rewritten *made, const struct graph *block, struct report *report, struct complaint *why)
{
    struct rewriting r = {.made = made, .block = block, .why = why};
    struct unit unit = {0};
    if (!find_cross_entropy(made, &r.c))
        return true;
    report_rule(report, RULE_EXPONENTIALS, made->unit.graph[r.c.head], r.c.z);
    bool done = name_values(&r);
    int forward = 0;
    for (int p = 0; p < made->unit.count && done; p++) {
        done = append_program(&r, p, &unit);
        forward = p < made->forward ? unit.count : forward;
    }
    names_close(&r.names);
    if (!done) {
        if (why->status == CODA_OK)
            refuse(why, CODA_MEMORY, "", "no memory for programs that store exponentials");
        unit_free(&unit);
        return false;
    }
    made->forward = forward;
    unit_free(&made->unit);
    made->unit = unit;
    return true;
}
