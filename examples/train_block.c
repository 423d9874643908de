/* A block of ordinary tensor mathematics, trained: the compiler turns it into fused programs, forward and backward, and the
 * schedule runs them on memory that is given here.
 *
 *   gcc examples/train_block.c -Iinclude build/libcoda.a -pthread -ldl -lm -o train_block && ./train_block
 */
#include "coda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char text[] = "block mlp {\n"
                           "    in  x : f32[M, D]\n"
                           "    in  Wu : f32[F, D]\n"
                           "    in  Wd : f32[D, F]\n"
                           "    in  g : f32[D]\n"
                           "    param eps = 1e-6\n"
                           "    h = rmsnorm(x, g, eps)\n"
                           "    out z : f32[M, D] = silu(h @ Wu.T) @ Wd.T + x\n"
                           "}\n";

enum { ROWS = 96, STEPS = 60, MOST = 32 };
static const coda_dims dims = {3, {{"M", ROWS}, {"D", 24}, {"F", 64}}};

struct training {
    coda_module *module;
    coda_device *device;
    coda_schedule *schedule;
    coda_tensor tensor[MOST]; /* the caller's values */
    int count;
    void *saved, *scratch;
};

static float *data_of(struct training *t, const char *name)
{
    return t->tensor[coda_schedule_find(t->schedule, name)].data;
}

static size_t size_of(const coda_tensor *tensor)
{
    return (size_t)(tensor->shape[0] * tensor->shape[1]);
}

/* Memory for every value of the caller: inputs are random, a norm weight is 1, the rest 0. */
static coda_status allocate(struct training *t, coda_error *error)
{
    size_t saved, scratch;
    coda_status status = coda_schedule_memory(t->schedule, &dims, &saved, &scratch, error);
    if (status == CODA_OK)
        status = coda_allocate(t->device, saved, &t->saved, error);
    if (status == CODA_OK)
        status = coda_allocate(t->device, scratch, &t->scratch, error);
    t->count = coda_schedule_operand_count(t->schedule);
    for (int i = 0; i < t->count && i < MOST && status == CODA_OK; i++) {
        coda_value value;
        coda_tensor *tensor = &t->tensor[i];
        coda_schedule_value(t->schedule, i, &value);
        *tensor = (coda_tensor){.dtype = value.dtype, .rank = value.rank, .shape = {1, 1}};
        status = coda_schedule_shape(t->schedule, i, &dims, tensor->shape, error);
        if (status == CODA_OK)
            status = coda_allocate(t->device, size_of(tensor) * sizeof(float), &tensor->data, error);
        for (size_t k = 0; status == CODA_OK && k < size_of(tensor); k++) {
            float random = (float)rand() / (float)RAND_MAX - 0.5f;
            ((float *)tensor->data)[k] = value.kind != CODA_INPUT ? 0 : value.rank == 1 ? 1 : random;
        }
    }
    return status;
}

/* z is to become x with its columns in reverse order. Returns the mean square, and leaves its gradient in dz. */
static double loss(struct training *t)
{
    const float *x = data_of(t, "x"), *z = data_of(t, "z");
    float *dz = data_of(t, "dz");
    double sum = 0;
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < 24; k++) {
            float off = z[i * 24 + k] - x[i * 24 + 23 - k];
            sum += off * off / ROWS;
            dz[i * 24 + k] = 2 * off / ROWS;
        }
    return sum;
}

/* Every gradient of a weight is a result that is added to; `of` says which weight's it is. */
static void descend(struct training *t, float rate)
{
    for (int i = 0; i < t->count; i++) {
        coda_value value;
        coda_schedule_value(t->schedule, i, &value);
        if (!value.accumulated)
            continue;
        float *weight = data_of(t, value.of), *gradient = t->tensor[i].data;
        for (size_t k = 0; k < size_of(&t->tensor[i]); k++) {
            weight[k] -= rate * gradient[k];
            gradient[k] = 0;
        }
    }
}

static coda_status run(struct training *t, int phase, coda_error *error)
{
    return coda_schedule_launch(t->schedule, phase, t->tensor, t->count, t->saved, t->scratch, NULL, NULL, error);
}

int main(void)
{
    struct training t = {.count = 0};
    coda_error error;
    const coda_schedule_options options = {.size = sizeof options, .backward = 1};
    coda_status status = coda_module_parse(text, strlen(text), "train_block.c", &t.module, &error);
    if (status == CODA_OK)
        status = coda_device_open("cpu", &t.device, &error);
    if (status == CODA_OK)
        status = coda_schedule_create(t.device, coda_module_program(t.module, 0), NULL, &options, &t.schedule, &error);
    if (status == CODA_OK)
        status = allocate(&t, &error);
    for (int step = 0; step <= STEPS && status == CODA_OK; step++) {
        status = run(&t, CODA_FORWARD, &error);
        double now = status == CODA_OK ? loss(&t) : 0;
        if (status == CODA_OK && step % 20 == 0)
            printf("step %2d: %.4f\n", step, now);
        if (status == CODA_OK)
            status = run(&t, CODA_BACKWARD, &error);
        if (status == CODA_OK)
            descend(&t, 0.05f);
    }
    if (status != CODA_OK)
        fprintf(stderr, "%s\n", error.message);
    for (int i = 0; i < t.count; i++)
        coda_release(t.device, t.tensor[i].data);
    if (t.device) {
        coda_release(t.device, t.saved);
        coda_release(t.device, t.scratch);
    }
    coda_schedule_free(t.schedule);
    coda_device_close(t.device);
    coda_module_free(t.module);
    return status == CODA_OK ? 0 : 1;
}
