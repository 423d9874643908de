/* Running a group of steps that became machine code. */
#include "cpu/frame.h"

#include <string.h>

enum { LINE = 64 };

struct streams {
    char *at[MAX_STREAMS + 1];       /* the last: of a mask */
    int64_t stride[MAX_STREAMS + 1]; /* bytes from row to row */
};

static bool in_memory(const struct stream *stream)
{
    return stream->kind == STREAM_READ || stream->kind == STREAM_WRITE;
}

static void find_streams(const struct frame *f, const struct bound_step *s, struct streams *streams)
{
    const struct compiled *compiled = s->step->compiled;
    for (int i = 0; i < compiled->stream_count; i++) {
        const struct stream *stream = &compiled->stream[i];
        const struct place *place =
            stream->kind == STREAM_INPUT ? &s->input[stream->index] : &s->output[stream->index % MAX_STEP_OUTPUTS];
        streams->at[i] = NULL;
        streams->stride[i] = 0;
        if (stream->kind == STREAM_TABLE)
            continue; /* row by row */
        if (in_memory(stream)) {
            streams->at[i] = cpu_operand_memory(f, s->step, stream->index, &streams->stride[i]);
            continue;
        }
        streams->at[i] = (char *)place_of(f, place);
        streams->stride[i] = place->stride * (int64_t)sizeof(float);
    }
}

/* Stores past the caches write whole lines. */
static bool may_stream(const struct frame *f, const struct compiled *compiled, const struct streams *streams)
{
    bool whole_lines = f->binding->stream;
    for (int i = 0; i < compiled->stream_count; i++)
        if (compiled->stream[i].kind == STREAM_WRITE ||
            (compiled->stream[i].kind == STREAM_OUTPUT && !compiled->stream[i].runs))
            whole_lines = whole_lines && compiled->stream[i].kind == STREAM_WRITE &&
                          ((uintptr_t)streams->at[i] | (uintptr_t)streams->stride[i]) % LINE == 0;
    return whole_lines;
}

/* The last elements of a row, fewer than a vector: operands are read and written in copies of a vector's size. */
static void run_tail(const struct compiled *compiled, const struct streams *streams, int64_t done, int count, int lanes)
{
    char copy[MAX_STREAMS][LINE], *at[MAX_STREAMS];
    for (int i = 0; i < compiled->stream_count; i++) {
        const struct stream *stream = &compiled->stream[i];
        const size_t size = coda_dtype_size(stream->dtype);
        at[i] = streams->at[i] + (stream->repeats ? 0 : done * (int64_t)size);
        if (!in_memory(stream))
            continue;
        memset(copy[i], 0, LINE);
        if (stream->kind == STREAM_READ)
            memcpy(copy[i], at[i], (size_t)count * size);
        at[i] = copy[i];
    }
    compiled->program.run[ENTRY_USUAL](at, lanes);
    for (int i = 0; i < compiled->stream_count; i++)
        if (compiled->stream[i].kind == STREAM_WRITE) {
            const size_t size = coda_dtype_size(compiled->stream[i].dtype);
            memcpy(streams->at[i] + done * (int64_t)size, copy[i], (size_t)count * size);
        }
}

/* Elements on from a row's beginning, where a stream has one a column or one a run. */
static char *advanced(const struct compiled *compiled, int index, char *at, int64_t columns)
{
    const struct stream *stream = &compiled->stream[index];
    if (stream->repeats || stream->kind == STREAM_TABLE)
        return at;
    return at + (stream->runs ? columns / compiled->run : columns) * (int64_t)coda_dtype_size(stream->dtype);
}

/* The last run of a row, cut short: on copies that are filled up, with a mask of what is there. */
static void run_short(const struct compiled *compiled, const struct streams *streams, int done, int count)
{
    enum { ROUND = 64 };
    char copy[MAX_STREAMS + 1][COMPILED_RUN * sizeof(float)], *at[MAX_STREAMS + 1];
    const int padded = (count + ROUND - 1) / ROUND * ROUND;
    memset(copy[MAX_STREAMS], 0, (size_t)padded * sizeof(float));
    memset(copy[MAX_STREAMS], 0xff, (size_t)count * sizeof(float));
    at[compiled->stream_count] = copy[MAX_STREAMS];
    for (int i = 0; i < compiled->stream_count; i++) {
        const struct stream *stream = &compiled->stream[i];
        const size_t size = coda_dtype_size(stream->dtype);
        at[i] = advanced(compiled, i, streams->at[i], done);
        if (stream->repeats || stream->runs)
            continue;
        memset(copy[i], 0, (size_t)padded * size);
        if (stream->kind == STREAM_READ || stream->kind == STREAM_INPUT)
            memcpy(copy[i], at[i], (size_t)count * size);
        at[i] = copy[i];
    }
    compiled->program.run[ENTRY_OTHER](at, padded);
    for (int i = 0; i < compiled->stream_count; i++) {
        const struct stream *stream = &compiled->stream[i];
        if (stream->kind == STREAM_WRITE || (stream->kind == STREAM_OUTPUT && !stream->runs))
            memcpy(advanced(compiled, i, streams->at[i], done), copy[i],
                   (size_t)count * coda_dtype_size(stream->dtype));
    }
}

/* Whole heads, of which the first columns are rotated. */
static void run_heads(const struct frame *f, const struct compiled *compiled, const struct streams *streams, int row,
                      bool streaming)
{
    const int rotated = cpu_rotated_columns(f, compiled->rope), width = f->width[0];
    char *at[MAX_STREAMS];
    for (int part = 0; part < 2; part++) {
        for (int i = 0; i < compiled->stream_count; i++)
            at[i] = compiled->stream[i].kind == STREAM_TABLE ? (char *)cpu_row_by_id(f, compiled->rope, row)
                                                             : advanced(compiled, i, streams->at[i], part * rotated);
        const int count = part ? width - rotated : rotated;
        if (count > 0)
            compiled->program.run[(part ? ENTRY_OTHER : ENTRY_USUAL) + streaming](at, count);
    }
}

static void run_row(const struct frame *f, const struct compiled *compiled, const struct streams *streams, int row,
                    bool streaming)
{
    const int lanes = f->binding->plan->machine_code == CODE_AVX2 ? 8 : 16,
              unit = compiled->run ? compiled->run : lanes;
    const int width = f->width[0], whole = width / unit * unit;
    if (compiled->half) {
        run_heads(f, compiled, streams, row, streaming);
        return;
    }
    if (whole > 0)
        compiled->program.run[ENTRY_USUAL + streaming](streams->at, whole);
    if (whole < width && compiled->run)
        run_short(compiled, streams, whole, width - whole);
    else if (whole < width)
        run_tail(compiled, streams, whole, width - whole, lanes);
}

void cpu_step_compiled(const struct frame *f, const struct bound_step *s)
{
    const struct compiled *compiled = s->step->compiled;
    struct streams streams;
    find_streams(f, s, &streams);
    cpu_step_fetch_ahead(f, s->step);
    const bool streaming = may_stream(f, compiled, &streams);
    for (int row = 0; row < f->count; row++) {
        run_row(f, compiled, &streams, row, streaming);
        for (int i = 0; i < compiled->stream_count; i++)
            streams.at[i] += streams.stride[i];
    }
}
