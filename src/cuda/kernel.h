/* Devices and kernels of this folder. */
#ifndef CODA_CUDA_KERNEL_H
#define CODA_CUDA_KERNEL_H

#include "cuda/blas.h"
#include "cuda/cache.h"
#include "cuda/driver.h"
#include "cuda/pointers.h"
#include "cuda/recent.h"
#include "cuda/source.h"
#include "runtime/counts.h"

struct gpu {
    struct driver driver; /* library NULL: a device that only compiles ("cuda:sm_90a") */
    struct compiler compiler;
    coda_error compiler_error; /* why there is none */
    struct cache cache;
    int ordinal;
    driver_context context;
    char name[96];
    char architecture[16]; /* "sm_90a" */
    int capability;        /* 90 */
    int multiprocessors, shared_bytes;
    struct pointer_table *pointers;
    struct blas *blas;
};

/* A variant that was compiled. */
struct compiled {
    struct variant variant;
    struct text source;
    struct text log; /* of the compiler; empty where the kernel came from the cache */
    void *cubin;
    size_t cubin_size;
    int shared_bytes;
    driver_module module;
    driver_function function;
};

enum { MAX_VARIANTS = 4 };

struct cuda_kernel {
    struct plan plan;
    int variant_count; /* in order of preference; a launch takes the first that can serve it */
    struct compiled compiled[MAX_VARIANTS];
    const struct compiled *joined; /* the last of them, where it takes several problems; NULL */
    struct recent recent;          /* launches of one problem */
    struct recent recent_joined;   /* of several; no memory where there is no such variant */
    struct blas_product *blas;     /* NULL, or tried before the variants */
};

/* Options worth measuring; the latest choice for kernels like this one (tune.c). */
bool tune_candidate(int index, coda_options *options);
bool tune_recall(const struct gpu *gpu, const coda_kernel *kernel, coda_options *choice);
coda_status tune_remember(const coda_kernel *kernel, const coda_options *choice, double ms, coda_error *error);
/* What was remembered, a line each, appended: "gemm_wgrad M=4096 N=4096 K=16384: direct 128 x 128, 0.21 ms". */
void tune_list(const struct gpu *gpu, struct text *lines);

/* Which ways of running a program to compile, in order of preference (choose.c). */
coda_status choose_variants(const struct gpu *gpu, const coda_kernel *kernel, const struct plan *plan,
                            struct variant *variant, int *count, coda_error *error);
/* The variant for several problems in one launch, beside the first choice; false: each must be a launch. */
bool choose_joined(const struct gpu *gpu, const coda_kernel *kernel, const struct plan *plan,
                   const struct variant *first, struct variant *joined);

/* Makes the GPU's context current on this thread, and the one before again (device.c). */
coda_status gpu_enter(const struct gpu *gpu, coda_error *error);
/* The same, but does nothing where the context is current already; *entered: gpu_leave is due. */
coda_status gpu_enter_if_needed(const struct gpu *gpu, bool *entered, coda_error *error);
void gpu_leave(const struct gpu *gpu);

coda_status cuda_prepare(coda_kernel *kernel, coda_error *error);
void cuda_release(coda_kernel *kernel);
const char *cuda_source(const coda_kernel *kernel);
const void *cuda_binary(const coda_kernel *kernel, size_t *size);
coda_status cuda_launch(coda_kernel *kernel, const struct launch *launch, coda_error *error);

/* Launches of one problem (launch.c), of which those of several are made (problems.c). */
coda_status launch_alone(const struct gpu *gpu, struct cuda_kernel *k, const struct launch *launch, coda_error *error);
/* What only a GPU asks of operands: widths, vectors, memory. */
coda_status launch_check(const struct gpu *gpu, const struct plan *plan, const struct launch *launch,
                         coda_error *error);
/* Parameters of one problem, tensor maps included, into bytes. */
coda_status launch_parameters(const struct gpu *gpu, const struct plan *plan, const struct variant *variant,
                              const struct launch *launch, const struct geometry *geometry, unsigned char *bytes,
                              coda_error *error);
/* The geometry but for tiles, and the configuration but for its grid. */
struct geometry launch_geometry(const struct plan *plan, const struct launch *launch);
struct launch_configuration launch_configure(const struct compiled *compiled);
coda_status launch_start(const struct gpu *gpu, const struct plan *plan, const struct prepared *prepared, void *stream,
                         bool apart, coda_error *error);

/* problems.c */
coda_status cuda_launch_sets(coda_kernel *kernel, const struct launch *launch, int count, coda_error *error);
double cuda_product_time(const coda_device *device, const struct product_size *size, int count);
coda_status cuda_time(coda_device *device, coda_work work, void *context, int count, double *ms, coda_error *error);
coda_status cuda_record(coda_device *device, coda_work work, void *context, void **recording, coda_error *error);
coda_status cuda_replay(coda_device *device, void *recording, void *stream, coda_error *error);
void cuda_drop(coda_device *device, void *recording);

/* Hopper's kernels (hopper.c): can they serve this launch? If not, *why says what is missing. */
bool hopper_accepts(const struct plan *plan, const struct variant *variant, const struct launch *launch,
                    const char **why);
/* Tiles of the last wave that take half the time as two tiles of half the columns each; 0 where that wave is too full. */
int64_t hopper_narrow_tiles(const struct gpu *gpu, const struct variant *variant, int64_t rows, int64_t columns);
/* The same, of so many tiles of a cluster in all; and how many a matrix has. */
int64_t hopper_narrow_of(const struct gpu *gpu, const struct variant *variant, int64_t tiles);
int64_t hopper_tiles(const struct variant *variant, int64_t rows, int64_t columns);
/* Clusters of a launch, `narrow` of whose tiles are built as two: no more than fill its waves evenly, since at the power limit
 * multiprocessors that idle in a last wave cost the others some of their clock (docs/experiments-cuda.md). */
int64_t hopper_clusters(const struct gpu *gpu, const struct variant *variant, int64_t tiles, int64_t narrow);
int hopper_map_count(const struct plan *plan);
bool plan_is_stacked(const struct plan *plan); /* along N */
coda_status hopper_maps(const struct gpu *gpu, const struct plan *plan, const struct variant *variant,
                        const struct launch *launch, struct tensor_map *map, coda_error *error);

#endif
