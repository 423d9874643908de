/* Bringing a gradient to the shape of the value that it belongs to. */
#ifndef CODA_REWRITE_FIT_H
#define CODA_REWRITE_FIT_H

#include "rewrite/builder.h"

/* The adjoint of repeating a value of shape `to` to `from`: sums c, a gradient of shape `from` or one that repeats to
 * it, over whole axes and runs. The result may itself still be one that repeats to `to`. */
int fit_to(struct builder *b, int c, const struct shape *from, const struct shape *to);

#endif
