/* The plain operators, 8 floats at a time. */
#include "model/operators.h"
#if defined(__x86_64__)
#define LANES_AVX2
#include "model/operators_lanes.h"

const struct operator_code operators_avx2 = OPERATOR_CODE;
#endif
