/* Every launch of a block's schedule: its time beside the least that its bytes or its products could take. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_SETS = 8 };

struct launch_row {
    const char *program, *phase;
    int64_t times;    /* a launch of the schedule runs it so often: chunks */
    double ms, floor; /* of all times */
    bool products;    /* the floor is that of the products, not of the bytes */
};

static coda_status run_step(void *context, void *stream, coda_error *error)
{
    return workload_start(context, stream, error);
}

/* A sum over the runs of a vector's gradient: as many rows of its length. */
static bool sum_sizes(const coda_schedule *schedule, const coda_step *step, const coda_dims *dims, coda_dims *sizes)
{
    int64_t runs[2] = {1, 1}, vector[2] = {1, 1};
    if (coda_schedule_shape(schedule, step->value[0], dims, runs, NULL) != CODA_OK ||
        coda_schedule_shape(schedule, step->value[1], dims, vector, NULL) != CODA_OK || vector[0] < 1)
        return false;
    *sizes = (coda_dims){2, {{"R", runs[0] * runs[1] / vector[0]}, {"N", vector[0]}}};
    return true;
}

static int64_t times_of(const coda_step *step, const coda_dims *dims, int64_t chunk)
{
    for (int i = 0; i < dims->count && step->chunked && chunk; i++)
        if (strcmp(dims->item[i].axis, "M") == 0)
            return (dims->item[i].size + chunk - 1) / chunk;
    return 1;
}

static coda_status time_step(struct bench *bench, const coda_step *step, const coda_dims *sizes, struct launch_row *row,
                             coda_error *error)
{
    double parameters[MAX_WORKLOAD];
    struct workload workload = {0};
    coda_cost cost;
    for (int i = 0; i < coda_program_parameter_count(step->program); i++)
        coda_program_parameter(step->program, i, &parameters[i]);
    coda_status status = coda_program_cost(step->program, sizes, &cost, error);
    if (status == CODA_OK)
        status = workload_new(&workload, bench->device, step->program, sizes, parameters, 1, error);
    struct timed timed = {.work = run_step, .context = &workload};
    if (status == CODA_OK)
        status = bench_time(bench, &timed, 1, error);
    workload_free(&workload);
    if (status != CODA_OK)
        return status;
    double bytes = cost.bytes / bench->ceilings.gbytes * 1e-6, products = cost.flops / bench->ceilings.gflops * 1e-6;
    row->products = products > bytes;
    row->floor = (row->products ? products : bytes) * (double)row->times;
    row->ms = timed.ms * (double)row->times;
    return CODA_OK;
}

/* Products that are sets of one launch: the operands of each, and the kernel that all have. */
struct sets {
    coda_kernel *kernel;
    int count, operands;
    struct workload member[MAX_SETS];
    coda_tensor tensor[MAX_SETS * MAX_WORKLOAD];
};

static coda_status run_sets(void *context, void *stream, coda_error *error)
{
    const struct sets *s = context;
    return coda_kernel_launch_sets(s->kernel, s->tensor, s->operands, s->count, NULL, stream, error);
}

static coda_status add_member(struct bench *bench, struct sets *sets, const coda_step *step, const coda_dims *sizes,
                              struct launch_row *row, coda_error *error)
{
    coda_cost cost;
    struct workload *member = &sets->member[sets->count];
    coda_status status = coda_program_cost(step->program, sizes, &cost, error);
    if (status == CODA_OK)
        status = workload_new(member, bench->device, step->program, sizes, NULL, 1 + (uint64_t)sets->count, error);
    if (status != CODA_OK)
        return status;
    sets->kernel = step->kernel;
    sets->operands = member->count;
    memcpy(sets->tensor + sets->count++ * member->count, member->tensor,
           (size_t)member->count * sizeof *member->tensor);
    double bytes = cost.bytes / bench->ceilings.gbytes * 1e-6, products = cost.flops / bench->ceilings.gflops * 1e-6;
    row->products = products > bytes;
    row->floor += row->products ? products : bytes;
    return CODA_OK;
}

