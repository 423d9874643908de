/* Preparing a kernel: plan, text, cache or compiler, module. */
#include "cuda/kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Everything that the cubin depends on. */
static coda_status key_of(const struct gpu *gpu, const struct compiled *c, struct digest *key, coda_error *error)
{
    struct text text = {0};
    text_add(&text, "coda %s NVRTC %d.%d %s %s\n", CODA_VERSION, gpu->compiler.major, gpu->compiler.minor,
             gpu->architecture, compiler_options());
    text_append(&text, text_of(&c->source));
    coda_status status = text.failed ? fail_memory(error, "the key of a kernel", c->source.length) : CODA_OK;
    if (status == CODA_OK)
        *key = digest_of(text.data, text.length);
    text_free(&text);
    return status;
}

static coda_status find_cubin(const struct gpu *gpu, const char *name, struct compiled *c, coda_error *error)
{
    struct digest key;
    coda_status status = key_of(gpu, c, &key, error);
    if (status != CODA_OK || cache_get(&gpu->cache, &key, &c->cubin, &c->cubin_size))
        return status;
    if (!gpu->compiler.library)
        return fail(error, CODA_DEVICE, "%s is not in the cache, and must be compiled: %.3500s", name,
                    gpu->compiler_error.message);
    status = compiler_run(&gpu->compiler, c->source.data, name, gpu->architecture, &c->cubin, &c->cubin_size, &c->log,
                          error);
    if (status == CODA_OK)
        cache_put(&gpu->cache, &key, c->cubin, c->cubin_size);
    return status;
}

static coda_status load(const struct gpu *gpu, struct compiled *c, coda_error *error)
{
    const struct driver *driver = &gpu->driver;
    if (c->shared_bytes > gpu->shared_bytes)
        return fail(error, CODA_UNSUPPORTED, "a tile needs %d bytes of shared memory; a block of this GPU has %d",
                    c->shared_bytes, gpu->shared_bytes);
    coda_status status = gpu_enter(gpu, error);
    if (status != CODA_OK)
        return status;
    status = driver_check(driver, driver->ModuleLoadData(&c->module, c->cubin), "cuModuleLoadData", "loading a kernel",
                          error);
    if (status == CODA_OK)
        status = driver_check(driver, driver->ModuleGetFunction(&c->function, c->module, "coda_kernel"),
                              "cuModuleGetFunction", "loading a kernel", error);
    if (status == CODA_OK && c->shared_bytes > 0)
        status =
            driver_check(driver, driver->FuncSetAttribute(c->function, FUNCTION_MAX_DYNAMIC_SHARED, c->shared_bytes),
                         "cuFuncSetAttribute", "asking for shared memory", error);
    gpu_leave(gpu);
    return status;
}

static coda_status prepare_variant(const struct gpu *gpu, const struct plan *plan, struct compiled *c,
                                   coda_error *error)
{
    char name[128];
    snprintf(name, sizeof name, "%.80s (%s)", plan->graph->name, mainloop_name(c->variant.mainloop));
    if (parameter_layout(plan->graph, c->variant.map_count).total > 4096)
        return fail(error, CODA_UNSUPPORTED, "%s: its operands do not fit the 4096 bytes of a kernel's parameters",
                    name);
    coda_status status = source_write(plan, &c->variant, &c->source, error);
    if (status != CODA_OK)
        return status;
    c->shared_bytes = variant_shared_bytes(plan, &c->variant);
    if (!gpu->driver.library && !gpu->compiler.library)
        return CODA_OK; /* the text alone */
    status = find_cubin(gpu, name, c, error);
    if (status == CODA_OK && gpu->driver.library)
        status = load(gpu, c, error);
    return status;
}

coda_status cuda_prepare(coda_kernel *kernel, coda_error *error)
{
    const struct gpu *gpu = kernel->device->state;
    struct variant variant[MAX_VARIANTS];
    int count = 0;
    struct cuda_kernel *k = calloc(1, sizeof *k);
    if (!k)
        return fail_memory(error, "a CUDA kernel", sizeof *k);
    kernel->state = k;
    coda_status status = plan_create(kernel, &k->plan, error);
    if (status == CODA_OK)
        status = choose_variants(gpu, kernel, &k->plan, variant, &count, error);
    for (int i = 0; i < count && status == CODA_OK; i++) {
        k->compiled[i].variant = variant[i];
        k->variant_count++;
        status = prepare_variant(gpu, &k->plan, &k->compiled[i], error);
    }
    if (status != CODA_OK) {
        cuda_release(kernel);
        kernel->state = NULL;
    }
    return status;
}

void cuda_release(coda_kernel *kernel)
{
    const struct gpu *gpu = kernel->device->state;
    struct cuda_kernel *k = kernel->state;
    if (!k)
        return;
    for (int i = 0; i < k->variant_count; i++) {
        struct compiled *c = &k->compiled[i];
        if (c->module && gpu_enter(gpu, NULL) == CODA_OK) {
            gpu->driver.ModuleUnload(c->module);
            gpu_leave(gpu);
        }
        free(c->cubin);
        text_free(&c->source);
        text_free(&c->log);
    }
    plan_free(&k->plan);
    free(k);
}

const char *cuda_source(const coda_kernel *kernel)
{
    const struct cuda_kernel *k = kernel->state;
    return k->variant_count ? text_of(&k->compiled[0].source) : "";
}
