/* From vector code to machine code: one pass that gives every value a register and encodes its instruction. A few vectors
 * are worked on side by side, instruction by instruction, because chains of dependent operations are long. */
#include "cpu/vector_compiler.h"

#if defined(__x86_64__) && defined(__linux__)
#include "runtime/exp_table.h"

#include <string.h>
#include <sys/mman.h>

enum { CODE_ROOM = 1 << 17 };

/* ---------------------------------------------------------------- functions */

static void put_body(struct compiler *c, int copies)
{
    c->copies = copies;
    c->sum = 0;
    memset(c->taken, 0, sizeof c->taken);
    for (c->now = 0; c->now < c->code->count && !c->failed; c->now++)
        for (c->copy = 0; c->copy < copies; c->copy++)
            vector_put_instruction(c);
}

static void put_word(struct compiler *c, const unsigned char *bytes, size_t count, int32_t word)
{
    assemble_bytes(&c->as, bytes, count);
    assemble_bytes(&c->as, &word, sizeof word);
}

/* Run by run: rounds of four vectors, in which a reduction has a part each, up to r8, then what the parts give. r10: four
 * times the number of the run. */
static void put_runs(struct compiler *c, int copies)
{
    const unsigned char no_runs[] = {0x45, 0x31, 0xd2};                            /* xor r10d, r10d */
    const unsigned char run_end[] = {0x4c, 0x8d, 0x81};                            /* lea r8, [rcx + ..] */
    const unsigned char next[] = {0x48, 0x81, 0xc1}, check[] = {0x4c, 0x39, 0xc1}; /* add rcx, ..; cmp rcx, r8 */
    const unsigned char next_run[] = {0x49, 0x83, 0xc2, 0x04, 0x48, 0x39, 0xd1};   /* add r10, 4; cmp rcx, rdx */
    assemble_bytes(&c->as, no_runs, sizeof no_runs);
    const size_t run = c->as.used;
    const unsigned char all[] = {0x49, 0x89, 0xd0}; /* mov r8, rdx */
    if (c->other)
        assemble_bytes(&c->as, all, sizeof all);
    else
        put_word(c, run_end, sizeof run_end, c->code->run);
    const int end = c->register_end;
    vector_start_sums(c);
    const size_t round = c->as.used;
    for (c->part = 0; c->part < SUM_PARTS && !c->failed; c->part += copies)
        put_body(c, copies);
    c->part = 0;
    put_word(c, next, sizeof next, SUM_PARTS * lanes_of(c));
    assemble_bytes(&c->as, check, sizeof check);
    vector_jump_back(c, IF_LESS, round);
    vector_finish_sums(c);
    c->register_end = end;
    assemble_bytes(&c->as, next_run, sizeof next_run);
    vector_jump_back(c, IF_LESS, run);
}

/* Head by head: its two halves side by side, up to r8; r9: four times the column within the half. */
static void put_heads(struct compiler *c, int copies)
{
    const unsigned char head[] = {0x45, 0x31, 0xc9, 0x4c, 0x8d, 0x81}; /* xor r9d, r9d; lea r8, [rcx + ..] */
    const unsigned char next[] = {0x48, 0x81, 0xc1}, next_angle[] = {0x49, 0x81, 0xc1};  /* add rcx, ..; add r9, .. */
    const unsigned char check[] = {0x4c, 0x39, 0xc1}, check_head[] = {0x48, 0x39, 0xd1}; /* cmp rcx, r8; rdx */
    const int step = copies / 2 * lanes_of(c);
    if (copies < 2 || c->code->half % step) {
        c->failed = true;
        return;
    }
    const size_t start = c->as.used;
    put_word(c, head, sizeof head, c->code->half);
    const size_t round = c->as.used;
    put_body(c, copies);
    put_word(c, next, sizeof next, step);
    put_word(c, next_angle, sizeof next_angle, step * (int)sizeof(float));
    assemble_bytes(&c->as, check, sizeof check);
    vector_jump_back(c, IF_LESS, round);
    put_word(c, next, sizeof next, c->code->half);
    assemble_bytes(&c->as, check_head, sizeof check_head);
    vector_jump_back(c, IF_LESS, start);
}

/* `copies` vectors a round, as long as so many are left: rcx against r8, or rdx for one. */
static void put_loop(struct compiler *c, int copies)
{
    const unsigned char next[] = {0x48, 0x83, 0xc1, (unsigned char)(copies * lanes_of(c))}; /* add rcx, .. */
    const unsigned char many[] = {0x4c, 0x39, 0xc1}, one[] = {0x48, 0x39, 0xd1};            /* cmp rcx, r8; rdx */
    const size_t check = vector_jump_ahead(c, ALWAYS), top = c->as.used;
    put_body(c, copies);
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
    if (c->code->run) {
        put_runs(c, copies);
    } else if (c->code->half) {
        put_heads(c, copies);
    } else {
        if (copies > 1)
            put_loop(c, copies);
        put_loop(c, 1);
    }
    assemble_bytes(&c->as, leave, sizeof leave);
    vector_put_detours(c);
    while (c->as.used % LINE)
        assemble_byte(&c->as, 0xcc);
}

/* The constants of the code, then the compiler's own, each in every lane, and the powers of sixteen lanes. */
static void put_constants(struct compiler *c)
{
    static const uint32_t own[OWN_CONSTANTS] = {1, 0x7fff, 0x7fc00000u, 0x7fffffffu, 0xff800000u};
    static const uint32_t powers[] = {EXP_SIXTEENTHS};
    for (int i = 0; i < c->code->constant_count + OWN_CONSTANTS; i++) {
        const uint32_t bits = i < c->code->constant_count ? c->code->constant[i] : own[i - c->code->constant_count];
        for (int lane = 0; lane < LINE / 4; lane++)
            assemble_bytes(&c->as, &bits, sizeof bits);
    }
    assemble_bytes(&c->as, powers, sizeof powers);
}

/* Constants at the start, then the functions; false: too few registers for so many copies, or too much code. */
static bool put_program(struct compiler *c, int copies, size_t entry[ENTRY_COUNT])
{
    c->as.used = 0;
    c->detours = 0;
    c->failed = false;
    put_constants(c);
    for (int i = 0; i < ENTRY_COUNT; i++) {
        c->streaming = i % 2 == 1;
        c->other = i >= ENTRY_OTHER;
        entry[i] = c->as.used;
        if (!c->other || c->code->run || c->code->half)
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
    size_t entry[ENTRY_COUNT];
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
    for (int i = 0; i < ENTRY_COUNT; i++) {
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
