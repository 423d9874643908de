/* Graphs from postfix text, without the parser: what tests of the graph itself are written in.
 *
 *   A=bf16[M,K]          an in                        p=0.5        a param
 *   axis:N=Q+2*E         a derived axis               A  1.5       push an in, param, name; a number
 *   #N  index:N          push a size, an index        >x           name the top (it stays)
 *   .T  @  stack2        products                     + exp where  any primitive of primitives.def
 *   even odd join first:4 second:4 joinh:4            rope rope_pairs rope:T (x table pos)
 *   sum sum:N sum:N:128  likewise rmax absmax logsumexp
 *   pick onehot:N gather repeat:N broadcast:[M,N] cast:bf16
 *   Y:bf16[M,N]          pop into an out              Y+:f32[M,N]  into `out Y +=`
 */
#ifndef KIT_POSTFIX_H
#define KIT_POSTFIX_H

#include "ir/graph.h"

/* NULL where a construction was refused (*why says so) or the text is wrong (why->status is CODA_OK: the test's
 * mistake). *top receives the node on top of the stack, or -1. */
struct graph *postfix_graph(const char *text, int *top, struct complaint *why);
/* The node of an in, or of a value named by >x; -1: absent. */
int postfix_find(const struct graph *graph, const char *name);

#endif
