/* Attention in plain C, and the choice among the instruction sets. */
#define LANES 4
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "model/instructions.h"
#include "model/attention_tiles.h"

static const struct attention_code portable = {"portable", forward, backward};

const struct attention_code *attention_code_choose(void)
{
#if defined(__x86_64__)
    const char *forced = getenv("CODA_CPU");
    bool narrow = forced && strcmp(forced, "portable") == 0;
    bool wide = !narrow && !(forced && strcmp(forced, "avx2") == 0);
    if (wide && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return &attention_avx512;
    if (!narrow && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &attention_avx2;
#endif
    return &portable;
}
