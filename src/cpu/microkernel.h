/* The f32 microkernel, MICRO_ROWS rows by MICRO_VECTORS vectors of columns, and its packing. */
#ifndef CODA_CPU_MICROKERNEL_H
#define CODA_CPU_MICROKERNEL_H

#include "cpu/instruction_set.h"
#include "cpu/microkernel_packing.h"

enum { MICRO_COLUMNS = MICRO_VECTORS * LANES };

/* After every TURN steps of K a part of the next right panel is fetched, so that all of it is there after 96 rows. */
enum { TURN = 8, FETCHED = MICRO_COLUMNS * (int)sizeof(float) * TURN * MICRO_ROWS / 96 };

INLINE void multiply_steps(const float *a, const float *b, int steps, lanes sum[MICRO_ROWS][MICRO_VECTORS])
{
#pragma GCC unroll 8
    for (int k = 0; k < steps; k++) {
        lanes column[MICRO_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < MICRO_VECTORS; v++)
            column[v] = lanes_load(b + k * MICRO_COLUMNS + v * LANES);
#pragma GCC unroll 16
        for (int i = 0; i < MICRO_ROWS; i++) {
            lanes row = lanes_set(a[k * MICRO_ROWS + i]);
#pragma GCC unroll 4
            for (int v = 0; v < MICRO_VECTORS; v++)
                sum[i][v] = lanes_fma(row, column[v], sum[i][v]);
        }
    }
}

/* The sums start from c, not from zero, so that an element stays one chain over all blocks of K. */
static void multiply_panels(int64_t depth, const void *left, const void *right, float *c, int64_t stride, bool start,
                            const void *next)
{
    const float *a = left, *b = right;
    const char *line = next;
    const float *below = c + MICRO_ROWS * stride, *end = below + MICRO_ROWS * stride;
    lanes sum[MICRO_ROWS][MICRO_VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < MICRO_ROWS; i++)
#pragma GCC unroll 4
        for (int v = 0; v < MICRO_VECTORS; v++)
            sum[i][v] = start ? (lanes){0} : lanes_load(c + i * stride + v * LANES);
    for (; depth >= TURN; depth -= TURN) {
        for (int i = 0; i < FETCHED; i += 64)
            __builtin_prefetch(line + i, 0, 2);
        line += FETCHED;
        for (int v = 0; below < end && v < MICRO_VECTORS; v++) /* the sums that come next */
            __builtin_prefetch(below + v * LANES, 1, 3);
        below += stride;
        multiply_steps(a, b, TURN, sum);
        a += TURN * MICRO_ROWS;
        b += TURN * MICRO_COLUMNS;
    }
    for (; depth > 0; depth--) {
        multiply_steps(a, b, 1, sum);
        a += MICRO_ROWS;
        b += MICRO_COLUMNS;
    }
#pragma GCC unroll 16
    for (int i = 0; i < MICRO_ROWS; i++)
#pragma GCC unroll 4
        for (int v = 0; v < MICRO_VECTORS; v++)
            lanes_store(c + i * stride + v * LANES, sum[i][v]);
}

/* ---------------------------------------------------------------- packing */

/* Packing straight from a type of memory. The last vector of a wide step may read up to ROOM elements of its row. */
#define PACKERS(type, size)                                                                                            \
    static void pack_wide_##type(void *panel, const void *block, int64_t stride, int width, int64_t depth)             \
    {                                                                                                                  \
        float *to = panel;                                                                                             \
        const char *from = block;                                                                                      \
        for (int64_t k = 0; k < depth; k++)                                                                            \
            for (int i = 0; i < width; i += LANES)                                                                     \
                store_step(to + k * width + i, load_##type(from + (k * stride + i) * (size)), width - i,               \
                           k + 1 < depth);                                                                             \
    }                                                                                                                  \
    INLINE lanes load_some_##type(const char *from, int count)                                                         \
    {                                                                                                                  \
        char part[ELEMENT_MAX * LANES] = {0};                                                                          \
        if (count >= LANES)                                                                                            \
            return load_##type(from);                                                                                  \
        memcpy(part, from, (size_t)count *(size));                                                                     \
        return load_##type(part);                                                                                      \
    }                                                                                                                  \
    static void pack_deep_##type(void *panel, const void *block, int64_t stride, int width, int64_t depth)             \
    {                                                                                                                  \
        float *to = panel;                                                                                             \
        const char *from = block;                                                                                      \
        for (int64_t k = 0; k < depth; k += LANES)                                                                     \
            for (int first = 0; first < width; first += LANES) {                                                       \
                int count = depth - k < LANES ? (int)(depth - k) : LANES;                                              \
                lanes row[LANES];                                                                                      \
                if ((size) == sizeof(float) && count == LANES) {                                                       \
                    transpose_memory(from + (first * stride + k) * (size), stride * (size), width - first, row);       \
                } else {                                                                                               \
                    for (int i = 0; i < LANES; i++)                                                                    \
                        row[i] = first + i < width                                                                     \
                                     ? load_some_##type(from + ((first + i) * stride + k) * (size), count)             \
                                     : (lanes){0};                                                                     \
                    transpose(row);                                                                                    \
                }                                                                                                      \
                if (width <= LANES)                                                                                    \
                    store_steps(to + k * width, row, count, width, k + count < depth);                                 \
                for (int j = 0; width > LANES && j < count; j++)                                                       \
                    store_step(to + (k + j) * width + first, row[j], width - first, false);                            \
            }                                                                                                          \
    }
PACKERS(f32, 4)
PACKERS(bf16, 2)
PACKERS(f16, 2)

#endif
