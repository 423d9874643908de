/* The attention of src/model on tiles in software. */
#include "tiles.h"

#include "../../src/model/attention_amx.c"
