/* What the machine offers: instruction sets that both it and the system's kernel support, and cache sizes. */
#ifndef CODA_CPU_MACHINE_H
#define CODA_CPU_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

enum cpu_feature {
    CPU_AVX2 = 1 << 0,        /* with FMA and F16C */
    CPU_AVX512 = 1 << 1,      /* F, BW, VL, DQ */
    CPU_AVX512_BF16 = 1 << 2, /* with all of CPU_AVX512 */
    CPU_AMX_BF16 = 1 << 3,    /* with all of CPU_AVX512_BF16; permission not asked yet */
};

struct machine {
    unsigned features;
    bool slow_pairs; /* VDPBF16PS takes longer than the multiply-adds that it stands for */
    int cores;
    int64_t level1, level2, level3; /* bytes of the data caches; guessed where the system does not say */
};

void cpu_machine_inspect(struct machine *machine);
/* Asks the system for the tile registers, once for the process and before its threads start; false: refused. */
bool cpu_machine_permit_tiles(void);

#endif
