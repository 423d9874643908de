/* From vector code to machine code: one pass that gives every value a register and encodes its instruction. A few vectors
 * are worked on side by side, instruction by instruction, because chains of dependent operations are long. */
#include "cpu/vector_compiler.h"

#if defined(__x86_64__) && defined(__linux__)
#include "cpu/exp_table.h"

#include <string.h>
#include <sys/mman.h>

enum { CODE_ROOM = 1 << 17 };

/* ---------------------------------------------------------------- functions */

/* `copies` vectors a round, as long as so many are left: rcx against r8, or rdx for one. */
static void put_loop(struct compiler *c, int copies)
{
    const unsigned char next[] = {0x48, 0x83, 0xc1, (unsigned char)(copies * lanes_of(c))}; /* add rcx, .. */
    const unsigned char many[] = {0x4c, 0x39, 0xc1}, one[] = {0x48, 0x39, 0xd1};            /* cmp rcx, r8; rdx */
    const size_t check = vector_jump_ahead(c, ALWAYS), top = c->as.used;
    c->copies = copies;
    memset(c->taken, 0, sizeof c->taken);
    for (c->now = 0; c->now < c->code->count && !c->failed; c->now++)
        for (c->copy = 0; c->copy < copies; c->copy++)
            vector_put_instruction(c);
    assemble_bytes(&c->as, next, sizeof next);
    vector_land_here(c, check);
    assemble_bytes(&c->as, copies > 1 ? many : one, sizeof many);
    vector_jump_back(c, copies > 1 ? IF_NOT_GREATER : IF_LESS, top);
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
    vector_put_detours(c);
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
    vector_find_last_uses(&c);
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
