/* Stores of vectors, rounding to bf16, and the jumps around what is rare. */
#include "cpu/vector_compiler.h"

#if defined(__x86_64__) && defined(__linux__)
#include <string.h>

enum { SUBNORMAL = 0x20 };

/* A jump, on a condition or always, to a place before it. */
void vector_jump_back(struct compiler *c, int condition, size_t to)
{
    const unsigned char jump[] = {0x0f, (unsigned char)condition};
    if (condition)
        assemble_bytes(&c->as, jump, sizeof jump);
    else
        assemble_byte(&c->as, 0xe9);
    const int32_t distance = (int32_t)((int64_t)to - (int64_t)(c->as.used + 4));
    assemble_bytes(&c->as, &distance, sizeof distance);
}

/* A jump whose end is not known yet; vector_land_here tells it. */
size_t vector_jump_ahead(struct compiler *c, int condition)
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

void vector_land_here(struct compiler *c, size_t jump)
{
    const int32_t distance = (int32_t)(c->as.used - jump);
    if (c->as.used <= c->as.room)
        memcpy(c->as.code + jump - 4, &distance, sizeof distance);
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
    vector_put_shift(c, SCRATCH, value, SHIFT_RIGHT, 16);
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
    vector_put_shift(c, SCRATCH, SCRATCH, SHIFT_RIGHT, 16);
    store_halfwords(c, to);
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
    *detour = (struct detour){.from = vector_jump_ahead(c, IF_NOT_ZERO), .low = low, .high = high, .to = to};
    if (high < 0) {
        assemble_registers(&c->as, narrow, ZMM, SCRATCH, 0, low);
        assemble_memory(&c->as, c->streaming ? stream : store, YMM, SCRATCH, 0, to);
    } else {
        assemble_registers(&c->as, narrow_both, ZMM, SCRATCH, high, low);
        assemble_memory(&c->as, c->streaming ? stream : store, ZMM, SCRATCH, 0, to);
    }
    detour->back = c->as.used;
}

void vector_put_detours(struct compiler *c)
{
    for (int i = 0; i < c->detours; i++) {
        const struct detour *detour = &c->detour[i];
        struct address to = detour->to;
        vector_land_here(c, detour->from);
        store_bf16(c, detour->low, to);
        to.offset += 2 * lanes_of(c);
        if (detour->high >= 0)
            store_bf16(c, detour->high, to);
        vector_jump_back(c, ALWAYS, detour->back);
    }
    c->detours = 0;
}

/* Two vectors that stand side by side are rounded and stored as one, when the second is there. */
static void put_narrow_store(struct compiler *c, const struct vector_instruction *x)
{
    const bool apart = c->code->half > 0; /* neighbours are other copies */
    const bool second = !apart && c->copy % 2 == 1, alone = apart || (!second && c->copy + 1 == c->copies);
    if (!second && !alone)
        return;
    struct address to = vector_row_of(c, x->number, 1);
    if (second)
        to.offset -= 2 * lanes_of(c);
    const int last = x->input[0] >= 0 ? c->place[c->copy][x->input[0]] : vector_in_register(c, x->input[0], OTHER);
    const int first = x->input[0] >= 0 && second ? c->place[c->copy - 1][x->input[0]] : last;
    narrow_bf16(c, first, second ? last : -1, to);
    vector_free_inputs(c, x);
    c->copy -= second;
    vector_free_inputs(c, x);
    c->copy += second;
}

void vector_put_store(struct compiler *c, const struct vector_instruction *x)
{
    const struct opcode store = {0, 1, 0x11}, stream = {0, 1, 0x2b}, narrow = {1, 3, 0x1d};
    if (x->op == VECTOR_STORE_BF16 && c->narrows) {
        put_narrow_store(c, x);
        return;
    }
    const int value = vector_in_register(c, x->input[0], OTHER);
    const struct address to = vector_row_of(c, x->number, x->op == VECTOR_STORE_F32 ? 2 : 1);
    if (x->op == VECTOR_STORE_F32) {
        assemble_memory(&c->as, c->streaming ? stream : store, c->whole, value, 0, to);
    } else if (x->op == VECTOR_STORE_F16) {
        assemble_memory(&c->as, narrow, c->whole, value, 0, to);
        assemble_byte(&c->as, 0); /* to nearest even */
    } else {
        store_bf16(c, value, to);
    }
    vector_free_inputs(c, x);
}

#else
typedef int no_vector_stores;
#endif
