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

/* The CODA_VERSION that the library was built with: where it is not that of this header, structures may differ. */
CODA_API const char *coda_version(void);

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
    char message
        [4096]; /* UTF-8, lines end in \n but the last; diagnostics of a text carry file:line:column and a caret */
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

/* The blocks of `blocks/`, likewise: one module, one block a file. */
CODA_API coda_status coda_standard_blocks(const coda_module **module, coda_error *error);

/* A copy of the module in which operands of type `from` have type `to`: the bf16 programs as f32 ones, say. */
CODA_API coda_status coda_module_retype(const coda_module *module, coda_dtype from, coda_dtype to,
                                        coda_module **retyped, coda_error *error);

CODA_API int coda_module_size(const coda_module *module);
CODA_API const coda_program *coda_module_program(const coda_module *module, int index); /* NULL if out of range */
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
    CODA_PATCH,      /* `out X[t] : ... = e` : one element a row is overwritten, the others stay */
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

/* The operand of `when m`: a launch does nothing where all of its elements are 0. -1: the program always runs. */
CODA_API int coda_program_condition(const coda_program *program);

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

/* Fills operand `index` (dense, host memory, the size that coda_program_operand_shape gives) for checks and benchmarks: an
 * `in` or `+=` with seeded random values that its uses accept (ids within their axis, cosines and sines in a rope table,
 * positive sums of squares, weights scaled so that products stay near 1), an `out` with NaN. */
CODA_API coda_status coda_program_fill(const coda_program *program, int index, const coda_dims *dims, uint64_t seed,
                                       void *data, coda_error *error);

/* What one launch under `dims` costs, and what the same mathematics costs with one kernel an operator. */
typedef struct coda_cost {
    double flops;             /* multiply-adds of the products count 2 */
    double elementwise_flops; /* epilogue operations, one each */
    double bytes;             /* every operand once */
    double unfused_bytes;     /* every value of the tile or larger written once and read once by each user, bf16 */
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
    int backward;          /* also derive the backward programs */
    int allow_passes;      /* emit extra elementwise passes where no rule removes a whole-row reduction */
    int without;           /* the number that the report gives one application of a rule, which is left out; 0: none */
    const coda_dims *dims; /* sizes of the block's axes: the report says what each step saves in kernels and bytes, by
                            * rewriting once more without it. NULL: no figures */
    const char *save;      /* with `backward`: names of values of the block, separated by commas, that the forward keeps
                            * instead of letting the backward compute them again: as in coda_differentiate. NULL: the
                            * default choice */
    int exponentials; /* with `backward`: 1: logits of a cross-entropy are stored as their exponentials, so that no pass
                            * makes their gradient. Rows whose log-sum-exp is 45 or more, or -45 or less, are computed again
                            * on a condition, which takes two products more (docs/design.md). Where the logits go through a
                            * soft cap, or are f16, the pass stays */
} coda_rewrite_options;

/* Turns a block into programs in the order to run. `report` (may be NULL) receives a text that says which rule did what on
 * which statement, numbered where it can be left out; release it with coda_free. Returns as coda_differentiate. */
CODA_API coda_status coda_rewrite(const coda_program *block, const coda_rewrite_options *options, coda_module **module,
                                  char **report, coda_error *error);

/* The same mathematics with one program an operator, in the order to run, as a framework without fusion runs it: values of
 * the tile are stored between them in the type of the products' operands, vectors and reductions in f32. Operands belong
 * together by name: an `in` that is none of `program`'s is the `out` of an earlier program. A condition (`when`) is left out:
 * the chain is what runs where it holds. A fused kernel is timed against
 * this chain, and its errors are compared with the chain's. Returns CODA_OK, CODA_UNSUPPORTED or CODA_MEMORY. */
