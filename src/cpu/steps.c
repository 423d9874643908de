/* Steps on registers: each gives an inner function of the instruction set the rows it works on. */
#include "cpu/frame.h"

#include <math.h>
#include <string.h>

static int rows_of(const struct frame *f, const struct step *step)
{
    if (step->site == SITE_TILE)
        return f->count;
    return step->site == SITE_BAND ? (f->rows + step->row_run - 1) / step->row_run : 1;
}

static int width_of(const struct frame *f, const struct step *step)
{
    return step->site == SITE_ROW ? f->rows : f->width[step->form];
}

static void take_rows(const struct frame *f, const struct bound_step *s, struct rows *r)
{
    const struct step *step = s->step;
    r->rows = rows_of(f, step);
    r->width = width_of(f, step);
    r->out = place_of(f, &s->result);
    r->out_stride = s->result.stride;
    for (int k = 0; k < step->input_count; k++) {
        r->in[k] = place_of(f, &s->input[k]);
        r->in_stride[k] = s->input[k].stride;
    }
}

void cpu_step_rows(const struct frame *f, const struct bound_step *s)
{
    struct rows r;
    take_rows(f, s, &r);
    s->step->rows(&r);
}

void cpu_step_runs(const struct frame *f, const struct bound_step *s)
{
    struct rows r;
    take_rows(f, s, &r);
    s->step->runs(&r, s->step->length);
}

/* Reads one value a run, writes one a column. */
void cpu_step_expand(const struct frame *f, const struct bound_step *s)
{
    cpu_step_runs(f, s);
}

/* ---------------------------------------------------------------- reductions along rows */

static float first_value(enum reduction reduction)
{
    return reduction == REDUCE_MAX ? -INFINITY : 0;
}

static void fill(float *to, int count, float x)
{
    for (int j = 0; j < count; j++)
        to[j] = x;
}

/* The block of rows lies in one band: block_rows divides every run of rows. */
void cpu_step_accumulate(const struct frame *f, const struct bound_step *s)
{
    const struct step *step = s->step;
    struct rows r;
    take_rows(f, s, &r);
    float *top = step->reduction == REDUCE_LOGSUMEXP ? place_of(f, &s->input[1]) : NULL;
    if (f->first % step->row_run == 0) {
        int width = (r.width + ROOM - 1) / ROOM * ROOM;
        fill(r.out, width, first_value(step->reduction));
        if (top)
            fill(top, width, -INFINITY);
    }
    f->binding->plan->isa->accumulate[step->reduction](&r, top);
}

void cpu_step_finish(const struct frame *f, const struct bound_step *s)
{
    struct rows r;
    take_rows(f, s, &r);
    for (int i = 0; i < r.rows; i++)
        f->binding->plan->isa->finish_logsumexp(r.out + i * r.out_stride, r.in[0] + i * r.in_stride[0], r.width);
}

/* ---------------------------------------------------------------- by index */

static const coda_tensor *operand_of(const struct frame *f, int operand)
{
    return &f->binding->launch->operand[operand];
}

/* The index that row i of the block has. */
static int64_t id_of(const struct frame *f, const struct step *step, int i)
{
    return ((const int32_t *)operand_of(f, step->ids)->data)[f->row + f->first + i];
}

void cpu_step_index(const struct frame *f, const struct bound_step *s)
{
    struct rows r;
    take_rows(f, s, &r);
    int64_t start = s->step->site == SITE_ROW ? f->row : f->column;
    for (int j = 0; j < r.width; j++)
        r.out[j] = (float)(start + j);
}

void cpu_step_onehot(const struct frame *f, const struct bound_step *s)
{
    struct rows r;
    take_rows(f, s, &r);
    for (int i = 0; i < r.rows; i++) {
        int64_t column = id_of(f, s->step, i) - f->column;
        float *out = r.out + i * r.out_stride;
        memset(out, 0, (size_t)r.width * sizeof *out);
        if (column >= 0 && column < r.width)
            out[column] = 1;
    }
}

static int64_t row_stride(const coda_tensor *t)
{
    return t->stride ? t->stride : t->shape[1];
}

