/* The device "cuda": opening a GPU, its memory, and the table of operations. */
#include "cuda/kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

coda_status gpu_enter(const struct gpu *gpu, coda_error *error)
{
    if (!gpu->driver.library)
        return fail(error, CODA_DEVICE,
                    "the device cuda:%s only compiles; open \"cuda\" on a machine with an NVIDIA GPU",
                    gpu->architecture);
    return driver_check(&gpu->driver, gpu->driver.CtxPushCurrent(gpu->context), "cuCtxPushCurrent",
                        "making the GPU current", error);
}

coda_status gpu_enter_if_needed(const struct gpu *gpu, bool *entered, coda_error *error)
{
    driver_context current = NULL;
    *entered = false;
    if (gpu->driver.library && gpu->driver.CtxGetCurrent(&current) == 0 && current == gpu->context)
        return CODA_OK;
    coda_status status = gpu_enter(gpu, error);
    *entered = status == CODA_OK;
    return status;
}

void gpu_leave(const struct gpu *gpu)
{
    driver_context context;
    gpu->driver.CtxPopCurrent(&context);
}

/* ---------------------------------------------------------------- opening */

static coda_status read_attributes(struct gpu *gpu, int device, coda_error *error)
{
    const struct driver *driver = &gpu->driver;
    int major = 0, minor = 0;
    int result = driver->DeviceGetName(gpu->name, sizeof gpu->name, device);
    result = result ? result : driver->DeviceGetAttribute(&major, ATTRIBUTE_MAJOR, device);
    result = result ? result : driver->DeviceGetAttribute(&minor, ATTRIBUTE_MINOR, device);
    result = result ? result : driver->DeviceGetAttribute(&gpu->multiprocessors, ATTRIBUTE_MULTIPROCESSORS, device);
    result = result ? result : driver->DeviceGetAttribute(&gpu->shared_bytes, ATTRIBUTE_SHARED_BYTES, device);
    if (result)
        return driver_check(driver, result, "cuDeviceGetAttribute", "asking for the GPU's properties", error);
    gpu->capability = 10 * major + minor;
    if (gpu->capability < 80)
        return fail(
            error, CODA_UNSUPPORTED,
            "GPU %d (%s) has compute capability %d.%d; coda needs 8.0 (Ampere) or later. Use the device \"cpu\"",
            gpu->ordinal, gpu->name, major, minor);
    snprintf(gpu->architecture, sizeof gpu->architecture, "sm_%d%s", gpu->capability, gpu->capability == 90 ? "a" : "");
    return CODA_OK;
}

static coda_status open_gpu(struct gpu *gpu, coda_error *error)
{
    int count = 0, device = 0;
    coda_status status = driver_load(&gpu->driver, error);
    if (status != CODA_OK)
        return status;
    const struct driver *driver = &gpu->driver;
    status = driver_check(driver, driver->DeviceGetCount(&count), "cuDeviceGetCount", "counting GPUs", error);
    if (status == CODA_OK && gpu->ordinal >= count)
        status =
            fail(error, CODA_DEVICE, "there is no GPU %d: the driver shows %d; see nvidia-smi and CUDA_VISIBLE_DEVICES",
                 gpu->ordinal, count);
    if (status == CODA_OK)
        status =
            driver_check(driver, driver->DeviceGet(&device, gpu->ordinal), "cuDeviceGet", "opening the GPU", error);
    if (status == CODA_OK)
        status = read_attributes(gpu, device, error);
    if (status == CODA_OK)
        status = driver_check(driver, driver->DevicePrimaryCtxRetain(&gpu->context, device), "cuDevicePrimaryCtxRetain",
                              "opening the GPU", error);
    if (status != CODA_OK)
        driver_unload(&gpu->driver);
    return status;
}

