/* Reverse-mode differentiation of a graph: duality, statement by statement. */
#ifndef CODA_REWRITE_ADJOINT_H
#define CODA_REWRITE_ADJOINT_H

#include "rewrite/builder.h"

/* Adjoints of elementwise primitives as graphs over scalars a, b, c, y, d, parsed once from primitives.def. */
struct templates {
    struct graph *graph[OP_COUNT][3];
    int root[OP_COUNT][3]; /* -1: no gradient */
};
void templates_free(struct templates *templates);
/* The gradient of input `k` of node op(a, b, c) = y whose gradient is d. -1 with *absent set where there is none. */
int template_apply(struct templates *templates, struct builder *b, enum op op, int k, const int value[5], bool *absent);

/* What differentiation is asked for. */
struct request {
    bool wanted[MAX_GRAPH_OPERANDS]; /* `in`s that get a gradient */
    bool silent[MAX_GRAPH_OPERANDS]; /* outs on which no gradient arrives */
};

/* A graph and its gradient: the nodes of the forward, then those of the backward. */
struct joint {
    struct graph *graph;
    int *value;        /* one a node of the forward: the node here */
    int forward_count; /* nodes below this one belong to the forward */
};

/* Appends to a copy of `forward` an `in dX` for every float out X (unless silent) and an out for the gradient of every
 * wanted `in`, and removes the forward's outs. Gradients:
 *   a matrix       [M, N], of the operand's type; bf16 for an 8-bit one
 *   a weight       the right operand of a product: f32, accumulated in place; of a stack, rows end to end
 *   a vector       f32, whole: a sum over the other axis
 *   a partial      f32, constant along what the forward sums, so without that axis */
coda_status differentiate_graph(const struct graph *forward, const struct request *request, struct joint *joint,
                                struct complaint *why);
void joint_free(struct joint *joint);

#endif
