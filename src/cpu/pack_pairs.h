/* Packing of bf16 in pairs of steps of K: a pair is one 32-bit word, so lines of pairs are packed as lines of f32 are. */
#ifndef CODA_CPU_PACK_PAIRS_H
#define CODA_CPU_PACK_PAIRS_H

#include "cpu/microkernel_packing.h"

/* Up to LANES pairs of one row, of which `count` steps are there. */
INLINE lanes load_pairs(const char *from, int64_t count)
{
    char part[4 * LANES] = {0};
    if (count >= 2 * LANES)
        return lanes_load(from);
    memcpy(part, from, (size_t)count * 2);
    return lanes_load(part);
}

static void pack_deep_pairs(void *panel, const void *block, int64_t stride, int width, int64_t depth)
{
    const int64_t pairs = (depth + 1) / 2;
    float *to = panel;
    const char *from = block;
    for (int first = 0; first < width; first += LANES) /* more rows at a time are more than the processor foresees */
        for (int64_t k = 0; k < pairs; k += LANES) {
            int count = pairs - k < LANES ? (int)(pairs - k) : LANES;
            lanes row[LANES];
            if (depth - 2 * k >= 2 * LANES) {
                transpose_memory(from + (first * stride + 2 * k) * 2, 2 * stride, width - first, row);
            } else {
                for (int i = 0; i < LANES; i++)
                    row[i] = first + i < width ? load_pairs(from + ((first + i) * stride + 2 * k) * 2, depth - 2 * k)
                                               : (lanes){0};
                transpose(row);
            }
            if (width <= LANES)
                store_steps(to + k * width, row, count, width, k + count < pairs);
            for (int j = 0; width > LANES && j < count; j++)
                store_step(to + (k + j) * width + first, row[j], width - first, false);
        }
}

/* The pairs of rows `even` and `even + stride`; the second row is zero where there is none. */
INLINE lanes pair_rows(const char *even, int64_t stride, bool both)
{
    words low = widen_halfwords(even);
    return (lanes)(both ? low | widen_halfwords(even + stride * 2) << 16 : low);
}

static void pack_wide_pairs(void *panel, const void *block, int64_t stride, int width, int64_t depth)
{
    const int64_t pairs = (depth + 1) / 2;
    float *to = panel;
    const char *from = block;
    for (int64_t k = 0; width > LANES && k < pairs; k++)
        for (int i = 0; i < width; i += LANES)
            store_step(to + k * width + i, pair_rows(from + (2 * k * stride + i) * 2, stride, 2 * k + 1 < depth),
                       width - i, k + 1 < pairs);
    for (int64_t k = 0; width <= LANES && k < pairs; k += SOME_STEPS) {
        const int count = pairs - k < SOME_STEPS ? (int)(pairs - k) : SOME_STEPS;
        lanes step[SOME_STEPS];
        for (int j = 0; j < count; j++)
            step[j] = pair_rows(from + 2 * (k + j) * stride * 2, stride, 2 * (k + j) + 1 < depth);
        store_steps(to + k * width, step, count, width, k + count < pairs);
    }
}

#endif
