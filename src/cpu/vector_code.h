/* Elementwise arithmetic on the vectors of one row as straight-line code, compiled to machine code where that is
 * possible: values stay in vector registers from loading to storing. */
#ifndef CODA_CPU_VECTOR_CODE_H
#define CODA_CPU_VECTOR_CODE_H

#include "coda.h"
#include "ir/graph.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What code can be made of; each can do what those before it can. */
enum machine_code { NO_MACHINE_CODE, CODE_AVX2, CODE_AVX512, CODE_AVX512_BF16 };

enum vector_op {
    VECTOR_LOAD_F32, /* of stream `number` */
    VECTOR_LOAD_BF16,
    VECTOR_LOAD_F16,
    VECTOR_REPEAT,     /* the first element of stream `number`, in all lanes */
    VECTOR_REPEAT_RUN, /* the element of stream `number` for this run, in all lanes */
    VECTOR_STORE_F32,
    VECTOR_STORE_BF16,
    VECTOR_STORE_F16,
    VECTOR_SUM, /* of a run, to stream `number`; these reductions are of sixteen lanes */
    VECTOR_MAXIMUM,
    VECTOR_MAGNITUDE,
    VECTOR_ADD,
    VECTOR_SUBTRACT,
    VECTOR_MULTIPLY,
    VECTOR_DIVIDE,
    VECTOR_LESSER,  /* a < b ? a : b, b where one is a NaN */
    VECTOR_GREATER, /* a > b ? a : b, likewise */
    VECTOR_AND,
    VECTOR_OR,
    VECTOR_XOR,
    VECTOR_ADD_INTEGERS,
    VECTOR_SUBTRACT_INTEGERS,
    VECTOR_SCALE,      /* a 2^floor(b), as the next two of sixteen lanes alone */
    VECTOR_SHIFT_LEFT, /* by `number` bits */
    VECTOR_SHIFT_RIGHT,
    VECTOR_SHIFT_SIGNED,
    VECTOR_SIXTEENTH, /* 2^(i/16), i the lowest four bits */
    VECTOR_SQRT,
    VECTOR_ROTATE,            /* of columns `half` apart, by row `number` of cosines and sines; input[1]: back */
    VECTOR_MULTIPLY_ADD,      /* a * b + c */
    VECTOR_MULTIPLY_SUBTRACT, /* a * b - c */
    VECTOR_SUBTRACT_PRODUCT,  /* c - a * b */
    VECTOR_SELECT,            /* compare(a, b) by `number` ? c : d */
    VECTOR_SCALE_WHERE,       /* compare(a, b) by `number` ? c 2^floor(d) : 0 */
};

/* As VCMPPS numbers them; false where one is a NaN but for the last three. */
enum vector_compare {
    COMPARE_EQUAL,
    COMPARE_LESS,
    COMPARE_LESS_OR_EQUAL,
    COMPARE_UNORDERED,
    COMPARE_NOT_EQUAL,
    COMPARE_NOT_LESS,
};

enum { MAX_VECTOR_OPS = 640, MAX_VECTOR_CONSTANTS = 64, MAX_STREAMS = 20 };

struct vector_instruction {
    enum vector_op op;
    int number;
    int input[4]; /* earlier instructions, or constants: ~index */
};

struct vector_code {
    bool failed; /* it became too long */
    bool wide;   /* for sixteen lanes */
    int run;     /* columns that its reductions are of, a multiple of 64; 0: it has none */
    int half;    /* columns between those that are rotated together; 0: none are */
    int mask; /* the stream that says, where a run is cut short, which elements are there: all bits of a word, or none */
    int count, constant_count;
    struct vector_instruction instruction[MAX_VECTOR_OPS];
    uint32_t constant[MAX_VECTOR_CONSTANTS];
};

/* Appends an instruction; returns what later ones name it by. Inputs that it does not have are 0. */
int vector_emit(struct vector_code *code, enum vector_op op, int number, int a, int b, int c, int d);
int vector_constant(struct vector_code *code, float value);
int vector_bits(struct vector_code *code, uint32_t bits);
/* An elementwise primitive with the formula and the bits of elementwise.h; false: it has no compiled form. */
bool vector_primitive(struct vector_code *code, enum op op, const int input[3], int *result);

/* Where each stream's row begins. */
typedef void vector_function(char *const *streams, int64_t count);

/* Forms of a function. Of a group with reductions ENTRY_OTHER takes one run that is cut short, filled up to a multiple of 64
 * elements; of one with rotations it leaves them out. */
enum vector_entry { ENTRY_USUAL, ENTRY_STREAMING, ENTRY_OTHER, ENTRY_OTHER_STREAMING, ENTRY_COUNT };

struct vector_program {
    /* of `count` elements: a multiple of the lanes, of runs or of heads; streaming: stores pass by the caches */
    vector_function *run[ENTRY_COUNT];
    void *memory;
    size_t bytes;
};

/* exp(x) for x <= 0, as exp_negative of elementary.h. */
int vector_exp_negative(struct vector_code *code, int x);
/* False where the system gives no memory for code or registers do not suffice; that is no error. */
bool vector_compile(const struct vector_code *code, enum machine_code machine, struct vector_program *program);
void vector_release(struct vector_program *program);

#endif
