/* Trying the ways in which a device can run a program: results first, then time. */
#include "runtime/device.h"
#include "runtime/sizes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CANDIDATES = 64, MAX_TUNE_ROUNDS = 1000 };

struct candidate {
    coda_kernel *kernel; /* NULL: refused */
    coda_options options;
    char refused[256];
    double *ms; /* one a round */
};

struct tuning {
    coda_device *device;
    const coda_program *program;
    const coda_dims *dims;
    coda_tune_options options;
    int operand_count;
    coda_tensor operand[MAX_OPERANDS];
    size_t bytes[MAX_OPERANDS];
    void *start[MAX_OPERANDS];    /* of outs: what they hold before a launch, in host memory */
    void *expected[MAX_OPERANDS]; /* of outs: what the device's own choice gives */
    void *found;                  /* room for the largest out */
    int count;
    struct candidate candidate[MAX_CANDIDATES];
};

/* ---------------------------------------------------------------- operands */

static coda_status make_operand(struct tuning *t, int i, coda_error *error)
{
    const struct operand *operand = &t->program->graph->operand[i];
    coda_tensor *tensor = &t->operand[i];
    *tensor = (coda_tensor){.dtype = operand->dtype, .rank = operand->shape.rank};
    coda_status status = coda_program_operand_shape(t->program, i, t->dims, tensor->shape, error);
    if (status != CODA_OK)
        return status;
    t->bytes[i] = coda_dtype_size(tensor->dtype);
    for (int d = 0; d < tensor->rank; d++)
        t->bytes[i] *= (size_t)tensor->shape[d];
    void *host = malloc(t->bytes[i]);
    if (!host)
        return fail_memory(error, "an operand", t->bytes[i]);
    status = coda_program_fill(t->program, i, t->dims, 1, host, error);
    if (status == CODA_OK)
        status = coda_allocate(t->device, t->bytes[i], &tensor->data, error);
    if (status == CODA_OK)
        status = coda_copy_in(t->device, tensor->data, host, t->bytes[i], error);
    if (status != CODA_OK || operand->role == CODA_IN) {
        free(host);
        return status;
    }
    t->start[i] = host;
    t->expected[i] = malloc(t->bytes[i]);
    return t->expected[i] ? CODA_OK : fail_memory(error, "an out", t->bytes[i]);
}

static coda_status make_operands(struct tuning *t, coda_error *error)
{
    size_t largest = 1;
    coda_status status = CODA_OK;
    t->operand_count = t->program->graph->operand_count;
    for (int i = 0; i < t->operand_count && status == CODA_OK; i++) {
        status = make_operand(t, i, error);
        largest = t->start[i] && t->bytes[i] > largest ? t->bytes[i] : largest;
    }
    if (status == CODA_OK && !(t->found = malloc(largest)))
        status = fail_memory(error, "an out", largest);
    return status;
}

/* ---------------------------------------------------------------- results */

static coda_status launch(void *context, void *stream, coda_error *error)
{
    const struct tuning *t = ((void **)context)[0];
    coda_kernel *kernel = ((void **)context)[1];
    return coda_kernel_launch(kernel, t->operand, t->operand_count, NULL, stream, error);
}

static coda_status run_once(struct tuning *t, coda_kernel *kernel, coda_error *error)
{
    coda_status status = CODA_OK;
    void *context[2] = {t, kernel};
    for (int i = 0; i < t->operand_count && status == CODA_OK; i++)
        if (t->start[i])
            status = coda_copy_in(t->device, t->operand[i].data, t->start[i], t->bytes[i], error);
    if (status == CODA_OK)
        status = launch(context, NULL, error);
    return status == CODA_OK ? coda_synchronize(t->device, NULL, error) : status;
}

/* Of two results in the 2-norm, relative. */
static double difference(const void *a, const void *b, coda_dtype dtype, int64_t count)
{
    double error = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        float x, y;
        coda_convert(&x, CODA_F32, (const char *)a + (size_t)i * coda_dtype_size(dtype), dtype, 1);
        coda_convert(&y, CODA_F32, (const char *)b + (size_t)i * coda_dtype_size(dtype), dtype, 1);
        double d = (double)x - (double)y;
        error += d * d;
        norm += (double)y * (double)y;
    }
    return norm > 0 ? error / norm : error;
}

/* The library's last bits may differ: by no more than a rounding of the out, and f32 sums in another order. */
static bool agrees(const struct tuning *t, int i, bool library)
{
    if (memcmp(t->found, t->expected[i], t->bytes[i]) == 0)
        return true;
    coda_dtype dtype = t->operand[i].dtype;
    double allowed = dtype == CODA_F32 ? 1e-5 : dtype == CODA_F16 ? 0x1p-11 : 0x1p-8;
    int64_t count = (int64_t)(t->bytes[i] / coda_dtype_size(dtype));
    return library && difference(t->found, t->expected[i], dtype, count) <= allowed * allowed;
}

