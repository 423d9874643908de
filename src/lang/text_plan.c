#include "lang/text_plan.h"

#include "lang/lexer.h"
#include "lang/symbols.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEEPEST_EXPRESSION = 100 }; /* a deeper one is split: readable, and well below what the parser allows */

bool is_twin(enum op op)
{
    return op == OP_EVEN || op == OP_ODD || op == OP_FIRST || op == OP_SECOND;
}

bool is_first_twin(enum op op)
{
    return op == OP_EVEN || op == OP_FIRST;
}

static bool is_leaf(enum op op)
{
    return op == OP_IN || op == OP_PARAM;
}

/* Which values need a statement: named ones, those used more than once, twins, and parts of too deep expressions. */
static void choose_values(const struct graph *graph, const bool *used, int *uses, int *depth, bool *is_value)
{
    for (int n = 0; n < graph->node_count; n++)
        for (int i = 0; used[n] && i < graph->node[n].input_count; i++)
            uses[graph->node[n].input[i]]++;
    for (int i = 0; i < graph->operand_count; i++)
        if (graph->operand[i].role != CODA_IN)
            uses[graph->operand[i].node]++;
    for (int n = 0; n < graph->node_count; n++) {
        const struct node *node = &graph->node[n];
        bool number = node->op == OP_NUMBER || node->op == OP_SIZE;
        depth[n] = 0;
        for (int i = 0; i < node->input_count; i++)
            if (!is_value[node->input[i]] && depth[node->input[i]] >= depth[n])
                depth[n] = depth[node->input[i]] + 1;
        is_value[n] = used[n] && !is_leaf(node->op) &&
                      (node->name || (uses[n] > 1 && !number) || is_twin(node->op) || depth[n] >= DEEPEST_EXPRESSION);
    }
}

/* The group of outs (by its first operand) that needs each node first. */
static void find_groups(const struct graph *graph, int *group)
{
    for (int n = 0; n < graph->node_count; n++)
        group[n] = graph->operand_count;
    for (int i = 0, first = 0; i < graph->operand_count; i++) {
        const struct operand *operand = &graph->operand[i];
        if (i == 0 || graph->operand[i - 1].role == CODA_IN)
            first = i;
        if (operand->role != CODA_IN && first < group[operand->node])
            group[operand->node] = first;
    }
    for (int n = graph->node_count - 1; n >= 0; n--)
        for (int i = 0; i < graph->node[n].input_count; i++)
            if (group[n] < group[graph->node[n].input[i]])
                group[graph->node[n].input[i]] = group[n];
}

static void order_values(struct text_plan *plan, const bool *is_value, int node_count, int operand_count)
{
    for (int first = 0; first < operand_count; first++) {
        bool any = plan->naming.graph->operand[first].role != CODA_IN &&
                   (first == 0 || plan->naming.graph->operand[first - 1].role == CODA_IN);
        for (int n = 0; any && n < node_count; n++)
            if (is_value[n] && plan->group[n] == first)
                plan->value[plan->value_count++] = n;
    }
}

static bool same_twins(const struct node *a, const struct node *b)
{
    bool halves = a->op == OP_FIRST || a->op == OP_SECOND;
    return is_first_twin(a->op) != is_first_twin(b->op) && halves == (b->op == OP_FIRST || b->op == OP_SECOND) &&
           (!halves || (a->run.axis == b->run.axis && a->run.value == b->run.value));
}

/* Finds for each twin the other one of the same value, and drops the later of the two from the statements.
 * Matching goes along the order of statements, so that a text that is parsed and printed again stays the same. */
static void match_twins(struct text_plan *plan, int *waiting, int *other)
{
    const struct graph *graph = plan->naming.graph;
    int kept = 0;
    for (int n = 0; n < graph->node_count; n++)
        waiting[n] = other[n] = -1;
    for (int i = 0; i < plan->value_count; i++) {
        int n = plan->value[i], earlier = -1;
        if (is_twin(graph->node[n].op)) {
            int *last = &waiting[graph->node[n].input[0]];
            bool match = *last >= 0 && same_twins(&graph->node[*last], &graph->node[n]);
            earlier = match ? *last : -1;
            *last = match ? -1 : n;
        }
        if (earlier < 0)
            plan->value[kept++] = n;
        else {
            other[n] = earlier;
            other[earlier] = n;
        }
    }
    plan->value_count = kept;
}

static bool reserve(struct symbols *names, const char *name, bool *taken)
{
    int length = (int)strlen(name);
    *taken = symbols_find(names, name, length) >= 0;
    return *taken || symbols_add(names, name, length, SYMBOL_VALUE, 0) >= 0;
}