CODA_API coda_status coda_unfuse(const coda_program *program, coda_module **module, coda_error *error);

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
    const char *schedule; /* NULL: the device's choice; CUDA: "copied", "direct", "warps", "portable", and
                           * "cublas" for products alone whose sizes are all given; CPU: "interpreted", no machine code for epilogues */
    int exact;            /* 1: the epilogue must see the f32 accumulator, never one rounded to bf16 */
    int sets; /* 2 or more: coda_kernel_launch_sets may run so many sets of operands as one launch, for which
                           * CUDA compiles a second kernel (on Hopper; at most 8, where it can). 0: one after the other */
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
 * A program with `when m` does nothing, and its outs stay as they are, where all elements of m are 0: they are read when the
 * kernel starts, on a GPU by the GPU itself, so that nothing waits for them.
 *
 * Never compiles and never synchronises: safe in a CUDA graph capture. One kernel may be launched by several threads at
 * once. Returns CODA_OK, CODA_INVALID (count, rank, dtype, shape, stride, alignment, overlap, an id out of range where the
 * device checks it) or CODA_DEVICE. */
CODA_API coda_status coda_kernel_launch(coda_kernel *kernel, const coda_tensor *operands, int count,
                                        const double *parameters, void *stream, coda_error *error);

/* Runs the kernel on several sets of operands that do not depend on each other: the gradients of several weights, the
 * experts of a layer. The results are those of coda_kernel_launch on one set after the other, bit for bit. Where the kernel
 * was made with the option `sets` and the device gains by it, their tiles are the work of one launch, so that only its last
 * wave leaves multiprocessors idle; each set keeps its tiles and its order of sums.
 *
 * operands     `sets` times `count`, set after set; sizes may differ between sets but for those given at creation
 * parameters   of all sets
 *
 * An out of one set may share no memory with any operand of another one. Otherwise as coda_kernel_launch; nothing runs
 * where one set is refused for what it is. */
CODA_API coda_status coda_kernel_launch_sets(coda_kernel *kernel, const coda_tensor *operands, int count, int sets,
                                             const double *parameters, void *stream, coda_error *error);

/* What one launch of `count` plain bf16 products takes, in a unit of the device's own that compares launches: whether products
 * side by side would be faster as sets of one launch. sizes: rows, columns and depth of each. 0: the device has no such launch,
 * or cannot say. */
CODA_API double coda_product_time(const coda_device *device, const int64_t *sizes, int count);

/* Runs several kernels of one device, one after the other: the results are those of coda_kernel_launch on each, bit for bit.
 * A launch that touches no memory that one before it writes, and writes none that one before it touches, may begin while
 * those before it still run, as the steps of a schedule do: on a GPU it takes the multiprocessors that their last wave leaves.
 *
 * sets         how many sets of operands each kernel runs on (coda_kernel_launch_sets); NULL: one each
 * operands     those of all, one kernel after the other
 * parameters   likewise, once a kernel; NULL: the defaults
 *
 * Other threads may launch on the same stream meanwhile: what their launches touch of these operands must not be written, as
 * it must not while any launch is being made. Otherwise as coda_kernel_launch; where a launch is refused, those before it run. */
CODA_API coda_status coda_kernel_launch_list(coda_kernel *const *kernels, const int *sets, int launches,
                                             const coda_tensor *operands, int count, const double *parameters,
                                             void *stream, coda_error *error);

/* Bytes that launches of this kernel moved and could not avoid: operands once each; of a program with `when` the condition
 * alone, as if it never held. Sum over launches since creation. */
CODA_API double coda_kernel_bytes_moved(const coda_kernel *kernel);

/* The source that the kernel was generated as (CUDA C text; for the CPU a listing of its steps). Valid while the kernel is. */
CODA_API const char *coda_kernel_source(const coda_kernel *kernel);
/* The machine code that the kernel runs: a cubin (ELF) of the entry "coda_kernel", its first choice where it has several.
 * Valid while the kernel is. NULL, and *size untouched, where there is none: on the CPU, and on "cuda:sm_90a" without
 * NVRTC. */
CODA_API const void *coda_kernel_binary(const coda_kernel *kernel, size_t *size);

/* ---------------------------------------------------------------- measuring */

