/* Which mainloop and tile run a program. */
#include "cuda/kernel.h"

#include <string.h>

/* A tile's accumulators fill at most half of the registers: 256 columns of 64 rows for 128 threads. */
enum { ACCUMULATOR_COLUMNS = 256 };

static bool has_matrix_units(const struct plan *plan)
{
    return plan->uniform && (plan->factor_type == CODA_BF16 || plan->factor_type == CODA_F16);
}

static bool wants(const coda_kernel *kernel, const char *schedule)
{
    return kernel->options.schedule && !strcmp(kernel->options.schedule, schedule);
}

/* ---------------------------------------------------------------- without a product */

static struct variant without_product(const struct plan *plan)
{
    if (plan->form->column_axis < 0)
        return (struct variant){.mainloop = MAINLOOP_ROWS};
    if (plan->form->row_axis < 0)
        return (struct variant){.mainloop = MAINLOOP_COLUMNS};
    /* Runs of rows are finished by a band of 64 of them. Of little to load twice as much is asked for at once. */
    bool light = plan_copy_bytes(plan) <= 64;
    return (struct variant){.mainloop = MAINLOOP_ELEMENTWISE,
                            .bands = 1,
                            .columns = ACCUMULATOR_COLUMNS,
                            .across = plan->over_rows_count ? 1 : 8,
                            .together = light ? 2 : 1,
                            .resident = light ? 4 : 3};
}

/* ---------------------------------------------------------------- on any GPU */

static int portable_stages(const struct gpu *gpu, const struct plan *plan, struct variant *v)
{
    for (v->stages = 4; v->stages > 1; v->stages--)
        if (variant_shared_bytes(plan, v) <= gpu->shared_bytes)
            break;
    return v->stages;
}

static coda_status portable_variant(const struct gpu *gpu, const coda_kernel *kernel, const struct plan *plan,
                                    bool behind, struct variant *v, coda_error *error)
{
    int accumulators = plan->accumulator_count == 3 ? 4 : plan->accumulator_count;
    int most = ACCUMULATOR_COLUMNS / accumulators;
    *v = has_matrix_units(plan) ? (struct variant){.mainloop = MAINLOOP_PORTABLE, .depth = 64}
                                : (struct variant){.mainloop = MAINLOOP_PLAIN, .depth = 16};
    if (plan->run_columns > most)
        return fail(
            error, CODA_UNSUPPORTED,
            "%s: runs of %d columns do not fit the %d columns that a tile has beside %d accumulators; use shorter runs "
            "or fewer products",
            plan->graph->name, plan->run_columns, most, plan->accumulator_count);
    v->columns = kernel->options.tile_columns ? kernel->options.tile_columns : most < 128 ? most : 128;
    if (!kernel->options.tile_columns && plan->run_columns > v->columns)
        v->columns = plan->run_columns;
    /* Behind Hopper's variant it serves the rare operands that the copy engine cannot address: half the text compiles in
     * half the time. */
    v->bands = 1;
    if (v->columns * accumulators <= ACCUMULATOR_COLUMNS / 2 && !behind)
        v->bands = 2;
    if (kernel->options.tile_rows)
        v->bands = kernel->options.tile_rows / BAND_ROWS;
    bool offered = v->columns >= 64 && (v->columns & (v->columns - 1)) == 0 && v->columns % plan->run_columns == 0 &&
                   (v->bands == 1 || v->bands == 2) && v->bands * v->columns * accumulators <= ACCUMULATOR_COLUMNS &&
                   (!kernel->options.tile_rows || v->bands * BAND_ROWS == kernel->options.tile_rows);
    if (!offered)
        return fail(
            error, CODA_UNSUPPORTED,
            "%s: a tile of %d x %d is not offered by the portable schedule; it has 64 or 128 rows, and 64, 128 or 256 "
            "columns that are a multiple of %d, and rows x columns x accumulators up to %d",
            plan->graph->name, kernel->options.tile_rows, kernel->options.tile_columns, plan->run_columns,
            BAND_ROWS * ACCUMULATOR_COLUMNS);
    if (v->mainloop == MAINLOOP_PORTABLE && portable_stages(gpu, plan, v) < 2)
        return fail(error, CODA_UNSUPPORTED, "%s: a tile of %d x %d needs more shared memory than the GPU's %d bytes",
                    plan->graph->name, v->bands * BAND_ROWS, v->columns, gpu->shared_bytes);
    return CODA_OK;
}

