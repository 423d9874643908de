/* One vectorised function an elementwise primitive and set of inputs that are one value a row. A new primitive is a row
 * of FORMULAS here and one of primitives.def. */
#ifndef CODA_CPU_ELEMENTWISE_H
#define CODA_CPU_ELEMENTWISE_H

#include "cpu/convert_rows.h"
#include "runtime/elementary.h"
#include "cpu/instruction_set.h"

INLINE lanes lanes_truth(ints mask)
{
    return (lanes)(mask & 0x3f800000);
}

#define FORMULA_NEG(a, b, c)       (lanes)((words)(a) ^ 0x80000000u)
#define FORMULA_EXP(a, b, c)       lanes_exp(a)
#define FORMULA_LOG(a, b, c)       lanes_log(a)
#define FORMULA_SQRT(a, b, c)      lanes_sqrt(a)
#define FORMULA_RSQRT(a, b, c)     lanes_rsqrt(a)
#define FORMULA_TANH(a, b, c)      lanes_tanh(a)
#define FORMULA_SIGMOID(a, b, c)   lanes_sigmoid(a)
#define FORMULA_SILU(a, b, c)      lanes_silu(a)
#define FORMULA_GELU(a, b, c)      lanes_gelu(a)
#define FORMULA_GELU_TANH(a, b, c) lanes_gelu_tanh(a)
#define FORMULA_ERF(a, b, c)       lanes_erf(a)
#define FORMULA_RELU(a, b, c)      lanes_max(a, lanes_set(0))
#define FORMULA_ABS(a, b, c)       lanes_abs(a)
#define FORMULA_ADD(a, b, c)       (a) + (b)
#define FORMULA_SUB(a, b, c)       (a) - (b)
#define FORMULA_MUL(a, b, c)       (a) * (b)
#define FORMULA_DIV(a, b, c)       (a) / (b)
#define FORMULA_MIN(a, b, c)       lanes_min(a, b)
#define FORMULA_MAX(a, b, c)       lanes_max(a, b)
#define FORMULA_LT(a, b, c)        lanes_truth((a) < (b))
#define FORMULA_LE(a, b, c)        lanes_truth((a) <= (b))
#define FORMULA_GT(a, b, c)        lanes_truth((a) > (b))
#define FORMULA_GE(a, b, c)        lanes_truth((a) >= (b))
#define FORMULA_EQ(a, b, c)        lanes_truth((a) == (b))
#define FORMULA_NE(a, b, c)        lanes_truth((a) != (b))
#define FORMULA_CLAMP(a, b, c)     lanes_min(lanes_max(a, b), c)
#define FORMULA_WHERE(a, b, c)     lanes_select((a) != 0.0f, b, c)

/* Not primitives: pairs of them that one instruction does. */
#define FORMULA_MULTIPLY_ADD(a, b, c)      lanes_fma(a, b, c)
#define FORMULA_MULTIPLY_SUBTRACT(a, b, c) lanes_fma(a, b, -(c))
#define FORMULA_SUBTRACT_PRODUCT(a, b, c)  lanes_fma(-(a), b, c)

#define UNROLL _Pragma("GCC unroll 2")

INLINE lanes input_lanes(const float *row, int64_t j, bool scalar, lanes value)
{
    return scalar ? value : lanes_load(row + j);
}

/* Rows that follow each other without a gap are one long row. */
INLINE void join_rows(struct rows *r, int vectors)
{
    bool together = r->out_stride == r->width;
    for (int k = 0; k < vectors; k++)
        together = together && r->in_stride[k] == r->width;
    if (!together)
        return;
    r->width *= r->rows;
    r->rows = 1;
}

