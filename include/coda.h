/* coda: Transformer blocks as GEMM-epilogue programs.
 *
 * A program is one matrix product (or none) and the block-local mathematics that follows it, written as text. This header
 * parses programs, compiles them for a device (`coda_kernel_create`) and runs them (`coda_kernel_launch`). Above that it
 * trains and samples a Llama whose every operator between the matrix products runs inside such a program.
 *
 * Conventions that hold everywhere:
 *   - Functions return a status. A `coda_error *` may be NULL; on failure it receives one text that says what was
 *     expected, what was found and what to do. Nothing in the library prints, exits or aborts.
 *   - An output parameter is set only on success.
 *   - Matrices are row-major; sizes and strides count elements; the last stride is 1.
 *   - Objects may be used by several threads at once unless their functions say otherwise.
 *
 * The language is described in docs/language.md. */
#ifndef CODA_H
#define CODA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define CODA_API __attribute__((visibility("default")))
#else
#define CODA_API
#endif

#define CODA_VERSION "0.1.0"

/* ---------------------------------------------------------------- status and errors */

typedef enum coda_status {
    CODA_OK = 0,
    CODA_INVALID,     /* the caller's input contradicts itself or the program: text, sizes, pointers, files */
    CODA_UNSUPPORTED, /* correct, but no rule or no path on this device serves it; the message names the limit */
    CODA_MEMORY,      /* an allocation failed */
    CODA_DEVICE,      /* the device or its driver failed or is missing */
    CODA_IO,          /* a file could not be read or written */
    CODA_STOPPED,     /* the caller asked to stop */
} coda_status;

typedef struct coda_error {
    coda_status status;
    char message[4096]; /* UTF-8, lines end in \n but the last; diagnostics of a text carry file:line:column and a caret */
} coda_error;

/* "ok", "invalid", "unsupported", ... Never NULL. */
CODA_API const char *coda_status_name(coda_status status);

/* ---------------------------------------------------------------- types of elements */

typedef enum coda_dtype {
    CODA_F32 = 0,
    CODA_BF16,
    CODA_F16,
    CODA_E4M3, /* fp8, 4 exponent bits, largest value 448, no infinities (the OCP "FN" form) */
    CODA_E5M2, /* fp8, 5 exponent bits, IEEE-like */
    CODA_I32,
} coda_dtype;

CODA_API const char *coda_dtype_name(coda_dtype dtype); /* "f32", "bf16", "f16", "e4m3", "e5m2", "i32" */
CODA_API size_t coda_dtype_size(coda_dtype dtype);      /* bytes of one element */

/* Converts `count` elements. To a narrower float: round to nearest even, NaN kept, overflow to infinity (e4m3: to NaN;
 * programs saturate by `clamp` where they want it). To i32: truncation toward zero, saturated, NaN to 0. */
CODA_API void coda_convert(void *to, coda_dtype to_dtype, const void *from, coda_dtype from_dtype, int64_t count);

/* ---------------------------------------------------------------- programs */

/* A parsed text: one or more programs and blocks. Immutable. */
typedef struct coda_module coda_module;
/* One program or block of a module; lives as long as its module. Immutable. */
typedef struct coda_program coda_program;

/* Parses and checks `text` (`length` bytes, not necessarily zero-terminated). Programs must be block-local; blocks need not.
 * file_name   appears in diagnostics; NULL reads as "<text>"
 * Returns CODA_OK, CODA_INVALID (every error found, up to the message's room) or CODA_MEMORY. */
CODA_API coda_status coda_module_parse(const char *text, size_t length, const char *file_name, coda_module **module,
                                       coda_error *error);

/* Reads the file and parses it. Also returns CODA_IO. */
CODA_API coda_status coda_module_load(const char *path, coda_module **module, coda_error *error);

/* The programs of `programs/`, compiled into the library: one module, one program a file. Never freed by the caller. */
CODA_API coda_status coda_standard_module(const coda_module **module, coda_error *error);

/* A copy of the module in which operands of type `from` have type `to`: the bf16 programs as f32 ones, say. */
CODA_API coda_status coda_module_retype(const coda_module *module, coda_dtype from, coda_dtype to, coda_module **retyped,
                                        coda_error *error);

CODA_API int coda_module_size(const coda_module *module);
CODA_API const coda_program *coda_module_program(const coda_module *module, int index);        /* NULL if out of range */
CODA_API const coda_program *coda_module_find(const coda_module *module, const char *program); /* NULL if absent */
CODA_API void coda_module_free(coda_module *module);                                           /* NULL is allowed */

CODA_API const char *coda_program_name(const coda_program *program);
CODA_API int coda_program_is_block(const coda_program *program);

/* Prints the program in canonical form; parsing it again gives the same graph. Release with coda_free. NULL: no memory. */
CODA_API char *coda_program_text(const coda_program *program);
CODA_API void coda_free(void *pointer); /* releases strings that this library returned */