/* Launches something on `stream`. */
typedef coda_status (*coda_work)(void *context, void *stream, coda_error *error);

/* Calls work `count` (>= 1) times back to back on the default stream, waits, and gives the milliseconds that the device
 * took for all of them: between two events of the GPU, by the clock elsewhere. Work that waits spoils the figure. */
CODA_API coda_status coda_time(coda_device *device, coda_work work, void *context, int count, double *ms,
                               coda_error *error);

/* What `work` launched, to be launched again at once. CUDA: a graph, captured by calling work here on a stream of its own;
 * nothing runs yet. Elsewhere nothing is recorded, and each launch calls work, so `context` must live as long. */
typedef struct coda_graph coda_graph;
CODA_API coda_status coda_graph_create(coda_device *device, coda_work work, void *context, coda_graph **graph,
                                       coda_error *error);
CODA_API coda_status coda_graph_launch(coda_graph *graph, void *stream, coda_error *error);
CODA_API void coda_graph_free(coda_graph *graph); /* NULL is allowed */

/* One way to run a program, and what came of trying it. */
typedef struct coda_candidate {
    coda_options options;
    double ms;           /* median; 0 where it was not timed */
    const char *refused; /* why it was not: it does not fit, or gives other results. NULL: it was timed */
    int chosen;
} coda_candidate;

typedef struct coda_tune_options {
    size_t size;          /* sizeof(coda_tune_options); fields beyond it take their defaults */
    int rounds;           /* how often each is timed, in turns; 0: 7 */
    int library;          /* 1: also products through cuBLASLt ("cublas"), whose sums have other last bits */
    const char *schedule; /* measure nothing, and remember this one; "" forgets. NULL: measure */
    int exact;            /* as in coda_options */
} coda_tune_options;

/* Measures the tiles and schedules that the device offers for a program on random operands, and remembers the fastest in
 * the cache of compiled kernels. coda_kernel_create then uses it, in this process and later ones, where the options name
 * neither tile nor schedule, `exact` agrees, and every size lies between the same powers of two (an axis that is given
 * here must be given there). The choice never changes bits, unless `library` is 1: candidates must give those of the
 * device's own choice.
 *
 * each    may be NULL; called with every candidate, the chosen one included, when all are measured
 *
 * Returns CODA_OK, CODA_UNSUPPORTED (the device offers no choice, or has no cache to remember it in), or as
 * coda_kernel_create and coda_kernel_launch. */
CODA_API coda_status coda_kernel_tune(coda_device *device, const coda_program *program, const coda_dims *dims,
                                      const coda_tune_options *options,
                                      void (*each)(void *context, const coda_candidate *candidate), void *context,
                                      coda_error *error);

/* ---------------------------------------------------------------- schedules */

/* What a block becomes on a device: the compiler's programs as kernels, forward and backward, in the order to run, and a
 * plan of the memory between them. A schedule is made once and launched for every layer that the block describes: each
 * layer has a block of memory of its own for what its forward keeps for its backward (`saved`), and all launches share
 * one for what lives inside a launch (`scratch`). Immutable; several threads may launch it at once, each with memory of
 * its own. Runs wherever kernels run: ref, cpu, cuda. */
typedef struct coda_schedule coda_schedule;

enum { CODA_FORWARD = 1, CODA_BACKWARD = 2 }; /* phases; their sum is both */

