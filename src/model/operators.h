/* The operators between the products, one at a time: the unfused path, for comparison. Each reads its operands from
 * memory, computes in f32 and writes its result, rounded to the dtype. */
#ifndef CODA_MODEL_OPERATORS_H
#define CODA_MODEL_OPERATORS_H

#include "model/common.h"

/* Arithmetic on f32 arrays in cache, for one instruction set. `count` is any number. */
struct operator_code {
    void (*add)(int64_t count, const float *a, const float *b, float *y);
    void (*multiply)(int64_t count, const float *a, const float *b, float *y);
    void (*silu)(int64_t count, const float *x, const float *unused, float *y);
    void (*silu_backward)(int64_t count, const float *x, const float *dy, float *dx);
    void (*scale)(int64_t count, const float *x, float factor, float *y);
    float (*dot)(int64_t count, const float *a, const float *b);
    float (*largest)(int64_t count, const float *x);
    float (*sum_exp)(int64_t count, const float *x, float shift);                      /* sum of exp(x - shift) */
    void (*softmax)(int64_t count, const float *x, float lse, float factor, float *y); /* exp(x - lse) factor */
};
extern const struct operator_code operators_avx2, operators_avx512; /* x86-64 alone */
const struct operator_code *operator_code_choose(void);

struct operators {
    coda_device *device;
    const struct operator_code *code;
    coda_dtype dtype;
    double *bytes; /* added to: what every operator reads and writes */
};

enum elementwise { ADD, MULTIPLY, SILU, SILU_BACKWARD };

/* y = a op b, or op a; y may be a or b. */
void operate(const struct operators *o, enum elementwise op, int64_t count, const void *a, const void *b, void *y);
/* Row i of y is row tokens[i] of the embedding. */
void gather_rows(const struct operators *o, int64_t rows, int64_t width, const void *embedding, const int32_t *tokens,
                 void *y);
/* y = round(x / RMS) g; scale = 1 / RMS, one a row */
void rms_norm(const struct operators *o, int64_t rows, int64_t width, const void *x, const void *g, double eps, void *y,
              float *scale);
/* dx, and the sums over each ROW_RUN rows of dy x / RMS: [rows / ROW_RUN, width] */
void rms_norm_backward(const struct operators *o, int64_t rows, int64_t width, const void *dy, const void *x,
                       const void *g, const float *scale, void *dx, float *partials);
/* Rotates in place the first `heads` heads of rows that lie `stride` elements apart. table: [positions, head_dim] */
void rotate(const struct operators *o, int64_t rows, int64_t heads, int64_t head_dim, int64_t stride, void *x,
            const float *table, const int32_t *positions, bool inverse);
/* loss = (lse - logit of the target) weight / divisor, 0 for ignored rows */
void cross_entropy(const struct operators *o, int64_t rows, int64_t width, const void *logits, const int32_t *targets,
                   const float *weights, double divisor, float *lse, float *loss);
/* Turns the logits into their gradient. */
void cross_entropy_backward(const struct operators *o, int64_t rows, int64_t width, void *logits,
                            const int32_t *targets, const float *weights, double divisor, const float *lse);

#endif
