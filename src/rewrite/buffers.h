/* The memory of a list of programs: which values the caller owns, which the forward keeps for the backward, which are
 * scratch, and which of them share memory. */
#ifndef CODA_REWRITE_BUFFERS_H
#define CODA_REWRITE_BUFFERS_H

#include "lang/lang.h"
#include "rewrite/report.h"

enum {
    MAX_PLANNED = 512, /* programs: longer lists are nobody's schedule */
    MAX_SLOTS = 512,
};

struct plan_options {
    bool together;   /* forward and backward run in one launch, so nothing is kept between launches */
    bool keep_saved; /* the backward leaves what the forward kept as it was */
    const char
        *consumed; /* names of inputs, separated by commas, whose memory is free once they are read; may be NULL */
    const char
        *wide_axis; /* programs with a value over both axes run for some rows at a time; NULL: all rows at once */
    const char *row_axis;
    int64_t chunk_rows; /* a multiple of ROW_RUN */
    const int *list;    /* one a program: those of one number above 0 wait for the last of them, and run side by side;
                         * not with a wide axis. NULL: none */
};

enum plan_kind { PLAN_INPUT, PLAN_RESULT, PLAN_SAVED, PLAN_SCRATCH };

struct plan_value {
    char *name;
    enum plan_kind kind;
    coda_dtype dtype;
    struct shape shape; /* in the axes of the block */
    bool accumulated;
    bool consumed;   /* its memory is free after its last use */
    bool wide;       /* has memory for one chunk of rows */
    bool optional;   /* a result that is all its step gives, and that no step reads: the step may be left out */
    bool used[2];    /* by the forward, by the backward */
    int first, last; /* steps that use it; an input is there before the first */
    int busy;        /* the last step that uses its memory, for itself or for what took its place */
    int slot;        /* -1: the caller's memory, never shared */
};

/* Memory that values of one type and shape have in turn. */
struct plan_slot {
    enum plan_kind home; /* INPUT: the caller's, of `value` */
    int value;           /* the first that had it */
};

/* A program of the unit, or the sum over the runs of a vector's gradient (program -1, value {runs, gradient}). */
struct plan_step {
    int program;
    bool backward, chunked;
    int count, *value; /* one an operand */
};

struct memory_plan {
    const struct graph *block; /* whose axes the shapes have; outlives the plan */
    int row_axis;              /* of chunks; -1: none */
    int64_t chunk_rows;
    struct plan_value *value; /* the caller's first */
    int value_count, value_room, caller_count;
    struct plan_slot slot[MAX_SLOTS];
    int slot_count;
    struct plan_step *step; /* in the order to run */
    int step_count, step_room;
    int chunk_first, chunk_end; /* steps that run for some rows at a time, forward and backward together; equal: none */
};

/* Plans the memory of `unit`, whose first `forward` programs are the block's forward. `backward` (NULL allowed) is the
 * graph that the others were cut from. *plan is released with memory_plan_free, also after a failure, which sets *why. */
bool memory_plan_make(struct memory_plan *plan, const struct unit *unit, int forward, const struct graph *block,
                      const struct graph *backward, const struct plan_options *options, struct complaint *why);
void memory_plan_free(struct memory_plan *plan);
int memory_plan_find(const struct memory_plan *plan, const char *name); /* -1: absent */

enum { SLOT_ALIGNMENT = 256 };
/* Bytes of a slot, a multiple of the alignment. 0: a size is not known, or memory cannot be so large. */
size_t memory_plan_slot_bytes(const struct memory_plan *plan, int slot, const int64_t *sizes);

/* "buffers: 14 for the 19 values between programs", their bytes where the report has sizes, and a line each. */
void report_memory_plan(struct report *report, const struct memory_plan *plan);

/* Parts, in files of their own. */
/* The programs in the order to run; those from *chunk_first to *chunk_end run for some rows at a time. */
bool memory_plan_order(const struct unit *unit, const struct plan_options *options, int order[MAX_PLANNED],
                       int *chunk_first, int *chunk_end, struct complaint *why);
bool memory_plan_slots(struct memory_plan *plan, const struct unit *unit, bool keep_saved, struct complaint *why);

#endif
