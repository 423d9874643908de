/* A GPU whose kernels run on the host: their CUDA C is translated (translate.py), compiled as C++ and loaded (emulated.h).
 * Needs python3 and a C++ compiler. */
#ifndef CODA_TESTS_EMULATED_GPU_H
#define CODA_TESTS_EMULATED_GPU_H

#include "coda.h"

/* "cuda:sm_90a", "cuda:sm_80". Ends the test where it cannot. */
coda_device *emulated_open(const char *name);

#endif
