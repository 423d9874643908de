#include "bench.h"

#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------- time */

static coda_status run_pass(void *context, void *stream, coda_error *error)
{
    return workload_start(context, stream, error);
}

/* Writes more than the GPU's L2 holds. */
static coda_status make_flush(struct bench *bench, coda_error *error)
{
    static const char text[] = "program flush {\n in x : bf16[N]\n out y : f32[M, N] = broadcast(x, [M, N])\n}\n";
    coda_module *module = NULL;
    coda_dims dims = {2, {{"M", 16384}, {"N", 4096}}};
    coda_status status = coda_module_parse(text, strlen(text), "flush", &module, error);
    if (status == CODA_OK)
        status = workload_new(&bench->flush, bench->device, coda_module_program(module, 0), &dims, NULL, 1, error);
    coda_module_free(module);
    return status;
}

coda_status bench_open(struct bench *bench, coda_error *error)
{
    bench->cuda = strncmp(coda_device_name(bench->device), "cuda", 4) == 0;
    bench->library = bench->cuda;
    bench->rounds = (int)(bench->arguments->rounds ? bench->arguments->rounds : 7);
    bench->rounds = bench->rounds < MAX_ROUNDS ? bench->rounds : MAX_ROUNDS;
    bench->steady = bench->arguments->steady;
    coda_status status = coda_device_open("ref", &bench->reference, error);
    if (status == CODA_OK && bench->cuda)
        status = make_flush(bench, error);
    return status == CODA_OK ? measure_ceilings(bench->device, &bench->ceilings, error) : status;
}

void bench_close(struct bench *bench)
{
    workload_free(&bench->flush);
    coda_device_close(bench->reference);
    coda_device_close(bench->device);
}

static coda_status time_in_turns(struct bench *bench, struct timed *timed, int count, coda_error *error)
{
    static double times[MAX_VARIANTS_TIMED][MAX_ROUNDS];
    coda_status status = CODA_OK;
    for (int round = -1; round < bench->rounds && status == CODA_OK; round++)
        for (int i = 0; i < count && status == CODA_OK; i++) {
            double ms = 0;
            if (bench->flush.kernel)
                status = run_pass(&bench->flush, NULL, error);
            if (status == CODA_OK)
                status = coda_time(bench->device, timed[i].work, timed[i].context, 1, &ms, error);
            if (round >= 0)
                times[i][round] = ms;
            else
                timed[i].ms = ms;
        }
    for (int i = 0; i < count && status == CODA_OK; i++)
        timed[i].ms = median(times[i], bench->rounds);
    return status;
}

/* Blocks of launches back to back: 40 ms to reach the clock that the power limit allows, 90 ms timed; median of three. */
static coda_status time_steadily(struct bench *bench, struct timed *timed, int count, coda_error *error)
{
    double times[MAX_VARIANTS_TIMED][3];
    coda_status status = CODA_OK;
    for (int block = 0; block < 3 && status == CODA_OK; block++)
        for (int k = 0; k < count && status == CODA_OK; k++) {
            int i = (k + block) % count, runs = (int)(90 / timed[i].ms) + 2;
            double ms;
            status = coda_time(bench->device, timed[i].work, timed[i].context, (int)(40 / timed[i].ms) + 1, &ms, error);
            if (status == CODA_OK)
                status = coda_time(bench->device, timed[i].work, timed[i].context, runs, &ms, error);
            times[i][block] = ms / runs;
        }
    for (int i = 0; i < count && status == CODA_OK; i++)
        timed[i].ms = median(times[i], 3);
    return status;
}

coda_status bench_time(struct bench *bench, struct timed *timed, int count, coda_error *error)
{
    coda_status status = time_in_turns(bench, timed, count, error);
    return status == CODA_OK && bench->steady ? time_steadily(bench, timed, count, error) : status;
}

/* ---------------------------------------------------------------- rows */

static void print_object(const struct bench *bench, const struct row *row, const coda_dims *dims)
{
    struct json json = {stdout, false};
    json_begin(&json);
    json_text(&json, "program", row->program);
    if (row->part)
        json_text(&json, "part", row->part);
    json_text(&json, "device", coda_device_name(bench->device));
    json_dims(&json, "dims", dims);
    json_text(&json, "mode", bench->steady ? "steady" : "interleaved");
    json_number(&json, "ms", row->ms);
    json_number(&json, "bare_ms", row->bare_ms > 0 ? row->bare_ms : NAN);
    json_number(&json, "ratio_to_bare", row->bare_ms > 0 ? row->ms / row->bare_ms : NAN);
    json_number(&json, "cublas_ms", row->library_ms > 0 ? row->library_ms : NAN);
    json_number(&json, "ratio_to_cublas", row->library_ms > 0 ? row->ms / row->library_ms : NAN);
    json_number(&json, "unfused_ms", row->unfused_ms > 0 ? row->unfused_ms : NAN);
    json_number(&json, "gflops", row->gflops);
    json_number(&json, "peak_share", row->peak_share);
    json_number(&json, "bytes", row->bytes);
    if (row->memory > 0)
        json_number(&json, "memory", row->memory);
    json_number(&json, "err", row->error);
    json_number(&json, "unfused_err", row->unfused_error);
    json_bool(&json, "good", row->good);
    json_line(&json);
}

