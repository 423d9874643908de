/* Schedules: made, asked, released. */
#include "runtime/schedule.h"
#include "runtime/sizes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rows of chunks: runs of rows end at the first, the tiles of a GPU's products at the second. */
enum { CHUNK_UNIT = 64, TILE_UNIT = 256 };

/* ---------------------------------------------------------------- making */

static coda_status take_options(const coda_schedule_options *from, coda_schedule_options *to, coda_error *error)
{
    *to = (coda_schedule_options){.size = sizeof *to};
    if (!from)
        return CODA_OK;
    if (from->size < sizeof from->size || from->size > 1 << 16)
        return fail(error, CODA_INVALID, "coda_schedule_options.size is %zu; set it to sizeof(coda_schedule_options)",
                    from->size);
    memcpy(to, from, from->size < sizeof *to ? from->size : sizeof *to);
    if (!to->row_axis)
        to->row_axis = "M";
    to->together = to->together || (to->wide_axis && to->backward);
    return CODA_OK;
}

/* Bytes of an element of the widest matrix over both axes; 1: there is none, or runs of one alone. */
static size_t wide_element(const struct unit *unit, const coda_schedule_options *options)
{
    size_t widest = 1;
    for (int p = 0; p < unit->count; p++) {
        const struct graph *graph = unit->graph[p];
        int row = graph_find_axis(graph, options->row_axis), wide = graph_find_axis(graph, options->wide_axis);
        for (int o = 0; o < graph->operand_count && row >= 0 && wide >= 0; o++) {
            const struct shape *shape = &graph->operand[o].shape;
            size_t size = coda_dtype_size(graph->operand[o].dtype);
            bool both = shape->rank == 2 && shape->dim[0].axis == row && shape->dim[1].axis == wide &&
                        shape->dim[1].form == DIM_WHOLE;
            if (both && size > widest)
                widest = size;
        }
    }
    return widest;
}

/* Rows of so many chunks of equal size. */
static int64_t rows_of_chunks(int64_t all, int64_t chunks, int64_t unit)
{
    return ((all + chunks - 1) / chunks + unit - 1) / unit * unit;
}

static int64_t wide_bytes(const coda_schedule_options *options)
{
    return options->wide_bytes ? options->wide_bytes : (int64_t)5 << 28;
}

/* As few chunks as the memory for one matrix allows, of equal size. */
static coda_status choose_chunk(const coda_schedule *schedule, const struct unit *programs,
                                const coda_schedule_options *options, int64_t *rows, coda_error *error)
{
    const struct graph *block = schedule->block;
    if (options->wide_bytes < 0)
        return fail(error, CODA_INVALID, "%s: wide_bytes is %lld; expected a number of bytes, or 0 for 1.25 GiB",
                    block->name, (long long)options->wide_bytes);
    *rows = options->chunk_rows ? options->chunk_rows : CHUNK_UNIT;
    if (!options->wide_axis || options->chunk_rows)
        return CODA_OK;
    int wide = graph_find_axis(block, options->wide_axis), row = graph_find_axis(block, options->row_axis);
    int64_t element = (int64_t)wide_element(programs, options);
    if (wide < 0 || row < 0) /* the plan says so */
        return CODA_OK;
    int64_t columns = schedule->fixed_size[wide], all = schedule->fixed_size[row];
    if (columns < 1)
        return fail(error, CODA_INVALID,
                    "%s: chunks are chosen by the size of axis %s, which is not given; give it, or chunk_rows",
                    block->name, options->wide_axis);
    int64_t most = wide_bytes(options) / element / columns;
    int64_t unit = most >= 8 * TILE_UNIT && (!all || all >= 8 * TILE_UNIT) ? TILE_UNIT : CHUNK_UNIT;
    most = most > INT32_MAX ? INT32_MAX : most;
    most = most < unit ? unit : most / unit * unit;
    *rows = all > 0 ? rows_of_chunks(all, (all + most - 1) / most, unit) : most;
    return CODA_OK;
}