typedef struct coda_schedule_options {
    size_t size;      /* sizeof(coda_schedule_options); fields beyond it are 0 */
    int backward;     /* 1: derive the backward too */
    int allow_passes; /* as in coda_rewrite_options */
    int together;     /* 1: forward and backward run in one launch, so that nothing is saved between launches */
    int keep_saved;   /* 1: the backward leaves the saved memory as it was, so that it may run again. 0: it may write
                            * gradients over values that it has read for the last time */
    const char *consumes; /* names of inputs, separated by commas, whose memory the schedule may use once they are read:
                            * "dX,dQKV". NULL: none */
    const char *wide_axis; /* a large axis ("V", the vocabulary): programs with a matrix [row_axis, wide_axis] run for
                            * chunk_rows rows at a time, forward and backward together, and such a matrix has memory for
                            * so many rows. With `backward` this implies `together`. NULL: all rows at once */
    const char *row_axis;  /* NULL: "M" */
    int64_t chunk_rows;    /* a multiple of 64. 0: as few chunks of equal size as wide_bytes allows */
    const coda_options *kernels; /* options of every kernel; NULL: the defaults */
    int64_t
        wide_bytes; /* with chunk_rows 0: the most that saved and scratch memory may take in all; where twice the chunks
                         * that one matrix [row_axis, wide_axis] needs for that do not keep it, or the rows are not given,
                         * the bound is that matrix's alone. The size of wide_axis must be given. 0: 1.25 GiB. Each chunk
                         * more reads and writes the f32 gradient of the weight along wide_axis once more, and its
                         * products are smaller */
    int overwrite;  /* 1: gradients that would be added to what is there are written over it, so that it is neither
                         * set to 0 nor read: for the first of the launches whose gradients add up */
    const char
        *save; /* as in coda_rewrite_options: a matrix that the forward writes anyway ("y1", the input of a product)
                         * costs its bytes of saved memory and spares the backward's write. NULL: the default choice */
    int join;  /* gradients of weights as sets of one launch (coda_kernel_launch_sets), where that needs no more
                         * memory: 0: those whose sizes are given, where the device gains by it; 1: all; -1: none. Not with
                         * wide_axis. The results are the same bits */
    int exponentials; /* as in coda_rewrite_options: 0: where the device gains by it (cpu, cuda); 1: always; -1: never */
} coda_schedule_options;

/* Derives the programs of `block`, compiles them and plans their memory. May compile, tune and allocate.
 *
 * dims     sizes of the block's axes, as for coda_kernel_create: `fixed` ones must be given, others are run-time values
 * options  NULL: forward alone
 * schedule release it with coda_schedule_free, before its device closes. The block may be freed earlier
 *
 * Returns as coda_rewrite and coda_kernel_create. */
CODA_API coda_status coda_schedule_create(coda_device *device, const coda_program *block, const coda_dims *dims,
                                          const coda_schedule_options *options, coda_schedule **schedule,
                                          coda_error *error);
CODA_API void coda_schedule_free(coda_schedule *schedule); /* NULL is allowed */

typedef enum coda_value_kind {
    CODA_INPUT = 0, /* the caller's, read: an `in` of the block, or the gradient `dX` that arrives on an `out X` */
    CODA_RESULT,    /* the caller's, written: an `out` of the block, or a gradient `dW` */
    CODA_SAVED,     /* in the saved memory: written by the forward, read by the backward */
    CODA_SCRATCH,   /* in the scratch memory, or in that of a consumed input */
} coda_value_kind;

/* A value of a schedule. The caller's come first: the block's operands in their order, then the gradients that arrive,
 * then those that leave. Gradients are named after what they belong to:
 *   dx             of a matrix `in x`: its shape and type
 *   dW, dg         of a weight: f32, added to. So is that of a vector along columns
 *   dWq_Wk_Wv      of weights in a `stack`: one matrix, rows end to end; `of` is "Wq,Wk,Wv"
 *   dE             of the table in `gather(E, t)`: one row an id, to be added to the row that the id names */
typedef struct coda_value {
    const char *name;
    coda_value_kind kind;
    coda_dtype dtype;
    int rank;
    char dim[2][64]; /* sizes as text: "M", "N/128" */
    int phases;      /* that use it: a launch of one of them needs it */
    int accumulated; /* 1: a result that is added to, so the caller sets it to 0 first (not with `overwrite`) */
    const char *of;  /* a gradient: the names of what it belongs to, separated by commas; else NULL */
    int optional;    /* 1: a gradient that has a program of its own, which does not run where its data is NULL */
} coda_value;

