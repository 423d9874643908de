/* What the compiler gives back is a text that the parser takes: its limits hold for derived programs, too. */
#include "rewrite/rewrite.h"
#include "rewrite/cut.h"

#include <stdlib.h>
#include <string.h>

/* Numbers and sizes are one node in a graph, but one for each use in a text. */
enum { SURELY_FITS = MAX_NODES / 8 };

static bool parses(const struct graph *graph, const char *text, size_t length, struct complaint *why)
{
    struct unit again = {0};
    coda_error error = {0};
    if (graph->node_count <= SURELY_FITS)
        return true;
    bool good = parse(text, length, graph->name, &again, &error) == CODA_OK;
    if (!good)
        refuse(why, error.status == CODA_MEMORY ? CODA_MEMORY : CODA_UNSUPPORTED, "Split it.",
               "the derived program `%.60s` is more than a text may hold: %d operations and %d bytes", graph->name,
               MAX_NODES, MAX_TEXT);
    unit_free(&again);
    return good;
}

bool unit_is_acceptable(const struct unit *unit, const char *name, struct complaint *why)
{
    size_t total = 0;
    if (unit->count > MAX_UNITS) {
        refuse(why, CODA_UNSUPPORTED, "Split it.", "`%.60s` becomes %d programs, but a text holds at most %d", name,
               unit->count, MAX_UNITS);
        return false;
    }
    for (int i = 0; i < unit->count; i++) {
        char *text = print_graph(unit->graph[i]);
        size_t length = text != NULL ? strlen(text) : 0;
        bool good = text != NULL && parses(unit->graph[i], text, length, why);
        if (text == NULL)
            refuse(why, CODA_MEMORY, "", "no memory for the text of a program");
        free(text);
        total += length + 1;
        if (good && total > MAX_TEXT)
            refuse(why, CODA_UNSUPPORTED, "Split it, or use shorter names.",
                   "the programs of `%.60s` are a text of more than %d bytes", name, MAX_TEXT);
        if (!good || total > MAX_TEXT)
            return false;
    }
    return true;
}
