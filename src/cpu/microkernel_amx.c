/* Products of bf16 on tile registers: 32 x 32 sums, 32 steps of K at a time. clang 14 spells the macros without their
 * second underscore. */
#if (defined(__AMX_TILE__) || defined(__AMXTILE__)) && (defined(__AMX_BF16__) || defined(__AMXBF16__)) &&              \
    defined(__AVX512BW__)
#define LANES_AVX512
#include "cpu/machine.h"
#include "cpu/pack_pairs.h"
#include "runtime/amx_tiles.h"

enum { TILE_ROWS = 32, TILE_COLUMNS = 32, TILE_STEPS = 32 };

/* Sixteen rows by 32 columns: two sums, and one tile for either operand. A tile in use keeps a register from being renamed,
 * and beside a busy sibling a core has one to spare over eight; unused ones take none (docs/performance.md). */
INLINE void multiply_rows(int64_t steps, const char *a, const char *b, float *c, int64_t bytes, bool start,
                          const char *line)
{
    if (start) {
        TILE_ZERO(0);
        TILE_ZERO(1);
    } else {
        TILE_LOAD(0, c, bytes);
        TILE_LOAD(1, c + 16, bytes);
    }
    for (; steps > 0; steps--, line += 128) {
        TILE_LOAD(2, a, 2 * TILE_STEPS);
        TILE_LOAD(3, b, 4 * TILE_COLUMNS);
        TILE_DOT(0, 2, 3);
        TILE_LOAD(3, b + 64, 4 * TILE_COLUMNS);
        TILE_DOT(1, 2, 3);
        __builtin_prefetch(line, 0, 2);
        __builtin_prefetch(line + 64, 0, 2);
        a += TILE_ROWS * 2 * TILE_STEPS;
        b += TILE_COLUMNS * 2 * TILE_STEPS;
    }
    TILE_STORE(0, c, bytes);
    TILE_STORE(1, c + 16, bytes);
}

static void multiply_tiles(int64_t depth, const void *left, const void *right, float *c, int64_t stride, bool start,
                           const void *next)
{
    const int64_t steps = depth / TILE_STEPS, bytes = stride * (int64_t)sizeof *c;
    for (int half = 0; half < 2; half++)
        multiply_rows(steps, (const char *)left + half * 16 * 2 * TILE_STEPS, right, c + half * 16 * stride, bytes,
                      start, (const char *)next + half * steps * 128);
}

/* ---------------------------------------------------------------- packing of the left side: rows of 32 steps */

static void pack_deep_rows(void *panel, const void *block, int64_t stride, int width, int64_t depth)
{
    const int64_t whole = depth / TILE_STEPS * TILE_STEPS;
    for (int i = 0; i < width; i++) {
        const char *from = (const char *)block + i * stride * 2;
        char *to = (char *)panel + i * TILE_STEPS * 2;
        for (int64_t k = 0; k < whole; k += TILE_STEPS)
            lanes_store(to + k * width * 2, lanes_load(from + k * 2));
        if (whole < depth)
            lanes_store(to + whole * width * 2, load_pairs(from + whole * 2, depth - whole));
    }
}

/* Sixteen lines at a time: 16 pairs of steps of each become one row. */
static void pack_wide_rows(void *panel, const void *block, int64_t stride, int width, int64_t depth)
{
    const char *from = block;
    for (int64_t k = 0; k < depth; k += TILE_STEPS)
        for (int first = 0; first < width; first += LANES) {
            lanes row[LANES];
            for (int j = 0; j < LANES; j++) {
                int64_t step = k + 2 * j;
                row[j] =
                    step < depth ? pair_rows(from + (step * stride + first) * 2, stride, step + 1 < depth) : (lanes){0};
            }
            transpose(row);
            for (int i = 0; i < LANES; i++)
                lanes_store((char *)panel + (k * width + (first + i) * TILE_STEPS) * 2, row[i]);
        }
}

const struct microkernel microkernel_amx = {
    .name = "amx",
    .needs = CPU_AMX_BF16,
    .only_bf16 = true,
    .rows = TILE_ROWS,
    .columns = TILE_COLUMNS,
    .depth = TILE_STEPS,
    .best_depth = 512,
    .tile_rows = 192,
    .tile_columns = 512,
    .packed = CODA_BF16,
    .side = {{.step = TILE_STEPS, .deep = {[CODA_BF16] = pack_deep_rows}, .wide = {[CODA_BF16] = pack_wide_rows}},
             {.step = 2, .deep = {[CODA_BF16] = pack_deep_pairs}, .wide = {[CODA_BF16] = pack_wide_pairs}}},
    .run = multiply_tiles,
    .begin = tiles_begin,
    .end = tiles_end,
};
#else
typedef int no_amx;
#endif
