#include "ref/values.h"
#include "ref/formats.h"

#include <stdlib.h>

/* Sizes as a matrix: a vector is one row. */
static void matrix_size(const struct shape *shape, const int64_t *size, int64_t *rows, int64_t *columns)
{
    *rows = shape->rank == 2 ? dim_size(&shape->dim[0], size) : 1;
    *columns = shape->rank == 0 ? 1 : dim_size(&shape->dim[shape->rank - 1], size);
}

coda_status value_create(const struct shape *shape, const int64_t *size, struct value *value, coda_error *error)
{
    struct value made = {.shape = *shape};
    int64_t count, bytes;
    matrix_size(shape, size, &made.rows, &made.columns);
    if (made.rows <= 0 || made.columns <= 0)
        return fail(error, CODA_INVALID,
                    "a value of %lld x %lld elements is empty; every axis needs a size of at least 1",
                    (long long)made.rows, (long long)made.columns);
    if (__builtin_mul_overflow(made.rows, made.columns, &count) ||
        __builtin_mul_overflow(count, (int64_t)sizeof(double), &bytes))
        return fail(error, CODA_MEMORY, "a value of %lld x %lld elements does not fit in memory", (long long)made.rows,
                    (long long)made.columns);
    made.data = malloc((size_t)bytes);
    if (made.data == NULL)
        return fail_memory(error, "a value of the reference", (size_t)bytes);
    *value = made;
    return CODA_OK;
}

void value_release(struct value *value)
{
    free(value->data);
    value->data = NULL;
}

void value_load(struct value *value, const coda_tensor *tensor)
{
    size_t width = coda_dtype_size(tensor->dtype);
    int64_t stride = tensor->stride != 0 ? tensor->stride : value->columns;
    for (int64_t i = 0; i < value->rows; i++) {
        const char *row = (const char *)tensor->data + (size_t)(i * stride) * width;
        for (int64_t j = 0; j < value->columns; j++)
            value->data[i * value->columns + j] = load_element(tensor->dtype, row + (size_t)j * width);
    }
}

void value_store(const struct value *value, const coda_tensor *tensor)
{
    size_t width = coda_dtype_size(tensor->dtype);
    int64_t stride = tensor->stride != 0 ? tensor->stride : value->columns;
    for (int64_t i = 0; i < value->rows; i++) {
        char *row = (char *)tensor->data + (size_t)(i * stride) * width;
        for (int64_t j = 0; j < value->columns; j++)
            store_element(tensor->dtype, row + (size_t)j * width, value->data[i * value->columns + j]);
    }
}

/* The first column of the axis that element i stands for. */
static int64_t column_of(const struct dim *dim, int64_t run, int64_t i)
{
    if (dim->form == DIM_RUNS)
        return i * run;
    if (dim->form == DIM_HALVES)
        return i / run * 2 * run + i % run;
    return i;
}

/* The element that stands for a column of the axis. */
static int64_t element_of(const struct dim *dim, int64_t run, int64_t column)
{
    if (dim->form == DIM_RUNS)
        return column / run;
    if (dim->form == DIM_HALVES)
        return column / (2 * run) * run + column % run;
    return column;
}

static bool is_half(const struct dim *dim, int64_t run)
{
    return dim->form == DIM_HALVES || (dim->form == DIM_RUNS && run == 2);
}

static bool same_axis(const struct dim *a, const struct dim *b)
{
    return a->axis == b->axis && (a->axis >= 0 || a->constant == b->constant);
}

/* offset[i] = stride * (element of `from` at place i of `to`). */
static coda_status map_dim(const struct dim *from, const struct dim *to, const int64_t *size, int64_t stride,
                           int64_t *offset, coda_error *error)
{
    int64_t from_size = dim_size(from, size), to_size = dim_size(to, size);
    int64_t from_run = extent_size(&from->run, size), to_run = extent_size(&to->run, size);
    /* Values of pairs and of halves meet by their index, whichever columns they came from. */
    bool by_index = dim_equal(from, to) || (is_half(from, from_run) && is_half(to, to_run));
    bool sized = (from->form == DIM_WHOLE || from_run > 0) && (to->form == DIM_WHOLE || to_run > 0);
    if (!sized || from_size > to_size || (by_index && from_size != to_size))
        return fail(error, CODA_INVALID, "%lld elements of an axis cannot be read at %lld places of it",
                    (long long)from_size, (long long)to_size);
    for (int64_t i = 0; i < to_size; i++) {
        int64_t element = by_index ? i : element_of(from, from_run, column_of(to, to_run, i));
        if (element >= from_size)
            return fail(error, CODA_INVALID, "element %lld of an axis is read, but there are %lld", (long long)element,
                        (long long)from_size);
        offset[i] = stride * element;
    }
    return CODA_OK;
}

/* The dim of `to` that dim d of `from` joins, or -1: the same place where both are matrices, else by name. */
static int joined_dim(const struct shape *from, int d, const struct shape *to)
{
    if (from->rank == 2 && to->rank == 2)
        return same_axis(&from->dim[d], &to->dim[d]) ? d : -1;
    for (int t = 0; t < to->rank; t++)
        if (same_axis(&from->dim[d], &to->dim[t]))
            return t;
    return -1;
}

coda_status reading_create(const struct shape *from, const struct shape *to, const int64_t *size,
                           struct reading *reading, coda_error *error)
{
    struct reading made = {0};
    coda_status status = CODA_OK;
    int64_t from_rows, from_columns;
    matrix_size(from, size, &from_rows, &from_columns);
    matrix_size(to, size, &made.rows, &made.columns);
    made.row = calloc((size_t)made.rows + (size_t)made.columns, sizeof *made.row);
    if (made.row == NULL)
        return fail_memory(error, "an index of the reference",
                           ((size_t)made.rows + (size_t)made.columns) * sizeof *made.row);
    made.column = made.row + made.rows;
    for (int d = 0; d < from->rank && status == CODA_OK; d++) {
        int t = joined_dim(from, d, to);
        int64_t stride = d == from->rank - 1 ? 1 : from_columns;
        if (t >= 0)
            status =
                map_dim(&from->dim[d], &to->dim[t], size, stride, t == to->rank - 1 ? made.column : made.row, error);
        else if (dim_size(&from->dim[d], size) != 1)
            status = fail(error, CODA_INVALID, "a value has an axis of %lld elements that its use does not have",
                          (long long)dim_size(&from->dim[d], size));
    }
    if (status == CODA_OK)
        *reading = made;
    else
        reading_release(&made);
    return status;
}

void reading_release(struct reading *reading)
{
    free(reading->row);
    reading->row = reading->column = NULL;
}
