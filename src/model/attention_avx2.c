/* Attention, 8 floats at a time. */
#include "model/attention.h"
#if defined(__x86_64__)
#define LANES_AVX2
#include "model/attention_tiles.h"

const struct attention_code attention_avx2 = {"avx2", forward, backward};
#endif
