#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: coda run [options] FILE...\n"
    "\n"
    "Runs each program on random input and compares every out with the reference (the same mathematics in double). An "
    "out is\n"
    "good if its error is at most twice that of the same mathematics with one bf16 kernel an operator, plus the "
    "rounding of\n"
    "the out itself; errors are relative, in the 2-norm and for the largest element.\n"
    "\n"
    "  --device NAME     ref, cpu (the default), cuda or cuda:1\n"
    "  --dims M=..,N=..  sizes of axes; without it small ragged ones are chosen\n"
    "  --param a=..,b=.. values of the program's params\n"
    "  --program NAME    only this program of the files\n"
    "  --dtype TYPE      bf16 operands become f32, f16, e4m3 or e5m2 ones\n"
    "  --seed N          of the random input (1)\n"
    "  --threads N       of the CPU device\n"
    "  --json            one object a program, a line each\n"
    "\n"
    "Exit status: 0 every out agrees, 1 one does not or the program does not run, 2 bad usage.\n";

struct comparison {
    const coda_program *program;
    const coda_dims *dims;
    struct workload *fused, *reference;
    struct chain *chain; /* on the reference device; NULL where the program cannot be taken apart */
};

static void print_out(const coda_operand *operand, const coda_tensor *tensor, const struct verdict *verdict)
{
    char shape[64];
    if (tensor->rank == 2)
        snprintf(shape, sizeof shape, "[%lld, %lld]", (long long)tensor->shape[0], (long long)tensor->shape[1]);
    else
        snprintf(shape, sizeof shape, "[%lld]", (long long)tensor->shape[0]);
    printf("    %-8s %-4s %-13s error %.2e of %.2e, largest %.2e of %.2e  %s\n", operand->name,
           coda_dtype_name(operand->dtype), shape, verdict->error, verdict->bound, verdict->max_error,
           verdict->max_bound, verdict->good ? "good" : "TOO LARGE");
}

static void print_out_json(struct json *json, const coda_operand *operand, const struct verdict *verdict)
{
    json_begin(json);
    json_text(json, "out", operand->name);
    json_text(json, "dtype", coda_dtype_name(operand->dtype));
    json_number(json, "error", verdict->error);
    json_number(json, "bound", verdict->bound);
    json_number(json, "max_error", verdict->max_error);
    json_number(json, "max_bound", verdict->max_bound);
    json_number(json, "unfused_error", verdict->plain);
    json_bool(json, "good", verdict->good);
    json_end(json);
}

static coda_status compare_out(const struct comparison *c, int index, const coda_operand *operand,
                               struct verdict *verdict, coda_error *error)
{
    int64_t count = 0, plain_count = 0;
    float *found = workload_read(c->fused, index, &count, error);
    float *reference = found ? workload_read(c->reference, index, &count, error) : NULL;
    float *plain = reference && c->chain ? chain_read(c->chain, operand->name, &plain_count, error) : NULL;
    coda_status status = CODA_OK;
    if (!reference || (c->chain && !plain))
        status = error->status ? error->status : CODA_MEMORY;
    else
        *verdict = judge(found, reference, plain, count, operand->dtype);
    free(found);
    free(reference);
    free(plain);
    return status;
}

static coda_status compare_outs(const struct comparison *c, struct json *json, bool *good, coda_error *error)
{
    for (int i = 0; i < c->fused->count; i++) {
        coda_operand operand;
        struct verdict verdict = {0};
        if (coda_program_operand(c->program, i, &operand) != CODA_OK || operand.role == CODA_IN)
            continue;
        coda_status status = compare_out(c, i, &operand, &verdict, error);
        if (status != CODA_OK)
            return status;
        *good = *good && verdict.good;
        if (json)
            print_out_json(json, &operand, &verdict);
        else
            print_out(&operand, &c->fused->tensor[i], &verdict);
    }
    return CODA_OK;
}

