/* Pairs of columns: splitting, joining, rotating. */
#include "ref/values.h"

/* The column of the wide value that element i of the first (or second) half is. */
static int64_t wide_column(enum op op, int64_t h, int64_t i)
{
    switch (op) {
    case OP_EVEN:
        return 2 * i;
    case OP_ODD:
        return 2 * i + 1;
    case OP_FIRST:
        return i / h * 2 * h + i % h;
    default:
        return i / h * 2 * h + i % h + h;
    }
}

static coda_status check_halves(const struct evaluation *e, const struct node *node, int64_t h, int64_t narrow,
                                int64_t wide)
{
    if (h > 0 && narrow % h == 0 && wide == 2 * narrow)
        return CODA_OK;
    return fail(e->error, CODA_INVALID, "%s: %lld columns are no whole number of runs of 2 x %lld", op_name(node->op),
                (long long)wide, (long long)h);
}

coda_status ref_split(const struct evaluation *e, const struct node *node, struct value *y)
{
    const struct value *x = input_value(e, node, 0);
    bool adjacent = node->op == OP_EVEN || node->op == OP_ODD;
    int64_t h = adjacent ? 1 : extent_size(&node->run, e->launch->size);
    coda_status status = check_halves(e, node, h, y->columns, x->columns);
    if (status != CODA_OK)
        return status;
    for (int64_t i = 0; i < y->rows; i++)
        for (int64_t j = 0; j < y->columns; j++)
            y->data[i * y->columns + j] = x->data[i * x->columns + wide_column(node->op, h, j)];
    return CODA_OK;
}

/* Half k of the columns, read as elementwise operations read an operand: a number or a row value is repeated. */
static coda_status join_half(const struct evaluation *e, const struct node *node, int k, int64_t h, struct value *y)
{
    static const enum op half[2][2] = {{OP_EVEN, OP_ODD}, {OP_FIRST, OP_SECOND}};
    const struct value *x = input_value(e, node, k);
    enum op op = half[node->op == OP_JOIN_HALVES][k];
    struct shape narrow = node->shape;
    struct reading reading;
    narrow.dim[1].form = node->op == OP_JOIN ? DIM_RUNS : DIM_HALVES;
    narrow.dim[1].run = node->op == OP_JOIN ? (struct extent){-1, 2} : node->run;
    coda_status status = reading_create(&x->shape, &narrow, e->launch->size, &reading, e->error);
    if (status != CODA_OK)
        return status;
    status = check_halves(e, node, h, reading.columns, y->columns);
    for (int64_t i = 0; i < y->rows && status == CODA_OK; i++)
        for (int64_t j = 0; j < reading.columns; j++)
            y->data[i * y->columns + wide_column(op, h, j)] = x->data[reading.row[i] + reading.column[j]];
    reading_release(&reading);
    return status;
}

coda_status ref_join(const struct evaluation *e, const struct node *node, struct value *y)
{
    int64_t h = node->op == OP_JOIN ? 1 : extent_size(&node->run, e->launch->size);
    coda_status status = join_half(e, node, 0, h, y);
    return status == CODA_OK ? join_half(e, node, 1, h, y) : status;
}

/* Rotates one head: pair i by the angle whose cosine is angles[i] and sine angles[width / 2 + i]. */
static void rotate_head(const struct node *node, const double *angles, int64_t width, const double *x, double *y)
{
    for (int64_t i = 0; i < width / 2; i++) {
        int64_t first = node->rope_pairs ? 2 * i : i;
        int64_t second = node->rope_pairs ? 2 * i + 1 : i + width / 2;
        double c = angles[i];
        double s = node->rope_inverse ? -angles[width / 2 + i] : angles[width / 2 + i];
        y[first] = x[first] * c - x[second] * s;
        y[second] = x[second] * c + x[first] * s;
    }
}

coda_status ref_rope(const struct evaluation *e, const struct node *node, struct value *y)
{
    const struct value *x = input_value(e, node, 0), *table = input_value(e, node, 1);
    const struct value *position = input_value(e, node, 2);
    int64_t width = table->columns, rotated = x->columns;
    if (node->rope_cols.form != DIM_ABSENT)
        rotated = dim_size(&node->rope_cols, e->launch->size);
    if (width % 2 != 0 || rotated % width != 0 || rotated > x->columns)
        return fail(e->error, CODA_INVALID,
                    "rope: %lld of %lld columns are no whole number of heads of %lld (even) columns",
                    (long long)rotated, (long long)x->columns, (long long)width);
    for (int64_t i = 0; i < x->rows; i++) {
        int64_t p = as_index(position->data[position->columns == 1 ? 0 : i], table->rows);
        if (p < 0)
            return fail_index(e, node, 2, i, 1);
        const double *from = x->data + i * x->columns;
        double *to = y->data + i * y->columns;
        for (int64_t j = 0; j < rotated; j += width)
            rotate_head(node, table->data + p * width, width, from + j, to + j);
        for (int64_t j = rotated; j < x->columns; j++)
            to[j] = from[j];
    }
    return CODA_OK;
}
