/* Which axes a text has to declare. Types introduce axes, and so do lengths of runs and `cols =`; anywhere else inside
 * an expression an axis must be known already. */
#include "lang/text_plan.h"

#include <limits.h>

/* For each axis the operand that introduces it: -1 a declaration, INT_MAX none. */
struct introduction {
    int by[MAX_AXES];
};

static void introduce(struct introduction *introduced, int axis, int by)
{
    if (axis >= 0 && by < introduced->by[axis])
        introduced->by[axis] = by;
}

static void introduce_shape(struct introduction *introduced, const struct shape *shape, int by)
{
    for (int i = 0; i < shape->rank; i++) {
        introduce(introduced, shape->dim[i].axis, by);
        introduce(introduced, shape->dim[i].run.axis, by);
    }
}

/* A derived axis, after the derived axes in its sum. */
static void declare(struct text_plan *plan, struct introduction *introduced, bool *declared, int axis)
{
    const struct axis *a = &plan->naming.graph->axis[axis];
    if (declared[axis])
        return;
    declared[axis] = true;
    for (int k = 0; k < a->term_count; k++) {
        int term = a->term[k].axis;
        if (term >= 0 && plan->naming.graph->axis[term].term_count > 0)
            declare(plan, introduced, declared, term);
        introduce(introduced, term, -1);
    }
    introduce(introduced, axis, -1);
    plan->axis[plan->axis_count++] = axis;
}

/* The axes that some operand or value of the text is about. */
static struct introduction find_named(const struct graph *graph, const bool *used)
{
    struct introduction named;
    for (int i = 0; i < MAX_AXES; i++)
        named.by[i] = INT_MAX;
    for (int i = 0; i < graph->operand_count; i++)
        introduce_shape(&named, &graph->operand[i].shape, i);
    for (int n = 0; n < graph->node_count; n++) {
        const struct node *node = &graph->node[n];
        if (!used[n])
            continue;
        introduce_shape(&named, &node->shape, 0);
        introduce(&named, node->axis, 0);
        introduce(&named, node->run.axis, 0);
        introduce(&named, node->rope_cols.axis, 0);
    }
    return named;
}

/* Marks the axes that the expression of a node names before anything introduced them. */
static void find_missing(const struct node *node, int group, const struct introduction *introduced, bool *missing)
{
    int axis[3] = {-1, -1, -1}, count = 0;
    if (node->op == OP_SIZE || node->op == OP_INDEX || node->op == OP_REPEAT || node->op == OP_ONEHOT)
        axis[count++] = node->axis;
    for (int i = 0; node->op == OP_BROADCAST && i < node->shape.rank; i++)
        axis[count++] = node->shape.dim[i].axis;
    for (int i = 0; i < count; i++)
        if (axis[i] >= 0 && introduced->by[axis[i]] >= group)
            missing[axis[i]] = true;
}

void text_plan_axes(struct text_plan *plan, const bool *used)
{
    const struct graph *graph = plan->naming.graph;
    struct introduction named = find_named(graph, used), introduced;
    bool declared[MAX_AXES] = {false}, missing[MAX_AXES] = {false};
    for (int i = 0; i < MAX_AXES; i++)
        introduced.by[i] = INT_MAX;
    for (int i = 0; i < graph->axis_count; i++)
        if (named.by[i] < INT_MAX && graph->axis[i].term_count > 0)
            declare(plan, &introduced, declared, i);
    for (int i = 0; i < graph->operand_count; i++)
        if (graph->operand[i].role == CODA_IN)
            introduce_shape(&introduced, &graph->operand[i].shape, i);
    for (int n = 0; n < graph->node_count; n++)
        if (used[n])
            find_missing(&graph->node[n], plan->group[n], &introduced, missing);
    for (int i = 0; i < graph->axis_count; i++)
        if (missing[i])
            declare(plan, &introduced, declared, i);
}
