#include "evaluate_nodes.h"

#include "formats.h"

#include <math.h>
#include <stdlib.h>

#define UNIT 0x1p-24

static const struct numbers *input(const struct evaluator *e, const struct node *n, int i)
{
    return &e->node[n->input[i]];
}

static const struct node *input_node(const struct evaluator *e, const struct node *n, int i)
{
    return &e->trial->graph->node[n->input[i]];
}

static void copy(const struct numbers *from, int64_t i, struct numbers *to, int64_t j)
{
    to->value[j] = from->value[i];
    to->plain[j] = from->plain[i];
    to->bound[j] = from->bound[i];
}

/* ---- broadcasting */

static int64_t run_of(const struct evaluator *e, const struct dim *dim)
{
    return dim->form == DIM_RUNS ? extent_size(&dim->run, e->trial->size) : 1;
}

/* Which element along `from` belongs to element j along `to`? */
static int64_t place(const struct evaluator *e, const struct dim *from, const struct dim *to, int64_t j)
{
    if (from->form == DIM_HALVES || to->form == DIM_HALVES)
        return j;
    return j * run_of(e, to) / run_of(e, from);
}

static bool same_axis(const struct dim *a, const struct dim *b)
{
    return a->axis == b->axis && (a->axis >= 0 || a->constant == b->constant);
}

/* Dimension d of `to`, as an index into x's memory: start + stride x place. */
static const struct dim *partner(const struct shape *from, const struct dim *to, bool *is_row)
{
    for (int d = 0; d < from->rank; d++)
        if (same_axis(&from->dim[d], to)) {
            *is_row = from->rank == 2 && d == 0;
            return &from->dim[d];
        }
    return NULL;
}

static int64_t offset(const struct evaluator *e, const struct numbers *x, const struct shape *from,
                      const struct dim *to, int64_t j)
{
    bool is_row = false;
    const struct dim *dim = partner(from, to, &is_row);
    if (!dim)
        return 0;
    return place(e, dim, to, j) * (is_row ? x->columns : 1);
}

/* Element (i, j) of `to`, in x. */
static int64_t locate(const struct evaluator *e, const struct numbers *x, const struct shape *from,
                      const struct shape *to, int64_t i, int64_t j)
{
    if (to->rank == 0)
        return 0;
    if (to->rank == 1)
        return offset(e, x, from, &to->dim[0], j);
    return offset(e, x, from, &to->dim[0], i) + offset(e, x, from, &to->dim[1], j);
}

void spread(const struct evaluator *e, const struct numbers *x, const struct shape *from, const struct shape *to,
            struct numbers *y)
{
    for (int64_t i = 0; i < y->rows; i++)
        for (int64_t j = 0; j < y->columns; j++)
            copy(x, locate(e, x, from, to, i, j), y, i * y->columns + j);
}

static void elementwise(const struct evaluator *e, const struct node *n, struct numbers *y)
{
    for (int64_t i = 0; i < y->rows; i++)
        for (int64_t j = 0; j < y->columns; j++) {
            double a[3] = {0}, p[3] = {0}, b[3] = {0};
            int64_t k = i * y->columns + j;
            for (int m = 0; m < n->input_count; m++) {
                const struct numbers *x = input(e, n, m);
                int64_t at = locate(e, x, &input_node(e, n, m)->shape, &n->shape, i, j);
                a[m] = x->value[at];
                p[m] = x->plain[at];
                b[m] = x->bound[at];
            }
            y->value[k] = evaluate_primitive(n->op, a);
            y->plain[k] = evaluate_primitive(n->op, p);
            y->bound[k] = primitive_bound(n->op, a, b, y->value[k]);
        }
}

static void cast(const struct evaluator *e, const struct node *n, struct numbers *y)
{
    const struct numbers *x = input(e, n, 0);
    for (int64_t i = 0; i < y->rows * y->columns; i++) {
        double value = x->value[i], bound = x->bound[i];
        y->value[i] = format_round(n->dtype, value);
        y->plain[i] = format_round(n->dtype, x->plain[i]);
        /* A value near the middle of two neighbours may be rounded to either. */
        y->bound[i] = fmax(fabs(format_round(n->dtype, value + bound) - y->value[i]),
                           fabs(format_round(n->dtype, value - bound) - y->value[i]));
    }
}

