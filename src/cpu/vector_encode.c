/* Registers of values, and the encoding of each vector instruction but stores. */
#include "cpu/vector_compiler.h"

#if defined(__x86_64__) && defined(__linux__)

/* ---------------------------------------------------------------- registers */

static int input_count(enum vector_op op)
{
    if (op <= VECTOR_REPEAT_RUN)
        return 0;
    if (op <= VECTOR_MAGNITUDE || (op >= VECTOR_SHIFT_LEFT && op <= VECTOR_ROTATE))
        return 1;
    return op < VECTOR_SHIFT_LEFT ? 2 : op >= VECTOR_SELECT ? 4 : 3;
}

void vector_find_last_uses(struct compiler *c)
{
    for (int i = 0; i < c->code->count; i++) {
        const struct vector_instruction *x = &c->code->instruction[i];
        c->last[i] = i;
        for (int k = 0; k < input_count(x->op); k++)
            if (x->input[k] >= 0)
                c->last[x->input[k]] = i;
    }
}

bool vector_dies(const struct compiler *c, int value)
{
    return value >= 0 && c->last[value] == c->now;
}

void vector_free_inputs(struct compiler *c, const struct vector_instruction *x)
{
    for (int k = 0; k < input_count(x->op); k++)
        if (vector_dies(c, x->input[k]))
            c->taken[c->place[c->copy][x->input[k]]] = false;
}

/* A free register for the result of this instruction. */
int vector_take(struct compiler *c)
{
    for (int r = c->first_register; r < c->register_end; r++)
        if (!c->taken[r]) {
            c->taken[r] = true;
            c->place[c->copy][c->now] = r;
            return r;
        }
    c->failed = true;
    return c->first_register;
}

static void take_this(struct compiler *c, int r)
{
    c->taken[r] = true;
    c->place[c->copy][c->now] = r;
}

/* ---------------------------------------------------------------- operands */

/* The operand in a register: its own, or `scratch` for a constant. */
int vector_in_register(struct compiler *c, int operand, int scratch)
{
    if (operand >= 0)
        return c->place[c->copy][operand];
    assemble_memory(&c->as, load_f32, c->whole, scratch, 0, constant_at(operand));
    return scratch;
}

/* reg = second op last, where the last may be a constant in memory */
static void put(struct compiler *c, struct opcode op, int reg, int second, int last)
{
    if (last >= 0)
        assemble_registers(&c->as, op, c->whole, reg, second, c->place[c->copy][last]);
    else
        assemble_memory(&c->as, op, c->whole, reg, second, constant_at(last));
}

void vector_put_shift(struct compiler *c, int reg, int from, int digit, int bits)
{
    assemble_registers(&c->as, shift_words, c->whole, digit, reg, from);
    assemble_byte(&c->as, bits);
}

/* The row of a stream, from the element on that the loop has reached. */
struct address vector_row_of(struct compiler *c, int stream, int scale)
{
    const unsigned char move[] = {0x48, 0x8b, 0x87}; /* mov rax, [rdi + ..] */
    const int32_t offset = 8 * stream;
    assemble_bytes(&c->as, move, sizeof move);
    assemble_bytes(&c->as, &offset, sizeof offset);
    const int element =
        c->code->half ? c->copy / 2 * lanes_of(c) + c->copy % 2 * c->code->half : (c->part + c->copy) * lanes_of(c);
    return (struct address){RAX, RCX, scale, element << scale};
}

/* ---------------------------------------------------------------- instructions */

static void put_load(struct compiler *c, const struct vector_instruction *x)
{
    const struct opcode widen_words = {1, 2, 0x33}, widen_f16 = {1, 2, 0x13}, repeat = {1, 2, 0x18};
    const int reg = vector_take(c);
    struct address from = vector_row_of(c, x->number, x->op == VECTOR_LOAD_F32 ? 2 : 1);
    if (x->op == VECTOR_REPEAT)
        from = (struct address){RAX, -1, 0, 0};
    if (x->op == VECTOR_REPEAT_RUN)
        from = (struct address){RAX, R10, 0, 0};
    const struct opcode op = x->op == VECTOR_LOAD_F32    ? load_f32
                             : x->op == VECTOR_LOAD_BF16 ? widen_words
                             : x->op == VECTOR_LOAD_F16  ? widen_f16
                                                         : repeat;
    assemble_memory(&c->as, op, c->whole, reg, 0, from);
    if (x->op == VECTOR_LOAD_BF16)
        vector_put_shift(c, reg, reg, SHIFT_LEFT, 16);
}

