/* NVRTC: where it may be, loading it, and compiling one text to a cubin. */
#include "cuda/driver.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Looks for `pattern` in the folders that the glob `folder` names; the last match wins, which is the newest version. */
static bool look_in(const char *folder, const char *pattern, char *path, size_t size, struct text *tried)
{
    char full[1024];
    if (snprintf(full, sizeof full, "%s/%s", folder, pattern) >= (int)sizeof full)
        return false;
    if (tried)
        text_add(tried, "%s%s", tried->length ? ", " : "", folder);
    glob_t found;
    bool any = false;
    if (glob(full, 0, NULL, &found) == 0) {
        any = found.gl_pathc > 0 && strlen(found.gl_pathv[found.gl_pathc - 1]) < size;
        if (any)
            snprintf(path, size, "%s", found.gl_pathv[found.gl_pathc - 1]);
        globfree(&found);
    }
    return any;
}

/* The wheels of an interpreter that stands in `bin`. */
static bool look_beside(const char *bin, int length, const char *pattern, char *path, size_t size, struct text *tried)
{
    char folder[700];
    snprintf(folder, sizeof folder, "%.*s/python3", length, bin);
    glob_t found;
    if (length <= 0 || length > 500 || glob(folder, 0, NULL, &found) != 0)
        return false;
    globfree(&found);
    snprintf(folder, sizeof folder, "%.*s/../lib/python3*/site-packages/nvidia/*/lib", length, bin);
    return look_in(folder, pattern, path, size, tried);
}

static bool look_beside_interpreters(const char *pattern, char *path, size_t size, struct text *tried)
{
    const char *list = getenv("PATH");
    while (list && *list) {
        size_t length = strcspn(list, ":");
        if (length < 500 && look_beside(list, (int)length, pattern, path, size, tried))
            return true;
        list += length + (list[length] == ':');
    }
    return false;
}

bool find_library(const char *pattern, char *path, size_t size, struct text *tried)
{
    static const char *const below[] = {"",
                                        "/lib64",
                                        "/lib",
                                        "/lib/x86_64-linux-gnu",
                                        "/targets/*/lib",
                                        "/nvidia/*/lib"}; /* the last: where `pip --target` puts it */
    static const char *const folders[] = {"/usr/local/cuda/lib64",
                                          "/usr/local/cuda-1[23]*/lib64",
                                          "/usr/lib/x86_64-linux-gnu",
                                          "/usr/lib64",
                                          "/usr/local/lib/python3*/*-packages/nvidia/*/lib",
                                          "/usr/lib/python3*/*-packages/nvidia/*/lib"};
    const char *chosen = getenv("CODA_CUDA_PATH"), *environment = getenv("VIRTUAL_ENV"), *home = getenv("HOME");
    char folder[700];
    for (size_t i = 0; chosen && *chosen && strlen(chosen) < 600 && i < sizeof below / sizeof *below; i++) {
        snprintf(folder, sizeof folder, "%s%s", chosen, below[i]);
        if (look_in(folder, pattern, path, size, tried))
            return true;
    }
    if (environment && *environment && strlen(environment) < 600) {
        snprintf(folder, sizeof folder, "%s/lib/python3*/site-packages/nvidia/*/lib", environment);
        if (look_in(folder, pattern, path, size, tried))
            return true;
    }
    if (look_beside_interpreters(pattern, path, size, tried))
        return true;
    if (home && *home && strlen(home) < 600) {
        snprintf(folder, sizeof folder, "%s/.local/lib/python3*/site-packages/nvidia/*/lib", home);
        if (look_in(folder, pattern, path, size, tried))
            return true;
    }
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (look_in(folders[i], pattern, path, size, tried))
            return true;
    return false;
}

/* NVRTC opens its builtins by name alone, so they are loaded from beside it first. */
static void load_builtins(struct compiler *compiler)
{
    char folder[512], path[512];
    snprintf(folder, sizeof folder, "%s", compiler->path);
    char *slash = strrchr(folder, '/');
    if (!slash)
        return;
    *slash = '\0';
    if (look_in(folder, "libnvrtc-builtins.so.*", path, sizeof path, NULL))
        compiler->builtins = dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
}

static bool bind_compiler(struct compiler *compiler)
{
    int (*version)(int *, int *) = NULL;
    const struct {
        const char *name;
        void *pointer;
    } calls[] = {{"nvrtcVersion", &version},
                 {"nvrtcCreateProgram", &compiler->CreateProgram},
                 {"nvrtcDestroyProgram", &compiler->DestroyProgram},
                 {"nvrtcCompileProgram", &compiler->CompileProgram},
                 {"nvrtcGetProgramLogSize", &compiler->GetProgramLogSize},
                 {"nvrtcGetProgramLog", &compiler->GetProgramLog},
                 {"nvrtcGetCUBINSize", &compiler->GetCUBINSize},
                 {"nvrtcGetCUBIN", &compiler->GetCUBIN},
                 {"nvrtcGetErrorString", &compiler->GetErrorString}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        void *symbol = dlsym(compiler->library, calls[i].name);
        if (!symbol)
            return false;
        memcpy(calls[i].pointer, &symbol, sizeof symbol);
    }
    return version(&compiler->major, &compiler->minor) == 0;
}

