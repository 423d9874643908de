/* Runs the kernels of a schedule. */
#include "runtime/pending.h"
#include "runtime/schedule.h"

#include <string.h>

struct running {
    struct pending *pending;
    const coda_schedule *schedule;
    const coda_tensor *operand;
    const int64_t *sizes;
    const struct slot_layout *layout;
    char *saved, *scratch;
    const double *parameter; /* of the block */
    void *stream;
};

static coda_tensor whole_tensor(const struct running *r, int value)
{
    const struct memory_plan *plan = &r->schedule->plan;
    if (value < plan->caller_count)
        return r->operand[value];
    int slot = plan->value[value].slot;
    if (plan->slot[slot].home == PLAN_INPUT)
        return r->operand[plan->slot[slot].value];
    char *memory = plan->slot[slot].home == PLAN_SAVED ? r->saved : r->scratch;
    return schedule_tensor(r->schedule, value, r->sizes, memory + r->layout->offset[slot]);
}

/* Rows first .. first + count - 1 of the block's rows; runs of rows go with them. */
static coda_tensor some_rows(const struct running *r, int value, coda_tensor tensor, int64_t first, int64_t count)
{
    const struct plan_value *v = &r->schedule->plan.value[value];
    const struct dim *dim = &v->shape.dim[0];
    if (v->shape.rank == 0 || dim->axis != r->schedule->plan.row_axis)
        return tensor;
    int64_t run = dim->form == DIM_RUNS ? dim->run.value : 1;
    if (!v->wide)
        tensor.data = (char *)tensor.data + (size_t)(first / run * tensor.stride) * coda_dtype_size(tensor.dtype);
    tensor.shape[0] = (count + run - 1) / run;
    return tensor;
}

/* The kernel of a step for rows from `first` on. */
static coda_kernel *kernel_of(const struct running *r, int step, int64_t first)
{
    const struct plan_step *s = &r->schedule->plan.step[step];
    int list = schedule_list_of(r->schedule, step);
    if (list)
        return r->schedule->list[list - 1].kernel;
    const struct schedule_kernel *kernel = &r->schedule->kernel[s->program < 0 ? r->schedule->unit.count : s->program];
    bool writes = kernel->writes && first == 0 && (s->program >= 0 || step_writes_first(r->schedule, step, 1));
    return writes ? kernel->writes : kernel->kernel;
}

static coda_status launch_program(const struct running *r, int index, int64_t first, int64_t count, coda_error *error)
{
    const struct plan_step *step = &r->schedule->plan.step[index];
    const struct schedule_kernel *kernel = &r->schedule->kernel[step->program];
    coda_tensor tensor[MAX_OPERANDS];
    double parameter[MAX_OPERANDS];
    for (int o = 0; o < step->count; o++) {
        tensor[o] = whole_tensor(r, step->value[o]);
        if (step->chunked)
            tensor[o] = some_rows(r, step->value[o], tensor[o], first, count);
    }
    for (int i = 0; i < kernel->program.graph->parameter_count; i++)
        parameter[i] = r->parameter[kernel->parameter[i]];
    bool apart = pending_is_apart(r->pending, kernel->program.graph, tensor, step->count, 1);
    return kernel_launch(kernel_of(r, index, first), tensor, step->count, parameter, r->stream, apart, error);
}

/* The runs [M/64, N] as rows of the vector's length: a repeated vector has several in each run. */
static coda_status launch_sum(const struct running *r, int index, coda_error *error)
{
    const struct plan_step *step = &r->schedule->plan.step[index];
    coda_tensor tensor[2] = {whole_tensor(r, step->value[0]), whole_tensor(r, step->value[1])};
    int64_t elements = tensor[0].shape[0] * tensor[0].shape[1], columns = tensor[1].shape[0];
    tensor[0].shape[0] = elements / columns;
    tensor[0].shape[1] = tensor[0].stride = columns;
    coda_kernel *kernel = kernel_of(r, index, 0);
    bool apart = pending_is_apart(r->pending, kernel->graph, tensor, 2, 1);
    return kernel_launch(kernel, tensor, 2, NULL, r->stream, apart, error);
}

/* Is the one result that the step gives not wanted? */
static bool is_left_out(const struct running *r, const struct plan_step *step)
{
    const struct memory_plan *plan = &r->schedule->plan;
    for (int o = 0; o < step->count; o++)
        if (step->value[o] < plan->caller_count && plan->value[step->value[o]].optional)
            return !r->operand[step->value[o]].data;
    return false;
}

