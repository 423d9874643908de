/* From nodes to steps. */
#include "cpu/frame.h"

#include <stdlib.h>

/* ---------------------------------------------------------------- values and lists */

static coda_status no_memory(const struct builder *b)
{
    return fail_memory(b->error, "the steps of a kernel", sizeof(struct step));
}

/* A new value; -1: no memory. */
static int add_value(struct builder *b, enum storage storage, int form)
{
    struct plan *plan = b->plan;
    if (plan->value_count == plan->value_capacity) {
        int capacity = plan->value_capacity ? 2 * plan->value_capacity : 64;
        struct value *grown = realloc(plan->value, (size_t)capacity * sizeof *grown);
        if (!grown)
            return -1;
        plan->value = grown;
        plan->value_capacity = capacity;
    }
    plan->value[plan->value_count] =
        (struct value){.storage = storage, .form = form, .condition = -1, .yes = -1, .no = -1, .copied_from = -1};
    return plan->value_count++;
}

static enum storage storage_of(enum site site)
{
    static const enum storage storage[] = {IN_UNIFORMS, IN_ROWS, IN_COLUMNS, IN_BANDS, IN_REGISTERS};
    return storage[site];
}

static struct step_list *list_of(struct builder *b, enum site site)
{
    struct phase_plan *phase = &b->plan->phase[b->phase];
    switch (site) {
    case SITE_ROW:
        return &phase->list[LIST_ROWS];
    case SITE_COLUMN:
        return &phase->list[LIST_COLUMNS];
    case SITE_BAND:
        return &phase->list[LIST_BANDS + b->pass];
    default:
        return &phase->list[LIST_TILE + b->pass];
    }
}

static coda_status append_step(struct builder *b, const struct step *step)
{
    struct step_list *list = list_of(b, step->site);
    if (list->count == list->capacity) {
        int capacity = list->capacity ? 2 * list->capacity : 16;
        struct step *grown = realloc(list->step, (size_t)capacity * sizeof *grown);
        if (!grown)
            return no_memory(b);
        list->step = grown;
        list->capacity = capacity;
    }
    list->step[list->count++] = *step;
    return CODA_OK;
}

/* The index of a width among the program's; -1 with an error. */
static int form_of(struct builder *b, const struct dim *columns)
{
    struct plan *plan = b->plan;
    struct width_form wanted = {columns->form, 0};
    if (columns->form == DIM_RUNS || columns->form == DIM_HALVES)
        wanted.run = (int)extent_size(&columns->run, b->fixed_size);
    for (int i = 0; i < plan->form_count; i++)
        if (plan->width[i].form == wanted.form && plan->width[i].run == wanted.run)
            return i;
    if (plan->form_count == MAX_FORMS) {
        fail(b->error, CODA_UNSUPPORTED, "%s: more than %d different runs of columns; split the program",
             b->graph->name, MAX_FORMS);
        return -1;
    }
    plan->width[plan->form_count] = wanted;
    return plan->form_count++;
}

/* The form of a node's rows: of vectors along columns and of matrices. */
static int node_form(struct builder *b, int n)
{
    const struct shape *shape = &b->graph->node[n].shape;
    if (b->site[n] == SITE_ROW || b->site[n] == SITE_UNIFORM)
        return 0;
    return form_of(b, &shape->dim[shape->rank - 1]);
}

static int row_run_of(const struct builder *b, int n)
{
    return b->site[n] == SITE_BAND ? (int)extent_size(&b->graph->node[n].shape.dim[0].run, b->fixed_size) : 0;
}

/* A step for node n whose result is a new value of the node's site. */
static coda_status start_step(struct builder *b, int n, struct step *step)
{
    *step = (struct step){
        .site = b->site[n], .guard = -1, .node = n, .result = -1, .primitive = -1, .operand = -1, .ids = -1};
    step->name = op_name(b->graph->node[n].op);
    if (step->site == SITE_TILE)
        step->guard = b->guard[n];
    step->form = node_form(b, n);
    if (step->form < 0)
        return CODA_UNSUPPORTED;
    step->row_run = row_run_of(b, n);
    step->result = add_value(b, storage_of(step->site), step->form);
    if (step->result < 0)
        return no_memory(b);
    b->plan->value[step->result].row_run = step->row_run;
    b->value[n] = step->result;
    return CODA_OK;
}

static void add_input(struct step *step, int value)
{
    step->input[step->input_count++] = value;
}

/* ---------------------------------------------------------------- inputs */

static bool is_half(struct width_form form)
{
    return form.form == DIM_HALVES || (form.form == DIM_RUNS && form.run == 2);
}

/* Is a value one number a row, seen from a step at `site`? */
static bool is_scalar(const struct builder *b, int value, enum site site)
{
    enum storage storage = b->plan->value[value].storage;
    return storage == IN_UNIFORMS || (storage == IN_ROWS && site != SITE_ROW);
}

