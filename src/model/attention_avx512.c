/* Attention with AVX512. */
#include "model/attention.h"
#if defined(__x86_64__)
#define LANES 16
#define INSTRUCTIONS_AVX512
#include <math.h>
#include <string.h>
#include "model/instructions.h"
#include "model/attention_tiles.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif

const struct attention_code attention_avx512 = {"avx512", forward, backward};
#endif
