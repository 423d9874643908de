#include "rewrite/adjoint.h"
#include "rewrite/fit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct walk {
    const struct graph *forward;
    struct builder *b;
    int *value;    /* forward node -> node of the joint graph */
    int *gradient; /* forward node -> node; NONE where nothing arrived yet */
    bool *active;  /* depends on a wanted `in` */
    struct templates templates;
};

enum { NONE = -1 };

static const struct shape *shape_of(const struct walk *w, int node)
{
    return &w->forward->node[node].shape;
}

/* Is it one value a run along an axis of which `shape` has every element, or other runs? */
static bool has_other_runs(const struct shape *x, const struct shape *shape)
{
    for (int d = 0; d < x->rank; d++)
        for (int e = 0; e < shape->rank && x->dim[d].form == DIM_RUNS; e++)
            if (shape->dim[e].axis == x->dim[d].axis && shape->dim[e].form == DIM_RUNS &&
                !dim_equal(&shape->dim[e], &x->dim[d]))
                return true;
    return false;
}

static void contribute(struct walk *w, int node, int gradient)
{
    if (!w->active[node] || builder_failed(w->b))
        return;
    int before = w->gradient[node];
    const struct shape *own = shape_of(w, node);
    if (gradient >= 0 && before >= 0 &&
        has_other_runs(&w->b->graph->node[gradient].shape, &w->b->graph->node[before].shape)) {
        gradient = build_broadcast(w->b, gradient, own);
        before = build_broadcast(w->b, before, own);
    }
    if (before == NONE)
        w->gradient[node] = gradient;
    else if (gradient >= 0 && w->b->graph->node[gradient].op == OP_GEMM && w->b->graph->node[before].op == OP_GEMM)
        w->gradient[node] = build_binary(w->b, OP_ADD, gradient, before); /* in the order of the text */
    else
        w->gradient[node] = build_binary(w->b, OP_ADD, before, gradient);
}

/* ---------------------------------------------------------------- products */

static int transposed(struct builder *b, int x)
{
    return x >= 0 && b->graph->node[x].op == OP_TRANSPOSE ? b->graph->node[x].input[0] : build_transpose(b, x);
}

/* C = L R:  dL = dC R^T,  dR = L^T dC; of a transposed operand the transpose of that. */
static void product_adjoint(struct walk *w, int left, int right, int d)
{
    const struct graph *forward = w->forward;
    struct builder *b = w->b;
    int l = w->value[left], r = w->value[right];
    int inner = forward->node[left].op == OP_TRANSPOSE ? forward->node[left].input[0] : left;
    if (w->active[inner])
        contribute(w, inner, inner == left ? build_gemm(b, d, transposed(b, r)) : build_gemm(b, r, transposed(b, d)));
    inner = forward->node[right].op == OP_TRANSPOSE ? forward->node[right].input[0] : right;
    if (w->active[inner])
        contribute(w, inner, inner == right ? build_gemm(b, transposed(b, l), d) : build_gemm(b, transposed(b, d), l));
}

/* ---------------------------------------------------------------- elementwise and pairwise */

static void elementwise_adjoint(struct walk *w, int n, int d)
{
    const struct node *node = &w->forward->node[n];
    for (int k = 0; k < node->input_count && d >= 0; k++)
        if (has_other_runs(&w->b->graph->node[d].shape, shape_of(w, node->input[k])))
            d = build_broadcast(w->b, d, &node->shape);
    int value[5] = {-1, -1, -1, w->value[n], d};
    for (int k = 0; k < node->input_count; k++)
        value[k] = w->value[node->input[k]];
    for (int k = 0; k < node->input_count; k++) {
        bool absent;
        if (!w->active[node->input[k]])
            continue;
        int part = template_apply(&w->templates, w->b, node->op, k, value, &absent);
        if (!absent)
            contribute(w, node->input[k], fit_to(w->b, part, &node->shape, shape_of(w, node->input[k])));
    }
}

static int part_of(struct walk *w, enum op op, int x, struct extent h)
{
    struct node node = node_of(op);
    struct graph like = {.node = &node, .node_count = 1};
    node.input_count = 1;
    node.run = h;
    return build_like(w->b, &like, 0, &x);
}

