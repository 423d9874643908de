/* Launches of one stream see what those before them wrote, though each may begin while the one before it ends. A long launch,
 * two short ones that have nothing to do with it, and one that reads what the long one wrote: whoever does not wait, or ends
 * before those it should have waited for, is found in the sums. */
#include "coda.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static const char text[] = "program pass { in C : f32[M, N]; in U : f32[N]; out Y : f32[M, N] = C + U }\n"
                           "program product { in A : bf16[M, K]; in W : bf16[N, K]; in C : f32[M, N]\n"
                           "    out Y : f32[M, N] = A @ W.T + C }\n"
                           "program product32 { in A : f32[M, K]; in W : f32[N, K]; in C : f32[M, N]\n"
                           "    out Y : f32[M, N] = A @ W.T + C }\n"
                           "program rows { in T : f32[M]; out V : f32[M] = T + 1 }\n";

/* Every row adds DEPTH to each element of C. */
static const struct {
    const char *program, *schedule;
    bool product;
    coda_dtype factor;
} rows[] = {
    {"pass", NULL, false, CODA_F32},
    {"product", "portable", true, CODA_BF16},
    {"product", "direct", true, CODA_BF16},
    {"product32", NULL, true, CODA_F32},
};
enum { M = 4096, N = 8192, DEPTH = 8, TURNS = 30, SHORT = 8 };

/* All memory of a row; `sum` and `other` take turns as what is read and what is written. */
struct subject {
    coda_device *device;
    coda_kernel *kernel, *brief;
    coda_tensor left, right, sum, other, count, again;
    bool product;
};

static coda_status filled(coda_device *device, coda_dtype dtype, int64_t m, int64_t n, float value, coda_tensor *t,
                          coda_error *error)
{
    size_t size = coda_dtype_size(dtype), count = (size_t)(m * (n ? n : 1));
    char *host = malloc(count * size);
    *t = (coda_tensor){.dtype = dtype, .rank = n ? 2 : 1, .shape = {m, n ? n : 1}};
    coda_status status = host ? coda_allocate(device, count * size, &t->data, error) : CODA_MEMORY;
    for (size_t i = 0; i < count && host; i++)
        coda_convert(host + i * size, dtype, &value, CODA_F32, 1);
    if (status == CODA_OK)
        status = coda_copy_in(device, t->data, host, count * size, error);
    free(host);
    return status;
}

static coda_status add(const struct subject *s, const coda_tensor *from, const coda_tensor *to, void *stream,
                       coda_error *error)
{
    coda_tensor product[] = {s->left, s->right, *from, *to}, pass[] = {*from, s->right, *to};
    return s->product ? coda_kernel_launch(s->kernel, product, 4, NULL, stream, error)
                      : coda_kernel_launch(s->kernel, pass, 3, NULL, stream, error);
}

static coda_status count_two(const struct subject *s, void *stream, coda_error *error)
{
    coda_tensor there[] = {s->count, s->again}, back[] = {s->again, s->count};
    coda_status status = coda_kernel_launch(s->brief, there, 2, NULL, stream, error);
    return status == CODA_OK ? coda_kernel_launch(s->brief, back, 2, NULL, stream, error) : status;
}

static coda_status turns(void *context, void *stream, coda_error *error)
{
    const struct subject *s = context;
    coda_status status = CODA_OK;
    for (int i = 0; i < TURNS && status == CODA_OK; i++) {
        status = add(s, &s->sum, &s->other, stream, error);
        if (status == CODA_OK)
            status = count_two(s, stream, error);
        if (status == CODA_OK)
            status = add(s, &s->other, &s->sum, stream, error);
        if (status == CODA_OK)
            status = count_two(s, stream, error);
    }
    return status;
}

/* How many elements are not `value`. */
static int64_t others(coda_device *device, const coda_tensor *t, float value, coda_error *error)
{
    int64_t count = t->shape[0] * t->shape[1], other = 0;
    float *host = malloc((size_t)count * sizeof *host);
    if (!host || coda_copy_out(device, host, t->data, (size_t)count * sizeof *host, error) != CODA_OK)
        other = count;
    for (int64_t i = 0; i < count && host && other < count; i++)
        other += !(host[i] == value);
    free(host);
    return other;
}