static bool widths_agree(const struct builder *b, int value, int form)
{
    const struct value *v = &b->plan->value[value];
    return v->form == form || (is_half(b->plan->width[v->form]) && is_half(b->plan->width[form]));
}

static int find_copy(const struct builder *b, int value, int form, enum storage storage, int guard)
{
    for (int i = b->first_value; i < b->plan->value_count; i++) {
        const struct value *v = &b->plan->value[i];
        if (v->copied_from == value && v->form == form && v->storage == storage && v->condition == guard)
            return i;
    }
    return -1;
}

/* A copy of `value` at `site`, one element a column of `form`; -1 with an error. */
static int copy_value(struct builder *b, int value, enum site site, int form, int guard, int row_run)
{
    bool scalar = is_scalar(b, value, site), expands = !scalar && !widths_agree(b, value, form);
    struct step step = {.site = site,
                        .guard = site == SITE_TILE ? guard : -1,
                        .node = -1,
                        .result = -1,
                        .primitive = -1,
                        .operand = -1,
                        .ids = -1,
                        .form = form,
                        .row_run = row_run,
                        .name = expands ? "expand" : "copy"};
    int found = find_copy(b, value, form, storage_of(site), step.guard);
    if (found >= 0)
        return found;
    step.result = add_value(b, storage_of(site), form);
    if (step.result < 0) {
        no_memory(b);
        return -1;
    }
    struct value *copy = &b->plan->value[step.result];
    copy->copied_from = value;
    copy->condition = step.guard;
    copy->row_run = row_run;
    add_input(&step, value);
    step.run = expands ? cpu_step_expand : cpu_step_rows;
    step.rows = b->plan->isa->copy[scalar];
    step.runs = b->plan->isa->expand;
    step.length = expands ? b->plan->width[b->plan->value[value].form].run : 0;
    return append_step(b, &step) == CODA_OK ? step.result : -1;
}

/* The value as an input of an elementwise step: repeated over runs where the step has more columns. */
static int elementwise_input(struct builder *b, int value, const struct step *step)
{
    if (is_scalar(b, value, step->site) || widths_agree(b, value, step->form))
        return value;
    if (b->plan->value[value].storage == IN_COLUMNS)
        return copy_value(b, value, SITE_COLUMN, step->form, -1, 0);
    if (b->plan->value[value].storage == IN_BANDS)
        return copy_value(b, value, SITE_BAND, step->form, -1, b->plan->value[value].row_run);
    return copy_value(b, value, step->site, step->form, step->guard, step->row_run);
}

/* The value as one with an element for each place of the step's site and of `form`. */
static int full_input(struct builder *b, int value, const struct step *step, int form)
{
    const struct value *v = &b->plan->value[value];
    bool there = v->storage == storage_of(step->site) ||
                 (step->site == SITE_TILE && (v->storage == IN_ACCUMULATORS || v->storage == EITHER));
    if (there && widths_agree(b, value, form))
        return value;
    return copy_value(b, value, step->site, form, step->guard, step->row_run);
}

/* ---------------------------------------------------------------- elementwise */

static unsigned scalar_mask(const struct builder *b, const struct step *step)
{
    unsigned mask = 0;
    for (int k = 0; k < step->input_count; k++)
        mask |= (unsigned)is_scalar(b, step->input[k], step->site) << k;
    return mask;
}

