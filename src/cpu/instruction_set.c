/* The instruction sets, best first, and which of them a device uses. */
#include "cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A level may use all features up to its own. */
static const struct level {
    const char *name;
    unsigned features;
    const struct instruction_set *isa;
} levels[] = {
#if defined(__x86_64__) || defined(__i386__)
    {"amx", CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16 | CPU_AMX_BF16, &instruction_set_avx512},
    {"avx512bf16", CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16, &instruction_set_avx512},
    {"avx512", CPU_AVX2 | CPU_AVX512, &instruction_set_avx512},
    {"avx2", CPU_AVX2, &instruction_set_avx2},
#endif
    {"portable", 0, &instruction_set_portable},
};
enum {
    LEVELS = sizeof levels / sizeof *levels,
    PAIRS_AT_MOST = CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16,
};

static coda_status fail_unknown(const struct machine *machine, const char *name, bool exists, coda_error *error)
{
    char list[128] = "";
    for (int i = 0; i < LEVELS; i++)
        if (!(levels[i].features & ~machine->features)) {
            strcat(list, list[0] ? ", " : "");
            strcat(list, levels[i].name);
        }
    return fail(error, exists ? CODA_UNSUPPORTED : CODA_INVALID,
                "CODA_CPU is \"%.40s\", which %s; this machine runs %s. Unset CODA_CPU for the best of them", name,
                exists ? "this machine does not have" : "is no instruction set of this library", list);
}

coda_status cpu_choose_instruction_set(struct cpu_state *state, coda_error *error)
{
    const char *forced = getenv("CODA_CPU");
    bool any = !forced || !*forced, exists = false;
    for (int i = 0; i < LEVELS; i++) {
        bool named = any || !strcmp(forced, levels[i].name);
        exists = exists || (named && !any);
        if (!named || (levels[i].features & ~state->machine.features))
            continue;
        if (any && state->machine.slow_pairs && levels[i].features == PAIRS_AT_MOST)
            continue; /* the next one is faster */
        if ((levels[i].features & CPU_AMX_BF16) && !cpu_machine_permit_tiles())
            continue;
        state->name = levels[i].name;
        state->features = levels[i].features;
        state->isa = levels[i].isa;
        return CODA_OK;
    }
    return fail_unknown(&state->machine, forced, exists, error);
}
