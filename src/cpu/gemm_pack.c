/* Packing the operands of products. Tasks follow the rows as they are stored, so that memory is read in long runs: of
 * an operand whose rows run along K, a panel for all of the range; of another, a few rows for many tiles. */
#include "cpu/cpu.h"
#include "runtime/counts.h"

enum { WIDE_TILES = 8 }; /* tiles that one task packs */

struct k_block cpu_gemm_block_at(const struct gemm_run *run, int64_t index)
{
    struct k_block block = {0};
    while (block.place + 1 < run->gemm->rank && index >= run->blocks[block.place]) {
        index -= run->blocks[block.place];
        block.place++;
    }
    block.k = index * run->depth;
    return block;
}

const struct product_operands *cpu_gemm_operands_at(const struct gemm_run *run, int accumulator, int place)
{
    const struct product_operands *operands = &run->operands[accumulator][place];
    return operands->depth > 0 ? operands : NULL;
}

char *cpu_gemm_packed(const struct gemm_run *run, int side, int64_t tile, int slot, int64_t block)
{
    const struct side *s = &run->side[side];
    return s->packed + (((tile - s->first) * s->slots + slot) * run->chunk + block - run->first_block) * s->bytes;
}

/* The matrix that slot `slot` of a side packs for a block, and the steps of K that it has there; NULL: none. */
static const struct matrix *matrix_at(const struct gemm_run *run, int side, int slot, struct k_block at, int64_t *depth)
{
    for (int a = 0; a < run->accumulators; a++) {
        const struct product_operands *x = cpu_gemm_operands_at(run, a, at.place);
        int found = side ? a : run->gemm->product[a][at.place].slot;
        if (!x || found != slot || at.k >= x->depth)
            continue;
        *depth = minimum(run->depth, x->depth - at.k);
        return side ? &x->right : &x->left;
    }
    return NULL;
}

static int64_t panel_bytes(const struct gemm_run *run, int side, int64_t depth)
{
    return ceiling(depth, run->micro->depth) * run->micro->depth * run->side[side].width *
           (int64_t)coda_dtype_size(run->micro->packed);
}

/* ---------------------------------------------------------------- tasks of one side */

static int64_t panels_of_tile(const struct side *s)
{
    return ceiling(s->tile, s->width);
}

static int64_t deep_tasks(const struct gemm_run *run, int side)
{
    const struct side *s = &run->side[side];
    return run->pack[side] ? s->count * s->slots * panels_of_tile(s) : 0;
}

static int64_t wide_tasks(const struct gemm_run *run, int side)
{
    const struct side *s = &run->side[side];
    return run->pack[side]
               ? ceiling(s->count, WIDE_TILES) * s->slots * run->block_count * ceiling(run->depth, WIDE_STEPS)
               : 0;
}

void cpu_gemm_pack_panel(const struct gemm_run *run, const struct matrix *matrix, int64_t first, int64_t count,
                         int64_t k, int64_t depth, const struct worker_memory *memory)
{
    const struct packer packer = {run->micro, run->isa, 1, run->side[1].width, memory->scratch};
    cpu_matrix_pack_deep(matrix, &packer, first, minimum(run->side[1].width, count), k, depth, (char *)memory->panel);
}

/* One panel, all blocks of K. */
static void pack_deep(const struct gemm_run *run, const struct packer *packer, int64_t task)
{
    const int side = packer->side;
    const struct side *s = &run->side[side];
    const int64_t panel = task % panels_of_tile(s), tile = s->first + task / panels_of_tile(s) / s->slots;
    const int slot = (int)(task / panels_of_tile(s) % s->slots);
    const int64_t first = tile * s->tile + panel * s->width, end = minimum(s->lines, (tile + 1) * s->tile);
    for (int64_t block = run->first_block; first < end && block < run->first_block + run->block_count; block++) {
        struct k_block at = cpu_gemm_block_at(run, block);
        int64_t depth;
        const struct matrix *matrix = matrix_at(run, side, slot, at, &depth);
        if (matrix && matrix->deep && !(matrix->in_place && end - first >= s->width))
            cpu_matrix_pack_deep(matrix, packer, first, minimum(s->width, end - first), at.k, depth,
                                 cpu_gemm_packed(run, side, tile, slot, block) + panel * panel_bytes(run, side, depth));
    }
}

/* A few steps of K, several tiles. */
static void pack_wide(const struct gemm_run *run, const struct packer *packer, int64_t task)
{
    const int side = packer->side;
    const struct side *s = &run->side[side];
    const int64_t groups = ceiling(run->depth, WIDE_STEPS), done = task % groups * WIDE_STEPS;
    const int64_t block = run->first_block + task / groups % run->block_count;
    const int slot = (int)(task / groups / run->block_count % s->slots);
    const int64_t tiles = task / groups / run->block_count / s->slots * WIDE_TILES;
    const struct k_block at = cpu_gemm_block_at(run, block);
    int64_t depth;
    const struct matrix *matrix = matrix_at(run, side, slot, at, &depth);
    if (!matrix || matrix->deep || done >= depth)
        return;
    for (int64_t i = tiles; i < minimum(tiles + WIDE_TILES, s->count); i++) {
        const int64_t tile = s->first + i, first = tile * s->tile;
        const int64_t offset = done * s->width * (int64_t)coda_dtype_size(run->micro->packed);
        cpu_matrix_pack_wide(matrix, packer, first, minimum(s->tile, s->lines - first), at.k + done,
                             minimum(WIDE_STEPS, depth - done), cpu_gemm_packed(run, side, tile, slot, block) + offset,
                             panel_bytes(run, side, depth));
    }
}

static void pack_task(struct tasks *tasks, int worker, int64_t task)
{
    const struct gemm_run *run = (const struct gemm_run *)tasks;
    float *scratch = cpu_worker_memory(run->kernel, run->space, worker).scratch;
    for (int side = 0; side < 2; side++) {
        const struct packer packer = {run->micro, run->isa, side, run->side[side].width, scratch};
        if (task < deep_tasks(run, side)) {
            pack_deep(run, &packer, task);
            return;
        }
        task -= deep_tasks(run, side);
        if (task < wide_tasks(run, side)) {
            pack_wide(run, &packer, task);
            return;
        }
        task -= wide_tasks(run, side);
    }
}

void cpu_gemm_pack(struct gemm_run *run, coda_device *device, bool left, bool right)
{
    run->pack[0] = left;
    run->pack[1] = right;
    run->tasks = (struct tasks){.run = pack_task};
    for (int side = 0; side < 2; side++)
        run->tasks.count += deep_tasks(run, side) + wide_tasks(run, side);
    cpu_run_tasks(device, &run->tasks);
}
