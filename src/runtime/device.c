/* The registry of devices. */
#include "runtime/device.h"
#include "runtime/threads.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct device_operations *const registry[] = {&ref_operations, &cpu_operations, &cuda_operations};

enum { MAX_THREADS = 256 };

/* Processors that this process may run on. */
static int processors(void)
{
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return count < 1 ? 1 : count > MAX_THREADS ? MAX_THREADS : count;
}

static coda_status threads_at_start(int *threads, coda_error *error)
{
    const char *text = getenv("CODA_THREADS");
    if (!text || !*text) {
        *threads = processors();
        return CODA_OK;
    }
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || value < 1 || value > MAX_THREADS)
        return fail(error, CODA_INVALID, "CODA_THREADS is \"%.40s\"; expected a number from 1 to %d", text,
                    MAX_THREADS);
    *threads = (int)value;
    return CODA_OK;
}

coda_status coda_device_open(const char *name, coda_device **device, coda_error *error)
{
    if (!name || !device)
        return fail(error, CODA_INVALID, "coda_device_open needs a name and a place for the device");
    size_t length = strcspn(name, ":");
    const char *selector = name[length] ? name + length + 1 : "";
    const struct device_operations *operations = NULL;
    for (size_t i = 0; i < sizeof registry / sizeof *registry; i++)
        if (strlen(registry[i]->name) == length && !strncmp(registry[i]->name, name, length))
            operations = registry[i];
    if (!operations)
        return fail(error, CODA_INVALID, "there is no device \"%.40s\"; expected ref, cpu, cuda or cuda:N", name);
    coda_device *opened = calloc(1, sizeof *opened);
    if (!opened)
        return fail_memory(error, "a device", sizeof *opened);
    opened->operations = operations;
    snprintf(opened->name, sizeof opened->name, "%s", name);
    coda_status status = threads_at_start(&opened->threads, error);
    if (status == CODA_OK)
        status = operations->open(opened, selector, error);
    if (status == CODA_OK && !(opened->pool = pool_create(opened->threads))) {
        operations->close(opened);
        status = fail_memory(error, "the threads", sizeof *opened);
    }
    if (status != CODA_OK) {
        free(opened);
        return status;
    }
    *device = opened;
    return CODA_OK;
}

void coda_device_close(coda_device *device)
{
    if (!device)
        return;
    device->operations->close(device);
    pool_free(device->pool);
    free(device);
}

const char *coda_device_name(const coda_device *device)
{
    return device->name;
}

const char *coda_device_description(const coda_device *device)
{
    return device->description;
}

coda_status coda_device_set_threads(coda_device *device, int threads, coda_error *error)
{
    if (threads < 1 || threads > MAX_THREADS)
        return fail(error, CODA_INVALID, "%d threads; expected 1 to %d", threads, MAX_THREADS);
    struct thread_pool *pool = pool_create(threads);
    if (!pool)
        return fail_memory(error, "the threads", (size_t)threads);
    pool_free(device->pool);
    device->pool = pool;
    device->threads = threads;
    return CODA_OK;
}

int coda_device_threads(const coda_device *device)
{
    return device->threads;
}

coda_status coda_allocate(coda_device *device, size_t bytes, void **pointer, coda_error *error)
{
    return device->operations->allocate(device, bytes, pointer, error);
}

void coda_release(coda_device *device, void *pointer)
{
    if (pointer)
        device->operations->release_memory(device, pointer);
}

coda_status coda_copy_in(coda_device *device, void *device_pointer, const void *host, size_t bytes, coda_error *error)
{
    return device->operations->copy(device, device_pointer, host, bytes, true, error);
}

coda_status coda_copy_out(coda_device *device, void *host, const void *device_pointer, size_t bytes, coda_error *error)
{
    return device->operations->copy(device, host, device_pointer, bytes, false, error);
}

coda_status coda_synchronize(coda_device *device, void *stream, coda_error *error)
{
    return device->operations->synchronize(device, stream, error);
}

void coda_parallel_for(coda_device *device, int64_t count, void (*body)(void *context, int64_t index), void *context)
{
    pool_run(device ? device->pool : NULL, count, body, context);
}
