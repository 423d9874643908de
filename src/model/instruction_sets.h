/* The variants of a table of functions that are compiled once an instruction set. */
#ifndef CODA_MODEL_INSTRUCTION_SETS_H
#define CODA_MODEL_INSTRUCTION_SETS_H

enum instruction_set { PORTABLE, AVX2, AVX512 };

/* The widest that this machine has; CODA_CPU=portable or avx2 keeps it narrower. */
enum instruction_set instruction_set_choose(void);

#endif
