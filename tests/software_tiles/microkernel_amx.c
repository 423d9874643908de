/* The products of src/cpu on tiles in software. */
#include "tiles.h"

#include "../../src/cpu/microkernel_amx.c"
