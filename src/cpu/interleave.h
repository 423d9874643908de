/* Vectors in parts: even and odd elements, a few elements of memory, transposition. */
#ifndef CODA_CPU_INTERLEAVE_H
#define CODA_CPU_INTERLEAVE_H

#include "runtime/lanes.h"

/* Elements 0, 2, 4, .. and 1, 3, 5, .. of the 2 LANES elements a, b; and back. */
INLINE lanes evens(lanes a, lanes b)
{
#if LANES == 16
    return SHUFFLE(ints, a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
#elif LANES == 8
    return SHUFFLE(ints, a, b, 0, 2, 4, 6, 8, 10, 12, 14);
#else
    return SHUFFLE(ints, a, b, 0, 2, 4, 6);
#endif
}

INLINE lanes odds(lanes a, lanes b)
{
#if LANES == 16
    return SHUFFLE(ints, a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#elif LANES == 8
    return SHUFFLE(ints, a, b, 1, 3, 5, 7, 9, 11, 13, 15);
#else
    return SHUFFLE(ints, a, b, 1, 3, 5, 7);
#endif
}

INLINE void store_interleaved(float *to, lanes even, lanes odd)
{
#if LANES == 16
    lanes low = SHUFFLE(ints, even, odd, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    lanes high = SHUFFLE(ints, even, odd, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif LANES == 8
    lanes low = SHUFFLE(ints, even, odd, 0, 8, 1, 9, 2, 10, 3, 11);
    lanes high = SHUFFLE(ints, even, odd, 4, 12, 5, 13, 6, 14, 7, 15);
#else
    lanes low = SHUFFLE(ints, even, odd, 0, 4, 1, 5);
    lanes high = SHUFFLE(ints, even, odd, 2, 6, 3, 7);
#endif
    lanes_store(to, low);
    lanes_store(to + LANES, high);
}

INLINE lanes load_part(const float *from, int count)
{
    float part[LANES] = {0};
    if (count >= LANES)
        return lanes_load(from);
    memcpy(part, from, (size_t)count * sizeof *part);
    return lanes_load(part);
}

INLINE void store_part(float *to, lanes x, int count)
{
    float part[LANES];
    lanes_store(part, x);
    memcpy(to, part, (size_t)(count < LANES ? count : LANES) * sizeof *part);
}

#endif