static void print_pair(double ms, double other, const char *format)
{
    if (other > 0) {
        printf("%9.3f ", other);
        printf(format, ms / other);
    } else
        printf("%9s %6s ", "-", "-");
}

void print_row(struct bench *bench, const struct row *row, const coda_dims *dims)
{
    if (bench->arguments->json) {
        print_object(bench, row, dims);
        fflush(stdout);
        return;
    }
    if (!bench->any)
        printf("%-22s %9s %9s %6s %9s %6s %9s %6s %8s %6s %9s %9s  dims\n", "program", "ms", "bare ms", "ratio",
               "cuBLAS", "ratio", "unfused", "gain", "GFLOP/s", "share", "error", "unfused");
    printf("%-22s %9.3f ", row->program, row->ms);
    print_pair(row->ms, row->bare_ms, "%6.3f ");
    print_pair(row->ms, row->library_ms, "%6.3f ");
    if (row->unfused_ms > 0)
        printf("%9.3f %5.2fx ", row->unfused_ms, row->unfused_ms / row->ms);
    else
        printf("%9s %6s ", "-", "-");
    printf("%8.1f %5.1f%% %9.2e %9.2e%s  ", row->gflops, 100 * row->peak_share, row->error, row->unfused_error,
           row->good ? "" : " TOO LARGE");
    print_dims(stdout, dims);
    printf("\n");
    fflush(stdout);
    bench->any = true;
}

/* ---------------------------------------------------------------- a program */

static coda_status run_fused(void *context, void *stream, coda_error *error)
{
    return workload_start(context, stream, error);
}

static coda_status run_chain(void *context, void *stream, coda_error *error)
{
    return chain_launch(context, CHAIN_ALL, stream, error);
}

static coda_status run_products(void *context, void *stream, coda_error *error)
{
    return chain_launch(context, CHAIN_PRODUCTS, stream, error);
}

static coda_status run_library(void *context, void *stream, coda_error *error)
{
    return chain_launch(context, CHAIN_LIBRARY, stream, error);
}

static coda_status time_program(struct bench *bench, struct workload *fused, struct chain *chain, const coda_dims *dims,
                                struct row *row, coda_error *error)
{
    struct timed timed[4] = {{.work = run_fused, .context = fused}};
    double *place[4] = {&row->ms};
    int count = 1;
    bool products = chain && chain_products(chain) > 0;
    coda_status status = CODA_OK;
    if (chain) {
        place[count] = &row->unfused_ms;
        timed[count++] = (struct timed){.work = run_chain, .context = chain};
        status = chain_launch(chain, CHAIN_ALL, NULL, error); /* its products read what it wrote */
    }
    if (products) {
        place[count] = &row->bare_ms;
        timed[count++] = (struct timed){.work = run_products, .context = chain};
    }
    if (products && bench->library && chain_add_library(chain, dims)) {
        place[count] = &row->library_ms;
        timed[count++] = (struct timed){.work = run_library, .context = chain};
    }
    if (status == CODA_OK)
        status = bench_time(bench, timed, count, error);
    for (int i = 0; i < count && status == CODA_OK; i++)
        *place[i] = timed[i].ms;
    return status;
}

int bench_program(struct bench *bench, const coda_program *program, const coda_dims *dims, const char *part,
                  struct row *row)
{
    struct workload fused = {0};
    struct chain *chain = NULL;
    coda_error error = {0};
    coda_cost cost = {0};
    double parameters[MAX_WORKLOAD];
    uint64_t seed = (uint64_t)bench->arguments->seed;
    *row = (struct row){.program = coda_program_name(program), .part = part, .good = true};
    int usage = choose_parameters(bench->arguments, program, parameters);
    if (usage >= 0)
        return usage;
    coda_status status = workload_new(&fused, bench->device, program, dims, parameters, seed, &error);
    if (status == CODA_OK && chain_new(&chain, &fused, dims, seed, NULL) != CODA_OK)
        chain = NULL;
    if (status == CODA_OK)
        status = time_program(bench, &fused, chain, dims, row, &error);
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
    row->bytes = cost.bytes;
    print_row(bench, row, dims);
    return row->good ? EXIT_GOOD : EXIT_FAILED;
}
