/* The CPU device. */
#include "cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static coda_status cpu_open(coda_device *device, const char *selector, coda_error *error)
{
    if (selector[0])
        return fail(error, CODA_INVALID, "there is one CPU device, `cpu`; `cpu:%.40s` names another", selector);
    struct cpu_state *state = calloc(1, sizeof *state);
    if (!state)
        return fail_memory(error, "the CPU device", sizeof *state);
    cpu_machine_inspect(&state->machine);
    coda_status status = cpu_choose_instruction_set(state, error);
    if (status == CODA_OK && pthread_mutex_init(&state->lock, NULL))
        status = fail(error, CODA_DEVICE, "the system gives no mutex for the CPU device");
    if (status != CODA_OK) {
        free(state);
        return status;
    }
    const struct machine *m = &state->machine;
    const struct microkernel *const *micro = state->isa->microkernels;
    while ((*micro)->needs & ~state->features)
        micro++;
    snprintf(
        device->description, sizeof device->description,
        "instruction set %s, microkernel %s %d x %d\n%d cores online\ncaches: L1 %lld KiB, L2 %lld KiB, L3 %lld KiB",
        state->name, (*micro)->name, (*micro)->rows, (*micro)->columns, m->cores, (long long)m->level1 >> 10,
        (long long)m->level2 >> 10, (long long)m->level3 >> 10);
    device->state = state;
    return CODA_OK;
}

static void cpu_close(coda_device *device)
{
    struct cpu_state *state = device->state;
    cpu_workspace_release(&state->workspace);
    pthread_mutex_destroy(&state->lock);
    free(state);
    device->state = NULL;
}

static void cpu_release(coda_kernel *kernel)
{
    struct cpu_kernel *k = kernel->state;
    if (!k)
        return;
    cpu_plan_release(&k->plan);
    free(k->bound);
    free(k->active);
    free(k->uniform_value);
    free(k->uniforms);
    free(k);
    kernel->state = NULL;
}

/* Memory that binding a launch writes. */
static coda_status allocate_binding(struct cpu_kernel *k, coda_error *error)
{
    size_t steps = 1, nodes = (size_t)k->plan.graph->node_count + 1;
    for (int p = 0; p < PHASE_COUNT; p++)
        for (int l = 0; l < LIST_COUNT; l++)
            steps += (size_t)k->plan.phase[p].list[l].count;
    size_t uniforms = ((size_t)k->plan.uniform_count + 1) * SLOT;
    k->bound = calloc(steps, sizeof *k->bound);
    k->active = calloc((size_t)k->plan.guard_count + 1, sizeof *k->active);
    k->uniform_value = calloc(nodes, sizeof *k->uniform_value);
    k->uniforms = calloc(uniforms, sizeof *k->uniforms);
    if (k->bound && k->active && k->uniform_value && k->uniforms)
        return CODA_OK;
    return fail_memory(error, "a kernel", steps * sizeof *k->bound + nodes * sizeof *k->uniform_value);
}

static coda_status prepare_workspace(struct cpu_kernel *k, struct cpu_state *state, coda_error *error)
{
    int64_t packed_size = 0, partial_size = 0;
    k->frame_floats = cpu_frame_size(&k->plan);
    if (k->gemm.microkernel)
        cpu_gemm_measure(k, state, &packed_size, &partial_size);
    pthread_mutex_lock(&state->lock);
    coda_status status = cpu_workspace_grow(
        &state->workspace, k->frame_floats + k->accumulator_floats + k->scratch_floats + k->panel_floats, packed_size,
        partial_size, error);
    pthread_mutex_unlock(&state->lock);
    return status;
}

static coda_status make_listing(struct cpu_kernel *k, const struct cpu_state *state, coda_error *error)
{
    char head[256];
    const struct microkernel *micro = k->gemm.microkernel;
    int length = snprintf(head, sizeof head, "%s: tile %d x %d, blocks of %d rows, %d registers, instruction set %s",
                          k->plan.graph->name, k->plan.tile_rows, k->plan.tile_columns, k->plan.block_rows,
                          k->plan.register_count, state->name);
    if (micro && length > 0 && length < (int)sizeof head)
        snprintf(head + length, sizeof head - (size_t)length, "\nproducts: microkernel %s %d x %d, blocks of K of %lld",
                 micro->name, micro->rows, micro->columns, (long long)k->gemm.depth);
    k->plan.listing = cpu_plan_listing(&k->plan, head);
    return k->plan.listing ? CODA_OK : fail_memory(error, "the listing of a kernel", 4096);
}

static enum machine_code machine_code_of(const struct cpu_state *state)
{
    return state->features & CPU_AVX512_BF16 ? CODE_AVX512_BF16 : state->isa->machine_code;
}

