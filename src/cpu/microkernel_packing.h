/* What all packing is made of: stores of narrow steps, and transposition. */
#ifndef CODA_CPU_MICROKERNEL_PACKING_H
#define CODA_CPU_MICROKERNEL_PACKING_H

#include "cpu/convert.h"
#include "cpu/instruction_set.h"
#include "cpu/interleave.h"

/* A vector is stored at the end of a narrower step only where what it spills over is written later, or else in part. */
INLINE void store_step(float *to, lanes x, int count, bool may_spill)
{
    if (count >= LANES || may_spill)
        lanes_store(to, x);
    else
        store_part(to, x, count);
}

/* Rows become columns: log2(LANES) rounds, each of which interleaves row i with row i + LANES / 2. */
INLINE void transpose(lanes row[LANES])
{
    for (int round = 1; round < LANES; round *= 2) {
        float next[LANES * LANES];
#pragma GCC unroll 8
        for (int i = 0; i < LANES / 2; i++)
            store_interleaved(next + 2 * i * LANES, row[i], row[i + LANES / 2]);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            row[i] = lanes_load(next + i * LANES);
    }
}

#endif