static int join_of(struct walk *w, bool halves, int x, int y, struct extent h)
{
    struct node node = node_of(halves ? OP_JOIN_HALVES : OP_JOIN);
    struct graph like = {.node = &node, .node_count = 1};
    int input[2] = {x, y};
    node.input_count = 2;
    node.run = h;
    return build_like(w->b, &like, 0, input);
}

/* pairs <-> join, halves <-> join_halves. */
static void pairwise_adjoint(struct walk *w, int n, int d)
{
    const struct node *node = &w->forward->node[n];
    bool halves = node->op == OP_FIRST || node->op == OP_SECOND || node->op == OP_JOIN_HALVES;
    if (node->op == OP_JOIN || node->op == OP_JOIN_HALVES) {
        int all = build_broadcast(w->b, d, &node->shape);
        for (int k = 0; k < 2; k++) {
            enum op op = halves ? (k ? OP_SECOND : OP_FIRST) : (k ? OP_ODD : OP_EVEN);
            int part = part_of(w, op, all, node->run);
            if (w->active[node->input[k]] && part >= 0)
                contribute(w, node->input[k],
                           fit_to(w->b, part, &w->b->graph->node[part].shape, shape_of(w, node->input[k])));
        }
        return;
    }
    bool second = node->op == OP_SECOND || node->op == OP_ODD;
    int zero = build_number(w->b, 0), all = build_broadcast(w->b, d, &node->shape);
    contribute(w, node->input[0], join_of(w, halves, second ? zero : all, second ? all : zero, node->run));
}

static void rope_adjoint(struct walk *w, int n, int d)
{
    const struct node *node = &w->forward->node[n];
    struct node inverse = *node;
    struct graph like = {.node = &inverse, .node_count = 1};
    int input[3] = {build_broadcast(w->b, d, &node->shape), w->value[node->input[1]], w->value[node->input[2]]};
    inverse.rope_inverse = !node->rope_inverse;
    contribute(w, node->input[0], build_like(w->b, &like, 0, input));
}

/* ---------------------------------------------------------------- reductions and indices */

/* Elements that attain the maximum share its gradient. */
static int maximum_adjoint(struct walk *w, const struct node *node, int x, int y, int d)
{
    struct builder *b = w->b;
    int attained = build_binary(b, OP_EQ, node->op == OP_ABSMAX ? build_elementwise(b, OP_ABS, &x, 1) : x, y);
    int zero = build_number(b, 0);
    d = build_binary(b, OP_DIV, d, build_reduce(b, OP_SUM, attained, node->axis, node->run));
    if (node->op == OP_ABSMAX)
        d = build_where(b, build_binary(b, OP_LT, x, zero), build_negative(b, d), d);
    return build_where(b, attained, d, zero);
}

/* The gradient keeps the shape of the reduced value: elementwise operations repeat it. */
static void reduction_adjoint(struct walk *w, int n, int d)
{
    const struct node *node = &w->forward->node[n];
    struct builder *b = w->b;
    int x = w->value[node->input[0]], y = w->value[n];
    if (node->op == OP_LOGSUMEXP) {
        int shifted = build_binary(b, OP_SUB, x, y);
        d = build_binary(b, OP_MUL, d, build_elementwise(b, OP_EXP, &shifted, 1));
    } else if (node->op != OP_SUM) {
        d = maximum_adjoint(w, node, x, y, d);
    }
    contribute(w, node->input[0], d);
}

static void pick_adjoint(struct walk *w, int n, int d)
{
    const struct node *node = &w->forward->node[n];
    struct node onehot = node_of(OP_ONEHOT);
    struct graph like = {.node = &onehot, .node_count = 1};
    onehot.input_count = 1;
    onehot.axis = shape_of(w, node->input[0])->dim[1].axis;
    int ids = w->value[node->input[1]];
    contribute(w, node->input[0], build_binary(w->b, OP_MUL, d, build_like(w->b, &like, 0, &ids)));
}

