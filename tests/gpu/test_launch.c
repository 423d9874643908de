/* Launches on the GPU: equal bits, graphs, many processes on a cold cache, misuse, host time. */
#include "cuda/kernel.h"
#include "image.h"
#include "sizes.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int failures;

static void expect(bool good, const char *what, const char *detail)
{
    if (!good)
        failures++;
    printf("%s %s%s%s\n", good ? "ok" : "FAIL", what, detail && *detail ? ": " : "", detail ? detail : "");
}

static const coda_program *program_named(const char *name)
{
    const coda_module *module;
    coda_error error = {0};
    return coda_standard_module(&module, &error) == CODA_OK ? coda_module_find(module, name) : NULL;
}

/* ---------------------------------------------------------------- many processes, before this one touches the GPU */

static int create_one(void)
{
    coda_device *device;
    coda_kernel *kernel;
    coda_error error = {0};
    if (coda_device_open("cuda", &device, &error) != CODA_OK)
        return 2;
    coda_status status = coda_kernel_create(device, program_named("gemm_rms"), NULL, NULL, &kernel, &error);
    if (status == CODA_OK)
        coda_kernel_free(kernel);
    else
        printf("%s\n", error.message);
    coda_device_close(device);
    return status != CODA_OK;
}

static void sixteen_processes_share_a_cold_cache(void)
{
    char folder[] = "/tmp/coda-cache-XXXXXX", command[64];
    int good = 0;
    if (!mkdtemp(folder))
        return;
    setenv("CODA_CACHE", folder, 1);
    for (int i = 0; i < 16; i++)
        if (fork() == 0)
            _exit(create_one());
    for (int i = 0; i < 16; i++) {
        int status = 0;
        wait(&status);
        good += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    unsetenv("CODA_CACHE");
    snprintf(command, sizeof command, "%d of 16", good);
    expect(good == 16, "sixteen processes compile into one cold cache", command);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0)
        printf("note: %s stays\n", folder);
}

/* ---------------------------------------------------------------- a kernel with operands */

struct subject {
    coda_device *device;
    struct trial trial;
    struct image image;
    coda_kernel *kernel;
};

static bool subject_new(struct subject *s, coda_device *device, const char *program, const coda_dims *dims,
                        const coda_options *options)
{
    coda_error error = {0};
    struct layout layout = {GUARD_END, 0};
    coda_dims fixed = {0};
    memset(s, 0, sizeof *s);
    s->device = device;
    const coda_program *p = program_named(program);
    for (int i = 0; i < dims->count; i++)
        if (axis_is_fixed(p->graph, graph_find_axis(p->graph, dims->item[i].axis)))
            fixed.item[fixed.count++] = dims->item[i];
    bool good = trial_new(&s->trial, p, dims, 11, layout, &error) == CODA_OK &&
                image_new(&s->image, device, &s->trial, PLACING_ALIGNED, &error) == CODA_OK &&
                image_send(&s->image, &s->trial, &error) == CODA_OK &&
                coda_kernel_create(device, p, &fixed, options, &s->kernel, &error) == CODA_OK;
    if (!good)
        printf("%s: %s\n", program, error.message);
    return good;
}

static void subject_free(struct subject *s)
{
    coda_kernel_free(s->kernel);
    image_free(&s->image);
    trial_free(&s->trial);
}

static coda_status launch(struct subject *s, void *stream, coda_error *error)
{
    return coda_kernel_launch(s->kernel, s->image.tensor, s->image.count, s->trial.parameter, stream, error);
}

