/* From vector code to machine code: one pass that gives every value a register and encodes its instruction. A few vectors
 * are worked on side by side, instruction by instruction, because chains of dependent operations are long. */
#include "cpu/vector_code.h"

#if defined(__x86_64__) && defined(__linux__)
#include "cpu/assemble.h"
#include "cpu/exp_table.h"

#include <string.h>
#include <sys/mman.h>

/* Registers 0 and 1 are scratch, and 2 too where comparisons need one. */
enum {
    SCRATCH,
    OTHER,
    MASK,
    REGISTERS = 32,
    LINE = 64,
    CODE_ROOM = 1 << 17,
    MOST_COPIES = 4,
    MAX_DETOURS = 64,
    ROUNDING = 3
};

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
    enum length whole;
    bool narrows; /* there are instructions that round to bf16 */
    struct detour {
        size_t from, back; /* the jump's end, and where it comes back to */
        int low, high;     /* registers to be stored, high -1: one alone */
        struct address to;
    } detour[MAX_DETOURS]; /* behind the function: what its jumps ahead lead to */
    int detours;
};

static int lanes_of(const struct compiler *c)
{
    return c->whole == ZMM ? 16 : 8;
}

/* ---------------------------------------------------------------- registers */

static int input_count(enum vector_op op)
{
    if (op <= VECTOR_REPEAT)
        return 0;
    if (op <= VECTOR_STORE_F16 || (op >= VECTOR_SHIFT_LEFT && op <= VECTOR_SQRT))
        return 1;
    return op < VECTOR_SHIFT_LEFT ? 2 : op >= VECTOR_SELECT ? 4 : 3;
}

static void find_last_uses(struct compiler *c)
{
    for (int i = 0; i < c->code->count; i++) {
        const struct vector_instruction *x = &c->code->instruction[i];
        c->last[i] = i;
        for (int k = 0; k < input_count(x->op); k++)
            if (x->input[k] >= 0)
                c->last[x->input[k]] = i;
    }
}

static bool dies(const struct compiler *c, int value)
{
    return value >= 0 && c->last[value] == c->now;
}

static void free_inputs(struct compiler *c, const struct vector_instruction *x)
{
    for (int k = 0; k < input_count(x->op); k++)
        if (dies(c, x->input[k]))
            c->taken[c->place[c->copy][x->input[k]]] = false;
}

/* A free register for the result of this instruction. */
static int take(struct compiler *c)
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

static const struct opcode load_f32 = {0, 1, 0x10}, and_words = {1, 1, 0xdb}, or_words = {1, 1, 0xeb},
                           add_words = {1, 1, 0xfe}, shift_words = {1, 1, 0x72};
enum { ALWAYS, IF_NOT_ZERO = 0x85, IF_LESS = 0x8c, IF_NOT_GREATER = 0x8e, SUBNORMAL = 0x20 };
enum { SHIFT_RIGHT = 2, SHIFT_SIGNED = 4, SHIFT_LEFT = 6 };

static struct address constant_at(int operand)
{
    return (struct address){RSI, -1, 0, ~operand * LINE};
}

/* The operand in a register: its own, or `scratch` for a constant. */
static int in_register(struct compiler *c, int operand, int scratch)
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

static void put_shift(struct compiler *c, int reg, int from, int digit, int bits)
{
    assemble_registers(&c->as, shift_words, c->whole, digit, reg, from);
    assemble_byte(&c->as, bits);
}

/* The row of a stream, from the element on that the loop has reached. */
static struct address row_of(struct compiler *c, int stream, int scale)
{
    const unsigned char move[] = {0x48, 0x8b, 0x87}; /* mov rax, [rdi + ..] */
    const int32_t offset = 8 * stream;
    assemble_bytes(&c->as, move, sizeof move);
    assemble_bytes(&c->as, &offset, sizeof offset);
    return (struct address){RAX, RCX, scale, c->copy * lanes_of(c) << scale};
}

/* ---------------------------------------------------------------- instructions */

