#include "cuda/blas.h"
#include "cuda/kernel.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    /* cudaDataType */
    TYPE_F32 = 0,
    TYPE_F16 = 2,
    TYPE_BF16 = 14,
    COMPUTE_F32 = 68, /* cublasComputeType_t */
    /* cublasLtMatmulDescAttributes_t, cublasOperation_t */
    PRODUCT_LEFT_TRANSPOSED = 3,
    PRODUCT_RIGHT_TRANSPOSED = 4,
    TRANSPOSED = 1,
    /* cublasLtMatmulPreferenceAttributes_t */
    PREFER_WORKSPACE_BYTES = 1,
    PREFER_REDUCTIONS = 3,
};

/* cublasLtMatmulHeuristicResult_t */
struct algorithm {
    uint64_t data[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

#define BLAS_CALLS(CALL)                                                                                               \
    CALL(Create, (void **))                                                                                            \
    CALL(Destroy, (void *))                                                                                            \
    CALL(MatmulDescCreate, (void **, int, int))                                                                        \
    CALL(MatmulDescDestroy, (void *))                                                                                  \
    CALL(MatmulDescSetAttribute, (void *, int, const void *, size_t))                                                  \
    CALL(MatrixLayoutCreate, (void **, int, uint64_t, uint64_t, int64_t))                                              \
    CALL(MatrixLayoutDestroy, (void *))                                                                                \
    CALL(MatmulPreferenceCreate, (void **))                                                                            \
    CALL(MatmulPreferenceDestroy, (void *))                                                                            \
    CALL(MatmulPreferenceSetAttribute, (void *, int, const void *, size_t))                                            \
    CALL(MatmulAlgoGetHeuristic,                                                                                       \
         (void *, void *, void *, void *, void *, void *, void *, int, struct algorithm *, int *))                     \
    CALL(Matmul, (void *, void *, const void *, const void *, void *, const void *, void *, const void *,              \
                  const void *, void *, void *, void *, const struct algorithm *, void *, size_t, void *))

struct blas {
    pthread_mutex_t lock; /* of loading */
    void *library, *handle;
    char path[512];
#define DECLARE(name, arguments) int(*name) arguments;
    BLAS_CALLS(DECLARE)
#undef DECLARE
};

/* In the library's column-major words, the transposed product: out^T = right^T left^T. */
struct blas_product {
    void *product, *layout[3]; /* right, left, out */
    struct algorithm algorithm;
    int right, left, out; /* operands */
    int64_t stride[3];
    float beta;
};

/* ---------------------------------------------------------------- the library */

struct blas *blas_new(void)
{
    struct blas *blas = calloc(1, sizeof *blas);
    if (blas && pthread_mutex_init(&blas->lock, NULL) != 0) {
        free(blas);
        return NULL;
    }
    return blas;
}

void blas_free(const struct gpu *gpu, struct blas *blas)
{
    if (!blas)
        return;
    if (blas->handle && gpu_enter(gpu, NULL) == CODA_OK) {
        blas->Destroy(blas->handle);
        gpu_leave(gpu);
    }
    if (blas->library)
        dlclose(blas->library);
    pthread_mutex_destroy(&blas->lock);
    free(blas);
}

static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};

bool blas_find(char *path, size_t size)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (find_library(names[i], path, size, NULL))
            return true;
    return false;
}

static bool bind_calls(struct blas *blas)
{
    char name[64];
    bool all = true;
#define BIND(call, arguments)                                                                                          \
    {                                                                                                                  \
        snprintf(name, sizeof name, "cublasLt%s", #call);                                                              \
        void *symbol = dlsym(blas->library, name);                                                                     \
        memcpy(&blas->call, &symbol, sizeof symbol);                                                                   \
        all = all && symbol;                                                                                           \
    }
    BLAS_CALLS(BIND)
#undef BIND
    return all;
}

/* The copy that this process already has (PyTorch's), else the loader's, else one found in the usual places. */
static coda_status open_library(struct blas *blas, coda_error *error)
{
    for (size_t i = 0; i < sizeof names / sizeof *names && !blas->library; i++)
        blas->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!blas->library && blas_find(blas->path, sizeof blas->path))
        blas->library = dlopen(blas->path, RTLD_NOW | RTLD_LOCAL);
    if (!blas->library)
        return fail(
            error, CODA_DEVICE,
            "the schedule \"cublas\" needs cuBLASLt (libcublasLt.so.13 or .12), which was not found%s%s; install "
            "the CUDA toolkit, set CODA_CUDA_PATH to the folder that holds it, or leave the schedule out",
            blas->path[0] ? ", or did not load from " : "", blas->path);
    if (!bind_calls(blas)) {
        dlclose(blas->library);
        blas->library = NULL;
        return fail(error, CODA_DEVICE, "cuBLASLt lacks calls that coda uses; install one of CUDA 12 or 13");
    }
    return CODA_OK;
}

