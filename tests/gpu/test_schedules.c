/* Blocks as schedules on the GPU, forward and backward, all rows at once and some at a time, against the same schedule of
 * f32 values on the reference device. Arguments: blocks, all without any. Prints a line a block.
 *
 * A result is good if its error is at most twice that of the reference's schedule of bf16 values, plus one rounding to
 * bf16, which is what a rounded accumulator adds. Whatever was in memory before, and run to run, it has the same bits. */
#include "image.h"
#include "kit/random.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64, POISONS = 3 };
static const double rounding = 1.0 / 256;

static const struct {
    const char *name;
    int64_t head;
    bool wide; /* has a vocabulary: rows run in parts */
    int times; /* the head's weights: logits so large that their exponentials are not kept; 0: 1 */
} blocks[] = {
    {"llama3", 64, false, 0},    {"llama3", 128, false, 0},    {"llama3_start", 64, false, 0},
    {"llama3_end", 64, true, 0}, {"llama3_head", 64, true, 0}, {"llama3_head", 64, true, 64},
    {"gemma_head", 64, true, 0}, {"qwen3", 64, false, 0},      {"gpt2", 64, false, 0},
};
static const int64_t rows_of[] = {70, 300}, chunks_of[] = {0, 64, 128};

/* A schedule, and its operands on the host as they were given and as a launch left them. */
struct running {
    coda_device *device;
    coda_schedule *schedule;
    coda_dims dims;
    int count, times;
    coda_value value[MOST];
    coda_tensor operand[MOST]; /* on the device */
    void *given[MOST], *host[MOST];
    size_t bytes[MOST], saved_bytes, scratch_bytes;
    void *saved, *scratch;
};

static coda_dims dims_of(const coda_program *block, int64_t rows, int64_t head)
{
    const struct {
        const char *axis;
        int64_t size;
    } sizes[] = {{"M", rows},     {"A", 2 * head}, {"D", 4 * head}, {"F", 264}, {"Q", 4 * head},
                 {"E", 2 * head}, {"N", 4 * head}, {"H", head},     {"P", 40},  {"V", 1000}};
    coda_dims dims = {0};
    for (int i = 0; i < coda_program_axis_count(block); i++) {
        coda_axis axis;
        coda_program_axis(block, i, &axis);
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
            if (!axis.derived && !strcmp(axis.name, sizes[k].axis)) {
                dims.item[dims.count].axis = axis.name;
                dims.item[dims.count++].size = sizes[k].size;
            }
    }
    return dims;
}

static size_t elements_of(const coda_tensor *t)
{
    return (size_t)(t->shape[0] * t->shape[1]);
}

/* Inputs are bf16 numbers (or f32, i32) of a seed whatever type the schedule keeps them in: the block's own by its uses,
 * gradients that arrive normal. */
static coda_status fill_input(const coda_program *bf16, struct running *r, int i, coda_error *error)
{
    size_t count = elements_of(&r->operand[i]);
    coda_operand info;
    if (i >= coda_program_operand_count(bf16)) {
        struct random random = {(uint64_t)i + 99};
        for (size_t e = 0; e < count; e++) {
            float x = (float)random_normal(&random);
            uint16_t rounded;
            coda_convert(&rounded, CODA_BF16, &x, CODA_F32, 1);
            coda_convert((char *)r->given[i] + e * coda_dtype_size(r->value[i].dtype), r->value[i].dtype, &rounded,
                         CODA_BF16, 1);
        }
        return CODA_OK;
    }
    coda_program_operand(bf16, i, &info);
    void *own = malloc(count * coda_dtype_size(info.dtype) + 1);
    coda_status status = own ? coda_program_fill(bf16, i, &r->dims, 5, own, error) : CODA_MEMORY;
    for (size_t e = 0; r->times && status == CODA_OK && !strcmp(info.name, "W") && e < count; e++) {
        float x;
        coda_convert(&x, CODA_F32, (uint16_t *)own + e, CODA_BF16, 1);
        x *= (float)r->times;
        coda_convert((uint16_t *)own + e, CODA_BF16, &x, CODA_F32, 1);
    }
    if (status == CODA_OK && info.dtype == r->value[i].dtype)
        memcpy(r->given[i], own, r->bytes[i]);
    else if (status == CODA_OK)
        coda_convert(r->given[i], r->value[i].dtype, own, info.dtype, count);
    free(own);
    return status;
}

