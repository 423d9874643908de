/* Reductions over runs of columns, in four parts and a tree as reduce.h adds them, so that the bits are the same. */
#include "cpu/vector_compiler.h"

#if defined(__x86_64__) && defined(__linux__)

enum { ORDERED = 7, SWAP_GROUPS_1 = 0xb1, SWAP_GROUPS_2 = 0x4e };

static bool adds(const struct vector_instruction *x)
{
    return x->op == VECTOR_SUM;
}

/* reg = the sum of reg and other, or the larger: reg where it is a NaN; where mask 1 is set, if it is asked for */
static void combine(struct compiler *c, bool sum, bool masked, int reg, int other)
{
    const struct opcode add = {0, 1, 0x58}, greater = {0, 1, 0x5f}, compare = {0, 1, 0xc2};
    if (sum && !masked) {
        assemble_registers(&c->as, add, ZMM, reg, reg, other);
        return;
    }
    if (!sum) {
        if (masked)
            assemble_masked_registers(&c->as, compare, 1, reg, reg);
        else
            assemble_registers(&c->as, compare, ZMM, 1, reg, reg);
        assemble_byte(&c->as, ORDERED);
    }
    assemble_masked_registers(&c->as, sum ? add : greater, reg, reg, other);
}

void vector_put_reduction(struct compiler *c, const struct vector_instruction *x)
{
    const struct opcode and_words = {1, 1, 0xdb}, to_mask = {2, 2, 0x39};
    const int reg = c->sums[c->sum][c->part + c->copy];
    int value = vector_in_register(c, x->input[0], OTHER);
    if (c->other) {
        assemble_memory(&c->as, load_f32, ZMM, SCRATCH, 0, vector_row_of(c, c->code->mask, 2));
        assemble_registers(&c->as, to_mask, ZMM, 1, 0, SCRATCH);
    }
    if (x->op == VECTOR_MAGNITUDE) {
        assemble_memory(&c->as, and_words, ZMM, SCRATCH, value,
                        constant_at(~(c->code->constant_count + MAGNITUDE_BITS)));
        value = SCRATCH;
    }
    combine(c, adds(x), c->other, reg, value);
    vector_free_inputs(c, x);
    if (c->copy + 1 == c->copies)
        c->sum++;
}

static const struct vector_instruction *next_reduction(const struct compiler *c, int *at)
{
    while (*at < c->code->count) {
        const struct vector_instruction *x = &c->code->instruction[(*at)++];
        if (x->op >= VECTOR_SUM && x->op <= VECTOR_MAGNITUDE)
            return x;
    }
    return NULL;
}

void vector_start_sums(struct compiler *c)
{
    const struct opcode exclusive_or = {1, 1, 0xef};
    const struct vector_instruction *x;
    int end = REGISTERS, sum = 0;
    for (int at = 0; (x = next_reduction(c, &at)); sum++) {
        if (sum == MAX_SUMS) {
            c->failed = true;
            return;
        }
        for (int part = 0; part < SUM_PARTS; part++) {
            const int reg = c->sums[sum][part] = --end;
            if (x->op == VECTOR_MAXIMUM)
                assemble_memory(&c->as, load_f32, ZMM, reg, 0, constant_at(~(c->code->constant_count + LEAST_FLOAT)));
            else
                assemble_registers(&c->as, exclusive_or, ZMM, reg, reg, reg);
        }
    }
    c->register_end = end;
}

/* The lanes of a vector, in the tree of lanes_sum. */
static void combine_lanes(struct compiler *c, bool sum, int reg)
{
    const struct opcode swap_quarters = {1, 3, 0x23}, swap_within = {1, 3, 0x04};
    for (int step = 0; step < 4; step++) {
        const bool within = step >= 2;
        assemble_registers(&c->as, within ? swap_within : swap_quarters, ZMM, SCRATCH, within ? 0 : reg, reg);
        assemble_byte(&c->as, step % 2 ? SWAP_GROUPS_1 : SWAP_GROUPS_2);
        combine(c, sum, false, reg, SCRATCH);
    }
}

void vector_finish_sums(struct compiler *c)
{
    const struct opcode store_one = {2, 1, 0x11};
    const struct vector_instruction *x;
    int sum = 0;
    for (int at = 0; !c->failed && (x = next_reduction(c, &at)); sum++) {
        const int *part = c->sums[sum];
        combine(c, adds(x), false, part[0], part[1]);
        combine(c, adds(x), false, part[2], part[3]);
        combine(c, adds(x), false, part[0], part[2]);
        combine_lanes(c, adds(x), part[0]);
        struct address to = vector_row_of(c, x->number, 0);
        to.index = R10;
        to.offset = 0;
        assemble_registers(&c->as, load_f32, ZMM, SCRATCH, 0, part[0]);
        assemble_memory(&c->as, store_one, XMM, SCRATCH, 0, to);
    }
}

#else
typedef int no_vector_sums;
#endif