/* Smaller chunks, up to twice as many, where all of the plan's memory then is within the bound; else `rows`. */
static int64_t chunk_within(const coda_schedule *schedule, const struct memory_plan *plan,
                            const coda_schedule_options *options, int64_t rows)
{
    struct memory_plan smaller = *plan;
    int64_t all = schedule->fixed_size[plan->row_axis], chunks = all > 0 ? (all + rows - 1) / rows : 0;
    int64_t unit = rows % TILE_UNIT == 0 && rows >= 8 * TILE_UNIT ? TILE_UNIT : CHUNK_UNIT;
    for (int64_t more = chunks; more > 0 && more <= 2 * chunks; more++) {
        smaller.chunk_rows = more == chunks ? rows : rows_of_chunks(all, more, unit);
        if (schedule_plan_bytes(schedule, &smaller) <= (double)wide_bytes(options))
            return smaller.chunk_rows;
    }
    return rows;
}

/* The plan of memory, in chunks that were chosen for one matrix or for all memory. */
static coda_status plan_memory(coda_schedule *schedule, const struct rewritten *made, struct plan_options *planning,
                               const coda_schedule_options *options, coda_error *error)
{
    struct complaint why = {0};
    coda_status status = choose_chunk(schedule, &made->unit, options, &planning->chunk_rows, error);
    if (status != CODA_OK)
        return status;
    for (int i = 0; i < 2; i++) {
        if (!memory_plan_make(&schedule->plan, &made->unit, made->forward, schedule->block, made->backward, planning,
                              &why))
            return fail_complaint(error, &why);
        int64_t rows = planning->chunk_rows;
        if (i == 0 && options->wide_axis && !options->chunk_rows)
            rows = chunk_within(schedule, &schedule->plan, options, rows);
        if (rows == planning->chunk_rows)
            break;
        planning->chunk_rows = rows;
        memory_plan_free(&schedule->plan);
    }
    return CODA_OK;
}

static coda_status plan(coda_schedule *schedule, const coda_schedule_options *options, coda_error *error)
{
    const coda_rewrite_options rewrite = {.backward = options->backward,
                                          .allow_passes = options->allow_passes,
                                          .save = options->save,
                                          .exponentials = options->exponentials
                                                              ? options->exponentials > 0
                                                              : schedule->device->operations->prefers_exponentials};
    struct plan_options planning = {.together = options->together,
                                    .keep_saved = options->keep_saved,
                                    .consumed = options->consumes,
                                    .wide_axis = options->wide_axis,
                                    .row_axis = options->row_axis};
    struct rewritten made;
    coda_status status = rewrite_apart(schedule->block, &rewrite, &made, NULL, error);
    if (status != CODA_OK)
        return status;
    schedule->unit = made.unit;
    status = plan_memory(schedule, &made, &planning, options, error);
    if (status == CODA_OK)
        status = schedule_join(schedule, &made, &planning, options->join, error);
    graph_free(made.backward);
    return status;
}

/* Rows that every launch of the program has; 0: chunks differ, or the number is not given. */
static int64_t rows_of_program(const coda_schedule *schedule, int program)
{
    const struct memory_plan *plan = &schedule->plan;
    int64_t rows = schedule->fixed_size[plan->row_axis], chunk = plan->chunk_rows;
    for (int s = 0; s < plan->step_count; s++)
        if (plan->step[s].program == program && plan->step[s].chunked)
            return rows <= chunk ? rows : rows % chunk ? 0 : chunk;
    return rows;
}

/* The dims that a program has, so that what was measured for them is found. */
static void dims_of_program(const coda_schedule *schedule, int program, coda_dims *dims)
{
    const struct graph *graph = schedule->unit.graph[program];
    dims->count = 0;
    for (int i = 0; i < graph->axis_count; i++) {
        int axis = graph_find_axis(schedule->block, graph->axis[i].name);
        int64_t size = axis >= 0 && graph->axis[i].term_count == 0 ? schedule->fixed_size[axis] : 0;
        if (size > 0 && axis == schedule->plan.row_axis && !axis_is_fixed(graph, i))
            size = rows_of_program(schedule, program);
        if (size < 1)
            continue;
        dims->item[dims->count].axis = graph->axis[i].name;
        dims->item[dims->count++].size = size;
    }
}

