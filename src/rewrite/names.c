#include "rewrite/names.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t hash_text(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash ^ hash >> 29;
}

static int find_slot(const struct names *names, const char *name)
{
    uint64_t at = hash_text(name);
    for (;; at++) {
        int i = (int)(at & (uint64_t)(names->slot_count - 1));
        if (names->slot[i] == NULL || strcmp(names->slot[i], name) == 0)
            return i;
    }
}

static bool grow(struct names *names)
{
    struct names larger = {calloc((size_t)names->slot_count * 2, sizeof *larger.slot), names->slot_count * 2,
                           names->used};
    if (larger.slot == NULL)
        return false;
    for (int i = 0; i < names->slot_count; i++)
        if (names->slot[i] != NULL)
            larger.slot[find_slot(&larger, names->slot[i])] = names->slot[i];
    free(names->slot);
    *names = larger;
    return true;
}

bool names_taken(const struct names *names, const char *name)
{
    return names->slot[find_slot(names, name)] != NULL;
}

bool names_take(struct names *names, const char *name)
{
    if (2 * names->used >= names->slot_count && !grow(names))
        return false;
    int i = find_slot(names, name);
    if (names->slot[i] != NULL)
        return true;
    names->slot[i] = strdup(name);
    names->used += names->slot[i] != NULL;
    return names->slot[i] != NULL;
}

bool names_add(struct names *names, const struct graph *graph)
{
    bool made = true;
    for (int i = 0; i < graph->operand_count && made; i++)
        made = names_take(names, graph->operand[i].name);
    for (int i = 0; i < graph->parameter_count && made; i++)
        made = names_take(names, graph->parameter[i].name);
    for (int i = 0; i < graph->axis_count && made; i++)
        made = names_take(names, graph->axis[i].name);
    for (int i = 0; i < graph->node_count && made; i++)
        made = graph->node[i].name == NULL || names_take(names, graph->node[i].name);
    return made;
}

bool names_open(struct names *names, const struct graph *graph)
{
    *names = (struct names){calloc(256, sizeof *names->slot), 256, 0};
    return names->slot != NULL && names_add(names, graph);
}

void names_close(struct names *names)
{
    for (int i = 0; names->slot != NULL && i < names->slot_count; i++)
        free(names->slot[i]);
    free(names->slot);
    *names = (struct names){NULL, 0, 0};
}

bool names_make(struct names *names, const char *stem, char made[STORED_NAME])
{
    snprintf(made, STORED_NAME, "%.180s", stem);
    for (int i = 2; names_taken(names, made); i++)
        snprintf(made, STORED_NAME, "%.180s_%d", stem, i);
    return names_take(names, made);
}

void name_of_store(const struct names *names, const char *value, char stem[STORED_NAME])
{
    bool gradient = value[0] == 'd' && value[1] != '\0' && names_taken(names, value + 1);
    snprintf(stem, STORED_NAME, "%.180s", value);
    stem[gradient] = (char)toupper((unsigned char)stem[gradient]);
}
