/* The f32 microkernel and its packing. */
#ifndef CODA_CPU_MICROKERNEL_H
#define CODA_CPU_MICROKERNEL_H

#include "cpu/instruction_set.h"
#include "cpu/microkernel_packing.h"

INLINE lanes multiply_word(const char *word, lanes column, lanes sum)
{
    float x;
    memcpy(&x, word, sizeof x);
    return lanes_fma(lanes_set(x), column, sum);
}

#include "cpu/microkernel_product.h"

static void multiply_f32(int64_t depth, const void *left, const void *right, float *c, int64_t stride, bool start,
                         const void *next)
{
    multiply_panels(depth, left, packed_steps, right, c, stride, start, next);
}

/* ---------------------------------------------------------------- packing */

/* Packing straight from a type of memory. The last vector of a wide step may read up to ROOM elements of its row. */
#define PACKERS(type, size)                                                                                            \
    static void pack_wide_##type(void *panel, const void *block, int64_t stride, int width, int64_t depth)             \
    {                                                                                                                  \
        float *to = panel;                                                                                             \
        const char *from = block;                                                                                      \
        for (int64_t k = 0; width > LANES && k < depth; k++)                                                           \
            for (int i = 0; i < width; i += LANES)                                                                     \
                store_step(to + k * width + i, load_##type(from + (k * stride + i) * (size)), width - i,               \
                           k + 1 < depth);                                                                             \
        for (int64_t k = 0; width <= LANES && k < depth; k += SOME_STEPS) {                                            \
            const int count = depth - k < SOME_STEPS ? (int)(depth - k) : SOME_STEPS;                                  \
            lanes step[SOME_STEPS];                                                                                    \
            for (int j = 0; j < count; j++)                                                                            \
                step[j] = load_##type(from + (k + j) * stride * (size));                                               \
            store_steps(to + k * width, step, count, width, k + count < depth);                                        \
        }                                                                                                              \
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
        for (int first = 0; first < width; first += LANES)                                                             \
            for (int64_t k = 0; k < depth; k += LANES) {                                                               \
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