static void put_select(struct compiler *c, const struct vector_instruction *x)
{
    const struct opcode compare = {0, 1, 0xc2}, blend = {1, 3, 0x4a};
    const bool wide = c->whole == ZMM;
    put(c, compare, wide ? 1 : MASK, vector_in_register(c, x->input[0], SCRATCH), x->input[1]);
    assemble_byte(&c->as, x->number);
    const int no = vector_in_register(c, x->input[3], SCRATCH), yes = vector_in_register(c, x->input[2], OTHER);
    vector_free_inputs(c, x);
    const int reg = vector_take(c);
    if (wide) {
        assemble_blend(&c->as, reg, no, yes);
    } else {
        assemble_registers(&c->as, blend, c->whole, reg, no, yes);
        assemble_byte(&c->as, MASK << 4);
    }
}

static void put_scale_where(struct compiler *c, const struct vector_instruction *x)
{
    const struct opcode compare = {0, 1, 0xc2}, scale = {1, 2, 0x2c};
    put(c, compare, 1, vector_in_register(c, x->input[0], SCRATCH), x->input[1]);
    assemble_byte(&c->as, x->number);
    const int from = vector_in_register(c, x->input[2], SCRATCH), exponent = vector_in_register(c, x->input[3], OTHER);
    vector_free_inputs(c, x);
    assemble_zeroed(&c->as, scale, vector_take(c), from, exponent);
}

/* The result takes the register of an input that is read for the last time, where there is one. */
static void put_multiply_add(struct compiler *c, const struct vector_instruction *x)
{
    const int kind = 2 * (int)(x->op - VECTOR_MULTIPLY_ADD);
    const struct opcode form_132 = {1, 2, (unsigned char)(0x98 + kind)},
                        form_213 = {1, 2, (unsigned char)(0xa8 + kind)},
                        form_231 = {1, 2, (unsigned char)(0xb8 + kind)};
    int a = x->input[0], b = x->input[1];
    const int sum = x->input[2];
    if (a < 0) {
        a = b;
        b = x->input[0];
    }
    if (a >= 0 && b >= 0 && !vector_dies(c, a) && vector_dies(c, b)) {
        a = x->input[1];
        b = x->input[0];
    }
    const bool over_sum = vector_dies(c, sum) && sum != a && sum != b;
    const bool over_a = vector_dies(c, a) && (b >= 0 || sum >= 0);
    if (a < 0) {
        c->failed = true; /* two constants */
    } else if (over_sum) {
        put(c, form_231, c->place[c->copy][sum], c->place[c->copy][a], b);
    } else if (over_a && b < 0) {
        put(c, form_132, c->place[c->copy][a], c->place[c->copy][sum], b);
    } else if (over_a) {
        put(c, form_213, c->place[c->copy][a], c->place[c->copy][b], sum);
    }
    if (c->failed)
        return;
    if (over_sum || over_a) {
        vector_free_inputs(c, x);
        take_this(c, c->place[c->copy][over_sum ? sum : a]);
        return;
    }
    const int reg = vector_take(c);
    put(c, load_f32, reg, 0, sum);
    put(c, form_231, reg, c->place[c->copy][a], b);
    vector_free_inputs(c, x);
    c->taken[reg] = true;
}

static void put_simple(struct compiler *c, const struct vector_instruction *x)
{
    static const struct opcode opcodes[] = {[VECTOR_ADD] = {0, 1, 0x58},
                                            [VECTOR_SUBTRACT] = {0, 1, 0x5c},
                                            [VECTOR_MULTIPLY] = {0, 1, 0x59},
                                            [VECTOR_DIVIDE] = {0, 1, 0x5e},
                                            [VECTOR_LESSER] = {0, 1, 0x5d},
                                            [VECTOR_GREATER] = {0, 1, 0x5f},
                                            [VECTOR_AND] = {1, 1, 0xdb},
                                            [VECTOR_OR] = {1, 1, 0xeb},
                                            [VECTOR_XOR] = {1, 1, 0xef},
                                            [VECTOR_ADD_INTEGERS] = {1, 1, 0xfe},
                                            [VECTOR_SUBTRACT_INTEGERS] = {1, 1, 0xfa},
                                            [VECTOR_SCALE] = {1, 2, 0x2c}};
    const int second = vector_in_register(c, x->input[0], SCRATCH);
    vector_free_inputs(c, x);
    put(c, opcodes[x->op], vector_take(c), second, x->input[1]);
}

