/* The tile of a program, and how shapes lie against it. */
#ifndef CODA_IR_TILE_H
#define CODA_IR_TILE_H

#include "ir/build.h"

bool is_whole_reduction(const struct node *node);
/* Does the node read this input as a value of the epilogue, not as a table, ids, or an operand of a product? */
bool reads_as_value(const struct node *node, int input);
/* Marks the values that the epilogue computes or reads: those that outs reach through such inputs. */
void mark_values(const struct graph *graph, const bool *used, bool *as_value);
/* Sets row_axis and column_axis; -1 where the program has none. */
void find_tile(const struct graph *graph, const bool *used, const bool *as_value, struct form *form);
/* SPACE_NONE: the shape does not lie on the tile. */
enum space space_of_shape(const struct form *form, const struct shape *shape);

#endif