/* Poisons outs, launches, and hashes what the outs hold. */
static uint64_t hash_of_run(struct subject *s, int launches)
{
    coda_error error = {0};
    uint64_t hash = 1469598103934665603u;
    trial_reset(&s->trial, POISON_BYTES);
    if (image_send(&s->image, &s->trial, &error) != CODA_OK)
        return 0;
    for (int i = 0; i < launches; i++)
        if (launch(s, NULL, &error) != CODA_OK) {
            printf("%s\n", error.message);
            return 0;
        }
    if (coda_synchronize(s->device, NULL, &error) != CODA_OK || image_receive(&s->image, &s->trial, &error))
        return 0;
    for (int i = 0; i < s->trial.count; i++) {
        const coda_tensor *t = &s->trial.tensor[i];
        const unsigned char *bytes = t->data;
        size_t size = (size_t)(tensor_rows(t) * tensor_columns(t)) * coda_dtype_size(t->dtype);
        for (size_t k = 0; k < size && s->trial.graph->operand[i].role == CODA_OUT; k++)
            hash = (hash ^ bytes[k]) * 1099511628211u;
    }
    return hash;
}

static const coda_dims middle = {3, {{"M", 700}, {"N", 776}, {"K", 320}}};

static void runs_give_the_same_bits(coda_device *device)
{
    static const char *const programs[] = {"gemm_residual_rms", "gemm_rms_bwd", "gemm_rms_swiglu", "gemm_swiglu_bwd"};
    static const char *const schedules[] = {"portable", "direct", "warps"};
    struct gpu *gpu = device->state;
    const int multiprocessors = gpu->multiprocessors;
    gpu->multiprocessors = 2; /* so that a block walks many tiles */
    for (size_t p = 0; p < sizeof programs / sizeof *programs; p++)
        for (size_t i = 0; i < sizeof schedules / sizeof *schedules; i++) {
            struct subject s;
            coda_options options = {.size = sizeof options, .schedule = schedules[i]};
            char what[96];
            snprintf(what, sizeof what, "a thousand launches give the bits of one, %s %s", programs[p], schedules[i]);
            if (!subject_new(&s, device, programs[p], &middle, &options)) {
                expect(false, what, "");
                continue;
            }
            uint64_t first = hash_of_run(&s, 1);
            bool same = first != 0;
            for (int run = 0; run < 10; run++)
                same &= hash_of_run(&s, 100) == first;
            expect(same, what, "");
            subject_free(&s);
        }
    gpu->multiprocessors = multiprocessors;
}

static void tiles_give_the_same_bits(coda_device *device)
{
    static const struct {
        const char *program, *schedule;
        int rows, columns;
    } rows[] = {{"gemm", "portable", 64, 64},
                {"gemm", "portable", 128, 64},
                {"gemm", "portable", 64, 128},
                {"gemm", "portable", 128, 128},
                {"gemm", "portable", 64, 256},
                {"gemm_residual_rms", "portable", 64, 128},
                {"gemm_residual_rms", "portable", 128, 128},
                {"gemm_residual_rms", "direct", 128, 128},
                {"gemm_residual_rms", "direct", 128, 256},
                {"gemm_residual_rms", "warps", 128, 128},
                {"gemm_residual_rms", "warps", 128, 256}};
    uint64_t before = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct subject s;
        coda_options options = {.size = sizeof options,
                                .schedule = rows[i].schedule,
                                .tile_rows = rows[i].rows,
                                .tile_columns = rows[i].columns};
        char what[128];
        snprintf(what, sizeof what, "%s %s, tile %d x %d, has the bits of the tile before", rows[i].program,
                 rows[i].schedule, rows[i].rows, rows[i].columns);
        if (!subject_new(&s, device, rows[i].program, &middle, &options)) {
            expect(false, what, "");
            continue;
        }
        uint64_t hash = hash_of_run(&s, 1);
        bool compares =
            i > 0 && !strcmp(rows[i].program, rows[i - 1].program) && !strcmp(rows[i].schedule, rows[i - 1].schedule);
        expect(hash && (!compares || hash == before), what, "");
        before = hash;
        subject_free(&s);
    }
}