/* What people call such a value; NULL: nothing in particular. */
static const char *usual_name(enum op op)
{
    static const struct {
        enum op op;
        const char *name;
    } usual[] = {{OP_RSQRT, "r"}, {OP_SIGMOID, "s"}, {OP_TANH, "t"}, {OP_EXP, "e"}, {OP_GEMM, "z"}, {OP_INDEX, "j"}};
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (usual[i].op == op)
            return usual[i].name;
    return NULL;
}

/* The usual name if it is free, else the next of v1, v2, .. that is. */
static bool generate(struct symbols *names, const char *usual, int *counter, char text[16], const char **name)
{
    bool taken = true;
    if (usual != NULL) {
        snprintf(text, 16, "%s", usual);
        if (!reserve(names, text, &taken))
            return false;
    }
    while (taken) {
        snprintf(text, 16, "v%d", ++*counter);
        if (!reserve(names, text, &taken))
            return false;
    }
    *name = text;
    return true;
}

/* Names of operands and axes first, then those that nodes have, then generated ones. */
static bool reserve_names(struct text_plan *plan, const bool *is_value, struct symbols *names)
{
    const struct graph *graph = plan->naming.graph;
    bool taken, good = true;
    for (int i = 0; i < graph->operand_count; i++)
        good = good && reserve(names, graph->operand[i].name, &taken);
    for (int i = 0; i < graph->parameter_count; i++)
        good = good && reserve(names, graph->parameter[i].name, &taken);
    for (int i = 0; i < graph->axis_count; i++)
        good = good && reserve(names, graph->axis[i].name, &taken);
    for (int n = 0; n < graph->node_count && good; n++) {
        const char *name = graph->node[n].name;
        if (!is_value[n] || !name || !is_name(name, strlen(name)) || is_reserved_word(name, strlen(name)))
            continue;
        good = reserve(names, name, &taken);
        if (good && !taken)
            plan->name[n] = name;
    }
    return good;
}

static bool name_values(struct text_plan *plan, const bool *is_value, const int *other)
{
    const struct graph *graph = plan->naming.graph;
    struct symbols names = {0};
    int counter = 0;
    bool good = reserve_names(plan, is_value, &names);
    for (int i = 0; i < plan->value_count && good; i++) {
        int n = plan->value[i], second = other[n];
        if (!plan->name[n])
            good = generate(&names, usual_name(graph->node[n].op), &counter, plan->generated[n][0], &plan->name[n]);
        if (!good || !is_twin(graph->node[n].op))
            continue;
        if (second < 0)
            good = generate(&names, NULL, &counter, plan->generated[n][1], &plan->other_name[n]);
        else {
            if (!plan->name[second])
                good = generate(&names, NULL, &counter, plan->generated[second][0], &plan->name[second]);
            plan->other_name[n] = plan->name[second];
        }
    }
    symbols_free(&names);
    return good;
}

static bool allocate(struct text_plan *plan, size_t count)
{
    plan->name = calloc(count, sizeof *plan->name);
    plan->other_name = calloc(count, sizeof *plan->other_name);
    plan->group = calloc(count, sizeof *plan->group);
    plan->value = calloc(count, sizeof *plan->value);
    plan->generated = calloc(count, sizeof *plan->generated);
    plan->naming.name = plan->name;
    return plan->name && plan->other_name && plan->group && plan->value && plan->generated;
}

bool text_plan_create(struct text_plan *plan, const struct graph *graph)
{
    size_t count = graph->node_count ? (size_t)graph->node_count : 1;
    *plan = (struct text_plan){.naming = {.graph = graph}};
    bool *used = calloc(count, sizeof *used), *is_value = calloc(count, sizeof *is_value);
    int *uses = calloc(count, sizeof *uses), *other = calloc(count, sizeof *other);
    bool good = allocate(plan, count) && used && is_value && uses && other;
    if (good) {
        graph_mark_used(graph, used);
        choose_values(graph, used, uses, other, is_value);
        find_groups(graph, plan->group);
        order_values(plan, is_value, graph->node_count, graph->operand_count);
        match_twins(plan, uses, other);
        good = name_values(plan, is_value, other);
    }
    if (good)
        text_plan_axes(plan, used);
    free(used);
    free(is_value);
    free(uses);
    free(other);
    if (!good)
        text_plan_free(plan);
    return good;
}

void text_plan_free(struct text_plan *plan)
{
    free(plan->name);
    free(plan->other_name);
    free(plan->group);
    free(plan->value);
    free(plan->generated);
    *plan = (struct text_plan){0};
}
