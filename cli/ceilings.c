#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

double now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec * 1e-6;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median(double *values, int count)
{
    if (count == 0)
        return 0;
    qsort(values, (size_t)count, sizeof *values, ascending);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static coda_status run(void *context, void *stream, coda_error *error)
{
    return workload_start(context, stream, error);
}

/* The fastest of several runs: a ceiling is what the device can do, not what it usually does. */
static coda_status fastest_run(coda_device *device, const char *text, const coda_dims *dims, double *ms,
                               coda_error *error)
{
    coda_module *module = NULL;
    struct workload workload = {0};
    coda_status status = coda_module_parse(text, strlen(text), "ceilings", &module, error);
    if (status == CODA_OK)
        status = workload_new(&workload, device, coda_module_program(module, 0), dims, NULL, 1, error);
    double start = now_ms();
    for (int i = 0; status == CODA_OK && (i < 4 || now_ms() - start < 300) && i < 100; i++) {
        double time = 0;
        status = coda_time(device, run, &workload, 1, &time, error);
        if (status == CODA_OK && (i == 0 || time < *ms))
            *ms = time;
    }
    workload_free(&workload);
    coda_module_free(module);
    return status;
}

static double cube(int64_t size)
{
    return (double)size * (double)size * (double)size;
}

/* Units differ by a factor of a hundred: products grow until one takes long enough to drown what surrounds it. */
static coda_status fastest_product(coda_device *device, bool cuda, double *gflops, coda_error *error)
{
    static const char text[] =
        "program product {\n in A : bf16[M, K]\n in W : bf16[N, K]\n out Y : bf16[M, N] = A @ W.T\n}\n";
    enum { SMALLEST = 256, LARGEST = 2048, ON_CUDA = 8192 };
    const double enough_ms = 15;
    double ms = 0;
    coda_status status = CODA_OK;
    for (int64_t size = cuda ? ON_CUDA : SMALLEST; size <= ON_CUDA && status == CODA_OK && ms < enough_ms; size *= 2) {
        if (!cuda && size > LARGEST)
            break;
        coda_dims dims = {3, {{"M", size}, {"N", size}, {"K", size}}};
        status = fastest_run(device, text, &dims, &ms, error);
        if (status == CODA_OK && 2 * cube(size) / ms * 1e-6 > *gflops)
            *gflops = 2 * cube(size) / ms * 1e-6;
    }
    return status;
}

coda_status measure_ceilings(coda_device *device, struct ceilings *ceilings, coda_error *error)
{
    static const char pass[] = "program pass {\n in x : f32[M, N]\n out y : f32[M, N] = x + 1\n}\n";
    const bool cuda = strncmp(coda_device_name(device), "cuda", 4) == 0;
    const int64_t rows = cuda ? 65536 : 4096;
    const coda_dims tall = {2, {{"M", rows}, {"N", 4096}}};
    double pass_ms = 1;
    ceilings->gflops = measure_peak(device);
    coda_status status = fastest_product(device, cuda, &ceilings->gflops, error);
    if (status == CODA_OK)
        status = fastest_run(device, pass, &tall, &pass_ms, error);
    ceilings->gbytes = 8.0 * (double)rows * 4096 / pass_ms * 1e-6;
    return status;
}