/* The steps of a list from *index on, as one launch; *index becomes the last of them. Their names go into `name`. */
static coda_status time_list(struct bench *bench, const coda_schedule *schedule, const coda_dims *dims, int *index,
                             char *name, size_t size, struct launch_row *row, coda_error *error)
{
    struct sets *sets = calloc(1, sizeof *sets);
    coda_step step, first;
    coda_dims sizes;
    size_t length = 0;
    coda_status status = sets ? coda_schedule_step(schedule, *index, &first) : out_of_memory(error);
    for (int i = *index; status == CODA_OK && sets->count < MAX_SETS; i++) {
        if (coda_schedule_step(schedule, i, &step) != CODA_OK || step.list != first.list ||
            !step_sizes(schedule, &step, dims, 0, &sizes))
            break;
        status = add_member(bench, sets, &step, &sizes, row, error);
        if (length < size)
            length += (size_t)snprintf(name + length, size - length, "%s%s", i > *index ? " + " : "",
                                       coda_program_name(step.program));
    }
    struct timed timed = {.work = run_sets, .context = sets};
    if (status == CODA_OK)
        status = bench_time(bench, &timed, 1, error);
    row->ms = timed.ms;
    *index += status == CODA_OK ? sets->count - 1 : 0;
    for (int i = 0; sets && i < sets->count; i++)
        workload_free(&sets->member[i]);
    free(sets);
    return status;
}

static void print_launch(struct bench *bench, const struct launch_row *row)
{
    if (bench->arguments->json) {
        struct json json = {stdout, false};
        json_begin(&json);
        json_text(&json, "launch", row->program);
        json_text(&json, "phase", row->phase);
        json_number(&json, "times", (double)row->times);
        json_number(&json, "ms", row->ms);
        json_number(&json, "floor_ms", row->floor);
        json_text(&json, "floor", row->products ? "products" : "bytes");
        json_line(&json);
    } else {
        printf("%-26s %-8s %5lld %9.4f %9.4f %6.2f  %s\n", row->program, row->phase, (long long)row->times, row->ms,
               row->floor, row->ms / row->floor, row->products ? "products" : "bytes");
    }
    fflush(stdout);
}

int bench_launches(struct bench *bench, const coda_schedule *schedule, const coda_dims *dims, int64_t chunk)
{
    struct launch_row total[2] = {{.program = "all", .phase = "forward", .times = 1},
                                  {.program = "all", .phase = "backward", .times = 1}};
    coda_error error = {0};
    if (!bench->arguments->json)
        printf("%-26s %-8s %5s %9s %9s %6s  floor of\n", "launch", "phase", "times", "ms", "floor ms", "ratio");
    for (int i = 0; i < coda_schedule_step_count(schedule); i++) {
        coda_step step;
        coda_dims sizes;
        if (coda_schedule_step(schedule, i, &step) != CODA_OK ||
            (!step_sizes(schedule, &step, dims, chunk, &sizes) && !sum_sizes(schedule, &step, dims, &sizes)))
            continue;
        bool backward = step.phase == CODA_BACKWARD;
        char name[512] = "";
        struct launch_row row = {.program = coda_program_name(step.program),
                                 .phase = total[backward].phase,
                                 .times = times_of(&step, dims, chunk)};
        coda_status status = step.list ? time_list(bench, schedule, dims, &i, name, sizeof name, &row, &error)
                                       : time_step(bench, &step, &sizes, &row, &error);
        if (status != CODA_OK)
            return report("bench", &error);
        if (step.list)
            row.program = name;
        print_launch(bench, &row);
        total[backward].ms += row.ms;
        total[backward].floor += row.floor;
        total[backward].products = true;
    }
    for (int i = 0; i < 2; i++)
        if (total[i].ms > 0)
            print_launch(bench, &total[i]);
    return EXIT_GOOD;
}
