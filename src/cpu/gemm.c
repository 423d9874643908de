/* The products of a program. The output is cut into tiles by its shape alone. For a block of tiles both operands are
 * packed, then every tile is multiplied out and, while it is in cache, handed to the tile machine. An element is one
 * chain of multiply-adds in increasing k, whatever the blocks, so results depend neither on them nor on the threads. */
#include "cpu/cpu.h"
#include "runtime/counts.h"

/* ---------------------------------------------------------------- multiplying */

struct block_operands {
    const char *left, *right;
    const char *stored; /* the left rows where they lie, `row` bytes apart; NULL: they are packed */
    int64_t row;
    int64_t depth, rows, columns;
    float *c;
    bool start;
    /* where right panels are packed one at a time: the matrix, its first line and step of K, and memory */
    const struct matrix *matrix;
    int64_t line, k;
    const struct worker_memory *memory;
};

/* Bytes of a line of a panel, `depth` steps of K deep. */
static int64_t packed_depth(const struct gemm_run *run, int64_t depth)
{
    return ceiling(depth, run->micro->depth) * run->micro->depth * (int64_t)coda_dtype_size(run->micro->packed);
}

/* Adds one block of K to the tile of one accumulator, panel by panel: a right panel stays in the first cache while the
 * left ones pass, and each of them brings a part of the next right panel nearer. */
static void multiply_block(const struct gemm_run *run, const struct block_operands *block)
{
    const struct microkernel *micro = run->micro;
    const int64_t depth = ceiling(block->depth, micro->depth) * micro->depth;
    const int64_t step = packed_depth(run, block->depth);
    const int64_t part = step * micro->columns / ceiling(block->rows, micro->rows);
    for (int64_t j = 0; j < block->columns; j += micro->columns) {
        const char *right = block->right + j * step;
        if (run->local) {
            cpu_gemm_pack_panel(run, block->matrix, block->line + j, block->columns - j, block->k, block->depth,
                                block->memory);
            right = (const char *)block->memory->panel;
        }
        const char *next = run->local ? right : right + micro->columns * step;
        for (int64_t i = 0; i < block->rows; i += micro->rows, next += part) {
            float *c = block->c + i * run->stride + j;
            if (block->stored && i + micro->rows <= block->rows)
                micro->run_rows(depth, block->stored + i * block->row, block->row, right, c, run->stride, block->start,
                                next);
            else
                micro->run(depth, block->left + i * step, right, c, run->stride, block->start, next);
        }
    }
}

/* All of K for the columns first .. first+columns-1 of a tile. */
static void multiply_strip(const struct gemm_run *run, int64_t row_tile, int64_t column_tile, int64_t first,
                           struct block_operands *operands, float *accumulators)
{
    for (int64_t block = run->first_block; block < run->first_block + run->block_count; block++) {
        struct k_block at = cpu_gemm_block_at(run, block);
        for (int a = 0; a < run->accumulators; a++) {
            const struct product_operands *x = cpu_gemm_operands_at(run, a, at.place);
            if (!x || at.k >= x->depth)
                continue;
            operands->depth = minimum(run->depth, x->depth - at.k);
            operands->left = cpu_gemm_packed(run, 0, row_tile, run->gemm->product[a][at.place].slot, block);
            operands->row = x->left.part[0].stride;
            operands->stored = NULL;
            if (x->left.in_place)
                operands->stored = x->left.part[0].data + row_tile * run->side[0].tile * operands->row +
                                   at.k * (int64_t)coda_dtype_size(run->micro->packed);
            operands->right =
                cpu_gemm_packed(run, 1, column_tile, a, block) + first * packed_depth(run, operands->depth);
            operands->matrix = &x->right;
            operands->k = at.k;
            operands->c = accumulators + a * run->accumulator_size + first;
            operands->start = block == 0;
            multiply_block(run, operands);
        }
    }
}

