/* AVX2 with FMA and F16C: 12 of 16 registers hold the product. */
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define LANES_AVX2
#define MICRO_ROWS    6
#define MICRO_VECTORS 2
#define ISA_NAME      "avx2"
#define ISA_NEEDS     CPU_AVX2
#define ISA_CODE      CODE_AVX2
#define ISA_TABLE     instruction_set_avx2
#define ISA_MICROKERNELS
#include "cpu/kernels.h"
#else
typedef int no_avx2;
#endif
