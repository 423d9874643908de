/* The primitives as vector code: the formulas of elementary.h and elementwise.h, operation by operation. */
#include "runtime/exp_table.h"
#include "cpu/vector_code.h"

#include <string.h>

int vector_emit(struct vector_code *code, enum vector_op op, int number, int a, int b, int c, int d)
{
    if (code->count == MAX_VECTOR_OPS) {
        code->failed = true;
        return 0;
    }
    code->instruction[code->count] = (struct vector_instruction){op, number, {a, b, c, d}};
    return code->count++;
}

int vector_bits(struct vector_code *code, uint32_t bits)
{
    for (int i = 0; i < code->constant_count; i++)
        if (code->constant[i] == bits)
            return ~i;
    if (code->constant_count == MAX_VECTOR_CONSTANTS) {
        code->failed = true;
        return ~0;
    }
    code->constant[code->constant_count] = bits;
    return ~code->constant_count++;
}

int vector_constant(struct vector_code *code, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return vector_bits(code, bits);
}

static int binary(struct vector_code *code, enum vector_op op, int a, int b)
{
    return vector_emit(code, op, 0, a, b, 0, 0);
}

static int multiply_add(struct vector_code *code, int a, int b, int c)
{
    return vector_emit(code, VECTOR_MULTIPLY_ADD, 0, a, b, c, 0);
}

static int shift(struct vector_code *code, enum vector_op op, int a, int bits)
{
    return vector_emit(code, op, bits, a, 0, 0, 0);
}

static int choose(struct vector_code *code, enum vector_compare compare, int a, int b, int yes, int no)
{
    return vector_emit(code, VECTOR_SELECT, (int)compare, a, b, yes, no);
}

/* ---------------------------------------------------------------- exponentials */

static const float rounder = 12582912.0f;

/* Sixteen lanes: exp of x without its whole power of two, whose exponent is the floor of *n. */
static int exp_of_sixteenths(struct vector_code *code, int x, int *n)
{
    int shifted, r, p, power;
    shifted = multiply_add(code, x, vector_constant(code, 1.44269504f), vector_constant(code, rounder / 16));
    *n = binary(code, VECTOR_SUBTRACT, shifted, vector_constant(code, rounder / 16));
    r = multiply_add(code, *n, vector_constant(code, -0.693359375f), x);
    r = multiply_add(code, *n, vector_constant(code, 2.12194440e-4f), r);
    p = multiply_add(code, r, vector_constant(code, EXP_CUBE), vector_constant(code, EXP_SQUARE));
    p = multiply_add(code, p, binary(code, VECTOR_MULTIPLY, r, r), r);
    power = vector_emit(code, VECTOR_SIXTEENTH, 0, shifted, 0, 0, 0);
    return multiply_add(code, p, power, power);
}

