/* The reference as a device: programs and blocks on host memory, one thread. */
#include "ref/ref.h"
#include "ref/values.h"

#include <stdio.h>

static coda_status ref_open(coda_device *device, const char *selector, coda_error *error)
{
    if (selector[0] != '\0')
        return fail(error, CODA_INVALID, "there is one reference device, `ref`; `ref:%s` names another", selector);
    device->threads = 1;
    snprintf(
        device->description, sizeof device->description,
        "reference interpreter in double on one thread\nrounds at `out` and `cast` only; runs programs and blocks");
    return CODA_OK;
}

static void ref_close(coda_device *device)
{
    (void)device;
}

static coda_status ref_prepare(coda_kernel *kernel, coda_error *error)
{
    (void)kernel, (void)error;
    return CODA_OK;
}

static void ref_release(coda_kernel *kernel)
{
    (void)kernel;
}

/* Outs are written when all are known, so that they may share memory with what they were computed from. */
static coda_status ref_launch(coda_kernel *kernel, const struct launch *launch, coda_error *error)
{
    const struct graph *graph = kernel->graph;
    struct value outs[MAX_OPERANDS] = {0};
    if (!host_wants_launch(graph, launch))
        return CODA_OK;
    coda_status status = evaluate(graph, launch, outs, error);
    for (int o = 0; o < graph->operand_count; o++) {
        if (status == CODA_OK && outs[o].data != NULL)
            value_store(&outs[o], &launch->operand[o]);
        value_release(&outs[o]);
    }
    return status;
}

static const char *ref_source(const coda_kernel *kernel)
{
    (void)kernel;
    return "the reference interprets the program: it generates no source\n";
}

const struct device_operations ref_operations = {
    .name = "ref",
    .open = ref_open,
    .close = ref_close,
    .prepare = ref_prepare,
    .launch = ref_launch,
    .release = ref_release,
    .source = ref_source,
    .allocate = host_allocate,
    .release_memory = host_release,
    .copy = host_copy,
    .synchronize = host_synchronize,
    .runs_blocks = true,
};