/* ---- products */

static void transpose(const struct evaluator *e, const struct node *n, struct numbers *y)
{
    const struct numbers *x = input(e, n, 0);
    for (int64_t i = 0; i < y->rows; i++)
        for (int64_t j = 0; j < y->columns; j++)
            copy(x, j * x->columns + i, y, i * y->columns + j);
}

static void stack(const struct evaluator *e, const struct node *n, struct numbers *y)
{
    int64_t at = 0;
    for (int m = 0; m < n->input_count; m++)
        for (int64_t i = 0; i < input(e, n, m)->rows * y->columns; i++)
            copy(input(e, n, m), i, y, at++);
}

/* One pass for each of: value, plain, sum |a| |b|, and the errors that computed operands bring. */
static double dot(const double *a, const double *b, int64_t inner, int64_t columns)
{
    double sum = 0;
    for (int64_t k = 0; k < inner; k++)
        sum += a[k] * b[k * columns];
    return sum;
}

static double dot_bound(const struct numbers *a, int64_t at, const struct numbers *b, int64_t column, int64_t terms)
{
    double sum = 0, carried = 0;
    for (int64_t k = 0; k < a->columns; k++) {
        double x = fabs(a->value[at + k]), y = fabs(b->value[column + k * b->columns]);
        double ex = a->bound[at + k], ey = b->bound[column + k * b->columns];
        sum += x * y;
        carried += x * ey + y * ex + ex * ey;
    }
    return carried + UNIT * (double)(terms + 8) * (sum + carried);
}

static void gemm(const struct evaluator *e, const struct node *n, struct numbers *y)
{
    int64_t terms = 0;
    for (int m = 0; m < n->input_count; m += 2)
        terms += input(e, n, m)->columns;
    for (int64_t i = 0; i < y->rows; i++)
        for (int64_t j = 0; j < y->columns; j++)
            for (int m = 0; m < n->input_count; m += 2) {
                const struct numbers *a = input(e, n, m), *b = input(e, n, m + 1);
                int64_t k = i * y->columns + j, at = i * a->columns;
                y->value[k] += dot(a->value + at, b->value + j, a->columns, b->columns);
                y->plain[k] += dot(a->plain + at, b->plain + j, a->columns, b->columns);
                y->bound[k] += dot_bound(a, at, b, j, terms);
            }
}

/* ---- pairs of columns */

static int64_t half_length(const struct evaluator *e, const struct node *n)
{
    bool adjacent = n->op == OP_EVEN || n->op == OP_ODD || n->op == OP_JOIN;
    return adjacent ? 1 : extent_size(&n->run, e->trial->size);
}

static void split(const struct evaluator *e, const struct node *n, struct numbers *y)
{
    const struct numbers *x = input(e, n, 0);
    int64_t h = half_length(e, n), second = n->op == OP_ODD || n->op == OP_SECOND ? h : 0;
    for (int64_t i = 0; i < y->rows; i++)
        for (int64_t j = 0; j < y->columns; j++)
            copy(x, i * x->columns + j / h * 2 * h + j % h + second, y, i * y->columns + j);
}

static void join(const struct evaluator *e, const struct node *n, struct numbers *y)
{
    int64_t h = half_length(e, n);
    for (int64_t i = 0; i < y->rows; i++)
        for (int64_t j = 0; j < y->columns; j++) {
            int part = j % (2 * h) >= h;
            const struct numbers *x = input(e, n, part);
            const struct shape *from = &input_node(e, n, part)->shape;
            int64_t column = j / (2 * h) * h + j % h;
            /* A part may be a number, one value a row, or one a column of its half. */
            bool of_rows = from->rank == 1 && dim_equal(&from->dim[0], &n->shape.dim[0]);
            int64_t at = from->rank == 2 ? i * x->columns + column : from->rank == 0 ? 0 : of_rows ? i : column;
            copy(x, at, y, i * y->columns + j);
        }
}

