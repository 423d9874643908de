/* What a device implements, and what the runtime checks before it calls one. */
#ifndef CODA_RUNTIME_DEVICE_H
#define CODA_RUNTIME_DEVICE_H

#include "ir/graph.h"

struct coda_program {
    struct graph *graph;
};

/* Sizes that were found good; readers never wait: a version that changed or is odd is a miss. */
struct checked_sizes {
    unsigned version; /* 0: none yet */
    int64_t size[MAX_AXES];
};

/* A kernel as the runtime sees it. The device keeps its own in `state`. */
struct coda_kernel {
    coda_device *device;
    struct graph *graph;          /* own copy */
    struct form form;             /* empty for blocks */
    int64_t fixed_size[MAX_AXES]; /* sizes given at creation; 0: run-time */
    coda_options options;         /* defaults filled in */
    void *state;
    struct checked_sizes checked;
    int64_t bytes_moved; /* over all launches; changed atomically */
};

/* A checked launch: sizes agree, shapes, strides, alignment and overlaps are right. */
struct launch {
    const int64_t *size;        /* one an axis, all known */
    const coda_tensor *operand; /* strides filled in */
    const double *parameter;
    void *stream;
    bool apart; /* it may run before those before it are over: see kernel_launch */
};

enum { MAX_SETS = 8 }; /* of operands that a device is given at once */

/* A plain product [rows, depth] @ [depth, columns]. */
struct product_size {
    int64_t rows, columns, depth;
};

struct device_operations {
    const char *name; /* "ref", "cpu", "cuda" */
    coda_status (*open)(coda_device *device, const char *selector,
                        coda_error *error); /* selector: after the ':', or "" */
    void (*close)(coda_device *device);
    coda_status (*prepare)(coda_kernel *kernel, coda_error *error); /* sets kernel->state */
    coda_status (*launch)(coda_kernel *kernel, const struct launch *launch, coda_error *error);
    void (*release)(coda_kernel *kernel);
    const char *(*source)(const coda_kernel *kernel);
    const void *(*binary)(const coda_kernel *kernel, size_t *size); /* may be NULL: the device has none */
    coda_status (*allocate)(coda_device *device, size_t bytes, void **pointer, coda_error *error);
    void (*release_memory)(coda_device *device, void *pointer);
    coda_status (*copy)(coda_device *device, void *to, const void *from, size_t bytes, bool to_device,
                        coda_error *error);
    coda_status (*synchronize)(coda_device *device, void *stream, coda_error *error);
    /* The rest may be NULL. */
    coda_status (*time)(coda_device *device, coda_work work, void *context, int count, double *ms, coda_error *error);
    coda_status (*record)(coda_device *device, coda_work work, void *context, void **recording, coda_error *error);
    coda_status (*replay)(coda_device *device, void *recording, void *stream, coda_error *error);
    void (*drop)(coda_device *device, void *recording);
    /* Options worth measuring, by index; false: there are no more. */
    bool (*candidate)(int index, coda_options *options);
    /* Keeps a choice for kernels like this one; choice NULL forgets it. */
    coda_status (*remember)(const coda_kernel *kernel, const coda_options *choice, double ms, coda_error *error);
    /* At most MAX_SETS checked launches, none of which writes what another one touches. */
    coda_status (*launch_sets)(coda_kernel *kernel, const struct launch *launch, int count, coda_error *error);
    /* What one launch of such bf16 products takes, in a unit that compares launches alone. NULL: sets are never one. */
    double (*product_time)(const coda_device *device, const struct product_size *size, int count);
    bool runs_blocks;
    bool prefers_exponentials; /* a pass over logits costs more than launches that may do nothing */
};

struct coda_device {
    const struct device_operations *operations;
    char name[32];
    char description[2048];
    int threads;
    struct thread_pool *pool; /* of `threads` threads; made with the device */
    void *state;
};

extern const struct device_operations ref_operations;  /* src/ref */
extern const struct device_operations cpu_operations;  /* src/cpu */
extern const struct device_operations cuda_operations; /* src/cuda */

/* Host memory operations that ref and cpu share (runtime/memory.c). */
coda_status host_allocate(coda_device *device, size_t bytes, void **pointer, coda_error *error);
void host_release(coda_device *device, void *pointer);
coda_status host_copy(coda_device *device, void *to, const void *from, size_t bytes, bool to_device, coda_error *error);
coda_status host_synchronize(coda_device *device, void *stream, coda_error *error);
/* Has the program no condition, or one that holds? */
bool host_wants_launch(const struct graph *graph, const struct launch *launch);

/* coda_kernel_launch and coda_kernel_launch_sets (runtime/kernel.c). apart: take the launches on the stream from the latest one
 * that was not apart up to this one. All are made by these functions, one after the other with nothing between them on the
 * stream, and none of them writes what this one touches or touches what this one writes. */
coda_status kernel_launch(coda_kernel *kernel, const coda_tensor *operands, int count, const double *parameters,
                          void *stream, bool apart, coda_error *error);
coda_status kernel_launch_sets(coda_kernel *kernel, const coda_tensor *operands, int count, int sets,
                               const double *parameters, void *stream, bool apart, coda_error *error);

/* Sets *error (may be NULL) and returns `status` (runtime/error.c). */
coda_status fail(coda_error *error, coda_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
coda_status fail_complaint(coda_error *error, const struct complaint *why); /* reason, newline, advice */
coda_status fail_memory(coda_error *error, const char *what, size_t bytes);

#endif
