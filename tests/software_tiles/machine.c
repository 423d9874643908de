/* A machine that has tiles, in software, where it has the other instruction sets that go with them. */
#define cpu_machine_inspect      inspect_hardware
#define cpu_machine_permit_tiles permit_hardware
#include "../../src/cpu/machine.c"
#undef cpu_machine_inspect
#undef cpu_machine_permit_tiles

#include <stdio.h>
#include <stdlib.h>

void cpu_machine_inspect(struct machine *machine);
bool cpu_machine_permit_tiles(void);

void cpu_machine_inspect(struct machine *machine)
{
    inspect_hardware(machine);
    machine->features |= CPU_AMX_BF16;
}

bool cpu_machine_permit_tiles(void)
{
    return true;
}

/* Before main: tests of other instruction sets have run elsewhere. */
__attribute__((constructor)) static void choose_tiles(void)
{
    struct machine machine;
    inspect_hardware(&machine);
    if (machine.features & CPU_AVX512_BF16) {
        setenv("CODA_TEST_SET", "amx", 1);
        return;
    }
    puts("skipped: tiles in software need AVX-512 with bf16 for the rest");
    exit(0);
}
