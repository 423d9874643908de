#include "texts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

char *read_block(const char *name)
{
    static char text[1 << 16];
    char path[256];
    snprintf(path, sizeof path, "blocks/%s.coda", name);
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s cannot be opened: run the tests from the repository's root", path);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

void assert_same_text(const struct unit *first, const struct unit *second)
{
    assert_int_equal(first->count, second->count);
    for (int k = 0; k < first->count; k++) {
        char *a = print_graph(first->graph[k]), *b = print_graph(second->graph[k]);
        assert_string_equal(a, b);
        free(a);
        free(b);
    }
}
