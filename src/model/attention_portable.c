/* Attention in plain C, and the choice among the instruction sets. */
#include "model/attention_tiles.h"
#include "model/instruction_sets.h"

static const struct attention_code portable = {"portable", forward, backward};

const struct attention_code *attention_code_choose(void)
{
#if defined(__x86_64__)
    enum instruction_set set = instruction_set_choose();
    if (set != PORTABLE)
        return set == AVX512 ? &attention_avx512 : &attention_avx2;
#endif
    return &portable;
}
