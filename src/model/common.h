/* What the files of the model share: failing with a message, and random numbers that depend on a seed and a place
 * alone. */
#ifndef CODA_MODEL_COMMON_H
#define CODA_MODEL_COMMON_H

#include "coda.h"
#include "runtime/counts.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Sets *error, which may be NULL. */
void describe_error(coda_error *error, coda_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void describe_no_memory(coda_error *error, const char *what, size_t bytes);
void describe_system_error(coda_error *error, const char *verb, const char *path); /* reads errno */

/* Sets *error and is `status`; what it is, is in sight of whoever analyses the caller. */
#define model_fail(error, status, ...) (describe_error(error, status, __VA_ARGS__), (status))

/* "cannot allocate N bytes for WHAT" */
static inline coda_status model_no_memory(coda_error *error, const char *what, size_t bytes)
{
    describe_no_memory(error, what, bytes);
    return CODA_MEMORY;
}

/* "cannot VERB 'PATH': REASON", by errno */
static inline coda_status model_system_error(coda_error *error, const char *verb, const char *path)
{
    describe_system_error(error, verb, path);
    return CODA_IO;
}

/* The name of `names` nearest to `name`, or NULL if none is near. `names` ends in NULL. */
const char *nearest_name(const char *name, const char *const *names);

/* A bijection that looks random (splitmix64's finalizer). */
static inline uint64_t mix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Uniform in [0, 1) with 53 bits. */
static inline double uniform(uint64_t seed, uint64_t counter)
{
    return (double)(mix64(mix64(seed) ^ counter) >> 11) * 0x1p-53;
}

#endif