/* ---------------------------------------------------------------- on Hopper */

static bool hopper_fits(const struct gpu *gpu, const struct plan *plan)
{
    bool can_map = !gpu->driver.library || gpu->driver.TensorMapEncodeTiled;
    return gpu->capability == 90 && can_map && has_matrix_units(plan) && plan->joint && plan->accumulator_count <= 2;
}

/* Epilogue warps: may each half of a tile have every second group of columns, of two that a head's angles repeat after? Nothing
 * may pass from group to group. */
static bool may_be_spread(const struct plan *plan, const struct variant *v)
{
    bool carried = plan->over_rows_count > 0;
    for (int i = 0; i < plan->reduction_count; i++)
        carried |= plan->reduction[i].carried;
    return plan_angle_period(plan) == 2 && plan->accumulator_count == 1 && !carried && plan_copy_bytes(plan) == 0 &&
           v->columns / 2 % (2 * plan->blocks * BLOCK_COLUMNS) == 0;
}

/* Epilogue warps: what the ring of stages gives up for the rounded tile and for slots of inputs. */
static void share_memory(const struct gpu *gpu, const struct plan *plan, struct variant *v)
{
    /* Half of the rounded tile waits in registers, where runs lie in one half, and wide groups do not need them. */
    if (v->columns / 2 % plan->run_columns == 0 && v->columns >= 64 && plan_loads_ahead(plan))
        v->halves = 2;
    else
        v->stages = 3;
    v->spread = v->halves == 2 && may_be_spread(plan, v);
    if (plan_copy_bytes(plan) == 0)
        return;
    int groups = v->columns / v->halves / (plan->blocks * BLOCK_COLUMNS);
    v->stages = 3;
    for (v->slots = groups < 4 ? groups : 4; v->slots > 1; v->slots /= 2)
        if (variant_shared_bytes(plan, v) <= gpu->shared_bytes)
            break;
}

/* May a last wave of tiles be built of half as wide ones? Where sizes are known, would it be? */
static bool may_be_narrow(const struct gpu *gpu, const coda_kernel *kernel, const struct plan *plan,
                          const struct variant *v)
{
    bool alone = v->problems <= 1; /* a list of problems has a last wave of its own */
    int64_t rows = plan->form->row_axis < 0 ? 1 : kernel->fixed_size[plan->form->row_axis];
    int64_t columns = plan->form->column_axis < 0 ? 1 : kernel->fixed_size[plan->form->column_axis];
    bool halves =
        plan->accumulator_count == 1 && v->columns == ACCUMULATOR_COLUMNS && v->columns / 2 % plan->run_columns == 0;
    /* The direct schedule's parts of runs of rows cover a whole tile; epilogue warps must pass it in halves. */
    halves &= v->mainloop == MAINLOOP_DIRECT ? plan->over_rows_count == 0 : v->halves == 2;
    return halves && (!alone || !rows || !columns || hopper_narrow_tiles(gpu, v, rows, columns) > 0);
}

