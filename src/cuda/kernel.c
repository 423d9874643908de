/* Preparing a kernel: plan, text, cache or compiler, module. */
#include "cuda/kernel.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Everything that the cubin depends on. */
static coda_status key_of(const struct gpu *gpu, const struct text *source, struct digest *key, coda_error *error)
{
    struct text text = {0};
    text_add(&text, "coda %s NVRTC %d.%d %s %s\n", CODA_VERSION, gpu->compiler.major, gpu->compiler.minor,
             gpu->architecture, compiler_options());
    text_append(&text, text_of(source));
    coda_status status = text.failed ? fail_memory(error, "the key of a kernel", source->length) : CODA_OK;
    if (status == CODA_OK)
        *key = digest_of(text.data, text.length);
    text_free(&text);
    return status;
}

static coda_status find_common(const struct gpu *gpu, const char *name, const struct text *source, struct compiled *c,
                               coda_error *error)
{
    struct digest key;
    coda_status status = key_of(gpu, source, &key, error);
    if (status != CODA_OK || cache_get(&gpu->cache, "cubin", &key, &c->cubin, &c->cubin_size))
        return status;
    if (!gpu->compiler.library)
        return fail(error, CODA_DEVICE, "%s is not in the cache, and must be compiled: %.3500s", name,
                    gpu->compiler_error.message);
    status =
        compiler_run(&gpu->compiler, source->data, name, gpu->architecture, &c->cubin, &c->cubin_size, &c->log, error);
    if (status == CODA_OK)
        cache_put(&gpu->cache, "cubin", &key, c->cubin, c->cubin_size);
    return status;
}

static coda_status find_cubin(const struct gpu *gpu, const char *program, const char *name, struct compiled *c,
                              coda_error *error)
{
    struct text source = {0};
    coda_status status = source_without_names(&c->source, &source, error);
    if (status == CODA_OK)
        status = find_common(gpu, name, &source, c, error);
    if (status == CODA_OK)
        source_name(program, c->cubin, c->cubin_size);
    text_free(&source);
    return status;
}

static coda_status load(const struct gpu *gpu, struct compiled *c, const char *program, coda_error *error)
{
    const struct driver *driver = &gpu->driver;
    char entry[ENTRY_NAME];
    source_entry(program, entry);
    if (c->shared_bytes > gpu->shared_bytes)
        return fail(error, CODA_UNSUPPORTED, "a tile needs %d bytes of shared memory; a block of this GPU has %d",
                    c->shared_bytes, gpu->shared_bytes);
    coda_status status = gpu_enter(gpu, error);
    if (status != CODA_OK)
        return status;
    status = driver_check(driver, driver->ModuleLoadData(&c->module, c->cubin), "cuModuleLoadData", "loading a kernel",
                          error);
    if (status == CODA_OK)
        status = driver_check(driver, driver->ModuleGetFunction(&c->function, c->module, entry), "cuModuleGetFunction",
                              "loading a kernel", error);
    if (status == CODA_OK && c->shared_bytes > 0)
        status =
            driver_check(driver, driver->FuncSetAttribute(c->function, FUNCTION_MAX_DYNAMIC_SHARED, c->shared_bytes),
                         "cuFuncSetAttribute", "asking for shared memory", error);
    gpu_leave(gpu);
    return status;
}

/* What needs neither the cache nor the compiler. */
static coda_status write_text(const struct plan *plan, struct compiled *c, coda_error *error)
{
    if (parameter_bytes(plan->graph, &c->variant) > PARAMETER_BYTES)
        return fail(error, CODA_UNSUPPORTED, "%s (%s): its operands do not fit the %d bytes of a kernel's parameters",
                    plan->graph->name, mainloop_name(c->variant.mainloop), PARAMETER_BYTES);
    c->shared_bytes = variant_shared_bytes(plan, &c->variant);
    return source_write(plan, &c->variant, &c->source, error);
}

/* Finding or compiling one variant's cubin, on a thread of its own. */
struct job {
    const struct gpu *gpu;
    struct compiled *compiled;
    const char *program;
    char name[128];
    coda_status status;
    coda_error error;
    pthread_t thread;
    bool has_thread;
};

static void *run_job(void *argument)
{
    struct job *job = argument;
    job->status = find_cubin(job->gpu, job->program, job->name, job->compiled, &job->error);
    return NULL;
}

