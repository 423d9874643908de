/* The names of a text: a hash table over an array in the order of definition. */
#ifndef CODA_LANG_SYMBOLS_H
#define CODA_LANG_SYMBOLS_H

#include "ir/graph.h"

enum symbol_kind {
    SYMBOL_UNKNOWN, /* used without a definition, reported once; a definition may still follow */
    SYMBOL_IN,
    SYMBOL_PARAM,
    SYMBOL_AXIS,
    SYMBOL_VALUE,
    SYMBOL_OUT,
    SYMBOL_UNIT, /* a program or block */
};

struct symbol {
    const char *name; /* not terminated; lives as long as the text */
    int length;
    uint64_t hash;
    enum symbol_kind kind;
    int index; /* node or axis; -1: its definition failed, so uses of it are poison */
    struct span span;
    bool used;
    bool declared; /* an axis made by an `axis` statement */
    int twin;      /* the other name of `a, b = pairs(x)`; -1: none */
};

struct symbols {
    struct symbol *symbol;
    int count, capacity;
    int *slot; /* index + 1 into symbol; 0: empty */
    uint32_t mask;
    uint64_t seed;
};

void symbols_free(struct symbols *symbols);
void symbols_clear(struct symbols *symbols); /* forgets the names, keeps the memory */

int symbols_find(const struct symbols *symbols, const char *name, int length); /* -1: absent */
/* Adds an absent name. -1: no memory. */
int symbols_add(struct symbols *symbols, const char *name, int length, enum symbol_kind kind, int index);

/* Edit distance of two names, case aside; `limit` where it is that or more. */
int edit_distance(const char *a, int a_length, const char *b, int b_length, int limit);
/* How far a name may be from a misspelling of it to be suggested. */
int suggestion_limit(int length);

#endif
