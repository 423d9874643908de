/* Arithmetic of sizes that are cut into parts. */
#ifndef CODA_RUNTIME_COUNTS_H
#define CODA_RUNTIME_COUNTS_H

#include <stdint.h>

static inline int64_t minimum(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t maximum(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Parts of a size, the last of which may be shorter. */
static inline int64_t ceiling(int64_t size, int64_t part)
{
    return (size + part - 1) / part;
}

static inline int64_t round_up(int64_t size, int64_t multiple)
{
    return ceiling(size, multiple) * multiple;
}

#endif
