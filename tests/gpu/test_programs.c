/* Every standard program, and passes that no standard one makes, with every schedule and placing of operands on the GPU
 * over a sweep of shapes, against the tests' own evaluation. Arguments: programs to test, all without any, or a part of
 * all (2/7); before them a type (f32, f16, e4m3, e5m2) in the place of bf16. With CODA_TEST_QUICK a few shapes. Prints a
 * line a failure and a summary. */
#include "cuda/kernel.h"
#include "image.h"
#include "kit/compare.h"
#include "sizes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const schedules[] = {NULL, "portable", "direct", "warps", "copied"};
enum { SCHEDULES = sizeof schedules / sizeof *schedules, MOST_REPORTS = 12 };
static const char *const placings[] = {"aligned", "packed", "odd"};

/* Programs without a product (and sums of 16 bits with one): runs longer than a warp's step and than the matrix, runs read back, halves, pairs, both kinds
 * of reductions at once, types of every width, vectors of rows and columns as outs. */
static const char passes[] =
    "program pass_long_runs { in x : bf16[M, N]; out a : f32[M, N/1024] = logsumexp(x, N:1024)\n"
    "  out b : f32[M, N/4096] = sum(x * x, N:4096); out c : f32[M, N/256] = max(x, N:256)\n"
    "  out y : bf16[M, N] = x * 2 }\n"
    "program pass_read_back { in x : bf16[M, N]; in g : bf16[N]; s = rsqrt(sum(x * x, N:128) / 128 + 0.1)\n"
    "  out y : f32[M, N] = x * s * g; out S : f32[M, N/16] = sum(x, N:16) }\n"
    "program pass_both_ways { in x : f32[M, N]; in d : bf16[M, N]; in r : f32[M]\n"
    "  out dg : f32[M/32, N] = sum(x * d * r, M:32); out c : f32[M, N/512] = sum(x, N:512); out y : bf16[M, N] = x * r "
    "}\n"
    "program pass_pairs { in x : f32[M, N]; even, odd = pairs(x); out y : f32[M, N/2] = silu(even) * odd }\n"
    "program pass_vectors { in a : f32[M, N]; in t : i32[M]; in g : f32[N]\n"
    "  out h : f32[N] = g * 2; out p : f32[M] = pick(a, t); out r : f32[M] = t + 1; out o : bf16[M, N] = onehot(t, N) "
    "* g; out y : f32[M, N] += a }\n"
    "program pass_sums { in x : f32[M, N]; l, h = pairs(x); out y : bf16[M, N] += cast(x * 1.7, bf16)\n"
    "  out z : f16[M, N/2] += cast(l * h, f16) }\n"
    "program product_sum { in dZ : bf16[M, V]; in A : bf16[M, K]; out dW : bf16[V, K] += cast(dZ.T @ A, bf16) }\n";

struct run {
    coda_device *device;
    int multiprocessors;
    const coda_program *program;
    coda_kernel *kernel[SCHEDULES];
    bool exact[SCHEDULES]; /* must be within f32 arithmetic, not only within rounded accumulators */
    int trials, failures, refused;
};

static void report(struct run *run, int schedule, enum placing placing, const coda_dims *dims, const char *text)
{
    char sizes[256];
    sizes_print(dims, sizes, sizeof sizes);
    if (run->failures++ < MOST_REPORTS)
        printf("FAIL %s %s %s%s: %s\n", coda_program_name(run->program),
               schedules[schedule] ? schedules[schedule] : "default", placings[placing], sizes, text);
}

