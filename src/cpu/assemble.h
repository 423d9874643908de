/* Encodes the few x86-64 vector instructions that epilogues are compiled to: AVX2 with FMA (VEX), or AVX-512 (EVEX). */
#ifndef CODA_CPU_ASSEMBLE_H
#define CODA_CPU_ASSEMBLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct assembler {
    unsigned char *code; /* NULL: only counts */
    size_t used, room;   /* what does not fit is counted, not written */
    bool wide;           /* AVX-512: whole vectors are 64 bytes, and registers 16 to 31 exist */
};

/* prefix: 0 none, 1 66, 2 F3, 3 F2; map: 1 0F, 2 0F38, 3 0F3A */
struct opcode {
    unsigned char prefix, map, code;
};

enum length { XMM, YMM, ZMM };
enum { RAX, RCX, RDX, RSI = 6, RDI = 7, R9 = 9, R10 = 10 };

struct address {
    int base, index; /* the base one of the first eight; index -1: none */
    int scale;       /* the index is shifted by it */
    int32_t offset;
};

void assemble_byte(struct assembler *as, int byte);
void assemble_bytes(struct assembler *as, const void *bytes, size_t count);
/* reg: the first operand as Intel writes it, or the digit of the opcode; second: the one between; last: a register or
 * memory. Registers that an instruction does not have are 0. */
void assemble_registers(struct assembler *as, struct opcode op, enum length length, int reg, int second, int last);
void assemble_memory(struct assembler *as, struct opcode op, enum length length, int reg, int second,
                     struct address address);
/* Only where mask register 1 is set, AVX-512. */
void assemble_masked(struct assembler *as, struct opcode op, int reg, int second, struct address address);
void assemble_masked_registers(struct assembler *as, struct opcode op, int reg, int second, int last);
/* Zeros where mask register 1 is not set, AVX-512. */
void assemble_zeroed(struct assembler *as, struct opcode op, int reg, int second, int last);
/* reg = mask register 1 ? last : second, AVX-512 */
void assemble_blend(struct assembler *as, int reg, int second, int last);
/* Compares mask registers one and other, of 16 lanes, with zero: are both? AVX-512 */
void assemble_either_mask(struct assembler *as, int one, int other);

#endif
