/* A block's schedule, forward and backward, against the sum of its products. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_STEPS = 64 };

/* The products of every step of a phase, alone. */
struct parts {
    int count;
    struct workload fused[MAX_STEPS];
    struct chain *chain[MAX_STEPS];
    int phase[MAX_STEPS];
    coda_dims dims[MAX_STEPS];
    int times[MAX_STEPS]; /* a launch of the schedule runs it so often: chunks */
    double flops[2];      /* of the forward, of the backward */
    bool library;
};

struct phase {
    struct scheduled *scheduled;
    struct parts *parts;
    int phases;
    enum chain_part part;
};

static coda_status run_phase(void *context, void *stream, coda_error *error)
{
    const struct phase *phase = context;
    return scheduled_launch(phase->scheduled, phase->phases, stream, error);
}

static coda_status run_graph(void *context, void *stream, coda_error *error)
{
    return coda_graph_launch(context, stream, error);
}

static coda_status run_parts(void *context, void *stream, coda_error *error)
{
    const struct phase *phase = context;
    coda_status status = CODA_OK;
    for (int i = 0; i < phase->parts->count && status == CODA_OK; i++)
        for (int k = 0; k < phase->parts->times[i] && status == CODA_OK; k++)
            if (phase->parts->phase[i] & phase->phases)
                status = chain_launch(phase->parts->chain[i], phase->part, stream, error);
    return status;
}

/* ---------------------------------------------------------------- the parts */

static int64_t chunks_of(const coda_step *step, const coda_dims *dims, int64_t chunk)
{
    for (int i = 0; i < dims->count && step->chunked && chunk; i++)
        if (strcmp(dims->item[i].axis, "M") == 0)
            return (dims->item[i].size + chunk - 1) / chunk;
    return 1;
}

static coda_status add_part(struct bench *bench, struct parts *parts, const coda_step *step, const coda_dims *sizes,
                            int64_t times, coda_error *error)
{
    double parameters[MAX_WORKLOAD];
    coda_cost cost;
    coda_status status = coda_program_cost(step->program, sizes, &cost, error);
    if (status != CODA_OK || cost.flops <= 0)
        return status;
    for (int i = 0; i < coda_program_parameter_count(step->program); i++)
        coda_program_parameter(step->program, i, &parameters[i]);
    int i = parts->count;
    status = workload_new(&parts->fused[i], bench->device, step->program, sizes, parameters, 1, error);
    if (status == CODA_OK)
        status = chain_new(&parts->chain[i], &parts->fused[i], sizes, 1, error);
    if (status == CODA_OK)
        status = chain_launch(parts->chain[i], CHAIN_ALL, NULL, error);
    if (status != CODA_OK) {
        workload_free(&parts->fused[i]);
        return status;
    }
    parts->phase[i] = step->phase;
    parts->dims[i] = *sizes;
    parts->times[i] = (int)times;
    parts->flops[step->phase == CODA_BACKWARD] += cost.flops * (double)times;
    parts->library = parts->library && bench->library && chain_add_library(parts->chain[i], sizes);
    parts->count++;
    return CODA_OK;
}

static coda_status make_parts(struct bench *bench, const struct scheduled *s, const coda_dims *dims, int64_t chunk,
                              struct parts *parts, coda_error *error)
{
    coda_status status = CODA_OK;
    parts->library = true;
    for (int i = 0; i < coda_schedule_step_count(s->schedule) && status == CODA_OK && parts->count < MAX_STEPS; i++) {
        coda_step step;
        coda_dims sizes;
        status = coda_schedule_step(s->schedule, i, &step);
        if (status == CODA_OK && step_sizes(s->schedule, &step, dims, chunk, &sizes))
            status = add_part(bench, parts, &step, &sizes, chunks_of(&step, dims, chunk), error);
    }
    return status;
}

static void free_parts(struct parts *parts)
{
    for (int i = 0; i < parts->count; i++) {
        chain_free(parts->chain[i]);
        workload_free(&parts->fused[i]);
    }
    free(parts);
}

/* ---------------------------------------------------------------- whole phases */

/* One phase, or both together: the graph of the schedule, its products, its products by the library, its chain. */
static coda_status time_phase(struct bench *bench, struct scheduled *s, struct parts *parts, int phases,
                              struct row *row, coda_error *error)
{
    struct phase whole = {.scheduled = s, .phases = phases};
    struct phase bare = {.parts = parts, .phases = phases, .part = CHAIN_PRODUCTS};
    struct phase library = {.parts = parts, .phases = phases, .part = CHAIN_LIBRARY};
    struct phase unfused = {.parts = parts, .phases = phases, .part = CHAIN_ALL};
    coda_graph *graph = NULL;
    coda_status status = run_phase(&whole, NULL, error); /* the GPU's memory is known before the capture */
    if (status == CODA_OK)
        status = coda_graph_create(bench->device, run_phase, &whole, &graph, error);
    struct timed timed[4] = {{.work = run_graph, .context = graph},
                             {.work = run_parts, .context = &bare},
                             {.work = run_parts, .context = &unfused},
                             {.work = run_parts, .context = &library}};
    if (status == CODA_OK)
        status = bench_time(bench, timed, parts->library ? 4 : 3, error);
    coda_graph_free(graph);
    row->ms = timed[0].ms;
    row->bare_ms = timed[1].ms;
    row->unfused_ms = timed[2].ms;
    row->library_ms = parts->library ? timed[3].ms : 0;
    for (int i = 0; i < 2; i++)
        row->gflops += phases & (i ? CODA_BACKWARD : CODA_FORWARD) ? parts->flops[i] / row->ms * 1e-6 : 0;
    row->peak_share = row->gflops / bench->ceilings.gflops;
    row->memory = (double)s->saved_bytes + (double)s->scratch_bytes;
    return status;
}