/* The program's parameters beside their defaults, so that every option does something. */
static void set_parameters(struct trial *trial)
{
    static const struct {
        const char *name;
        double value;
    } rows[] = {{"eps", 1e-2},  {"cap", 2},     {"smoothing", 0.1}, {"zloss", 0.01}, {"divisor", 7}, {"ignore", 3},
                {"scale", 0.5}, {"decay", 0.2}, {"c1", 1.3},        {"c2", 1.7},     {"lr", 0.01},   {"b1", 0.8}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        trial_set_parameter(trial, rows[i].name, rows[i].value);
}

/* A rounded accumulator's error varies from element to element, so few of them say little: such
 * trials check that everything was written and nothing else. */
static bool is_judged(const struct trial *trial)
{
    int64_t fewest = INT64_MAX;
    for (int i = 0; i < trial->count; i++) {
        int64_t elements = tensor_rows(&trial->tensor[i]) * tensor_columns(&trial->tensor[i]);
        if (trial->graph->operand[i].role != CODA_IN && elements < fewest)
            fewest = elements;
    }
    return fewest >= 48;
}

static void run_one(struct run *run, struct trial *trial, const struct evaluation *evaluation, int schedule,
                    enum placing placing)
{
    struct image image;
    coda_error error = {0};
    char text[512];
    if (!run->kernel[schedule])
        return;
    run->trials++;
    trial_reset(trial, placing == PLACING_ODD ? POISON_NAN : POISON_BYTES);
    if (image_new(&image, run->device, trial, placing, &error) != CODA_OK) {
        report(run, schedule, placing, &trial->dims, error.message);
        return;
    }
    coda_status status = image_send(&image, trial, &error);
    if (status == CODA_OK)
        status = coda_kernel_launch(run->kernel[schedule], image.tensor, image.count, trial->parameter, NULL, &error);
    if (status == CODA_UNSUPPORTED && schedule > 1 && strstr(error.message, "portable")) {
        run->refused++; /* a schedule that was asked for by name says what it needs */
        image_free(&image);
        return;
    }
    if (status == CODA_OK)
        status = coda_synchronize(run->device, NULL, &error);
    const char *damaged = status == CODA_OK ? image_receive(&image, trial, &error) : NULL;
    if (status != CODA_OK) {
        report(run, schedule, placing, &trial->dims, error.message);
    } else if (damaged) {
        snprintf(text, sizeof text, "bytes around %s were written", damaged);
        report(run, schedule, placing, &trial->dims, text);
    } else if ((run->exact[schedule] || is_judged(trial)) &&
               !compare_outs(trial, evaluation, run->exact[schedule] ? STANDARD_EXACT : STANDARD_PLAIN, text,
                             sizeof text)) {
        report(run, schedule, placing, &trial->dims, text);
    }
    image_free(&image);
}

static void run_sizes(struct run *run, const coda_dims *dims, uint64_t seed)
{
    struct trial trial;
    struct evaluation evaluation;
    coda_error error = {0};
    const char *why = "";
    struct layout layout = {GUARD_END, 0};
    if (trial_new(&trial, run->program, dims, seed, layout, &error) != CODA_OK) {
        report(run, 0, PLACING_PACKED, dims, error.message);
        return;
    }
    if (seed % 2)
        set_parameters(&trial);
    /* On few multiprocessors a block walks many tiles, as it does where matrices are large; on some, the last wave is
     * built of narrow tiles behind whole ones, and on all of them there are narrow ones alone. */
    static const int few[] = {2, 10, 6, 14};
    struct gpu *gpu = run->device->state;
    gpu->multiprocessors = seed % 8 < 4 ? few[seed % 4] : run->multiprocessors;
    if (!evaluate_trial(&trial, &evaluation, &why)) {
        report(run, 0, PLACING_PACKED, dims, why);
    } else {
        for (int s = 0; s < SCHEDULES; s++)
            for (int placing = 0; placing < 3; placing++)
                run_one(run, &trial, &evaluation, s, (enum placing)placing);
        evaluation_free(&evaluation);
    }
    trial_free(&trial);
}

static void make_kernels(struct run *run, const coda_dims *dims)
{
    coda_dims fixed = {0};
    for (int i = 0; i < dims->count; i++)
        if (axis_is_fixed(run->program->graph, graph_find_axis(run->program->graph, dims->item[i].axis)))
            fixed.item[fixed.count++] = dims->item[i];
    for (int s = 0; s < SCHEDULES; s++) {
        coda_options options = {.size = sizeof options, .schedule = schedules[s], .exact = s == 0};
        coda_error error = {0};
        run->exact[s] = s < 3;
        coda_status status = coda_kernel_create(run->device, run->program, &fixed, &options, &run->kernel[s], &error);
        if (status == CODA_OK)
            continue;
        run->kernel[s] = NULL;
        if (status != CODA_UNSUPPORTED)
            report(run, s, PLACING_ALIGNED, &fixed, error.message);
        else
            printf("note %s %s: %s\n", coda_program_name(run->program), schedules[s], error.message);
    }
}

static void free_kernels(struct run *run)
{
    for (int s = 0; s < SCHEDULES; s++)
        coda_kernel_free(run->kernel[s]);
}

/* Every free axis but the rows, of a pass that one block's columns do not hold. */
static void run_wide(struct run *run, const coda_dims *dims, int64_t head, uint64_t seed)
{
    coda_dims changed = *dims;
    for (int axis = 0; axis < dims->count; axis++)
        if (!axis_is_fixed(run->program->graph, graph_find_axis(run->program->graph, dims->item[axis].axis)))
            sizes_set(run->program, &changed, axis, strcmp(dims->item[axis].axis, "M") ? 4600 : 21, head);
    run_sizes(run, &changed, seed);
}

static void run_program(struct run *run, int64_t head)
{
    static const int64_t sweep[] = {1, 7, 8, 15, 16, 17, 63, 64, 65, 127, 128, 129, 300, 1000};
    coda_dims dims = sizes_small(run->program, head);
    uint64_t seed = 1;
    make_kernels(run, &dims);
    bool quick = getenv("CODA_TEST_QUICK") != NULL;
    for (int axis = 0; axis < dims.count && !quick; axis++)
        for (size_t i = 0; i < sizeof sweep / sizeof *sweep && !sizes_is_length(dims.item[axis].axis); i++) {
            coda_dims changed = dims;
            int number = graph_find_axis(run->program->graph, dims.item[axis].axis);
            sizes_set(run->program, &changed, axis, sweep[i], head);
            if (axis_is_fixed(run->program->graph, number)) {
                free_kernels(run);
                make_kernels(run, &changed);
            }
            run_sizes(run, &changed, seed++);
        }
    free_kernels(run);
    make_kernels(run, &dims);
    run_sizes(run, &dims, seed++);
    for (int64_t size = 130; size <= (quick ? 290 : 610); size += 160) {
        coda_dims changed = dims;
        for (int axis = 0; axis < dims.count; axis++)
            if (!axis_is_fixed(run->program->graph, graph_find_axis(run->program->graph, dims.item[axis].axis)))
                sizes_set(run->program, &changed, axis, size + 3 * axis, head);
        run_sizes(run, &changed, seed++);
    }
    coda_cost cost;
    bool product = coda_program_cost(run->program, &dims, &cost, NULL) != CODA_OK || cost.flops > 0;
    for (int i = 0; i < 2 && !product; i++) /* on few multiprocessors and on all */
        run_wide(run, &dims, head, seed + 2 * (uint64_t)i);
    free_kernels(run);
}

static bool has_heads(const coda_program *program)
{
    coda_axis axis;
    for (int i = 0; i < coda_program_axis_count(program); i++)
        if (coda_program_axis(program, i, &axis) == CODA_OK && !strcmp(axis.name, "D"))
            return true;
    return false;
}

static coda_dtype type_named(const char *name)
{
    for (int type = CODA_F32; type <= CODA_E5M2; type++)
        if (!strcmp(name, coda_dtype_name((coda_dtype)type)))
            return (coda_dtype)type;
    return CODA_I32;
}

/* What the arguments ask for: names, or a part of all programs, as in 2/7; nothing: everything. */
struct wanted {
    int argc;
    char **argv;
    int part, parts;
    int seen, run; /* programs so far */
};

static bool is_wanted(struct wanted *wanted, const char *name)
{
    bool yes = wanted->argc == 0;
    for (int i = 0; i < wanted->argc; i++)
        yes |= !strcmp(wanted->argv[i], name);
    if (wanted->parts > 0)
        yes = wanted->seen % wanted->parts == wanted->part - 1;
    wanted->seen++;
    wanted->run += yes;
    return yes;
}

static int run_module(coda_device *device, const coda_module *module, const char *type, struct wanted *of)
{
    int failures = 0;
    for (int p = 0; p < coda_module_size(module); p++) {
        const coda_program *program = coda_module_program(module, p);
        bool wanted = is_wanted(of, coda_program_name(program));
        for (int64_t head = 16; wanted && head <= 128; head = head == 16 ? 64 : 2 * head) {
            const struct gpu *gpu = device->state;
            struct run run = {.device = device, .multiprocessors = gpu->multiprocessors, .program = program};
            run_program(&run, head);
            printf("%s %s %s%s: %d trials, %d refused by name, %d failures\n", run.failures ? "FAIL" : "ok",
                   coda_program_name(program), type,
                   !has_heads(program) ? ""
                   : head == 16        ? " D=16"
                   : head == 64        ? " D=64"
                                       : " D=128",
                   run.trials, run.refused, run.failures);
            fflush(stdout);
            ((struct gpu *)device->state)->multiprocessors = run.multiprocessors;
            failures += run.failures;
            if (!has_heads(program))
                break;
        }
    }
    return failures;
}

int main(int argc, char **argv)
{
    coda_error error = {0};
    coda_device *device;
    const coda_module *module;
    coda_module *retyped = NULL, *more = NULL;
    if (open_gpu(&device, &error) != CODA_OK) {
        printf("skipped: %s\n", error.message);
        return 77;
    }
    if (coda_standard_module(&module, &error) != CODA_OK ||
        coda_module_parse(passes, sizeof passes - 1, "passes", &more, &error) != CODA_OK) {
        printf("%s\n", error.message);
        return 1;
    }
    coda_dtype type = argc > 1 ? type_named(argv[1]) : CODA_I32;
    bool other = type != CODA_I32 && type != CODA_BF16;
    if (other && coda_module_retype(module, CODA_BF16, type, &retyped, &error) != CODA_OK) {
        printf("%s\n", error.message);
        return 1;
    }
    int skip = other ? 2 : 1;
    struct wanted wanted = {.argc = argc - skip, .argv = argv + skip};
    if (wanted.argc != 1 || sscanf(argv[skip], "%d/%d", &wanted.part, &wanted.parts) != 2)
        wanted.parts = 0;
    int failures = run_module(device, other ? retyped : module, other ? argv[1] : "bf16", &wanted);
    if (!other)
        failures += run_module(device, more, "bf16", &wanted);
    if (wanted.run == 0) {
        printf("FAIL no program has been asked for that exists\n");
        failures++;
    }
    coda_module_free(more);
    coda_module_free(retyped);
    coda_device_close(device);
    return failures ? 1 : 0;
}
