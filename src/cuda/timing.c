/* Events and captured graphs. */
#include "cuda/kernel.h"

#include <stdlib.h>

static coda_status check(const struct gpu *gpu, int result, const char *call, coda_error *error)
{
    return driver_check(&gpu->driver, result, call, "measuring", error);
}

static coda_status time_between(const struct gpu *gpu, void *const event[2], coda_work work, void *context, int count,
                                double *ms, coda_error *error)
{
    float elapsed = 0;
    coda_status status = check(gpu, gpu->driver.EventRecord(event[0], NULL), "cuEventRecord", error);
    for (int i = 0; i < count && status == CODA_OK; i++)
        status = work(context, NULL, error);
    if (status == CODA_OK)
        status = check(gpu, gpu->driver.EventRecord(event[1], NULL), "cuEventRecord", error);
    if (status == CODA_OK)
        status = check(gpu, gpu->driver.EventSynchronize(event[1]), "cuEventSynchronize", error);
    if (status == CODA_OK)
        status = check(gpu, gpu->driver.EventElapsedTime(&elapsed, event[0], event[1]), "cuEventElapsedTime", error);
    if (status == CODA_OK)
        *ms = (double)elapsed;
    return status;
}

coda_status cuda_time(coda_device *device, coda_work work, void *context, int count, double *ms, coda_error *error)
{
    const struct gpu *gpu = device->state;
    void *event[2] = {NULL, NULL};
    coda_status status = gpu_enter(gpu, error);
    if (status != CODA_OK)
        return status;
    for (int i = 0; i < 2 && status == CODA_OK; i++)
        status = check(gpu, gpu->driver.EventCreate(&event[i], 0), "cuEventCreate", error);
    if (status == CODA_OK)
        status = time_between(gpu, event, work, context, count, ms, error);
    for (int i = 0; i < 2; i++)
        if (event[i])
            gpu->driver.EventDestroy(event[i]);
    gpu_leave(gpu);
    return status;
}

/* Everything that work launches on the stream becomes a graph's nodes; nothing runs. */
static coda_status capture(const struct gpu *gpu, void *stream, coda_work work, void *context, void **recording,
                           coda_error *error)
{
    void *graph = NULL, *executable = NULL;
    enum { THIS_THREAD_ALONE = 1 };
    coda_status status =
        check(gpu, gpu->driver.StreamBeginCapture(stream, THIS_THREAD_ALONE), "cuStreamBeginCapture", error);
    if (status != CODA_OK)
        return status;
    status = work(context, stream, error);
    int result = gpu->driver.StreamEndCapture(stream, &graph);
    if (status == CODA_OK)
        status = check(gpu, result, "cuStreamEndCapture", error);
    if (status == CODA_OK)
        status = check(gpu, gpu->driver.GraphInstantiateWithFlags(&executable, graph, 0), "cuGraphInstantiate", error);
    if (graph)
        gpu->driver.GraphDestroy(graph);
    if (status == CODA_OK)
        *recording = executable;
    return status;
}

coda_status cuda_record(coda_device *device, coda_work work, void *context, void **recording, coda_error *error)
{
    const struct gpu *gpu = device->state;
    void *stream = NULL;
    enum { NOT_BLOCKING = 1 };
    coda_status status = gpu_enter(gpu, error);
    if (status != CODA_OK)
        return status;
    status = check(gpu, gpu->driver.StreamCreate(&stream, NOT_BLOCKING), "cuStreamCreate", error);
    if (status == CODA_OK)
        status = capture(gpu, stream, work, context, recording, error);
    if (stream)
        gpu->driver.StreamDestroy(stream);
    gpu_leave(gpu);
    return status;
}

coda_status cuda_replay(coda_device *device, void *recording, void *stream, coda_error *error)
{
    const struct gpu *gpu = device->state;
    bool entered;
    coda_status status = gpu_enter_if_needed(gpu, &entered, error);
    if (status != CODA_OK)
        return status;
    status = check(gpu, gpu->driver.GraphLaunch(recording, stream), "cuGraphLaunch", error);
    if (entered)
        gpu_leave(gpu);
    return status;
}

void cuda_drop(coda_device *device, void *recording)
{
    const struct gpu *gpu = device->state;
    if (gpu_enter(gpu, NULL) != CODA_OK)
        return;
    gpu->driver.GraphExecDestroy(recording);
    gpu_leave(gpu);
}
