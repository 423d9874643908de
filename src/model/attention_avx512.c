/* Attention, 16 floats at a time. */
#include "model/attention.h"
#if defined(__x86_64__)
#define LANES_AVX512
#include "model/attention_tiles.h"

const struct attention_code attention_avx512 = {"avx512", forward, backward};
#endif
