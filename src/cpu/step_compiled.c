/* Running a group of steps that became machine code. */
#include "cpu/frame.h"

#include <string.h>

enum { LINE = 64 };

struct streams {
    char *at[MAX_STREAMS];
    int64_t stride[MAX_STREAMS]; /* bytes from row to row */
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
        if (compiled->stream[i].kind == STREAM_WRITE || compiled->stream[i].kind == STREAM_OUTPUT)
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
    compiled->program.run[0](at, lanes);
    for (int i = 0; i < compiled->stream_count; i++)
        if (compiled->stream[i].kind == STREAM_WRITE) {
            const size_t size = coda_dtype_size(compiled->stream[i].dtype);
            memcpy(streams->at[i] + done * (int64_t)size, copy[i], (size_t)count * size);
        }
}

void cpu_step_compiled(const struct frame *f, const struct bound_step *s)
{
    const struct compiled *compiled = s->step->compiled;
    const int lanes = f->binding->plan->machine_code == CODE_AVX2 ? 8 : 16;
    const int width = f->width[0], whole = width / lanes * lanes;
    struct streams streams;
    find_streams(f, s, &streams);
    cpu_step_fetch_ahead(f, s->step);
    vector_function *run = compiled->program.run[may_stream(f, compiled, &streams)];
    for (int row = 0; row < f->count; row++) {
        if (whole > 0)
            run(streams.at, whole);
        if (whole < width)
            run_tail(compiled, &streams, whole, width - whole, lanes);
        for (int i = 0; i < compiled->stream_count; i++)
            streams.at[i] += streams.stride[i];
    }
}
