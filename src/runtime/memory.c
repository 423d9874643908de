/* Host memory for devices that compute in it. */
#include "runtime/device.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Large buffers lie on large pages where the system gives them: tiles walk them with large strides. */
static void *allocate_aligned(size_t bytes)
{
    const size_t large = (size_t)1 << 21;
    size_t alignment = bytes >= 2 * large ? large : 256;
    size_t rounded = (bytes + alignment - 1) & ~(alignment - 1);
    if (rounded < bytes)
        return NULL;
    void *memory = aligned_alloc(alignment, rounded ? rounded : alignment);
#ifdef MADV_HUGEPAGE
    if (memory && alignment == large)
        madvise(memory, rounded, MADV_HUGEPAGE); /* a wish, so its failure is none */
#endif
    return memory;
}

coda_status host_allocate(coda_device *device, size_t bytes, void **pointer, coda_error *error)
{
    (void)device;
    void *memory = allocate_aligned(bytes);
    if (!memory)
        return fail_memory(error, "a buffer", bytes);
    *pointer = memory;
    return CODA_OK;
}

void host_release(coda_device *device, void *pointer)
{
    (void)device;
    free(pointer);
}

bool host_wants_launch(const struct graph *graph, const struct launch *launch)
{
    if (!graph->conditional)
        return true;
    const coda_tensor *t = &launch->operand[graph->condition];
    const uint32_t sign = t->dtype == CODA_F32 ? 0x80000000u : 0; /* -0 is 0 */
    const uint32_t *element = t->data;
    for (int64_t i = 0; i < t->shape[0]; i++)
        if (element[i] & ~sign)
            return true;
    return false;
}

coda_status host_copy(coda_device *device, void *to, const void *from, size_t bytes, bool to_device, coda_error *error)
{
    (void)device, (void)to_device, (void)error;
    memcpy(to, from, bytes);
    return CODA_OK;
}

coda_status host_synchronize(coda_device *device, void *stream, coda_error *error)
{
    (void)device, (void)stream, (void)error;
    return CODA_OK;
}