static coda_status add_inputs(struct builder *b, struct step *step, const int *nodes, int count)
{
    for (int k = 0; k < count; k++) {
        int input = elementwise_input(b, b->value[nodes[k]], step);
        if (input < 0)
            return CODA_MEMORY;
        add_input(step, input);
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

static coda_status emit_elementwise(struct builder *b, int n)
{
    const struct node *node = &b->graph->node[n];
    struct step step;
    coda_status status = start_step(b, n, &step);
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
    return status == CODA_OK ? append_step(b, &step) : status;
}

/* One of two values, each computed where its branch is taken. */
static coda_status emit_uniform_where(struct builder *b, int n)
{
    const struct node *node = &b->graph->node[n];
    int form = node_form(b, n), branch[2];
    if (form < 0)
        return CODA_UNSUPPORTED;
    for (int k = 0; k < 2; k++) {
        struct step step = {.site = SITE_TILE, .guard = b->guard[n]};
        for (int g = 0; g < b->plan->guard_count; g++) {
            const struct guard *guard = &b->plan->guard[g];
            if (guard->parent == b->guard[n] && guard->condition == node->input[0] && guard->wanted == (k == 0))
                step.guard = g;
        }
        branch[k] = full_input(b, b->value[node->input[k + 1]], &step, form);
        if (branch[k] < 0)
            return CODA_MEMORY;
    }
    int value = add_value(b, EITHER, form);
    if (value < 0)
        return no_memory(b);
    b->plan->value[value].condition = node->input[0];
    b->plan->value[value].yes = branch[0];
    b->plan->value[value].no = branch[1];
    b->value[n] = value;
    return CODA_OK;
}

static coda_status emit_cast(struct builder *b, int n)
{
    const struct node *node = &b->graph->node[n];
    struct step step;
    coda_status status = start_step(b, n, &step);
    if (status != CODA_OK)
        return status;
    int input = full_input(b, b->value[node->input[0]], &step, step.form);
    if (input < 0)
        return CODA_MEMORY;
    add_input(&step, input);
    step.run = cpu_step_rows;
    step.rows = b->plan->isa->round[node->dtype];
    step.inplace = true;
    return append_step(b, &step);
}

/* ---------------------------------------------------------------- moves */

static int run_length(const struct builder *b, const struct node *node)
{
    return (int)extent_size(&node->run, b->fixed_size);
}

static coda_status emit_move(struct builder *b, int n)
{
    const struct node *node = &b->graph->node[n];
    const struct instruction_set *isa = b->plan->isa;
    struct step step;
    coda_status status = start_step(b, n, &step);
    if (status != CODA_OK)
        return status;
    bool joins = node->op == OP_JOIN || node->op == OP_JOIN_HALVES;
    int form = 0;
    if (joins) {
        struct dim half = {DIM_RUNS, b->form->column_axis, 0, {-1, 2}};
        form = form_of(b, &half);
    }
    for (int k = 0; form >= 0 && k < node->input_count; k++) {
        int input = full_input(b, b->value[node->input[k]], &step, form);
        if (input < 0)
            return CODA_MEMORY;
        add_input(&step, input);
    }
    if (form < 0)
        return CODA_UNSUPPORTED;
    bool pairs = node->op == OP_EVEN || node->op == OP_ODD || node->op == OP_JOIN;
    step.run = pairs ? cpu_step_rows : cpu_step_runs;
    step.rows = node->op == OP_EVEN ? isa->even : node->op == OP_ODD ? isa->odd : isa->join;
    step.runs = node->op == OP_FIRST ? isa->first : node->op == OP_SECOND ? isa->second : isa->join_halves;
    step.length = pairs ? 0 : run_length(b, node);
    return append_step(b, &step);
}

static int operand_of(const struct builder *b, int node)
{
    return b->graph->node[node].index;
}

static coda_status emit_rope(struct builder *b, int n)
{
    const struct node *node = &b->graph->node[n];
    struct step step;
    coda_status status = start_step(b, n, &step);
    if (status != CODA_OK)
        return status;
    int input = full_input(b, b->value[node->input[0]], &step, 0);
    if (input < 0)
        return CODA_MEMORY;
    add_input(&step, input);
    step.run = cpu_step_rope;
    step.operand = operand_of(b, node->input[1]);
    step.ids = operand_of(b, node->input[2]);
    step.length = (int)dim_size(&b->graph->node[node->input[1]].shape.dim[1], b->fixed_size);
    step.flag = node->rope_inverse;
    return append_step(b, &step);
}

/* ---------------------------------------------------------------- reductions */

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
    const int value = add_value(b, storage_of(step->site), step->form);
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
        return no_memory(b);
    top.form = sum.form = 0; /* of what they read */
    top.name = "max of run";
    top.runs = b->plan->isa->reduce[REDUCE_MAX];
    top.primitive = PRIMITIVE_REDUCE + REDUCE_MAX;
    sum.name = "sum of exponentials";
    sum.runs = b->plan->isa->sum_exponentials;
    sum.primitive = PRIMITIVE_REDUCE + REDUCE_LOGSUMEXP;
    add_input(&sum, top.result);
    finish.form = form;
    finish.run = cpu_step_rows;
    finish.rows = b->plan->isa->finish_runs;
    finish.input[0] = sum.result;
    add_input(&finish, top.result);
    coda_status status = append_step(b, &top);
    if (status == CODA_OK)
        status = append_step(b, &sum);
    return status == CODA_OK ? append_step(b, &finish) : status;
}

static coda_status emit_run_reduction(struct builder *b, int n)
{
    const struct node *node = &b->graph->node[n];
    struct step step;
    coda_status status = start_step(b, n, &step);
    if (status != CODA_OK)
        return status;
    int input = full_input(b, b->value[node->input[0]], &step, 0);
    if (input < 0)
        return CODA_MEMORY;
    add_input(&step, input);
    step.run = cpu_step_runs;
    step.length = run_length(b, node);
    if (reduction_of(node->op) == REDUCE_LOGSUMEXP)
        return emit_run_logsumexp(b, &step);
    step.runs = b->plan->isa->reduce[reduction_of(node->op)];
    step.primitive = PRIMITIVE_REDUCE + (int)reduction_of(node->op);
    step.form = 0; /* of what it reads */
    return append_step(b, &step);
}

coda_status cpu_emit_row_reduction(struct builder *b, int n)
{
    const struct node *node = &b->graph->node[n];
    struct step step;
    coda_status status = start_step(b, n, &step);
    if (status != CODA_OK)
        return status;
    step.site = SITE_TILE;
    step.guard = b->guard[n];
    int input = full_input(b, b->value[node->input[0]], &step, step.form);
    if (input < 0)
        return CODA_MEMORY;
    add_input(&step, input);
    step.run = cpu_step_accumulate;
    step.reduction = reduction_of(node->op);
    if (step.reduction == REDUCE_LOGSUMEXP) {
        int top = add_value(b, IN_BANDS, step.form);
        if (top < 0)
            return no_memory(b);
        b->plan->value[top].row_run = step.row_run;
        add_input(&step, top);
    }
    return append_step(b, &step);
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
        add_input(&step, sum->input[1]);
        status = append_step(b, &step);
    }
    return status;
}

