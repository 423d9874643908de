/* Reductions over runs and whole axes. A reduction is the adjoint of a broadcast: element (i, j) of x goes to the place
 * of y from which an elementwise operation at (i, j) would read it. */
#include "ref/values.h"

#include <math.h>
#include <stdlib.h>

static double add(double so_far, double x)
{
    return so_far + x;
}

/* A NaN is kept: fmax would drop it. */
static double greater(double so_far, double x)
{
    return isnan(so_far) || so_far > x ? so_far : x;
}

static double greater_magnitude(double so_far, double x)
{
    return greater(so_far, fabs(x));
}

static void fold(const struct value *x, const struct reading *place, double (*combine)(double, double), double start,
                 struct value *y)
{
    for (int64_t i = 0; i < y->rows * y->columns; i++)
        y->data[i] = start;
    for (int64_t i = 0; i < x->rows; i++)
        for (int64_t j = 0; j < x->columns; j++) {
            double *to = &y->data[place->row[i] + place->column[j]];
            *to = combine(*to, x->data[i * x->columns + j]);
        }
}

/* log sum exp(x) = m + log sum exp(x - m), m the maximum; an infinite or NaN maximum is the result itself. */
static coda_status logsumexp(const struct value *x, const struct reading *place, struct value *y, coda_error *error)
{
    int64_t count = y->rows * y->columns;
    double *sum = calloc((size_t)count, sizeof *sum);
    if (sum == NULL)
        return fail_memory(error, "sums of logsumexp", (size_t)count * sizeof *sum);
    fold(x, place, greater, -INFINITY, y);
    for (int64_t i = 0; i < x->rows; i++)
        for (int64_t j = 0; j < x->columns; j++) {
            int64_t at = place->row[i] + place->column[j];
            sum[at] += exp(x->data[i * x->columns + j] - y->data[at]);
        }
    for (int64_t i = 0; i < count; i++)
        if (isfinite(y->data[i]))
            y->data[i] += log(sum[i]);
    free(sum);
    return CODA_OK;
}

coda_status ref_reduce(const struct evaluation *e, const struct node *node, struct value *y)
{
    const struct value *x = input_value(e, node, 0);
    struct reading place;
    coda_status status = reading_create(&node->shape, &x->shape, e->launch->size, &place, e->error);
    if (status != CODA_OK)
        return status;
    if (node->op == OP_SUM)
        fold(x, &place, add, 0, y);
    else if (node->op == OP_REDUCE_MAX)
        fold(x, &place, greater, -INFINITY, y);
    else if (node->op == OP_ABSMAX)
        fold(x, &place, greater_magnitude, 0, y);
    else
        status = logsumexp(x, &place, y, e->error);
    reading_release(&place);
    return status;
}
