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
    return (struct variant){.mainloop = MAINLOOP_ELEMENTWISE, .bands = 1, .columns = ACCUMULATOR_COLUMNS};
}

/* ---------------------------------------------------------------- on any GPU */

static int portable_stages(const struct gpu *gpu, const struct plan *plan, struct variant *v)
{
    for (v->stages = 4; v->stages > 1; v->stages--)
        if (variant_shared_bytes(plan, v, 0) <= gpu->shared_bytes)
            break;
    return v->stages;
}

static coda_status portable_variant(const struct gpu *gpu, const coda_kernel *kernel, const struct plan *plan,
                                    struct variant *v, coda_error *error)
{
    int accumulators = plan->accumulator_count == 3 ? 4 : plan->accumulator_count;
    int most = ACCUMULATOR_COLUMNS / accumulators;
    *v = (struct variant){.mainloop = has_matrix_units(plan) ? MAINLOOP_PORTABLE : MAINLOOP_PLAIN};
    if (plan->run_columns > most)
        return fail(
            error, CODA_UNSUPPORTED,
            "%s: runs of %d columns do not fit the %d columns that a tile has beside %d accumulators; use shorter runs "
            "or fewer products",
            plan->graph->name, plan->run_columns, most, plan->accumulator_count);
    v->columns = kernel->options.tile_columns ? kernel->options.tile_columns : most < 128 ? most : 128;
    if (!kernel->options.tile_columns && plan->run_columns > v->columns)
        v->columns = plan->run_columns;
    v->bands = 1;
    if (v->columns * accumulators <= ACCUMULATOR_COLUMNS / 2)
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

/* ---------------------------------------------------------------- all */

coda_status choose_variants(const struct gpu *gpu, const coda_kernel *kernel, const struct plan *plan,
                            struct variant *variant, int *count, coda_error *error)
{
    const char *schedule = kernel->options.schedule;
    *count = 0;
    if (schedule && strcmp(schedule, "direct") && strcmp(schedule, "deferred") && strcmp(schedule, "portable"))
        return fail(error, CODA_INVALID, "schedule \"%.40s\"; expected direct, deferred or portable", schedule);
    if (!plan->accumulator_count) {
        variant[(*count)++] = without_product(plan);
        return CODA_OK;
    }
    if (wants(kernel, "direct") || wants(kernel, "deferred"))
        return fail(error, CODA_UNSUPPORTED, "%s: the schedule \"%s\" needs Hopper's mainloop", plan->graph->name,
                    schedule);
    coda_status status = portable_variant(gpu, kernel, plan, &variant[*count], error);
    if (status == CODA_OK)
        (*count)++;
    return status;
}
