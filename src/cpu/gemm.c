/* The products of a program. The output is cut into tiles by its shape alone. For a block of tiles both operands are
 * packed, then every tile is multiplied out and, while it is in cache, handed to the tile machine. An element is one
 * chain of multiply-adds in increasing k, whatever the blocks, so results depend neither on them nor on the threads. */
#include "cpu/cpu.h"

/* Where in a sum of products a block of K lies. */
struct k_block {
    int place;
    int64_t k;
};

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t count_of(int64_t size, int64_t part)
{
    return (size + part - 1) / part;
}

/* ---------------------------------------------------------------- blocks of K */

/* Block `index` of the sum of products: place in the sum, and range of K. */
static struct k_block block_at(const struct gemm_run *run, int64_t index)
{
    struct k_block block = {0};
    while (block.place + 1 < run->gemm->rank && index >= run->blocks[block.place]) {
        index -= run->blocks[block.place];
        block.place++;
    }
    block.k = index * run->depth;
    return block;
}

static const struct product_operands *operands_at(const struct gemm_run *run, int accumulator, int place)
{
    const struct product_operands *operands = &run->operands[accumulator][place];
    return operands->depth > 0 ? operands : NULL;
}

/* ---------------------------------------------------------------- packing */

static char *packed_left(const struct gemm_run *run, int64_t tile, int slot, int64_t block)
{
    int64_t index = ((tile - run->first_row) * run->gemm->left_slots + slot) * run->chunk + block - run->first_block;
    return run->packed[0] + index * run->left_bytes;
}

static char *packed_right(const struct gemm_run *run, int64_t tile, int accumulator, int64_t block)
{
    int64_t index =
        ((tile - run->first_column) * run->accumulators + accumulator) * run->chunk + block - run->first_block;
    return run->packed[1] + index * run->right_bytes;
}

static void pack_left(const struct gemm_run *run, int64_t task, float *scratch)
{
    int64_t block = run->first_block + task % run->block_count;
    int slot = (int)(task / run->block_count % run->gemm->left_slots);
    int64_t tile = run->first_row + task / run->block_count / run->gemm->left_slots;
    struct k_block at = block_at(run, block);
    for (int a = 0; a < run->accumulators; a++) {
        const struct product_operands *x = operands_at(run, a, at.place);
        if (!x || run->gemm->product[a][at.place].slot != slot || at.k >= x->depth)
            continue;
        int64_t first = tile * run->tile_rows, rows = smaller(run->rows - first, run->tile_rows);
        cpu_matrix_pack(&x->left, run->micro, run->isa, first, rows, run->micro->rows, at.k,
                        smaller(run->depth, x->depth - at.k), packed_left(run, tile, slot, block), scratch);
        return;
    }
}

static void pack_right(const struct gemm_run *run, int64_t task, float *scratch)
{
    int64_t block = run->first_block + task % run->block_count;
    int a = (int)(task / run->block_count % run->accumulators);
    int64_t tile = run->first_column + task / run->block_count / run->accumulators;
    struct k_block at = block_at(run, block);
    const struct product_operands *x = operands_at(run, a, at.place);
    if (!x || at.k >= x->depth)
        return;
    int64_t first = tile * run->tile_columns, columns = smaller(run->columns - first, run->tile_columns);
    cpu_matrix_pack(&x->right, run->micro, run->isa, first, columns, run->micro->columns, at.k,
                    smaller(run->depth, x->depth - at.k), packed_right(run, tile, a, block), scratch);
}

static void pack_task(struct tasks *tasks, int worker, int64_t task)
{
    const struct gemm_run *run = (struct gemm_run *)tasks;
    float *scratch = cpu_worker_memory(run->kernel, run->space, worker).scratch;
    if (task < run->left_tasks)
        pack_left(run, task, scratch);
    else
        pack_right(run, task - run->left_tasks, scratch);
}

/* ---------------------------------------------------------------- multiplying */

/* Adds one block of K to the tile of one accumulator, panel by panel: a right panel stays in the first cache while the
 * left ones pass. */