CODA_API int coda_schedule_value_count(const coda_schedule *schedule);
CODA_API int coda_schedule_operand_count(const coda_schedule *schedule); /* the caller's values: 0 .. count - 1 */
CODA_API coda_status coda_schedule_value(const coda_schedule *schedule, int index, coda_value *value);
CODA_API int coda_schedule_find(const coda_schedule *schedule, const char *name); /* -1: there is no such value */
/* The parameters of the block (`eps`), in the order of coda_schedule_launch. NULL out of range. */
CODA_API const char *coda_schedule_parameter(const coda_schedule *schedule, int index, double *default_value);

/* The programs in the order to run. */
typedef struct coda_step {
    const coda_program *program; /* lives as long as the schedule */
    coda_kernel *kernel;         /* the schedule's: to be asked and launched */
    int phase;                   /* CODA_FORWARD or CODA_BACKWARD */
    int chunked;                 /* 1: runs once for every chunk of rows */
    /* One an operand of the program: which value it is. A vector's gradient is a value twice: the runs that a program
     * gives, and what they sum up to, which coda_schedule_find finds. */
    const int *value;
    int list; /* steps of one number above 0 lie side by side and are one coda_kernel_launch_sets; 0: one launch */
} coda_step;
CODA_API int coda_schedule_step_count(const coda_schedule *schedule);
/* Rows at a time of the steps that are chunked. 0: there are none. */
CODA_API int64_t coda_schedule_chunk_rows(const coda_schedule *schedule);
CODA_API coda_status coda_schedule_step(const coda_schedule *schedule, int index, coda_step *step);

/* The sizes of value `index` under `dims`; shape[0..rank-1] is set. */
CODA_API coda_status coda_schedule_shape(const coda_schedule *schedule, int index, const coda_dims *dims,
                                         int64_t shape[2], coda_error *error);
/* Bytes of the saved memory of one layer and of the scratch memory, under dims that give every axis. Smaller dims need no
 * more. Either output may be NULL. */
CODA_API coda_status coda_schedule_memory(const coda_schedule *schedule, const coda_dims *dims, size_t *saved,
                                          size_t *scratch, coda_error *error);
/* Where a value lies that is saved or scratch: to look at it between launches of the same dims. CODA_INVALID for the
 * caller's values and for one that lies in a consumed input. */
CODA_API coda_status coda_schedule_locate(const coda_schedule *schedule, int index, const coda_dims *dims, void *saved,
                                          void *scratch, coda_tensor *tensor, coda_error *error);

/* Runs the programs of the phases.
 *
 * phases      CODA_FORWARD, CODA_BACKWARD (after a forward with the same sizes, inputs and saved memory) or both. With
 *             `together` the forward may run alone, the backward may not
 * operands    one a value of the caller, in order, as for coda_kernel_launch; those that no launched phase uses are not
 *             looked at (data may be NULL), and optional ones with data NULL are not computed. A result may take the
 *             memory of an input that is read for the last time before the result is written; other overlaps are refused
 * saved       the layer's memory, scratch: the shared one; device memory, aligned to 256 bytes, as large as
 *             coda_schedule_memory says; NULL where that is 0
 * parameters  one a parameter of the block; NULL: the defaults
 * stream      as for coda_kernel_launch
 *
 * Never compiles, allocates or synchronises: safe in a CUDA graph capture. Returns as coda_kernel_launch; the message
 * names the value that is missing or does not fit. */
CODA_API coda_status coda_schedule_launch(const coda_schedule *schedule, int phases, const coda_tensor *operands,
                                          int count, void *saved, void *scratch, const double *parameters, void *stream,
                                          coda_error *error);

/* Bytes that launches moved and could not avoid: as coda_kernel_bytes_moved, over all kernels. */
CODA_API double coda_schedule_bytes_moved(const coda_schedule *schedule);

/* ---------------------------------------------------------------- Llama */

