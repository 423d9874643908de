#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char help[] = "usage: coda bench [options] FILE|suite|layer...\n"
                           "\n"
                           "Times each program against its bare product and the unfused chain (one kernel an operator, "
                           "intermediates in memory), in\n"
                           "turns, and prints medians and errors. `suite` is every standard program; `layer` the "
                           "programs of a Llama layer, forward\n"
                           "and backward, with their sums.\n"
                           "\n"
                           "  --device NAME     cpu (the default), cuda or cuda:1\n"
                           "  --dims M=..,N=..  sizes; others are those of a layer (see --width, --tokens)\n"
                           "  --width N         width of the layer (1024)\n"
                           "  --tokens N        rows (1024)\n"
                           "  --rounds N        how often each is timed (7)\n"
                           "  --seed N          of the random input (1)\n"
                           "  --program NAME    only this program of the files\n"
                           "  --dtype TYPE      bf16 operands become f32, f16, e4m3 or e5m2 ones\n"
                           "  --threads N       of the CPU device\n"
                           "  --json            one object a row, a line each\n"
                           "\n"
                           "Columns: time in ms, the bare product's, their ratio, the unfused chain's, GFLOP/s, its "
                           "share of the fastest product that\n"
                           "was measured on this device now, and the largest relative error of the outs, fused and "
                           "unfused, against the reference\n"
                           "at sizes of at most 128.\n"
                           "\n"
                           "Exit status: 0 good, 1 a program failed or its errors are too large, 2 bad usage.\n";

enum { MAX_ROUNDS = 1000 };

struct row {
    double ms, bare_ms, unfused_ms; /* 0: there is none */
    double gflops, peak_share, error, unfused_error;
    bool good;
};

struct bench {
    const struct arguments *arguments;
    coda_device *device, *reference;
    struct ceilings ceilings;
    bool any;
};

static coda_status time_once(coda_status (*run)(void *subject, coda_error *error), void *subject, double *ms,
                             coda_error *error)
{
    double start = now_ms();
    coda_status status = run(subject, error);
    *ms = now_ms() - start;
    return status;
}

static coda_status run_fused(void *subject, coda_error *error)
{
    return workload_launch(subject, error);
}

static coda_status run_chain(void *subject, coda_error *error)
{
    return chain_launch(subject, false, error);
}

static coda_status run_products(void *subject, coda_error *error)
{
    return chain_launch(subject, true, error);
}

/* Fused, bare and unfused take turns, so that a change of the clock meets all three. */
static coda_status time_all(const struct bench *bench, struct workload *fused, struct chain *chain, struct row *row,
                            coda_error *error)
{
    static double times[3][MAX_ROUNDS];
    int rounds = (int)(bench->arguments->rounds ? bench->arguments->rounds : 7);
    bool products = chain && chain_products(chain) > 0;
    coda_status status = CODA_OK;
    double unused;
    rounds = rounds < MAX_ROUNDS ? rounds : MAX_ROUNDS;
    status = time_once(run_fused, fused, &unused, error);
    if (status == CODA_OK && chain)
        status = time_once(run_chain, chain, &unused, error);
    for (int i = 0; i < rounds && status == CODA_OK; i++) {
        status = time_once(run_fused, fused, &times[0][i], error);
        if (status == CODA_OK && products)
            status = time_once(run_products, chain, &times[1][i], error);
        if (status == CODA_OK && chain)
            status = time_once(run_chain, chain, &times[2][i], error);
    }
    if (status != CODA_OK)
        return status;
    row->ms = median(times[0], rounds);
    row->bare_ms = products ? median(times[1], rounds) : 0;
    row->unfused_ms = chain ? median(times[2], rounds) : 0;
    return CODA_OK;
}

/* Errors need the reference, which is slow: large sizes shrink, and stay multiples of a head where they were. */
static coda_dims shrink(const coda_dims *dims)
{
    coda_dims small = *dims;
    for (int i = 0; i < small.count; i++)
        if (small.item[i].size > 128)
            small.item[i].size = small.item[i].size % 64 == 0 ? 128 : small.item[i].size % 2 == 0 ? 126 : 127;
    return small;
}

