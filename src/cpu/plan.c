/* From a program to the lists of steps. */
#include "cpu/frame.h"
#include "ir/tile.h"

#include <stdlib.h>
#include <string.h>

static enum phase phase_of(const struct builder *b, const struct operand *out)
{
    if (b->graph->node[out->node].op == OP_PICK)
        return PHASE_TILES;
    switch (b->site[out->node]) {
    case SITE_ROW:
        return PHASE_ROWS;
    case SITE_COLUMN:
        return PHASE_COLUMNS;
    default:
        return PHASE_TILES;
    }
}

/* Is it a reduction of tile values along rows? */
static bool is_row_reduction(const struct builder *b, int n)
{
    const struct node *node = &b->graph->node[n];
    return op_is_reduction(node->op) && b->site[n] == SITE_BAND && reads_as_value(&b->graph->node[n], 0) &&
           b->site[node->input[0]] == SITE_TILE;
}

static void close_needs(struct builder *b, bool only_tile)
{
    for (int n = b->graph->node_count - 1; n >= 0; n--)
        for (int k = 0; b->need[n] && (!only_tile || b->site[n] == SITE_TILE) && k < b->graph->node[n].input_count; k++)
            if (reads_as_value(&b->graph->node[n], k))
                b->need[b->graph->node[n].input[k]] = true;
}

/* Marks what the outs of a phase need. */
static void need_phase(struct builder *b)
{
    memset(b->need, 0, (size_t)b->graph->node_count);
    for (int i = 0; i < b->graph->operand_count; i++) {
        const struct operand *out = &b->graph->operand[i];
        if (out->role != CODA_IN && phase_of(b, out) == b->phase)
            b->need[out->node] = b->plan->phase[b->phase].used = true;
    }
    close_needs(b, false);
}

static coda_status emit_site(struct builder *b, enum site site)
{
    coda_status status = CODA_OK;
    for (int n = 0; n < b->graph->node_count && status == CODA_OK; n++) {
        bool wanted = b->need[n] && b->site[n] == site && b->fused[n] < 0;
        if (site == SITE_BAND)
            wanted = wanted && b->level[n] == b->pass && !is_row_reduction(b, n);
        if (site == SITE_ROW)
            wanted = wanted && b->graph->node[n].op != OP_PICK;
        if (wanted)
            status = cpu_emit_node(b, n);
    }
    return status;
}

static coda_status emit_stores(struct builder *b, enum site site)
{
    coda_status status = CODA_OK;
    for (int i = 0; i < b->graph->operand_count && status == CODA_OK; i++) {
        const struct operand *out = &b->graph->operand[i];
        bool pick = b->graph->node[out->node].op == OP_PICK;
        if (out->role != CODA_IN && phase_of(b, out) == b->phase && (pick ? SITE_TILE : b->site[out->node]) == site)
            status = cpu_emit_store(b, i);
    }
    return status;
}

/* ---------------------------------------------------------------- the tile's passes */

static coda_status count_passes(struct builder *b)
{
    int passes = 1;
    for (int n = 0; n < b->graph->node_count; n++)
        if (b->need[n] && b->site[n] == SITE_BAND && b->level[n] > passes)
            passes = b->level[n];
    for (int i = 0; i < b->graph->operand_count; i++) {
        const struct operand *out = &b->graph->operand[i];
        if (out->role != CODA_IN && phase_of(b, out) == PHASE_TILES && b->site[out->node] != SITE_BAND &&
            b->level[out->node] + 1 > passes)
            passes = b->level[out->node] + 1;
    }
    b->plan->passes = passes;
    if (passes > MAX_PASSES)
        return fail(b->error, CODA_UNSUPPORTED,
                    "%s: reductions over rows follow one another %d times; the CPU device supports %d. Store one of "
                    "them and read it back in a second program",
                    b->graph->name, passes - 1, MAX_PASSES - 1);
    return CODA_OK;
}

/* Marks the tile values of one pass: what its row reductions and, in the last, the outs read. */
static void need_pass(struct builder *b, const bool *phase_need)
{
    memset(b->need, 0, (size_t)b->graph->node_count);
    for (int n = 0; n < b->graph->node_count; n++)
        if (phase_need[n] && is_row_reduction(b, n) && b->level[n] == b->pass + 1)
            b->need[b->graph->node[n].input[0]] = true;
    for (int i = 0; i < b->graph->operand_count && b->pass == b->plan->passes - 1; i++) {
        const struct operand *out = &b->graph->operand[i];
        if (out->role == CODA_IN || phase_of(b, out) != PHASE_TILES || b->site[out->node] == SITE_BAND)
            continue;
        b->need[b->graph->node[out->node].op == OP_PICK ? b->graph->node[out->node].input[0] : out->node] = true;
    }
    close_needs(b, true);
}

