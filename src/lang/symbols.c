#include "lang/symbols.h"

#include "lang/lexer.h"
#include <stdlib.h>
#include <string.h>

void symbols_free(struct symbols *symbols)
{
    free(symbols->symbol);
    free(symbols->slot);
    *symbols = (struct symbols){0};
}

void symbols_clear(struct symbols *symbols)
{
    for (int i = 0; i < symbols->count; i++) {
        uint32_t at = (uint32_t)symbols->symbol[i].hash & symbols->mask;
        while (symbols->slot[at] != 0) {
            symbols->slot[at] = 0;
            at = (at + 1) & symbols->mask;
        }
    }
    symbols->count = 0;
}

static uint64_t hash_name(const struct symbols *symbols, const char *name, int length)
{
    uint64_t hash = symbols->seed;
    for (int i = 0; i < length; i++) {
        hash = (hash ^ (unsigned char)name[i]) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
    return hash ^ hash >> 32;
}

static int find_hashed(const struct symbols *symbols, const char *name, int length, uint64_t hash)
{
    if (!symbols->slot)
        return -1;
    for (uint32_t at = (uint32_t)hash & symbols->mask; symbols->slot[at] != 0; at = (at + 1) & symbols->mask) {
        const struct symbol *s = &symbols->symbol[symbols->slot[at] - 1];
        if (s->hash == hash && s->length == length && memcmp(s->name, name, (size_t)length) == 0)
            return symbols->slot[at] - 1;
    }
    return -1;
}

int symbols_find(const struct symbols *symbols, const char *name, int length)
{
    return find_hashed(symbols, name, length, hash_name(symbols, name, length));
}

static void place(struct symbols *symbols, int index)
{
    uint32_t at = (uint32_t)symbols->symbol[index].hash & symbols->mask;
    while (symbols->slot[at] != 0)
        at = (at + 1) & symbols->mask;
    symbols->slot[at] = index + 1;
}

static bool grow(struct symbols *symbols)
{
    int capacity = symbols->capacity ? 2 * symbols->capacity : 32;
    struct symbol *symbol = realloc(symbols->symbol, (size_t)capacity * sizeof *symbol);
    if (!symbol)
        return false;
    symbols->symbol = symbol;
    int *slot = calloc(2 * (size_t)capacity, sizeof *slot);
    if (!slot)
        return false;
    free(symbols->slot);
    symbols->slot = slot;
    symbols->mask = 2 * (uint32_t)capacity - 1;
    symbols->capacity = capacity;
    if (symbols->count ==
        0) /* an address: texts cannot be made to collide. The order of symbols does not depend on it */
        symbols->seed = (uint64_t)(uintptr_t)slot * 0xD6E8FEB86659FD93u | 1;
    for (int i = 0; i < symbols->count; i++)
        place(symbols, i);
    return true;
}

int symbols_add(struct symbols *symbols, const char *name, int length, enum symbol_kind kind, int index)
{
    if (symbols->count == symbols->capacity && !grow(symbols))
        return -1;
    symbols->symbol[symbols->count] = (struct symbol){
        .name = name,
        .length = length,
        .hash = hash_name(symbols, name, length),
        .kind = kind,
        .index = index,
        .twin = -1,
    };
    place(symbols, symbols->count);
    return symbols->count++;
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static int minimum(int a, int b)
{
    return a < b ? a : b;
}

int edit_distance(const char *a, int a_length, const char *b, int b_length, int limit)
{
    int row[MAX_NAME + 1] = {0}, difference = a_length > b_length ? a_length - b_length : b_length - a_length;
    if (difference >= limit || a_length > MAX_NAME || b_length > MAX_NAME)
        return limit;
    for (int j = 0; j <= b_length; j++)
        row[j] = j;
    for (int i = 1; i <= a_length; i++) {
        int diagonal = row[0], smallest = row[0] = i;
        for (int j = 1; j <= b_length; j++) {
            int replace = diagonal + (lower(a[i - 1]) != lower(b[j - 1]));
            diagonal = row[j];
            row[j] = minimum(replace, minimum(row[j], row[j - 1]) + 1);
            smallest = minimum(smallest, row[j]);
        }
        if (smallest >= limit)
            return limit;
    }
    return minimum(row[b_length], limit);
}

int suggestion_limit(int length)
{
    return length <= 2 ? 2 : length <= 5 ? 3 : 4;
}