static void *element_of(const coda_tensor *t, int64_t row, int64_t column)
{
    return (char *)t->data + (row * row_stride(t) + column) * (int64_t)coda_dtype_size(t->dtype);
}

void cpu_step_gather(const struct frame *f, const struct bound_step *s)
{
    const coda_tensor *table = operand_of(f, s->step->operand);
    load_function *load = f->binding->plan->isa->load[table->dtype];
    struct rows r;
    take_rows(f, s, &r);
    for (int i = 0; i < r.rows; i++)
        load(r.out + i * r.out_stride, element_of(table, id_of(f, s->step, i), f->column), r.width);
}

/* The tile that holds the column writes the row's value; the first tile of a row writes 0 where no tile holds it. */
void cpu_step_pick(const struct frame *f, const struct bound_step *s)
{
    const struct step *step = s->step;
    const struct instruction_set *isa = f->binding->plan->isa;
    const coda_tensor *out = operand_of(f, step->operand);
    const int64_t columns = f->binding->launch->size[f->binding->plan->form->column_axis];
    const float *in = place_of(f, &s->input[0]);
    for (int i = 0; i < f->count; i++) {
        int64_t id = id_of(f, step, i), column = id - f->column;
        bool here = column >= 0 && column < f->columns, nowhere = id < 0 || id >= columns;
        if (!here && !(nowhere && f->column == 0))
            continue;
        float x[ROOM] = {here ? in[i * s->input[0].stride + column] : 0};
        store_function *store = step->flag ? isa->add[out->dtype] : isa->store[out->dtype];
        store((char *)out->data + (f->row + f->first + i) * (int64_t)coda_dtype_size(out->dtype), x, 1);
    }
}

/* One element a row, where its id is a column. */
void cpu_step_patch(const struct frame *f, const struct bound_step *s)
{
    const coda_tensor *out = operand_of(f, s->step->operand);
    const int32_t *id = (const int32_t *)operand_of(f, s->step->ids)->data + f->row;
    const float *in = place_of(f, &s->input[0]);
    for (int i = 0; i < f->rows; i++) {
        float x[ROOM] = {in[i]};
        if (id[i] >= 0 && id[i] < out->shape[1])
            f->binding->plan->isa->store[out->dtype](element_of(out, f->row + i, id[i]), x, 1);
    }
}

/* ---------------------------------------------------------------- rotations */

/* A row of the table in f32: in place where it is. */
static const float *angles_of(const struct frame *f, const coda_tensor *table, int64_t row)
{
    const void *at = element_of(table, row, 0);
    if (table->dtype == CODA_F32)
        return at;
    f->binding->plan->isa->load[table->dtype](f->scratch, at, table->shape[1]);
    return f->scratch;
}

int cpu_rotated_columns(const struct frame *f, const struct step *step)
{
    const struct node *node = &f->binding->plan->graph->node[step->node];
    int64_t limit = f->columns;
    if (node->rope_cols.form != DIM_ABSENT)
        limit = dim_size(&node->rope_cols, f->binding->launch->size) - f->column;
    return limit < 0 ? 0 : limit > f->columns ? f->columns : (int)limit;
}

const void *cpu_row_by_id(const struct frame *f, const struct step *step, int i)
{
    return element_of(operand_of(f, step->operand), id_of(f, step, i), 0);
}

void cpu_step_rope(const struct frame *f, const struct bound_step *s)
{
    const struct step *step = s->step;
    const struct binding *binding = f->binding;
    const struct node *node = &binding->plan->graph->node[step->node];
    const coda_tensor *table = operand_of(f, step->operand);
    struct rows all;
    take_rows(f, s, &all);
    const int rotated = cpu_rotated_columns(f, step);
    for (int i = 0; i < all.rows; i++) {
        struct rows r = {.rows = 1, .width = rotated};
        r.out = all.out + i * all.out_stride;
        r.in[0] = all.in[0] + i * all.in_stride[0];
        if (rotated > 0) {
            r.in[1] = angles_of(f, table, id_of(f, step, i));
            binding->plan->isa->rope[node->rope_pairs](&r, step->length, step->flag);
        }
        memcpy(r.out + rotated, r.in[0] + rotated, (size_t)(f->columns - rotated) * sizeof *r.out);
    }
}