/* exp of x without its power of two, which stands in the low bits of *shifted */
static int exp_of_rest(struct vector_code *code, int x, int *shifted)
{
    static const float terms[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                  4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
    int n, r, p;
    *shifted = multiply_add(code, x, vector_constant(code, 1.44269504f), vector_constant(code, rounder));
    n = binary(code, VECTOR_SUBTRACT, *shifted, vector_constant(code, rounder));
    r = multiply_add(code, n, vector_constant(code, -0.693359375f), x);
    r = multiply_add(code, n, vector_constant(code, 2.12194440e-4f), r);
    p = vector_constant(code, terms[0]);
    for (int i = 1; i < 6; i++)
        p = multiply_add(code, r, p, vector_constant(code, terms[i]));
    p = multiply_add(code, p, binary(code, VECTOR_MULTIPLY, r, r), r);
    return binary(code, VECTOR_ADD, p, vector_constant(code, 1));
}

int vector_exp_negative(struct vector_code *code, int x)
{
    int shifted, n, p;
    if (code->wide) {
        p = exp_of_sixteenths(code, x, &n);
        return vector_emit(code, VECTOR_SCALE_WHERE, COMPARE_NOT_LESS, x, vector_constant(code, -87), p, n);
    }
    p = exp_of_rest(code, x, &shifted);
    int y = binary(code, VECTOR_ADD_INTEGERS, shift(code, VECTOR_SHIFT_LEFT, shifted, 23), p);
    y = choose(code, COMPARE_LESS, x, vector_constant(code, -87), vector_bits(code, 0), y);
    return choose(code, COMPARE_UNORDERED, x, x, vector_bits(code, 0xffffffffu), y);
}

static int power_of_two(struct vector_code *code, int n)
{
    return shift(code, VECTOR_SHIFT_LEFT, binary(code, VECTOR_ADD_INTEGERS, n, vector_bits(code, 127)), 23);
}

static int exponential(struct vector_code *code, int x)
{
    int shifted, n, p, whole, half;
    x = binary(code, VECTOR_LESSER, vector_constant(code, 100), x);
    x = binary(code, VECTOR_GREATER, vector_constant(code, -110), x);
    if (code->wide) {
        p = exp_of_sixteenths(code, x, &n);
        return binary(code, VECTOR_SCALE, p, n);
    }
    p = exp_of_rest(code, x, &shifted);
    whole = binary(code, VECTOR_SUBTRACT_INTEGERS, shifted, vector_constant(code, rounder));
    half = shift(code, VECTOR_SHIFT_SIGNED, whole, 1);
    p = binary(code, VECTOR_MULTIPLY, p, power_of_two(code, half));
    return binary(code, VECTOR_MULTIPLY, p, power_of_two(code, binary(code, VECTOR_SUBTRACT_INTEGERS, whole, half)));
}

static int sigmoid(struct vector_code *code, int x)
{
    int e = vector_exp_negative(code, binary(code, VECTOR_OR, x, vector_bits(code, 0x80000000u)));
    int above = choose(code, COMPARE_LESS, x, vector_bits(code, 0), e, vector_constant(code, 1));
    return binary(code, VECTOR_DIVIDE, above, binary(code, VECTOR_ADD, e, vector_constant(code, 1)));
}

static int gelu_tanh(struct vector_code *code, int x)
{
    int inner = multiply_add(code, binary(code, VECTOR_MULTIPLY, x, x), vector_constant(code, 0.071354816f),
                             vector_constant(code, 1.5957691f));
    return binary(code, VECTOR_MULTIPLY, sigmoid(code, binary(code, VECTOR_MULTIPLY, inner, x)), x);
}

/* ---------------------------------------------------------------- others */

static int minimum_of(struct vector_code *code, int a, int b)
{
    return choose(code, COMPARE_UNORDERED, a, a, a, binary(code, VECTOR_LESSER, a, b));
}

static int maximum_of(struct vector_code *code, int a, int b)
{
    return choose(code, COMPARE_UNORDERED, a, a, a, binary(code, VECTOR_GREATER, a, b));
}

static int truth(struct vector_code *code, enum vector_compare compare, int a, int b)
{
    return choose(code, compare, a, b, vector_constant(code, 1), vector_bits(code, 0));
}

bool vector_primitive(struct vector_code *code, enum op op, const int input[3], int *result)
{
    const int a = input[0], b = input[1], c = input[2], zero = vector_bits(code, 0);
    switch (op) {
    case OP_NEG:
        *result = binary(code, VECTOR_XOR, a, vector_bits(code, 0x80000000u));
        return true;
    case OP_ABS:
        *result = binary(code, VECTOR_AND, a, vector_bits(code, 0x7fffffffu));
        return true;
    case OP_RELU:
        *result = maximum_of(code, a, zero);
        return true;
    case OP_SQRT:
        *result = vector_emit(code, VECTOR_SQRT, 0, a, 0, 0, 0);
        return true;
    case OP_RSQRT:
        *result = binary(code, VECTOR_DIVIDE, vector_constant(code, 1), vector_emit(code, VECTOR_SQRT, 0, a, 0, 0, 0));
        return true;
    case OP_EXP:
        *result = exponential(code, a);
        return true;
    case OP_SIGMOID:
        *result = sigmoid(code, a);
        return true;
    case OP_SILU:
        *result = binary(code, VECTOR_MULTIPLY, a, sigmoid(code, a));
        return true;
    case OP_GELU_TANH:
        *result = gelu_tanh(code, a);
        return true;
    case OP_ADD:
        *result = binary(code, VECTOR_ADD, a, b);
        return true;
    case OP_SUB:
        *result = binary(code, VECTOR_SUBTRACT, a, b);
        return true;
    case OP_MUL:
        *result = binary(code, VECTOR_MULTIPLY, a, b);
        return true;
    case OP_DIV:
        *result = binary(code, VECTOR_DIVIDE, a, b);
        return true;
    case OP_MIN:
        *result = minimum_of(code, a, b);
        return true;
    case OP_MAX:
        *result = maximum_of(code, a, b);
        return true;
    case OP_CLAMP:
        *result = minimum_of(code, maximum_of(code, a, b), c);
        return true;
    case OP_WHERE:
        *result = choose(code, COMPARE_NOT_EQUAL, a, zero, b, c);
        return true;
    case OP_LT:
        *result = truth(code, COMPARE_LESS, a, b);
        return true;
    case OP_LE:
        *result = truth(code, COMPARE_LESS_OR_EQUAL, a, b);
        return true;
    case OP_GT:
        *result = truth(code, COMPARE_LESS, b, a);
        return true;
    case OP_GE:
        *result = truth(code, COMPARE_LESS_OR_EQUAL, b, a);
        return true;
    case OP_EQ:
        *result = truth(code, COMPARE_EQUAL, a, b);
        return true;
    case OP_NE:
        *result = truth(code, COMPARE_NOT_EQUAL, a, b);
        return true;
    default:
        return false;
    }
}