static coda_status compare_outs(struct workload *fused, struct workload *exact, struct chain *chain, struct row *row,
                                coda_error *error)
{
    for (int i = 0; i < fused->count; i++) {
        coda_operand operand;
        int64_t count = 0, plain_count;
        if (coda_program_operand(fused->program, i, &operand) != CODA_OK || operand.role == CODA_IN)
            continue;
        float *found = workload_read(fused, i, &count, error), *expected = workload_read(exact, i, &count, error);
        float *plain = chain ? chain_read(chain, operand.name, &plain_count, error) : NULL;
        if (found && expected) {
            struct verdict verdict = judge(found, expected, plain, count, operand.dtype);
            row->error = verdict.error > row->error || isnan(verdict.error) ? verdict.error : row->error;
            row->unfused_error = verdict.plain > row->unfused_error ? verdict.plain : row->unfused_error;
            row->good = row->good && verdict.good;
        }
        bool failed = !found || !expected;
        free(found);
        free(expected);
        free(plain);
        if (failed)
            return error->status ? error->status : CODA_MEMORY;
    }
    return CODA_OK;
}

static coda_status measure_errors(const struct bench *bench, const coda_program *program, const coda_dims *dims,
                                  const double *parameters, struct row *row, coda_error *error)
{
    struct workload fused = {0}, exact = {0};
    struct chain *chain = NULL;
    coda_dims small = shrink(dims);
    uint64_t seed = (uint64_t)bench->arguments->seed;
    coda_status status = workload_new(&fused, bench->device, program, &small, parameters, seed, error);
    if (status == CODA_OK)
        status = workload_new(&exact, bench->reference, program, &small, parameters, seed, error);
    if (status == CODA_OK)
        status = workload_launch(&fused, error);
    if (status == CODA_OK)
        status = workload_launch(&exact, error);
    if (status == CODA_OK && chain_new(&chain, &fused, &small, seed, NULL) == CODA_OK)
        status = chain_launch(chain, false, error);
    if (status == CODA_OK)
        status = compare_outs(&fused, &exact, chain, row, error);
    chain_free(chain);
    workload_free(&fused);
    workload_free(&exact);
    return status;
}

static void print_row(const struct bench *bench, const char *name, const coda_dims *dims, const struct row *row)
{
    if (bench->arguments->json) {
        struct json json = {stdout, false};
        json_begin(&json);
        json_text(&json, "program", name);
        json_text(&json, "device", coda_device_name(bench->device));
        json_dims(&json, "dims", dims);
        json_number(&json, "ms", row->ms);
        json_number(&json, "bare_ms", row->bare_ms > 0 ? row->bare_ms : NAN);
        json_number(&json, "ratio_to_bare", row->bare_ms > 0 ? row->ms / row->bare_ms : NAN);
        json_number(&json, "unfused_ms", row->unfused_ms > 0 ? row->unfused_ms : NAN);
        json_number(&json, "gflops", row->gflops);
        json_number(&json, "peak_share", row->peak_share);
        json_number(&json, "err", row->error);
        json_number(&json, "unfused_err", row->unfused_error);
        json_bool(&json, "good", row->good);
        json_line(&json);
        fflush(stdout);
        return;
    }
    if (!bench->any)
        printf("%-20s %9s %9s %6s %9s %6s %8s %6s %9s %9s  dims\n", "program", "ms", "bare ms", "ratio", "unfused",
               "gain", "GFLOP/s", "share", "error", "unfused");
    printf("%-20s %9.3f ", name, row->ms);
    if (row->bare_ms > 0)
        printf("%9.3f %6.3f ", row->bare_ms, row->ms / row->bare_ms);
    else
        printf("%9s %6s ", "-", "-");
    if (row->unfused_ms > 0)
        printf("%9.3f %5.2fx ", row->unfused_ms, row->unfused_ms / row->ms);
    else
        printf("%9s %6s ", "-", "-");
    printf("%8.1f %5.1f%% %9.2e %9.2e%s  ", row->gflops, 100 * row->peak_share, row->error, row->unfused_error,
           row->good ? "" : " TOO LARGE");
    print_dims(stdout, dims);
    printf("\n");
    fflush(stdout);
}