static int bench_phases(struct bench *bench, struct scheduled *s, const coda_program *block, const coda_dims *dims,
                        int64_t chunk, bool together, const struct row *worst)
{
    static const struct {
        const char *part;
        int phases;
        bool together;
    } rows[] = {{"forward", CODA_FORWARD, false},
                {"backward", CODA_BACKWARD, false},
                {"forward and backward", CODA_FORWARD | CODA_BACKWARD, true}};
    coda_error error = {0};
    struct parts *parts = calloc(1, sizeof *parts);
    coda_status status = parts ? make_parts(bench, s, dims, chunk, parts, &error) : CODA_MEMORY;
    for (size_t i = 0; i < sizeof rows / sizeof *rows && status == CODA_OK; i++) {
        char name[128];
        struct row row = {
            .part = rows[i].part, .error = worst->error, .unfused_error = worst->unfused_error, .good = worst->good};
        if (rows[i].together != together)
            continue;
        snprintf(name, sizeof name, "%.40s %s", coda_program_name(block), together ? "" : rows[i].part);
        row.program = together ? coda_program_name(block) : name;
        double before = coda_schedule_bytes_moved(s->schedule);
        status = scheduled_launch(s, rows[i].phases, NULL, &error);
        row.bytes = coda_schedule_bytes_moved(s->schedule) - before;
        if (status == CODA_OK)
            status = time_phase(bench, s, parts, rows[i].phases, &row, &error);
        if (status == CODA_OK)
            print_row(bench, &row, dims);
    }
    if (parts)
        free_parts(parts);
    return status == CODA_OK ? EXIT_GOOD : report("bench", &error);
}

static int bench_steps(struct bench *bench, const coda_schedule *schedule, const coda_dims *dims, int64_t chunk,
                       struct row *worst)
{
    int result = EXIT_GOOD;
    for (int i = 0; i < coda_schedule_step_count(schedule); i++) {
        coda_step step;
        coda_dims sizes;
        struct row row = {0};
        if (coda_schedule_step(schedule, i, &step) != CODA_OK || !step_sizes(schedule, &step, dims, chunk, &sizes))
            continue;
        int one = bench_program(bench, step.program, &sizes,
                                step.phase == CODA_FORWARD ? "forward step" : "backward step", &row);
        result = one > result ? one : result;
        worst->error = row.error > worst->error ? row.error : worst->error;
        worst->unfused_error = row.unfused_error > worst->unfused_error ? row.unfused_error : worst->unfused_error;
        worst->good = worst->good && row.good;
    }
    return result;
}

static int bench_block_as(struct bench *bench, const coda_program *block, const coda_dims *dims, int64_t chunk,
                          bool together)
{
    struct scheduled scheduled = {0};
    struct row worst = {.good = true};
    coda_error error = {0};
    const char *join = bench->arguments->join;
    if (join && strcmp(join, "all") != 0 && strcmp(join, "none") != 0)
        return usage_error("bench", "--join %s: expected all or none", join);
    coda_schedule_options options = {.size = sizeof options,
                                     .backward = 1,
                                     .join = !join                      ? 0
                                             : strcmp(join, "all") == 0 ? 1
                                                                        : -1,
                                     .save = bench->arguments->save,
                                     .together = together,
                                     .keep_saved = !together,
                                     .wide_axis = together ? "V" : NULL,
                                     .chunk_rows = chunk};
    coda_status status =
        scheduled_new(&scheduled, bench->device, block, dims, &options, (uint64_t)bench->arguments->seed, &error);
    if (status != CODA_OK)
        return report("bench", &error);
    chunk = coda_schedule_chunk_rows(scheduled.schedule);
    if (bench->arguments->launches) {
        int status_of_launches = bench_launches(bench, scheduled.schedule, dims, chunk);
        scheduled_free(&scheduled);
        return status_of_launches;
    }
    int steps = bench_steps(bench, scheduled.schedule, dims, chunk, &worst);
    int phases = bench_phases(bench, &scheduled, block, dims, chunk, together, &worst);
    scheduled_free(&scheduled);
    return steps > phases ? steps : phases;
}

/* A block with a vocabulary ends in a loss: its forward and backward are one launch, by chunks where asked. */
int bench_block(struct bench *bench, const coda_program *block)
{
    coda_dims dims;
    int status = choose_block_sizes(bench->arguments, block, bench->cuda, &dims);
    if (status >= 0)
        return status;
    bool vocabulary = false;
    for (int i = 0; i < dims.count; i++)
        vocabulary = vocabulary || strcmp(dims.item[i].axis, "V") == 0;
    return bench_block_as(bench, block, &dims, vocabulary ? bench->arguments->chunk : 0, vocabulary);
}

int bench_layer(struct bench *bench)
{
    static const char *const names[] = {"llama3", "llama3_head"};
    const coda_module *module;
    coda_error error;
    int worst = EXIT_GOOD;
    if (coda_standard_blocks(&module, &error) != CODA_OK)
        return report("bench", &error);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const coda_program *block = coda_module_find(module, names[i]);
        int status = block ? bench_block(bench, block) : usage_error("bench", "the library has no block %s", names[i]);
        worst = status > worst ? status : worst;
    }
    return worst;
}
