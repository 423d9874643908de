/* Expressions as text, with no more parentheses than the grammar needs. */
#include "lang/lang.h"
#include "lang/output.h"

#include "lang/number.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* How tightly a form binds; an operand that binds less stands in parentheses. */
enum binding { BIND_COMPARISON, BIND_SUM, BIND_PRODUCT, BIND_UNARY, BIND_POSTFIX, BIND_PRIMARY };

enum { MAX_DEPTH = 400 };

struct writer {
    struct output *text;
    const struct naming *naming;
    const struct graph *graph;
    int depth;
};

static void write_node(struct writer *w, int node, enum binding least);

static const struct {
    enum op op;
    const char *sign;
    enum binding binding;
} operators[] = {
    {OP_ADD, "+", BIND_SUM},        {OP_SUB, "-", BIND_SUM},        {OP_MUL, "*", BIND_PRODUCT},
    {OP_DIV, "/", BIND_PRODUCT},    {OP_LT, "<", BIND_COMPARISON},  {OP_LE, "<=", BIND_COMPARISON},
    {OP_GT, ">", BIND_COMPARISON},  {OP_GE, ">=", BIND_COMPARISON}, {OP_EQ, "==", BIND_COMPARISON},
    {OP_NE, "!=", BIND_COMPARISON},
};

static int operator_row(enum op op)
{
    for (int i = 0; i < (int)(sizeof operators / sizeof *operators); i++)
        if (operators[i].op == op)
            return i;
    return -1;
}

static const char *name_of(const struct writer *w, int index)
{
    const struct node *node = &w->graph->node[index];
    if (node->op == OP_IN)
        return w->graph->operand[node->index].name;
    if (node->op == OP_PARAM)
        return w->graph->parameter[node->index].name;
    return w->naming->name ? w->naming->name[index] : node->name;
}

static enum binding binding_of(const struct node *node)
{
    int row = operator_row(node->op);
    if (row >= 0)
        return operators[row].binding;
    if (node->op == OP_GEMM)
        return node->input_count > 2 ? BIND_SUM : BIND_PRODUCT;
    if (node->op == OP_NEG || (node->op == OP_NUMBER && signbit(node->number)))
        return BIND_UNARY;
    return node->op == OP_TRANSPOSE ? BIND_POSTFIX : BIND_PRIMARY;
}

void output_length(struct output *text, const struct graph *graph, struct extent length)
{
    if (length.axis < 0)
        output_add(text, "%" PRId64, length.value);
    else if (length.value > 1)
        output_add(text, "%s/%" PRId64, graph->axis[length.axis].name, length.value);
    else
        output_add(text, "%s", graph->axis[length.axis].name);
}

static void write_dim(struct output *text, const struct graph *graph, const struct dim *dim)
{
    if (dim->axis < 0) {
        output_add(text, "%" PRId64, dim->constant);
        return;
    }
    output_add(text, "%s", graph->axis[dim->axis].name);
    if (dim->form == DIM_WHOLE)
        return;
    output_add(text, "/");
    output_length(text, graph, dim->form == DIM_HALVES ? (struct extent){.axis = -1, .value = 2} : dim->run);
}

static void write_shape(struct output *text, const struct graph *graph, const struct shape *shape, bool of_value)
{
    for (int i = 0; i < shape->rank; i++) {
        output_add(text, i == 0 ? "[" : ", ");
        write_dim(text, graph, &shape->dim[i]);
        if (of_value && shape->dim[i].form == DIM_HALVES) {
            output_add(text, ":");
            output_length(text, graph, shape->dim[i].run);
        }
    }
    if (shape->rank > 0)
        output_add(text, "]");
}

void output_type(struct output *text, const struct graph *graph, coda_dtype dtype, const struct shape *shape)
{
    output_add(text, "%s", coda_dtype_name(dtype));
    write_shape(text, graph, shape, false); /* operands of halves are N/2 */
}

/* sum(S) of a partial, sum(x, N), sum(x, N:128) */
static void write_reduction(struct writer *w, const struct node *node)
{
    const struct shape *shape = &w->graph->node[node->input[0]].shape;
    bool whole = node->run.axis < 0 && node->run.value == 0;
    int parts = 0;
    bool of_axis = false;
    for (int i = 0; i < shape->rank; i++)
        if (shape->dim[i].form != DIM_WHOLE) {
            parts++;
            of_axis = of_axis || shape->dim[i].axis == node->axis;
        }
    output_add(w->text, "%s(", op_name(node->op));
    write_node(w, node->input[0], BIND_COMPARISON);
    if (!(whole && parts == 1 && of_axis))
        output_add(w->text, ", %s", w->graph->axis[node->axis].name);
    if (!whole) {
        output_add(w->text, ":");
        output_length(w->text, w->graph, node->run);
    }
    output_add(w->text, ")");
}

static void write_rope_end(struct writer *w, const struct node *node)
{
    if (node->rope_cols.form != DIM_ABSENT) {
        output_add(w->text, ", cols = ");
        write_dim(w->text, w->graph, &node->rope_cols);
    }
}

/* Is the last argument of `max` an axis name, which without parentheses would read as a reduction? */
static bool reads_as_reduction(const struct writer *w, const struct node *node)
{
    int last = node->input[1];
    return node->op == OP_MAX && w->graph->node[last].op == OP_SIZE && !name_of(w, last);
}