/* A choice that tuning remembers is used by the next kernel of these sizes, and changes no bit. */
static void tuning_keeps_the_bits(coda_device *device)
{
    static const char *const programs[] = {"gemm_residual_rms", "gemm_rms_swiglu"};
    for (size_t p = 0; p < sizeof programs / sizeof *programs; p++) {
        struct subject s;
        coda_error error = {0};
        coda_kernel *tuned = NULL;
        coda_tune_options options = {.size = sizeof options, .rounds = 3};
        if (!subject_new(&s, device, programs[p], &middle, NULL)) {
            expect(false, "tuning keeps the bits", programs[p]);
            continue;
        }
        uint64_t before = hash_of_run(&s, 1);
        bool good =
            coda_kernel_tune(device, program_named(programs[p]), &middle, &options, NULL, NULL, &error) == CODA_OK &&
            coda_kernel_create(device, program_named(programs[p]), &middle, NULL, &tuned, &error) == CODA_OK;
        if (good) {
            coda_kernel_free(s.kernel);
            s.kernel = tuned;
            good = hash_of_run(&s, 1) == before;
        }
        expect(good, "tuning keeps the bits", good ? programs[p] : error.message);
        options.schedule = "";
        coda_kernel_tune(device, program_named(programs[p]), &middle, &options, NULL, NULL, NULL);
        subject_free(&s);
    }
}

static void see_library(void *context, const coda_candidate *candidate)
{
    if (candidate->options.schedule && !strcmp(candidate->options.schedule, "cublas"))
        snprintf(context, 256, "%.250s", candidate->refused ? candidate->refused : "timed");
}

/* Tuning compares the results of every candidate with those of the device's own choice before it times them. */
static void products_through_cublas_agree(coda_device *device)
{
    static const char *const programs[] = {"gemm", "gemm_dgrad", "gemm_wgrad"};
    for (size_t p = 0; p < sizeof programs / sizeof *programs; p++) {
        char seen[256] = "", what[96];
        coda_error error = {0};
        coda_tune_options options = {.size = sizeof options, .rounds = 1, .library = 1};
        coda_status status =
            coda_kernel_tune(device, program_named(programs[p]), &middle, &options, see_library, seen, &error);
        snprintf(what, sizeof what, "%s through cuBLASLt gives the same product", programs[p]);
        if (strstr(seen, "was not found"))
            printf("note no cuBLASLt: %s\n", seen);
        else
            expect(status == CODA_OK && !strcmp(seen, "timed"), what, status == CODA_OK ? seen : error.message);
        options = (coda_tune_options){.size = sizeof options, .schedule = ""};
        coda_kernel_tune(device, program_named(programs[p]), &middle, &options, NULL, NULL, NULL);
    }
}

/* ---------------------------------------------------------------- graphs */

static void graphs_capture_launches(coda_device *device)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    int (*push)(void *), (*retain)(void **, int), (*create)(void **, unsigned), (*begin)(void *, int),
        (*end)(void *, void **);
    int (*instantiate)(void **, void *, unsigned long long), (*run)(void *, void *), (*wait_for)(void *);
    const struct {
        const char *name;
        void *to;
    } calls[] = {{"cuCtxPushCurrent_v2", &push}, {"cuDevicePrimaryCtxRetain", &retain},
                 {"cuStreamCreate", &create},    {"cuStreamBeginCapture_v2", &begin},
                 {"cuStreamEndCapture", &end},   {"cuGraphInstantiateWithFlags", &instantiate},
                 {"cuGraphLaunch", &run},        {"cuStreamSynchronize", &wait_for}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        void *symbol = cuda ? dlsym(cuda, calls[i].name) : NULL;
        if (!symbol) {
            expect(false, "graph capture", calls[i].name);
            return;
        }
        memcpy(calls[i].to, &symbol, sizeof symbol);
    }
    struct subject s;
    coda_error error = {0};
    void *context, *stream, *graph = NULL, *executable = NULL;
    if (!subject_new(&s, device, "gemm_residual_rms", &middle, NULL)) {
        expect(false, "graph capture", "no kernel");
        return;
    }
    uint64_t plain = hash_of_run(&s, 1);
    retain(&context, 0);
    push(context);
    bool good = create(&stream, 1) == 0 && begin(stream, 2) == 0;
    for (int i = 0; i < 3; i++)
        good &= launch(&s, stream, &error) == CODA_OK;
    good &= end(stream, &graph) == 0 && graph && instantiate(&executable, graph, 0) == 0;
    trial_reset(&s.trial, POISON_BYTES);
    image_send(&s.image, &s.trial, &error);
    for (int i = 0; i < 10; i++)
        good &= run(executable, stream) == 0;
    good &= wait_for(stream) == 0 && image_receive(&s.image, &s.trial, &error) == NULL;
    expect(good, "a captured graph replays", error.message);
    expect(hash_of_run(&s, 1) == plain, "a launch after the graph gives the same bits", "");
    subject_free(&s);
}

