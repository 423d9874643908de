/* The size of a tile. Results do not depend on it. */
#include "cpu/cpu.h"

static const int row_choices[] = {8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096};
static const int column_choices[] = {32, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096};

static int round_up(int x, int multiple)
{
    return (x + multiple - 1) / multiple * multiple;
}

static coda_status take_choice(const struct plan *plan, const char *what, int wanted, int multiple, const int *choices,
                               int count, coda_error *error)
{
    bool offered = false;
    for (int i = 0; i < count; i++)
        offered = offered || choices[i] == wanted;
    if (!offered)
        return fail(
            error, CODA_UNSUPPORTED,
            "%s: a tile of %d %s; the CPU device offers %d, %d, %d, .. %d (powers of two and three times powers of "
            "two), or 0 for its own choice",
            plan->graph->name, wanted, what, choices[0], choices[1], choices[2], choices[count - 1]);
    if (wanted % multiple)
        return fail(
            error, CODA_UNSUPPORTED,
            "%s: a tile of %d %s is no multiple of %d, which the program's runs and heads need; choose one that "
            "is, or 0 for the device's choice",
            plan->graph->name, wanted, what, multiple);
    return CODA_OK;
}

/* The size near `near` that wastes the fewest rows of the microkernel's panels. */
static int choose_rows(int multiple, int near, int panel)
{
    int best = round_up(near, multiple);
    double least = 1e9;
    for (int rows = multiple; rows <= 2 * near || rows == multiple; rows += multiple) {
        double waste = (double)round_up(rows, panel) / rows;
        double distance = rows < near ? (double)near / rows : (double)rows / near;
        double cost = waste + 0.02 * distance;
        if (cost < least) {
            least = cost;
            best = rows;
        }
    }
    return best;
}

/* Wide tiles let an epilogue read and write long rows, as far as the second cache holds the sums. */
static int choose_columns(const struct plan *plan, const struct microkernel *micro, int rows, int columns,
                          int64_t level2)
{
    const int64_t column_bytes = plan->form->accumulator_count * rows * (int64_t)sizeof(float);
    while (2 * columns <= micro->tile_columns && 2 * columns * column_bytes <= level2)
        columns *= 2;
    return columns;
}

/* Wide tiles may leave threads without work: the columns that take the least time, about. */
int cpu_launch_columns(const struct plan *plan, int64_t rows, int64_t columns, int64_t threads)
{
    const int64_t row_tiles = (rows + plan->tile_rows - 1) / plan->tile_rows;
    int best = plan->least_columns;
    double least = 1e30;
    for (int tile = plan->tile_columns; tile >= plan->least_columns; tile /= 2) {
        const int64_t wide = tile < columns ? tile : columns, tiles = row_tiles * ((columns + tile - 1) / tile);
        const double narrow = 1 + 0.05 * (double)(plan->tile_columns - tile) / tile; /* of a tile's work */
        const double work = (double)((tiles + threads - 1) / threads * wide) * narrow;
        if (work < least) {
            least = work;
            best = tile;
        }
    }
    return best;
}

static coda_status check_area(const struct plan *plan, coda_error *error)
{
    if ((int64_t)plan->tile_rows * plan->tile_columns <= TILE_LIMIT)
        return CODA_OK;
    return fail(error, CODA_UNSUPPORTED,
                "%s: a tile of %d x %d elements; the CPU device holds at most %d. Use shorter runs along one axis",
                plan->graph->name, plan->tile_rows, plan->tile_columns, TILE_LIMIT);
}

/* As many rows as their registers leave in the first cache, dividing every run of rows. */
static int choose_block(const struct plan *plan, int64_t level1)
{
    int64_t room = level1 / (int64_t)sizeof(float);
    int registers = plan->register_count > 1 ? plan->register_count : 1;
    for (int rows = 16; rows > 1; rows /= 2)
        if (plan->row_gcd % rows == 0 && rows * registers * plan->stride <= room)
            return rows;
    return 1;
}

coda_status cpu_choose_tile(struct cpu_kernel *k, const struct cpu_state *state, const coda_options *options,
                            coda_error *error)
{
    struct plan *plan = &k->plan;
    const struct microkernel *micro = k->gemm.microkernel;
    coda_status status = CODA_OK;
    int columns = micro ? 256 : 1024, rows;
    columns = columns < plan->column_multiple ? plan->column_multiple
                                              : columns / plan->column_multiple * plan->column_multiple;
    if (options->tile_columns) {
        columns = options->tile_columns;
        status = take_choice(plan, "columns", columns, plan->column_multiple, column_choices,
                             sizeof column_choices / sizeof *column_choices, error);
    }
    const int near = columns > 1024 ? 48 : micro ? micro->tile_rows : 64;
    rows = micro ? choose_rows(plan->row_multiple, near, micro->rows) : round_up(64, plan->row_multiple);
    if (options->tile_rows && status == CODA_OK) {
        rows = options->tile_rows;
        status = take_choice(plan, "rows", rows, plan->row_multiple, row_choices,
                             sizeof row_choices / sizeof *row_choices, error);
    }
    if (status != CODA_OK)
        return status;
    if ((int64_t)rows * columns > TILE_LIMIT && !options->tile_columns) {
        int fit = TILE_LIMIT / rows / plan->column_multiple * plan->column_multiple;
        columns = fit > 0 ? fit : plan->column_multiple;
    }
    plan->least_columns = columns;
    if (micro && !options->tile_columns)
        columns = choose_columns(plan, micro, rows, columns, state->machine.level2);
    plan->tile_rows = rows;
    plan->tile_columns = columns;
    plan->stride = round_up(columns, ROOM) + ROOM; /* no power of two: rows would share a few lines of a cache */
    plan->padded_rows = micro ? round_up(rows, micro->rows) : rows;
    plan->block_rows = choose_block(plan, state->machine.level1);
    return check_area(plan, error);
}