static coda_status launch_all(struct comparison *c, uint64_t seed, coda_error *error)
{
    coda_status status = workload_launch(c->fused, error);
    if (status == CODA_OK)
        status = workload_launch(c->reference, error);
    if (status != CODA_OK)
        return status;
    if (chain_new(&c->chain, c->reference, c->dims, seed, NULL) == CODA_OK)
        status = chain_launch(c->chain, CHAIN_ALL, NULL, error);
    return status;
}

static int run_program(const struct arguments *arguments, const coda_program *program, coda_device *device,
                       coda_device *reference)
{
    struct workload fused = {0}, judged = {0};
    coda_dims dims;
    double parameter[MAX_WORKLOAD];
    coda_error error = {0};
    bool good = true;
    uint64_t seed = (uint64_t)arguments->seed;
    struct json json = {stdout, false};
    int status = choose_sizes(arguments, program, SIZES_SMALL, &dims);
    if (status < 0)
        status = choose_parameters(arguments, program, parameter);
    if (status >= 0)
        return status;
    struct comparison comparison = {program, &dims, &fused, &judged, NULL};
    coda_status result = workload_new(&fused, device, program, &dims, parameter, seed, &error);
    if (result == CODA_OK)
        result = workload_new(&judged, reference, program, &dims, parameter, seed, &error);
    if (result == CODA_OK)
        result = launch_all(&comparison, seed, &error);
    if (result == CODA_OK && arguments->json) {
        json_begin(&json);
        json_text(&json, "program", coda_program_name(program));
        json_text(&json, "device", coda_device_name(device));
        json_dims(&json, "dims", &dims);
        json_number(&json, "seed", (double)arguments->seed);
        json_array(&json, "outs");
    } else if (result == CODA_OK) {
        printf("%s on %s, ", coda_program_name(program), coda_device_name(device));
        print_dims(stdout, &dims);
        printf("\n");
    }
    if (result == CODA_OK)
        result = compare_outs(&comparison, arguments->json ? &json : NULL, &good, &error);
    if (result == CODA_OK && arguments->json) {
        json_array_end(&json);
        json_bool(&json, "good", good);
        json_line(&json);
    }
    chain_free(comparison.chain);
    workload_free(&fused);
    workload_free(&judged);
    return result != CODA_OK ? report(arguments->command, &error) : good ? EXIT_GOOD : EXIT_FAILED;
}

static int run_file(const struct arguments *arguments, const char *file, coda_device *device, coda_device *reference)
{
    struct source source;
    int status = open_source(arguments, file, &source), worst = EXIT_GOOD;
    if (status >= 0)
        return status;
    for (int i = source.first; i < source.first + source.count; i++) {
        const coda_program *program = coda_module_program(source.module, i);
        if (!is_wanted(arguments, program))
            continue;
        status = run_program(arguments, program, coda_program_is_block(program) ? reference : device, reference);
        worst = status > worst ? status : worst;
    }
    close_source(&source);
    return worst;
}

int command_run(int argc, char **argv)
{
    struct arguments arguments = {.device = "cpu", .seed = 1};
    coda_device *device = NULL, *reference = NULL;
    coda_error error;
    int status = read_arguments(&arguments, "json device dims param program dtype seed threads", help, argc, argv);
    if (status >= 0)
        return status;
    if (arguments.file_count == 0)
        return usage_error(arguments.command, "expected at least one file or program name");
    status = open_device(&arguments, &device);
    if (status >= 0)
        return status;
    status = EXIT_GOOD;
    if (coda_device_open("ref", &reference, &error) != CODA_OK)
        status = report(arguments.command, &error);
    for (int i = 0; i < arguments.file_count && reference; i++) {
        int file_status = run_file(&arguments, arguments.file[i], device, reference);
        status = file_status > status ? file_status : status;
    }
    coda_device_close(reference);
    coda_device_close(device);
    return status;
}