static coda_status emit_pass(struct builder *b, const bool *phase_need)
{
    coda_status status = CODA_OK;
    need_pass(b, phase_need);
    b->first_value = b->plan->value_count;
    for (int n = 0; n < b->graph->node_count && status == CODA_OK; n++)
        if (b->need[n] && b->site[n] == SITE_TILE && b->fused[n] < 0)
            status = cpu_emit_node(b, n);
    for (int n = 0; n < b->graph->node_count && status == CODA_OK; n++)
        if (phase_need[n] && is_row_reduction(b, n) && b->level[n] == b->pass + 1)
            status = cpu_emit_row_reduction(b, n);
    if (status == CODA_OK && b->pass == b->plan->passes - 1)
        status = emit_stores(b, SITE_TILE);
    struct step_list *list = &b->plan->phase[PHASE_TILES].list[LIST_TILE + b->pass];
    if (status == CODA_OK)
        status = cpu_plan_compile(b->plan, list, b->error);
    if (status == CODA_OK)
        status = cpu_plan_allocate_registers(b->plan, list, b->error);
    return status;
}

static coda_status emit_tiles(struct builder *b, bool *phase_need)
{
    size_t bytes = (size_t)b->graph->node_count;
    coda_status status = count_passes(b);
    memcpy(phase_need, b->need, bytes);
    b->pass = 0;
    if (status == CODA_OK)
        status = emit_site(b, SITE_ROW);
    if (status == CODA_OK)
        status = emit_site(b, SITE_COLUMN);
    for (b->pass = 0; b->pass <= b->plan->passes && status == CODA_OK; b->pass++) {
        memcpy(b->need, phase_need, bytes);
        status = cpu_emit_finishes(b);
        if (status == CODA_OK)
            status = emit_site(b, SITE_BAND);
        if (status == CODA_OK && b->pass < b->plan->passes)
            status = emit_pass(b, phase_need);
    }
    b->pass = b->plan->passes;
    return status == CODA_OK ? emit_stores(b, SITE_BAND) : status;
}

static coda_status emit_phases(struct builder *b)
{
    coda_status status = CODA_OK;
    bool *phase_need = calloc((size_t)b->graph->node_count + 1, sizeof *phase_need);
    if (!phase_need)
        return fail_memory(b->error, "the steps of a kernel", (size_t)b->graph->node_count);
    for (int p = 0; p < PHASE_COUNT && status == CODA_OK; p++) {
        b->phase = (enum phase)p;
        b->pass = 0;
        b->first_value = b->plan->value_count;
        need_phase(b);
        status = emit_site(b, SITE_UNIFORM);
        if (status != CODA_OK || !b->plan->phase[p].used)
            continue;
        if (p == PHASE_TILES) {
            status = emit_tiles(b, phase_need);
            continue;
        }
        enum site site = p == PHASE_ROWS ? SITE_ROW : SITE_COLUMN;
        status = emit_site(b, site);
        if (status == CODA_OK)
            status = emit_stores(b, site);
    }
    free(phase_need);
    return status;
}

/* ---------------------------------------------------------------- what runs ask of a tile */

static int64_t greatest_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static coda_status take_multiple(struct builder *b, int *multiple, int64_t length, const char *what)
{
    if (length > RUN_LIMIT)
        return fail(b->error, CODA_UNSUPPORTED,
                    "%s: %s of %lld; the CPU device supports them up to %d. Use shorter ones", b->graph->name, what,
                    (long long)length, RUN_LIMIT);
    int64_t least = *multiple / greatest_divisor(*multiple, length) * length;
    if (least > MULTIPLE_LIMIT)
        return fail(
            b->error, CODA_UNSUPPORTED,
            "%s: a tile holds whole runs and heads, and the least common multiple of their lengths is %lld with the "
            "%s of %lld; the CPU device supports up to %d. Use lengths that divide one another",
            b->graph->name, (long long)least, what, (long long)length, MULTIPLE_LIMIT);
    *multiple = (int)least;
    return CODA_OK;
}

static coda_status measure_dim(struct builder *b, const struct dim *dim, bool columns)
{
    struct plan *plan = b->plan;
    if (dim->form != DIM_RUNS && dim->form != DIM_HALVES)
        return CODA_OK;
    int64_t run = extent_size(&dim->run, b->fixed_size);
    if (dim->form == DIM_HALVES)
        run = run > RUN_LIMIT ? run : 2 * run;
    if (columns)
        return take_multiple(b, &plan->column_multiple, run, "runs of columns");
    coda_status status = take_multiple(b, &plan->row_multiple, run, "runs of rows");
    plan->row_gcd = (int)greatest_divisor(plan->row_gcd, run);
    return status;
}

