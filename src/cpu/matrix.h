/* Operands of products as the packing reads them: stored rows, of one operand or of several stacked ones. */
#ifndef CODA_CPU_MATRIX_H
#define CODA_CPU_MATRIX_H

#include "cpu/instruction_set.h"
#include "runtime/device.h"

struct matrix {
    bool deep;       /* K runs along stored rows; else a stored row is one step of K */
    bool in_place;   /* of a left operand: whole panels of rows are multiplied as they are stored */
    int64_t columns; /* of a stored row */
    int count;
    struct matrix_part {
        const char *data;
        int64_t first, rows, stride; /* first row; bytes between rows */
        coda_dtype dtype;
    } part[MAX_STACK];
};

/* `node` is an `in`, a stack of them, or either transposed; right: it stands on the right of `@`. */
void cpu_matrix_create(struct matrix *matrix, const struct graph *graph, int node, bool right,
                       const struct launch *launch);

/* Can whole panels of rows be multiplied where they are stored? Decided for products of `depth` steps. */
bool cpu_matrix_serves_in_place(const struct matrix *matrix, const struct microkernel *micro, int64_t depth);

enum { WIDE_STEPS = 32 }; /* steps of K that the packing of wide operands takes at a time */

/* What packing needs to know beside the matrix. */
struct packer {
    const struct microkernel *micro;
    const struct instruction_set *isa;
    int side;       /* 0: left, rows are lines; 1: right, columns are lines */
    int width;      /* of a panel */
    float *scratch; /* cpu_matrix_scratch_floats(..) floats */
};

/* Packs `count` lines from `first` on over K range k .. k+depth-1, filled up with zeros to whole steps of the microkernel.
 * deep: into one panel. wide: depth is at most WIDE_STEPS; into all panels that the lines need, panel_bytes apart. */
void cpu_matrix_pack_deep(const struct matrix *matrix, const struct packer *packer, int64_t first, int64_t count,
                          int64_t k, int64_t depth, char *panel);
void cpu_matrix_pack_wide(const struct matrix *matrix, const struct packer *packer, int64_t first, int64_t count,
                          int64_t k, int64_t depth, char *panels, int64_t panel_bytes);
int64_t cpu_matrix_scratch_floats(const struct microkernel *microkernel, int64_t depth, int64_t lines);

#endif