static int bench_program(struct bench *bench, const coda_program *program, const coda_dims *dims, struct row *row)
{
    struct workload fused = {0};
    struct chain *chain = NULL;
    coda_error error = {0};
    coda_cost cost = {0};
    double parameters[MAX_WORKLOAD];
    uint64_t seed = (uint64_t)bench->arguments->seed;
    *row = (struct row){.good = true};
    choose_parameters(bench->arguments, program, parameters);
    coda_status status = workload_new(&fused, bench->device, program, dims, parameters, seed, &error);
    if (status == CODA_OK && chain_new(&chain, &fused, dims, seed, NULL) != CODA_OK)
        chain = NULL;
    if (status == CODA_OK)
        status = time_all(bench, &fused, chain, row, &error);
    chain_free(chain);
    workload_free(&fused);
    if (status == CODA_OK)
        status = measure_errors(bench, program, dims, parameters, row, &error);
    if (status == CODA_OK)
        status = coda_program_cost(program, dims, &cost, &error);
    if (status != CODA_OK) {
        char name[256];
        snprintf(name, sizeof name, "bench: %s", coda_program_name(program));
        return report(name, &error);
    }
    row->gflops = cost.flops / row->ms * 1e-6;
    row->peak_share = row->gflops / bench->ceilings.gflops;
    print_row(bench, coda_program_name(program), dims, row);
    bench->any = true;
    return row->good ? EXIT_GOOD : EXIT_FAILED;
}

static int bench_source(struct bench *bench, const struct source *source)
{
    int worst = EXIT_GOOD;
    for (int i = source->first; i < source->first + source->count; i++) {
        const coda_program *program = coda_module_program(source->module, i);
        struct row row;
        coda_dims dims;
        if (!is_wanted(bench->arguments, program))
            continue;
        int status = choose_sizes(bench->arguments, program, SIZES_TYPICAL, &dims);
        if (status < 0)
            status = bench_program(bench, program, &dims, &row);
        worst = status > worst ? status : worst;
    }
    return worst;
}

static int bench_suite(struct bench *bench)
{
    struct source source = {0};
    coda_error error;
    if (coda_standard_module(&source.module, &error) != CODA_OK)
        return report(bench->arguments->command, &error);
    source.count = coda_module_size(source.module);
    return bench_source(bench, &source);
}

/* The programs between one block's attention output and the next block's queries, keys and values, and their backward.
 * W width, F FFN width, E columns of the keys, T tokens. */
static const struct {
    const char *program, *sizes;
} layer[] = {
    {"gemm_residual_rms", "M=T,N=W,K=W"},
    {"gemm_rms_swiglu", "M=T,N=F,K=W"},
    {"gemm_residual_rms", "M=T,N=W,K=F"},
    {"gemm_rms_rope", "M=T,K=W,Q=W,E=E,P=T,D=H"},
    {NULL, "forward"},
    {"rope_bwd", "M=T,N=A,T=B,P=T,D=H"},
    {"gemm_rms_bwd_qkv", "M=T,Q=W,E=E,N=W"},
    {"gemm_wgrad", "K=T,M=W,N=W"},
    {"gemm_wgrad", "K=T,M=E,N=W"},
    {"gemm_wgrad", "K=T,M=E,N=W"},
    {"gemm_swiglu_bwd", "M=T,K=W,N=F"},
    {"gemm_wgrad", "K=T,M=W,N=F"},
    {"gemm_rms_bwd_twin", "M=T,K=F,N=W"},
    {"gemm_wgrad", "K=T,M=F,N=W"},
    {"gemm_wgrad", "K=T,M=F,N=W"},
    {"gemm_dgrad", "M=T,K=W,N=W"},
    {"gemm_wgrad", "K=T,M=W,N=W"},
    {NULL, "backward"},
};

