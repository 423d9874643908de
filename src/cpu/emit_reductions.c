/* Steps of reductions: over runs of columns, over rows, of whole operands. */
#include "cpu/emit.h"

static enum reduction reduction_of(enum op op)
{
    return op == OP_SUM          ? REDUCE_SUM
           : op == OP_REDUCE_MAX ? REDUCE_MAX
           : op == OP_ABSMAX     ? REDUCE_ABSMAX
                                 : REDUCE_LOGSUMEXP;
}

/* A new value of the step's site and form; -1: no memory. */
static int add_value_like(struct builder *b, const struct step *step)
{
    const int value = cpu_add_value(b, cpu_storage_of(step->site), step->form);
    if (value >= 0)
        b->plan->value[value].row_run = step->row_run;
    return value;
}

/* The largest of each run, the sum of exponentials against it, and what both give together: three steps, each of which
 * takes little time. */
static coda_status emit_run_logsumexp(struct builder *b, const struct step *whole)
{
    struct step top = *whole, sum = *whole, finish = *whole;
    const int form = b->plan->value[whole->result].form;
    top.form = sum.form = form;
    top.result = add_value_like(b, &top);
    sum.result = add_value_like(b, &sum);
    if (top.result < 0 || sum.result < 0)
        return cpu_steps_no_memory(b);
    top.form = sum.form = 0; /* of what they read */
    top.name = "max of run";
    top.runs = b->plan->isa->reduce[REDUCE_MAX];
    top.primitive = PRIMITIVE_REDUCE + REDUCE_MAX;
    sum.name = "sum of exponentials";
    sum.runs = b->plan->isa->sum_exponentials;
    sum.primitive = PRIMITIVE_REDUCE + REDUCE_LOGSUMEXP;
    cpu_add_input(&sum, top.result);
    finish.form = form;
    finish.run = cpu_step_rows;
    finish.rows = b->plan->isa->finish_runs;
    finish.input[0] = sum.result;
    cpu_add_input(&finish, top.result);
    coda_status status = cpu_append_step(b, &top);
    if (status == CODA_OK)
        status = cpu_append_step(b, &sum);
    return status == CODA_OK ? cpu_append_step(b, &finish) : status;
}

coda_status cpu_emit_run_reduction(struct builder *b, int n)
{
    const struct node *node = &b->graph->node[n];
    struct step step;
    coda_status status = cpu_start_step_on_tile(b, n, &step);
    if (status != CODA_OK)
        return status;
    step.run = cpu_step_runs;
    step.length = cpu_run_length(b, node);
    if (reduction_of(node->op) == REDUCE_LOGSUMEXP)
        return emit_run_logsumexp(b, &step);
    step.runs = b->plan->isa->reduce[reduction_of(node->op)];
    step.primitive = PRIMITIVE_REDUCE + (int)reduction_of(node->op);
    step.form = 0; /* of what it reads */
    return cpu_append_step(b, &step);
}

coda_status cpu_emit_row_reduction(struct builder *b, int n)
{
    const struct node *node = &b->graph->node[n];
    struct step step;
    coda_status status = cpu_start_step(b, n, &step);
    if (status != CODA_OK)
        return status;
    step.site = SITE_TILE;
    step.guard = b->guard[n];
    int input = cpu_full_input(b, b->value[node->input[0]], &step, step.form);
    if (input < 0)
        return CODA_MEMORY;
    cpu_add_input(&step, input);
    step.run = cpu_step_accumulate;
    step.reduction = reduction_of(node->op);
    if (step.reduction == REDUCE_LOGSUMEXP) {
        int top = cpu_add_value(b, IN_BANDS, step.form);
        if (top < 0)
            return cpu_steps_no_memory(b);
        b->plan->value[top].row_run = step.row_run;
        cpu_add_input(&step, top);
    }
    return cpu_append_step(b, &step);
}

coda_status cpu_emit_finishes(struct builder *b)
{
    coda_status status = CODA_OK;
    if (b->pass == 0)
        return status;
    const struct step_list *list = &b->plan->phase[b->phase].list[LIST_TILE + b->pass - 1];
    for (int s = 0; s < list->count && status == CODA_OK; s++) {
        const struct step *sum = &list->step[s];
        if (sum->run != cpu_step_accumulate || sum->reduction != REDUCE_LOGSUMEXP)
            continue;
        struct step step = *sum;
        step.name = "finish logsumexp";
        step.run = cpu_step_finish;
        step.site = SITE_BAND;
        step.input_count = 0;
        cpu_add_input(&step, sum->input[1]);
        status = cpu_append_step(b, &step);
    }
    return status;
}

coda_status cpu_emit_operand_reduction(struct builder *b, int n)
{
    const struct node *node = &b->graph->node[n];
    struct step step;
    coda_status status = cpu_start_step(b, n, &step);
    if (status != CODA_OK)
        return status;
    step.run = cpu_step_reduce_operand;
    step.reduction = reduction_of(node->op);
    step.operand = cpu_operand_of(b, node->input[0]);
    /* flag: the rows of the operand are added up; else each row is reduced */
    step.flag = b->graph->node[node->input[0]].shape.dim[0].axis == node->axis;
    return cpu_append_step(b, &step);
}