/* ---------------------------------------------------------------- misuse and time */

static void misuse_is_refused(coda_device *device)
{
    struct subject s;
    coda_error error = {0};
    coda_kernel *kernel;
    if (!subject_new(&s, device, "gemm_rms", &middle, NULL))
        return;
    void *data = s.image.tensor[0].data;
    s.image.tensor[0].data = s.trial.tensor[0].data;
    expect(launch(&s, NULL, &error) == CODA_INVALID, "a host pointer is refused", error.message);
    s.image.tensor[0].data = data;
    coda_options wrong = {.size = sizeof wrong, .schedule = "fast"};
    expect(coda_kernel_create(device, program_named("gemm"), NULL, &wrong, &kernel, &error) == CODA_INVALID,
           "an unknown schedule is refused", error.message);
    wrong.schedule = "warps";
    expect(coda_kernel_create(device, program_named("gemm_wgrad"), NULL, &wrong, &kernel, &error) == CODA_UNSUPPORTED,
           "rounding an f32 sum is refused", error.message);
    wrong = (coda_options){.size = sizeof wrong, .tile_columns = 100};
    expect(coda_kernel_create(device, program_named("gemm"), NULL, &wrong, &kernel, &error) == CODA_UNSUPPORTED,
           "a tile that is not offered is refused", error.message);
    void *memory;
    expect(coda_allocate(device, (size_t)1 << 50, &memory, &error) == CODA_MEMORY, "too much memory is refused",
           error.message);
    subject_free(&s);
}

static void launches_cost_little(coda_device *device)
{
    struct subject s;
    coda_error error = {0};
    struct timespec begin, end;
    enum { LAUNCHES = 500 };
    coda_dims dims = {3, {{"M", 128}, {"N", 256}, {"K", 64}}};
    if (!subject_new(&s, device, "gemm_residual_rms", &dims, NULL))
        return;
    for (int i = 0; i < 50; i++)
        launch(&s, NULL, &error);
    coda_synchronize(device, NULL, &error);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < LAUNCHES; i++)
        launch(&s, NULL, &error);
    clock_gettime(CLOCK_MONOTONIC, &end);
    coda_synchronize(device, NULL, &error);
    printf("note a launch takes %.2f us of host time\n",
           ((double)(end.tv_sec - begin.tv_sec) * 1e6 + (double)(end.tv_nsec - begin.tv_nsec) * 1e-3) / LAUNCHES);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    coda_kernel *kernel;
    if (coda_kernel_create(device, program_named("gemm_residual_rms"), NULL, NULL, &kernel, &error) == CODA_OK) {
        clock_gettime(CLOCK_MONOTONIC, &end);
        printf("note a kernel from the cache takes %.2f ms\n",
               (double)(end.tv_sec - begin.tv_sec) * 1e3 + (double)(end.tv_nsec - begin.tv_nsec) * 1e-6);
        coda_kernel_free(kernel);
    }
    subject_free(&s);
}

int main(void)
{
    coda_error error = {0};
    coda_device *device;
    if (access("/dev/nvidiactl", F_OK) == 0)
        sixteen_processes_share_a_cold_cache();
    if (coda_device_open("cuda", &device, &error) != CODA_OK) {
        printf("skipped: %s\n", error.message);
        return 77;
    }
    printf("%s\n", coda_device_description(device));
    runs_give_the_same_bits(device);
    tiles_give_the_same_bits(device);
    tuning_keeps_the_bits(device);
    products_through_cublas_agree(device);
    graphs_capture_launches(device);
    misuse_is_refused(device);
    launches_cost_little(device);
    coda_device_close(device);
    return failures != 0;
}