static coda_status cpu_prepare(coda_kernel *kernel, coda_error *error)
{
    struct cpu_state *state = kernel->device->state;
    const char *schedule = kernel->options.schedule;
    if (schedule && strcmp(schedule, "interpreted") != 0)
        return fail(
            error, CODA_UNSUPPORTED,
            "schedule \"%.40s\"; the CPU device has one that may be asked for, \"interpreted\" (no machine code "
            "is made). Leave it NULL for the device's choice",
            schedule);
    struct cpu_kernel *k = calloc(1, sizeof *k);
    if (!k)
        return fail_memory(error, "a kernel", sizeof *k);
    kernel->state = k;
    coda_status status = cpu_plan_create(&k->plan, kernel, state->isa, machine_code_of(state), error);
    if (status == CODA_OK)
        status = cpu_gemm_prepare(k, state, error);
    if (status == CODA_OK)
        status = cpu_choose_tile(k, state, &kernel->options, error);
    if (status == CODA_OK) {
        cpu_plan_place(&k->plan);
        status = allocate_binding(k, error);
    }
    if (status == CODA_OK)
        status = prepare_workspace(k, state, error);
    if (status == CODA_OK)
        status = make_listing(k, state, error);
    if (status != CODA_OK)
        cpu_release(kernel);
    return status;
}

/* ---------------------------------------------------------------- launches */

/* A phase without products. */
struct pass {
    struct tasks tasks; /* first: tasks find the pass by it */
    const struct cpu_kernel *kernel;
    const struct workspace *space;
    enum phase phase;
    int64_t row_tiles;
};

static void pass_task(struct tasks *tasks, int worker, int64_t task)
{
    const struct pass *pass = (const struct pass *)tasks;
    const struct plan *plan = &pass->kernel->plan;
    struct frame frame;
    cpu_frame_create(&frame, &pass->kernel->binding, cpu_worker_memory(pass->kernel, pass->space, worker).frame);
    cpu_frame_run(&frame, pass->phase, task % pass->row_tiles * plan->tile_rows,
                  task / pass->row_tiles * pass->kernel->binding.tile_columns, NULL);
}

static int64_t tiles_along(const struct launch *launch, int axis, int tile)
{
    return axis < 0 ? 1 : (launch->size[axis] + tile - 1) / tile;
}

static void run_pass(const coda_kernel *kernel, enum phase phase)
{
    const struct cpu_kernel *k = kernel->state;
    const struct cpu_state *state = kernel->device->state;
    struct pass pass = {.kernel = k, .space = &state->workspace, .phase = phase};
    int64_t rows = tiles_along(k->binding.launch, k->plan.form->row_axis, k->plan.tile_rows);
    int64_t columns = tiles_along(k->binding.launch, k->plan.form->column_axis, k->binding.tile_columns);
    rows = phase == PHASE_COLUMNS ? 1 : rows;
    columns = phase == PHASE_ROWS ? 1 : columns;
    pass.row_tiles = rows;
    pass.tasks = (struct tasks){.count = rows * columns, .run = pass_task};
    cpu_run_tasks(kernel->device, &pass.tasks);
}

static coda_status cpu_launch(coda_kernel *kernel, const struct launch *launch, coda_error *error)
{
    struct cpu_kernel *k = kernel->state;
    struct cpu_state *state = kernel->device->state;
    if (!host_wants_launch(kernel->graph, launch))
        return CODA_OK;
    coda_status status = cpu_check_ids(k, launch, error);
    if (status == CODA_OK)
        status = cpu_check_picks(k, launch, error);
    if (status != CODA_OK)
        return status;
    pthread_mutex_lock(&state->lock);
    cpu_bind_launch(k, launch, &state->machine, kernel->device->threads);
    if (k->plan.phase[PHASE_TILES].used && k->gemm.microkernel)
        cpu_gemm_launch(kernel);
    else if (k->plan.phase[PHASE_TILES].used)
        run_pass(kernel, PHASE_TILES);
    if (k->plan.phase[PHASE_ROWS].used)
        run_pass(kernel, PHASE_ROWS);
    if (k->plan.phase[PHASE_COLUMNS].used)
        run_pass(kernel, PHASE_COLUMNS);
    pthread_mutex_unlock(&state->lock);
    return CODA_OK;
}

static const char *cpu_source(const coda_kernel *kernel)
{
    return ((const struct cpu_kernel *)kernel->state)->plan.listing;
}

const struct device_operations cpu_operations = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .prepare = cpu_prepare,
    .launch = cpu_launch,
    .release = cpu_release,
    .source = cpu_source,
    .allocate = host_allocate,
    .release_memory = host_release,
    .copy = host_copy,
    .synchronize = host_synchronize,
    .prefers_exponentials = true,
};