static coda_status emit_operand_reduction(struct builder *b, int n)
{
    const struct node *node = &b->graph->node[n];
    struct step step;
    coda_status status = start_step(b, n, &step);
    if (status != CODA_OK)
        return status;
    step.run = cpu_step_reduce_operand;
    step.reduction = reduction_of(node->op);
    step.operand = operand_of(b, node->input[0]);
    /* flag: the rows of the operand are added up; else each row is reduced */
    step.flag = b->graph->node[node->input[0]].shape.dim[0].axis == node->axis;
    return append_step(b, &step);
}

/* ---------------------------------------------------------------- leaves and indices */

static coda_status emit_leaf(struct builder *b, int n, step_function *run, int operand, int ids)
{
    struct step step;
    coda_status status = start_step(b, n, &step);
    if (status != CODA_OK)
        return status;
    step.run = run;
    step.operand = operand;
    step.ids = ids;
    if (operand >= 0)
        step.dtype = b->graph->operand[operand].dtype;
    return append_step(b, &step);
}

static coda_status emit_uniform(struct builder *b, int n)
{
    struct plan *plan = b->plan;
    int value = add_value(b, IN_UNIFORMS, 0);
    if (value < 0)
        return no_memory(b);
    if (plan->uniform_slot[n] < 0)
        plan->uniform_slot[n] = plan->uniform_count++;
    plan->value[value].offset = (int64_t)plan->uniform_slot[n] * SLOT;
    b->value[n] = value;
    return CODA_OK;
}

static coda_status emit_product(struct builder *b, int n)
{
    int value = add_value(b, IN_ACCUMULATORS, 0);
    if (value < 0)
        return no_memory(b);
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
        return emit_leaf(b, n, cpu_step_repeat, operand_of(b, node->input[0]), -1);
    case OP_GATHER:
        return emit_leaf(b, n, cpu_step_gather, operand_of(b, node->input[0]), operand_of(b, node->input[1]));
    case OP_ONEHOT:
        return emit_leaf(b, n, cpu_step_onehot, -1, operand_of(b, node->input[0]));
    case OP_GEMM:
        return emit_product(b, n);
    case OP_BROADCAST:
        b->value[n] = b->value[node->input[0]];
        return CODA_OK;
    case OP_CAST:
        return emit_cast(b, n);
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
        return is_whole(node) ? emit_operand_reduction(b, n) : emit_run_reduction(b, n);
    if (node->op == OP_WHERE && b->site[n] == SITE_TILE && b->site[node->input[0]] == SITE_UNIFORM)
        return emit_uniform_where(b, n);
    return emit_elementwise(b, n);
}

coda_status cpu_emit_store(struct builder *b, int operand)
{
    const struct operand *out = &b->graph->operand[operand];
    int n = out->node;
    const struct node *node = &b->graph->node[n];
    bool pick = node->op == OP_PICK;
    struct step step = {
        .site = pick ? SITE_TILE : b->site[n], .guard = -1, .node = n, .result = -1, .primitive = -1, .ids = -1};
    step.form = pick ? 0 : node_form(b, n);
    step.row_run = row_run_of(b, n);
    if (step.form < 0)
        return CODA_UNSUPPORTED;
    int input = full_input(b, b->value[pick ? node->input[0] : n], &step, step.form);
    if (input < 0)
        return CODA_MEMORY;
    add_input(&step, input);
    step.run = pick ? cpu_step_pick : cpu_step_store;
    step.name = pick ? "pick" : "store";
    step.operand = operand;
    step.ids = pick ? operand_of(b, node->input[1]) : -1;
    step.dtype = out->dtype;
    step.flag = out->role == CODA_ACCUMULATE;
    return append_step(b, &step);
}
