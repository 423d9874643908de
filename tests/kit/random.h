/* Seeded random numbers (splitmix64), the same on every machine. */
#ifndef KIT_RANDOM_H
#define KIT_RANDOM_H

#include <stdint.h>

struct random {
    uint64_t state;
};

uint64_t random_next(struct random *random);
int64_t random_below(struct random *random, int64_t bound); /* 0 .. bound-1 */
double random_uniform(struct random *random);               /* [0, 1) */
double random_normal(struct random *random);

#endif
