/* The instruction sets, best first, and which of them a device uses. */
#include "cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct instruction_set *const instruction_sets[] = {
#if defined(__x86_64__) || defined(__i386__)
    &instruction_set_avx512,
    &instruction_set_avx2,
#endif
    &instruction_set_portable,
};
enum { SET_COUNT = sizeof instruction_sets / sizeof *instruction_sets };

static coda_status fail_unknown(const struct machine *machine, const char *name, bool exists, coda_error *error)
{
    char list[128] = "";
    for (int i = 0; i < SET_COUNT; i++)
        if (!(instruction_sets[i]->needs & ~machine->features)) {
            strcat(list, list[0] ? ", " : "");
            strcat(list, instruction_sets[i]->name);
        }
    return fail(error, exists ? CODA_UNSUPPORTED : CODA_INVALID,
                "CODA_CPU is \"%.40s\", which %s; this machine runs %s. Unset CODA_CPU for the best of them", name,
                exists ? "this machine does not have" : "is no instruction set of this library", list);
}

coda_status cpu_choose_instruction_set(const struct machine *machine, const struct instruction_set **isa,
                                       coda_error *error)
{
    const char *forced = getenv("CODA_CPU");
    bool exists = false;
    for (int i = 0; i < SET_COUNT; i++) {
        bool possible = !(instruction_sets[i]->needs & ~machine->features);
        bool named = !forced || !*forced || !strcmp(forced, instruction_sets[i]->name);
        exists = exists || (named && forced);
        if (!possible || !named)
            continue;
        *isa = instruction_sets[i];
        return CODA_OK;
    }
    return fail_unknown(machine, forced, exists, error);
}
