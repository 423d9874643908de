/* Memory that launches work in. It is mapped for as many workers as there may ever be; pages that no worker touches
 * cost nothing. */
#include "cpu/cpu.h"

#include <sys/mman.h>

static void *map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
#ifdef MADV_HUGEPAGE
    madvise(memory, bytes, MADV_HUGEPAGE); /* a wish: packed panels are walked with large strides */
#endif
    return memory;
}

static void unmap(void *memory, size_t bytes)
{
    if (memory)
        munmap(memory, bytes);
}

static size_t part_bytes(const struct workspace *space)
{
    return (size_t)space->part * (size_t)space->workers * sizeof(float);
}

static coda_status grow_parts(struct workspace *space, int64_t part, coda_error *error)
{
    if (part <= space->part)
        return CODA_OK;
    const int64_t page = 1024; /* floats: workers share no page */
    struct workspace grown = {.part = (part + page - 1) / page * page, .workers = MAX_WORKERS};
    while (!(grown.memory = map(part_bytes(&grown))) && grown.workers > 1)
        grown.workers /= 2;
    if (!grown.memory)
        return fail_memory(error, "the tiles of a kernel", (size_t)part * sizeof(float));
    unmap(space->memory, part_bytes(space));
    space->memory = grown.memory;
    space->part = grown.part;
    space->workers = grown.workers;
    return CODA_OK;
}

static coda_status grow_packed(struct workspace *space, int64_t size, coda_error *error)
{
    if (size <= space->packed_size)
        return CODA_OK;
    char *left = map((size_t)size), *right = map((size_t)size);
    if (!left || !right) {
        unmap(left, (size_t)size);
        unmap(right, (size_t)size);
        return fail_memory(error, "packed operands", 2 * (size_t)size);
    }
    for (int i = 0; i < 2; i++)
        unmap(space->packed[i], (size_t)space->packed_size);
    space->packed[0] = left;
    space->packed[1] = right;
    space->packed_size = size;
    return CODA_OK;
}

static coda_status grow_partial(struct workspace *space, int64_t size, coda_error *error)
{
    if (size <= space->partial_size)
        return CODA_OK;
    float *partial = map((size_t)size * sizeof(float));
    if (!partial)
        return fail_memory(error, "accumulators of a kernel", (size_t)size * sizeof(float));
    unmap(space->partial, (size_t)space->partial_size * sizeof(float));
    space->partial = partial;
    space->partial_size = size;
    return CODA_OK;
}

coda_status cpu_workspace_grow(struct workspace *space, int64_t part, int64_t packed_size, int64_t partial_size,
                               coda_error *error)
{
    coda_status status = grow_parts(space, part, error);
    if (status == CODA_OK)
        status = grow_packed(space, packed_size, error);
    if (status == CODA_OK)
        status = grow_partial(space, partial_size, error);
    return status;
}

void cpu_workspace_release(struct workspace *space)
{
    unmap(space->memory, part_bytes(space));
    unmap(space->packed[0], (size_t)space->packed_size);
    unmap(space->packed[1], (size_t)space->packed_size);
    unmap(space->partial, (size_t)space->partial_size * sizeof(float));
    *space = (struct workspace){0};
}

struct worker_memory cpu_worker_memory(const struct cpu_kernel *k, const struct workspace *space, int worker)
{
    float *memory = space->memory + worker * space->part;
    float *accumulators = memory + k->frame_floats, *scratch = accumulators + k->accumulator_floats;
    return (struct worker_memory){memory, accumulators, scratch, scratch + k->scratch_floats};
}

/* ---------------------------------------------------------------- threads */

static void work(void *context, int64_t worker)
{
    struct tasks *tasks = context;
    int64_t task;
    while ((task = __atomic_fetch_add(&tasks->next, 1, __ATOMIC_RELAXED)) < tasks->count)
        tasks->run(tasks, (int)worker, task);
}

void cpu_run_tasks(coda_device *device, struct tasks *tasks)
{
    const struct cpu_state *state = device->state;
    int64_t workers = device->threads < state->workspace.workers ? device->threads : state->workspace.workers;
    tasks->next = 0;
    if (tasks->count > 0)
        coda_parallel_for(device, workers < tasks->count ? workers : tasks->count, work, tasks);
}