static coda_status make_kernel(const coda_schedule *schedule, int program, const coda_options *options,
                               coda_error *error)
{
    struct schedule_kernel *made = &schedule->kernel[program];
    struct graph *graph = schedule->unit.graph[program];
    coda_dims dims;
    made->program.graph = graph;
    made->parameter = calloc((size_t)graph->parameter_count + 1, sizeof *made->parameter);
    if (!made->parameter)
        return fail_memory(error, "a kernel's parameters", (size_t)graph->parameter_count * sizeof *made->parameter);
    for (int i = 0; i < graph->parameter_count; i++) {
        int found = -1;
        for (int k = 0; k < schedule->block->parameter_count; k++)
            if (!strcmp(schedule->block->parameter[k].name, graph->parameter[i].name))
                found = k;
        if (found < 0)
            return fail(error, CODA_UNSUPPORTED, "%s has the parameter %s, which the block has not", graph->name,
                        graph->parameter[i].name);
        made->parameter[i] = found;
    }
    dims_of_program(schedule, program, &dims);
    coda_status status = CODA_OK;
    bool again = false; /* for later rows, which add */
    for (int s = 0; s < schedule->plan.step_count && status == CODA_OK && schedule->overwrite; s++)
        if (schedule->plan.step[s].program == program) {
            status = step_written(schedule, s, graph, &made->written, error);
            again = schedule->plan.step[s].chunked;
        }
    const coda_program writing = {made->written};
    if (made->written && !again)
        made->program = writing;
    else if (status == CODA_OK && made->written)
        status = coda_kernel_create(schedule->device, &writing, &dims, options, &made->writes, error);
    if (status == CODA_OK && !schedule->list_of[program]) /* else the list's kernel runs it */
        status = coda_kernel_create(schedule->device, &made->program, &dims, options, &made->kernel, error);
    return status;
}

/* A step that sums runs of a vector's gradient; -1: none does. */
static int find_sum(const coda_schedule *schedule)
{
    for (int s = 0; s < schedule->plan.step_count; s++)
        if (schedule->plan.step[s].program < 0)
            return s;
    return -1;
}

/* The kernels of a schedule, compiled side by side: a cold GPU kernel takes seconds. */
struct making {
    coda_schedule *schedule;
    const coda_options *options;
    coda_status *status; /* one a kernel */
    coda_error *error;
};

static void make_one(void *context, int64_t index)
{
    const struct making *m = context;
    int kernel = (int)index, list = kernel - m->schedule->unit.count;
    m->status[index] = list < 0 ? make_kernel(m->schedule, kernel, m->options, &m->error[index])
                                : schedule_make_list(m->schedule, list, m->options, &m->error[index]);
}

static coda_status make_all(coda_schedule *schedule, int count, const coda_options *options, coda_error *error)
{
    struct making m = {schedule, options, calloc((size_t)count + 1, sizeof *m.status),
                       calloc((size_t)count + 1, sizeof *m.error)};
    coda_status status = CODA_OK;
    if (m.status && m.error)
        coda_parallel_for(schedule->device, count, make_one, &m);
    else
        status = fail_memory(error, "the kernels of a schedule", (size_t)count * sizeof *m.error);
    for (int i = 0; i < count && status == CODA_OK; i++) {
        status = m.status[i];
        if (status != CODA_OK && error)
            *error = m.error[i];
    }
    free(m.status);
    free(m.error);
    return status;
}

static coda_status make_kernels(coda_schedule *schedule, const coda_options *options, coda_error *error)
{
    const coda_module *standard;
    int count = schedule->unit.count;
    coda_status status = CODA_OK;
    schedule->kernel = calloc((size_t)count + 1, sizeof *schedule->kernel);
    if (!schedule->kernel)
        return fail_memory(error, "the kernels of a schedule", (size_t)count * sizeof *schedule->kernel);
    status = make_all(schedule, count + schedule->list_count, options, error);
    int sum_step = find_sum(schedule);
    if (status != CODA_OK || sum_step < 0)
        return status;
    status = coda_standard_module(&standard, error);
    if (status != CODA_OK)
        return status;
    const coda_program *sum = coda_module_find(standard, "column_sum");
    if (!sum)
        return fail(error, CODA_UNSUPPORTED, "the library was built without the program column_sum");
    struct schedule_kernel *made = &schedule->kernel[count];
    made->program.graph = sum->graph;
    status = coda_kernel_create(schedule->device, sum, NULL, NULL, &made->kernel, error);
    if (status == CODA_OK && schedule->overwrite)
        status = step_written(schedule, sum_step, sum->graph, &made->written, error);
    const coda_program writing = {made->written};
    if (status == CODA_OK && made->written)
        status = coda_kernel_create(schedule->device, &writing, NULL, NULL, &made->writes, error);
    return status;
}

