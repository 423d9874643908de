/* What the subcommands share. Each is one file with one function command_<name>(argc, argv), argv[0] its name. */
#ifndef CODA_CLI_H
#define CODA_CLI_H

#include "coda.h"

#include <stdbool.h>
#include <stdio.h>

enum {
    EXIT_GOOD = 0,
    EXIT_FAILED = 1, /* a check failed, a program is wrong, a file cannot be read */
    EXIT_USAGE = 2,  /* unknown options, devices, axes */
};

int command_check(int argc, char **argv);
int command_run(int argc, char **argv);
int command_grad(int argc, char **argv);
int command_rewrite(int argc, char **argv);
int command_explain(int argc, char **argv);
int command_emit(int argc, char **argv);
int command_bench(int argc, char **argv);
int command_tune(int argc, char **argv);
int command_train(int argc, char **argv);
int command_sample(int argc, char **argv);
int command_info(int argc, char **argv);

/* ---------------------------------------------------------------- arguments (arguments.c) */

struct arguments {
    const char *command;
    int json, backward, passes, exponentials, cubin, steady, launches, library, forget; /* flags */
    const char *device, *dims, *parameters, *wrt, *save, *target, *dtype, *output, *program, *schedule, *join;
    long seed, rounds, threads, width, tokens, without, chunk;
    int file_count;
    char **file;
};

/* Reads the options that `accepted` names ("json device dims"); "help" is always one. Returns -1 to go on, else the
 * exit status to return: 0 after printing `help`, 2 after printing what is wrong. */
int read_arguments(struct arguments *arguments, const char *accepted, const char *help, int argc, char **argv);

/* Prints "coda run: ..." and where to find help; returns EXIT_USAGE. */
int usage_error(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints an error of the library; returns EXIT_FAILED. */
int report(const char *command, const coda_error *error);

/* Opens --device with --threads (devices.c). Returns -1, or the exit status after printing why not. */
int open_device(const struct arguments *arguments, coda_device **device);

/* ---------------------------------------------------------------- programs and sizes (sources.c, sizes.c) */

struct source {
    const coda_module *module;
    coda_module *owned; /* NULL: the standard programs */
    int first, count;
};

/* `text` is a file, or the name of a standard program. Returns -1, or the exit status after printing why not. */
int open_source(const struct arguments *arguments, const char *text, struct source *source);
void close_source(struct source *source);
bool is_wanted(const struct arguments *arguments, const coda_program *program); /* --program NAME */

/* Visits every wanted program of every file; the worst exit status wins. */
int for_each_program(const struct arguments *arguments,
                     int (*visit)(const struct arguments *arguments, const coda_program *program));
/* Prints every program of the module as text (grad.c). */
int print_module(const char *command, const coda_module *module);

enum size_style {
    SIZES_GIVEN,   /* --dims alone */
    SIZES_SMALL,   /* small and ragged where the program allows it */
    SIZES_TYPICAL, /* --width and --tokens: a layer of a Llama */
};

/* Gives every free axis a size: what --dims says, then the style. The names live as long as the program.
 * Returns -1, or the exit status after printing why not. */
int choose_sizes(const struct arguments *arguments, const coda_program *program, enum size_style style,
                 coda_dims *dims);
/* Those of `dims` that the program has and that are free. */
coda_dims own_sizes(const coda_program *program, const coda_dims *dims);
/* Reads "cap=30,zloss=1e-4" over the defaults. values has room for every parameter. */
int choose_parameters(const struct arguments *arguments, const coda_program *program, double *values);
void print_dims(FILE *file, const coda_dims *dims); /* "M=300,N=520" */

/* ---------------------------------------------------------------- running (workload.c, chain.c, judge.c, ceilings.c)
 */

enum { MAX_WORKLOAD = 64 };

/* A kernel and its operands in device memory, filled with random values. */
struct workload {
    coda_device *device;
    const coda_program *program;
    coda_kernel *kernel;
    int count;
    coda_tensor tensor[MAX_WORKLOAD];
    double parameter[MAX_WORKLOAD];
};

coda_status workload_new(struct workload *workload, coda_device *device, const coda_program *program,
                         const coda_dims *dims, const double *parameters, uint64_t seed, coda_error *error);
coda_status workload_launch(struct workload *workload, coda_error *error); /* and waits */
coda_status workload_start(struct workload *workload, void *stream, coda_error *error);
/* The elements of an operand as f32, to be freed; NULL: no memory or a failed copy. */
float *workload_read(const struct workload *workload, int index, int64_t *count, coda_error *error);
void workload_free(struct workload *workload); /* an empty workload is allowed */

coda_status out_of_memory(coda_error *error); /* CODA_MEMORY, said so */

/* The unfused form of a workload: one kernel an operator, intermediates in memory. Shares the workload's `in`s. */
struct chain;
coda_status chain_new(struct chain **chain, const struct workload *fused, const coda_dims *dims, uint64_t seed,
                      coda_error *error);
/* Makes the products through cuBLASLt too; false: it is missing, or cannot do one of them. */
bool chain_add_library(struct chain *chain, const coda_dims *dims);

enum chain_part {
    CHAIN_ALL,
    CHAIN_PRODUCTS, /* the bare GEMM */
    CHAIN_LIBRARY,  /* the same through cuBLASLt */
};
coda_status chain_launch(struct chain *chain, enum chain_part part, void *stream, coda_error *error);
float *chain_read(const struct chain *chain, const char *out, int64_t *count, coda_error *error);
int chain_length(const struct chain *chain);
int chain_products(const struct chain *chain);
void chain_free(struct chain *chain); /* NULL is allowed */

/* One out's error against the reference, and what is allowed: twice the error that the unfused chain makes in the
 * operands' precision, plus a rounding of the out and 64 roundings in f32. Relative to the reference, in the 2-norm and
 * for the largest element. */
struct verdict {
    double error, bound, max_error, max_bound;
    double plain; /* the unfused chain's error, 2-norm */
    bool good;
};
struct verdict judge(const float *found, const float *reference, const float *plain, int64_t count, coda_dtype dtype);

/* What the device reaches, measured now: GFLOP/s of the faster of large products and of a loop of its instructions, and
 * GB/s of a long pass. */
struct ceilings {
    double gflops, gbytes;
};
coda_status measure_ceilings(coda_device *device, struct ceilings *ceilings, coda_error *error);
double measure_peak(coda_device *device); /* GFLOP/s of the CPU's instructions alone; 0: there is no loop (peaks.c) */

double now_ms(void);
double median(double *values, int count); /* sorts them */

/* ---------------------------------------------------------------- JSON, an object a line (json.c) */

struct json {
    FILE *file;
    bool comma; /* one is due before the next member */
};

void json_begin(struct json *json);
void json_text(struct json *json, const char *name, const char *text);
void json_number(struct json *json, const char *name, double number); /* null where it is no finite number */
void json_bool(struct json *json, const char *name, bool value);
void json_dims(struct json *json, const char *name, const coda_dims *dims);
void json_array(struct json *json, const char *name); /* its elements follow: json_begin .. json_end, or json_item */
void json_item(struct json *json, const char *text);
void json_array_end(struct json *json);
void json_end(struct json *json);
void json_line(struct json *json); /* json_end of the outermost object, and the line's end */

#endif
