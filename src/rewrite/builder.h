/* Building a graph from another one: equal nodes are made once, and trivial ones are not made at all.
 *
 * Every function takes and returns node indices of `graph`; a negative input gives a negative result, so that a chain
 * of calls is checked once, at its end. `why` keeps the first refusal. */
#ifndef CODA_REWRITE_BUILDER_H
#define CODA_REWRITE_BUILDER_H

#include "ir/build.h"

struct builder {
    struct graph *graph;
    struct complaint why;
    int *slot; /* open addressing: node + 1, 0 is empty */
    int slot_count, slots_used;
    bool plain; /* equal nodes are one node, but nothing else is simplified */
};

/* A new graph, a step of the compiler, with the name and axes of `like`. False: no memory, with why set; builder_release is still allowed. */
bool builder_open(struct builder *b, const struct graph *like, const char *name, bool is_block);
/* Hands the graph over; NULL, with why set, where any construction was refused. Releases the rest. */
struct graph *builder_close(struct builder *b);
void builder_release(struct builder *b);
bool builder_failed(const struct builder *b);

int build_in(struct builder *b, const char *name, coda_dtype dtype,
             const struct shape *shape);                                        /* finds it by name first */
int build_parameter(struct builder *b, const char *name, double default_value); /* likewise */
int build_out(struct builder *b, const char *name, coda_role role, coda_dtype dtype,
              int value); /* of the value's shape */
int build_number(struct builder *b, double number);
int build_size(struct builder *b, int axis);
int build_elementwise(struct builder *b, enum op op, const int *input, int count);
int build_binary(struct builder *b, enum op op, int x, int y);
int build_negative(struct builder *b, int x);
int build_where(struct builder *b, int condition, int x, int y);
int build_gemm(struct builder *b, int left, int right);
int build_transpose(struct builder *b, int x);
int build_reduce(struct builder *b, enum op op, int x, int axis, struct extent run);
int build_broadcast(struct builder *b, int x, const struct shape *shape); /* x itself where it has the shape */
/* The node of another graph with the same axes, operands found by name, over these inputs. */
int build_like(struct builder *b, const struct graph *from, int node, const int *input);

/* Names a node unless it has a name or another node has that one. */
void build_name(struct builder *b, int node, const char *name);

bool is_number(const struct graph *graph, int node, double number);
bool has_axis(const struct shape *shape, int axis);
/* A value per row or column that is nowhere zero: rsqrt, exp, sigmoid, sizes, numbers. */
bool is_nonzero(const struct graph *graph, int node);

/* Identities applied while building (fold.c): the node that op(input) equals, or NOT_FOLDED. */
enum { NOT_FOLDED = -2 };
int fold(struct builder *b, enum op op, const int *input);

#endif
