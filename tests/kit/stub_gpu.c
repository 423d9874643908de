#include "stub_gpu.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_RANGES = 128 };

static struct {
    struct stub_counts counts;
    int parameter_bytes, range_count;
    struct {
        uint64_t first, size;
        unsigned kind;
        int ordinal;
    } range[MAX_RANGES];
    driver_opaque context;
    float (*milliseconds)(const struct stub_counts *counts);
    void (*effect)(const struct stub_counts *counts);
} stub;

static void count(int *counter)
{
    __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

/* ---------------------------------------------------------------- the driver */

static int get_device(int *device, int ordinal)
{
    *device = ordinal;
    return 0;
}

static int release_context(int device)
{
    (void)device;
    return 0;
}

static int get_current(driver_context *context)
{
    *context = NULL;
    return 0;
}

static int push(driver_context context)
{
    (void)context;
    count(&stub.counts.pushes);
    return 0;
}

static int pop(driver_context *context)
{
    *context = NULL;
    count(&stub.counts.pops);
    return 0;
}

/* Memory of the host that stands for the GPU's. */
static int allocate(device_pointer *pointer, size_t bytes)
{
    void *memory = aligned_alloc(1 << 12, (bytes + (1 << 12) - 1) >> 12 << 12);
    *pointer = (device_pointer)(uintptr_t)memory;
    if (memory)
        stub_memory(memory, bytes, MEMORY_IS_DEVICE, 0);
    return memory ? 0 : 2;
}

static int free_memory(device_pointer pointer)
{
    for (int i = 0; i < stub.range_count; i++)
        if (stub.range[i].first == pointer && stub.range[i].size > 0) {
            stub.range[i] = stub.range[--stub.range_count];
            free((void *)(uintptr_t)pointer);
            return 0;
        }
    return 1;
}

static int copy_in(device_pointer to, const void *from, size_t bytes)
{
    memcpy((void *)(uintptr_t)to, from, bytes);
    return 0;
}

static int copy_out(void *to, device_pointer from, size_t bytes)
{
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return 0;
}

static int wait_for(driver_stream stream)
{
    (void)stream;
    return 0;
}

/* ---------------------------------------------------------------- events, streams and graphs */

static int create_handle(void **handle, unsigned flags)
{
    (void)flags;
    *handle = &stub;
    return 0;
}

static int take_handle(void *handle)
{
    return handle != &stub;
}

static int record_event(void *event, void *stream)
{
    (void)stream;
    return event != &stub;
}

static int elapsed(float *milliseconds, void *first, void *second)
{
    (void)first, (void)second;
    *milliseconds = stub.milliseconds ? stub.milliseconds(&stub.counts) : 1;
    return 0;
}

static int begin_capture(void *stream, int mode)
{
    (void)mode;
    count(&stub.counts.captures);
    return stream != &stub;
}

static int end_capture(void *stream, void **graph)
{
    *graph = &stub;
    return stream != &stub;
}

static int instantiate(void **executable, void *graph, unsigned long long flags)
{
    (void)flags;
    *executable = &stub;
    return graph != &stub;
}

static int launch_graph(void *executable, void *stream)
{
    (void)stream;
    count(&stub.counts.replays);
    return executable != &stub;
}

void stub_time(float (*milliseconds)(const struct stub_counts *counts))
{
    stub.milliseconds = milliseconds;
}

static int ask_pointer(unsigned attributes, int *attribute, void **value, device_pointer pointer)
{
    count(&stub.counts.pointer_questions);
    for (int i = 0; i < stub.range_count; i++) {
        if (pointer < stub.range[i].first || pointer - stub.range[i].first >= stub.range[i].size)
            continue;
        for (unsigned a = 0; a < attributes; a++)
            if (attribute[a] == POINTER_MEMORY_TYPE)
                memcpy(value[a], &stub.range[i].kind, sizeof stub.range[i].kind);
            else if (attribute[a] == POINTER_DEVICE_ORDINAL)
                memcpy(value[a], &stub.range[i].ordinal, sizeof stub.range[i].ordinal);
            else if (attribute[a] == POINTER_RANGE_START)
                memcpy(value[a], &stub.range[i].first, sizeof stub.range[i].first);
            else if (attribute[a] == POINTER_RANGE_SIZE)
                memcpy(value[a], &stub.range[i].size, sizeof stub.range[i].size);
        return 0;
    }
    return 1; /* CUDA_ERROR_INVALID_VALUE: memory that the driver does not know */
}

static int load_module(driver_module *module, const void *image)
{
    (void)image;
    *module = &stub.context;
    count(&stub.counts.loads);
    return 0;
}

static int unload_module(driver_module module)
{
    (void)module;
    return 0;
}

static int get_function(driver_function *function, driver_module module, const char *name)
{
    (void)module;
    *function = &stub.context;
    return strncmp(name, "coda_", 5) ? 500 : 0; /* not found */
}

static int set_attribute(driver_function function, int attribute, int value)
{
    (void)function, (void)attribute, (void)value;
    return 0;
}

static int launch(const struct launch_configuration *c, driver_function function, void **parameters, void **extra)
{
    (void)function, (void)extra;
    struct stub_counts *counts = &stub.counts;
    count(&counts->launches);
    if (!stub.parameter_bytes)
        return 0; /* threads at once: nothing is written */
    counts->grid_x = c->grid_x;
    counts->block_x = c->block_x;
    counts->cluster = 1, counts->begins_early = false;
    for (unsigned i = 0; i < c->attribute_count; i++)
        if (c->attributes[i].id == LAUNCH_CLUSTER)
            counts->cluster = c->attributes[i].value.cluster.x;
        else if (c->attributes[i].id == LAUNCH_BEGINS_EARLY)
            counts->begins_early = c->attributes[i].value.flag;
    counts->shared_bytes = c->shared_bytes;
    counts->stream = c->stream;
    memcpy(counts->parameters, parameters[0], (size_t)stub.parameter_bytes);
    if (stub.effect)
        stub.effect(counts);
    return 0;
}

static int encode(struct tensor_map *map, int type, uint32_t rank, void *base, const uint64_t *sizes,
                  const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides, int interleave,
                  int swizzle, int promotion, int fill)
{
    (void)rank, (void)element_strides, (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    count(&stub.counts.maps);
    memset(map, 0, sizeof *map);
    map->word[0] = (uint64_t)(uintptr_t)base;
    map->word[1] = sizes[0];
    map->word[2] = sizes[1];
    map->word[3] = strides[0];
    map->word[4] = box[0];
    map->word[5] = box[1];
    map->word[6] = (uint64_t)type;
    return 0;
}

static int name_error(int result, const char **name)
{
    (void)result;
    *name = "STUB";
    return 0;
}

/* ---------------------------------------------------------------- the compiler */

static int create_program(void **program, const char *source, const char *name, int headers, const char *const *text,
                          const char *const *names)
{
    (void)source, (void)name, (void)headers, (void)text, (void)names;
    *program = &stub;
    return 0;
}

static int destroy_program(void **program)
{
    *program = NULL;
    return 0;
}

static int compile(void *program, int options, const char *const *option)
{
    (void)program, (void)options, (void)option;
    count(&stub.counts.compilations);
    return 0;
}

static int get_size(void *program, size_t *size)
{
    (void)program;
    *size = 16;
    return 0;
}

static int get_text(void *program, char *text)
{
    (void)program;
    memcpy(text, "a stub's kernel", 16);
    return 0;
}

static const char *describe_error(int result)
{
    (void)result;
    return "a stub's error";
}

/* ---------------------------------------------------------------- the device */

static void install(struct gpu *gpu)
{
    compiler_unload(&gpu->compiler);
    gpu->compiler = (struct compiler){.library = dlopen(NULL, RTLD_NOW),
                                      .major = 13,
                                      .CreateProgram = create_program,
                                      .DestroyProgram = destroy_program,
                                      .CompileProgram = compile,
                                      .GetProgramLogSize = get_size,
                                      .GetProgramLog = get_text,
                                      .GetCUBINSize = get_size,
                                      .GetCUBIN = get_text,
                                      .GetErrorString = describe_error};
    gpu->driver = (struct driver){.library = dlopen(NULL, RTLD_NOW),
                                  .version = 13000,
                                  .TensorMapEncodeTiled = encode,
                                  .DeviceGet = get_device,
                                  .DevicePrimaryCtxRelease = release_context,
                                  .CtxGetCurrent = get_current,
                                  .CtxPushCurrent = push,
                                  .CtxPopCurrent = pop,
                                  .MemAlloc = allocate,
                                  .MemFree = free_memory,
                                  .MemcpyHtoD = copy_in,
                                  .MemcpyDtoH = copy_out,
                                  .StreamSynchronize = wait_for,
                                  .StreamCreate = create_handle,
                                  .StreamDestroy = take_handle,
                                  .StreamBeginCapture = begin_capture,
                                  .StreamEndCapture = end_capture,
                                  .GraphInstantiateWithFlags = instantiate,
                                  .GraphLaunch = launch_graph,
                                  .GraphExecDestroy = take_handle,
                                  .GraphDestroy = take_handle,
                                  .EventCreate = create_handle,
                                  .EventRecord = record_event,
                                  .EventSynchronize = take_handle,
                                  .EventElapsedTime = elapsed,
                                  .EventDestroy = take_handle,
                                  .PointerGetAttributes = ask_pointer,
                                  .ModuleLoadData = load_module,
                                  .ModuleUnload = unload_module,
                                  .ModuleGetFunction = get_function,
                                  .FuncSetAttribute = set_attribute,
                                  .LaunchKernelEx = launch,
                                  .GetErrorName = name_error,
                                  .GetErrorString = name_error};
    gpu->context = &stub.context;
}

coda_device *stub_open(void)
{
    return stub_open_as("cuda:sm_90a");
}

coda_device *stub_open_as(const char *name)
{
    coda_device *device = NULL;
    coda_error error = {0};
    setenv("CODA_CACHE", "off", 0);
    if (coda_device_open(name, &device, &error) != CODA_OK)
        fail_msg("%s", error.message);
    install(device->state);
    memset(&stub.counts, 0, sizeof stub.counts);
    stub.range_count = stub.parameter_bytes = 0;
    stub.milliseconds = NULL;
    stub.effect = NULL;
    return device;
}

void stub_close(coda_device *device)
{
    coda_device_close(device);
}

struct stub_counts *stub_counts(void)
{
    return &stub.counts;
}

void stub_reset(void)
{
    memset(&stub.counts, 0, sizeof stub.counts);
}

void stub_copy_parameters(int bytes)
{
    stub.parameter_bytes = bytes;
}

void stub_memory(const void *first, size_t size, unsigned kind, int ordinal)
{
    assert_true(stub.range_count < MAX_RANGES);
    stub.range[stub.range_count].first = (uint64_t)(uintptr_t)first;
    stub.range[stub.range_count].size = size;
    stub.range[stub.range_count].kind = kind;
    stub.range[stub.range_count++].ordinal = ordinal;
}

void stub_effect(void (*effect)(const struct stub_counts *counts))
{
    stub.effect = effect;
}

void stub_mark_memory(unsigned char byte)
{
    for (int i = 0; i < stub.range_count; i++)
        *(unsigned char *)(uintptr_t)stub.range[i].first = byte;
}