/* ---------------------------------------------------------------- memory */

char *cpu_operand_memory(const struct frame *f, const struct step *step, int operand, int64_t *stride)
{
    const coda_tensor *t = operand_of(f, operand);
    int64_t size = (int64_t)coda_dtype_size(t->dtype);
    *stride = row_stride(t) * size;
    switch (step->site) {
    case SITE_ROW:
        return (char *)t->data + f->row * size;
    case SITE_COLUMN:
        return (char *)t->data + f->start[step->form] * size;
    case SITE_BAND:
        return element_of(t, f->row / step->row_run, f->start[step->form]);
    default:
        return element_of(t, f->row + f->first, f->start[step->form]);
    }
}

char *cpu_step_memory(const struct frame *f, const struct step *step, int64_t *stride)
{
    return cpu_operand_memory(f, step, step->operand, stride);
}

static bool is_streamed(const struct frame *f, const struct step *step)
{
    return f->binding->stream && step->site == SITE_TILE && !step->flag && f->binding->plan->isa->stream[step->dtype];
}

int cpu_step_touches(const struct frame *f, const struct step *step, struct touched touched[MAX_STREAMS])
{
    int count = 0;
    if (step->site != SITE_TILE)
        return 0;
    if (step->run == cpu_step_load || (step->run == cpu_step_store && !is_streamed(f, step)))
        touched[count++] = (struct touched){step->operand, step->dtype, step->run == cpu_step_store};
    for (int i = 0; step->compiled && i < step->compiled->stream_count; i++) {
        const struct stream *stream = &step->compiled->stream[i];
        if (stream->kind == STREAM_READ || (stream->kind == STREAM_WRITE && !f->binding->stream))
            touched[count++] = (struct touched){stream->index, stream->dtype, stream->kind == STREAM_WRITE};
    }
    return count;
}

static void fetch_rows(const char *at, int64_t stride, int rows, int64_t length, bool to_write)
{
    for (int i = 0; i < rows; i++, at += stride)
        for (int64_t line = 0; line < length; line += 64)
            if (to_write)
                __builtin_prefetch(at + line, 1, 2);
            else
                __builtin_prefetch(at + line, 0, 2);
}

/* Rows are too short for the machine to foresee the next. Behind products only what is read is worth it. */
void cpu_step_fetch_ahead(const struct frame *f, const struct step *step)
{
    struct touched touched[MAX_STREAMS];
    int rows = f->rows - f->first - f->count;
    if (rows <= 0)
        return;
    rows = rows < f->count ? rows : f->count;
    const int operands = cpu_step_touches(f, step, touched);
    for (int i = 0; i < operands; i++) {
        int64_t stride;
        if (touched[i].written && f->base[IN_ACCUMULATORS])
            continue;
        const char *at = cpu_operand_memory(f, step, touched[i].operand, &stride) + f->count * stride;
        fetch_rows(at, stride, rows, f->width[step->form] * (int64_t)coda_dtype_size(touched[i].dtype),
                   touched[i].written);
    }
}

void cpu_step_load(const struct frame *f, const struct bound_step *s)
{
    const struct step *step = s->step;
    load_function *load = f->binding->plan->isa->load[step->dtype];
    struct rows r;
    int64_t stride;
    take_rows(f, s, &r);
    const char *from = cpu_step_memory(f, step, &stride);
    cpu_step_fetch_ahead(f, step);
    for (int i = 0; i < r.rows; i++)
        load(r.out + i * r.out_stride, from + i * stride, r.width);
}

void cpu_step_store(const struct frame *f, const struct bound_step *s)
{
    const struct step *step = s->step;
    const struct instruction_set *isa = f->binding->plan->isa;
    store_function *store = step->flag             ? isa->add[step->dtype]
                            : is_streamed(f, step) ? isa->stream[step->dtype]
                                                   : isa->store[step->dtype];
    int64_t stride;
    char *to = cpu_step_memory(f, step, &stride);
    const float *from = place_of(f, &s->input[0]);
    int rows = rows_of(f, step), width = width_of(f, step);
    cpu_step_fetch_ahead(f, step);
    for (int i = 0; i < rows; i++)
        store(to + i * stride, from + i * s->input[0].stride, width);
}

