#include "emulated_gpu.h"
#include "kit/stub_gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of the kernels, which are named after their text; it ends with the process. CODA_EMULATED is the folder of translate.py
 * and emulated.h. */
static char folder[] = "/tmp/coda-emulated-XXXXXX";
static int copies;

struct text_of_kernel {
    char path[64]; /* without .so; the "cubin" is this text */
    char *source;
};

static void remove_folder(void)
{
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0)
        fprintf(stderr, "%s stays\n", folder);
}

static int create(void **program, const char *source, const char *name, int headers, const char *const *text,
                  const char *const *names)
{
    (void)name, (void)headers, (void)text, (void)names;
    struct text_of_kernel *kernel = calloc(1, sizeof *kernel);
    uint64_t digest = 14695981039346656037u; /* FNV-1a */
    if (!kernel)
        return 1;
    kernel->source = strdup(source);
    for (const char *at = source; *at; at++)
        digest = (digest ^ (unsigned char)*at) * 1099511628211u;
    snprintf(kernel->path, sizeof kernel->path, "%s/%016llx", folder, (unsigned long long)digest);
    *program = kernel;
    return kernel->source ? 0 : 1;
}

static int destroy(void **program)
{
    struct text_of_kernel *kernel = *program;
    free(kernel->source);
    free(kernel);
    *program = NULL;
    return 0;
}

static int compile(void *program, int options, const char *const *option)
{
    static const char flags[] = "-std=c++17 -O1 -w -Wno-psabi -fno-strict-aliasing -ffp-contract=off -shared -fPIC";
    const struct text_of_kernel *kernel = program;
    char own[96], command[1024];
    (void)options, (void)option;
    snprintf(own, sizeof own, "%s.so", kernel->path);
    if (access(own, R_OK) == 0)
        return 0;
    snprintf(own, sizeof own, "%s-%d", kernel->path, __atomic_fetch_add(&copies, 1, __ATOMIC_RELAXED));
    snprintf(command, sizeof command, "%s.cu", own);
    FILE *file = fopen(command, "w");
    if (!file || fputs(kernel->source, file) < 0 || fclose(file) != 0)
        return 1;
    snprintf(command, sizeof command,
             "c++ -E -P -x c++ -D__CUDA_ARCH__=900 %s.cu | python3 %s/translate.py >%s.cpp && c++ %s -I%s %s.cpp -o "
             "%s.so && mv %s.so %s.so",
             own, CODA_EMULATED, own, flags, CODA_EMULATED, own, own, own, kernel->path);
    return system(command) == 0 ? 0 : 6; /* NVRTC_ERROR_COMPILATION */
}

static int log_size(void *program, size_t *size)
{
    (void)program;
    *size = 0;
    return 0;
}

static int binary_size(void *program, size_t *size)
{
    *size = strlen(((struct text_of_kernel *)program)->path) + 1;
    return 0;
}

static int binary(void *program, char *text)
{
    const char *path = ((struct text_of_kernel *)program)->path;
    memcpy(text, path, strlen(path) + 1);
    return 0;
}

static const char *describe(int result)
{
    return result == 6 ? "the translation does not compile" : "the host's compiler could not be run";
}

static int load(driver_module *module, const void *image)
{
    char path[80];
    snprintf(path, sizeof path, "%s.so", (const char *)image);
    *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!*module)
        fprintf(stderr, "%s\n", dlerror());
    return *module ? 0 : 200;
}

static int run_held(void);
static int unload(driver_module module)
{
    run_held();
    return dlclose(module);
}

/* What a translated kernel exports. */
struct entry {
    int (*run)(const void *, unsigned, unsigned, unsigned, unsigned);
    bool (*is_apart)(const void *);
    size_t parameter_bytes;
};

static int find(driver_function *function, driver_module module, const char *name)
{
    (void)name; /* given after the compiler, which the library's table of symbols does not know */
    *function = dlsym(module, "emulated_entry");
    return *function ? 0 : 500;
}

static int run(const struct launch_configuration *c, driver_function function, const void *parameters)
{
    const struct entry *entry = (const struct entry *)(const void *)function;
    unsigned cluster = 1;
    for (unsigned i = 0; i < c->attribute_count; i++)
        if (c->attributes[i].id == LAUNCH_CLUSTER)
            cluster = c->attributes[i].value.cluster.x;
    int stuck = entry->run(parameters, c->grid_x, c->grid_y, c->block_x, cluster);
    return stuck ? 702 : 0; /* CUDA_ERROR_LAUNCH_TIMEOUT */
}

/* The latest launch that is not apart from those before it: it runs as late as it may, after those that are apart from it. */
static struct {
    struct launch_configuration configuration;
    struct launch_attribute attribute[2];
    driver_function function; /* NULL: there is none */
    _Alignas(64) unsigned char parameters[PARAMETER_BYTES];
} held;

static int run_held(void)
{
    driver_function function = held.function;
    held.function = NULL;
    return function ? run(&held.configuration, function, held.parameters) : 0;
}

static int launch(const struct launch_configuration *c, driver_function function, void **parameters, void **extra)
{
    const struct entry *entry = (const struct entry *)(const void *)function;
    (void)extra;
    if (entry->is_apart(parameters[0]))
        return run(c, function, parameters[0]);
    int result = run_held();
    held.configuration = *c;
    memcpy(held.attribute, c->attributes, c->attribute_count * sizeof *c->attributes);
    held.configuration.attributes = held.attribute;
    held.function = function;
    memcpy(held.parameters, parameters[0], entry->parameter_bytes);
    return result;
}

static int wait_for(driver_stream stream)
{
    (void)stream;
    return run_held();
}

static int copy_in(device_pointer to, const void *from, size_t bytes)
{
    int result = run_held();
    memcpy((void *)(uintptr_t)to, from, bytes);
    return result;
}

static int copy_out(void *to, device_pointer from, size_t bytes)
{
    int result = run_held();
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return result;
}

coda_device *emulated_open(const char *name)
{
    coda_device *device = stub_open_as(name);
    struct gpu *gpu = device->state;
    if (!mkdtemp(folder))
        return NULL;
    atexit(remove_folder);
    gpu->compiler.CreateProgram = create;
    gpu->compiler.DestroyProgram = destroy;
    gpu->compiler.CompileProgram = compile;
    gpu->compiler.GetProgramLogSize = log_size;
    gpu->compiler.GetCUBINSize = binary_size;
    gpu->compiler.GetCUBIN = binary;
    gpu->compiler.GetErrorString = describe;
    gpu->driver.ModuleLoadData = load;
    gpu->driver.ModuleUnload = unload;
    gpu->driver.ModuleGetFunction = find;
    gpu->driver.LaunchKernelEx = launch;
    gpu->driver.StreamSynchronize = wait_for;
    gpu->driver.MemcpyHtoD = copy_in;
    gpu->driver.MemcpyDtoH = copy_out;
    return device;
}
