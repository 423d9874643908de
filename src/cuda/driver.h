/* NVIDIA's driver and run-time compiler, found by dlopen: own declarations of the few calls used, so that the library
 * builds on machines without CUDA. */
#ifndef CODA_CUDA_DRIVER_H
#define CODA_CUDA_DRIVER_H

#include "runtime/device.h"
#include "cuda/text.h"

typedef struct {
    int reserved;
} driver_opaque;
typedef driver_opaque *driver_context;
typedef driver_opaque *driver_module;
typedef driver_opaque *driver_function;
typedef driver_opaque *driver_stream;
typedef uint64_t device_pointer;

/* CUtensorMap: filled by the driver, read by the copy engine through a kernel's parameters. */
struct tensor_map {
    _Alignas(64) uint64_t word[16];
};

/* CUlaunchAttribute and CUlaunchConfig. */
struct launch_attribute {
    int id, pad;
    union {
        char bytes[64];
        struct {
            unsigned x, y, z;
        } cluster;
        int flag;
    } value;
};
struct launch_configuration {
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared_bytes;
    driver_stream stream;
    struct launch_attribute *attributes;
    unsigned attribute_count;
};

enum {
    /* CUdevice_attribute */
    ATTRIBUTE_MULTIPROCESSORS = 16,
    ATTRIBUTE_L2_BYTES = 38,
    ATTRIBUTE_MAJOR = 75,
    ATTRIBUTE_MINOR = 76,
    ATTRIBUTE_SHARED_BYTES = 97, /* a block's largest, when asked for */
    /* CUfunction_attribute */
    FUNCTION_LOCAL_BYTES = 3,
    FUNCTION_REGISTERS = 4,
    FUNCTION_MAX_DYNAMIC_SHARED = 8,
    /* CUpointer_attribute */
    POINTER_MEMORY_TYPE = 2,
    POINTER_DEVICE_ORDINAL = 9,
    POINTER_RANGE_START = 11,
    POINTER_RANGE_SIZE = 12,
    MEMORY_IS_DEVICE = 2,
    /* CUlaunchAttributeID */
    LAUNCH_CLUSTER = 4,
    LAUNCH_BEGINS_EARLY = 6, /* PROGRAMMATIC_STREAM_SERIALIZATION */
    /* CUtensorMapDataType, swizzle, promotion */
    MAP_F16 = 6,
    MAP_F32 = 7,
    MAP_BF16 = 9,
    MAP_SWIZZLE_64B = 2,
    MAP_SWIZZLE_128B = 3,
    MAP_PROMOTE_128B = 2,
};