static coda_status launch_step(const struct running *r, int phases, int index, int64_t first, int64_t count,
                               coda_error *error)
{
    const struct plan_step *step = &r->schedule->plan.step[index];
    if (!(phases & (step->backward ? CODA_BACKWARD : CODA_FORWARD)) || is_left_out(r, step))
        return CODA_OK;
    return step->program < 0 ? launch_sum(r, index, error) : launch_program(r, index, first, count, error);
}

/* The steps of a list from `first` on, but for those that are left out; *end: the step behind it. */
static coda_status launch_list(const struct running *r, int phases, int first, int *end, coda_error *error)
{
    const struct memory_plan *plan = &r->schedule->plan;
    coda_tensor tensor[3 * MAX_SETS];
    int list = schedule_list_of(r->schedule, first), count = 0;
    for (*end = first; *end < plan->step_count && schedule_list_of(r->schedule, *end) == list; ++*end) {
        const struct plan_step *step = &plan->step[*end];
        if (!(phases & (step->backward ? CODA_BACKWARD : CODA_FORWARD)) || is_left_out(r, step))
            continue;
        for (int o = 0; o < step->count; o++)
            tensor[3 * count + o] = whole_tensor(r, step->value[o]);
        count++;
    }
    coda_kernel *kernel = kernel_of(r, first, 0);
    bool apart = count && pending_is_apart(r->pending, kernel->graph, tensor, 3, count);
    return count ? kernel_launch_sets(kernel, tensor, 3, count, NULL, r->stream, apart, error) : CODA_OK;
}

static coda_status launch_steps(const struct running *r, int phases, coda_error *error)
{
    const struct memory_plan *plan = &r->schedule->plan;
    int64_t rows = plan->row_axis >= 0 ? r->sizes[plan->row_axis] : 1;
    int64_t chunk = plan->row_axis >= 0 ? plan->chunk_rows : 1;
    coda_status status = CODA_OK;
    for (int s = 0; s < plan->chunk_first && status == CODA_OK; s++)
        status = launch_step(r, phases, s, 0, rows, error); /* lists are not made beside chunks */
    for (int64_t first = 0; first < rows && plan->chunk_end > plan->chunk_first; first += chunk)
        for (int s = plan->chunk_first; s < plan->chunk_end && status == CODA_OK; s++)
            status = launch_step(r, phases, s, first, rows - first < chunk ? rows - first : chunk, error);
    for (int s = plan->chunk_end, end; s < plan->step_count && status == CODA_OK; s = end) {
        end = s + 1;
        status = schedule_list_of(r->schedule, s) ? launch_list(r, phases, s, &end, error)
                                                  : launch_step(r, phases, s, 0, rows, error);
    }
    return status;
}

coda_status coda_schedule_launch(const coda_schedule *schedule, int phases, const coda_tensor *operands, int count,
                                 void *saved, void *scratch, const double *parameters, void *stream, coda_error *error)
{
    const struct graph *block = schedule->block;
    coda_tensor operand[MAX_CALLER];
    int64_t sizes[MAX_AXES];
    double defaults[MAX_OPERANDS];
    struct slot_layout layout;
    if (phases < CODA_FORWARD || phases > (CODA_FORWARD | CODA_BACKWARD))
        return fail(error, CODA_INVALID, "%s: phases %d; expected CODA_FORWARD, CODA_BACKWARD or their sum",
                    block->name, phases);
    if ((phases & CODA_BACKWARD) && !schedule->backward)
        return fail(error, CODA_INVALID,
                    "%s: this schedule was made without its backward; set `backward` in its options", block->name);
    if (schedule->together && phases == CODA_BACKWARD)
        return fail(error, CODA_INVALID,
                    "%s: the backward alone; this schedule runs forward and backward in one launch", block->name);
    if (!operands || count != schedule->plan.caller_count)
        return fail(error, CODA_INVALID, "%s: %d operands; expected %d", block->name, operands ? count : 0,
                    schedule->plan.caller_count);
    memcpy(operand, operands, (size_t)count * sizeof *operand);
    coda_status status = schedule_check(schedule, phases, operand, count, sizes, error);
    if (status == CODA_OK)
        status = schedule_layout(schedule, phases, sizes, &layout, error);
    if (status == CODA_OK)
        status = schedule_check_memory(schedule, phases, operand, &layout, saved, scratch, error);
    if (status != CODA_OK)
        return status;
    for (int i = 0; i < block->parameter_count; i++)
        defaults[i] = block->parameter[i].default_value;
    struct pending pending = {0};
    const struct running running = {.pending = &pending,
                                    .schedule = schedule,
                                    .operand = operand,
                                    .sizes = sizes,
                                    .layout = &layout,
                                    .saved = saved,
                                    .scratch = scratch,
                                    .parameter = parameters ? parameters : defaults,
                                    .stream = stream};
    return launch_steps(&running, phases, error);
}
