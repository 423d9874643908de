/* Memory between two pages that fault when touched, so that one element read or written too far stops the test. */
#ifndef KIT_GUARD_H
#define KIT_GUARD_H

#include <stdbool.h>
#include <stddef.h>

enum guard_side {
    GUARD_END,   /* the last byte stands flush against the page after it */
    GUARD_START, /* the first byte stands flush against the page before it */
};

struct guarded {
    unsigned char *data;
    size_t bytes;
    void *mapping;
    size_t mapped, page;
};

/* Returns false where the system refuses. `data` is aligned to every power of two that divides `bytes` (END) or to a
 * page (START). The slack between the data and its far page holds a pattern. */
bool guarded_new(struct guarded *block, size_t bytes, enum guard_side side);
/* Is the slack's pattern untouched? */
bool guarded_intact(const struct guarded *block);
void guarded_free(struct guarded *block); /* a zeroed block is allowed */

#endif
