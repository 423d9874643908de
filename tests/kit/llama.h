/* A Llama in double, written for the eye: what the model's losses and gradients are judged by. */
#ifndef KIT_LLAMA_H
#define KIT_LLAMA_H

#include "coda.h"

/* The weights of a model as doubles, in the model's order. Fails the test where memory ends. */
struct llama_weights {
    coda_llama_config config;
    int count;
    double **weight;
    int64_t *size;
};

struct llama_weights llama_weights_of(const coda_llama *llama);
void llama_weights_free(struct llama_weights *weights);

/* The weighted mean loss over the live targets. */
double llama_loss(const struct llama_weights *weights, const coda_batch *batch);

/* Its derivative with respect to one element, by central differences, and a bound of their error. */
double llama_derivative(struct llama_weights *weights, const coda_batch *batch, int tensor, int64_t element,
                        double *error);

/* Gives every weight a random value that the model's dtype holds: matrices normal with deviation `spread /
 * sqrt(columns)`, norm weights near 1. */
void llama_randomize(coda_llama *llama, double spread, uint64_t seed);

/* A two-layer model with grouped heads. `wide`: past one run of 128 in every width, no multiple of anything. */
coda_llama_config llama_small(int wide);

#endif