#define VARIANT(op, arity, mask)                                                                                       \
    static void rows_##op##_##mask(const struct rows *rows)                                                            \
    {                                                                                                                  \
        struct rows r = *rows;                                                                                         \
        if ((mask) == 0)                                                                                               \
            join_rows(&r, arity);                                                                                      \
        for (int i = 0; i < r.rows; i++) {                                                                             \
            const float *x = r.in[0] + i * r.in_stride[0];                                                             \
            const float *y = (arity) > 1 ? r.in[1] + i * r.in_stride[1] : x;                                           \
            const float *z = (arity) > 2 ? r.in[2] + i * r.in_stride[2] : x;                                           \
            float *out = r.out + i * r.out_stride;                                                                     \
            const lanes p = lanes_set(*x), q = lanes_set(*y), s = lanes_set(*z);                                       \
            UNROLL                                                                                                     \
            for (int j = 0; j < r.width; j += LANES) {                                                                 \
                const lanes a = input_lanes(x, j, (mask)&1, p);                                                        \
                const lanes b = (arity) > 1 ? input_lanes(y, j, (mask)&2, q) : a;                                      \
                const lanes c = (arity) > 2 ? input_lanes(z, j, (mask)&4, s) : a;                                      \
                (void)b, (void)c;                                                                                      \
                lanes_store(out + j, FORMULA_##op(a, b, c));                                                           \
            }                                                                                                          \
        }                                                                                                              \
    }
#define VARIANTS_1(op) VARIANT(op, 1, 0) VARIANT(op, 1, 1)
#define VARIANTS_2(op) VARIANT(op, 2, 0) VARIANT(op, 2, 1) VARIANT(op, 2, 2) VARIANT(op, 2, 3)
#define VARIANTS_3(op)                                                                                                 \
    VARIANT(op, 3, 0)                                                                                                  \
    VARIANT(op, 3, 1)                                                                                                  \
    VARIANT(op, 3, 2) VARIANT(op, 3, 3) VARIANT(op, 3, 4) VARIANT(op, 3, 5) VARIANT(op, 3, 6) VARIANT(op, 3, 7)
#define ROW_1(op)                                                                                                      \
    {                                                                                                                  \
        rows_##op##_0, rows_##op##_1                                                                                   \
    }
#define ROW_2(op)                                                                                                      \
    {                                                                                                                  \
        rows_##op##_0, rows_##op##_1, rows_##op##_2, rows_##op##_3                                                     \
    }
#define ROW_3(op)                                                                                                      \
    {                                                                                                                  \
        rows_##op##_0, rows_##op##_1, rows_##op##_2, rows_##op##_3, rows_##op##_4, rows_##op##_5, rows_##op##_6,       \
            rows_##op##_7                                                                                              \
    }

#define PRIMITIVE(op, name, arity, meaning, cuda, da, db, dc, cost) VARIANTS_##arity(op)
#include "ir/primitives.def"
#undef PRIMITIVE
VARIANTS_3(MULTIPLY_ADD)
VARIANTS_3(MULTIPLY_SUBTRACT)
VARIANTS_3(SUBTRACT_PRODUCT)

static rows_function *const elementwise_table[OP_COUNT][SCALAR_MASKS] = {
#define PRIMITIVE(op, name, arity, meaning, cuda, da, db, dc, cost) [OP_##op] = ROW_##arity(op),
#include "ir/primitives.def"
#undef PRIMITIVE
};

static rows_function *const fused_table[FUSED_COUNT][SCALAR_MASKS] = {
    [MULTIPLY_ADD] = ROW_3(MULTIPLY_ADD),
    [MULTIPLY_SUBTRACT] = ROW_3(MULTIPLY_SUBTRACT),
    [SUBTRACT_PRODUCT] = ROW_3(SUBTRACT_PRODUCT),
};

/* ---------------------------------------------------------------- copies and casts */

#define FORMULA_COPY(a, b, c) (a)
VARIANTS_1(COPY)

#define FORMULA_ROUND_f32(a, b, c)  (a)
#define FORMULA_ROUND_bf16(a, b, c) (lanes)(bits_bf16(a) << 16)
#define ROUND_THROUGH(type)                                                                                            \
    INLINE lanes round_##type(lanes x)                                                                                 \
    {                                                                                                                  \
        char element[ELEMENT_MAX * LANES];                                                                             \
        store_##type(element, x);                                                                                      \
        return load_##type(element);                                                                                   \
    }
ROUND_THROUGH(f16)
ROUND_THROUGH(e4m3)
ROUND_THROUGH(e5m2)
ROUND_THROUGH(i32)
#define FORMULA_ROUND_f16(a, b, c)  round_f16(a)
#define FORMULA_ROUND_e4m3(a, b, c) round_e4m3(a)
#define FORMULA_ROUND_e5m2(a, b, c) round_e5m2(a)
#define FORMULA_ROUND_i32(a, b, c)  round_i32(a)
VARIANT(ROUND_f32, 1, 0)
VARIANT(ROUND_bf16, 1, 0)
VARIANT(ROUND_f16, 1, 0)
VARIANT(ROUND_e4m3, 1, 0)
VARIANT(ROUND_e5m2, 1, 0)
VARIANT(ROUND_i32, 1, 0)

#endif
