/* Values, steps and their lists: what every kind of node needs. */
#include "cpu/emit.h"

#include <stdlib.h>

/* ---------------------------------------------------------------- values and lists */

coda_status cpu_steps_no_memory(const struct builder *b)
{
    return fail_memory(b->error, "the steps of a kernel", sizeof(struct step));
}

/* A new value; -1: no memory. */
int cpu_add_value(struct builder *b, enum storage storage, int form)
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

enum storage cpu_storage_of(enum site site)
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

coda_status cpu_append_step(struct builder *b, const struct step *step)
{
    struct step_list *list = list_of(b, step->site);
    if (list->count == list->capacity) {
        int capacity = list->capacity ? 2 * list->capacity : 16;
        struct step *grown = realloc(list->step, (size_t)capacity * sizeof *grown);
        if (!grown)
            return cpu_steps_no_memory(b);
        list->step = grown;
        list->capacity = capacity;
    }
    list->step[list->count++] = *step;
    return CODA_OK;
}

/* The index of a width among the program's; -1 with an error. */
int cpu_form_of(struct builder *b, const struct dim *columns)
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
int cpu_node_form(struct builder *b, int n)
{
    const struct shape *shape = &b->graph->node[n].shape;
    if (b->site[n] == SITE_ROW || b->site[n] == SITE_UNIFORM)
        return 0;
    return cpu_form_of(b, &shape->dim[shape->rank - 1]);
}

int cpu_row_run_of(const struct builder *b, int n)
{
    return b->site[n] == SITE_BAND ? (int)extent_size(&b->graph->node[n].shape.dim[0].run, b->fixed_size) : 0;
}

/* A step for node n whose result is a new value of the node's site. */
coda_status cpu_start_step(struct builder *b, int n, struct step *step)
{
    *step = (struct step){
        .site = b->site[n], .guard = -1, .node = n, .result = -1, .primitive = -1, .operand = -1, .ids = -1};
    step->name = op_name(b->graph->node[n].op);
    if (step->site == SITE_TILE)
        step->guard = b->guard[n];
    step->form = cpu_node_form(b, n);
    if (step->form < 0)
        return CODA_UNSUPPORTED;
    step->row_run = cpu_row_run_of(b, n);
    step->result = cpu_add_value(b, cpu_storage_of(step->site), step->form);
    if (step->result < 0)
        return cpu_steps_no_memory(b);
    b->plan->value[step->result].row_run = step->row_run;
    b->value[n] = step->result;
    return CODA_OK;
}

void cpu_add_input(struct step *step, int value)
{
    step->input[step->input_count++] = value;
}

/* ---------------------------------------------------------------- inputs */

static bool is_half(struct width_form form)
{
    return form.form == DIM_HALVES || (form.form == DIM_RUNS && form.run == 2);
}

/* Is a value one number a row, seen from a step at `site`? */
bool cpu_is_scalar(const struct builder *b, int value, enum site site)
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
    bool scalar = cpu_is_scalar(b, value, site), expands = !scalar && !widths_agree(b, value, form);
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
    int found = find_copy(b, value, form, cpu_storage_of(site), step.guard);
    if (found >= 0)
        return found;
    step.result = cpu_add_value(b, cpu_storage_of(site), form);
    if (step.result < 0) {
        cpu_steps_no_memory(b);
        return -1;
    }
    struct value *copy = &b->plan->value[step.result];
    copy->copied_from = value;
    copy->condition = step.guard;
    copy->row_run = row_run;
    cpu_add_input(&step, value);
    step.run = expands ? cpu_step_expand : cpu_step_rows;
    step.rows = b->plan->isa->copy[scalar];
    step.runs = b->plan->isa->expand;
    step.length = expands ? b->plan->width[b->plan->value[value].form].run : 0;
    return cpu_append_step(b, &step) == CODA_OK ? step.result : -1;
}

/* The value as an input of an elementwise step: repeated over runs where the step has more columns. */
int cpu_elementwise_input(struct builder *b, int value, const struct step *step)
{
    if (cpu_is_scalar(b, value, step->site) || widths_agree(b, value, step->form))
        return value;
    if (b->plan->value[value].storage == IN_COLUMNS)
        return copy_value(b, value, SITE_COLUMN, step->form, -1, 0);
    if (b->plan->value[value].storage == IN_BANDS)
        return copy_value(b, value, SITE_BAND, step->form, -1, b->plan->value[value].row_run);
    return copy_value(b, value, step->site, step->form, step->guard, step->row_run);
}

/* The value as one with an element for each place of the step's site and of `form`. */
int cpu_full_input(struct builder *b, int value, const struct step *step, int form)
{
    const struct value *v = &b->plan->value[value];
    bool there = v->storage == cpu_storage_of(step->site) ||
                 (step->site == SITE_TILE && (v->storage == IN_ACCUMULATORS || v->storage == EITHER));
    if (there && widths_agree(b, value, form))
        return value;
    return copy_value(b, value, step->site, form, step->guard, step->row_run);
}

coda_status cpu_start_step_on_tile(struct builder *b, int n, struct step *step)
{
    coda_status status = cpu_start_step(b, n, step);
    if (status != CODA_OK)
        return status;
    int input = cpu_full_input(b, b->value[b->graph->node[n].input[0]], step, 0);
    if (input < 0)
        return CODA_MEMORY;
    cpu_add_input(step, input);
    return CODA_OK;
}
