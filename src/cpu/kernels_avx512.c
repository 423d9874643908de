/* AVX-512 F, BW, VL, DQ: 24 of 32 registers hold the product. */
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define LANES_AVX512
#define MICRO_ROWS       12
#define MICRO_VECTORS    2
#define ISA_NAME         "avx512"
#define ISA_NEEDS        CPU_AVX512
#define ISA_CODE         CODE_AVX512
#define ISA_TABLE        instruction_set_avx512
#define ISA_MICROKERNELS &microkernel_amx, &microkernel_avx512bf16,
#include "cpu/kernels.h"
#else
typedef int no_avx512;
#endif
