#include "random.h"

#include <math.h>

uint64_t random_next(struct random *random)
{
    uint64_t z = random->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

int64_t random_below(struct random *random, int64_t bound)
{
    return (int64_t)(random_next(random) % (uint64_t)bound);
}

double random_uniform(struct random *random)
{
    return (double)(random_next(random) >> 11) * 0x1p-53;
}

double random_normal(struct random *random)
{
    double radius = sqrt(-2 * log(1 - random_uniform(random)));
    return radius * cos(6.283185307179586 * random_uniform(random));
}
