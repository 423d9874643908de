#include "bench.h"

#include <string.h>

static const char help[] =
    "usage: coda tune [options] FILE|suite|layer...\n"
    "\n"
    "Measures the tiles and schedules that a GPU offers for each program (of a block: each step of its schedule), "
    "results\n"
    "first, and remembers the fastest. Kernels of these sizes then use it, in every process that shares the cache; "
    "`coda\n"
    "info` lists what is remembered. The choice never changes bits, unless --library is given.\n"
    "\n"
    "  --device NAME     cuda (the default) or cuda:1\n"
    "  --dims M=..,N=..  sizes; others are those of a layer. A choice holds for sizes between the same powers of two\n"
    "  --width N         width of the layer (1024)\n"
    "  --tokens N        rows (1024)\n"
    "  --chunk N         rows of the logits that exist at once, as in `coda bench`\n"
    "  --library         also products through cuBLASLt, whose sums have other last bits\n"
    "  --schedule NAME   measure nothing, and remember this one: copied, warps, direct, portable, cublas\n"
    "  --forget          measure nothing, and forget\n"
    "  --rounds N        how often each is timed (7)\n"
    "  --program NAME    only this program of the files\n"
    "  --dtype TYPE      bf16 operands become f32, f16, e4m3 or e5m2 ones\n"
    "  --json            one object a candidate, a line each\n"
    "\n"
    "Exit status: 0 good, 1 a program failed, 2 bad usage.\n";

struct tuner {
    const struct arguments *arguments;
    coda_device *device;
    const coda_program *program;
    const coda_dims *dims;
};

static void print_candidate(void *context, const coda_candidate *candidate)
{
    const struct tuner *tuner = context;
    const char *schedule = candidate->options.schedule ? candidate->options.schedule : "default";
    if (tuner->arguments->json) {
        struct json json = {stdout, false};
        json_begin(&json);
        json_text(&json, "program", coda_program_name(tuner->program));
        json_text(&json, "device", coda_device_name(tuner->device));
        json_dims(&json, "dims", tuner->dims);
        json_text(&json, "schedule", schedule);
        json_number(&json, "tile_rows", candidate->options.tile_rows);
        json_number(&json, "tile_columns", candidate->options.tile_columns);
        json_number(&json, "ms", candidate->ms);
        if (candidate->refused)
            json_text(&json, "refused", candidate->refused);
        json_bool(&json, "chosen", candidate->chosen);
        json_line(&json);
        return;
    }
    if (candidate->refused && strcmp(candidate->refused, "not asked for") == 0)
        return;
    printf("  %c %-9s", candidate->chosen ? '*' : ' ', schedule);
    if (candidate->options.tile_rows)
        printf(" %3d x %-3d", candidate->options.tile_rows, candidate->options.tile_columns);
    else
        printf(" %9s", "");
    if (candidate->refused)
        printf("          - %.100s\n", candidate->refused);
    else
        printf(" %10.4f ms\n", candidate->ms);
}

static int tune_program(struct tuner *tuner, const coda_program *program, const coda_dims *dims)
{
    const struct arguments *a = tuner->arguments;
    coda_error error = {0};
    coda_tune_options options = {.size = sizeof options,
                                 .rounds = (int)a->rounds,
                                 .library = a->library,
                                 .schedule = a->forget ? "" : a->schedule};
    tuner->program = program;
    tuner->dims = dims;
    if (!a->json) {
        printf("%s ", coda_program_name(program));
        print_dims(stdout, dims);
        printf("%s\n", a->forget ? ": forgotten" : a->schedule ? ": set" : "");
    }
    coda_status status = coda_kernel_tune(tuner->device, program, dims, &options, print_candidate, tuner, &error);
    fflush(stdout);
    return status == CODA_OK ? EXIT_GOOD : report(a->command, &error);
}