static void multiply_block(const struct gemm_run *run, const char *left, const char *right, int64_t depth, int64_t rows,
                           int64_t columns, float *c, bool start)
{
    const struct microkernel *micro = run->micro;
    const int64_t size = (int64_t)coda_dtype_size(micro->packed), padded = count_of(depth, micro->depth) * micro->depth;
    for (int64_t j = 0; j < columns; j += micro->columns)
        for (int64_t i = 0; i < rows; i += micro->rows)
            micro->run(padded, left + i * padded * size, right + j * padded * size, c + i * run->stride + j,
                       run->stride, start);
}

static void multiply_tile(const struct gemm_run *run, int64_t row_tile, int64_t column_tile, float *accumulators)
{
    int64_t rows = smaller(run->rows - row_tile * run->tile_rows, run->tile_rows);
    int64_t columns = smaller(run->columns - column_tile * run->tile_columns, run->tile_columns);
    for (int64_t block = run->first_block; block < run->first_block + run->block_count; block++) {
        struct k_block at = block_at(run, block);
        for (int a = 0; a < run->accumulators; a++) {
            const struct product_operands *x = operands_at(run, a, at.place);
            if (!x || at.k >= x->depth)
                continue;
            multiply_block(run, packed_left(run, row_tile, run->gemm->product[a][at.place].slot, block),
                           packed_right(run, column_tile, a, block), smaller(run->depth, x->depth - at.k), rows,
                           columns, accumulators + a * run->accumulator_size, block == 0);
        }
    }
}

static void tile_task(struct tasks *tasks, int worker, int64_t task)
{
    const struct gemm_run *run = (struct gemm_run *)tasks;
    struct worker_memory memory = cpu_worker_memory(run->kernel, run->space, worker);
    int64_t row = run->first_row + task % run->row_count, column = run->first_column + task / run->row_count;
    float *accumulators = memory.accumulators;
    if (run->chunk < run->total_blocks)
        accumulators = run->partial + task * run->accumulators * run->accumulator_size;
    multiply_tile(run, row, column, accumulators);
    if (run->first_block + run->block_count < run->total_blocks)
        return;
    struct frame frame;
    cpu_frame_create(&frame, &run->kernel->binding, memory.frame);
    cpu_frame_run(&frame, PHASE_TILES, row * run->tile_rows, column * run->tile_columns, accumulators);
}

/* ---------------------------------------------------------------- blocks of tiles */

/* How much of K and how many tiles are packed at a time. Where all of K does not fit for a good many tiles,
 * accumulators wait in memory for the next range. */
static void choose_blocks(struct gemm_run *run, const struct workspace *space)
{
    enum { ENOUGH = 1024 }; /* rows and columns that make packing cheap */
    int64_t row_tiles = count_of(run->rows, run->tile_rows), column_tiles = count_of(run->columns, run->tile_columns);
    int64_t some_rows = smaller(row_tiles, count_of(ENOUGH, run->tile_rows));
    int64_t some_columns = smaller(column_tiles, count_of(ENOUGH, run->tile_columns));
    int64_t row_bytes = run->gemm->left_slots * run->left_bytes, column_bytes = run->accumulators * run->right_bytes;
    int64_t fit =
        smaller(space->packed_size / (row_bytes * some_rows), space->packed_size / (column_bytes * some_columns));
    run->chunk = larger(1, smaller(fit, run->total_blocks));
    run->most_rows = larger(1, smaller(row_tiles, space->packed_size / (row_bytes * run->chunk)));
    run->most_columns = larger(1, smaller(column_tiles, space->packed_size / (column_bytes * run->chunk)));
    int64_t waiting = space->partial_size / (run->accumulators * run->accumulator_size);
    while (run->chunk < run->total_blocks && run->most_rows * run->most_columns > waiting) {
        if (run->most_columns * run->tile_columns > run->most_rows * run->tile_rows && run->most_columns > 1)
            run->most_columns = (run->most_columns + 1) / 2;
        else
            run->most_rows = (run->most_rows + 1) / 2;
    }
}