static coda_status measure_node(struct builder *b, int n)
{
    const struct node *node = &b->graph->node[n];
    coda_status status = CODA_OK;
    for (int k = 0; k < node->shape.rank && status == CODA_OK; k++)
        status = measure_dim(b, &node->shape.dim[k], node->shape.dim[k].axis == b->form->column_axis);
    if (status == CODA_OK && node->op == OP_ROPE)
        status = take_multiple(b, &b->plan->column_multiple,
                               dim_size(&b->graph->node[node->input[1]].shape.dim[1], b->fixed_size), "heads");
    if (status == CODA_OK && node->op == OP_JOIN_HALVES)
        status = take_multiple(b, &b->plan->column_multiple, 2 * extent_size(&node->run, b->fixed_size), "halves");
    return status;
}

static coda_status measure_runs(struct builder *b)
{
    b->plan->column_multiple = b->plan->row_multiple = 1;
    coda_status status = CODA_OK;
    for (int n = 0; n < b->graph->node_count && status == CODA_OK; n++)
        if (b->form->used[n] && b->form->space[n] != SPACE_NONE)
            status = measure_node(b, n);
    return status;
}

/* ---------------------------------------------------------------- creation */

static bool builder_create(struct builder *b)
{
    size_t count = (size_t)b->graph->node_count + 1;
    b->site = calloc(count, sizeof *b->site);
    b->level = calloc(count, sizeof *b->level);
    b->guard = calloc(count, sizeof *b->guard);
    b->user_count = calloc(count, sizeof *b->user_count);
    b->fused = calloc(count, sizeof *b->fused);
    b->need = calloc(count, sizeof *b->need);
    b->value = calloc(count, sizeof *b->value);
    b->plan->uniform_slot = malloc(count * sizeof *b->plan->uniform_slot);
    return b->site && b->level && b->guard && b->user_count && b->fused && b->need && b->value && b->plan->uniform_slot;
}

static void builder_release(struct builder *b)
{
    free(b->site);
    free(b->level);
    free(b->guard);
    free(b->user_count);
    free(b->fused);
    free(b->need);
    free(b->value);
}

coda_status cpu_plan_create(struct plan *plan, const coda_kernel *kernel, const struct instruction_set *isa,
                            enum machine_code machine_code, coda_error *error)
{
    struct builder b = {
        .plan = plan, .graph = kernel->graph, .form = &kernel->form, .fixed_size = kernel->fixed_size, .error = error};
    *plan = (struct plan){.graph = kernel->graph,
                          .form = &kernel->form,
                          .isa = isa,
                          .machine_code = kernel->options.schedule ? NO_MACHINE_CODE : machine_code,
                          .passes = 1,
                          .form_count = 1};
    plan->width[0] = (struct width_form){DIM_WHOLE, 0};
    coda_status status = CODA_OK;
    if (!builder_create(&b)) {
        status = fail_memory(error, "the plan of a kernel", (size_t)kernel->graph->node_count * 32);
        goto done;
    }
    for (int n = 0; n < kernel->graph->node_count; n++)
        plan->uniform_slot[n] = -1;
    status = cpu_analyse(&b);
    if (status == CODA_OK)
        status = measure_runs(&b);
    if (status == CODA_OK)
        status = emit_phases(&b);
done:
    builder_release(&b);
    return status;
}

void cpu_plan_release(struct plan *plan)
{
    for (int p = 0; p < PHASE_COUNT; p++)
        for (int l = 0; l < LIST_COUNT; l++) {
            struct step_list *list = &plan->phase[p].list[l];
            for (int i = 0; i < list->count; i++)
                cpu_compiled_free(list->step[i].compiled);
            free(list->step);
        }
    free(plan->value);
    free(plan->guard);
    free(plan->uniform_slot);
    free(plan->listing);
    *plan = (struct plan){0};
}

/* ---------------------------------------------------------------- places */

void cpu_plan_place(struct plan *plan)
{
    int64_t row_stride = (plan->tile_rows + ROOM - 1) / ROOM * ROOM;
    plan->row_count = plan->column_count = 0;
    plan->band_size = 0;
    for (int i = 0; i < plan->value_count; i++) {
        struct value *v = &plan->value[i];
        if (v->storage == IN_ROWS)
            v->offset = plan->row_count++ * row_stride;
        else if (v->storage == IN_COLUMNS)
            v->offset = plan->column_count++ * plan->stride;
        else if (v->storage == IN_REGISTERS)
            v->offset *= plan->block_rows * plan->stride;
        else if (v->storage == IN_ACCUMULATORS)
            v->offset *= plan->padded_rows * plan->stride;
        if (v->storage != IN_BANDS)
            continue;
        v->offset = plan->band_size;
        plan->band_size += (plan->tile_rows + v->row_run - 1) / v->row_run * plan->stride;
    }
}