/* "", "1", or "sm_90a": an architecture to compile for, without a GPU. */
static coda_status take_selector(struct gpu *gpu, const char *selector, coda_error *error)
{
    char *end = NULL;
    if (!strncmp(selector, "sm_", 3)) {
        long capability = strtol(selector + 3, &end, 10);
        if (capability >= 80 && capability < 1000 && strlen(selector) < sizeof gpu->architecture &&
            (!*end || (*end == 'a' && !end[1]))) {
            snprintf(gpu->architecture, sizeof gpu->architecture, "%s", selector);
            gpu->capability = (int)capability;
            gpu->multiprocessors = 132;
            gpu->shared_bytes = capability == 80 || capability == 87 ? 166912 : capability >= 90 ? 232448 : 101376;
            return CODA_OK;
        }
    } else {
        long ordinal = strtol(selector, &end, 10);
        if (ordinal >= 0 && ordinal < 1024 && end && !*end) {
            gpu->ordinal = (int)ordinal;
            return CODA_OK;
        }
    }
    return fail(
        error, CODA_INVALID,
        "\"cuda:%.40s\": expected cuda, cuda:N with the number of a GPU, or cuda:sm_90a (sm_80 or later) to compile "
        "without one",
        selector);
}

/* As many of coda tune's choices as there is room for. */
static void describe_choices(const struct gpu *gpu, char *text, size_t size)
{
    struct text lines = {0};
    int left = 0;
    tune_list(gpu, &lines);
    for (const char *line = text_of(&lines); *line;) {
        int length = (int)strcspn(line, "\n");
        if ((size_t)length + 40 < size) {
            int written = snprintf(text, size, "\ntuned: %.*s", length, line);
            text += written;
            size -= (size_t)written;
        } else
            left++;
        line += length + (line[length] == '\n');
    }
    if (left)
        snprintf(text, size, "\ntuned: and %d more", left);
    text_free(&lines);
}

static void describe(const struct gpu *gpu, char *text, size_t size)
{
    int length = 0;
    if (gpu->driver.library)
        length =
            snprintf(text, size,
                     "GPU %d: %s, compute capability %d.%d, %d multiprocessors\ndriver: libcuda.so.1, CUDA %d.%d%s\n",
                     gpu->ordinal, gpu->name, gpu->capability / 10, gpu->capability % 10, gpu->multiprocessors,
                     gpu->driver.version / 1000, gpu->driver.version % 1000 / 10,
                     gpu->capability == 90 && !gpu->driver.TensorMapEncodeTiled
                         ? " (no cuTensorMapEncodeTiled: Hopper's copy engine is not used; update the driver)"
                         : "");
    else
        length = snprintf(text, size, "compiles for %s without a GPU\n", gpu->architecture);
    if (gpu->compiler.library)
        length += snprintf(text + length, size - (size_t)length, "compiler: NVRTC %d.%d, %s\n", gpu->compiler.major,
                           gpu->compiler.minor, gpu->compiler.path);
    else
        length += snprintf(text + length, size - (size_t)length,
                           "compiler: none, so only kernels in the cache run. %.900s\n", gpu->compiler_error.message);
    char blas[512];
    if (gpu->driver.library && blas_find(blas, sizeof blas))
        length += snprintf(text + length, size - (size_t)length, "cuBLASLt, for products where asked: %.300s\n", blas);
    length += snprintf(text + length, size - (size_t)length, "cache: %s", gpu->cache.remark);
    describe_choices(gpu, text + length, size - (size_t)length);
}

static coda_status cuda_open(coda_device *device, const char *selector, coda_error *error)
{
    struct gpu *gpu = calloc(1, sizeof *gpu);
    if (!gpu)
        return fail_memory(error, "a device", sizeof *gpu);
    gpu->pointers = calloc(1, sizeof *gpu->pointers);
    gpu->blas = blas_new();
    coda_status status = gpu->pointers && gpu->blas ? take_selector(gpu, selector, error)
                                                    : fail_memory(error, "a device", sizeof *gpu->pointers);
    if (status == CODA_OK && !gpu->architecture[0])
        status = open_gpu(gpu, error);
    if (status != CODA_OK) {
        blas_free(gpu, gpu->blas);
        free(gpu->pointers);
        free(gpu);
        return status;
    }
    compiler_load(&gpu->compiler, &gpu->compiler_error);
    cache_open(&gpu->cache);
    describe(gpu, device->description, sizeof device->description);
    device->state = gpu;
    return CODA_OK;
}

