/* What the parts of vector_code.c's compiler share. */
#ifndef CODA_CPU_VECTOR_COMPILER_H
#define CODA_CPU_VECTOR_COMPILER_H

#include "cpu/assemble.h"
#include "cpu/vector_code.h"

/* Registers 0 and 1 are scratch, and 2 too where comparisons need one. */
enum {
    SCRATCH,
    OTHER,
    MASK,
    REGISTERS = 32,
    LINE = 64,
    MOST_COPIES = 4,
    MAX_DETOURS = 64,
    MAX_SUMS = 4,
    SUM_PARTS = 4
};
/* Behind the code's constants: of rounding to bf16, then these; the powers of sixteenths last. */
enum { MAGNITUDE_BITS = 3, LEAST_FLOAT, OWN_CONSTANTS };
enum { ALWAYS, IF_NOT_ZERO = 0x85, IF_LESS = 0x8c, IF_NOT_GREATER = 0x8e };
enum { SHIFT_RIGHT = 2, SHIFT_SIGNED = 4, SHIFT_LEFT = 6 };

struct compiler {
    const struct vector_code *code;
    struct assembler as;
    bool streaming, failed;
    int last[MAX_VECTOR_OPS]; /* the last instruction that reads a value */
    int place[MOST_COPIES][MAX_VECTOR_OPS];
    bool taken[REGISTERS];
    int copies;    /* vectors side by side */
    int now, copy; /* the instruction, for which of them */
    int first_register, register_end;
    bool other;                    /* the function's other form */
    int part;                      /* of the four parts of a sum: that of copy 0 */
    int sums[MAX_SUMS][SUM_PARTS]; /* registers, of each reduction in order */
    int sum;                       /* the reduction that comes next */
    enum length whole;
    bool narrows; /* there are instructions that round to bf16 */
    struct detour {
        size_t from, back; /* the jump's end, and where it comes back to */
        int low, high;     /* registers to be stored, high -1: one alone */
        struct address to;
    } detour[MAX_DETOURS]; /* behind the function: what its jumps ahead lead to */
    int detours;
};

static const struct opcode load_f32 = {0, 1, 0x10}, and_words = {1, 1, 0xdb}, or_words = {1, 1, 0xeb},
                           add_words = {1, 1, 0xfe}, shift_words = {1, 1, 0x72};

static inline int lanes_of(const struct compiler *c)
{
    return c->whole == ZMM ? 16 : 8;
}

static inline struct address constant_at(int operand)
{
    return (struct address){RSI, -1, 0, ~operand * LINE};
}

/* Registers and operands (vector_encode.c). */
void vector_find_last_uses(struct compiler *c);
bool vector_dies(const struct compiler *c, int value);
void vector_free_inputs(struct compiler *c, const struct vector_instruction *x);
/* A free register for the result of this instruction. */
int vector_take(struct compiler *c);
/* The operand in a register: its own, or `scratch` for a constant. */
int vector_in_register(struct compiler *c, int operand, int scratch);
void vector_put_shift(struct compiler *c, int reg, int from, int digit, int bits);
/* The row of a stream, from the element on that the loop has reached. */
struct address vector_row_of(struct compiler *c, int stream, int scale);
/* Encodes instruction `now` for copy `copy`. */
void vector_put_instruction(struct compiler *c);

/* Stores and jumps (vector_store.c). */
void vector_put_store(struct compiler *c, const struct vector_instruction *x);
void vector_put_reduction(struct compiler *c, const struct vector_instruction *x);
/* Around the elements of a run: registers for its reductions, and what they give. */
void vector_start_sums(struct compiler *c);
void vector_finish_sums(struct compiler *c);
/* What jumps out of the function's way lead to, behind it. */
void vector_put_detours(struct compiler *c);
/* A jump whose end is not known yet; vector_land_here tells it. */
size_t vector_jump_ahead(struct compiler *c, int condition);
void vector_land_here(struct compiler *c, size_t jump);
/* A jump, on a condition or always, to a place before it. */
void vector_jump_back(struct compiler *c, int condition, size_t to);

#endif
