/* What is read soon after a product, brought nearer while it runs: a few lines between steps of K. As many at once would
 * wait for one another, and the product for them. */
#ifndef CODA_CPU_FETCH_H
#define CODA_CPU_FETCH_H

#include <stdint.h>

enum { MAX_FETCHED = 96 };

struct fetch {
    const char *next; /* the memory that follows, walked line by line: what is multiplied next */
    int count;        /* lines anywhere else: what the epilogue reads and writes */
    const char *line[MAX_FETCHED];
};

struct fetching {
    const char *next;
    const char *const *line, *const *end;
    int64_t due; /* lines a turn */
};

static inline struct fetching fetch_start(const struct fetch *fetch, int64_t turns)
{
    return (struct fetching){fetch->next, fetch->line, fetch->line + fetch->count,
                             turns > 0 ? (fetch->count + turns - 1) / turns : 0};
}

/* One turn: `lines` of what is multiplied next, and its share of the others. */
static inline __attribute__((always_inline)) void fetch_turn(struct fetching *fetching, int lines)
{
    for (int i = 0; i < lines; i++, fetching->next += 64)
        __builtin_prefetch(fetching->next, 0, 2);
    for (int64_t i = 0; i < fetching->due && fetching->line < fetching->end; i++)
        __builtin_prefetch(*fetching->line++, 0, 2);
}

#endif
