/* What one instruction set offers: GEMM microkernels, and one vectorised function a primitive for the tile machine. */
#ifndef CODA_CPU_INSTRUCTION_SET_H
#define CODA_CPU_INSTRUCTION_SET_H

#include "cpu/vector_code.h"

enum {
    DTYPE_COUNT = CODA_I32 + 1,
    ROOM = 32,        /* rows of registers end on multiples of it: two of the longest vectors */
    SCALAR_MASKS = 8, /* which of three inputs are one value a row */
};

/* ---------------------------------------------------------------- GEMM */

typedef void pack_function(void *panel, const void *block, int64_t stride, int width, int64_t depth);

/* How the operands of one side are packed. A panel holds `width` lines: for each `step` steps of K, all lines one after
 * the other. The functions take a type of memory, NULL where it is not packed directly (never for the packed type):
 * deep: line i is row i of `block`; the panel's last step is filled up with zeros.
 * wide: line i is column i; may read up to ROOM elements of a row. */
struct packing {
    int step;
    pack_function *deep[DTYPE_COUNT], *wide[DTYPE_COUNT];
};

/* Multiplies packed panels: c[rows x columns] (+)= a[depth x rows]^T b[depth x columns], one chain of multiply-adds an
 * element, in increasing depth. */
struct microkernel {
    const char *name;
    unsigned needs;    /* of the machine, bits of enum cpu_feature */
    bool only_bf16;    /* takes products of bf16 with bf16; others take every type, widened to f32 while packing */
    int rows, columns; /* of the product in registers */
    int depth;         /* packed depths are multiples of it */
    int best_depth;    /* of a block of K; 0: what the first cache holds */
    int tile_rows, tile_columns; /* of a tile: near the one, and at most the other */
    coda_dtype packed;           /* type of packed elements: f32 or bf16 */
    struct packing side[2];      /* left, right */
    /* start: c is written, not added to; next: what is multiplied soon, to be brought nearer line by line */
    void (*run)(int64_t depth, const void *a, const void *b, float *c, int64_t stride, bool start, const void *next);
    /* the same from rows of the left operand as they are stored, `row` bytes apart; NULL: they must be packed */
    void (*run_rows)(int64_t depth, const void *rows, int64_t row, const void *b, float *c, int64_t stride, bool start,
                     const void *next);
    void (*begin)(void), (*end)(void); /* around the products of a tile, on its thread; may be NULL */
};

extern const struct microkernel microkernel_avx512bf16;
extern const struct microkernel microkernel_amx;

/* ---------------------------------------------------------------- the tile machine */

/* Rows of registers that an inner function works on: row i of the result is out + i * out_stride, of input k
 * in[k] + i * in_stride[k]; an input that is one value a row is read at its first element. Functions work on whole
 * vectors: registers have room behind `width` up to a multiple of ROOM. */
struct rows {
    int rows, width;
    float *out;
    int64_t out_stride;
    const float *in[3];
    int64_t in_stride[3];
};
typedef void rows_function(const struct rows *rows);
/* run: of a reduction, repetition or pair of halves */
typedef void run_function(const struct rows *rows, int run);

typedef void load_function(float *to, const void *from, int64_t count);
typedef void store_function(void *to, const float *from, int64_t count);

enum reduction { REDUCE_SUM, REDUCE_MAX, REDUCE_ABSMAX, REDUCE_LOGSUMEXP, REDUCTION_COUNT };

/* A reduction on its way: `sum` is the sum, or of logsumexp the sum of exp(x - top); `top` the maximum. */
struct partial {
    float sum, top;
};

/* Pairs of primitives that one function does: a * b + c, a * b - c, c - a * b, of in[0], in[1], in[2]. */
enum fused { MULTIPLY_ADD, MULTIPLY_SUBTRACT, SUBTRACT_PRODUCT, FUSED_COUNT };

struct instruction_set {
    const char *name;
    unsigned needs;
    enum machine_code machine_code;                /* at least, by `needs` */
    const struct microkernel *const *microkernels; /* best first, ends in NULL */
    load_function *load[DTYPE_COUNT];
    store_function *store[DTYPE_COUNT], *add[DTYPE_COUNT];
    store_function *stream[DTYPE_COUNT]; /* past the caches; NULL: as usual */
    void (*stream_end)(void);            /* before others may read what was streamed */
    rows_function *const (
        *elementwise)[SCALAR_MASKS];             /* [enum op][mask: bit k is set where input k is one value a row] */
    rows_function *const (*fused)[SCALAR_MASKS]; /* [enum fused][mask] */
    rows_function *copy[2];                      /* out = in, by mask */
    rows_function *round[DTYPE_COUNT];
    rows_function *even, *odd, *join;           /* width: of the result */
    run_function *first, *second, *join_halves; /* run: h */
    run_function *expand;                       /* out[j] = in[j / run] */
    run_function *reduce[REDUCTION_COUNT];      /* width: of the input; out: one value a run; NULL for logsumexp: */
    run_function *sum_exponentials; /* of in[0] - in[1], the largest of each run; 0 where that is not finite */
    rows_function *finish_runs;     /* logsumexp of such sums in[0] and maxima in[1] */
    /* Along rows: adds the rows of in[0] one by one into out (sum or maximum) and, of logsumexp, out + top_offset. */
    void (*accumulate[REDUCTION_COUNT])(const struct rows *rows, float *top);
    void (*finish_logsumexp)(float *sum, const float *top, int width);
    /* Folds count elements into a reduction. */
    void (*fold[REDUCTION_COUNT])(struct partial *partial, const float *x, int64_t count);
    /* Rotates heads of `head` columns: in[0] rows, in[1] a row of cosines and sines for each. */
    void (*rope[2])(const struct rows *rows, int head, bool inverse); /* [1]: pairs of neighbours */
};

extern const struct instruction_set instruction_set_portable;
extern const struct instruction_set instruction_set_avx2;
extern const struct instruction_set instruction_set_avx512;

#endif