static int64_t as_row(struct evaluator *e, double id, int64_t rows)
{
    if (id >= 0 && id < (double)rows)
        return (int64_t)id;
    e->why = "an id is outside its table";
    return -1;
}

static void rotate(const struct evaluator *e, const struct node *n, int64_t first, int64_t second, double c, double s,
                   struct numbers *y)
{
    const struct numbers *x = input(e, n, 0);
    double a = x->value[first], b = x->value[second], pa = x->plain[first], pb = x->plain[second];
    double ea = x->bound[first], eb = x->bound[second];
    y->value[first] = a * c - b * s;
    y->value[second] = b * c + a * s;
    y->plain[first] = pa * c - pb * s;
    y->plain[second] = pb * c + pa * s;
    y->bound[first] = fabs(c) * ea + fabs(s) * eb + 2 * UNIT * (fabs(a * c) + fabs(b * s));
    y->bound[second] = fabs(c) * eb + fabs(s) * ea + 2 * UNIT * (fabs(b * c) + fabs(a * s));
}

static bool rope(struct evaluator *e, const struct node *n, struct numbers *y)
{
    const struct numbers *x = input(e, n, 0), *table = input(e, n, 1), *positions = input(e, n, 2);
    int64_t head = table->columns, half = head / 2;
    int64_t limit = n->rope_cols.form == DIM_ABSENT ? x->columns : dim_size(&n->rope_cols, e->trial->size);
    for (int64_t i = 0; i < y->rows; i++) {
        int64_t position = as_row(e, positions->value[i], table->rows);
        if (position < 0)
            return false;
        for (int64_t j = limit; j < y->columns; j++)
            copy(x, i * x->columns + j, y, i * y->columns + j);
        for (int64_t j = 0; j < limit / 2; j++) {
            int64_t pair = j % half, start = i * y->columns + j / half * head;
            int64_t first = start + (n->rope_pairs ? 2 * pair : pair), second = first + (n->rope_pairs ? 1 : half);
            double c = table->value[position * head + pair], s = table->value[position * head + half + pair];
            rotate(e, n, first, second, c, n->rope_inverse ? -s : s, y);
        }
    }
    return true;
}

/* ---- reductions */

struct run {
    int64_t start, step, count;
};

static void add_up(const struct numbers *x, struct run run, struct numbers *y, int64_t k)
{
    double magnitude = 0;
    for (int64_t i = 0; i < run.count; i++) {
        int64_t at = run.start + i * run.step;
        y->value[k] += x->value[at];
        y->plain[k] += x->plain[at];
        y->bound[k] += x->bound[at];
        magnitude += fabs(x->value[at]);
    }
    y->bound[k] += UNIT * (double)run.count * magnitude;
}

static void largest(const struct numbers *x, struct run run, bool absolute, struct numbers *y, int64_t k)
{
    y->value[k] = y->plain[k] = absolute ? 0 : -INFINITY;
    for (int64_t i = 0; i < run.count; i++) {
        int64_t at = run.start + i * run.step;
        double value = absolute ? fabs(x->value[at]) : x->value[at];
        double plain = absolute ? fabs(x->plain[at]) : x->plain[at];
        y->value[k] = isnan(value) || value > y->value[k] ? value : y->value[k];
        y->plain[k] = isnan(plain) || plain > y->plain[k] ? plain : y->plain[k];
        y->bound[k] = fmax(y->bound[k], x->bound[at]);
    }
}

static double log_sum(const double *x, struct run run)
{
    double top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < run.count; i++)
        top = fmax(top, x[run.start + i * run.step]);
    if (isinf(top))
        return top;
    for (int64_t i = 0; i < run.count; i++)
        sum += exp(x[run.start + i * run.step] - top);
    return top + log(sum);
}

