#include "model/instruction_sets.h"
#include <stdlib.h>
#include <string.h>

enum instruction_set instruction_set_choose(void)
{
#if defined(__x86_64__)
    const char *forced = getenv("CODA_CPU");
    if (forced && strcmp(forced, "portable") == 0)
        return PORTABLE;
    if (!(forced && strcmp(forced, "avx2") == 0) && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return AVX2;
#endif
    return PORTABLE;
}