/* In strips whose sums stay near while K passes. */
static void multiply_tile(const struct gemm_run *run, int64_t row_tile, int64_t column_tile,
                          const struct worker_memory *memory, float *accumulators)
{
    const struct side *left = &run->side[0], *right = &run->side[1];
    const int64_t rows = minimum(left->lines - row_tile * left->tile, left->tile);
    const int64_t columns = minimum(right->lines - column_tile * right->tile, right->tile);
    for (int64_t first = 0; first < columns; first += run->strip) {
        struct block_operands operands = {.memory = memory,
                                          .line = column_tile * right->tile + first,
                                          .rows = rows,
                                          .columns = minimum(columns - first, run->strip)};
        multiply_strip(run, row_tile, column_tile, first, &operands, accumulators);
    }
}

static void tile_task(struct tasks *tasks, int worker, int64_t task)
{
    const struct gemm_run *run = (struct gemm_run *)tasks;
    const struct side *left = &run->side[0], *right = &run->side[1];
    struct worker_memory memory = cpu_worker_memory(run->kernel, run->space, worker);
    const int64_t row = left->first + task % left->count, column = right->first + task / left->count;
    float *accumulators = memory.accumulators;
    struct frame frame;
    if (run->chunk < run->total_blocks)
        accumulators = run->partial + task * run->accumulators * run->accumulator_size;
    cpu_frame_create(&frame, &run->kernel->binding, memory.frame);
    if (run->micro->begin)
        run->micro->begin();
    multiply_tile(run, row, column, &memory, accumulators);
    if (run->micro->end)
        run->micro->end();
    if (run->first_block + run->block_count == run->total_blocks)
        cpu_frame_run(&frame, PHASE_TILES, row * left->tile, column * right->tile, accumulators);
}

/* ---------------------------------------------------------------- blocks of tiles */

/* With one tile of rows no right panel is used twice: it is packed where it is multiplied, and never leaves the first cache.
 * Others than those whose rows run along K are read in longer runs many tiles at a time. */
static bool packs_locally(const struct gemm_run *run, const struct workspace *space)
{
    const int64_t left = run->side[0].slots * run->side[0].bytes * run->total_blocks;
    bool deep = run->side[0].lines <= run->side[0].tile && left <= space->packed_size;
    for (int a = 0; a < run->accumulators; a++)
        for (int place = 0; place < run->gemm->rank; place++)
            deep = deep && (run->operands[a][place].depth == 0 || run->operands[a][place].right.deep);
    return deep;
}

/* How much of K and how many tiles are packed at a time. Where all of K does not fit for a good many tiles,
 * accumulators wait in memory for the next range. */
static void choose_blocks(struct gemm_run *run, const struct workspace *space)
{
    enum { ENOUGH = 1024 }; /* rows and columns that make packing cheap */
    int64_t row_tiles = ceiling(run->side[0].lines, run->side[0].tile),
            column_tiles = ceiling(run->side[1].lines, run->side[1].tile);
    run->local = packs_locally(run, space);
    if (run->local) {
        run->chunk = run->total_blocks;
        run->side[0].most = 1;
        run->side[1].most = column_tiles;
        return;
    }
    int64_t some_rows = minimum(row_tiles, ceiling(ENOUGH, run->side[0].tile));
    int64_t some_columns = minimum(column_tiles, ceiling(ENOUGH, run->side[1].tile));
    int64_t row_bytes = run->side[0].slots * run->side[0].bytes, column_bytes = run->accumulators * run->side[1].bytes;
    int64_t fit =
        minimum(space->packed_size / (row_bytes * some_rows), space->packed_size / (column_bytes * some_columns));
    run->chunk = maximum(1, minimum(fit, run->total_blocks));
    run->side[0].most = maximum(1, minimum(row_tiles, space->packed_size / (row_bytes * run->chunk)));
    run->side[1].most = maximum(1, minimum(column_tiles, space->packed_size / (column_bytes * run->chunk)));
    int64_t waiting = space->partial_size / (run->accumulators * run->accumulator_size);
    while (run->chunk < run->total_blocks && run->side[0].most * run->side[1].most > waiting) {
        if (run->side[1].most * run->side[1].tile > run->side[0].most * run->side[0].tile && run->side[1].most > 1)
            run->side[1].most = (run->side[1].most + 1) / 2;
        else
            run->side[0].most = (run->side[0].most + 1) / 2;
    }
}

/* Every strip passes the tile's left panels again: where the second cache does not hold these beside its sums, wide strips
 * bring them in less often. */