/* A tile is 128 rows by 256 columns, or 128 where there are few; twins share the columns. */
static bool hopper_tile(const struct gpu *gpu, const coda_kernel *kernel, const struct plan *plan, struct variant *v)
{
    int total = ACCUMULATOR_COLUMNS;
    if (kernel->options.tile_columns)
        total = kernel->options.tile_columns * plan->accumulator_count;
    else if (plan->form->column_axis >= 0 && kernel->fixed_size[plan->form->column_axis] &&
             kernel->fixed_size[plan->form->column_axis] * plan->accumulator_count <= ACCUMULATOR_COLUMNS / 2)
        total = ACCUMULATOR_COLUMNS / 2;
    v->bands = 2;
    v->columns = total / plan->accumulator_count;
    if (plan->run_columns > v->columns && !kernel->options.tile_columns)
        v->columns = ACCUMULATOR_COLUMNS / plan->accumulator_count;
    v->cluster = 2;
    v->depth = 64;
    v->flight = 1;
    v->stages = 4;
    v->halves = 1;
    if (v->mainloop == MAINLOOP_WARPS)
        share_memory(gpu, plan, v);
    else if (v->mainloop == MAINLOOP_COPIED)
        v->halves = 2;
    v->narrow = may_be_narrow(gpu, kernel, plan, v);
    v->box_rows = !plan->right_k_major || plan_is_stacked(plan) || v->narrow
                      ? 64
                      : v->columns * plan->accumulator_count / v->cluster;
    if (v->box_rows > v->columns)
        v->box_rows = v->columns;
    v->map_count = hopper_map_count(plan) + (v->mainloop == MAINLOOP_COPIED);
    int accumulators = v->columns * plan->accumulator_count;
    return (accumulators == 128 || accumulators == 256) && v->columns % plan->run_columns == 0 &&
           (!kernel->options.tile_rows || kernel->options.tile_rows == v->bands * BAND_ROWS) &&
           parameter_layout(plan->graph, v->map_count).total <= 4096 && gpu->shared_bytes > 0;
}

/* The copy engine stores the tile; it needs rows of whole 16 bytes, so others are served by the variant behind. */
static bool copied_variant(const struct gpu *gpu, const coda_kernel *kernel, const struct plan *plan, struct variant *v)
{
    if (!hopper_fits(gpu, plan) || plan->copied_out < 0 || plan->factor_type != CODA_BF16 ||
        (kernel->options.schedule && !wants(kernel, "copied")))
        return false;
    *v = (struct variant){.mainloop = MAINLOOP_COPIED};
    return hopper_tile(gpu, kernel, plan, v) && variant_shared_bytes(plan, v) <= gpu->shared_bytes;
}

/* Epilogue warps where their rounding is no loss and their shared memory suffices; else direct. */
static bool hopper_variant(const struct gpu *gpu, const coda_kernel *kernel, const struct plan *plan, struct variant *v)
{
    if (!hopper_fits(gpu, plan) || wants(kernel, "portable"))
        return false;
    bool exact = plan->exact || kernel->options.exact || plan->factor_type == CODA_F16;
    if (wants(kernel, "copied"))
        return false;
    *v = (struct variant){.mainloop = MAINLOOP_WARPS};
    if (!wants(kernel, "direct") && !exact && !plan_gathers(plan) && hopper_tile(gpu, kernel, plan, v) &&
        plan->over_rows_count <= 8 && variant_shared_bytes(plan, v) <= gpu->shared_bytes)
        return true;
    if (wants(kernel, "warps"))
        return false;
    *v = (struct variant){.mainloop = MAINLOOP_DIRECT};
    return hopper_tile(gpu, kernel, plan, v) && variant_shared_bytes(plan, v) <= gpu->shared_bytes;
}

/* Is the one out the product itself, so that every schedule rounds it alike? */
static bool is_plain_product(const struct plan *plan)
{
    const struct graph *graph = plan->graph;
    int outs = 0, plain = 0;
    for (int i = 0; i < graph->operand_count; i++) {
        const struct operand *operand = &graph->operand[i];
        outs += operand->role != CODA_IN;
        plain += operand->role == CODA_OUT && operand->dtype == CODA_BF16 && graph->node[operand->node].op == OP_GEMM;
    }
    return outs == 1 && plain == 1;
}

