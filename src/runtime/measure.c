/* Timing and repeating work, on any device. */
#include "runtime/device.h"

#include <stdlib.h>
#include <time.h>

struct coda_graph {
    coda_device *device;
    coda_work work;
    void *context;
    void *recording; /* the device's; NULL: each launch calls work */
};

static double now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec * 1e-6;
}

coda_status coda_time(coda_device *device, coda_work work, void *context, int count, double *ms, coda_error *error)
{
    coda_status status = CODA_OK;
    if (!device || !work || count < 1 || !ms)
        return fail(error, CODA_INVALID,
                    "coda_time needs a device, work, a place for the time and a count of at least 1");
    if (device->operations->time)
        return device->operations->time(device, work, context, count, ms, error);
    double start = now_ms();
    for (int i = 0; i < count && status == CODA_OK; i++)
        status = work(context, NULL, error);
    if (status == CODA_OK)
        status = coda_synchronize(device, NULL, error);
    if (status == CODA_OK)
        *ms = now_ms() - start;
    return status;
}

coda_status coda_graph_create(coda_device *device, coda_work work, void *context, coda_graph **graph, coda_error *error)
{
    if (!device || !work || !graph)
        return fail(error, CODA_INVALID, "coda_graph_create needs a device, work and a place for the graph");
    coda_graph *made = calloc(1, sizeof *made);
    if (!made)
        return fail_memory(error, "a graph", sizeof *made);
    *made = (coda_graph){.device = device, .work = work, .context = context};
    coda_status status = device->operations->record
                             ? device->operations->record(device, work, context, &made->recording, error)
                             : CODA_OK;
    if (status == CODA_OK)
        *graph = made;
    else
        free(made);
    return status;
}

coda_status coda_graph_launch(coda_graph *graph, void *stream, coda_error *error)
{
    if (!graph)
        return fail(error, CODA_INVALID, "coda_graph_launch needs a graph");
    return graph->recording ? graph->device->operations->replay(graph->device, graph->recording, stream, error)
                            : graph->work(graph->context, stream, error);
}

void coda_graph_free(coda_graph *graph)
{
    if (graph && graph->recording)
        graph->device->operations->drop(graph->device, graph->recording);
    free(graph);
}
