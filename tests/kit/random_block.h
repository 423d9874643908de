/* Random blocks, as text: matrices [M, D] and [M, F], 1 to 6 products between them, norms, residuals, activations. */
#ifndef KIT_RANDOM_BLOCK_H
#define KIT_RANDOM_BLOCK_H

#include <stdint.h>

enum { RANDOM_BLOCK_TEXT = 16384 };

/* The same seed gives the same block on every machine. */
void random_block(char text[RANDOM_BLOCK_TEXT], uint64_t seed);
/* The same with twins and sums of products, scales, caps, norms of heads, softmax, masks. */
void rich_random_block(char text[RANDOM_BLOCK_TEXT], uint64_t seed);

#endif