/* What the gradient `name` belongs to: an `in`, or the parts of a stack. NULL: neither. */
static char *owner_of(const struct graph *block, const char *name)
{
    int in = name[0] == 'd' ? graph_find_operand(block, name + 1) : -1;
    if (in >= 0)
        return strdup(block->operand[in].name);
    for (int n = 0; n < block->node_count && name[0] == 'd'; n++) {
        const struct node *stack = &block->node[n];
        char *names = stack->op == OP_STACK ? calloc(1, MAX_STACK * 256) : NULL;
        size_t length = 0;
        for (int k = 0; names && k < stack->input_count; k++) {
            const struct node *part = &block->node[stack->input[k]];
            length += (size_t)snprintf(names + length, 250, "%s%.200s", k ? "_" : "",
                                       part->op == OP_IN ? block->operand[part->index].name : "?");
        }
        bool found = names && !strcmp(names, name + 1);
        length = 0;
        for (int k = 0; found && k < stack->input_count; k++)
            length += (size_t)snprintf(names + length, 250, "%s%.200s", k ? "," : "",
                                       block->operand[block->node[stack->input[k]].index].name);
        if (found)
            return names;
        free(names);
    }
    return NULL;
}

static coda_status name_owners(coda_schedule *schedule, coda_error *error)
{
    int count = schedule->plan.caller_count;
    schedule->of = calloc((size_t)count + 1, sizeof *schedule->of);
    if (!schedule->of)
        return fail_memory(error, "the names of gradients", (size_t)count * sizeof *schedule->of);
    for (int v = schedule->block->operand_count; v < count; v++)
        schedule->of[v] = owner_of(schedule->block, schedule->plan.value[v].name);
    return CODA_OK;
}

coda_status coda_schedule_create(coda_device *device, const coda_program *block, const coda_dims *dims,
                                 const coda_schedule_options *options, coda_schedule **schedule, coda_error *error)
{
    coda_schedule_options taken;
    if (!device || !block || !schedule)
        return fail(error, CODA_INVALID, "coda_schedule_create needs a device, a block and a place for the schedule");
    coda_status status = take_options(options, &taken, error);
    if (status != CODA_OK)
        return status;
    coda_schedule *made = calloc(1, sizeof *made);
    if (!made)
        return fail_memory(error, "a schedule", sizeof *made);
    made->device = device;
    made->together = taken.together;
    made->backward = taken.backward;
    made->overwrite = taken.overwrite;
    made->block = graph_copy(block->graph);
    status = made->block ? CODA_OK : fail_memory(error, "a copy of the block", sizeof *made->block);
    if (status == CODA_OK)
        status = sizes_from_dims(made->block, dims, made->fixed_size, error);
    if (status == CODA_OK)
        status = plan(made, &taken, error);
    if (status == CODA_OK && made->plan.caller_count > MAX_CALLER)
        status = fail(error, CODA_UNSUPPORTED, "%s: %d operands and gradients; expected at most %d", made->block->name,
                      made->plan.caller_count, MAX_CALLER);
    if (status == CODA_OK)
        status = make_kernels(made, taken.kernels, error);
    if (status == CODA_OK)
        status = name_owners(made, error);
    if (status != CODA_OK) {
        coda_schedule_free(made);
        return status;
    }
    *schedule = made;
    return CODA_OK;
}

