/* What `coda bench` and `coda tune` share: rows, turns, and programs of a block's schedule. */
#ifndef CODA_CLI_BENCH_H
#define CODA_CLI_BENCH_H

#include "cli.h"

enum { MAX_ROUNDS = 1000, MAX_VARIANTS_TIMED = 64 };

struct row {
    const char *program, *part;                 /* part: "forward", "backward", "step"; NULL: a program by itself */
    double ms, bare_ms, library_ms, unfused_ms; /* 0: there is none */
    double gflops, peak_share, error, unfused_error, bytes;
    double memory; /* of a schedule: saved and scratch bytes */
    bool good;
};

struct bench {
    const struct arguments *arguments;
    coda_device *device, *reference;
    struct ceilings ceilings;
    bool cuda, library;    /* a GPU; cuBLASLt answered */
    struct workload flush; /* a pass over more memory than caches hold; empty: none */
    int rounds;
    bool steady; /* back to back, at the power limit, instead of in turns with a flush */
    bool any;
};

coda_status bench_open(struct bench *bench, coda_error *error);
void bench_close(struct bench *bench);

/* One thing to time. */
struct timed {
    coda_work work;
    void *context;
    double ms; /* the median */
};
/* In turns (or steadily), warmed first. */
coda_status bench_time(struct bench *bench, struct timed *timed, int count, coda_error *error);

void print_row(struct bench *bench, const struct row *row, const coda_dims *dims);
/* Times a program against its products and the unfused chain, and prints the row. Returns an exit status. */
int bench_program(struct bench *bench, const coda_program *program, const coda_dims *dims, const char *part,
                  struct row *row);
/* The errors of the outs at sizes that the reference can do. */
coda_status measure_errors(const struct bench *bench, const coda_program *program, const coda_dims *dims,
                           const double *parameters, struct row *row, coda_error *error);

int bench_block(struct bench *bench, const coda_program *block);
int bench_layer(struct bench *bench);
/* A row a launch of the schedule, instead of its steps against their products and chains (bench_launches.c). */
int bench_launches(struct bench *bench, const coda_schedule *schedule, const coda_dims *dims, int64_t chunk);

/* ---------------------------------------------------------------- schedules (schedule.c) */

/* The sizes of a Llama block's axes: --dims first, then --width and --tokens as in DESIGN: F is 8/3 of the width. */
int choose_block_sizes(const struct arguments *arguments, const coda_program *block, bool cuda, coda_dims *dims);
/* The sizes of a step's axes, from the values that its operands are. False: they do not say, as of a sum of partial sums;
 * the step is then timed with the whole alone. */
bool step_sizes(const coda_schedule *schedule, const coda_step *step, const coda_dims *dims, int64_t chunk,
                coda_dims *sizes);

/* A schedule with its operands and memory, filled with random values. */
struct scheduled {
    coda_device *device;
    coda_schedule *schedule;
    int phases, count;
    coda_tensor *operand;
    void *saved, *scratch;
    size_t saved_bytes, scratch_bytes;
};

coda_status scheduled_new(struct scheduled *scheduled, coda_device *device, const coda_program *block,
                          const coda_dims *dims, const coda_schedule_options *options, uint64_t seed,
                          coda_error *error);
coda_status scheduled_launch(const struct scheduled *scheduled, int phases, void *stream, coda_error *error);
void scheduled_free(struct scheduled *scheduled); /* an empty one is allowed */

#endif
