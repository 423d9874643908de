/* The latest launches of a kernel, ready for the driver: one with the same operands and parameters skips checks, tensor
 * maps and the block of parameters. An entry is used by one thread at a time; one that finds it taken prepares its own. */
#ifndef CODA_CUDA_RECENT_H
#define CODA_CUDA_RECENT_H

#include "cuda/driver.h"

enum { RECENT_LAUNCHES = 8, PARAMETER_BYTES = 4096 };

struct compiled;

struct prepared {
    bool taken;                      /* by a thread; changed atomically */
    const struct compiled *compiled; /* NULL: empty */
    unsigned generation;             /* of the device's memory when the operands were checked */
    coda_tensor *operand;            /* one an operand of the program, set after set */
    double *parameter;
    struct launch_configuration configuration; /* but its stream and attributes */
    unsigned char *bytes;                      /* the kernel's parameters, aligned to 64 bytes */
};

struct recent {
    void *memory;
    unsigned next;                      /* to be replaced; changed atomically */
    int operand_count, parameter_count; /* operands of all sets */
    struct prepared entry[RECENT_LAUNCHES];
};

/* sets: of operands that a launch has; one that has fewer is followed by tensors of zeros. */
coda_status recent_create(struct recent *recent, const struct graph *graph, int sets, coda_error *error);
void recent_free(struct recent *recent);

/* The entry of the same operands and parameters, taken; NULL: none that is free. */
struct prepared *recent_find(struct recent *recent, const struct launch *launch, unsigned generation);
/* An old entry to overwrite, taken; NULL: all are in use. */
struct prepared *recent_take(struct recent *recent);
/* Gives an entry of recent_take back: it remembers what the launch was, or nothing where that failed. NULL is allowed. */
void recent_keep(const struct recent *recent, struct prepared *entry, const struct launch *launch, unsigned generation,
                 bool good);
void recent_give_back(struct prepared *entry); /* of recent_find */

#endif
