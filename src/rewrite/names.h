/* Names that are taken, and new ones. */
#ifndef CODA_REWRITE_NAMES_H
#define CODA_REWRITE_NAMES_H

#include "ir/graph.h"

enum { STORED_NAME = 208 };

struct names {
    char **slot;
    int slot_count, used;
};

bool names_open(struct names *names,
                const struct graph *graph); /* takes the graph's operands, params, axes and values */
bool names_add(struct names *names, const struct graph *graph);
void names_close(struct names *names);
bool names_take(struct names *names, const char *name); /* false: no memory */
bool names_taken(const struct names *names, const char *name);
/* `stem`, or stem_2, stem_3, .. where it is taken; takes it. False: no memory. */
bool names_make(struct names *names, const char *stem, char made[STORED_NAME]);
/* X for x, dX for dx where `x` is a value too: what an out is called whose value has the name. */
void name_of_store(const struct names *names, const char *value, char stem[STORED_NAME]);

#endif
