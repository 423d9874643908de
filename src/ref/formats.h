/* The element types, as numbers in double. */
#ifndef CODA_REF_FORMATS_H
#define CODA_REF_FORMATS_H

#include "coda.h"

/* The nearest value of the type, as coda_convert rounds, but straight from double: never twice. */
double round_to(coda_dtype dtype, double x);

double load_element(coda_dtype dtype, const void *element);
/* Rounds x and writes it. */
void store_element(coda_dtype dtype, void *element, double x);

#endif