static coda_status check_call(int result, const char *call, coda_error *error)
{
    return result
               ? fail(error, CODA_DEVICE, "%s failed with status %d; leave the schedule \"cublas\" out", call, result)
               : CODA_OK;
}

static coda_status start_library(struct blas *blas, coda_error *error)
{
    pthread_mutex_lock(&blas->lock);
    coda_status status = blas->handle ? CODA_OK : blas->library ? CODA_OK : open_library(blas, error);
    if (status == CODA_OK && !blas->handle)
        status = check_call(blas->Create(&blas->handle), "cublasLtCreate", error);
    pthread_mutex_unlock(&blas->lock);
    return status;
}

/* ---------------------------------------------------------------- a product */

static int out_of(const struct graph *graph)
{
    int found = -1;
    for (int i = 0; i < graph->operand_count; i++)
        if (graph->operand[i].role != CODA_IN) {
            if (found >= 0)
                return -1;
            found = i;
        }
    return found;
}

static int library_type(coda_dtype dtype)
{
    return dtype == CODA_F32 ? TYPE_F32 : dtype == CODA_F16 ? TYPE_F16 : dtype == CODA_BF16 ? TYPE_BF16 : -1;
}

bool blas_fits(const struct plan *plan, const char **why)
{
    const struct graph *graph = plan->graph;
    int out = out_of(graph);
    *why = NULL;
    if (plan->accumulator_count != 1 || out < 0 || graph->node[graph->operand[out].node].op != OP_GEMM)
        *why = "is no product alone: its epilogue runs in coda's own schedules";
    else if (graph->conditional)
        *why = "runs on a condition";
    else if (plan->product[0].segment_count != 1 || plan->product[0].segment[0].right_count != 1)
        *why = "stacks or adds up several products";
    else if (!plan->uniform || library_type(plan->factor_type) < 0 || library_type(graph->operand[out].dtype) < 0)
        *why = "multiplies types that coda does not ask the library for";
    return !*why;
}

static coda_status describe(const struct blas *blas, const struct plan *plan, const int64_t *size,
                            struct blas_product *p, coda_error *error)
{
    const struct graph *graph = plan->graph;
    const struct segment *segment = &plan->product[0].segment[0];
    int transposed = TRANSPOSED;
    p->right = segment->right[0].operand;
    p->left = segment->left.operand;
    p->out = out_of(graph);
    p->beta = graph->operand[p->out].role == CODA_ACCUMULATE ? 1 : 0;
    coda_status status =
        check_call(blas->MatmulDescCreate(&p->product, COMPUTE_F32, TYPE_F32), "cublasLtMatmulDescCreate", error);
    if (status == CODA_OK && segment->right[0].k_major)
        status = check_call(
            blas->MatmulDescSetAttribute(p->product, PRODUCT_LEFT_TRANSPOSED, &transposed, sizeof transposed),
            "cublasLtMatmulDescSetAttribute", error);
    if (status == CODA_OK && !segment->left.k_major)
        status = check_call(
            blas->MatmulDescSetAttribute(p->product, PRODUCT_RIGHT_TRANSPOSED, &transposed, sizeof transposed),
            "cublasLtMatmulDescSetAttribute", error);
    const int operand[3] = {p->right, p->left, p->out};
    for (int i = 0; i < 3 && status == CODA_OK; i++) {
        const struct operand *o = &graph->operand[operand[i]];
        int64_t rows = dim_size(&o->shape.dim[0], size), columns = dim_size(&o->shape.dim[1], size);
        p->stride[i] = columns;
        status = check_call(
            blas->MatrixLayoutCreate(&p->layout[i], library_type(o->dtype), (uint64_t)columns, (uint64_t)rows, columns),
            "cublasLtMatrixLayoutCreate", error);
    }
    return status;
}

