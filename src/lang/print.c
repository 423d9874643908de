/* Graphs as text. Statements stand in an order in which every name is defined before its use and operands keep theirs:
 * axes, the first `in`s, params, then before each group of `out`s the values that it needs. */
#include "lang/lang.h"
#include "lang/text_plan.h"
#include "lang/output.h"

#include "lang/number.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool same_type(const struct operand *a, const struct operand *b)
{
    return b->role == CODA_IN && a->dtype == b->dtype && shape_equal(&a->shape, &b->shape);
}

/* `in  A, B : bf16[M, K]`; returns the operand after the line. */
static int print_in(struct output *text, const struct graph *graph, int first)
{
    int next = first;
    output_add(text, "    in ");
    do {
        output_add(text, "%s %s", next == first ? "" : ",", graph->operand[next].name);
        next++;
    } while (next < graph->operand_count && same_type(&graph->operand[first], &graph->operand[next]));
    output_add(text, " : ");
    output_type(text, graph, graph->operand[first].dtype, &graph->operand[first].shape);
    output_add(text, "\n");
    return next;
}

static void print_params(struct output *text, const struct graph *graph)
{
    char number[NUMBER_TEXT];
    for (int i = 0; i < graph->parameter_count; i++) {
        number_print(graph->parameter[i].default_value, number);
        output_add(text, "    param %s = %s\n", graph->parameter[i].name, number);
    }
}

static void print_axes(struct output *text, const struct graph *graph, const struct text_plan *plan)
{
    for (int i = 0; i < plan->axis_count; i++) {
        const struct axis *axis = &graph->axis[plan->axis[i]];
        output_add(text, "    axis %s", axis->name);
        for (int k = 0; k < axis->term_count; k++) {
            output_add(text, k == 0 ? " = " : " + ");
            if (axis->term[k].axis < 0 || axis->term[k].factor != 1)
                output_add(text, "%" PRId64, axis->term[k].factor);
            if (axis->term[k].axis >= 0)
                output_add(text, "%s%s", axis->term[k].factor != 1 ? "*" : "", graph->axis[axis->term[k].axis].name);
        }
        output_add(text, "\n");
    }
}

static void print_value(struct output *text, const struct text_plan *plan, int node)
{
    const struct graph *graph = plan->naming.graph;
    if (is_twin(graph->node[node].op)) {
        const char *own = plan->naming.name[node], *other = plan->other_name[node];
        bool first = is_first_twin(graph->node[node].op);
        output_add(text, "    %s, %s = ", first ? own : other, first ? other : own);
    } else
        output_add(text, "    %s = ", plan->naming.name[node]);
    output_expression(text, &plan->naming, node);
    output_add(text, "\n");
}

static void print_out(struct output *text, const struct text_plan *plan, int operand)
{
    const struct graph *graph = plan->naming.graph;
    const struct operand *out = &graph->operand[operand];
    const char *name = plan->naming.name[out->node];
    output_add(text, "    out %s", out->name);
    if (out->role == CODA_PATCH)
        output_add(text, "[%s]", graph->operand[out->ids].name);
    output_add(text, " : ");
    output_type(text, graph, out->dtype, &out->shape);
    output_add(text, out->role == CODA_ACCUMULATE ? " += " : " = ");
    if (name)
        output_add(text, "%s", name);
    else
        output_expression(text, &plan->naming, out->node);
    output_add(text, "\n");
}

static void print_statements(struct output *text, const struct graph *graph, const struct text_plan *plan)
{
    int printed = 0;
    bool params_printed = false;
    print_axes(text, graph, plan);
    for (int i = 0; i < graph->operand_count;) {
        if (graph->operand[i].role == CODA_IN) {
            int first = i;
            i = print_in(text, graph, i);
            if (graph->conditional && graph->condition >= first && graph->condition < i)
                output_add(text, "    when %s\n", graph->operand[graph->condition].name);
            continue;
        }
        if (!params_printed)
            print_params(text, graph);
        params_printed = true;
        for (; printed < plan->value_count && plan->group[plan->value[printed]] <= i; printed++)
            print_value(text, plan, plan->value[printed]);
        print_out(text, plan, i++);
    }
    if (!params_printed)
        print_params(text, graph);
}

char *print_graph(const struct graph *graph)
{
    struct output text = {0};
    struct text_plan plan;
    if (!text_plan_create(&plan, graph))
        return NULL;
    output_add(&text, "%s %s {\n", graph->is_block ? "block" : "program", graph->name);
    print_statements(&text, graph, &plan);
    output_add(&text, "}\n");
    text_plan_free(&plan);
    if (text.no_memory) {
        free(text.data);
        return NULL;
    }
    return text.data;
}