static void put_load(struct compiler *c, const struct vector_instruction *x)
{
    const struct opcode widen_words = {1, 2, 0x33}, widen_f16 = {1, 2, 0x13}, repeat = {1, 2, 0x18};
    const int reg = take(c);
    struct address from = row_of(c, x->number, x->op == VECTOR_LOAD_F32 ? 2 : 1);
    if (x->op == VECTOR_REPEAT)
        from = (struct address){RAX, -1, 0, 0};
    const struct opcode op = x->op == VECTOR_LOAD_F32    ? load_f32
                             : x->op == VECTOR_LOAD_BF16 ? widen_words
                             : x->op == VECTOR_LOAD_F16  ? widen_f16
                                                         : repeat;
    assemble_memory(&c->as, op, c->whole, reg, 0, from);
    if (x->op == VECTOR_LOAD_BF16)
        put_shift(c, reg, reg, SHIFT_LEFT, 16);
}

static void put_select(struct compiler *c, const struct vector_instruction *x)
{
    const struct opcode compare = {0, 1, 0xc2}, blend = {1, 3, 0x4a};
    const bool wide = c->whole == ZMM;
    put(c, compare, wide ? 1 : MASK, in_register(c, x->input[0], SCRATCH), x->input[1]);
    assemble_byte(&c->as, x->number);
    const int no = in_register(c, x->input[3], SCRATCH), yes = in_register(c, x->input[2], OTHER);
    free_inputs(c, x);
    const int reg = take(c);
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
    put(c, compare, 1, in_register(c, x->input[0], SCRATCH), x->input[1]);
    assemble_byte(&c->as, x->number);
    const int from = in_register(c, x->input[2], SCRATCH), exponent = in_register(c, x->input[3], OTHER);
    free_inputs(c, x);
    assemble_zeroed(&c->as, scale, take(c), from, exponent);
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
    if (a >= 0 && b >= 0 && !dies(c, a) && dies(c, b)) {
        a = x->input[1];
        b = x->input[0];
    }
    const bool over_sum = dies(c, sum) && sum != a && sum != b;
    const bool over_a = dies(c, a) && (b >= 0 || sum >= 0);
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
        free_inputs(c, x);
        take_this(c, c->place[c->copy][over_sum ? sum : a]);
        return;
    }
    const int reg = take(c);
    put(c, load_f32, reg, 0, sum);
    put(c, form_231, reg, c->place[c->copy][a], b);
    free_inputs(c, x);
    c->taken[reg] = true;
}

static void store_halfwords(struct compiler *c, struct address to)
{
    const struct opcode pack = {1, 2, 0x2b}, high_half = {1, 3, 0x39}, narrow = {2, 2, 0x33};
    const struct opcode store = {2, 1, 0x7f}, stream = {1, 1, 0xe7};
    const bool wide = c->whole == ZMM;
    if (wide) {
        assemble_registers(&c->as, narrow, ZMM, SCRATCH, 0, SCRATCH);
    } else {
        assemble_registers(&c->as, high_half, YMM, SCRATCH, 0, OTHER);
        assemble_byte(&c->as, 1);
        assemble_registers(&c->as, pack, XMM, SCRATCH, SCRATCH, OTHER);
    }
    assemble_memory(&c->as, c->streaming ? stream : store, wide ? YMM : XMM, SCRATCH, 0, to);
}

/* To nearest even: 0x7fff and the last bit that stays are added to the bits below. A NaN gets the bits that make it one,
 * whatever the addition made of it. */
static void store_bf16(struct compiler *c, int value, struct address to)
{
    const struct opcode compare = {0, 1, 0xc2};
    const bool wide = c->whole == ZMM;
    const int rounding = ~c->code->constant_count; /* behind the code's constants */
    put_shift(c, SCRATCH, value, SHIFT_RIGHT, 16);
    assemble_memory(&c->as, and_words, c->whole, SCRATCH, SCRATCH, constant_at(rounding));
    assemble_registers(&c->as, add_words, c->whole, SCRATCH, SCRATCH, value);
    assemble_memory(&c->as, add_words, c->whole, SCRATCH, SCRATCH, constant_at(rounding - 1));
    assemble_registers(&c->as, compare, c->whole, wide ? 1 : OTHER, value, value);
    assemble_byte(&c->as, COMPARE_UNORDERED);
    if (wide) {
        assemble_masked(&c->as, or_words, SCRATCH, SCRATCH, constant_at(rounding - 2));
    } else {
        assemble_memory(&c->as, and_words, c->whole, OTHER, OTHER, constant_at(rounding - 2));
        assemble_registers(&c->as, or_words, c->whole, SCRATCH, SCRATCH, OTHER);
    }
    put_shift(c, SCRATCH, SCRATCH, SHIFT_RIGHT, 16);
    store_halfwords(c, to);
}