static int64_t layer_size(const struct arguments *arguments, char letter)
{
    int64_t width = arguments->width ? arguments->width : 1024, tokens = arguments->tokens ? arguments->tokens : 1024;
    int64_t keys = width / 4 > 64 ? width / 4 / 64 * 64 : 64;
    switch (letter) {
    case 'T':
        return tokens;
    case 'F':
        return (width * 11 / 4 + 127) / 128 * 128;
    case 'E':
        return keys;
    case 'H':
        return 64;
    case 'A':
        return width + 2 * keys;
    case 'B':
        return width + keys;
    default:
        return width;
    }
}

static void read_layer_sizes(const struct arguments *arguments, const coda_program *program, const char *text,
                             coda_dims *dims)
{
    dims->count = 0;
    for (const char *p = text; *p; p += p[3] ? 4 : 3)
        for (int i = 0; i < coda_program_axis_count(program); i++) {
            coda_axis axis;
            if (coda_program_axis(program, i, &axis) == CODA_OK && axis.name[0] == p[0] && axis.name[1] == 0) {
                dims->item[dims->count].axis = axis.name;
                dims->item[dims->count++].size = layer_size(arguments, p[2]);
            }
        }
}

static int bench_layer(struct bench *bench)
{
    const coda_module *module;
    coda_error error;
    struct row total = {.good = true};
    double flops = 0;
    int worst = EXIT_GOOD;
    if (coda_standard_module(&module, &error) != CODA_OK)
        return report(bench->arguments->command, &error);
    for (size_t i = 0; i < sizeof layer / sizeof *layer; i++) {
        struct row row;
        coda_dims dims = {0};
        if (!layer[i].program) {
            total.gflops = flops / total.ms * 1e-6;
            total.peak_share = total.gflops / bench->ceilings.gflops;
            print_row(bench, layer[i].sizes, &dims, &total);
            total = (struct row){.good = true};
            flops = 0;
            continue;
        }
        const coda_program *program = coda_module_find(module, layer[i].program);
        if (!program)
            return usage_error("bench", "the library has no program %s", layer[i].program);
        read_layer_sizes(bench->arguments, program, layer[i].sizes, &dims);
        int status = bench_program(bench, program, &dims, &row);
        worst = status > worst ? status : worst;
        total.ms += row.ms;
        total.bare_ms += row.bare_ms;
        total.unfused_ms += row.unfused_ms;
        total.error = row.error > total.error ? row.error : total.error;
        total.unfused_error = row.unfused_error > total.unfused_error ? row.unfused_error : total.unfused_error;
        total.good = total.good && row.good;
        flops += row.gflops * row.ms * 1e6;
    }
    return worst;
}

static int bench_argument(struct bench *bench, const char *text)
{
    struct source source;
    if (strcmp(text, "suite") == 0)
        return bench_suite(bench);
    if (strcmp(text, "layer") == 0)
        return bench_layer(bench);
    int status = open_source(bench->arguments, text, &source);
    if (status >= 0)
        return status;
    status = bench_source(bench, &source);
    close_source(&source);
    return status;
}

int command_bench(int argc, char **argv)
{
    struct arguments arguments = {.device = "cpu", .seed = 1};
    struct bench bench = {.arguments = &arguments};
    coda_error error;
    int status = read_arguments(&arguments, "json device dims param width tokens rounds seed program dtype threads",
                                help, argc, argv);
    if (status >= 0)
        return status;
    if (arguments.file_count == 0)
        return usage_error(arguments.command, "expected a file, a program name, suite or layer");
    status = open_device(&arguments, &bench.device);
    if (status >= 0)
        return status;
    status = EXIT_GOOD;
    if (coda_device_open("ref", &bench.reference, &error) != CODA_OK ||
        measure_ceilings(bench.device, &bench.ceilings, &error) != CODA_OK)
        status = report(arguments.command, &error);
    else
        for (int i = 0; i < arguments.file_count; i++) {
            int one = bench_argument(&bench, arguments.file[i]);
            status = one > status ? one : status;
        }
    coda_device_close(bench.reference);
    coda_device_close(bench.device);
    return status;
}
