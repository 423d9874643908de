/* Products of bf16 on tile registers: 32 x 32 sums in four tiles, 32 steps of K at a time. clang 14
 * spells the macros without their second underscore. */
#if (defined(__AMX_TILE__) || defined(__AMXTILE__)) && (defined(__AMX_BF16__) || defined(__AMXBF16__)) &&              \
    defined(__AVX512BW__)
#define LANES_AVX512
#include "cpu/machine.h"
#include "cpu/pack_pairs.h"
#include "runtime/amx_tiles.h"

enum { TILE_ROWS = 32, TILE_COLUMNS = 32, TILE_STEPS = 32 };

/* A half of the operands of one step of K. */
#define LEFT(tile, half)  TILE_LOAD(tile, a + (half)*16 * 2 * TILE_STEPS, 2 * TILE_STEPS)
#define RIGHT(tile, half) TILE_LOAD(tile, b + (half)*64, 4 * TILE_COLUMNS)
#define NEXT_STEP(a, b)   (a += TILE_ROWS * 2 * TILE_STEPS, b += TILE_COLUMNS * 2 * TILE_STEPS)

INLINE void fetch_lines(const char *line)
{
    for (int i = 0; i < 8; i++)
        __builtin_prefetch(line + 64 * i, 0, 2);
}

/* Two steps of K at a time. A tile is loaded for the next step after its last product of this one, and the steps take their
 * products in opposite orders, so that those come first whose tiles were free first: beside a busy sibling a core has no
 * tiles to spare, and loads wait for products. */
INLINE void multiply_depth(const char *a, const char *b, int64_t steps, const char *line)
{
    LEFT(4, 0);
    RIGHT(6, 0);
    RIGHT(7, 1);
    LEFT(5, 1);
    for (; steps > 1; steps -= 2, line += 512) {
        TILE_DOT(0, 4, 6);
        TILE_DOT(1, 4, 7);
        NEXT_STEP(a, b);
        LEFT(4, 0);
        TILE_DOT(3, 5, 7);
        RIGHT(7, 1);
        TILE_DOT(2, 5, 6);
        RIGHT(6, 0);
        LEFT(5, 1);
        fetch_lines(line);
        TILE_DOT(1, 4, 7);
        TILE_DOT(0, 4, 6);
        if (steps > 2) {
            NEXT_STEP(a, b);
            LEFT(4, 0);
            TILE_DOT(2, 5, 6);
            RIGHT(6, 0);
            TILE_DOT(3, 5, 7);
            RIGHT(7, 1);
            LEFT(5, 1);
        } else {
            TILE_DOT(2, 5, 6);
            TILE_DOT(3, 5, 7);
        }
    }
    if (steps > 0) {
        TILE_DOT(0, 4, 6);
        TILE_DOT(1, 4, 7);
        TILE_DOT(2, 5, 6);
        TILE_DOT(3, 5, 7);
    }
}

static void multiply_tiles(int64_t depth, const void *left, const void *right, float *c, int64_t stride, bool start,
                           const void *next)
{
    float *low = c + 16 * stride;
    const int64_t bytes = stride * (int64_t)sizeof *c;
    if (start) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    } else {
        TILE_LOAD(0, c, bytes);
        TILE_LOAD(1, c + 16, bytes);
        TILE_LOAD(2, low, bytes);
        TILE_LOAD(3, low + 16, bytes);
    }
    multiply_depth(left, right, depth / TILE_STEPS, next);
    TILE_STORE(0, c, bytes);
    TILE_STORE(1, c + 16, bytes);
    TILE_STORE(2, low, bytes);
    TILE_STORE(3, low + 16, bytes);
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