typedef enum coda_role {
    CODA_IN = 0,
    CODA_OUT,        /* `out X : ... = e`  : overwritten */
    CODA_ACCUMULATE, /* `out X : ... += e` : read and added to */
} coda_role;

/* One `in` or `out`, in the order of the text, which is the order of `coda_kernel_launch`'s operands. */
typedef struct coda_operand {
    const char *name;
    coda_role role;
    coda_dtype dtype;
    int rank;        /* 1 or 2; 0 for a scalar `in` */
    char dim[2][64]; /* the declared sizes as text: "M", "N/128", "64"; longer ones are cut */
} coda_operand;

CODA_API int coda_program_operand_count(const coda_program *program);
CODA_API coda_status coda_program_operand(const coda_program *program, int index, coda_operand *operand);

/* Named axes. An axis is free (the caller gives its size), or derived from others (`axis N = Q + 2*P`). An axis whose size
 * is the length of a run or of a head (`N:H`, `rope`) is `fixed`: kernels need it when they are created. */
typedef struct coda_axis {
    const char *name;
    int derived;
    int fixed;
} coda_axis;

CODA_API int coda_program_axis_count(const coda_program *program);
CODA_API coda_status coda_program_axis(const coda_program *program, int index, coda_axis *axis);

/* `param eps = 1e-6`: a number given at launch. */
CODA_API int coda_program_parameter_count(const coda_program *program);
CODA_API const char *coda_program_parameter(const coda_program *program, int index, double *default_value);

/* Sizes of named axes. */
#define CODA_MAX_DIMS 24
typedef struct coda_dims {
    int count;
    struct {
        const char *axis;
        int64_t size;
    } item[CODA_MAX_DIMS];
} coda_dims;

/* The sizes of operand `index` under `dims`, which must give every free axis that it uses. shape[0..rank-1] is set. */
CODA_API coda_status coda_program_operand_shape(const coda_program *program, int index, const coda_dims *dims,
                                                int64_t shape[2], coda_error *error);

/* What one launch under `dims` costs, and what the same mathematics costs with one kernel an operator. */
typedef struct coda_cost {
    double flops;               /* multiply-adds of the products count 2 */
    double elementwise_flops;   /* epilogue operations, one each */
    double bytes;               /* every operand once */
    double unfused_bytes;       /* every value of the tile or larger written once and read once by each user, bf16 */
    int unfused_kernels;
} coda_cost;
CODA_API coda_status coda_program_cost(const coda_program *program, const coda_dims *dims, coda_cost *cost,
                                       coda_error *error);

/* Counts of primitives by class, for reports. */
typedef struct coda_primitives {
    int gemms;        /* products */
    int accumulators; /* tiles of products: twins count 2, summed and stacked products count 1 */
    int elementwise;
    int pairwise;
    int vectors; /* row and column operands and outs */
    int tiles;   /* tile operands and outs */
    int reductions;
    int stateful; /* logsumexp, pick, onehot, gather */
} coda_primitives;
CODA_API void coda_program_primitives(const coda_program *program, coda_primitives *primitives);

/* ---------------------------------------------------------------- the compiler */

/* Derives the backward of a program: a new module with the programs in the order to run (docs/language.md, "grad").
 * wrt    names of `in`s separated by commas; NULL: every floating-point `in`
 * save   names of values to keep from the forward instead of recomputing; NULL: the default choice
 * Returns CODA_OK, CODA_INVALID (unknown name), CODA_UNSUPPORTED (the message names the value and the missing rule). */
CODA_API coda_status coda_differentiate(const coda_program *program, const char *wrt, const char *save,
                                        coda_module **module, coda_error *error);

typedef struct coda_rewrite_options {
    int backward;     /* also derive the backward programs */
    int allow_passes; /* emit extra elementwise passes where no rule removes a whole-row reduction */
} coda_rewrite_options;

/* Turns a block into programs in the order to run. `report` (may be NULL) receives a text that says which rule did what on
 * which statement; release it with coda_free. Returns as coda_differentiate. */
CODA_API coda_status coda_rewrite(const coda_program *block, const coda_rewrite_options *options, coda_module **module,
                                  char **report, coda_error *error);

/* ---------------------------------------------------------------- devices and memory */

typedef struct coda_device coda_device;

/* name   "ref" (interpreter in double: slow, the oracle), "cpu", "cuda" or "cuda:1"
 * Environment: CODA_CPU forces an instruction set ("portable", "avx2", ...), CODA_THREADS the number of threads.
 * Returns CODA_OK, CODA_INVALID (unknown name), CODA_DEVICE (no driver, no such GPU), CODA_UNSUPPORTED, CODA_MEMORY. */
