/* Matrix products, and the operands that only products take. */
#include "ref/values.h"
#include "runtime/counts.h"

#include <string.h>

enum { BLOCK = 256 }; /* a square block of doubles fits the second-level cache */

coda_status ref_transpose(const struct evaluation *e, const struct node *node, struct value *y)
{
    const struct value *x = input_value(e, node, 0);
    if (x->shape.rank < 2) {
        memcpy(y->data, x->data, (size_t)x->columns * sizeof *y->data);
        return CODA_OK;
    }
    for (int64_t i = 0; i < x->rows; i++)
        for (int64_t j = 0; j < x->columns; j++)
            y->data[j * y->columns + i] = x->data[i * x->columns + j];
    return CODA_OK;
}

coda_status ref_stack(const struct evaluation *e, const struct node *node, struct value *y)
{
    int64_t at = 0, room = y->rows * y->columns;
    for (int k = 0; k < node->input_count; k++) {
        const struct value *part = input_value(e, node, k);
        int64_t count = part->rows * part->columns;
        if (part->columns != input_value(e, node, 0)->columns || count > room - at)
            return fail(e->error, CODA_INVALID,
                        "stack: part %d of %lld x %lld elements does not fit a stack of %lld x %lld", k + 1,
                        (long long)part->rows, (long long)part->columns, (long long)y->rows, (long long)y->columns);
        memcpy(y->data + at, part->data, (size_t)count * sizeof *y->data);
        at += count;
    }
    if (at != room)
        return fail(e->error, CODA_INVALID, "stack: the parts have %lld elements, the stack has %lld", (long long)at,
                    (long long)room);
    return CODA_OK;
}

/* sum[j] += factor[k] * b[k, j] for k upwards, four rows of b at a time so that sum is read and written a quarter as
 * often. */
static void add_rows(const double *restrict factor, const double *restrict b, int64_t stride, int64_t depth,
                     int64_t width, double *restrict sum)
{
    int64_t k = 0;
    for (; k + 4 <= depth; k += 4) {
        const double *b0 = b + k * stride, *b1 = b0 + stride, *b2 = b1 + stride, *b3 = b2 + stride;
        for (int64_t j = 0; j < width; j++)
            sum[j] = sum[j] + factor[k] * b0[j] + factor[k + 1] * b1[j] + factor[k + 2] * b2[j] + factor[k + 3] * b3[j];
    }
    for (; k < depth; k++)
        for (int64_t j = 0; j < width; j++)
            sum[j] += factor[k] * b[k * stride + j];
}

/* y[i, j] += sum over k of a[i, k] b[k, j], k upwards whatever the blocks. */
static void add_product(const struct value *a, const struct value *b, struct value *y)
{
    for (int64_t j = 0; j < y->columns; j += BLOCK)
        for (int64_t k = 0; k < a->columns; k += BLOCK)
            for (int64_t i = 0; i < y->rows; i++)
                add_rows(a->data + i * a->columns + k, b->data + k * b->columns + j, b->columns,
                         minimum(BLOCK, a->columns - k), minimum(BLOCK, y->columns - j), y->data + i * y->columns + j);
}

coda_status ref_gemm(const struct evaluation *e, const struct node *node, struct value *y)
{
    memset(y->data, 0, (size_t)(y->rows * y->columns) * sizeof *y->data);
    for (int k = 0; k + 1 < node->input_count; k += 2) {
        const struct value *a = input_value(e, node, k), *b = input_value(e, node, k + 1);
        if (a->columns != b->rows || a->rows != y->rows || b->columns != y->columns)
            return fail(e->error, CODA_INVALID, "product: %lld x %lld @ %lld x %lld is not %lld x %lld",
                        (long long)a->rows, (long long)a->columns, (long long)b->rows, (long long)b->columns,
                        (long long)y->rows, (long long)y->columns);
        add_product(a, b, y);
    }
    return CODA_OK;
}
