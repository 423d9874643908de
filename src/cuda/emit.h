/* From values of a graph to CUDA C text. */
#ifndef CODA_CUDA_EMIT_H
#define CODA_CUDA_EMIT_H

#include "cuda/source.h"

/* Where a value is wanted. */
enum region {
    AT_ROW,    /* in the prologue, row m */
    AT_FULL,   /* block b, row h, column `column` + x */
    AT_HALF,   /* of N/2 columns: block b, row h, element `column` + x */
    AT_RUN,    /* a run of columns, whose first column is `column` */
    AT_COLUMN, /* like AT_FULL, for values that have no rows */
    AT_FINISH, /* column n, after a reduction over rows; run of rows `run` */
    AT_TOTALS, /* column n of a program of columns */
};

enum { PLACE_TEXT = 64 };

struct place {
    enum region region;
    int distance;  /* AT_HALF */
    bool too_long; /* a text below was cut */
    char b[PLACE_TEXT], x[PLACE_TEXT], column[PLACE_TEXT];
};

enum { NAME_TEXT = 32, MAX_MEMO = 1024 };

struct memo {
    int node, place;
    char name[NAME_TEXT];
};

/* The memo and text of the depth where a value is computed. */
struct level {
    struct memo *memo;
    int *count;
    struct text *text;
    int place;
};

/* Text of three depths: computed once for a group, once for a row of a block, and once an element. */
struct emitter {
    const struct plan *plan;
    const struct graph *graph;
    struct text group, row, element;
    struct memo group_memo[MAX_MEMO], row_memo[MAX_MEMO], element_memo[MAX_MEMO];
    int group_count, row_count, element_count;
    int place_count;
    struct place place[64]; /* all that were named; the index distinguishes names */
    int total_count;        /* AT_TOTALS: whole reductions in order of their use */
    int total[16];
    int input_slots; /* 16-byte slots that a thread needs for a group's inputs */
    int assumed;     /* a scalar condition whose side is known where the text stands; -1 */
    bool assumed_true;
    bool factored; /* accumulators come with their factors a row */
    coda_status status;
    coda_error *error;
};

struct emitter *emitter_new(const struct plan *plan, coda_error *error); /* NULL: no memory */
void emitter_free(struct emitter *e);

/* Forgets what was computed for elements (or rows and elements), and their text. */
void emit_new_element(struct emitter *e);
void emit_new_row(struct emitter *e);
void emit_new_group(struct emitter *e);

/* Emits what `node` needs at the place, and its name into name[NAME_TEXT]. */
void emit_value(struct emitter *e, int node, const struct place *at, char *name);

/* Which accumulator holds the value of a node; -1: none. */
int emit_accumulator(const struct emitter *e, int node);
/* Defines a new `name` as an expression. */
void emit_define(struct emitter *e, const struct level *level, int node, char *name, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* reductions.c: a whole reduction of an operand in memory; a finished run, of the group's registers or the total at the end
 * of a run of rows. */
void emit_whole(struct emitter *e, int index, const struct place *at, const struct level *level, char *name);
void emit_run(struct emitter *e, int index, const struct place *at, const struct level *level, char *name);

struct place place_at(enum region region, const char *b, const char *x, const char *column);
int emit_place(struct emitter *e, const struct place *at); /* its index in e->place */
/* Is `index` wanted at the place for the first time in these rows, so that its array is declared now? */
bool emit_first_in_rows(struct emitter *e, int index, int place);
/* One comment line with the statement that defines a node; nothing where it has no name. */
void emit_comment(struct emitter *e, struct text *text, int node, const char *indent);
void emit_fail(struct emitter *e, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---------------------------------------------------------------- parts of a kernel */

void emit_rows(struct emitter *e, struct text *out);     /* rows.c: coda_rows, the prologue */
void emit_totals(struct emitter *e, struct text *out);   /* rows.c: coda_partial, coda_column: programs of columns */
void emit_finish(struct emitter *e, struct text *out);   /* rows.c: coda_finish: runs of rows */
void emit_inputs(struct emitter *e, struct text *out);   /* inputs.c: struct Inputs, Ahead, coda_fetch, coda_ahead */
void emit_group(struct emitter *e, struct text *out);    /* group.c: struct State, coda_start, coda_group */
void emit_products(struct emitter *e, struct text *out); /* products.c: addresses of factors */
void emit_hopper(const struct plan *plan, const struct variant *v,
                 struct text *out); /* hopper.c: maps of factors, wgmma */

/* The statement that stores `value` of an out at element `index`, which is text. */
void emit_store(struct emitter *e, struct text *text, const char *indent, int operand, const char *index,
                const char *value);
/* inputs.c: loads eight columns of vector i from `column` on into an array whose name is `prefix`, i and `suffix`. */
void emit_column_load(struct emitter *e, struct text *text, int i, const char *prefix, const char *suffix,
                      const char *column);
/* reductions.c: the combining function and the identity of a reduction, as text. */
const char *combine_text(enum op op);
const char *identity_text(enum op op);

#endif