/* Variants compile side by side: seconds each. The last one stays on this thread. */
static coda_status find_cubins(const struct gpu *gpu, struct cuda_kernel *k, coda_error *error)
{
    coda_status status = CODA_OK;
    struct job *job = calloc(MAX_VARIANTS, sizeof *job);
    if (!job)
        return fail_memory(error, "compiling a kernel", MAX_VARIANTS * sizeof *job);
    for (int i = 0; i < k->variant_count; i++) {
        job[i].gpu = gpu;
        job[i].compiled = &k->compiled[i];
        job[i].program = k->plan.graph->name;
        snprintf(job[i].name, sizeof job[i].name, "%.80s (%s)", k->plan.graph->name,
                 mainloop_name(k->compiled[i].variant.mainloop));
        job[i].has_thread = i + 1 < k->variant_count && pthread_create(&job[i].thread, NULL, run_job, &job[i]) == 0;
        if (!job[i].has_thread)
            run_job(&job[i]);
    }
    for (int i = 0; i < k->variant_count; i++) {
        if (job[i].has_thread)
            pthread_join(job[i].thread, NULL);
        if (job[i].status != CODA_OK && status == CODA_OK) {
            status = job[i].status;
            if (error)
                *error = job[i].error;
        }
    }
    free(job);
    return status;
}

/* The variant that was measured to be fastest; false: there is none, or it does not fit any more. */
static bool recall_variant(const struct gpu *gpu, coda_kernel *kernel, struct cuda_kernel *k, struct variant *tuned)
{
    coda_options given = kernel->options, choice;
    struct variant variant[MAX_VARIANTS];
    int count = 0;
    if (!tune_recall(gpu, kernel, &choice))
        return false;
    if (!strcmp(choice.schedule, "cublas")) {
        if (blas_prepare(gpu, &k->plan, kernel->fixed_size, &k->blas, NULL) != CODA_OK)
            k->blas = NULL;
        return false;
    }
    kernel->options = choice;
    coda_status status = choose_variants(gpu, kernel, &k->plan, variant, &count, NULL);
    kernel->options = given;
    *tuned = variant[0];
    return status == CODA_OK && count > 0;
}

/* What was measured goes first; behind it stays the device's own way to serve any operands. */
static coda_status choose_all(const struct gpu *gpu, coda_kernel *kernel, struct cuda_kernel *k,
                              struct variant variant[MAX_VARIANTS], int *count, coda_error *error)
{
    struct variant tuned;
    if (kernel->options.schedule && !strcmp(kernel->options.schedule, "cublas"))
        return blas_prepare(gpu, &k->plan, kernel->fixed_size, &k->blas, error);
    bool recalled = recall_variant(gpu, kernel, k, &tuned);
    coda_status status = choose_variants(gpu, kernel, &k->plan, variant, count, error);
    if (status != CODA_OK || !recalled)
        return status;
    struct variant last = variant[*count - 1];
    variant[0] = tuned;
    *count = 1;
    if (is_hopper(tuned.mainloop) && !is_hopper(last.mainloop))
        variant[(*count)++] = last;
    return CODA_OK;
}

static coda_status make_kernel(const struct gpu *gpu, coda_kernel *kernel, struct cuda_kernel *k, coda_error *error)
{
    struct variant variant[MAX_VARIANTS] = {0};
    int count = 0;
    coda_status status = plan_create(kernel, gpu->capability >= 90, &k->plan, error);
    if (status == CODA_OK)
        status = recent_create(&k->recent, kernel->graph, 1, error);
    if (status == CODA_OK)
        status = choose_all(gpu, kernel, k, variant, &count, error);
    if (status == CODA_OK && count > 0 && choose_joined(gpu, kernel, &k->plan, &variant[0], &variant[count]))
        status = recent_create(&k->recent_joined, kernel->graph, variant[count++].problems, error);
    for (int i = 0; i < count && status == CODA_OK; i++) {
        k->compiled[i].variant = variant[i];
        k->variant_count++;
        k->joined = variant[i].problems > 1 ? &k->compiled[i] : NULL;
        status = write_text(&k->plan, &k->compiled[i], error);
    }
    if (status != CODA_OK || (!gpu->driver.library && !gpu->compiler.library))
        return status; /* without both, the text alone */
    status = find_cubins(gpu, k, error);
    for (int i = 0; i < count && status == CODA_OK && gpu->driver.library; i++)
        status = load(gpu, &k->compiled[i], k->plan.graph->name, error);
    return status;
}

coda_status cuda_prepare(coda_kernel *kernel, coda_error *error)
{
    struct cuda_kernel *k = calloc(1, sizeof *k);
    if (!k)
        return fail_memory(error, "a CUDA kernel", sizeof *k);
    kernel->state = k;
    coda_status status = make_kernel(kernel->device->state, kernel, k, error);
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
    blas_product_free(gpu, k->blas);
    recent_free(&k->recent);
    recent_free(&k->recent_joined);
    plan_free(&k->plan);
    free(k);
}

const char *cuda_source(const coda_kernel *kernel)
{
    const struct cuda_kernel *k = kernel->state;
    return k->variant_count ? text_of(&k->compiled[0].source) : "/* a product through cuBLASLt */\n";
}

const void *cuda_binary(const coda_kernel *kernel, size_t *size)
{
    const struct cuda_kernel *k = kernel->state;
    if (!k->variant_count || !k->compiled[0].cubin)
        return NULL;
    *size = k->compiled[0].cubin_size;
    return k->compiled[0].cubin;
}