bool choose_joined(const struct gpu *gpu, const coda_kernel *kernel, const struct plan *plan,
                   const struct variant *first, struct variant *joined)
{
    if (kernel->options.sets < 2 || kernel->graph->conditional || !is_hopper(first->mainloop) ||
        (first->mainloop == MAINLOOP_WARPS && !is_plain_product(plan)))
        return false;
    *joined = (struct variant){.mainloop = MAINLOOP_DIRECT};
    joined->problems = kernel->options.sets < MAX_PROBLEMS ? kernel->options.sets : MAX_PROBLEMS;
    if (!hopper_tile(gpu, kernel, plan, joined) || variant_shared_bytes(plan, joined) > gpu->shared_bytes)
        return false;
    while (joined->problems > 1 && parameter_bytes(plan->graph, joined) > PARAMETER_BYTES)
        joined->problems--;
    return joined->problems > 1;
}

static coda_status refuse_schedule(const struct gpu *gpu, const coda_kernel *kernel, const struct plan *plan,
                                   coda_error *error)
{
    const char *schedule = kernel->options.schedule, *name = plan->graph->name;
    if (gpu->capability != 90)
        return fail(error, CODA_UNSUPPORTED, "%s: the schedule \"%s\" needs a Hopper GPU (sm_90a); this is %s", name,
                    schedule, gpu->architecture);
    if (!hopper_fits(gpu, plan))
        return fail(
            error, CODA_UNSUPPORTED,
            "%s: the schedule \"%s\" multiplies bf16 or f16 operands of one layout, with at most two accumulators that "
            "share the left operand; use \"portable\"",
            name, schedule);
    if (!wants(kernel, "direct") && (plan->exact || kernel->options.exact || plan->factor_type == CODA_F16))
        return fail(error, CODA_UNSUPPORTED,
                    "%s: the schedule \"%s\" rounds accumulators to bf16, which an f32, i32 or f16 out (or the option "
                    "`exact`) forbids; use \"direct\"",
                    name, schedule);
    if (wants(kernel, "copied") && plan->copied_out < 0)
        return fail(error, CODA_UNSUPPORTED,
                    "%s: the schedule \"copied\" stores one bf16 or f32 out that is a product, or one times a factor a "
                    "row; use "
                    "\"warps\" or \"portable\"",
                    name);
    return fail(error, CODA_UNSUPPORTED,
                "%s: the schedule \"%s\" has tiles of 128 rows, 128 or 256 columns shared by the accumulators "
                "(multiples of the "
                "runs' %d), and %d bytes of shared memory, which do not hold this program; use \"portable\"",
                name, schedule, plan->run_columns, gpu->shared_bytes);
}

/* ---------------------------------------------------------------- all */

coda_status choose_variants(const struct gpu *gpu, const coda_kernel *kernel, const struct plan *plan,
                            struct variant *variant, int *count, coda_error *error)
{
    const char *schedule = kernel->options.schedule;
    *count = 0;
    if (schedule && strcmp(schedule, "direct") && strcmp(schedule, "warps") && strcmp(schedule, "copied") &&
        strcmp(schedule, "portable"))
        return fail(error, CODA_INVALID, "schedule \"%.40s\"; expected copied, direct, warps or portable", schedule);
    if (!plan->accumulator_count) {
        variant[(*count)++] = without_product(plan);
        return CODA_OK;
    }
    if (copied_variant(gpu, kernel, plan, &variant[*count]))
        (*count)++;
    if (hopper_variant(gpu, kernel, plan, &variant[*count]))
        (*count)++;
    if (!*count && schedule && strcmp(schedule, "portable"))
        return refuse_schedule(gpu, kernel, plan, error);
    if (schedule && strcmp(schedule, "portable"))
        return CODA_OK;
    /* Launches whose operands the copy engine cannot address take the second one. */
    coda_error unused = {0};
    coda_status status = portable_variant(gpu, kernel, plan, *count > 0, &variant[*count], *count ? &unused : error);
    if (status == CODA_OK)
        (*count)++;
    return *count ? CODA_OK : status;
}