static void put_unary(struct compiler *c, const struct vector_instruction *x)
{
    const struct opcode root = {0, 1, 0x51}, permute = {1, 2, 0x16};
    const int from = vector_in_register(c, x->input[0], SCRATCH);
    vector_free_inputs(c, x);
    const int reg = vector_take(c);
    if (x->op == VECTOR_SQRT)
        assemble_registers(&c->as, root, c->whole, reg, 0, from);
    else if (x->op == VECTOR_SIXTEENTH)
        assemble_memory(&c->as, permute, ZMM, reg, from, constant_at(~(c->code->constant_count + OWN_CONSTANTS)));
    else
        vector_put_shift(c, reg, from,
                         x->op == VECTOR_SHIFT_LEFT    ? SHIFT_LEFT
                         : x->op == VECTOR_SHIFT_RIGHT ? SHIFT_RIGHT
                                                       : SHIFT_SIGNED,
                         x->number);
}

/* (a, b) becomes (a cos - b sin, b cos + a sin), or back: copies stand in pairs. */
static void put_rotation(struct compiler *c, const struct vector_instruction *x)
{
    const struct opcode multiply = {0, 1, 0x59}, multiply_add = {1, 2, 0x98}, multiply_subtract = {1, 2, 0x9a};
    const bool back = x->input[1];
    if (c->copy % 2 == 0)
        return;
    struct address cosine = vector_row_of(c, x->number, 2);
    cosine.index = R9; /* bytes within the head */
    cosine.scale = 0;
    cosine.offset = c->copy / 2 * lanes_of(c) * (int)sizeof(float);
    struct address sine = cosine;
    sine.offset += c->code->half * (int)sizeof(float);
    const int second = c->place[c->copy][x->input[0]], first = c->place[c->copy - 1][x->input[0]];
    assemble_memory(&c->as, multiply, c->whole, SCRATCH, second, sine);
    assemble_memory(&c->as, multiply, c->whole, OTHER, first, sine);
    assemble_memory(&c->as, back ? multiply_add : multiply_subtract, c->whole, first, SCRATCH, cosine);
    assemble_memory(&c->as, back ? multiply_subtract : multiply_add, c->whole, second, OTHER, cosine);
}

/* A rotation takes place where its input stands, which therefore is read nowhere else. */
static void put_in_place(struct compiler *c, const struct vector_instruction *x)
{
    if (x->input[0] < 0 || !vector_dies(c, x->input[0]))
        c->failed = true;
    else
        take_this(c, c->place[c->copy][x->input[0]]);
    if (!c->failed && !c->other)
        put_rotation(c, x);
}

void vector_put_instruction(struct compiler *c)
{
    const struct vector_instruction *x = &c->code->instruction[c->now];
    if (x->op <= VECTOR_REPEAT_RUN)
        put_load(c, x);
    else if (x->op <= VECTOR_STORE_F16)
        vector_put_store(c, x);
    else if (x->op <= VECTOR_MAGNITUDE)
        vector_put_reduction(c, x);
    else if (x->op == VECTOR_ROTATE)
        put_in_place(c, x);
    else if (x->op < VECTOR_SHIFT_LEFT)
        put_simple(c, x);
    else if (x->op <= VECTOR_SQRT)
        put_unary(c, x);
    else if (x->op == VECTOR_SELECT)
        put_select(c, x);
    else if (x->op == VECTOR_SCALE_WHERE)
        put_scale_where(c, x);
    else
        put_multiply_add(c, x);
    if (x->op > VECTOR_MAGNITUDE || x->op <= VECTOR_REPEAT_RUN)
        if (c->last[c->now] == c->now)
            c->taken[c->place[c->copy][c->now]] = false; /* nothing reads it */
}

#else
typedef int no_vector_encoding;
#endif
