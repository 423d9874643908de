/* Elementwise primitives, each as its row of primitives.def says. */
#include "ref/formats.h"
#include "ref/values.h"

#include <math.h>
#include <stdlib.h>

static double ref_sigmoid(double a)
{
    return 1 / (1 + exp(-a));
}

/* 0.5 a (1 + erf(a / sqrt(2))), without the cancellation that it has at large negative a. */
static double ref_gelu(double a)
{
    return 0.5 * a * erfc(-a * 0.70710678118654752440);
}

/* 0.5 a (1 + tanh(z)) = a sigmoid(2 z), z = sqrt(2 / pi) (a + 0.044715 a^3). */
static double ref_gelu_tanh(double a)
{
    return a * ref_sigmoid(1.59576912160573071176 * (a + 0.044715 * a * a * a));
}

/* A NaN in either argument is the result: fmax and fmin would drop it. */
static double ref_max(double a, double b)
{
    return isnan(a) || a > b ? a : b;
}

static double ref_min(double a, double b)
{
    return isnan(a) || a < b ? a : b;
}

typedef void primitive(int64_t count, const double *const in[3], double *y);

#define PRIMITIVE(op, name, arity, meaning, cuda, da, db, dc, cost)                                                    \
    static void primitive_##op(int64_t count, const double *const in[3], double *y)                                    \
    {                                                                                                                  \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            const double a = in[0][i], b = in[1][i], c = in[2][i];                                                     \
            (void)a, (void)b, (void)c;                                                                                 \
            y[i] = meaning;                                                                                            \
        }                                                                                                              \
    }
#include "ir/primitives.def"
#undef PRIMITIVE

static primitive *const primitives[OP_COUNT] = {
#define PRIMITIVE(op, name, arity, meaning, cuda, da, db, dc, cost) [OP_##op] = primitive_##op,
#include "ir/primitives.def"
#undef PRIMITIVE
};

/* Row i of x as the joined shape sees it. */
static void gather_row(const struct value *x, const struct reading *reading, int64_t i, double *row)
{
    for (int64_t j = 0; j < reading->columns; j++)
        row[j] = x->data[reading->row[i] + reading->column[j]];
}

coda_status ref_elementwise(const struct evaluation *e, const struct node *node, struct value *y)
{
    struct reading reading[3] = {{0}};
    coda_status status = CODA_OK;
    double *rows = calloc((size_t)y->columns, 3 * sizeof *rows);
    if (rows == NULL)
        return fail_memory(e->error, "rows of an elementwise operation", (size_t)y->columns * 3 * sizeof *rows);
    const double *const in[3] = {rows, rows + y->columns, rows + 2 * y->columns};
    for (int k = 0; k < node->input_count && status == CODA_OK; k++)
        status = reading_create(&input_value(e, node, k)->shape, &node->shape, e->launch->size, &reading[k], e->error);
    for (int64_t i = 0; i < y->rows && status == CODA_OK; i++) {
        for (int k = 0; k < node->input_count; k++)
            gather_row(input_value(e, node, k), &reading[k], i, rows + k * y->columns);
        primitives[node->op](y->columns, in, y->data + i * y->columns);
    }
    for (int k = 0; k < node->input_count; k++)
        reading_release(&reading[k]);
    free(rows);
    return status;
}

coda_status ref_broadcast(const struct evaluation *e, const struct node *node, struct value *y)
{
    const struct value *x = input_value(e, node, 0);
    struct reading reading;
    coda_status status = reading_create(&x->shape, &node->shape, e->launch->size, &reading, e->error);
    if (status != CODA_OK)
        return status;
    for (int64_t i = 0; i < y->rows; i++)
        gather_row(x, &reading, i, y->data + i * y->columns);
    reading_release(&reading);
    return CODA_OK;
}

coda_status ref_cast(const struct evaluation *e, const struct node *node, struct value *y)
{
    const struct value *x = input_value(e, node, 0);
    for (int64_t i = 0; i < y->rows * y->columns; i++)
        y->data[i] = round_to(node->dtype, x->data[i]);
    return CODA_OK;
}
