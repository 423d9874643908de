/* libcuda: loading it, and what its errors mean. */
#include "cuda/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static bool bind_call(void *library, const char *name, const char *suffix, void *pointer)
{
    char full[96];
    snprintf(full, sizeof full, "cu%s%s", name, suffix);
    void *symbol = dlsym(library, full);
    memcpy(pointer, &symbol, sizeof symbol);
    return symbol != NULL;
}

coda_status driver_load(struct driver *driver, coda_error *error)
{
    memset(driver, 0, sizeof *driver);
    driver->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver->library)
        return fail(error, CODA_DEVICE,
                    "no NVIDIA driver: libcuda.so.1 did not load (%s). Install the driver, or use the device \"cpu\"",
                    dlerror());
    const char *missing = NULL;
#define BIND(name, suffix, arguments)                                                                                  \
    if (!bind_call(driver->library, #name, suffix, &driver->name))                                                     \
        missing = "cu" #name suffix;
    DRIVER_CALLS(BIND)
#undef BIND
    bind_call(driver->library, "TensorMapEncodeTiled", "", &driver->TensorMapEncodeTiled);
    coda_status status = CODA_OK;
    if (missing)
        status = fail(error, CODA_DEVICE, "the NVIDIA driver lacks %s: it is older than CUDA 11.8; update it", missing);
    if (status == CODA_OK)
        status = driver_check(driver, driver->Init(0), "cuInit", "starting the driver", error);
    if (status == CODA_OK)
        status = driver_check(driver, driver->DriverGetVersion(&driver->version), "cuDriverGetVersion",
                              "asking for the driver's version", error);
    if (status != CODA_OK)
        driver_unload(driver);
    return status;
}

void driver_unload(struct driver *driver)
{
    if (driver->library)
        dlclose(driver->library);
    driver->library = NULL;
}

static const char *advice_for(int result)
{
    switch (result) {
    case 2: /* OUT_OF_MEMORY */
        return "free memory on the GPU, or use smaller operands";
    case 100: /* NO_DEVICE */
        return "no NVIDIA GPU is visible; see nvidia-smi and CUDA_VISIBLE_DEVICES";
    case 200: /* INVALID_IMAGE */
    case 209: /* NO_BINARY_FOR_GPU */
    case 222: /* UNSUPPORTED_PTX_VERSION */
        return "the run-time compiler is newer than the driver; update the driver, or point CODA_CUDA_PATH to an older "
               "CUDA";
    case 700: /* ILLEGAL_ADDRESS */
    case 716: /* MISALIGNED_ADDRESS */
    case 719: /* LAUNCH_FAILED */
        return "an earlier kernel of this process failed; the device is lost until the process ends. Check the "
               "operands' memory";
    case 803: /* SYSTEM_DRIVER_MISMATCH */
        return "the driver's user library and kernel module differ; reboot after an update";
    default:
        return "see nvidia-smi";
    }
}

coda_status driver_check(const struct driver *driver, int result, const char *call, const char *what, coda_error *error)
{
    if (!result)
        return CODA_OK;
    const char *name = NULL, *description = NULL;
    driver->GetErrorName(result, &name);
    driver->GetErrorString(result, &description);
    return fail(error, result == 2 ? CODA_MEMORY : CODA_DEVICE, "%s: %s failed with %s (%d: %s); %s", what, call,
                name ? name : "an unknown code", result, description ? description : "?", advice_for(result));
}
