/* The plain operators, 16 floats at a time. */
#include "model/operators.h"
#if defined(__x86_64__)
#define LANES_AVX512
#include "model/operators_lanes.h"

const struct operator_code operators_avx512 = OPERATOR_CODE;
#endif