void coda_schedule_free(coda_schedule *schedule)
{
    if (!schedule)
        return;
    for (int i = 0; schedule->kernel && i <= schedule->unit.count; i++) {
        coda_kernel_free(schedule->kernel[i].kernel);
        coda_kernel_free(schedule->kernel[i].writes);
        graph_free(schedule->kernel[i].written);
        free(schedule->kernel[i].parameter);
    }
    for (int v = 0; schedule->of && v < schedule->plan.caller_count; v++)
        free(schedule->of[v]);
    for (int i = 0; i < schedule->list_count; i++) {
        coda_kernel_free(schedule->list[i].kernel);
        coda_module_free(schedule->list[i].module);
    }
    free(schedule->of);
    free(schedule->kernel);
    free(schedule->list);
    free(schedule->list_of);
    memory_plan_free(&schedule->plan);
    unit_free(&schedule->unit);
    graph_free(schedule->block);
    free(schedule);
}

/* ---------------------------------------------------------------- asking */

int coda_schedule_value_count(const coda_schedule *schedule)
{
    return schedule->plan.value_count;
}

int coda_schedule_operand_count(const coda_schedule *schedule)
{
    return schedule->plan.caller_count;
}

coda_status coda_schedule_value(const coda_schedule *schedule, int index, coda_value *value)
{
    static const coda_value_kind kinds[] = {[PLAN_INPUT] = CODA_INPUT,
                                            [PLAN_RESULT] = CODA_RESULT,
                                            [PLAN_SAVED] = CODA_SAVED,
                                            [PLAN_SCRATCH] = CODA_SCRATCH};
    if (index < 0 || index >= schedule->plan.value_count)
        return CODA_INVALID;
    const struct plan_value *v = &schedule->plan.value[index];
    *value = (coda_value){.name = v->name,
                          .kind = kinds[v->kind],
                          .dtype = v->dtype,
                          .rank = v->shape.rank,
                          .phases = (v->used[0] ? CODA_FORWARD : 0) | (v->used[1] ? CODA_BACKWARD : 0),
                          .accumulated = v->accumulated && !schedule->overwrite,
                          .optional = v->optional,
                          .of = index < schedule->plan.caller_count ? schedule->of[index] : NULL};
    for (int i = 0; i < v->shape.rank; i++)
        dim_print(schedule->block, &v->shape.dim[i], value->dim[i], sizeof value->dim[i]);
    return CODA_OK;
}

int coda_schedule_find(const coda_schedule *schedule, const char *name)
{
    return name ? memory_plan_find(&schedule->plan, name) : -1;
}

const char *coda_schedule_parameter(const coda_schedule *schedule, int index, double *default_value)
{
    const coda_program block = {schedule->block};
    return coda_program_parameter(&block, index, default_value);
}

int coda_schedule_step_count(const coda_schedule *schedule)
{
    return schedule->plan.step_count;
}

int64_t coda_schedule_chunk_rows(const coda_schedule *schedule)
{
    return schedule->plan.chunk_end > schedule->plan.chunk_first ? schedule->plan.chunk_rows : 0;
}

coda_status coda_schedule_step(const coda_schedule *schedule, int index, coda_step *step)
{
    if (index < 0 || index >= schedule->plan.step_count)
        return CODA_INVALID;
    const struct plan_step *s = &schedule->plan.step[index];
    const struct schedule_kernel *kernel = &schedule->kernel[s->program >= 0 ? s->program : schedule->unit.count];
    int list = schedule_list_of(schedule, index);
    *step = (coda_step){.program = &kernel->program,
                        .kernel = list ? schedule->list[list - 1].kernel : kernel->kernel,
                        .phase = s->backward ? CODA_BACKWARD : CODA_FORWARD,
                        .chunked = s->chunked,
                        .value = s->value,
                        .list = list};
    return CODA_OK;
}

double coda_schedule_bytes_moved(const coda_schedule *schedule)
{
    double bytes = 0;
    for (int i = 0; i <= schedule->unit.count; i++)
        if (schedule->kernel[i].kernel)
            bytes += coda_kernel_bytes_moved(schedule->kernel[i].kernel);
    for (int i = 0; i <= schedule->unit.count; i++)
        if (schedule->kernel[i].writes)
            bytes += coda_kernel_bytes_moved(schedule->kernel[i].writes);
    for (int i = 0; i < schedule->list_count; i++)
        bytes += coda_kernel_bytes_moved(schedule->list[i].kernel);
    return bytes;
}
