/* Which instruction sets of the CPU a test runs. */
#ifndef KIT_SETS_H
#define KIT_SETS_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* CODA_TEST_SET asks for one of them alone. */
static inline bool wanted_set(const char *name)
{
    const char *only = getenv("CODA_TEST_SET");
    return !only || !strcmp(only, name);
}

#endif