static void node_adjoint(struct walk *w, int n, int d)
{
    const struct node *node = &w->forward->node[n];
    if (op_is_elementwise(node->op)) {
        elementwise_adjoint(w, n, d);
        return;
    }
    switch (node->op) {
    case OP_GEMM:
        d = build_broadcast(w->b, d, &node->shape);
        for (int i = 0; i < node->input_count; i += 2)
            product_adjoint(w, node->input[i], node->input[i + 1], d);
        break;
    case OP_CAST: /* straight through */
        contribute(w, node->input[0], d);
        break;
    case OP_BROADCAST:
        contribute(w, node->input[0], fit_to(w->b, d, &node->shape, shape_of(w, node->input[0])));
        break;
    case OP_EVEN:
    case OP_ODD:
    case OP_FIRST:
    case OP_SECOND:
    case OP_JOIN:
    case OP_JOIN_HALVES:
        pairwise_adjoint(w, n, d);
        break;
    case OP_ROPE:
        rope_adjoint(w, n, d);
        break;
    case OP_SUM:
    case OP_REDUCE_MAX:
    case OP_ABSMAX:
    case OP_LOGSUMEXP:
        reduction_adjoint(w, n, d);
        break;
    case OP_PICK:
        pick_adjoint(w, n, d);
        break;
    default: /* leaves; stack, repeat and gather keep their gradient, which outs report as it is */
        break;
    }
}

/* ---------------------------------------------------------------- the walk */

static void mark_active(struct walk *w, const struct request *request)
{
    for (int n = 0; n < w->forward->node_count; n++) {
        const struct node *node = &w->forward->node[n];
        bool constant = node->op == OP_ONEHOT || node->op == OP_INDEX || (node->op >= OP_LT && node->op <= OP_NE);
        w->active[n] = node->op == OP_IN && request->wanted[node->index];
        int differentiated =
            node->op == OP_ROPE || node->op == OP_PICK || node->op == OP_GATHER ? 1 : node->input_count;
        for (int k = 0; k < differentiated && !constant; k++)
            w->active[n] = w->active[n] || w->active[node->input[k]];
    }
}

static bool copy_forward(struct walk *w)
{
    const struct graph *forward = w->forward;
    w->b->plain = true; /* every value of the forward is one that it can store */
    for (int n = 0; n < forward->node_count && !builder_failed(w->b); n++) {
        int input[MAX_INPUTS];
        for (int k = 0; k < forward->node[n].input_count; k++)
            input[k] = w->value[forward->node[n].input[k]];
        w->value[n] = build_like(w->b, forward, n, input);
        build_name(w->b, w->value[n], forward->node[n].name);
    }
    w->b->plain = false;
    return !builder_failed(w->b);
}

static bool is_taken(const struct walk *w, const char *name)
{
    bool taken = graph_find_operand(w->forward, name) >= 0 || graph_find_operand(w->b->graph, name) >= 0;
    for (int p = 0; p < w->forward->parameter_count; p++)
        taken = taken || strcmp(w->forward->parameter[p].name, name) == 0;
    return taken || graph_find_axis(w->forward, name) >= 0;
}

static void free_name(const struct walk *w, const char *stem, char *name, size_t size)
{
    snprintf(name, size, "d%.180s", stem);
    for (int i = 2; is_taken(w, name); i++)
        snprintf(name, size, "d%.180s_%d", stem, i);
}

/* Gradients of 8-bit values have no scale that would bring them into 8 bits. */
static coda_dtype gradient_dtype(coda_dtype dtype)
{
    return dtype == CODA_E4M3 || dtype == CODA_E5M2 ? CODA_BF16 : dtype;
}

static void seed_outs(struct walk *w, const struct request *request)
{
    for (int o = 0; o < w->forward->operand_count && !builder_failed(w->b); o++) {
        const struct operand *out = &w->forward->operand[o];
        char name[256];
        if (out->role == CODA_IN || request->silent[o] || out->dtype == CODA_I32 || !w->active[out->node])
            continue;
        free_name(w, out->name, name, sizeof name);
        contribute(
            w, out->node,
            build_in(w->b, name, out->role == CODA_ACCUMULATE ? CODA_F32 : gradient_dtype(out->dtype), &out->shape));
    }
}

static void name_gradient(struct walk *w, int n)
{
    const struct node *node = &w->forward->node[n];
    char name[256];
    if (node->name == NULL || w->gradient[n] < 0)
        return;
    snprintf(name, sizeof name, "d%.180s", node->name);
    build_name(w->b, w->gradient[n], name);
}

