/* Attention with AVX2. */
#include "model/attention.h"
#if defined(__x86_64__)
#define LANES 8
#define INSTRUCTIONS_AVX2
#include <math.h>
#include <string.h>
#include "model/instructions.h"
#include "model/attention_tiles.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif

const struct attention_code attention_avx2 = {"avx2", forward, backward};
#endif
