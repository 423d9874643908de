/* Rounding to the element types, in double. */
#ifndef KIT_FORMATS_H
#define KIT_FORMATS_H

#include "coda.h"

double format_round(coda_dtype dtype, double x);
/* The largest error that rounding x can make: half the distance between neighbours there. */
double format_half_ulp(coda_dtype dtype, double x);
double format_load(coda_dtype dtype, const void *element);

#endif