static void log_sum_exp(const struct numbers *x, struct run run, struct numbers *y, int64_t k)
{
    y->value[k] = log_sum(x->value, run);
    y->plain[k] = log_sum(x->plain, run);
    double carried = 0;
    for (int64_t i = 0; i < run.count; i++) {
        int64_t at = run.start + i * run.step;
        double weight = exp(x->value[at] - y->value[k]);
        /* An online sum rescales: every element is off by the roundings of its distance to the largest. */
        carried += weight * (x->bound[at] + UNIT * fabs(x->value[at] - y->value[k]));
    }
    y->bound[k] = carried + UNIT * ((double)run.count + 16 + 2 * fabs(y->value[k]));
}

static void reduce(const struct evaluator *e, const struct node *n, struct numbers *y)
{
    const struct numbers *x = input(e, n, 0);
    const struct shape *from = &input_node(e, n, 0)->shape;
    int d = from->rank - 1;
    for (int i = 0; i < from->rank; i++)
        if (n->axis >= 0 ? from->dim[i].axis == n->axis : from->dim[i].form == DIM_RUNS)
            d = i;
    bool rows = from->rank == 2 && d == 0;
    int64_t length = rows ? x->rows : x->columns;
    int64_t run = extent_size(&n->run, e->trial->size) / run_of(e, &from->dim[d]);
    if (n->run.axis < 0 && n->run.value == 0)
        run = length;
    int64_t groups = (length + run - 1) / run, others = rows ? x->columns : x->rows;
    for (int64_t g = 0; g < groups; g++)
        for (int64_t o = 0; o < others; o++) {
            int64_t count = g * run + run > length ? length - g * run : run;
            struct run part = {rows ? g * run * x->columns + o : o * x->columns + g * run, rows ? x->columns : 1,
                               count};
            int64_t k = rows ? g * others + o : o * groups + g;
            if (n->op == OP_SUM)
                add_up(x, part, y, k);
            else if (n->op == OP_LOGSUMEXP)
                log_sum_exp(x, part, y, k);
            else
                largest(x, part, n->op == OP_ABSMAX, y, k);
        }
}

/* ---- by index */

static bool by_index(struct evaluator *e, const struct node *n, struct numbers *y)
{
    const struct numbers *x = input(e, n, 0);
    for (int64_t i = 0; i < y->rows; i++)
        for (int64_t j = 0; j < y->columns; j++) {
            int64_t k = i * y->columns + j;
            if (n->op == OP_INDEX)
                y->value[k] = y->plain[k] = (double)j;
            else if (n->op == OP_REPEAT)
                copy(x, j % x->columns, y, k);
            else if (n->op == OP_ONEHOT)
                y->value[k] = y->plain[k] = x->value[i] == (double)j;
            else if (n->op == OP_PICK) {
                double id = input(e, n, 1)->value[j];
                if (id >= 0 && id < (double)x->columns)
                    copy(x, j * x->columns + (int64_t)id, y, k);
            } else {
                int64_t row = as_row(e, input(e, n, 1)->value[i], x->rows);
                if (row < 0)
                    return false;
                copy(x, row * x->columns + j, y, k);
            }
        }
    return true;
}

bool evaluate_operation(struct evaluator *e, const struct node *n, struct numbers *y)
{
    switch (n->op) {
    case OP_TRANSPOSE:
        transpose(e, n, y);
        return true;
    case OP_STACK:
        stack(e, n, y);
        return true;
    case OP_GEMM:
        gemm(e, n, y);
        return true;
    case OP_CAST:
        cast(e, n, y);
        return true;
    case OP_BROADCAST:
        spread(e, input(e, n, 0), &input_node(e, n, 0)->shape, &n->shape, y);
        return true;
    case OP_EVEN:
    case OP_ODD:
    case OP_FIRST:
    case OP_SECOND:
        split(e, n, y);
        return true;
    case OP_JOIN:
    case OP_JOIN_HALVES:
        join(e, n, y);
        return true;
    case OP_ROPE:
        return rope(e, n, y);
    case OP_INDEX:
    case OP_REPEAT:
    case OP_PICK:
    case OP_ONEHOT:
    case OP_GATHER:
        return by_index(e, n, y);
    default:
        if (op_is_reduction(n->op))
            reduce(e, n, y);
        else
            elementwise(e, n, y);
        return true;
    }
}
