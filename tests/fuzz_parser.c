/* Any bytes as a text: refused with a message, or the canonical text of every graph parses to the same graph and prints
 * as itself. */
#include "lang/lang.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static void check_round_trip(const struct graph *graph)
{
    struct unit again;
    coda_error error;
    char *text = print_graph(graph);
    if (!text || parse(text, strlen(text), "canonical", &again, &error) != CODA_OK)
        abort();
    if (again.count != 1 || !graph_equal(graph, again.graph[0]))
        abort();
    char *second = print_graph(again.graph[0]);
    if (!second || strcmp(text, second) != 0)
        abort();
    free(text);
    free(second);
    unit_free(&again);
}

static void print_every_node(const struct graph *graph)
{
    char text[64];
    for (int n = 0; n < graph->node_count; n++) {
        print_expression(graph, n, text, sizeof text);
        if (strlen(text) >= sizeof text)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct unit unit = {0};
    coda_error error = {CODA_OK, ""};
    coda_status status = parse((const char *)bytes, length, "fuzz", &unit, &error);
    if (status != CODA_OK) {
        size_t size = strlen(error.message);
        if (status != error.status || size == 0 || size >= sizeof error.message || error.message[size - 1] == '\n')
            abort();
        return 0;
    }
    for (int i = 0; i < unit.count; i++) {
        check_round_trip(unit.graph[i]);
        print_every_node(unit.graph[i]);
    }
    unit_free(&unit);
    return 0;
}