static coda_status choose_algorithm(const struct blas *blas, const char *name, struct blas_product *p,
                                    coda_error *error)
{
    void *preference = NULL;
    uint64_t workspace = 0;
    uint32_t reductions = 0;
    int found = 0;
    coda_status status = check_call(blas->MatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate", error);
    if (status != CODA_OK)
        return status;
    int result = blas->MatmulPreferenceSetAttribute(preference, PREFER_WORKSPACE_BYTES, &workspace, sizeof workspace);
    if (!result)
        result = blas->MatmulPreferenceSetAttribute(preference, PREFER_REDUCTIONS, &reductions, sizeof reductions);
    if (!result)
        result = blas->MatmulAlgoGetHeuristic(blas->handle, p->product, p->layout[0], p->layout[1], p->layout[2],
                                              p->layout[2], preference, 1, &p->algorithm, &found);
    blas->MatmulPreferenceDestroy(preference);
    if (!result && !found)
        return fail(error, CODA_UNSUPPORTED, "%s: cuBLASLt has no algorithm for these sizes without workspace", name);
    return check_call(result, "cublasLtMatmulAlgoGetHeuristic", error);
}

coda_status blas_prepare(const struct gpu *gpu, const struct plan *plan, const int64_t *size,
                         struct blas_product **product, coda_error *error)
{
    const struct graph *graph = plan->graph;
    const char *why;
    if (!blas_fits(plan, &why))
        return fail(error, CODA_UNSUPPORTED, "%s %s; use \"portable\", \"direct\" or \"warps\"", graph->name, why);
    for (int i = 0; i < graph->axis_count; i++)
        if (size[i] < 1)
            return fail(error, CODA_UNSUPPORTED,
                        "%s: the schedule \"cublas\" needs the size of every axis when the kernel is created; %s is "
                        "missing",
                        graph->name, graph->axis[i].name);
    coda_status status = gpu_enter(gpu, error);
    if (status != CODA_OK)
        return status;
    struct blas_product *made = calloc(1, sizeof *made);
    status = made ? start_library(gpu->blas, error) : fail_memory(error, "a product", sizeof *made);
    if (status == CODA_OK)
        status = describe(gpu->blas, plan, size, made, error);
    if (status == CODA_OK)
        status = choose_algorithm(gpu->blas, graph->name, made, error);
    gpu_leave(gpu);
    if (status == CODA_OK)
        *product = made;
    else
        blas_product_free(gpu, made);
    return status;
}

static int refused_operand(const struct blas_product *p, const struct launch *launch)
{
    const int operand[3] = {p->right, p->left, p->out};
    for (int i = 0; i < 3; i++)
        if (launch->operand[operand[i]].stride != p->stride[i] || (uintptr_t)launch->operand[operand[i]].data % 16)
            return operand[i];
    return -1;
}

bool blas_accepts(const struct blas_product *product, const struct launch *launch)
{
    return refused_operand(product, launch) < 0;
}

coda_status blas_launch(const struct gpu *gpu, const struct blas_product *p, const struct launch *launch,
                        coda_error *error)
{
    float one = 1;
    int refused = refused_operand(p, launch);
    if (refused >= 0)
        return fail(error, CODA_UNSUPPORTED,
                    "operand %d of a product through cuBLASLt starts at %p and has rows %lld apart; expected a "
                    "multiple of 16 bytes and dense rows. Leave the schedule \"cublas\" out",
                    refused, launch->operand[refused].data, (long long)launch->operand[refused].stride);
    void *out = launch->operand[p->out].data;
    return check_call(gpu->blas->Matmul(gpu->blas->handle, p->product, &one, launch->operand[p->right].data,
                                        p->layout[0], launch->operand[p->left].data, p->layout[1], &p->beta, out,
                                        p->layout[2], out, p->layout[2], &p->algorithm, NULL, 0, launch->stream),
                      "cublasLtMatmul", error);
}

void blas_product_free(const struct gpu *gpu, struct blas_product *product)
{
    if (!product)
        return;
    for (int i = 0; i < 3; i++)
        if (product->layout[i])
            gpu->blas->MatrixLayoutDestroy(product->layout[i]);
    if (product->product)
        gpu->blas->MatmulDescDestroy(product->product);
    free(product);
}