/* ---------------------------------------------------------------- outs */

enum usage {
    USED_ELEMENTWISE = 1,
    USED_LEFT = 2,
    USED_RIGHT = 4,
    USED_WHOLE = 8,
    USED_REPEATED = 16,
    USED_GATHERED = 32,
    USED_STACKED = 64
};

static int usage_of(const struct graph *graph, const bool *used, int x)
{
    int usage = 0;
    for (int n = x + 1; n < graph->node_count; n++) {
        const struct node *node = &graph->node[n];
        for (int k = 0; k < node->input_count && used[n]; k++) {
            if (node->input[k] != x)
                continue;
            if (node->op == OP_TRANSPOSE)
                usage |= usage_of(graph, used, n);
            else if (node->op == OP_GEMM)
                usage |= k % 2 ? USED_RIGHT : USED_LEFT;
            else if (node->op == OP_STACK)
                usage |= USED_STACKED;
            else if (node->op == OP_REPEAT)
                usage |= USED_REPEATED;
            else if (node->op == OP_GATHER && k == 0)
                usage |= USED_GATHERED;
            else if (op_is_reduction(node->op) && is_whole_run(node->run))
                usage |= USED_WHOLE;
            else
                usage |= USED_ELEMENTWISE;
        }
    }
    return usage;
}

static int unsupported(struct walk *w, int operand, const char *what, const char *advice)
{
    return refuse(&w->b->why, CODA_UNSUPPORTED, advice, "no rule gives the gradient of `%.60s`: %s",
                  w->forward->operand[operand].name, what);
}

/* A stack, a repetition and a gathered table leave their gradient on their own node: the only one that reads the
 * operand. */
static int gradient_of_reader(struct walk *w, const bool *used, int operand)
{
    const struct graph *forward = w->forward;
    int x = forward->operand[operand].node, found = NONE;
    for (int n = x + 1; n < forward->node_count; n++) {
        const struct node *node = &forward->node[n];
        bool reads = false;
        for (int k = 0; k < node->input_count; k++)
            reads = reads || node->input[k] == x;
        if (!used[n] || !reads)
            continue;
        if (found != NONE && w->gradient[found] != NONE && w->gradient[n] != NONE)
            return unsupported(w, operand, "two statements repeat, stack or gather it",
                               "Use it through one named value.");
        found = found == NONE || w->gradient[n] != NONE ? n : found;
    }
    return found;
}

static int full_gradient(struct walk *w, int gradient, const struct shape *shape)
{
    return build_broadcast(w->b, gradient, shape);
}

static void add_out(struct walk *w, const char *stem, coda_role role, coda_dtype dtype, int value)
{
    char name[256];
    if (value < 0 || builder_failed(w->b))
        return;
    free_name(w, stem, name, sizeof name);
    const struct node *sum = &w->b->graph->node[value];
    if (sum->shape.rank == 0 && sum->op == OP_SUM) /* of a number: one term a row, which the caller adds up */
        value = sum->input[0];
    if (w->b->graph->node[value].shape.rank == 0) {
        refuse(&w->b->why, CODA_UNSUPPORTED, "Leave it out of `wrt`.",
               "the gradient of `%.60s` is one number for the whole matrix", stem);
        return;
    }
    build_out(w->b, name, role, dtype, value);
}

/* dWq_Wk_Wv: the gradient of a stack is one matrix, rows end to end, as the parts lie in a checkpoint's buffer. */
static void add_stack_out(struct walk *w, int stack)
{
    const struct node *node = &w->forward->node[stack];
    char stem[256] = "";
    int length = 0;
    for (int k = 0; k < node->input_count; k++) {
        const struct node *part = &w->forward->node[node->input[k]];
        if (part->op != OP_IN) {
            refuse(&w->b->why, CODA_UNSUPPORTED, "Stack operands, and compute with the result.",
                   "no rule gives the gradient of a computed value inside a `stack`");
            return;
        }
        append(stem, sizeof stem - 60, &length, "%s%.60s", k ? "_" : "", w->forward->operand[part->index].name);
    }
    for (int o = 0; o < w->b->graph->operand_count; o++)
        if (w->b->graph->operand[o].node == w->gradient[stack] && w->b->graph->operand[o].role != CODA_IN)
            return;
    add_out(w, stem, CODA_ACCUMULATE, CODA_F32, w->gradient[stack]);
}

