/* A second interpreter, independent of src/ref, that carries three numbers for every element of every value:
 *
 *   value  the mathematics in double
 *   plain  the same with every matrix rounded to the narrow type of the matrices that it comes from, as an unfused bf16
 *          network stores it between kernels (accumulation is exact, vectors and reductions are f32 or wider)
 *   bound  how far f32 arithmetic, in any order of summation, can be from `value`: errors of the inputs times the
 *          derivatives (taken as differences), plus what each operation rounds. u = 2^-24; a product over K elements
 *          adds (K + 8) u sum |a b|, a sum of n elements n u sum |x|, a function of primitives.def the ulps of its row
 * in evaluate_math.c
 *
 * An epilogue in f32 on the exact accumulator must be within `bound` plus one rounding to the out's type, element by
 * element. One that saw a rounded accumulator must make at most twice the error of `plain` (DESIGN, section 10). */
#ifndef KIT_EVALUATE_H
#define KIT_EVALUATE_H

#include "trial.h"

struct numbers {
    int64_t rows, columns;
    double *value, *plain, *bound;
};

struct evaluation {
    int count;
    struct numbers
        out[MAX_OPERANDS]; /* empty for `in`s; `+=` includes what was there. Not yet rounded to the out's type */
};

/* Reads the trial's initial contents. Returns false, with *why, where memory ends or an id is outside its axis. */
bool evaluate_trial(const struct trial *trial, struct evaluation *evaluation, const char **why);
void evaluation_free(struct evaluation *evaluation);

/* y and its bound for an elementwise primitive of inputs a with bounds e. */
double evaluate_primitive(enum op op, const double *a);
double primitive_bound(enum op op, const double *a, const double *e, double y);

#endif
