/* The plain operators in plain C, and the choice among the instruction sets. */
#include "model/operators.h"
#include "model/instruction_sets.h"
#include "model/operators_lanes.h"

static const struct operator_code portable = OPERATOR_CODE;

const struct operator_code *operator_code_choose(void)
{
#if defined(__x86_64__)
    enum instruction_set set = instruction_set_choose();
    if (set != PORTABLE)
        return set == AVX512 ? &operators_avx512 : &operators_avx2;
#endif
    return &portable;
}
