#include "cpu/machine.h"

#include <stdbool.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>

/* What the system saves and restores for a thread. */
static uint64_t enabled_state(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool all_of(uint32_t word, uint32_t bits)
{
    return (word & bits) == bits;
}

static unsigned find_features(void)
{
    enum { YMM = 0x6, ZMM = 0xe6, TILES = 0x60000 };
    unsigned a, b, c, d, features = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !all_of(c, bit_OSXSAVE | bit_AVX))
        return 0;
    bool fma = all_of(c, bit_FMA | bit_F16C);
    uint64_t state = enabled_state();
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return 0;
    unsigned amx = 1u << 22 | 1u << 24; /* AMX-BF16, AMX-TILE */
    bool has_amx = all_of(d, amx) && (state & TILES) == TILES;
    if (fma && all_of(b, bit_AVX2) && (state & YMM) == YMM)
        features |= CPU_AVX2;
    if (features && all_of(b, bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ) && (state & ZMM) == ZMM)
        features |= CPU_AVX512;
    if (!(features & CPU_AVX512) || !__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & 1u << 5))
        return features;
    return features | CPU_AVX512_BF16 | (has_amx ? CPU_AMX_BF16 : 0);
}

/* Intel's: a quarter of the rate of VFMADD, for twice the products (docs/performance.md). */
static bool has_slow_pairs(void)
{
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(0, &a, &b, &c, &d) && b == signature_INTEL_ebx && c == signature_INTEL_ecx &&
           d == signature_INTEL_edx;
}
#else
static unsigned find_features(void)
{
    return 0;
}

static bool has_slow_pairs(void)
{
    return false;
}
#endif

bool cpu_machine_permit_tiles(void)
{
#if defined(__x86_64__) && defined(SYS_arch_prctl)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}

static int64_t system_value(int name, int64_t otherwise)
{
    long value = name < 0 ? 0 : sysconf(name);
    return value > 0 ? value : otherwise;
}

void cpu_machine_inspect(struct machine *machine)
{
    int level1 = -1, level2 = -1, level3 = -1;
#ifdef _SC_LEVEL1_DCACHE_SIZE
    level1 = _SC_LEVEL1_DCACHE_SIZE;
    level2 = _SC_LEVEL2_CACHE_SIZE;
    level3 = _SC_LEVEL3_CACHE_SIZE;
#endif
    machine->features = find_features();
    machine->slow_pairs = has_slow_pairs();
    machine->cores = (int)system_value(_SC_NPROCESSORS_ONLN, 1);
    machine->level1 = system_value(level1, 32 << 10);
    machine->level2 = system_value(level2, 512 << 10);
    machine->level3 = system_value(level3, 4 << 20);
}
