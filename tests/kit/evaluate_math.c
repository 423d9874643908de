#include "evaluate.h"

#include <math.h>

static double ref_sigmoid(double a)
{
    return 1 / (1 + exp(-a));
}

static double ref_gelu(double a)
{
    return 0.5 * a * erfc(-a * 0.70710678118654752);
}

static double ref_gelu_tanh(double a)
{
    return a * ref_sigmoid(1.5957691216057308 * (a + 0.044715 * a * a * a));
}

static double ref_max(double a, double b)
{
    return isnan(a) || isnan(b) ? NAN : a > b ? a : b;
}

static double ref_min(double a, double b)
{
    return isnan(a) || isnan(b) ? NAN : a < b ? a : b;
}

double evaluate_primitive(enum op op, const double *input)
{
    double a = input[0], b = input[1], c = input[2];
    switch (op) {
#define PRIMITIVE(op, name, arity, meaning, cuda, da, db, dc, cost)                                                    \
    case OP_##op:                                                                                                      \
        return meaning;
#include "ir/primitives.def"
#undef PRIMITIVE
    default:
        return NAN;
    }
}

/* What the operation itself rounds, in units of u = 2^-24: `relative` of |y|, `argument` of |a|. One ulp is 2 u. The
 * forms with an argument term lose digits to cancellation in every implementation that computes 1 + erf or 1 + tanh. */
static const struct {
    double relative, argument;
} rounding[OP_COUNT] = {
    [OP_EXP] = {8, 0},     [OP_LOG] = {8, 0},   [OP_SQRT] = {2, 0}, [OP_RSQRT] = {4, 0},     [OP_TANH] = {10, 0},
    [OP_SIGMOID] = {8, 0}, [OP_SILU] = {10, 0}, [OP_GELU] = {8, 8}, [OP_GELU_TANH] = {8, 8}, [OP_ERF] = {10, 0},
    [OP_ADD] = {1, 0},     [OP_SUB] = {1, 0},   [OP_MUL] = {1, 0},  [OP_DIV] = {3, 0},
};

static bool is_comparison(enum op op)
{
    return op == OP_LT || op == OP_LE || op == OP_GT || op == OP_GE || op == OP_EQ || op == OP_NE;
}

double primitive_bound(enum op op, const double *a, const double *e, double y)
{
    double bound = 0x1p-24 * (rounding[op].relative * fabs(y) + rounding[op].argument * fabs(a[0]));
    double moved[3] = {a[0], a[1], a[2]}, error[3] = {e[0], e[1], e[2]};
    if (is_comparison(op)) {
        error[0] += error[1];
        error[1] = 0;
    }
    for (int i = 0; i < op_arity(op); i++) {
        if (error[i] == 0)
            continue;
        moved[i] = a[i] + error[i];
        double up = fabs(evaluate_primitive(op, moved) - y);
        moved[i] = a[i] - error[i];
        double down = fabs(evaluate_primitive(op, moved) - y);
        moved[i] = a[i];
        bound += isnan(up) || isnan(down) ? INFINITY : fmax(up, down);
    }
    return isnan(bound) ? INFINITY : bound;
}
