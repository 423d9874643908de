/* From nodes to steps: moves, rotations, leaves, stores, and which kind a node is. */
#include "cpu/emit.h"

/* ---------------------------------------------------------------- moves */

static coda_status emit_move(struct builder *b, int n)
{
    const struct node *node = &b->graph->node[n];
    const struct instruction_set *isa = b->plan->isa;
    struct step step;
    coda_status status = cpu_start_step(b, n, &step);
    if (status != CODA_OK)
        return status;
    bool joins = node->op == OP_JOIN || node->op == OP_JOIN_HALVES;
    int form = 0;
    if (joins) {
        struct dim half = {DIM_RUNS, b->form->column_axis, 0, {-1, 2}};
        form = cpu_form_of(b, &half);
    }
    for (int k = 0; form >= 0 && k < node->input_count; k++) {
        int input = cpu_full_input(b, b->value[node->input[k]], &step, form);
        if (input < 0)
            return CODA_MEMORY;
        cpu_add_input(&step, input);
    }
    if (form < 0)
        return CODA_UNSUPPORTED;
    bool pairs = node->op == OP_EVEN || node->op == OP_ODD || node->op == OP_JOIN;
    step.run = pairs ? cpu_step_rows : cpu_step_runs;
    step.rows = node->op == OP_EVEN ? isa->even : node->op == OP_ODD ? isa->odd : isa->join;
    step.runs = node->op == OP_FIRST ? isa->first : node->op == OP_SECOND ? isa->second : isa->join_halves;
    step.length = pairs ? 0 : cpu_run_length(b, node);
    return cpu_append_step(b, &step);
}

static coda_status emit_rope(struct builder *b, int n)
{
    const struct node *node = &b->graph->node[n];
    struct step step;
    coda_status status = cpu_start_step_on_tile(b, n, &step);
    if (status != CODA_OK)
        return status;
    step.run = cpu_step_rope;
    step.operand = cpu_operand_of(b, node->input[1]);
    step.ids = cpu_operand_of(b, node->input[2]);
    step.length = (int)dim_size(&b->graph->node[node->input[1]].shape.dim[1], b->fixed_size);
    step.flag = node->rope_inverse;
    return cpu_append_step(b, &step);
}

/* ---------------------------------------------------------------- leaves and indices */

static coda_status emit_leaf(struct builder *b, int n, step_function *run, int operand, int ids)
{
    struct step step;
    coda_status status = cpu_start_step(b, n, &step);
    if (status != CODA_OK)
        return status;
    step.run = run;
    step.operand = operand;
    step.ids = ids;
    if (operand >= 0)
        step.dtype = b->graph->operand[operand].dtype;
    return cpu_append_step(b, &step);
}

static coda_status emit_uniform(struct builder *b, int n)
{
    struct plan *plan = b->plan;
    int value = cpu_add_value(b, IN_UNIFORMS, 0);
    if (value < 0)
        return cpu_steps_no_memory(b);
    if (plan->uniform_slot[n] < 0)
        plan->uniform_slot[n] = plan->uniform_count++;
    plan->value[value].offset = (int64_t)plan->uniform_slot[n] * SLOT;
    b->value[n] = value;
    return CODA_OK;
}

static coda_status emit_product(struct builder *b, int n)
{
    int value = cpu_add_value(b, IN_ACCUMULATORS, 0);
    if (value < 0)
        return cpu_steps_no_memory(b);
    for (int i = 0; i < b->form->accumulator_count; i++)
        if (b->form->accumulator[i] == n)
            b->plan->value[value].offset = i; /* cpu_plan_place multiplies it by the size of one */
    b->value[n] = value;
    return CODA_OK;
}

static bool is_whole(const struct node *node)
{
    return node->run.axis < 0 && node->run.value == 0;
}

coda_status cpu_emit_node(struct builder *b, int n)
{
    const struct node *node = &b->graph->node[n];
    if (b->site[n] == SITE_UNIFORM)
        return emit_uniform(b, n);
    switch (node->op) {
    case OP_IN:
        return emit_leaf(b, n, cpu_step_load, node->index, -1);
    case OP_INDEX:
        return emit_leaf(b, n, cpu_step_index, -1, -1);
    case OP_REPEAT:
        return emit_leaf(b, n, cpu_step_repeat, cpu_operand_of(b, node->input[0]), -1);
    case OP_GATHER:
        return emit_leaf(b, n, cpu_step_gather, cpu_operand_of(b, node->input[0]), cpu_operand_of(b, node->input[1]));
    case OP_ONEHOT:
        return emit_leaf(b, n, cpu_step_onehot, -1, cpu_operand_of(b, node->input[0]));
    case OP_GEMM:
        return emit_product(b, n);
    case OP_BROADCAST:
        b->value[n] = b->value[node->input[0]];
        return CODA_OK;
    case OP_CAST:
        return cpu_emit_cast(b, n);
    case OP_ROPE:
        return emit_rope(b, n);
    case OP_EVEN:
    case OP_ODD:
    case OP_JOIN:
    case OP_FIRST:
    case OP_SECOND:
    case OP_JOIN_HALVES:
        return emit_move(b, n);
    case OP_PICK:
        return CODA_OK; /* stored where it is picked */
    default:
        break;
    }
    if (op_is_reduction(node->op))
        return is_whole(node) ? cpu_emit_operand_reduction(b, n) : cpu_emit_run_reduction(b, n);
    if (node->op == OP_WHERE && b->site[n] == SITE_TILE && b->site[node->input[0]] == SITE_UNIFORM)
        return cpu_emit_uniform_where(b, n);
    return cpu_emit_elementwise(b, n);
}

coda_status cpu_emit_store(struct builder *b, int operand)
{
    const struct operand *out = &b->graph->operand[operand];
    int n = out->node;
    const struct node *node = &b->graph->node[n];
    bool pick = node->op == OP_PICK;
    struct step step = {
        .site = pick ? SITE_TILE : b->site[n], .guard = -1, .node = n, .result = -1, .primitive = -1, .ids = -1};
    step.form = pick ? 0 : cpu_node_form(b, n);
    step.row_run = cpu_row_run_of(b, n);
    if (step.form < 0)
        return CODA_UNSUPPORTED;
    int input = cpu_full_input(b, b->value[pick ? node->input[0] : n], &step, step.form);
    if (input < 0)
        return CODA_MEMORY;
    cpu_add_input(&step, input);
    bool patch = out->role == CODA_PATCH;
    step.run = pick ? cpu_step_pick : patch ? cpu_step_patch : cpu_step_store;
    step.name = pick ? "pick" : patch ? "patch" : "store";
    step.operand = operand;
    step.ids = pick ? cpu_operand_of(b, node->input[1]) : patch ? out->ids : -1;
    step.dtype = out->dtype;
    step.flag = out->role == CODA_ACCUMULATE;
    return cpu_append_step(b, &step);
}