static coda_status check_results(struct tuning *t, struct candidate *c, bool first, coda_error *error)
{
    bool library = c->options.schedule && !strcmp(c->options.schedule, "cublas");
    coda_status status = run_once(t, c->kernel, error);
    for (int i = 0; i < t->operand_count && status == CODA_OK; i++) {
        if (!t->start[i])
            continue;
        status = coda_copy_out(t->device, first ? t->expected[i] : t->found, t->operand[i].data, t->bytes[i], error);
        if (status == CODA_OK && !first && !agrees(t, i, library)) {
            snprintf(c->refused, sizeof c->refused, "gives other results for %.200s",
                     t->program->graph->operand[i].name);
            break;
        }
    }
    return status;
}

/* ---------------------------------------------------------------- candidates */

static coda_status add_candidate(struct tuning *t, int index, coda_error *error)
{
    coda_error why = {0};
    struct candidate *c = &t->candidate[t->count];
    if (!t->device->operations->candidate(index, &c->options))
        return CODA_OK;
    bool library = c->options.schedule && !strcmp(c->options.schedule, "cublas");
    c->options.exact = t->options.exact;
    t->count++;
    if (library && !t->options.library) {
        snprintf(c->refused, sizeof c->refused, "not asked for");
        return CODA_OK;
    }
    coda_status status = coda_kernel_create(t->device, t->program, t->dims, &c->options, &c->kernel, &why);
    if (status == CODA_OK) {
        status = check_results(t, c, index == 0, &why);
        if (status == CODA_OK && c->refused[0]) {
            coda_kernel_free(c->kernel);
            c->kernel = NULL;
        }
    }
    if (status != CODA_OK && index > 0 && (status == CODA_UNSUPPORTED || library)) {
        snprintf(c->refused, sizeof c->refused, "%.250s", why.message);
        coda_kernel_free(c->kernel);
        c->kernel = NULL;
        return CODA_OK;
    }
    if (status != CODA_OK && error)
        *error = why;
    return status;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* In turns, so that a change of the clock meets all; the first round warms. */
static coda_status time_all(struct tuning *t, coda_error *error)
{
    coda_status status = CODA_OK;
    int rounds = t->options.rounds;
    for (int round = -1; round < rounds && status == CODA_OK; round++)
        for (int i = 0; i < t->count && status == CODA_OK; i++) {
            struct candidate *c = &t->candidate[i];
            void *context[2] = {t, c->kernel};
            double ms;
            if (!c->kernel)
                continue;
            status = coda_time(t->device, launch, context, 2, &ms, error);
            if (status == CODA_OK && round >= 0)
                c->ms[round] = ms / 2;
        }
    for (int i = 0; i < t->count && status == CODA_OK; i++)
        if (t->candidate[i].kernel)
            qsort(t->candidate[i].ms, (size_t)rounds, sizeof(double), ascending);
    return status;
}

/* The fastest; the device's own choice where nothing is faster by more than a hundredth, which is noise. */
static int fastest(const struct tuning *t)
{
    int best = 0, middle = t->options.rounds / 2;
    double limit = t->candidate[0].ms[middle] * 0.99;
    for (int i = 1; i < t->count; i++)
        if (t->candidate[i].kernel && t->candidate[i].ms[middle] < limit) {
            best = i;
            limit = t->candidate[i].ms[middle];
        }
    return best;
}

static void tell(const struct tuning *t, int best, void (*each)(void *context, const coda_candidate *candidate),
                 void *context)
{
    for (int i = 0; i < t->count; i++) {
        const struct candidate *c = &t->candidate[i];
        coda_candidate told = {.options = c->options,
                               .ms = c->kernel ? c->ms[t->options.rounds / 2] : 0,
                               .refused = c->kernel ? NULL : c->refused,
                               .chosen = i == best};
        each(context, &told);
    }
}

/* ---------------------------------------------------------------- all */

static coda_status take_options(const coda_tune_options *from, coda_tune_options *to, coda_error *error)
{
    memset(to, 0, sizeof *to);
    if (from && (from->size < sizeof from->size || from->size > 1 << 16))
        return fail(error, CODA_INVALID, "coda_tune_options.size is %zu; set it to sizeof(coda_tune_options)",
                    from->size);
    if (from)
        memcpy(to, from, from->size < sizeof *to ? from->size : sizeof *to);
    if (to->rounds < 0 || to->rounds > MAX_TUNE_ROUNDS)
        return fail(error, CODA_INVALID, "%d rounds; expected 1 to %d, or 0 for 7", to->rounds, MAX_TUNE_ROUNDS);
    to->rounds = to->rounds ? to->rounds : 7;
    return CODA_OK;
}

/* Forgets first, so that the device's own choice is what the others are compared with. */
static coda_status forget(struct tuning *t, coda_error *error)
{
    coda_options options = {.size = sizeof options, .exact = t->options.exact};
    coda_kernel *kernel;
    coda_status status = coda_kernel_create(t->device, t->program, t->dims, &options, &kernel, error);
    if (status != CODA_OK)
        return status;
    status = t->device->operations->remember(kernel, NULL, 0, error);
    coda_kernel_free(kernel);
    return status;
}

static coda_status remember(struct tuning *t, const coda_options *choice, double ms, coda_error *error)
{
    coda_options options = {.size = sizeof options, .exact = t->options.exact};
    coda_kernel *kernel;
    coda_status status = coda_kernel_create(t->device, t->program, t->dims, &options, &kernel, error);
    if (status != CODA_OK)
        return status;
    status = t->device->operations->remember(kernel, choice, ms, error);
    coda_kernel_free(kernel);
    return status;
}

static coda_status measure(struct tuning *t, void (*each)(void *context, const coda_candidate *candidate),
                           void *context, coda_error *error)
{
    double *times = calloc(MAX_CANDIDATES, (size_t)t->options.rounds * sizeof *times);
    if (!times)
        return fail_memory(error, "times", MAX_CANDIDATES * (size_t)t->options.rounds * sizeof *times);
    coda_status status = make_operands(t, error);
    for (int i = 0; i < MAX_CANDIDATES; i++)
        t->candidate[i].ms = times + (size_t)i * (size_t)t->options.rounds;
    for (int i = 0; i < MAX_CANDIDATES && status == CODA_OK && t->count == i; i++)
        status = add_candidate(t, i, error);
    if (status == CODA_OK)
        status = time_all(t, error);
    if (status == CODA_OK) {
        int best = fastest(t);
        const struct candidate *c = &t->candidate[best];
        if (best > 0)
            status = remember(t, &c->options, c->ms[t->options.rounds / 2], error);
        if (status == CODA_OK && each)
            tell(t, best, each, context);
    }
    free(times);
    return status;
}

static void release(struct tuning *t)
{
    for (int i = 0; i < t->count; i++)
        coda_kernel_free(t->candidate[i].kernel);
    for (int i = 0; i < t->operand_count; i++) {
        coda_release(t->device, t->operand[i].data);
        free(t->start[i]);
        free(t->expected[i]);
    }
    free(t->found);
    free(t);
}

/* A choice that is given: the first candidate of that name that makes a kernel. */
static coda_status force(struct tuning *t, coda_error *error)
{
    coda_options options;
    coda_kernel *kernel;
    coda_error why = {0};
    coda_status status = CODA_OK;
    if (!t->options.schedule[0])
        return CODA_OK; /* forgotten already */
    fail(&why, CODA_INVALID, "there is no schedule \"%.40s\" to remember", t->options.schedule);
    for (int i = 0; t->device->operations->candidate(i, &options); i++) {
        if (!options.schedule || strcmp(options.schedule, t->options.schedule) != 0)
            continue;
        options.exact = t->options.exact;
        status = coda_kernel_create(t->device, t->program, t->dims, &options, &kernel, &why);
        if (status != CODA_OK)
            continue;
        coda_kernel_free(kernel);
        return remember(t, &options, 0, error);
    }
    if (error)
        *error = why;
    return why.status;
}

coda_status coda_kernel_tune(coda_device *device, const coda_program *program, const coda_dims *dims,
                             const coda_tune_options *options,
                             void (*each)(void *context, const coda_candidate *candidate), void *context,
                             coda_error *error)
{
    if (!device || !program || !dims)
        return fail(error, CODA_INVALID, "coda_kernel_tune needs a device, a program and sizes");
    if (!device->operations->candidate || !device->operations->remember)
        return fail(error, CODA_UNSUPPORTED, "the device %s has one way to run a program; only \"cuda\" is tuned",
                    device->name);
    struct tuning *t = calloc(1, sizeof *t);
    if (!t)
        return fail_memory(error, "tuning", sizeof *t);
    t->device = device;
    t->program = program;
    t->dims = dims;
    coda_status status = take_options(options, &t->options, error);
    if (status == CODA_OK)
        status = forget(t, error);
    if (status == CODA_OK)
        status = t->options.schedule ? force(t, error) : measure(t, each, context, error);
    release(t);
    return status;
}
