/* Any text through the compiler: a message, or programs that the parser accepts. */
#include "rewrite/rewrite.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static void check_derived(struct unit *unit)
{
    for (int i = 0; i < unit->count; i++) {
        struct unit again = {0};
        coda_error error = {0};
        char *text = print_graph(unit->graph[i]);
        if (text == NULL || parse(text, strlen(text), "derived", &again, &error) != CODA_OK)
            abort();
        unit_free(&again);
        free(text);
    }
    unit_free(unit);
}

static void check_graph(const struct graph *graph, unsigned choice)
{
    coda_rewrite_options options = {
        .backward = (choice & 1) != 0, .allow_passes = (choice & 2) != 0, .exponentials = (choice & 4) != 0};
    struct unit made = {0};
    coda_error error = {0};
    char *report = NULL;
    coda_status status = graph->is_block ? rewrite_block(graph, &options, &made, &report, &error)
                                         : differentiate(graph, NULL, NULL, &made, &error);
    if (status == CODA_OK)
        check_derived(&made);
    else if (error.message[0] == '\0' || made.count != 0)
        abort();
    free(report);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct unit unit = {0};
    coda_error error = {0};
    if (length == 0 || parse((const char *)bytes, length - 1, "fuzz", &unit, &error) != CODA_OK)
        return 0;
    for (int i = 0; i < unit.count; i++)
        check_graph(unit.graph[i], bytes[length - 1]);
    unit_free(&unit);
    return 0;
}
