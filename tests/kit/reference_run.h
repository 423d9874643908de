/* A standard program that the reference ran once on random operands, and its numbers by name. */
#ifndef KIT_REFERENCE_RUN_H
#define KIT_REFERENCE_RUN_H

#include "ir/graph.h"

/* A program, its sizes, random operands, and its outs in double. Parameters have their defaults where the seed is even.
 */
struct run {
    const struct graph *graph;
    int64_t size[MAX_AXES];
    double parameter[MAX_OPERANDS];
    coda_tensor operand[MAX_OPERANDS];
    double *out[MAX_OPERANDS];
    bool checked[MAX_OPERANDS];
};

/* Runs a standard program at sizes such as "M=3 N=5"; fails the test where it cannot. */
void run_program(struct run *r, const char *name, const char *dims, uint64_t seed);
/* Frees it; fails the test if an out was not looked at. */
void end_run(struct run *r);

int64_t run_size(const struct run *r, const char *axis);
double run_parameter(const struct run *r, const char *name);
/* An operand's element, as the launch gave it. */
double run_at(const struct run *r, const char *name, int64_t i, int64_t j);
/* Fails the test unless an out's element is what is expected. */
void run_expect(struct run *r, const char *name, int64_t i, int64_t j, double expected);

#endif
