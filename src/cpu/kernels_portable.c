/* Plain C, four lanes. */
#define MICRO_ROWS    4
#define MICRO_VECTORS 2
#define ISA_NAME      "portable"
#define ISA_NEEDS     0
#define ISA_CODE      NO_MACHINE_CODE
#define ISA_TABLE     instruction_set_portable
#define ISA_MICROKERNELS
#include "cpu/kernels.h"