/* A schedule that is forced is for the products that it can run; other steps keep theirs. */
static int tune_step(struct tuner *tuner, const coda_step *step, const coda_dims *sizes)
{
    coda_cost cost = {0};
    coda_primitives primitives;
    coda_program_primitives(step->program, &primitives);
    bool alone = coda_program_cost(step->program, sizes, &cost, NULL) == CODA_OK && cost.unfused_kernels <= 1;
    if (primitives.gemms == 0 ||
        (tuner->arguments->schedule && strcmp(tuner->arguments->schedule, "cublas") == 0 && !alone))
        return EXIT_GOOD;
    return tune_program(tuner, step->program, sizes);
}

static int tune_block(struct tuner *tuner, const coda_program *block)
{
    coda_dims dims;
    coda_error error = {0};
    coda_schedule *schedule = NULL;
    bool vocabulary = false;
    int result = choose_block_sizes(tuner->arguments, block, true, &dims);
    if (result >= 0)
        return result;
    for (int i = 0; i < dims.count; i++)
        vocabulary = vocabulary || strcmp(dims.item[i].axis, "V") == 0;
    int64_t chunk = vocabulary ? tuner->arguments->chunk : 0;
    coda_schedule_options options = {.size = sizeof options,
                                     .backward = 1,
                                     .together = vocabulary,
                                     .wide_axis = vocabulary ? "V" : NULL,
                                     .chunk_rows = chunk};
    if (coda_schedule_create(tuner->device, block, &dims, &options, &schedule, &error) != CODA_OK)
        return report(tuner->arguments->command, &error);
    result = EXIT_GOOD;
    chunk = coda_schedule_chunk_rows(schedule);
    for (int i = 0; i < coda_schedule_step_count(schedule); i++) {
        coda_step step;
        coda_dims sizes;
        if (coda_schedule_step(schedule, i, &step) != CODA_OK || !step_sizes(schedule, &step, &dims, chunk, &sizes))
            continue;
        int one = tune_step(tuner, &step, &sizes);
        result = one > result ? one : result;
    }
    coda_schedule_free(schedule);
    return result;
}

static int tune_source(struct tuner *tuner, const struct source *source)
{
    int worst = EXIT_GOOD;
    for (int i = source->first; i < source->first + source->count; i++) {
        const coda_program *program = coda_module_program(source->module, i);
        coda_dims dims;
        if (!is_wanted(tuner->arguments, program))
            continue;
        int status = coda_program_is_block(program) ? tune_block(tuner, program)
                                                    : choose_sizes(tuner->arguments, program, SIZES_TYPICAL, &dims);
        if (status < 0)
            status = tune_program(tuner, program, &dims);
        worst = status > worst ? status : worst;
    }
    return worst;
}

static int tune_argument(struct tuner *tuner, const char *text)
{
    struct source source = {0};
    coda_error error = {0};
    if (strcmp(text, "suite") == 0 || strcmp(text, "layer") == 0) {
        bool suite = text[0] == 's';
        if ((suite ? coda_standard_module : coda_standard_blocks)(&source.module, &error) != CODA_OK)
            return report(tuner->arguments->command, &error);
        if (suite) {
            source.count = coda_module_size(source.module);
            return tune_source(tuner, &source);
        }
        int layer = tune_block(tuner, coda_module_find(source.module, "llama3"));
        int head = tune_block(tuner, coda_module_find(source.module, "llama3_head"));
        return layer > head ? layer : head;
    }
    int status = open_source(tuner->arguments, text, &source);
    if (status >= 0)
        return status;
    status = tune_source(tuner, &source);
    close_source(&source);
    return status;
}

int command_tune(int argc, char **argv)
{
    struct arguments arguments = {.device = "cuda", .seed = 1};
    struct tuner tuner = {.arguments = &arguments};
    int status =
        read_arguments(&arguments, "json device dims width tokens chunk rounds program dtype library schedule forget",
                       help, argc, argv);
    if (status >= 0)
        return status;
    if (arguments.file_count == 0)
        return usage_error(arguments.command, "expected a file, a program name, suite or layer");
    status = open_device(&arguments, &tuner.device);
    if (status >= 0)
        return status;
    status = EXIT_GOOD;
    for (int i = 0; i < arguments.file_count; i++) {
        int one = tune_argument(&tuner, arguments.file[i]);
        status = one > status ? one : status;
    }
    coda_device_close(tuner.device);
    return status;
}
