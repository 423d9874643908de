/* Products of panels on vector registers, MICRO_ROWS rows by MICRO_VECTORS vectors of columns, written on
 *
 *     lanes multiply_word(const char *word, lanes column, lanes sum)
 *
 * the sum of `sum` and what a word of a row, repeated, gives with the words of the columns: one step of K in f32, two in pairs
 * of bf16. */
#ifndef CODA_CPU_MICROKERNEL_PRODUCT_H
#define CODA_CPU_MICROKERNEL_PRODUCT_H

enum { MICRO_COLUMNS = MICRO_VECTORS * LANES };

/* After every TURN words of depth a part of the next right panel is fetched, so that all of it is there after 96 rows. */
enum { TURN = 8, FETCHED = MICRO_COLUMNS * (int)sizeof(float) * TURN * MICRO_ROWS / 96 };

/* How a left operand lies: bytes between rows, and between words of a row. */
struct left_steps {
    int64_t row, word;
};

/* As it lies in a packed panel. */
static const struct left_steps packed_steps = {sizeof(float), MICRO_ROWS * sizeof(float)};

/* Rows are addressed in threes, by one register each and one for their distance: each its own is more than there are. */
enum { THREES = (MICRO_ROWS + 2) / 3 };

INLINE void multiply_words(const char *const three[THREES], struct left_steps by, const float *b, int words,
                           lanes sum[MICRO_ROWS][MICRO_VECTORS])
{
#pragma GCC unroll 8
    for (int k = 0; k < words; k++) {
        lanes column[MICRO_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < MICRO_VECTORS; v++)
            column[v] = lanes_load(b + k * MICRO_COLUMNS + v * LANES);
#pragma GCC unroll 16
        for (int i = 0; i < MICRO_ROWS; i++) {
#pragma GCC unroll 4
            for (int v = 0; v < MICRO_VECTORS; v++)
                sum[i][v] = multiply_word(three[i / 3] + i % 3 * by.row + k * by.word, column[v], sum[i][v]);
        }
    }
}

/* The sums start from c, not from zero, so that an element stays one chain over all blocks of K. */
INLINE void multiply_panels(int64_t words, const void *left, struct left_steps by, const void *right, float *c,
                            int64_t stride, bool start, const void *next)
{
    const float *b = right;
    const char *line = next, *three[THREES];
    const float *below = c + MICRO_ROWS * stride, *end = below + MICRO_ROWS * stride;
    lanes sum[MICRO_ROWS][MICRO_VECTORS];
#pragma GCC unroll 8
    for (int t = 0; t < THREES; t++)
        three[t] = (const char *)left + 3 * t * by.row;
#pragma GCC unroll 16
    for (int i = 0; i < MICRO_ROWS; i++)
#pragma GCC unroll 4
        for (int v = 0; v < MICRO_VECTORS; v++)
            sum[i][v] = start ? lanes_set(0) : lanes_load(c + i * stride + v * LANES);
    for (; words >= TURN; words -= TURN) {
        for (int i = 0; i < FETCHED; i += 64)
            __builtin_prefetch(line + i, 0, 2);
        line += FETCHED;
        for (int v = 0; below < end && v < MICRO_VECTORS; v++) /* the sums that come next */
            __builtin_prefetch(below + v * LANES, 1, 3);
        below += stride;
        multiply_words(three, by, b, TURN, sum);
#pragma GCC unroll 8
        for (int t = 0; t < THREES; t++)
            three[t] += TURN * by.word;
        b += TURN * MICRO_COLUMNS;
    }
    for (; words > 0; words--) {
        multiply_words(three, by, b, 1, sum);
#pragma GCC unroll 8
        for (int t = 0; t < THREES; t++)
            three[t] += by.word;
        b += MICRO_COLUMNS;
    }
#pragma GCC unroll 16
    for (int i = 0; i < MICRO_ROWS; i++)
#pragma GCC unroll 4
        for (int v = 0; v < MICRO_VECTORS; v++)
            lanes_store(c + i * stride + v * LANES, sum[i][v]);
}

#endif
