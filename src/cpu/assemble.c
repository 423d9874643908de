#include "cpu/assemble.h"

void assemble_byte(struct assembler *as, int byte)
{
    if (as->code && as->used < as->room)
        as->code[as->used] = (unsigned char)byte;
    as->used++;
}

void assemble_bytes(struct assembler *as, const void *bytes, size_t count)
{
    const unsigned char *from = bytes;
    for (size_t i = 0; i < count; i++)
        assemble_byte(as, from[i]);
}

/* Bits of registers stand inverted in both prefixes. */
static int inverted(int value, int bit)
{
    return ~value >> bit & 1;
}

/* x and b: registers whose bits 3 extend the index and the base, or bits 4 and 3 of the last register */
static void put_prefix(struct assembler *as, struct opcode op, enum length length, int reg, int second, int x, int b,
                       int mask)
{
    const int second_bits = (~second & 15) << 3;
    if (length == ZMM) {
        assemble_byte(as, 0x62);
        assemble_byte(as, inverted(reg, 3) << 7 | !x << 6 | !b << 5 | inverted(reg, 4) << 4 | op.map);
        assemble_byte(as, second_bits | 1 << 2 | op.prefix);
        assemble_byte(as, 2 << 5 | inverted(second, 4) << 3 | mask);
    } else {
        assemble_byte(as, 0xc4);
        assemble_byte(as, inverted(reg, 3) << 7 | !x << 6 | !b << 5 | op.map);
        assemble_byte(as, second_bits | (length == YMM) << 2 | op.prefix);
    }
    assemble_byte(as, op.code);
}

static void put_registers(struct assembler *as, struct opcode op, enum length length, int reg, int second, int last,
                          int mask)
{
    put_prefix(as, op, length, reg, second, last >> 4 & 1, last >> 3 & 1, mask);
    assemble_byte(as, 0xc0 | (reg & 7) << 3 | (last & 7));
}

void assemble_registers(struct assembler *as, struct opcode op, enum length length, int reg, int second, int last)
{
    put_registers(as, op, length, reg, second, last, 0);
}

static void put_memory(struct assembler *as, struct opcode op, enum length length, int reg, int second,
                       struct address address, int mask)
{
    put_prefix(as, op, length, reg, second, address.index >= 0 && address.index >> 3 & 1, 0, mask);
    assemble_byte(as, 2 << 6 | (reg & 7) << 3 | (address.index >= 0 ? 4 : address.base));
    if (address.index >= 0)
        assemble_byte(as, address.scale << 6 | (address.index & 7) << 3 | address.base);
    assemble_bytes(as, &address.offset, sizeof address.offset);
}

void assemble_memory(struct assembler *as, struct opcode op, enum length length, int reg, int second,
                     struct address address)
{
    put_memory(as, op, length, reg, second, address, 0);
}

void assemble_masked(struct assembler *as, struct opcode op, int reg, int second, struct address address)
{
    put_memory(as, op, ZMM, reg, second, address, 1);
}

void assemble_masked_registers(struct assembler *as, struct opcode op, int reg, int second, int last)
{
    put_registers(as, op, ZMM, reg, second, last, 1);
}

void assemble_zeroed(struct assembler *as, struct opcode op, int reg, int second, int last)
{
    put_registers(as, op, ZMM, reg, second, last, 1 << 7 | 1);
}

void assemble_blend(struct assembler *as, int reg, int second, int last)
{
    const struct opcode vblendmps = {1, 2, 0x65};
    put_registers(as, vblendmps, ZMM, reg, second, last, 1);
}

void assemble_either_mask(struct assembler *as, int one, int other)
{
    const unsigned char kortestw[] = {0xc5, 0xf8, 0x98, (unsigned char)(0xc0 | one << 3 | other)};
    assemble_bytes(as, kortestw, sizeof kortestw);
}