CODA_API coda_status coda_device_open(const char *name, coda_device **device, coda_error *error);
CODA_API void coda_device_close(coda_device *device); /* after its kernels and memory are released; NULL is allowed */
CODA_API const char *coda_device_name(const coda_device *device);
/* One line a fact: instruction set, threads, libraries found and not found. Valid until the device closes. */
CODA_API const char *coda_device_description(const coda_device *device);
/* Threads of a CPU device, 1 to 256. Results do not depend on it. Not while a launch runs. */
CODA_API coda_status coda_device_set_threads(coda_device *device, int threads, coda_error *error);
CODA_API int coda_device_threads(const coda_device *device);

/* Memory of the device, aligned to 256 bytes; contents undefined. */
CODA_API coda_status coda_allocate(coda_device *device, size_t bytes, void **pointer, coda_error *error);
CODA_API void coda_release(coda_device *device, void *pointer); /* NULL is allowed */
/* Copies between host and device memory; returns when done. */
CODA_API coda_status coda_copy_in(coda_device *device, void *device_pointer, const void *host, size_t bytes,
                                  coda_error *error);
CODA_API coda_status coda_copy_out(coda_device *device, void *host, const void *device_pointer, size_t bytes,
                                   coda_error *error);
/* Waits for everything launched on `stream` (NULL: the default stream). */
CODA_API coda_status coda_synchronize(coda_device *device, void *stream, coda_error *error);

/* Calls body(context, i) for i in 0..count-1 on the threads of a CPU device; returns when all are done. Each i runs once,
 * in any order. The library's own loops run through this function. */
CODA_API void coda_parallel_for(coda_device *device, int64_t count, void (*body)(void *context, int64_t index),
                                void *context);

/* ---------------------------------------------------------------- kernels */

typedef struct coda_kernel coda_kernel;

typedef struct coda_options {
    size_t size;          /* sizeof(coda_options); fields beyond it take their defaults */
    int tile_rows;        /* 0: the device's choice; else a size that the device offers */
    int tile_columns;     /* likewise */
    const char *schedule; /* NULL: the device's choice; CUDA: "direct", "deferred", "portable" */
    int exact;            /* 1: the epilogue must see the f32 accumulator, never one rounded to bf16 */
} coda_options;

/* Compiles `program` for `device`. May compile, tune and allocate; never runs the kernel.
 *
 * dims      sizes of named axes. Axes marked `fixed` must be given; others may be left out and are run-time values, so that
 *           one kernel serves every size. NULL: none given
 * options   NULL for defaults
 * kernel    release it with coda_kernel_free, before its device closes. The program may be freed earlier
 *
 * Returns CODA_OK, CODA_UNSUPPORTED (no path on this device: the message names the limit), CODA_INVALID (dims contradict
 * the program; a block on a device other than "ref"), CODA_MEMORY or CODA_DEVICE. Thread-safe. */
CODA_API coda_status coda_kernel_create(coda_device *device, const coda_program *program, const coda_dims *dims,
                                        const coda_options *options, coda_kernel **kernel, coda_error *error);
CODA_API void coda_kernel_free(coda_kernel *kernel); /* NULL is allowed */

/* One operand of a launch: rank 0, 1 or 2. A rank-2 operand may have any row stride >= its columns. */
typedef struct coda_tensor {
    void *data;
    coda_dtype dtype;
    int rank;
    int64_t shape[2];
    int64_t stride; /* of the rows of a rank-2 tensor, in elements; 0 means shape[1] */
} coda_tensor;

/* Runs the kernel.
 *
 * operands     one a program operand, in order; shapes give the sizes of the axes. `data` must be aligned to the element
 *              size and lie in the device's memory (any host memory for "ref" and "cpu")
 * parameters   one a `param`, in order; NULL: the defaults
 * stream       CUDA: a CUstream, NULL for the default stream. CPU: ignored; the call returns when the work is done
 *
 * An `out` may share memory with an `in` only as the very same elements of a tile or vector operand that is read at the
 * same place it is written (same pointer, shape, stride and dtype); any other overlap is refused.
 *
 * Never compiles and never synchronises: safe in a CUDA graph capture. One kernel may be launched by several threads at
 * once. Returns CODA_OK, CODA_INVALID (count, rank, dtype, shape, stride, alignment, overlap, an id out of range where the
 * device checks it) or CODA_DEVICE. */
CODA_API coda_status coda_kernel_launch(coda_kernel *kernel, const coda_tensor *operands, int count,
                                        const double *parameters, void *stream, coda_error *error);

/* Bytes that launches of this kernel moved and could not avoid: operands once each. Sum over launches since creation. */
CODA_API double coda_kernel_bytes_moved(const coda_kernel *kernel);

/* The source that the kernel was generated as (CUDA C text; for the CPU a listing of its steps). Valid while the kernel is. */
CODA_API const char *coda_kernel_source(const coda_kernel *kernel);

/* ---------------------------------------------------------------- Llama */
/* (section written with src/model) */

#ifdef __cplusplus
}
#endif

#endif