/* Packs what the block of tiles needs and is not packed yet, and multiplies it out. */
static void run_block(struct gemm_run *run, const coda_kernel *kernel, bool new_left, bool new_right)
{
    run->left_tasks = new_left ? run->row_count * run->gemm->left_slots * run->block_count : 0;
    int64_t right_tasks = new_right ? run->column_count * run->accumulators * run->block_count : 0;
    run->tasks = (struct tasks){.count = run->left_tasks + right_tasks, .run = pack_task};
    cpu_run_tasks(kernel->device, &run->tasks);
    run->tasks = (struct tasks){.count = run->row_count * run->column_count, .run = tile_task};
    cpu_run_tasks(kernel->device, &run->tasks);
}

static void run_blocks(struct gemm_run *run, const coda_kernel *kernel)
{
    const int64_t row_tiles = count_of(run->rows, run->tile_rows);
    const int64_t column_tiles = count_of(run->columns, run->tile_columns);
    const bool whole = run->chunk >= run->total_blocks;
    for (int64_t c = 0; c < column_tiles; c += run->most_columns)
        for (int64_t r = 0; r < row_tiles; r += run->most_rows)
            for (int64_t b = 0; b < run->total_blocks; b += run->chunk) {
                run->first_column = c;
                run->column_count = smaller(run->most_columns, column_tiles - c);
                run->first_row = r;
                run->row_count = smaller(run->most_rows, row_tiles - r);
                run->first_block = b;
                run->block_count = smaller(run->chunk, run->total_blocks - b);
                bool same_rows = whole && c > 0 && run->most_rows >= row_tiles;
                run_block(run, kernel, !same_rows, !(whole && r > 0));
            }
}

/* Finds the operands of every product; returns the longest K. */
static int64_t take_operands(struct gemm_run *run, const struct cpu_kernel *k)
{
    const struct launch *launch = k->binding.launch;
    int64_t longest = 0;
    for (int a = 0; a < run->accumulators; a++)
        for (int place = 0; place < k->gemm.rank; place++) {
            const struct gemm_product *product = &k->gemm.product[a][place];
            struct product_operands *x = &run->operands[a][place];
            if (product->left < 0)
                continue;
            cpu_matrix_create(&x->left, k->plan.graph, product->left, false, launch);
            cpu_matrix_create(&x->right, k->plan.graph, product->right, true, launch);
            x->depth = dim_size(&k->plan.graph->node[product->left].shape.dim[1], launch->size);
            longest = larger(longest, x->depth);
        }
    return longest;
}

/* Blocks of equal depth, so that no packed memory is wasted. */
static void divide_depth(struct gemm_run *run, int64_t longest)
{
    const struct gemm_plan *gemm = run->gemm;
    int64_t pieces = count_of(longest, gemm->depth), multiple = gemm->depth_multiple;
    run->depth = count_of(count_of(longest, pieces), multiple) * multiple;
    for (int place = 0; place < gemm->rank; place++) {
        int64_t depth = 0;
        for (int a = 0; a < run->accumulators; a++)
            depth = larger(depth, run->operands[a][place].depth);
        run->blocks[place] = count_of(depth, run->depth);
        run->total_blocks += run->blocks[place];
    }
}

void cpu_gemm_launch(const coda_kernel *kernel)
{
    struct cpu_kernel *k = kernel->state;
    struct cpu_state *state = kernel->device->state;
    struct gemm_run *run = &k->run;
    *run = (struct gemm_run){.gemm = &k->gemm, .micro = k->gemm.microkernel, .isa = k->plan.isa, .kernel = k};
    run->rows = k->binding.launch->size[k->plan.form->row_axis];
    run->columns = k->binding.launch->size[k->plan.form->column_axis];
    run->tile_rows = k->plan.tile_rows;
    run->tile_columns = k->plan.tile_columns;
    run->stride = k->plan.stride;
    run->accumulators = k->plan.form->accumulator_count;
    run->accumulator_size = k->plan.padded_rows * k->plan.stride;
    divide_depth(run, take_operands(run, k));
    int64_t element = (int64_t)coda_dtype_size(run->micro->packed);
    run->left_bytes = k->plan.padded_rows * run->depth * element;
    run->right_bytes = k->gemm.padded_columns * run->depth * element;
    run->space = &state->workspace;
    run->packed[0] = state->workspace.packed[0];
    run->packed[1] = state->workspace.packed[1];
    run->partial = state->workspace.partial;
    choose_blocks(run, &state->workspace);
    run_blocks(run, kernel);
}