/* A Llama: embedding, layers of RMSNorm, grouped-query attention with RoPE (half-split, as Hugging Face), RMSNorm and
 * SwiGLU, a final norm and a head. It trains and samples on a CPU device (or "ref"): on schedules of the blocks
 * llama3_start, llama3, llama3_end and llama3_logits. Files are those of Hugging Face: a directory with config.json and
 * model.safetensors. None of these objects may be used by two threads at once. */

/* How rotary frequencies are scaled for contexts longer than those of the first training. The fields are the keys of
 * Hugging Face's `rope_scaling` (`rope_parameters`); those that a type does not use are ignored. */
typedef enum coda_rope_type {
    CODA_ROPE_DEFAULT = 0, /* frequency i is theta^(-2i / head_dim) */
    CODA_ROPE_LINEAR,      /* divided by factor */
    CODA_ROPE_LLAMA3, /* Llama 3.1: divided where fewer than low_freq_factor waves fit the original context, as it is
                            * where more than high_freq_factor do, blended between */
} coda_rope_type;

typedef struct coda_rope_scaling {
    coda_rope_type type;
    double factor;
    double low_freq_factor, high_freq_factor;
    int64_t original_max_position_embeddings;
} coda_rope_scaling;

/* The keys of config.json. Set it with coda_llama_config_defaults or coda_llama_config_load first. */
typedef struct coda_llama_config {
    int64_t hidden_size;
    int64_t intermediate_size;
    int64_t num_hidden_layers;
    int64_t num_attention_heads;
    int64_t num_key_value_heads;     /* divides num_attention_heads; 0: as many */
    int64_t head_dim;                /* even; 0: hidden_size / num_attention_heads */
    int64_t vocab_size;              /* 256 for bytes */
    int64_t max_position_embeddings; /* the longest sequence */
    double rms_norm_eps;
    double rope_theta;
    coda_rope_scaling rope_scaling;
    int tie_word_embeddings; /* 1: the head is the embedding */
} coda_llama_config;

/* A model for bytes that learns visibly in two minutes on two cores. */
CODA_API void coda_llama_config_defaults(coda_llama_config *config);
/* Reads a config.json. A key that changes the model in a way this library does not know is an error, as is an unknown key.
 * Returns CODA_OK, CODA_IO, CODA_INVALID (syntax, unknown key, value out of range: with line and column), CODA_UNSUPPORTED
 * (a Llama with biases, another scaling of RoPE or activation: the message names the key) or CODA_MEMORY. */
CODA_API coda_status coda_llama_config_load(const char *path, coda_llama_config *config, coda_error *error);
/* Fills in the zeros and checks that the sizes fit each other. */
CODA_API coda_status coda_llama_config_check(coda_llama_config *config, coda_error *error);
/* Number of parameters of a checked configuration. */
CODA_API int64_t coda_llama_parameters(const coda_llama_config *config);

typedef struct coda_llama coda_llama;

/* A model with random weights: normal with deviation 0.02, the projections back to the residual stream divided by
 * sqrt(2 layers), norm weights 1. The same seed gives the same bits.
 * device   "cpu" or "ref"; outlives the model
 * dtype    CODA_BF16, CODA_F16 or CODA_F32: of the weights and of every activation */
CODA_API coda_status coda_llama_create(coda_device *device, const coda_llama_config *config, coda_dtype dtype,
                                       uint64_t seed, coda_llama **llama, coda_error *error);
/* Reads `directory`/config.json and model.safetensors (f32, bf16, f16; converted to dtype), or where that is missing the
 * files that model.safetensors.index.json names. Every tensor must be there with its shape; lm_head.weight may be missing
 * where the head is tied; other tensors are an error that names them. */
CODA_API coda_status coda_llama_load(coda_device *device, const char *directory, coda_dtype dtype, coda_llama **llama,
                                     coda_error *error);
/* Writes `directory`/config.json and model.safetensors, made first if it is missing. Each file is written under a temporary
 * name, flushed to the disk and renamed: a failure (CODA_IO) leaves what was there. */
CODA_API coda_status coda_llama_save(const coda_llama *llama, const char *directory, coda_error *error);
CODA_API void coda_llama_free(coda_llama *llama); /* after its trainers; NULL is allowed */