/* A jump, on a condition or always, to a place before it. */
static void jump_back(struct compiler *c, int condition, size_t to)
{
    const unsigned char jump[] = {0x0f, (unsigned char)condition};
    if (condition)
        assemble_bytes(&c->as, jump, sizeof jump);
    else
        assemble_byte(&c->as, 0xe9);
    const int32_t distance = (int32_t)((int64_t)to - (int64_t)(c->as.used + 4));
    assemble_bytes(&c->as, &distance, sizeof distance);
}

/* A jump whose end is not known yet; land_here tells it. */
static size_t jump_ahead(struct compiler *c, int condition)
{
    const unsigned char jump[] = {0x0f, (unsigned char)condition};
    const int32_t unknown = 0;
    if (condition)
        assemble_bytes(&c->as, jump, sizeof jump);
    else
        assemble_byte(&c->as, 0xe9);
    assemble_bytes(&c->as, &unknown, sizeof unknown);
    return c->as.used;
}

static void land_here(struct compiler *c, size_t jump)
{
    const int32_t distance = (int32_t)(c->as.used - jump);
    if (c->as.used <= c->as.room)
        memcpy(c->as.code + jump - 4, &distance, sizeof distance);
}

/* The processor's own rounding takes subnormal numbers for zeros, so they are sent on a detour. high: the vector that stands
 * behind in memory, or -1. */
static void narrow_bf16(struct compiler *c, int low, int high, struct address to)
{
    const struct opcode class = {1, 3, 0x66}, narrow = {2, 2, 0x72}, narrow_both = {3, 2, 0x72};
    const struct opcode store = {2, 1, 0x7f}, stream = {1, 1, 0xe7};
    const int value[] = {low, high};
    for (int i = 0; i < 2; i++)
        if (value[i] >= 0) {
            assemble_registers(&c->as, class, ZMM, i + 1, 0, value[i]);
            assemble_byte(&c->as, SUBNORMAL);
        }
    assemble_either_mask(&c->as, 1, high < 0 ? 1 : 2);
    if (c->detours == MAX_DETOURS) {
        c->failed = true;
        return;
    }
    struct detour *detour = &c->detour[c->detours++];
    *detour = (struct detour){.from = jump_ahead(c, IF_NOT_ZERO), .low = low, .high = high, .to = to};
    if (high < 0) {
        assemble_registers(&c->as, narrow, ZMM, SCRATCH, 0, low);
        assemble_memory(&c->as, c->streaming ? stream : store, YMM, SCRATCH, 0, to);
    } else {
        assemble_registers(&c->as, narrow_both, ZMM, SCRATCH, high, low);
        assemble_memory(&c->as, c->streaming ? stream : store, ZMM, SCRATCH, 0, to);
    }
    detour->back = c->as.used;
}

static void put_detours(struct compiler *c)
{
    for (int i = 0; i < c->detours; i++) {
        const struct detour *detour = &c->detour[i];
        struct address to = detour->to;
        land_here(c, detour->from);
        store_bf16(c, detour->low, to);
        to.offset += 2 * lanes_of(c);
        if (detour->high >= 0)
            store_bf16(c, detour->high, to);
        jump_back(c, ALWAYS, detour->back);
    }
    c->detours = 0;
}

