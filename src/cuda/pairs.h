/* Values that bring columns together: pairs, halves, rotations. */
#ifndef CODA_CUDA_PAIRS_H
#define CODA_CUDA_PAIRS_H

#include "cuda/emit.h"

/* Halves `distance` apart lie in other blocks (32 and up), other lanes (8, 16) or the same eight columns (1, 2, 4). */
enum pairing { PAIRING_BLOCKS, PAIRING_LANES, PAIRING_EIGHT };
enum pairing pairing_of(int distance);
/* Elements of a half that a thread enumerates in a block: 8 or 4. */
int half_elements(int distance);
/* The element of N/2 columns that stands at `column` of N, as text. */
void half_column(int distance, const char *column, char *text, int size);
/* How many blocks of a group lie between halves of `distance`. */
int block_distance(const struct plan *plan, int distance);

/* How many angles the eight columns of a row need, and where the first of them stands in the table, as text. */
int rotation_angles(const struct emitter *e, int node);
void rotation_base(const struct emitter *e, int node, const char *column, char *text, int size);
int rotation_distance(const struct emitter *e, int node);

enum { EXPRESSION_TEXT = 2048 };
/* The expression of a pairwise node at a place; what it needs is emitted first. */
void pair_expression(struct emitter *e, int node, const struct place *at, char text[EXPRESSION_TEXT]);

#endif
