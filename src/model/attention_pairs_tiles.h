/* The arithmetic of attention_pairs.h, included once an instruction set after LANES, which is 16, and
 *
 *     multiply(m, n, depth, a, a_stride, b, c, add)
 *
 * c[m, n] f32 (+)= a b, m, n and depth multiples of 32. a: rows of bf16, a_stride elements apart. b: tiles of 16 columns
 * and 32 steps of K, one row of tiles after the other; row p of a tile holds steps 2p and 2p+1 of each column. */
#include "model/attention.h"
#include "model/attention_pairs.h"
#include "runtime/elementary.h"
#include "runtime/shuffle.h"
#include <math.h>

enum { BLOCK = ATTENTION_BLOCK, TILE = 16 * 32 /* elements */, GROUPS = BLOCK / LANES };

INLINE words load_words(const void *from)
{
    return (words)lanes_load(from);
}

INLINE void store_words(void *to, words x)
{
    lanes_store(to, (lanes)x);
}

/* ---------------------------------------------------------------- bf16; subnormal numbers may become zeros */

/* pair_words: two steps of K of each column, rounded. */
#if defined(__AVX512BF16__)
INLINE words pair_words(lanes low, lanes high)
{
    const words turns = {0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005, 0x160006, 0x170007,
                         0x180008, 0x190009, 0x1a000a, 0x1b000b, 0x1c000c, 0x1d000d, 0x1e000e, 0x1f000f};
    return (words)_mm512_permutexvar_epi16((__m512i)turns, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

INLINE void store_halves(uint16_t *to, lanes x)
{
    const __m256bh half = _mm512_cvtneps_pbh(x);
    memcpy(to, &half, sizeof half);
}
#else
/* The nearest bf16 in the upper half of each word; the lower half is not clean. */
INLINE words round_words(lanes x)
{
    const words bits = (words)x, nearest = bits + ((bits >> 16 & words_set(1)) + words_set(0x7fff));
    return words_select(x == x, nearest, words_set(0x7fc00000u));
}

INLINE words pair_words(lanes low, lanes high)
{
    return round_words(low) >> 16 | (round_words(high) & words_set(0xffff0000u));
}

INLINE void store_halves(uint16_t *to, lanes x)
{
    const halfwords half = __builtin_convertvector(round_words(x) >> 16, halfwords);
    memcpy(to, &half, sizeof half);
}
#endif

INLINE lanes low_of(words pair)
{
    return (lanes)(pair << 16);
}

INLINE lanes high_of(words pair)
{
    return (lanes)(pair & words_set(0xffff0000u));
}

/* ---------------------------------------------------------------- moving */

#define MIX(step, low, high)                                                                                           \
    for (int i = 0; i < 16; i++)                                                                                       \
        if (!(i & (step))) {                                                                                           \
            words a = row[i], b = row[i + (step)];                                                                     \
            row[i] = SHUFFLE(words, a, b, low);                                                                        \
            row[i + (step)] = SHUFFLE(words, a, b, high);                                                              \
        }
#define LOW_1  0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30
#define HIGH_1 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31
#define LOW_2  0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define HIGH_2 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define LOW_4  0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27
#define HIGH_4 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31
#define LOW_8  0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define HIGH_8 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31

/* A square of 16 words; strides in words. */
INLINE void transpose_words(const void *from, int64_t from_stride, void *to, int64_t to_stride)
{
    words row[16];
    for (int i = 0; i < 16; i++)
        row[i] = load_words((const char *)from + 4 * i * from_stride);
    MIX(1, LOW_1, HIGH_1)
    MIX(2, LOW_2, HIGH_2)
    MIX(4, LOW_4, HIGH_4)
    MIX(8, LOW_8, HIGH_8)
    for (int i = 0; i < 16; i++)
        store_words((char *)to + 4 * i * to_stride, row[i]);
}

static void pack_by_row(int64_t width, const uint16_t *rows, uint16_t *to)
{
    for (int64_t s = 0; s < width / 32; s++)
        for (int64_t g = 0; g < GROUPS; g++)
            transpose_words(rows + g * LANES * width + s * 32, width / 2, to + (s * GROUPS + g) * TILE, LANES);
}

static void pack_by_column(int64_t width, const uint16_t *rows, uint16_t *to)
{
    for (int64_t r = 0; r < BLOCK; r += 2)
        for (int64_t g = 0; g < width / LANES; g++) {
            halfwords low, high;
            memcpy(&low, rows + r * width + g * LANES, sizeof low);
            memcpy(&high, rows + (r + 1) * width + g * LANES, sizeof high);
            store_words(to + (r / 32 * (width / LANES) + g) * TILE + r % 32 / 2 * 32,
                        __builtin_convertvector(low, words) | __builtin_convertvector(high, words) << 16);
        }
}

/* From what pack_by_column makes: its words, transposed, are pairs of a column. */
static void pack_columns(int64_t width, const uint16_t *by_column, uint16_t *to)
{
    for (int64_t s = 0; s < BLOCK / 32; s++)
        for (int64_t g = 0; g < width / LANES; g++)
            transpose_words(by_column + (s * (width / LANES) + g) * TILE, LANES, to + g * LANES * BLOCK + s * 32,
                            BLOCK / 2);
}

/* to->rows is needed by all others, and by_column by columns. */
static void pack(const struct pairs_shape *shape, const struct pairs_rows *from, const struct pairs_block *to)
{
    const int64_t width = shape->width;
    memset(to->rows, 0, (size_t)(BLOCK * width) * sizeof *to->rows);
    for (int64_t i = 0; i < from->count; i++)
        memcpy(to->rows + i * width, from->data + i * from->stride, (size_t)shape->depth * sizeof *to->rows);
    if (to->by_row)
        pack_by_row(width, to->rows, to->by_row);
    if (to->by_column)
        pack_by_column(width, to->rows, to->by_column);
    if (to->columns)
        pack_columns(width, to->by_column, to->columns);
}

/* Where row r of the right operand [64, 64], and the group of columns, lies. */
INLINE uint16_t *pair_of(uint16_t *tiles, int row, int group)
{
    return tiles + (row / 32 * GROUPS + group) * TILE + row % 32 / 2 * 32;
}

static void write(const struct pairs_shape *shape, const float *from, int transposed, float factor, uint16_t *to,
                  int64_t stride, int64_t count, uint16_t *memory)
{
    const int64_t width = shape->width;
    for (int64_t i = 0; i < (transposed ? width : BLOCK); i += 2)
        for (int64_t j = 0; j < (transposed ? BLOCK : width); j += LANES) {
            const int64_t next = transposed ? BLOCK : width;
            const float *x = from + i * next + j;
            const lanes even = lanes_load(x) * lanes_set(factor), odd = lanes_load(x + next) * lanes_set(factor);
            if (transposed) { /* a pair of a query's elements; words by query */
                store_words(memory + i * BLOCK + 2 * j, pair_words(even, odd));
                continue;
            }
            store_halves(memory + i * width + j, even);
            store_halves(memory + (i + 1) * width + j, odd);
        }
    uint16_t square[LANES * 32];
    for (int64_t g = 0; transposed && g < GROUPS; g++)
        for (int64_t s = 0; s < width / 32; s++) {
            transpose_words(memory + s * 32 * BLOCK + g * 32, BLOCK, square, LANES);
            const int64_t some = shape->depth - s * 32 < 32 ? shape->depth - s * 32 : 32;
            for (int64_t r = g * LANES; r < count && r < (g + 1) * LANES; r++)
                memcpy(to + r * stride + s * 32, square + (r - g * LANES) * 32, (size_t)some * sizeof *to);
        }
    for (int64_t i = 0; !transposed && i < count; i++)
        memcpy(to + i * stride, memory + i * width, (size_t)shape->depth * sizeof *to);
}

/* ---------------------------------------------------------------- forward */

/* Masked where the key comes after the query. */
INLINE lanes score_at(const float *scores, int row, int group, int diagonal, float otherwise)
{
    lanes x = lanes_load(scores + row * BLOCK + group * LANES);
    return diagonal ? lanes_select(row <= lanes_count(group * LANES), x, lanes_set(otherwise)) : x;
}

/* From scores to probabilities against the largest score so far, and what earlier output is to be multiplied by. */
static void online_softmax(const float *scores, int diagonal, float scale, float *largest, float *sum, float *factor,
                           uint16_t *probabilities)
{
    for (int g = 0; g < GROUPS; g++) {
        lanes before = lanes_load(largest + g * LANES), best = before, other = before;
        for (int r = 0; r < BLOCK; r += 2) {
            best = lanes_greater(best, score_at(scores, r, g, diagonal, -INFINITY));
            other = lanes_greater(other, score_at(scores, r + 1, g, diagonal, -INFINITY));
        }
        best = lanes_greater(best, other);
        const lanes top = best * lanes_set(scale);
        lanes even = lanes_set(0), odd = lanes_set(0);
        for (int r = 0; r < BLOCK; r += 2) {
            lanes a = exp_negative(score_at(scores, r, g, diagonal, -INFINITY) * lanes_set(scale) - top, (lanes){0});
            lanes b =
                exp_negative(score_at(scores, r + 1, g, diagonal, -INFINITY) * lanes_set(scale) - top, (lanes){0});
            even = even + a;
            odd = odd + b;
            store_words(pair_of(probabilities, r, g), pair_words(a, b));
        }
        const lanes down = exp_negative(before * lanes_set(scale) - top, (lanes){0});
        lanes_store(sum + g * LANES, lanes_load(sum + g * LANES) * down + (even + odd));
        lanes_store(factor + g * LANES, down);
        lanes_store(largest + g * LANES, best);
    }
}

static void scale_columns(float *matrix, int64_t rows, const float *factor)
{
    for (int64_t i = 0; i < rows; i++)
        for (int g = 0; g < GROUPS; g++) {
            float *x = matrix + i * BLOCK + g * LANES;
            lanes_store(x, lanes_load(x) * lanes_load(factor + g * LANES));
        }
}

static void forward(struct pairs_forward *w)
{
    const int64_t width = w->shape.width, size = BLOCK * width;
    float *scores = w->scratch, *output = scores + BLOCK * BLOCK;
    uint16_t *probabilities = (void *)(output + size), *rows = probabilities + BLOCK * BLOCK, *queries = rows + size;
    float largest[BLOCK], before[BLOCK], sum[BLOCK], factor[BLOCK];
    for (int i = 0; i < BLOCK; i++) {
        largest[i] = -INFINITY;
        sum[i] = 0;
    }
    pack(&w->shape, &w->queries, &(struct pairs_block){.rows = rows, .by_row = queries});
    for (int64_t j = 0; j <= w->block; j++) {
        multiply(BLOCK, BLOCK, width, w->keys + j * size, width, queries, scores, 0);
        memcpy(before, largest, sizeof before);
        online_softmax(scores, j == w->block, w->shape.scale, largest, sum, factor, probabilities);
        int rescale = 0;
        for (int i = 0; i < BLOCK; i++)
            rescale |= before[i] != largest[i];
        if (j > 0 && rescale)
            scale_columns(output, width, factor);
        multiply(width, BLOCK, BLOCK, w->values + j * size, BLOCK, probabilities, output, j > 0);
    }
    for (int i = 0; i < BLOCK; i++) {
        w->lse[i] = largest[i] * w->shape.scale + logf(sum[i]);
        factor[i] = 1 / sum[i];
    }
    scale_columns(output, width, factor);
    write(&w->shape, output, 1, 1, w->output, w->output_stride, w->queries.count, rows);
}

/* ---------------------------------------------------------------- backward */

static void row_products(const struct pairs_shape *shape, const uint16_t *a, const uint16_t *b, float *delta)
{
    for (int g = 0; g < GROUPS; g++) {
        lanes even = lanes_set(0), odd = lanes_set(0);
        for (int64_t s = 0; s < shape->width / 32; s++)
            for (int p = 0; p < 16; p++) {
                const int64_t at = (s * GROUPS + g) * TILE + p * 32;
                const words x = load_words(a + at), y = load_words(b + at);
                even = lanes_fma(low_of(x), low_of(y), even);
                odd = lanes_fma(high_of(x), high_of(y), odd);
            }
        lanes_store(delta + g * LANES, even + odd);
    }
}

/* p = exp(score - lse), ds = p (dp - delta); both as rows, ds as a right operand too. */
static void softmax_backward(const float *scores, const float *d_scores, int diagonal, float scale, const float *lse,
                             const float *delta, uint16_t *p_rows, uint16_t *d_rows, uint16_t *d_tiles)
{
    for (int r = 0; r < BLOCK; r += 2)
        for (int g = 0; g < GROUPS; g++) {
            lanes d[2];
            const lanes top = lanes_load(lse + g * LANES), common = lanes_load(delta + g * LANES);
            for (int k = 0; k < 2; k++) {
                const int64_t at = (r + k) * BLOCK + g * LANES;
                lanes p =
                    exp_negative(score_at(scores, r + k, g, diagonal, -INFINITY) * lanes_set(scale) - top, (lanes){0});
                d[k] = p * (lanes_load(d_scores + at) - common);
                store_halves(p_rows + at, p);
                store_halves(d_rows + at, d[k]);
            }
            store_words(pair_of(d_tiles, r, g), pair_words(d[0], d[1]));
        }
}

static void backward(const struct pairs_backward *w)
{
    const int64_t width = w->shape.width, size = BLOCK * width;
    float *scores = w->scratch, *d_scores = scores + BLOCK * BLOCK;
    uint16_t *p_rows = (void *)(d_scores + BLOCK * BLOCK), *d_rows = p_rows + BLOCK * BLOCK,
             *d_tiles = d_rows + BLOCK * BLOCK;
    for (int64_t j = w->part; j < w->blocks; j += w->parts)
        for (int64_t i = j; i < w->blocks; i++) {
            multiply(BLOCK, BLOCK, width, w->keys.rows + j * size, width, w->queries.by_row + i * size, scores, 0);
            multiply(BLOCK, BLOCK, width, w->values.rows + j * size, width, w->d_output.by_row + i * size, d_scores, 0);
            softmax_backward(scores, d_scores, i == j, w->shape.scale, w->lse + i * BLOCK, w->delta + i * BLOCK, p_rows,
                             d_rows, d_tiles);
            multiply(BLOCK, width, BLOCK, p_rows, BLOCK, w->d_output.by_column + i * size, w->d_values + j * size, 1);
            multiply(BLOCK, width, BLOCK, d_rows, BLOCK, w->queries.by_column + i * size, w->d_keys + j * size, 1);
            multiply(width, BLOCK, BLOCK, w->keys.columns + j * size, BLOCK, d_tiles, w->d_queries + i * size, 1);
        }
}