static void choose_strip(struct gemm_run *run, int64_t level2)
{
    const int64_t left = run->side[0].slots * run->side[0].bytes * run->chunk;
    const int64_t column = run->accumulators * run->side[0].tile * (int64_t)sizeof(float);
    run->strip = 256;
    while (left > level2 / 2 && run->strip < run->side[1].tile && 2 * run->strip * column <= level2 / 2)
        run->strip *= 2;
}

/* Packs what the block of tiles needs and is not packed yet, and multiplies it out. */
static void run_block(struct gemm_run *run, const coda_kernel *kernel, bool new_left, bool new_right)
{
    cpu_gemm_pack(run, kernel->device, new_left, new_right && !run->local);
    run->tasks = (struct tasks){.count = run->side[0].count * run->side[1].count, .run = tile_task};
    cpu_run_tasks(kernel->device, &run->tasks);
}

static void run_blocks(struct gemm_run *run, const coda_kernel *kernel)
{
    const int64_t row_tiles = ceiling(run->side[0].lines, run->side[0].tile);
    const int64_t column_tiles = ceiling(run->side[1].lines, run->side[1].tile);
    const bool whole = run->chunk >= run->total_blocks;
    for (int64_t c = 0; c < column_tiles; c += run->side[1].most)
        for (int64_t r = 0; r < row_tiles; r += run->side[0].most)
            for (int64_t b = 0; b < run->total_blocks; b += run->chunk) {
                run->side[1].first = c;
                run->side[1].count = minimum(run->side[1].most, column_tiles - c);
                run->side[0].first = r;
                run->side[0].count = minimum(run->side[0].most, row_tiles - r);
                run->first_block = b;
                run->block_count = minimum(run->chunk, run->total_blocks - b);
                bool same_rows = whole && c > 0 && run->side[0].most >= row_tiles;
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
            x->left.in_place = cpu_matrix_serves_in_place(&x->left, run->micro, x->depth);
            longest = maximum(longest, x->depth);
        }
    return longest;
}

/* Blocks of equal depth, so that no packed memory is wasted. */
static void divide_depth(struct gemm_run *run, int64_t longest)
{
    const struct gemm_plan *gemm = run->gemm;
    int64_t pieces = ceiling(longest, gemm->depth), multiple = gemm->depth_multiple;
    run->depth = ceiling(ceiling(longest, pieces), multiple) * multiple;
    for (int place = 0; place < gemm->rank; place++) {
        int64_t depth = 0;
        for (int a = 0; a < run->accumulators; a++)
            depth = maximum(depth, run->operands[a][place].depth);
        run->blocks[place] = ceiling(depth, run->depth);
        run->total_blocks += run->blocks[place];
    }
}

void cpu_gemm_launch(const coda_kernel *kernel)
{
    struct cpu_kernel *k = kernel->state;
    struct cpu_state *state = kernel->device->state;
    struct gemm_run *run = &k->run;
    *run = (struct gemm_run){.gemm = &k->gemm, .micro = k->gemm.microkernel, .isa = k->plan.isa, .kernel = k};
    run->side[0].lines = k->binding.launch->size[k->plan.form->row_axis];
    run->side[1].lines = k->binding.launch->size[k->plan.form->column_axis];
    run->side[0].tile = k->plan.tile_rows;
    run->side[1].tile = k->binding.tile_columns;
    run->stride = k->plan.stride;
    run->accumulators = k->plan.form->accumulator_count;
    run->side[0].slots = k->gemm.left_slots;
    run->side[1].slots = run->accumulators;
    run->side[0].width = run->micro->rows;
    run->side[1].width = run->micro->columns;
    run->accumulator_size = k->plan.padded_rows * k->plan.stride;
    divide_depth(run, take_operands(run, k));
    int64_t element = (int64_t)coda_dtype_size(run->micro->packed);
    run->side[0].bytes = k->plan.padded_rows * run->depth * element;
    run->side[1].bytes = ceiling(run->side[1].tile, run->micro->columns) * run->micro->columns * run->depth * element;
    run->space = &state->workspace;
    run->side[0].packed = state->workspace.packed[0];
    run->side[1].packed = state->workspace.packed[1];
    run->partial = state->workspace.partial;
    choose_blocks(run, &state->workspace);
    choose_strip(run, state->machine.level2);
    run_blocks(run, kernel);
}