/* Two vectors that stand side by side are rounded and stored as one, when the second is there. */
static void put_narrow_store(struct compiler *c, const struct vector_instruction *x)
{
    const bool second = c->copy % 2 == 1, alone = !second && c->copy + 1 == c->copies;
    if (!second && !alone)
        return;
    struct address to = row_of(c, x->number, 1);
    if (second)
        to.offset -= 2 * lanes_of(c);
    const int last = x->input[0] >= 0 ? c->place[c->copy][x->input[0]] : in_register(c, x->input[0], OTHER);
    const int first = x->input[0] >= 0 && second ? c->place[c->copy - 1][x->input[0]] : last;
    narrow_bf16(c, first, second ? last : -1, to);
    free_inputs(c, x);
    c->copy -= second;
    free_inputs(c, x);
    c->copy += second;
}

static void put_store(struct compiler *c, const struct vector_instruction *x)
{
    const struct opcode store = {0, 1, 0x11}, stream = {0, 1, 0x2b}, narrow = {1, 3, 0x1d};
    if (x->op == VECTOR_STORE_BF16 && c->narrows) {
        put_narrow_store(c, x);
        return;
    }
    const int value = in_register(c, x->input[0], OTHER);
    const struct address to = row_of(c, x->number, x->op == VECTOR_STORE_F32 ? 2 : 1);
    if (x->op == VECTOR_STORE_F32) {
        assemble_memory(&c->as, c->streaming ? stream : store, c->whole, value, 0, to);
    } else if (x->op == VECTOR_STORE_F16) {
        assemble_memory(&c->as, narrow, c->whole, value, 0, to);
        assemble_byte(&c->as, 0); /* to nearest even */
    } else {
        store_bf16(c, value, to);
    }
    free_inputs(c, x);
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
    const int second = in_register(c, x->input[0], SCRATCH);
    free_inputs(c, x);
    put(c, opcodes[x->op], take(c), second, x->input[1]);
}

static void put_unary(struct compiler *c, const struct vector_instruction *x)
{
    const struct opcode root = {0, 1, 0x51}, permute = {1, 2, 0x16};
    const int from = in_register(c, x->input[0], SCRATCH);
    free_inputs(c, x);
    const int reg = take(c);
    if (x->op == VECTOR_SQRT)
        assemble_registers(&c->as, root, c->whole, reg, 0, from);
    else if (x->op == VECTOR_SIXTEENTH)
        assemble_memory(&c->as, permute, ZMM, reg, from, constant_at(~(c->code->constant_count + ROUNDING)));
    else
        put_shift(c, reg, from,
                  x->op == VECTOR_SHIFT_LEFT    ? SHIFT_LEFT
                  : x->op == VECTOR_SHIFT_RIGHT ? SHIFT_RIGHT
                                                : SHIFT_SIGNED,
                  x->number);
}

static void put_instruction(struct compiler *c)
{
    const struct vector_instruction *x = &c->code->instruction[c->now];
    if (x->op <= VECTOR_REPEAT)
        put_load(c, x);
    else if (x->op <= VECTOR_STORE_F16)
        put_store(c, x);
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
    if (x->op > VECTOR_STORE_F16 || x->op <= VECTOR_REPEAT)
        if (c->last[c->now] == c->now)
            c->taken[c->place[c->copy][c->now]] = false; /* nothing reads it */
}

/* ---------------------------------------------------------------- functions */

/* `copies` vectors a round, as long as so many are left: rcx against r8, or rdx for one. */
static void put_loop(struct compiler *c, int copies)
{
    const unsigned char next[] = {0x48, 0x83, 0xc1, (unsigned char)(copies * lanes_of(c))}; /* add rcx, .. */
    const unsigned char many[] = {0x4c, 0x39, 0xc1}, one[] = {0x48, 0x39, 0xd1};            /* cmp rcx, r8; rdx */
    const size_t check = jump_ahead(c, ALWAYS), top = c->as.used;
    c->copies = copies;
    memset(c->taken, 0, sizeof c->taken);
    for (c->now = 0; c->now < c->code->count && !c->failed; c->now++)
        for (c->copy = 0; c->copy < copies; c->copy++)
            put_instruction(c);
    assemble_bytes(&c->as, next, sizeof next);
    land_here(c, check);
    assemble_bytes(&c->as, copies > 1 ? many : one, sizeof many);
    jump_back(c, copies > 1 ? IF_NOT_GREATER : IF_LESS, top);
}

