/* A kernel's complete text: the fixed parts of device/ around the generated epilogue. */
#ifndef CODA_CUDA_SOURCE_H
#define CODA_CUDA_SOURCE_H

#include "cuda/plan.h"
#include "cuda/text.h"

enum mainloop {
    MAINLOOP_ROWS,        /* a program of row vectors */
    MAINLOOP_COLUMNS,     /* of column vectors */
    MAINLOOP_ELEMENTWISE, /* of matrices, without a product */
    MAINLOOP_PLAIN,       /* products of any types, without matrix units */
    MAINLOOP_PORTABLE,    /* bf16 and f16, cp.async and mma.sync */
    MAINLOOP_DIRECT,      /* Hopper: TMA and wgmma, the epilogue after the tile */
    MAINLOOP_COPIED,      /* Hopper: a rounded tile that is an out as it stands, stored by the copy engine */
    MAINLOOP_WARPS,       /* Hopper: the epilogue of a tile by other warps, beside the next one's products */
};

enum { MAX_PROBLEMS = MAX_SETS }; /* of one launch */

/* One way to run a program. */
struct variant {
    enum mainloop mainloop;
    int bands;    /* of 64 rows in a tile */
    int columns;  /* of a tile, for each accumulator */
    int stages;   /* of the ring in shared memory */
    int depth;    /* elements of K in a stage */
    int flight;   /* Hopper: steps in flight behind the newest */
    int halves;   /* warps: parts in which a tile passes through shared memory */
    bool spread;  /* warps: a half has every second group, so that heads side by side share a rotation's angles */
    int slots;    /* warps: groups whose inputs are in shared memory or on their way there */
    int across;   /* elementwise: groups of columns of one row that a warp has side by side */
    int together; /* elementwise: such steps whose operands are asked for at once */
    int resident; /* elementwise: blocks that a multiprocessor must hold */
    int cluster;  /* blocks that share the right operand */
    bool narrow;  /* Hopper: tiles of a last wave that fills less than half the GPU may be half as wide */
    int box_rows; /* Hopper: rows of the right operand that one copy brings */
    int map_count;
    int problems; /* Hopper: sets of operands that one launch takes; at most 1: one */
};

const char *mainloop_name(enum mainloop mainloop);
bool is_hopper(enum mainloop mainloop);
bool rounds(enum mainloop mainloop); /* accumulators to bf16 */
/* Threads of a block, and its dynamic shared memory. */
int variant_threads(const struct variant *variant);
int variant_shared_bytes(const struct plan *plan, const struct variant *variant);

/* Writes the text. `input_slots` (may be NULL) receives the 16-byte slots that a thread needs to bring a group's
 * inputs. */
coda_status source_write(const struct plan *plan, const struct variant *variant, struct text *source,
                         coda_error *error);

/* The kernel's name in the text and in profilers: coda_gemm_rms_swiglu. */
enum { ENTRY_NAME = 128 };
void source_entry(const char *program, char name[ENTRY_NAME]);

/* The text as it is compiled: without comments, and with a common name for the kernel. Programs that differ in names alone
 * share it, and a cubin on disk. source_name then gives the kernel in a copy of the cubin its own name. */
coda_status source_without_names(const struct text *source, struct text *out, coda_error *error);
void source_name(const char *program, char *cubin, size_t size);

/* Where the parts of a kernel's parameters lie. */
struct parameter_layout {
    int wide, tensors, parameters, sizes, geometry, total;
};
struct parameter_layout parameter_layout(const struct graph *graph, int map_count);
/* Bytes of all parameters of a launch: of several problems one after the other, then the first tile of each, and their sum. */
int parameter_bytes(const struct graph *graph, const struct variant *variant);
struct device_tensor {
    uint64_t data;
    int32_t rows, columns, stride, pad;
};
struct geometry {
    int32_t row_tiles, column_tiles, group, columns_per_block, chunks, all_wide;
    int32_t whole; /* Hopper: tiles before the narrow ones */
    int32_t apart; /* it does not wait for the launches before it until it ends (launch_start) */
};

#endif