static void cuda_close(coda_device *device)
{
    struct gpu *gpu = device->state;
    blas_free(gpu, gpu->blas);
    if (gpu->driver.library) {
        int handle;
        if (gpu->driver.DeviceGet(&handle, gpu->ordinal) == 0)
            gpu->driver.DevicePrimaryCtxRelease(handle);
        driver_unload(&gpu->driver);
    }
    compiler_unload(&gpu->compiler);
    free(gpu->pointers);
    free(gpu);
}

/* ---------------------------------------------------------------- memory */

static coda_status cuda_allocate(coda_device *device, size_t bytes, void **pointer, coda_error *error)
{
    const struct gpu *gpu = device->state;
    device_pointer address = 0;
    char what[96];
    coda_status status = gpu_enter(gpu, error);
    if (status != CODA_OK)
        return status;
    snprintf(what, sizeof what, "allocating %zu bytes on the GPU", bytes);
    status = driver_check(&gpu->driver, gpu->driver.MemAlloc(&address, bytes ? bytes : 1), "cuMemAlloc", what, error);
    gpu_leave(gpu);
    if (status == CODA_OK)
        *pointer = (void *)(uintptr_t)address;
    return status;
}

static void cuda_release_memory(coda_device *device, void *pointer)
{
    const struct gpu *gpu = device->state;
    if (gpu_enter(gpu, NULL) != CODA_OK)
        return;
    pointers_forget(gpu->pointers, (device_pointer)(uintptr_t)pointer);
    gpu->driver.MemFree((device_pointer)(uintptr_t)pointer);
    gpu_leave(gpu);
}

static coda_status cuda_copy(coda_device *device, void *to, const void *from, size_t bytes, bool to_device,
                             coda_error *error)
{
    const struct gpu *gpu = device->state;
    coda_status status = gpu_enter(gpu, error);
    if (status != CODA_OK || bytes == 0) {
        if (status == CODA_OK)
            gpu_leave(gpu);
        return status;
    }
    if (to_device)
        status = driver_check(&gpu->driver, gpu->driver.MemcpyHtoD((device_pointer)(uintptr_t)to, from, bytes),
                              "cuMemcpyHtoD", "copying to the GPU", error);
    else
        status = driver_check(&gpu->driver, gpu->driver.MemcpyDtoH(to, (device_pointer)(uintptr_t)from, bytes),
                              "cuMemcpyDtoH", "copying from the GPU", error);
    gpu_leave(gpu);
    return status;
}

static coda_status cuda_synchronize(coda_device *device, void *stream, coda_error *error)
{
    const struct gpu *gpu = device->state;
    coda_status status = gpu_enter(gpu, error);
    if (status != CODA_OK)
        return status;
    status = driver_check(&gpu->driver, gpu->driver.StreamSynchronize(stream), "cuStreamSynchronize",
                          "waiting for the GPU", error);
    gpu_leave(gpu);
    return status;
}

const struct device_operations cuda_operations = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .prepare = cuda_prepare,
    .launch = cuda_launch,
    .release = cuda_release,
    .source = cuda_source,
    .binary = cuda_binary,
    .allocate = cuda_allocate,
    .release_memory = cuda_release_memory,
    .copy = cuda_copy,
    .synchronize = cuda_synchronize,
    .time = cuda_time,
    .record = cuda_record,
    .replay = cuda_replay,
    .drop = cuda_drop,
    .candidate = tune_candidate,
    .remember = tune_remember,
    .launch_sets = cuda_launch_sets,
    .product_time = cuda_product_time,
    .runs_blocks = false,
    .prefers_exponentials = true,
};