CODA_API const coda_llama_config *coda_llama_configuration(const coda_llama *llama);
CODA_API coda_dtype coda_llama_dtype(const coda_llama *llama);
/* Weights by index, in the order of the model. `name` is Hugging Face's ("model.layers.0.self_attn.q_proj.weight"). The
 * tensor's memory is the model's: who writes to it changes the model. Either output may be NULL. */
CODA_API int coda_llama_tensor_count(const coda_llama *llama);
CODA_API coda_status coda_llama_tensor(const coda_llama *llama, int index, const char **name, coda_tensor *tensor);

/* How to choose the next token. */
typedef struct coda_sampling {
    double temperature; /* 0: the likeliest */
    int64_t top_k;      /* 0: all */
    uint64_t seed;
    /* Called with each new token; a non-zero result ends the generation. May be NULL. */
    int (*each)(void *context, int32_t token);
    void *context;
} coda_sampling;

/* Continues `prompt` (1 or more tokens) by up to `count` tokens with a cache of keys and values. Where the context is full
 * (max_position_embeddings), its older half is dropped.
 * tokens     room for `count` tokens; receives the continuation
 * produced   receives their number, less than `count` only if `each` ended it; may be NULL */
CODA_API coda_status coda_llama_generate(coda_llama *llama, const int32_t *prompt, int64_t prompt_length,
                                         const coda_sampling *sampling, int32_t *tokens, int64_t count,
                                         int64_t *produced, coda_error *error);

/* ---------------------------------------------------------------- training */

typedef enum coda_path {
    CODA_FUSED = 0, /* every operator between the products runs in an epilogue */
    CODA_UNFUSED,   /* the same mathematics, one operator at a time, each result rounded to the dtype and stored */
} coda_path;

typedef enum coda_data_format {
    CODA_DATA_AUTO = 0, /* by name: .bin is u16, a directory is its *.bin in order of name, anything else bytes */
    CODA_DATA_BYTES,    /* a token a byte */
    CODA_DATA_U16,      /* little-endian tokens without a header */
    CODA_DATA_U32,
} coda_data_format;

enum { CODA_PATH_SIZE = 1024 };

typedef struct coda_train_config {
    coda_llama_config model;
    int64_t steps;
    int64_t batch;        /* sequences of a forward pass */
    int64_t sequence;     /* tokens of a sequence */
    int64_t accumulation; /* passes whose gradients make one step */
    double learning_rate; /* the highest: rises over `warmup` steps, then falls on a cosine to minimum_rate times it */
    double minimum_rate;
    int64_t warmup;
    double weight_decay; /* of matrices; norm weights have none */
    double beta1, beta2, epsilon;
    double clip; /* largest global norm of the gradient; 0: none */
    uint64_t seed;
    coda_dtype dtype;
    coda_path path;
    coda_data_format data_format;
    int64_t checkpoint_interval; /* steps; 0: none but what the caller saves */
    int64_t keep;                /* newest checkpoints kept in `out`; 0: all */
    char data[CODA_PATH_SIZE];   /* file or directory; "": none, only explicit batches */
    char out[CODA_PATH_SIZE];    /* directory of checkpoints */
} coda_train_config;

CODA_API void coda_train_config_defaults(coda_train_config *config);
/* Reads a JSON object with the fields above as keys ("model": an object with the keys of config.json) over `config`.
 * Returns as coda_llama_config_load. */
CODA_API coda_status coda_train_config_load(const char *path, coda_train_config *config, coda_error *error);
/* Sets one key, of training or of the model, from text: the command line's "--learning-rate 1e-3". '-' equals '_'. */
CODA_API coda_status coda_train_config_set(coda_train_config *config, const char *key, const char *value,
                                           coda_error *error);
/* Checks ranges and that the parts fit each other; fills in the model's zeros. */
CODA_API coda_status coda_train_config_check(coda_train_config *config, coda_error *error);
/* The keys by index, NULL at the end. `help` and `text` (the value in `config`, room for CODA_PATH_SIZE) may be NULL. */
CODA_API const char *coda_train_config_key(int index, const char **help, const coda_train_config *config, char *text);

