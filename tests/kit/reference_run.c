#include "reference_run.h"
#include "random.h"
#include "ref/ref.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void set_sizes(struct run *r, const char *dims)
{
    char name[16];
    long long size;
    int used;
    for (; sscanf(dims, " %15[A-Z]=%lld%n", name, &size, &used) == 2; dims += used) {
        int axis = graph_find_axis(r->graph, name);
        if (axis >= 0)
            r->size[axis] = size;
    }
    struct complaint why = {0};
    if (sizes_complete(r->graph, r->size, &why) != CODA_OK || sizes_check(r->graph, r->size, &why) != CODA_OK)
        fail_msg("%s: %s", r->graph->name, why.reason);
    for (int a = 0; a < r->graph->axis_count; a++)
        if (r->size[a] == 0)
            fail_msg("%s: no size of axis %s", r->graph->name, r->graph->axis[a].name);
}

/* An id of a row. Where the program picks, one in eight is the ignored one and some are just outside. */
static double random_id(const struct run *r, struct random *random)
{
    if (graph_find_operand(r->graph, "table") >= 0)
        return (double)random_below(random, r->size[graph_find_axis(r->graph, "P")]);
    int64_t limit = r->size[graph_find_axis(r->graph, "V")];
    int table = graph_find_operand(r->graph, "E");
    if (table >= 0 && r->graph->operand[table].role == CODA_IN)
        return (double)random_below(random, limit);
    return random_below(random, 8) == 0 ? -100 : (double)(random_below(random, limit + 2) - 1);
}

static double random_value(const struct run *r, const struct operand *operand, struct random *random)
{
    if (operand->dtype == CODA_I32)
        return random_id(r, random);
    bool positive = strchr("RSv", operand->name[0]) != NULL; /* 1/RMS, sums of squares, second moments */
    return positive ? 0.25 + random_uniform(random) : random_normal(random);
}

static void make_operand(struct run *r, int index, struct random *random)
{
    const struct operand *operand = &r->graph->operand[index];
    coda_tensor *tensor = &r->operand[index];
    *tensor = (coda_tensor){.dtype = operand->dtype, .rank = operand->shape.rank, .shape = {1, 1}};
    for (int d = 0; d < operand->shape.rank; d++)
        tensor->shape[d] = dim_size(&operand->shape.dim[d], r->size);
    int64_t rows = tensor->rank == 2 ? tensor->shape[0] : 1, columns = tensor->shape[tensor->rank == 2];
    tensor->stride = tensor->rank == 2 ? columns + random_below(random, 3) : 1;
    int64_t count = rows * (tensor->rank == 2 ? tensor->stride : columns);
    tensor->data = calloc((size_t)count, coda_dtype_size(tensor->dtype));
    assert_non_null(tensor->data);
    if (operand->role != CODA_IN) {
        r->out[index] = calloc((size_t)(rows * columns), sizeof(double));
        assert_non_null(r->out[index]);
    }
    for (int64_t i = 0; i < count && operand->role != CODA_OUT; i++) {
        float x = (float)random_value(r, operand, random);
        coda_convert((char *)tensor->data + (size_t)i * coda_dtype_size(tensor->dtype), tensor->dtype, &x, CODA_F32, 1);
    }
}

void run_program(struct run *r, const char *name, const char *dims, uint64_t seed)
{
    const coda_module *module;
    coda_error error = {0};
    struct random random = {seed};
    if (coda_standard_module(&module, &error) != CODA_OK)
        fail_msg("%s", error.message);
    const coda_program *program = coda_module_find(module, name);
    assert_non_null(program);
    memset(r, 0, sizeof *r);
    r->graph = program->graph;
    set_sizes(r, dims);
    for (int p = 0; p < r->graph->parameter_count; p++)
        r->parameter[p] = seed % 2 == 0 ? r->graph->parameter[p].default_value : 0.25 + random_uniform(&random) / 2;
    for (int o = 0; o < r->graph->operand_count; o++)
        make_operand(r, o, &random);
    struct launch launch = {.size = r->size, .operand = r->operand, .parameter = r->parameter};
    if (ref_evaluate(r->graph, &launch, r->out, &error) != CODA_OK)
        fail_msg("%s: %s", name, error.message);
}

void end_run(struct run *r)
{
    for (int o = 0; o < r->graph->operand_count; o++) {
        if (r->graph->operand[o].role != CODA_IN && !r->checked[o])
            fail_msg("%s: out %s was not checked", r->graph->name, r->graph->operand[o].name);
        free(r->operand[o].data);
        free(r->out[o]);
    }
}

int64_t run_size(const struct run *r, const char *axis)
{
    int a = graph_find_axis(r->graph, axis);
    assert_true(a >= 0);
    return r->size[a];
}

double run_parameter(const struct run *r, const char *name)
{
    for (int p = 0; p < r->graph->parameter_count; p++)
        if (strcmp(r->graph->parameter[p].name, name) == 0)
            return r->parameter[p];
    fail_msg("no parameter %s", name);
    return 0;
}

double run_at(const struct run *r, const char *name, int64_t i, int64_t j)
{
    int o = graph_find_operand(r->graph, name);
    assert_true(o >= 0);
    const coda_tensor *t = &r->operand[o];
    int64_t k = t->rank == 2 ? i * t->stride + j : i;
    if (t->dtype == CODA_I32)
        return ((const int32_t *)t->data)[k];
    float x;
    coda_convert(&x, CODA_F32, (const char *)t->data + (size_t)k * coda_dtype_size(t->dtype), t->dtype, 1);
    return x;
}

/* Doubles of at most 300 terms of size 10 or so, added in another order: 300 * 300 * 10 * 2^-53 < 1e-9 absolute, and the
 * same relative to larger results. */
static const double TOLERANCE = 1e-9;

void run_expect(struct run *r, const char *name, int64_t i, int64_t j, double expected)
{
    int o = graph_find_operand(r->graph, name);
    assert_true(o >= 0);
    const coda_tensor *t = &r->operand[o];
    double got = r->out[o][t->rank == 2 ? i * t->shape[1] + j : i];
    r->checked[o] = true;
    if (!(fabs(got - expected) <= TOLERANCE * (1 + fabs(expected))))
        fail_msg("%s: %s[%lld, %lld] is %.17g; expected %.17g", r->graph->name, name, (long long)i, (long long)j, got,
                 expected);
}