/* name(a, b, ..): what comes after the values depends on the function. */
static void write_call(struct writer *w, const struct node *node)
{
    const struct graph *graph = w->graph;
    const char *before = node->op == OP_ROPE && node->rope_pairs ? "_pairs" : "";
    const char *after = node->op == OP_ROPE && node->rope_inverse ? "_inverse" : "";
    output_add(w->text, "%s%s%s(", op_name(node->op), before, after);
    for (int i = 0; i < node->input_count; i++) {
        bool parentheses = i == 1 && reads_as_reduction(w, node);
        output_add(w->text, i == 0 ? "" : ", ");
        output_add(w->text, parentheses ? "(" : "");
        write_node(w, node->input[i], BIND_COMPARISON);
        output_add(w->text, parentheses ? ")" : "");
    }
    switch (node->op) {
    case OP_CAST:
        output_add(w->text, ", %s", coda_dtype_name(node->dtype));
        break;
    case OP_BROADCAST:
        output_add(w->text, ", ");
        write_shape(w->text, graph, &node->shape, true);
        break;
    case OP_INDEX:
        output_add(w->text, "%s", graph->axis[node->axis].name);
        break;
    case OP_REPEAT:
    case OP_ONEHOT:
        output_add(w->text, ", %s", graph->axis[node->axis].name);
        break;
    case OP_FIRST:
    case OP_SECOND:
    case OP_JOIN_HALVES:
        output_add(w->text, ", ");
        output_length(w->text, graph, node->run);
        break;
    case OP_ROPE:
        write_rope_end(w, node);
        break;
    default:
        break;
    }
    output_add(w->text, ")");
}

/* `*`, `/` and `@` bind equally tightly; a reader should not have to know that. */
static void write_products(struct writer *w, const struct node *node)
{
    for (int i = 0; i < node->input_count; i += 2) {
        output_add(w->text, i == 0 ? "" : " + ");
        write_node(w, node->input[i], BIND_UNARY);
        output_add(w->text, " @ ");
        write_node(w, node->input[i + 1], BIND_UNARY);
    }
}

/* Left-associative; comparisons do not associate. A matrix product that is a factor stands in parentheses. */
static void write_operator(struct writer *w, const struct node *node, int row)
{
    enum binding binding = operators[row].binding, left = binding == BIND_COMPARISON ? BIND_SUM : binding;
    if (binding == BIND_PRODUCT && w->graph->node[node->input[0]].op == OP_GEMM)
        left = BIND_UNARY;
    write_node(w, node->input[0], left);
    output_add(w->text, " %s ", operators[row].sign);
    write_node(w, node->input[1], binding + 1);
}

static void write_form(struct writer *w, const struct node *node)
{
    char number[NUMBER_TEXT];
    int row = operator_row(node->op);
    if (row >= 0)
        write_operator(w, node, row);
    else if (op_is_reduction(node->op))
        write_reduction(w, node);
    else if (node->op == OP_GEMM)
        write_products(w, node);
    else if (node->op == OP_NUMBER) {
        number_print(node->number, number);
        output_add(w->text, "%s", number);
    } else if (node->op == OP_SIZE)
        output_add(w->text, "%s", w->graph->axis[node->axis].name);
    else if (node->op == OP_TRANSPOSE) {
        write_node(w, node->input[0], BIND_PRIMARY);
        output_add(w->text, ".T");
    } else if (node->op == OP_NEG) {
        const struct node *x = &w->graph->node[node->input[0]];
        bool number_next = x->op == OP_NUMBER && !signbit(x->number) && !name_of(w, node->input[0]);
        output_add(w->text, number_next ? "-(" : "-"); /* -2 is a number, -(2) the negation of one */
        write_node(w, node->input[0], BIND_UNARY);
        output_add(w->text, number_next ? ")" : "");
    } else
        write_call(w, node);
}

static void write_node(struct writer *w, int index, enum binding least)
{
    const struct node *node = &w->graph->node[index];
    const char *name = name_of(w, index);
    if (output_is_over(w->text))
        return;
    if (name || w->depth == MAX_DEPTH) {
        output_add(w->text, "%s", name ? name : "...");
        return;
    }
    bool parentheses = binding_of(node) < least;
    w->depth++;
    output_add(w->text, parentheses ? "(" : "");
    write_form(w, node);
    output_add(w->text, parentheses ? ")" : "");
    w->depth--;
}

void output_expression(struct output *text, const struct naming *naming, int node)
{
    struct writer w = {.text = text, .naming = naming, .graph = naming->graph};
    enum op op = naming->graph->node[node].op;
    if (op == OP_IN || op == OP_PARAM)
        write_node(&w, node, BIND_COMPARISON);
    else
        write_form(&w, &naming->graph->node[node]);
}

void print_expression(const struct graph *graph, int node, char *text, int size)
{
    struct output out = {.data = text, .size = size > 0 ? (size_t)size : 0, .fixed = true};
    struct naming naming = {.graph = graph};
    if (size <= 0)
        return;
    text[0] = '\0';
    if (node < 0 || node >= graph->node_count)
        return;
    output_expression(&out, &naming, node);
    if (out.cut && size > 4)
        memcpy(text + size - 4, "...", 4);
}
