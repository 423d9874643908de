/* The reference device: evaluates a graph in double, node by node, and rounds only at `out` and `cast`. */
#ifndef CODA_REF_REF_H
#define CODA_REF_REF_H

#include "runtime/device.h"

/* Evaluates the graph and writes every out before it is rounded.
 *
 * out_values  one an operand, in order: NULL (an `in`, or an out that is not wanted) or the caller's memory for the
 * out's elements, rows end to end. An `out X += e` receives what X holds plus e
 *
 * Reads the `in`s of the launch and the outs that it adds to; other outs may have no data. Writes none of the launch's
 * operands. Returns CODA_OK, CODA_INVALID (an id or a position out of range) or CODA_MEMORY. */
coda_status ref_evaluate(const struct graph *graph, const struct launch *launch, double **out_values,
                         coda_error *error);

#endif