/* Element j is g[(start + j) % size]. */
void cpu_step_repeat(const struct frame *f, const struct bound_step *s)
{
    const coda_tensor *g = operand_of(f, s->step->operand);
    load_function *load = f->binding->plan->isa->load[g->dtype];
    const int64_t element = (int64_t)coda_dtype_size(g->dtype), size = g->shape[0];
    struct rows r;
    take_rows(f, s, &r);
    int64_t start = s->step->site == SITE_ROW ? f->row : f->column;
    for (int j = 0; j < r.width;) {
        int64_t from = (start + j) % size, count = size - from;
        float piece[256 + ROOM];
        count = count > r.width - j ? r.width - j : count;
        count = count > 256 ? 256 : count;
        load(piece, (const char *)g->data + from * element, count);
        memcpy(r.out + j, piece, (size_t)count * sizeof *piece);
        j += (int)count;
    }
}

/* ---------------------------------------------------------------- operands reduced whole */

static float finished(enum reduction reduction, const struct partial *partial)
{
    if (reduction == REDUCE_LOGSUMEXP)
        return isfinite(partial->top) ? partial->top + logf(partial->sum) : partial->top;
    return reduction == REDUCE_SUM ? partial->sum : partial->top;
}

/* Each row of the operand to one value, piece by piece so that pieces stay in cache. */
static void reduce_rows(const struct frame *f, const struct step *step, const coda_tensor *t, float *out, int rows)
{
    const struct instruction_set *isa = f->binding->plan->isa;
    const int64_t columns = t->shape[1], element = (int64_t)coda_dtype_size(t->dtype);
    int64_t first = step->site == SITE_ROW ? f->row : f->start[step->form];
    for (int i = 0; i < rows; i++) {
        struct partial partial = {0, step->reduction == REDUCE_ABSMAX ? 0 : -INFINITY};
        const char *row = element_of(t, first + i, 0);
        for (int64_t j = 0; j < columns; j += RUN_LIMIT) {
            int64_t count = columns - j < RUN_LIMIT ? columns - j : RUN_LIMIT;
            const float *x = (const void *)(row + j * element);
            if (t->dtype != CODA_F32) {
                isa->load[t->dtype](f->scratch, row + j * element, count);
                x = f->scratch;
            }
            isa->fold[step->reduction](&partial, x, count);
        }
        out[i] = finished(step->reduction, &partial);
    }
}

/* The rows of the operand, one after the other, onto one row of values. */
static void reduce_columns(const struct frame *f, const struct step *step, const coda_tensor *t, float *out, int width)
{
    const struct instruction_set *isa = f->binding->plan->isa;
    float *top = f->scratch + f->scratch_stride;
    int64_t start = step->site == SITE_ROW ? f->row : f->start[step->form];
    int padded = (width + ROOM - 1) / ROOM * ROOM;
    fill(out, padded, first_value(step->reduction));
    fill(top, padded, -INFINITY);
    for (int64_t i = 0; i < t->shape[0]; i++) {
        isa->load[t->dtype](f->scratch, element_of(t, i, start), width);
        struct rows r = {.rows = 1, .width = width, .out = out, .in = {f->scratch}};
        isa->accumulate[step->reduction](&r, top);
    }
    if (step->reduction == REDUCE_LOGSUMEXP)
        isa->finish_logsumexp(out, top, width);
}

void cpu_step_reduce_operand(const struct frame *f, const struct bound_step *s)
{
    const struct step *step = s->step;
    const coda_tensor *t = operand_of(f, step->operand);
    float *out = place_of(f, &s->result);
    if (step->flag)
        reduce_columns(f, step, t, out, width_of(f, step));
    else
        reduce_rows(f, step, t, out, width_of(f, step));
}
