/* Values by index: index, repeat, pick, onehot, gather. */
#include "ref/values.h"

#include <math.h>
#include <string.h>

int64_t as_index(double x, int64_t limit)
{
    return x >= 0 && x < (double)limit ? (int64_t)x : -1;
}

static const char *value_name(const struct evaluation *e, const struct node *node, int input, const char *otherwise)
{
    const struct node *x = &e->graph->node[node->input[input]];
    if (x->op == OP_IN)
        return e->graph->operand[x->index].name;
    return x->name != NULL ? x->name : otherwise;
}

coda_status fail_index(const struct evaluation *e, const struct node *node, int ids, int64_t row, int table)
{
    const struct value *id = input_value(e, node, ids);
    int64_t rows = input_value(e, node, table)->rows;
    return fail(e->error, CODA_INVALID,
                "%s: row %lld of `%s` is %.17g, but `%s` has %lld rows; give ids from 0 to %lld, or a larger `%s`",
                op_name(node->op), (long long)row, value_name(e, node, ids, "ids"),
                id->data[id->columns == 1 ? 0 : row], value_name(e, node, table, "table"), (long long)rows,
                (long long)rows - 1, value_name(e, node, table, "table"));
}

coda_status ref_index(const struct evaluation *e, const struct node *node, struct value *y)
{
    (void)e, (void)node;
    for (int64_t j = 0; j < y->columns; j++)
        y->data[j] = (double)j;
    return CODA_OK;
}

coda_status ref_repeat(const struct evaluation *e, const struct node *node, struct value *y)
{
    const struct value *x = input_value(e, node, 0);
    for (int64_t i = 0; i < y->rows; i++)
        for (int64_t j = 0; j < y->columns; j++)
            y->data[i * y->columns + j] = x->data[i * x->columns + j % x->columns];
    return CODA_OK;
}

/* The id of row i; a scalar serves every row. */
static double id_of(const struct value *ids, int64_t i)
{
    return ids->data[ids->columns == 1 ? 0 : i];
}

coda_status ref_pick(const struct evaluation *e, const struct node *node, struct value *y)
{
    const struct value *x = input_value(e, node, 0), *ids = input_value(e, node, 1);
    for (int64_t i = 0; i < x->rows; i++) {
        int64_t column = as_index(id_of(ids, i), x->columns);
        y->data[i] = column < 0 ? 0 : x->data[i * x->columns + column];
    }
    return CODA_OK;
}

coda_status ref_onehot(const struct evaluation *e, const struct node *node, struct value *y)
{
    const struct value *ids = input_value(e, node, 0);
    for (int64_t i = 0; i < y->rows; i++)
        for (int64_t j = 0; j < y->columns; j++)
            y->data[i * y->columns + j] = id_of(ids, i) == (double)j;
    return CODA_OK;
}

coda_status ref_gather(const struct evaluation *e, const struct node *node, struct value *y)
{
    const struct value *table = input_value(e, node, 0), *ids = input_value(e, node, 1);
    for (int64_t i = 0; i < y->rows; i++) {
        int64_t row = as_index(id_of(ids, i), table->rows);
        if (row < 0)
            return fail_index(e, node, 1, i, 0);
        memcpy(y->data + i * y->columns, table->data + row * table->columns, (size_t)y->columns * sizeof *y->data);
    }
    return CODA_OK;
}