/* rdi: streams, rsi: constants, rcx: the element, rdx: the end, which comes in rsi, r8: the last place for a round of
 * several vectors */
static void put_function(struct compiler *c, int copies)
{
    const unsigned char entry[] = {0x31, 0xc9, 0x48, 0x89, 0xf2, 0x48, 0x8d, 0x35}; /* xor ecx, ecx; mov rdx, rsi; */
    const unsigned char last_place[] = {0x4c, 0x8d, 0x82};                          /* lea r8, [rdx + ..] */
    const unsigned char leave[] = {0xc5, 0xf8, 0x77, 0xc3};                         /* vzeroupper; ret */
    assemble_bytes(&c->as, entry, sizeof entry);                                    /* lea rsi, [rip + ..] */
    const int32_t distance = -(int32_t)(c->as.used + 4), round = -copies * lanes_of(c);
    assemble_bytes(&c->as, &distance, sizeof distance);
    assemble_bytes(&c->as, last_place, sizeof last_place);
    assemble_bytes(&c->as, &round, sizeof round);
    if (copies > 1)
        put_loop(c, copies);
    put_loop(c, 1);
    assemble_bytes(&c->as, leave, sizeof leave);
    put_detours(c);
    while (c->as.used % LINE)
        assemble_byte(&c->as, 0xcc);
}

/* The constants of the code, then those of rounding to bf16, each in every lane, and the powers of sixteen lanes. */
static void put_constants(struct compiler *c)
{
    static const uint32_t rounding[ROUNDING] = {1, 0x7fff, 0x7fc00000u}, powers[] = {EXP_SIXTEENTHS};
    for (int i = 0; i < c->code->constant_count + ROUNDING; i++) {
        const uint32_t bits =
            i < c->code->constant_count ? c->code->constant[i] : rounding[i - c->code->constant_count];
        for (int lane = 0; lane < LINE / 4; lane++)
            assemble_bytes(&c->as, &bits, sizeof bits);
    }
    assemble_bytes(&c->as, powers, sizeof powers);
}

/* Constants at the start, then the two functions; false: too few registers for so many copies, or too much code. */
static bool put_program(struct compiler *c, int copies, size_t entry[2])
{
    c->as.used = 0;
    c->detours = 0;
    c->failed = false;
    put_constants(c);
    for (int i = 0; i < 2; i++) {
        c->streaming = i == 1;
        entry[i] = c->as.used;
        put_function(c, copies);
    }
    return !c->failed && c->as.used <= c->as.room;
}

bool vector_compile(const struct vector_code *code, enum machine_code machine, struct vector_program *program)
{
    const bool wide = machine != CODE_AVX2;
    struct compiler c = {.code = code,
                         .whole = wide ? ZMM : YMM,
                         .first_register = wide ? MASK : MASK + 1,
                         .narrows = machine == CODE_AVX512_BF16};
    size_t entry[2];
    c.register_end = wide ? 32 : 16;
    *program = (struct vector_program){0};
    if (code->failed)
        return false;
    void *memory = mmap(NULL, CODE_ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    c.as = (struct assembler){.code = memory, .room = CODE_ROOM, .wide = wide};
    find_last_uses(&c);
    int copies = MOST_COPIES;
    while (copies > 0 && !put_program(&c, copies, entry))
        copies /= 2;
    if (copies == 0 || mprotect(memory, CODE_ROOM, PROT_READ | PROT_EXEC)) {
        munmap(memory, CODE_ROOM);
        return false;
    }
    program->memory = memory;
    program->bytes = CODE_ROOM;
    for (int i = 0; i < 2; i++) {
        const char *at = (const char *)memory + entry[i];
        memcpy(&program->run[i], &at, sizeof at); /* ISO C has no cast from data to functions */
    }
    return true;
}

void vector_release(struct vector_program *program)
{
    if (program->memory)
        munmap(program->memory, program->bytes);
    *program = (struct vector_program){0};
}

#else
bool vector_compile(const struct vector_code *code, enum machine_code machine, struct vector_program *program)
{
    (void)code, (void)machine;
    *program = (struct vector_program){0};
    return false;
}

void vector_release(struct vector_program *program)
{
    (void)program;
}
#endif