static void add_gradient_out(struct walk *w, const bool *used, int o)
{
    const struct operand *operand = &w->forward->operand[o];
    int x = operand->node, usage = usage_of(w->forward, used, x);
    int indirect = usage & (USED_STACKED | USED_REPEATED | USED_GATHERED);
    if (operand->shape.rank == 1 && is_pair_dim(&operand->shape.dim[0]) && w->gradient[x] != NONE) {
        unsupported(w, o, "it is a vector of half of the columns",
                    "Declare it [N] and split it: a, b = pairs(broadcast(g, [M, N])); or leave it out of `wrt`.");
        return;
    }
    if (indirect && (usage != indirect || (indirect & (indirect - 1)) != 0)) {
        unsupported(w, o, "it is stacked, repeated or gathered, and also used in another way",
                    "Declare a second `in` for the other use and give both the same memory: each gets its gradient.");
        return;
    }
    if (indirect) {
        int reader = gradient_of_reader(w, used, o);
        if (reader < 0 || w->gradient[reader] == NONE)
            return;
        int full = full_gradient(w, w->gradient[reader], shape_of(w, reader));
        if (usage & USED_STACKED) {
            w->gradient[reader] = full;
            add_stack_out(w, reader);
        } else {
            add_out(w, operand->name, CODA_OUT, CODA_F32, full);
        }
        return;
    }
    if (w->gradient[x] == NONE)
        return;
    bool weight = usage == USED_RIGHT, matrix = operand->shape.rank == 2;
    int value = usage == USED_WHOLE ? w->gradient[x] : full_gradient(w, w->gradient[x], &operand->shape);
    coda_dtype dtype = weight || !matrix || usage == USED_WHOLE ? CODA_F32 : gradient_dtype(operand->dtype);
    add_out(w, operand->name, weight ? CODA_ACCUMULATE : CODA_OUT, dtype, value);
}

static void add_gradient_outs(struct walk *w, const struct request *request)
{
    bool *used = calloc((size_t)w->forward->node_count + 1, sizeof *used);
    if (used == NULL) {
        refuse(&w->b->why, CODA_MEMORY, "", "no memory for the gradients");
        return;
    }
    graph_mark_used(w->forward, used);
    for (int o = 0; o < w->forward->operand_count && !builder_failed(w->b); o++)
        if (w->forward->operand[o].role == CODA_IN && request->wanted[o])
            add_gradient_out(w, used, o);
    free(used);
}

coda_status differentiate_graph(const struct graph *forward, const struct request *request, struct joint *joint,
                                struct complaint *why)
{
    struct builder b;
    struct walk w = {.forward = forward, .b = &b};
    size_t count = (size_t)forward->node_count + 1;
    memset(joint, 0, sizeof *joint);
    bool open = builder_open(&b, forward, forward->name, forward->is_block);
    w.value = calloc(count, sizeof *w.value);
    w.gradient = calloc(count, sizeof *w.gradient);
    w.active = calloc(count, sizeof *w.active);
    if (!open || !w.value || !w.gradient || !w.active) {
        refuse(&b.why, CODA_MEMORY, "", "no memory for the gradient of `%.60s`", forward->name);
        goto done;
    }
    for (int n = 0; n < forward->node_count; n++)
        w.gradient[n] = NONE;
    mark_active(&w, request);
    if (!copy_forward(&w))
        goto done;
    joint->forward_count = b.graph->node_count;
    seed_outs(&w, request);
    for (int n = forward->node_count - 1; n >= 0 && !builder_failed(&b); n--)
        if (w.active[n] && w.gradient[n] != NONE) {
            name_gradient(&w, n);
            node_adjoint(&w, n, w.gradient[n]);
        }
    add_gradient_outs(&w, request);
done:
    *why = b.why;
    joint->graph = builder_close(&b);
    joint->value = w.value;
    free(w.gradient);
    free(w.active);
    templates_free(&w.templates);
    if (joint->graph == NULL)
        joint_free(joint);
    return why->status;
}

void joint_free(struct joint *joint)
{
    graph_free(joint->graph);
    free(joint->value);
    memset(joint, 0, sizeof *joint);
}
