/* Steps of elementwise nodes. */
#include "cpu/emit.h"

static unsigned scalar_mask(const struct builder *b, const struct step *step)
{
    unsigned mask = 0;
    for (int k = 0; k < step->input_count; k++)
        mask |= (unsigned)cpu_is_scalar(b, step->input[k], step->site) << k;
    return mask;
}

static coda_status add_inputs(struct builder *b, struct step *step, const int *nodes, int count)
{
    for (int k = 0; k < count; k++) {
        int input = cpu_elementwise_input(b, b->value[nodes[k]], step);
        if (input < 0)
            return CODA_MEMORY;
        cpu_add_input(step, input);
    }
    return CODA_OK;
}

/* An addition or subtraction with a product among its inputs. */
static coda_status emit_fused(struct builder *b, int n, struct step *step, int product)
{
    const struct node *node = &b->graph->node[n], *factor = &b->graph->node[node->input[product]];
    const int nodes[3] = {factor->input[0], factor->input[1], node->input[1 - product]};
    enum fused fused = node->op == OP_ADD ? MULTIPLY_ADD : product == 0 ? MULTIPLY_SUBTRACT : SUBTRACT_PRODUCT;
    static const char *const names[] = {"a * b + c", "a * b - c", "c - a * b"};
    coda_status status = add_inputs(b, step, nodes, 3);
    step->name = names[fused];
    step->primitive = (int)OP_COUNT + (int)fused;
    step->rows = b->plan->isa->fused[fused][scalar_mask(b, step)];
    return status;
}

coda_status cpu_emit_elementwise(struct builder *b, int n)
{
    const struct node *node = &b->graph->node[n];
    struct step step;
    coda_status status = cpu_start_step(b, n, &step);
    if (status != CODA_OK)
        return status;
    step.run = cpu_step_rows;
    step.inplace = true;
    int product = -1;
    for (int k = 0; k < node->input_count; k++)
        if (b->fused[node->input[k]] == n)
            product = k;
    if (product >= 0) {
        status = emit_fused(b, n, &step, product);
    } else {
        status = add_inputs(b, &step, node->input, node->input_count);
        step.primitive = (int)node->op;
        step.rows = status == CODA_OK ? b->plan->isa->elementwise[node->op][scalar_mask(b, &step)] : NULL;
    }
    return status == CODA_OK ? cpu_append_step(b, &step) : status;
}

/* One of two values, each computed where its branch is taken. */
coda_status cpu_emit_uniform_where(struct builder *b, int n)
{
    const struct node *node = &b->graph->node[n];
    int form = cpu_node_form(b, n), branch[2];
    if (form < 0)
        return CODA_UNSUPPORTED;
    for (int k = 0; k < 2; k++) {
        struct step step = {.site = SITE_TILE, .guard = b->guard[n]};
        for (int g = 0; g < b->plan->guard_count; g++) {
            const struct guard *guard = &b->plan->guard[g];
            if (guard->parent == b->guard[n] && guard->condition == node->input[0] && guard->wanted == (k == 0))
                step.guard = g;
        }
        branch[k] = cpu_full_input(b, b->value[node->input[k + 1]], &step, form);
        if (branch[k] < 0)
            return CODA_MEMORY;
    }
    int value = cpu_add_value(b, EITHER, form);
    if (value < 0)
        return cpu_steps_no_memory(b);
    b->plan->value[value].condition = node->input[0];
    b->plan->value[value].yes = branch[0];
    b->plan->value[value].no = branch[1];
    b->value[n] = value;
    return CODA_OK;
}

coda_status cpu_emit_cast(struct builder *b, int n)
{
    const struct node *node = &b->graph->node[n];
    struct step step;
    coda_status status = cpu_start_step(b, n, &step);
    if (status != CODA_OK)
        return status;
    int input = cpu_full_input(b, b->value[node->input[0]], &step, step.form);
    if (input < 0)
        return CODA_MEMORY;
    cpu_add_input(&step, input);
    step.run = cpu_step_rows;
    step.rows = b->plan->isa->round[node->dtype];
    step.inplace = true;
    return cpu_append_step(b, &step);
}