/* name without cu and version, version's suffix, arguments */
#define DRIVER_CALLS(CALL)                                                                                             \
    CALL(Init, "", (unsigned))                                                                                         \
    CALL(DriverGetVersion, "", (int *))                                                                                \
    CALL(DeviceGetCount, "", (int *))                                                                                  \
    CALL(DeviceGet, "", (int *, int))                                                                                  \
    CALL(DeviceGetName, "", (char *, int, int))                                                                        \
    CALL(DeviceGetAttribute, "", (int *, int, int))                                                                    \
    CALL(DeviceTotalMem, "_v2", (size_t *, int))                                                                       \
    CALL(DevicePrimaryCtxRetain, "", (driver_context *, int))                                                          \
    CALL(DevicePrimaryCtxRelease, "_v2", (int))                                                                        \
    CALL(CtxGetCurrent, "", (driver_context *))                                                                        \
    CALL(CtxPushCurrent, "_v2", (driver_context))                                                                      \
    CALL(CtxPopCurrent, "_v2", (driver_context *))                                                                     \
    CALL(MemGetInfo, "_v2", (size_t *, size_t *))                                                                      \
    CALL(MemAlloc, "_v2", (device_pointer *, size_t))                                                                  \
    CALL(MemFree, "_v2", (device_pointer))                                                                             \
    CALL(MemcpyHtoD, "_v2", (device_pointer, const void *, size_t))                                                    \
    CALL(MemcpyDtoH, "_v2", (void *, device_pointer, size_t))                                                          \
    CALL(StreamSynchronize, "", (driver_stream))                                                                       \
    CALL(StreamCreate, "", (void **, unsigned))                                                                        \
    CALL(StreamDestroy, "_v2", (void *))                                                                               \
    CALL(StreamBeginCapture, "_v2", (void *, int))                                                                     \
    CALL(StreamEndCapture, "", (void *, void **))                                                                      \
    CALL(GraphInstantiateWithFlags, "", (void **, void *, unsigned long long))                                         \
    CALL(GraphLaunch, "", (void *, void *))                                                                            \
    CALL(GraphExecDestroy, "", (void *))                                                                               \
    CALL(GraphDestroy, "", (void *))                                                                                   \
    CALL(EventCreate, "", (void **, unsigned))                                                                         \
    CALL(EventRecord, "", (void *, void *))                                                                            \
    CALL(EventSynchronize, "", (void *))                                                                               \
    CALL(EventElapsedTime, "", (float *, void *, void *))                                                              \
    CALL(EventDestroy, "_v2", (void *))                                                                                \
    CALL(PointerGetAttributes, "", (unsigned, int *, void **, device_pointer))                                         \
    CALL(ModuleLoadData, "", (driver_module *, const void *))                                                          \
    CALL(ModuleUnload, "", (driver_module))                                                                            \
    CALL(ModuleGetFunction, "", (driver_function *, driver_module, const char *))                                      \
    CALL(FuncSetAttribute, "", (driver_function, int, int))                                                            \
    CALL(FuncGetAttribute, "", (int *, int, driver_function))                                                          \
    CALL(LaunchKernelEx, "", (const struct launch_configuration *, driver_function, void **, void **))                 \
    CALL(GetErrorName, "", (int, const char **))                                                                       \
    CALL(GetErrorString, "", (int, const char **))

/* Since CUDA 12: used on Hopper alone, so its absence is no error. */
typedef int (*tensor_map_encode)(struct tensor_map *, int type, uint32_t rank, void *base, const uint64_t *sizes,
                                 const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                                 int interleave, int swizzle, int promotion, int fill);

struct driver {
    void *library;
    int version; /* 13000 is 13.0 */
    tensor_map_encode TensorMapEncodeTiled;
#define DECLARE(name, suffix, arguments) int(*name) arguments;
    DRIVER_CALLS(DECLARE)
#undef DECLARE
};

/* Loads libcuda.so.1 and starts it. Returns CODA_DEVICE where there is none. */
coda_status driver_load(struct driver *driver, coda_error *error);
void driver_unload(struct driver *driver);
/* CODA_OK where `result` is 0, else a failure that names the call, the driver's code and `what` was being done. */
coda_status driver_check(const struct driver *driver, int result, const char *call, const char *what,
                         coda_error *error);

struct compiler {
    void *library, *builtins;
    int major, minor;
    char path[512]; /* where it was found; "" where it was not */
    int (*CreateProgram)(void **, const char *, const char *, int, const char *const *, const char *const *);
    int (*DestroyProgram)(void **);
    int (*CompileProgram)(void *, int, const char *const *);
    int (*GetProgramLogSize)(void *, size_t *);
    int (*GetProgramLog)(void *, char *);
    int (*GetCUBINSize)(void *, size_t *);
    int (*GetCUBIN)(void *, char *);
    const char *(*GetErrorString)(int);
};

/* Looks for NVRTC in $CODA_CUDA_PATH, the loader's path, Python wheels and /usr/local/cuda*. Returns CODA_DEVICE with
 * the places that were tried where there is none. */
coda_status compiler_load(struct compiler *compiler, coda_error *error);
void compiler_unload(struct compiler *compiler);

/* The options beside the architecture, as text. */
const char *compiler_options(void);
/* Compiles `source` for `architecture` ("sm_90a") into a cubin, which the caller frees. `log` (may be NULL) receives
 * the compiler's and assembler's remarks: registers, spills, warnings. Thread-safe. */
coda_status compiler_run(const struct compiler *compiler, const char *source, const char *name,
                         const char *architecture, void **cubin, size_t *size, struct text *log, coda_error *error);

/* The path of a library in the places where CUDA's are kept, into path[size]; false: nowhere. `pattern` is a glob of
 * the file's name. `tried` (may be NULL) lists the places. */
bool find_library(const char *pattern, char *path, size_t size, struct text *tried);

#endif