/* Tokens to learn from: `sequences` rows of `length`. */
typedef struct coda_batch {
    int64_t sequences, length;
    const int32_t *tokens;
    const int32_t *targets; /* the token that follows each; -100: ignored */
    const float *weights;   /* of each row's loss; NULL: 1 */
} coda_batch;

typedef struct coda_step_report {
    int64_t step;         /* steps done */
    double loss;          /* mean over the step's tokens, before the update */
    double gradient_norm; /* before clipping */
    double learning_rate;
    int64_t tokens;
} coda_step_report;

/* Bytes that were read and written because an operator's operands live in memory, each operand once. */
typedef struct coda_traffic {
    double model;     /* programs (fused) or products and plain operators (unfused), embedding included */
    double attention; /* both paths alike */
    double optimizer; /* both paths alike */
} coda_traffic;

typedef struct coda_trainer coda_trainer;

/* A trainer of `llama`: gradients, f32 masters and moments of AdamW, buffers for config->batch x config->sequence tokens,
 * and the data if config->data is not "" (opened, and every token checked against the vocabulary). config->model is ignored.
 * Several trainers of one model may exist to compare gradients, but only one may step. */
CODA_API coda_status coda_trainer_create(coda_llama *llama, const coda_train_config *config, coda_trainer **trainer,
                                         coda_error *error);
CODA_API void coda_trainer_free(coda_trainer *trainer); /* before its model; NULL is allowed */
CODA_API const coda_train_config *coda_trainer_configuration(const coda_trainer *trainer);
CODA_API int64_t coda_trainer_steps_done(const coda_trainer *trainer);

/* The mean loss over a batch's live targets (weighted), 0 if there are none. */
CODA_API coda_status coda_trainer_loss(coda_trainer *trainer, const coda_batch *batch, double *loss, coda_error *error);
/* The same, and its gradient with respect to every weight, read with coda_trainer_gradient. */
CODA_API coda_status coda_trainer_backward(coda_trainer *trainer, const coda_batch *batch, double *loss,
                                           coda_error *error);
/* The gradient of tensor `index` (of coda_llama_tensor): f32, valid until the next step. */
CODA_API coda_status coda_trainer_gradient(const coda_trainer *trainer, int index, coda_tensor *gradient);

/* One step: accumulation x batch sequences of the data, backward, clipping, AdamW. What is sampled depends on the seed and
 * the step alone. A loss or gradient that is not finite returns CODA_INVALID with the step and the first tensor in the order
 * of the computation that holds such a value; weights and moments stay as they were. */
CODA_API coda_status coda_trainer_step(coda_trainer *trainer, coda_step_report *report, coda_error *error);
CODA_API void coda_trainer_traffic(const coda_trainer *trainer, coda_traffic *traffic); /* since creation */

/* Writes a checkpoint of the model and the trainer as directory `parent`/step-NNNNNNNN: config.json, model.safetensors,
 * training.safetensors (masters, moments, step) and training.json (the configuration). It appears complete or not at all,
 * and then the oldest checkpoints beyond `keep` are removed. parent: NULL for config->out.
 * path: receives the directory; room for CODA_PATH_SIZE, may be NULL. */
CODA_API coda_status coda_trainer_save(coda_trainer *trainer, const char *parent, char *path, coda_error *error);
/* Continues from a checkpoint of the same model, data and dtype: further steps give the same bits as if it had not stopped. */
CODA_API coda_status coda_trainer_resume(coda_trainer *trainer, const char *checkpoint, coda_error *error);
/* `directory` itself if it is a checkpoint, else the newest complete checkpoint in it; CODA_IO if there is none.
 * path: room for CODA_PATH_SIZE. */
CODA_API coda_status coda_checkpoint_find(const char *directory, char *path, coda_error *error);

#ifdef __cplusplus
}
#endif

#endif
