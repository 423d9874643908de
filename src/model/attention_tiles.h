/* The arithmetic of attention on blocks of 64 queries and 64 keys; included once an instruction set, after LANES and
 * the set are chosen. */
#include "model/attention.h"
#include "runtime/elementary.h"
#include <math.h>

/* ROWS x 2 sums stand in registers, of which there are 32 with 16 lanes. */
enum { BLOCK = ATTENTION_BLOCK, ROWS = LANES == 16 ? 8 : LANES == 8 ? 6 : 4, COLUMNS = 2 * LANES };

/* An operand whose element (i, k) is at i * row + k * column: a matrix or its transpose. */
struct strided {
    const float *data;
    int64_t row, column;
};

enum { PANEL_DEPTH = 512 }; /* deeper products read b where it is */

/* COLUMNS columns of b, one row after the other: rows far apart would fall on each other in the first cache. */
INLINE const float *copy_panel(float *panel, const float *b, int64_t ldb, int64_t depth)
{
    for (int64_t k = 0; k < depth; k++)
        for (int h = 0; h < 2; h++)
            lanes_store(panel + k * COLUMNS + h * LANES, lanes_load(b + k * ldb + h * LANES));
    return panel;
}

/* `rows` rows of a product, and COLUMNS columns. */
INLINE void product_rows(const int rows, int64_t depth, struct strided a, const float *b, int64_t ldb, float *c,
                         int64_t ldc, int add)
{
    lanes sum[ROWS][2];
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < 2; h++)
            sum[r][h] = add ? lanes_load(c + r * ldc + h * LANES) : lanes_set(0);
    for (int64_t k = 0; k < depth; k++, a.data += a.column, b += ldb) {
        lanes first = lanes_load(b), second = lanes_load(b + LANES);
        for (int r = 0; r < rows; r++) {
            lanes x = lanes_set(a.data[r * a.row]);
            sum[r][0] = lanes_fma(x, first, sum[r][0]);
            sum[r][1] = lanes_fma(x, second, sum[r][1]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < 2; h++)
            lanes_store(c + r * ldc + h * LANES, sum[r][h]);
}

/* c[m, n] = a[m, depth] b[depth, n], or += where `add`. m is a multiple of 4, n of COLUMNS. */
INLINE void product(int64_t m, int64_t n, int64_t depth, struct strided a, const float *b, int64_t ldb, float *c,
                    int64_t ldc, int add)
{
    float panel[PANEL_DEPTH * COLUMNS];
    for (int64_t j = 0; j < n; j += COLUMNS) {
        const float *columns = depth > PANEL_DEPTH ? b + j : copy_panel(panel, b + j, ldb, depth);
        const int64_t step = depth > PANEL_DEPTH ? ldb : COLUMNS;
        int64_t i = 0;
        for (; i + ROWS <= m; i += ROWS)
            product_rows(ROWS, depth, (struct strided){a.data + i * a.row, a.row, a.column}, columns, step,
                         c + i * ldc + j, ldc, add);
        for (; i < m; i += 4)
            product_rows(4, depth, (struct strided){a.data + i * a.row, a.row, a.column}, columns, step,
                         c + i * ldc + j, ldc, add);
    }
}

/* Turns a block's scores into exp(score - largest so far), and brings output and sum of earlier blocks to the new
 * largest. */
INLINE void online_softmax(float *scores, int diagonal, float *largest, float *sum, float *output, int64_t width)
{
    for (int row = 0; row < BLOCK; row++) {
        float *s = scores + row * BLOCK;
        lanes best = lanes_set(largest[row]);
        for (int j = 0; j < BLOCK; j += LANES) {
            lanes x = lanes_load(s + j);
            if (diagonal) {
                x = lanes_select(lanes_count(j) <= row, x, lanes_set(-INFINITY));
                lanes_store(s + j, x);
            }
            best = lanes_greater(best, x);
        }
        float now = lanes_maximum(best);
        lanes total = lanes_set(0);
        for (int j = 0; j < BLOCK; j += LANES) {
            lanes p = exp_negative(lanes_load(s + j) - lanes_set(now), (lanes){0});
            lanes_store(s + j, p);
            total = total + p;
        }
        lanes scale = exp_negative(lanes_set(largest[row] - now), (lanes){0});
        sum[row] = sum[row] * scale[0] + lanes_sum(total);
        largest[row] = now;
        for (int64_t j = 0; j < width; j += LANES)
            lanes_store(output + row * width + j, lanes_load(output + row * width + j) * scale);
    }
}

static void forward(const struct attention_block *b)
{
    float largest[BLOCK], sum[BLOCK];
    for (int row = 0; row < BLOCK; row++) {
        largest[row] = -INFINITY;
        sum[row] = 0;
    }
    memset(b->output, 0, (size_t)(BLOCK * b->width) * sizeof(float));
    for (int64_t j = 0; j <= b->block; j++) {
        product(BLOCK, BLOCK, b->width, (struct strided){b->queries, b->width, 1}, b->keys + j * BLOCK, b->length,
                b->scores, BLOCK, 0);
        online_softmax(b->scores, j == b->block, largest, sum, b->output, b->width);
        product(BLOCK, b->width, BLOCK, (struct strided){b->scores, BLOCK, 1}, b->values + j * BLOCK * b->width,
                b->width, b->output, b->width, 1);
    }
    for (int row = 0; row < BLOCK; row++) {
        lanes inverse = lanes_set(1 / sum[row]);
        for (int64_t j = 0; j < b->width; j += LANES)
            lanes_store(b->output + row * b->width + j, lanes_load(b->output + row * b->width + j) * inverse);
        b->lse[row] = largest[row] + logf(sum[row]);
    }
}

/* p = exp(score - lse) in place; ds = p (dp - delta) in place of dp. */
INLINE void softmax_backward(float *scores, float *d_scores, int diagonal, const float *lse, const float *delta)
{
    for (int row = 0; row < BLOCK; row++)
        for (int j = 0; j < BLOCK; j += LANES) {
            float *s = scores + row * BLOCK + j, *d = d_scores + row * BLOCK + j;
            lanes p = exp_negative(lanes_load(s) - lanes_set(lse[row]), (lanes){0});
            if (diagonal)
                p = lanes_select(lanes_count(j) <= row, p, lanes_set(0));
            lanes_store(s, p);
            lanes_store(d, p * (lanes_load(d) - lanes_set(delta[row])));
        }
}

static void backward(const struct attention_head *h)
{
    int64_t width = h->width, blocks = h->length / BLOCK, size = BLOCK * width;
    for (int64_t j = h->part; j < blocks; j += h->parts)
        for (int64_t i = j; i < blocks; i++) {
            const float *queries = h->queries + i * size, *d_output = h->d_output + i * size;
            product(BLOCK, BLOCK, width, (struct strided){queries, width, 1}, h->keys_transposed + j * BLOCK, h->length,
                    h->probabilities, BLOCK, 0);
            product(BLOCK, BLOCK, width, (struct strided){d_output, width, 1}, h->values_transposed + j * BLOCK,
                    h->length, h->d_scores, BLOCK, 0);
            softmax_backward(h->probabilities, h->d_scores, i == j, h->lse + i * BLOCK, h->delta + i * BLOCK);
            product(BLOCK, width, BLOCK, (struct strided){h->probabilities, 1, BLOCK}, d_output, width,
                    h->d_values + j * size, width, 1);
            product(BLOCK, width, BLOCK, (struct strided){h->d_scores, 1, BLOCK}, queries, width, h->d_keys + j * size,
                    width, 1);
            product(BLOCK, width, BLOCK, (struct strided){h->d_scores, BLOCK, 1}, h->keys + j * size, width,
                    h->d_queries + i * size, width, 1);
        }
}