static coda_status open_operand(const coda_program *bf16, struct running *r, int i, coda_error *error)
{
    int64_t shape[2] = {1, 1};
    coda_schedule_value(r->schedule, i, &r->value[i]);
    coda_status status = coda_schedule_shape(r->schedule, i, &r->dims, shape, error);
    if (status != CODA_OK)
        return status;
    r->operand[i] = (coda_tensor){.dtype = r->value[i].dtype, .rank = r->value[i].rank, .shape = {1, 1}};
    for (int d = 0; d < r->value[i].rank; d++)
        r->operand[i].shape[d] = shape[d];
    r->bytes[i] = elements_of(&r->operand[i]) * coda_dtype_size(r->value[i].dtype);
    r->given[i] = malloc(r->bytes[i] + 1);
    r->host[i] = malloc(r->bytes[i] + 1);
    if (!r->given[i] || !r->host[i])
        return CODA_MEMORY;
    memset(r->given[i], r->value[i].accumulated ? 0 : 0xff, r->bytes[i]);
    if (r->value[i].kind == CODA_INPUT)
        status = fill_input(bf16, r, i, error);
    return status == CODA_OK ? coda_allocate(r->device, r->bytes[i], &r->operand[i].data, error) : status;
}

static coda_status open_running(struct running *r, coda_device *device, const coda_program *block,
                                const coda_program *bf16, const coda_dims *dims, int times,
                                const coda_schedule_options *options, coda_error *error)
{
    *r = (struct running){.device = device, .dims = *dims, .times = times};
    coda_status status = coda_schedule_create(device, block, dims, options, &r->schedule, error);
    if (status == CODA_OK)
        status = coda_schedule_memory(r->schedule, dims, &r->saved_bytes, &r->scratch_bytes, error);
    if (status == CODA_OK && r->saved_bytes)
        status = coda_allocate(device, r->saved_bytes, &r->saved, error);
    if (status == CODA_OK && r->scratch_bytes)
        status = coda_allocate(device, r->scratch_bytes, &r->scratch, error);
    int count = status == CODA_OK ? coda_schedule_operand_count(r->schedule) : 0;
    for (; r->count < count && status == CODA_OK; r->count++)
        status = open_operand(bf16, r, r->count, error);
    return status;
}

static void close_running(struct running *r)
{
    for (int i = 0; i < r->count; i++) {
        coda_release(r->device, r->operand[i].data);
        free(r->given[i]);
        free(r->host[i]);
    }
    coda_release(r->device, r->saved);
    coda_release(r->device, r->scratch);
    coda_schedule_free(r->schedule);
}

static coda_status poison(struct running *r, void *memory, size_t bytes, int byte, coda_error *error)
{
    void *pattern = bytes ? malloc(bytes) : NULL;
    if (!bytes)
        return CODA_OK;
    if (!pattern)
        return CODA_MEMORY;
    memset(pattern, byte, bytes);
    coda_status status = coda_copy_in(r->device, memory, pattern, bytes, error);
    free(pattern);
    return status;
}

/* A forward and a backward (in one launch where rows run in parts) over memory that holds `byte`s. */
static coda_status run(struct running *r, bool together, int byte, coda_error *error)
{
    coda_status status = poison(r, r->saved, r->saved_bytes, byte, error);
    for (int i = 0; i < r->count && status == CODA_OK; i++)
        status = coda_copy_in(r->device, r->operand[i].data, r->given[i], r->bytes[i], error);
    for (int phases = together ? 3 : 1; phases <= (together ? 3 : 2) && status == CODA_OK; phases++) {
        status = poison(r, r->scratch, r->scratch_bytes, byte, error);
        if (status == CODA_OK)
            status = coda_schedule_launch(r->schedule, phases, r->operand, r->count, r->saved, r->scratch, NULL, NULL,
                                          error);
    }
    if (status == CODA_OK)
        status = coda_synchronize(r->device, NULL, error);
    for (int i = 0; i < r->count && status == CODA_OK; i++)
        status = coda_copy_out(r->device, r->host[i], r->operand[i].data, r->bytes[i], error);
    return status;
}

/* Relative, in the 2-norm; infinite where something is no number. */
static double error_of(const struct running *r, const struct running *exact, int i)
{
    double error = 0, norm = 0;
    size_t count = elements_of(&exact->operand[i]);
    for (size_t e = 0; e < count; e++) {
        float a, b;
        coda_convert(&a, CODA_F32, (char *)r->host[i] + e * coda_dtype_size(r->value[i].dtype), r->value[i].dtype, 1);
        coda_convert(&b, CODA_F32, (char *)exact->host[i] + e * coda_dtype_size(exact->value[i].dtype),
                     exact->value[i].dtype, 1);
        error += ((double)a - b) * ((double)a - b);
        norm += (double)b * b;
    }
    return error >= 0 ? sqrt(error / (norm + 1e-300)) : INFINITY;
}

/* ---------------------------------------------------------------- a block */

struct subject {
    coda_device *gpu, *reference;
    const coda_program *bf16, *f32;
    coda_dims dims;
    struct running exact, plain;
    char label[96];
    int times, trials, failures;
};

static void complain(struct subject *s, const char *what, const char *text)
{
    s->failures++;
    printf("FAIL %s: %s: %s\n", s->label, what, text);
}

static void judge(struct subject *s, const struct running *r)
{
    char text[160];
    for (int i = 0; i < r->count; i++) {
        double error = error_of(r, &s->exact, i), plain = error_of(&s->plain, &s->exact, i);
        if (r->value[i].kind != CODA_RESULT || error <= 2 * plain + rounding)
            continue;
        snprintf(text, sizeof text, "error %.3g; the reference's own with bf16 values is %.3g", error, plain);
        complain(s, r->value[i].name, text);
    }
}