static coda_status open_subject(struct subject *s, const coda_module *module, int row, coda_error *error)
{
    coda_options options = {.size = sizeof options, .schedule = rows[row].schedule};
    const coda_program *program = coda_module_find(module, rows[row].program);
    bool product = s->product = rows[row].product;
    coda_status status = coda_kernel_create(s->device, program, NULL, &options, &s->kernel, error);
    if (status == CODA_OK)
        status = coda_kernel_create(s->device, coda_module_find(module, "rows"), NULL, NULL, &s->brief, error);
    if (status == CODA_OK)
        status = filled(s->device, rows[row].factor, M, DEPTH, 1, &s->left, error);
    if (status == CODA_OK)
        status = filled(s->device, rows[row].factor, N, product ? DEPTH : 0, product ? 1 : DEPTH, &s->right, error);
    if (status == CODA_OK)
        status = filled(s->device, CODA_F32, M, N, 0, &s->sum, error);
    if (status == CODA_OK)
        status = filled(s->device, CODA_F32, M, N, -1, &s->other, error);
    if (status == CODA_OK)
        status = filled(s->device, CODA_F32, SHORT, 0, 0, &s->count, error);
    return status == CODA_OK ? filled(s->device, CODA_F32, SHORT, 0, 0, &s->again, error) : status;
}

static void close_subject(struct subject *s)
{
    const coda_tensor *tensor[] = {&s->left, &s->right, &s->sum, &s->other, &s->count, &s->again};
    for (size_t i = 0; i < sizeof tensor / sizeof *tensor; i++)
        coda_release(s->device, tensor[i]->data);
    coda_kernel_free(s->kernel);
    coda_kernel_free(s->brief);
}

/* Launched, then from a graph; what was there before counts on. */
static bool sums_are_whole(coda_device *device, const coda_module *module, int row)
{
    struct subject s = {.device = device};
    coda_error error = {0};
    coda_graph *graph = NULL;
    coda_status status = open_subject(&s, module, row, &error);
    int64_t wrong[2] = {0, 0};
    if (status == CODA_OK)
        status = coda_graph_create(device, turns, &s, &graph, &error);
    for (int i = 0; i < 2 && status == CODA_OK; i++) {
        status = i ? coda_graph_launch(graph, NULL, &error) : turns(&s, NULL, &error);
        if (status == CODA_OK)
            status = coda_synchronize(device, NULL, &error);
        wrong[i] = others(device, &s.sum, (float)((i + 1) * 2 * TURNS * DEPTH), &error) +
                   others(device, &s.count, (float)((i + 1) * 4 * TURNS), &error);
    }
    bool good = status == CODA_OK && wrong[0] == 0 && wrong[1] == 0;
    printf("%s %s%s%s: each launch sees what those before it wrote", good ? "ok" : "FAIL", rows[row].program,
           rows[row].schedule ? " " : "", rows[row].schedule ? rows[row].schedule : "");
    if (!good)
        printf(": %lld and (graph) %lld sums are wrong; %s", (long long)wrong[0], (long long)wrong[1], error.message);
    printf("\n");
    coda_graph_free(graph);
    close_subject(&s);
    return good;
}

int main(void)
{
    coda_device *device;
    coda_module *module;
    coda_error error = {0};
    bool good = true;
    if (coda_device_open("cuda", &device, &error) != CODA_OK) {
        printf("skipped: %s\n", error.message);
        return 77;
    }
    if (coda_module_parse(text, sizeof text - 1, NULL, &module, &error) != CODA_OK) {
        printf("FAIL %s\n", error.message);
        return 1;
    }
    for (int row = 0; row < (int)(sizeof rows / sizeof *rows); row++)
        good &= sums_are_whole(device, module, row);
    coda_module_free(module);
    coda_device_close(device);
    return good ? 0 : 1;
}
