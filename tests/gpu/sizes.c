#include "sizes.h"

#include <stdio.h>
#include <string.h>

bool sizes_is_length(const char *axis)
{
    return strcmp(axis, "D") == 0 || strcmp(axis, "T") == 0;
}

static bool fits(const coda_program *program, const coda_dims *dims)
{
    int64_t sizes[MAX_AXES] = {0};
    struct complaint why;
    for (int i = 0; i < dims->count; i++)
        sizes[graph_find_axis(program->graph, dims->item[i].axis)] = dims->item[i].size;
    return sizes_complete(program->graph, sizes, &why) == CODA_OK &&
           sizes_check(program->graph, sizes, &why) == CODA_OK;
}

void sizes_set(const coda_program *program, coda_dims *dims, int index, int64_t size, int64_t head)
{
    dims->item[index].size = size;
    if (!fits(program, dims))
        dims->item[index].size = (size + head - 1) / head * head;
}

coda_dims sizes_small(const coda_program *program, int64_t head)
{
    coda_dims dims = {0};
    coda_axis axis;
    for (int i = 0; i < coda_program_axis_count(program); i++) {
        coda_program_axis(program, i, &axis);
        if (axis.derived)
            continue;
        dims.item[dims.count].axis = axis.name;
        dims.item[dims.count++].size = sizes_is_length(axis.name) ? head : 3 * head;
    }
    for (int i = 0; i < dims.count; i++)
        if (!sizes_is_length(dims.item[i].axis))
            sizes_set(program, &dims, i, 43 + 8 * i, head);
    return dims;
}

void sizes_print(const coda_dims *dims, char *text, size_t size)
{
    size_t at = 0;
    text[0] = '\0';
    for (int i = 0; i < dims->count && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, " %s=%lld", dims->item[i].axis, (long long)dims->item[i].size);
}