static void try_schedule(struct subject *s, const coda_schedule_options *options)
{
    static const int poisons[POISONS] = {0xff, 0x3f, 0xff};
    struct running r;
    coda_error error = {0};
    void *first[MOST] = {0};
    s->trials++;
    coda_status status = open_running(&r, s->gpu, s->bf16, s->bf16, &s->dims, s->times, options, &error);
    for (int p = 0; p < POISONS && status == CODA_OK; p++) {
        status = run(&r, options->together || options->wide_axis, poisons[p], &error);
        for (int i = 0; i < r.count && status == CODA_OK; i++) {
            if (p == 0 && (first[i] = malloc(r.bytes[i] + 1)) != NULL)
                memcpy(first[i], r.host[i], r.bytes[i]);
            else if (first[i] && r.value[i].kind == CODA_RESULT && memcmp(first[i], r.host[i], r.bytes[i]) != 0)
                complain(s, r.value[i].name, "other bits run to run");
        }
        if (p == 0 && status == CODA_OK)
            judge(s, &r);
    }
    if (status != CODA_OK)
        complain(s, "launch", error.message);
    for (int i = 0; i < r.count; i++)
        free(first[i]);
    close_running(&r);
}

static void try_rows(struct subject *s, int64_t rows, int64_t head, bool wide)
{
    coda_error error = {0};
    coda_schedule_options options = {.size = sizeof options, .backward = 1, .allow_passes = 1};
    s->dims = dims_of(s->bf16, rows, head);
    coda_status status = open_running(&s->exact, s->reference, s->f32, s->bf16, &s->dims, s->times, &options, &error);
    if (status == CODA_OK)
        status = run(&s->exact, false, 0xff, &error);
    if (status == CODA_OK)
        status = open_running(&s->plain, s->reference, s->bf16, s->bf16, &s->dims, s->times, &options, &error);
    if (status == CODA_OK)
        status = run(&s->plain, false, 0xff, &error);
    if (status != CODA_OK)
        complain(s, "the reference", error.message);
    for (size_t c = 0; c < sizeof chunks_of / sizeof *chunks_of && status == CODA_OK; c++) {
        if (chunks_of[c] && !wide)
            continue;
        options.wide_axis = chunks_of[c] ? "V" : NULL;
        options.chunk_rows = chunks_of[c];
        for (options.overwrite = 0; options.overwrite < 2; options.overwrite++) {
            snprintf(s->label, sizeof s->label, "%s head %lld, %lld rows, %lld at a time%s", coda_program_name(s->bf16),
                     (long long)head, (long long)rows, (long long)chunks_of[c],
                     options.overwrite ? ", gradients written" : "");
            try_schedule(s, &options);
        }
    }
    close_running(&s->exact);
    close_running(&s->plain);
    memset(&s->exact, 0, sizeof s->exact);
    memset(&s->plain, 0, sizeof s->plain);
}

static int try_all(coda_device *gpu, coda_device *reference, const coda_module *bf16, const coda_module *f32, int argc,
                   char **argv)
{
    int failures = 0;
    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++) {
        bool wanted = argc == 1;
        for (int i = 1; i < argc; i++)
            wanted = wanted || !strcmp(argv[i], blocks[b].name);
        if (!wanted)
            continue;
        struct subject s = {.gpu = gpu,
                            .reference = reference,
                            .bf16 = coda_module_find(bf16, blocks[b].name),
                            .f32 = coda_module_find(f32, blocks[b].name),
                            .times = blocks[b].times};
        for (size_t i = 0; i < sizeof rows_of / sizeof *rows_of; i++)
            try_rows(&s, rows_of[i], blocks[b].head, blocks[b].wide);
        printf("%s %s%s D=%lld: %d schedules, %d failures\n", s.failures ? "FAIL" : "ok", blocks[b].name,
               blocks[b].times ? ", large logits," : "", (long long)blocks[b].head, s.trials, s.failures);
        fflush(stdout);
        failures += s.failures;
    }
    return failures;
}

int main(int argc, char **argv)
{
    coda_error error = {0};
    coda_device *gpu, *reference;
    const coda_module *bf16;
    coda_module *f32;
    if (open_gpu(&gpu, &error) != CODA_OK) {
        printf("skipped: %s\n", error.message);
        return 77;
    }
    if (coda_device_open("ref", &reference, &error) != CODA_OK || coda_standard_blocks(&bf16, &error) != CODA_OK ||
        coda_module_retype(bf16, CODA_BF16, CODA_F32, &f32, &error) != CODA_OK) {
        printf("%s\n", error.message);
        return 1;
    }
    int failures = try_all(gpu, reference, bf16, f32, argc, argv);
    coda_module_free(f32);
    coda_device_close(reference);
    coda_device_close(gpu);
    return failures ? 1 : 0;
}
