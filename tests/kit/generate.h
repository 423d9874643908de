/* Random valid programs, as text. */
#ifndef KIT_GENERATE_H
#define KIT_GENERATE_H

#include "coda.h"
#include <stdbool.h>

enum { GENERATED_LINES = 96, GENERATED_NAMES = 24 };

/* A program as lines that each define and use names, so that it can be shrunk. */
struct generated {
    int count;
    struct generated_line {
        char text[400];
        bool is_out;
        int defines[2], uses[GENERATED_NAMES]; /* numbers of names; -1: none */
        int use_count;
    } line[GENERATED_LINES];
    int name_count;
    coda_dims dims; /* small sizes that fit the program; may name axes that it does not have */
};

/* What programs may hold: everything that a device runs, or only what a later pass can treat. */
struct generator_options {
    bool no_gemm;        /* pointwise and reductions only */
    bool differentiable; /* no comparisons, casts, ids or += */
    bool jumps;          /* differentiable ones with comparisons, ids and += */
    int64_t row_limit;   /* sizes are 1 .. limit; 0: 80 */
    int64_t column_limit;
    int statements; /* of the epilogue; 0: random */
};

/* The same seed and options give the same program on every machine. options may be NULL. */
void generate(struct generated *program, uint64_t seed, const struct generator_options *options);
void generated_text(const struct generated *program, char *text, size_t size);
/* Removes the out number `index` (in order) and whatever nothing uses then. False: there is none, or it is the last. */
bool generated_drop_out(struct generated *program, int index);

#endif
