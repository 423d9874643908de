/* Functions that move columns: pairs, halves, repetition over runs, rotations. */
#ifndef CODA_CPU_MOVES_H
#define CODA_CPU_MOVES_H

#include "cpu/instruction_set.h"
#include "cpu/interleave.h"

/* The last vectors may reach over the end of a row of 2 width columns by less than a vector: registers have that room.
 */
static void take_even(const struct rows *r)
{
    for (int i = 0; i < r->rows; i++)
        for (int j = 0; j < r->width; j += LANES) {
            const float *x = r->in[0] + i * r->in_stride[0] + 2 * j;
            lanes_store(r->out + i * r->out_stride + j, evens(lanes_load(x), lanes_load(x + LANES)));
        }
}

static void take_odd(const struct rows *r)
{
    for (int i = 0; i < r->rows; i++)
        for (int j = 0; j < r->width; j += LANES) {
            const float *x = r->in[0] + i * r->in_stride[0] + 2 * j;
            lanes_store(r->out + i * r->out_stride + j, odds(lanes_load(x), lanes_load(x + LANES)));
        }
}

static void join_pairs(const struct rows *r)
{
    for (int i = 0; i < r->rows; i++)
        for (int j = 0; j < r->width; j += 2 * LANES) {
            lanes even = lanes_load(r->in[0] + i * r->in_stride[0] + j / 2);
            lanes odd = lanes_load(r->in[1] + i * r->in_stride[1] + j / 2);
            store_interleaved(r->out + i * r->out_stride + j, even, odd);
        }
}

/* Copies width / run pieces of `run` columns; pieces of input and output begin in_step and out_step apart. */
static void copy_pieces(float *out, const float *in, int pieces, int run, int64_t out_step, int64_t in_step)
{
    for (int p = 0; p < pieces; p++)
        memcpy(out + p * out_step, in + p * in_step, (size_t)run * sizeof *out);
}

static void take_first(const struct rows *r, int h)
{
    for (int i = 0; i < r->rows; i++)
        copy_pieces(r->out + i * r->out_stride, r->in[0] + i * r->in_stride[0], r->width / h, h, h, 2 * h);
}

static void take_second(const struct rows *r, int h)
{
    for (int i = 0; i < r->rows; i++)
        copy_pieces(r->out + i * r->out_stride, r->in[0] + i * r->in_stride[0] + h, r->width / h, h, h, 2 * h);
}

static void join_two_halves(const struct rows *r, int h)
{
    for (int i = 0; i < r->rows; i++)
        for (int k = 0; k < 2; k++)
            copy_pieces(r->out + i * r->out_stride + k * h, r->in[k] + i * r->in_stride[k], r->width / (2 * h), h,
                        2 * h, h);
}

static void expand_runs(const struct rows *r, int run)
{
    for (int i = 0; i < r->rows; i++) {
        const float *in = r->in[0] + i * r->in_stride[0];
        float *out = r->out + i * r->out_stride;
        for (int first = 0, k = 0; first < r->width; first += run, k++) {
            int end = first + run < r->width ? first + run : r->width;
            lanes x = lanes_set(in[k]);
            int j = first;
            for (; j + LANES <= end; j += LANES)
                lanes_store(out + j, x);
            for (; j < end; j++)
                out[j] = in[k];
        }
    }
}

/* ---------------------------------------------------------------- rotations */

/* The first and second columns of LANES pairs, by the angles with these cosines and sines. */
INLINE void rotate(lanes *a, lanes *b, lanes cosine, lanes sine)
{
    lanes first = lanes_fma(*a, cosine, -(*b * sine));
    *b = lanes_fma(*b, cosine, *a * sine);
    *a = first;
}

INLINE lanes signed_sine(const float *from, int count, bool inverse)
{
    lanes sine = load_part(from, count);
    return inverse ? -sine : sine;
}

/* LANES pairs or, at the end of a head, `count` of them. */
INLINE void rotate_some_halves(const float *x, float *out, const float *angles, int h, int count, bool inverse)
{
    lanes a = load_part(x, count), b = load_part(x + h, count);
    rotate(&a, &b, load_part(angles, count), signed_sine(angles + h, count, inverse));
    store_part(out, a, count);
    store_part(out + h, b, count);
}

static void rotate_halves(const struct rows *rows, int head, bool inverse)
{
    const struct rows r = *rows;
    const int h = head / 2;
    for (int i = 0; i < r.rows; i++)
        for (int column = 0; column < r.width; column += head) {
            const float *angles = r.in[1] + i * r.in_stride[1], *x = r.in[0] + i * r.in_stride[0] + column;
            float *out = r.out + i * r.out_stride + column;
            int j = 0;
            for (; j + LANES <= h; j += LANES)
                rotate_some_halves(x + j, out + j, angles + j, h, LANES, inverse);
            if (j < h)
                rotate_some_halves(x + j, out + j, angles + j, h, h - j, inverse);
        }
}

/* The last vectors of a short head are rounded off in memory of their own. */
INLINE void rotate_some_pairs(const float *x, float *out, const float *angles, int h, int count, bool inverse)
{
    float pairs[2 * LANES] = {0};
    const float *from = x;
    if (count < LANES) {
        memcpy(pairs, x, (size_t)count * 2 * sizeof *pairs);
        from = pairs;
    }
    lanes low = lanes_load(from), high = lanes_load(from + LANES), a = evens(low, high), b = odds(low, high);
    rotate(&a, &b, load_part(angles, count), signed_sine(angles + h, count, inverse));
    store_interleaved(count < LANES ? pairs : out, a, b);
    if (count < LANES)
        memcpy(out, pairs, (size_t)count * 2 * sizeof *pairs);
}

static void rotate_pairs(const struct rows *rows, int head, bool inverse)
{
    const struct rows r = *rows;
    const int h = head / 2;
    for (int i = 0; i < r.rows; i++)
        for (int column = 0; column < r.width; column += head) {
            const float *angles = r.in[1] + i * r.in_stride[1], *x = r.in[0] + i * r.in_stride[0] + column;
            float *out = r.out + i * r.out_stride + column;
            int j = 0;
            for (; j + LANES <= h; j += LANES)
                rotate_some_pairs(x + 2 * j, out + 2 * j, angles + j, h, LANES, inverse);
            if (j < h)
                rotate_some_pairs(x + 2 * j, out + 2 * j, angles + j, h, h - j, inverse);
        }
}

#endif
