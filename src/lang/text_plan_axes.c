/* Which axes a text has to declare. Types introduce axes, and so do lengths of runs and `cols =`; anywhere else inside
 * an expression an axis must be known already. */
#include "lang/text_plan.h"

static void introduce(bool *known, int axis)
{
    if (axis >= 0)
        known[axis] = true;
}

static void introduce_shape(bool *known, const struct shape *shape)
{
    for (int i = 0; i < shape->rank; i++) {
        introduce(known, shape->dim[i].axis);
        introduce(known, shape->dim[i].run.axis);
    }
}

/* A derived axis, after the derived axes in its sum. */
static void declare(struct text_plan *plan, bool *known, bool *declared, int axis)
{
    const struct axis *a = &plan->naming.graph->axis[axis];
    if (declared[axis])
        return;
    declared[axis] = true;
    for (int k = 0; k < a->term_count; k++) {
        int term = a->term[k].axis;
        if (term >= 0 && plan->naming.graph->axis[term].term_count > 0)
            declare(plan, known, declared, term);
    }
    for (int k = 0; k < a->term_count; k++)
        introduce(known, a->term[k].axis);
    introduce(known, axis);
    plan->axis[plan->axis_count++] = axis;
}

/* Marks what some operand or value of the text is about. */
static void find_named(const struct graph *graph, const bool *used, bool *named)
{
    for (int i = 0; i < graph->operand_count; i++)
        introduce_shape(named, &graph->operand[i].shape);
    for (int n = 0; n < graph->node_count; n++) {
        const struct node *node = &graph->node[n];
        if (!used[n])
            continue;
        introduce_shape(named, &node->shape);
        introduce(named, node->axis);
        introduce(named, node->run.axis);
        introduce(named, node->rope_cols.axis);
    }
}

static bool names_axis(const struct node *node)
{
    return node->op == OP_SIZE || node->op == OP_INDEX || node->op == OP_REPEAT || node->op == OP_ONEHOT ||
           op_is_reduction(node->op);
}

/* Declares the axes that the expression of one node names before anything introduced them. */
static void need(struct text_plan *plan, bool *known, bool *declared, const struct node *node)
{
    int axis[5], count = 0;
    if (names_axis(node))
        axis[count++] = node->axis;
    for (int i = 0; node->op == OP_BROADCAST && i < node->shape.rank; i++)
        axis[count++] = node->shape.dim[i].axis;
    for (int i = 0; i < count; i++)
        if (axis[i] >= 0 && !known[axis[i]])
            declare(plan, known, declared, axis[i]);
}

void text_plan_axes(struct text_plan *plan, const bool *used)
{
    const struct graph *graph = plan->naming.graph;
    bool named[MAX_AXES] = {false}, known[MAX_AXES] = {false}, declared[MAX_AXES] = {false};
    find_named(graph, used, named);
    for (int i = 0; i < graph->axis_count; i++)
        if (named[i] && graph->axis[i].term_count > 0)
            declare(plan, known, declared, i);
    for (int i = 0; i < graph->operand_count; i++)
        if (graph->operand[i].role == CODA_IN)
            introduce_shape(known, &graph->operand[i].shape);
    for (int n = 0; n < graph->node_count; n++)
        if (used[n])
            need(plan, known, declared, &graph->node[n]);
}
