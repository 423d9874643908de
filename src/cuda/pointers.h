/* Which memory is the GPU's: the driver's answers, remembered by allocation. Asking takes most of a microsecond. */
#ifndef CODA_CUDA_POINTERS_H
#define CODA_CUDA_POINTERS_H

#include "cuda/driver.h"

enum { POINTER_SLOTS = 256 };

/* An allocation, under the 2 MB page of an address in it. Readers never wait: a version that changed or is odd is a miss. */
struct pointer_slot {
    unsigned version;
    uint64_t first, end;
};

struct pointer_table {
    unsigned generation; /* how often something was forgotten */
    struct pointer_slot slot[POINTER_SLOTS];
};

/* Is the address in an allocation that the driver has named as this GPU's? Thread-safe, as are the others. */
bool pointers_know(const struct pointer_table *table, uint64_t address);
void pointers_learn(struct pointer_table *table, uint64_t address, uint64_t first, uint64_t size);
void pointers_forget(struct pointer_table *table, uint64_t address); /* the allocation that holds it is gone */

#endif
