/* What the parts of emit.c share: a node becomes steps, whose inputs are values. */
#ifndef CODA_CPU_EMIT_H
#define CODA_CPU_EMIT_H

#include "cpu/frame.h"

/* ---------------------------------------------------------------- values and steps (emit_values.c) */

coda_status cpu_steps_no_memory(const struct builder *b);
/* A new value; -1: no memory. */
int cpu_add_value(struct builder *b, enum storage storage, int form);
enum storage cpu_storage_of(enum site site);
coda_status cpu_append_step(struct builder *b, const struct step *step);
/* The index of a width among the program's; -1 with an error. */
int cpu_form_of(struct builder *b, const struct dim *columns);
/* The form of a node's rows: of vectors along columns and of matrices. */
int cpu_node_form(struct builder *b, int n);
int cpu_row_run_of(const struct builder *b, int n);
/* A step for node n whose result is a new value of the node's site. */
coda_status cpu_start_step(struct builder *b, int n, struct step *step);
void cpu_add_input(struct step *step, int value);
/* Is a value one number a row, seen from a step at `site`? */
bool cpu_is_scalar(const struct builder *b, int value, enum site site);
/* The value as an input of an elementwise step: repeated over runs where the step has more columns. */
int cpu_elementwise_input(struct builder *b, int value, const struct step *step);
/* The value as one with an element for each place of the step's site and of `form`. */
int cpu_full_input(struct builder *b, int value, const struct step *step, int form);
/* cpu_start_step, with the node's first input as one of the tile's columns. */
coda_status cpu_start_step_on_tile(struct builder *b, int n, struct step *step);

static inline int cpu_run_length(const struct builder *b, const struct node *node)
{
    return (int)extent_size(&node->run, b->fixed_size);
}

static inline int cpu_operand_of(const struct builder *b, int node)
{
    return b->graph->node[node].index;
}

/* ---------------------------------------------------------------- kinds of nodes */

/* emit_elementwise.c */
coda_status cpu_emit_elementwise(struct builder *b, int n);
coda_status cpu_emit_uniform_where(struct builder *b, int n); /* one of two values, by a parameter */
coda_status cpu_emit_cast(struct builder *b, int n);
/* emit_reductions.c */
coda_status cpu_emit_run_reduction(struct builder *b, int n);
coda_status cpu_emit_operand_reduction(struct builder *b, int n);

#endif