/* NVRTC never frees what it allocates when it is loaded, so it stays loaded: once for all devices. */
static bool open_compiler(struct compiler *compiler, const char *path)
{
    compiler->library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!compiler->library)
        return false;
    if (!bind_compiler(compiler)) {
        compiler_unload(compiler);
        return false;
    }
    snprintf(compiler->path, sizeof compiler->path, "%s", path);
    return true;
}

coda_status compiler_load(struct compiler *compiler, coda_error *error)
{
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
    memset(compiler, 0, sizeof *compiler);
    struct text tried = {0};
    char path[512];
    const char *chosen = getenv("CODA_CUDA_PATH");
    /* The loader's own path comes first, unless the user chose a place. */
    for (size_t i = 0; !(chosen && *chosen) && i < sizeof names / sizeof *names; i++)
        if (open_compiler(compiler, names[i]))
            return CODA_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!find_library(names[i], path, sizeof path, i ? NULL : &tried))
            continue;
        snprintf(compiler->path, sizeof compiler->path, "%s", path);
        load_builtins(compiler);
        if (open_compiler(compiler, path)) {
            text_free(&tried);
            return CODA_OK;
        }
    }
    coda_status status =
        fail(error, CODA_DEVICE,
             "NVRTC (libnvrtc.so.13 or .12), which compiles kernels, was not found in %.900s, nor by the loader. "
             "Install the "
             "CUDA toolkit or `pip install nvidia-cuda-nvrtc`, and set CODA_CUDA_PATH to the folder that holds it",
             tried.data ? tried.data : "the usual places");
    text_free(&tried);
    compiler_unload(compiler);
    return status;
}

void compiler_unload(struct compiler *compiler)
{
    if (compiler->library)
        dlclose(compiler->library);
    if (compiler->builtins)
        dlclose(compiler->builtins);
    memset(compiler, 0, sizeof *compiler);
}

/* Appends NVRTC's log, which holds ptxas's remarks too. */
static void read_log(const struct compiler *compiler, void *program, struct text *log)
{
    size_t size = 0;
    if (compiler->GetProgramLogSize(program, &size) != 0 || size < 2)
        return;
    char *copy = calloc(1, size + 1);
    if (copy && compiler->GetProgramLog(program, copy) == 0)
        text_append(log, copy);
    free(copy);
}

static coda_status fail_compile(const struct compiler *compiler, int result, const char *name, const struct text *log,
                                coda_error *error)
{
    return fail(error, CODA_DEVICE, "NVRTC %d.%d (%s) could not compile %s: %s\n%.3000s", compiler->major,
                compiler->minor, compiler->path, name, compiler->GetErrorString(result), log->data ? log->data : "");
}

const char *compiler_options(void)
{
    return "--std=c++17 --ptxas-options=-v -fmad=false -diag-suppress=177";
}

coda_status compiler_run(const struct compiler *compiler, const char *source, const char *name,
                         const char *architecture, void **cubin, size_t *size, struct text *log, coda_error *error)
{
    char target[64];
    snprintf(target, sizeof target, "--gpu-architecture=%s", architecture);
    const char *options[] = {target, "--std=c++17", "--ptxas-options=-v", "-fmad=false", "-diag-suppress=177"};
    void *program = NULL;
    char *made = NULL;
    struct text own = {0};
    struct text *remarks = log ? log : &own;
    coda_status status = CODA_OK;
    int result = compiler->CreateProgram(&program, source, name, 0, NULL, NULL);
    if (result == 0)
        result = compiler->CompileProgram(program, (int)(sizeof options / sizeof *options), options);
    if (program)
        read_log(compiler, program, remarks);
    if (result == 0)
        result = compiler->GetCUBINSize(program, size);
    if (result != 0) {
        status = fail_compile(compiler, result, name, remarks, error);
        goto done;
    }
    made = malloc(*size + 1);
    if (!made) {
        status = fail_memory(error, "a compiled kernel", *size);
        goto done;
    }
    result = compiler->GetCUBIN(program, made);
    if (result != 0) {
        status = fail_compile(compiler, result, name, remarks, error);
        goto done;
    }
    *cubin = made;
    made = NULL;
done:
    free(made);
    if (program)
        compiler->DestroyProgram(&program);
    text_free(&own);
    return status;
}
