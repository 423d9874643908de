/* Choices that were measured: which are worth it, and a file of the cache for each kind of kernel. */
#include "cuda/kernel.h"
#include "lang/lang.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *schedule;
    int rows, columns;
} candidates[] = {
    {NULL, 0, 0},          {"warps", 128, 256},   {"warps", 128, 128},   {"warps", 128, 64},   {"direct", 128, 256},
    {"copied", 128, 256},  {"copied", 128, 128},  {"direct", 128, 128},  {"direct", 128, 64},  {"portable", 128, 128},
    {"portable", 128, 64}, {"portable", 64, 256}, {"portable", 64, 128}, {"portable", 64, 64}, {"cublas", 0, 0},
};
enum { CANDIDATES = sizeof candidates / sizeof *candidates };

bool tune_candidate(int index, coda_options *options)
{
    if (index < 0 || index >= CANDIDATES)
        return false;
    *options = (coda_options){.size = sizeof *options,
                              .schedule = candidates[index].schedule,
                              .tile_rows = candidates[index].rows,
                              .tile_columns = candidates[index].columns};
    return true;
}

/* ---------------------------------------------------------------- keys */

static bool rename_to(char **name, char letter, int index)
{
    char text[32];
    snprintf(text, sizeof text, "%c%d", letter, index);
    char *copy = strdup(text);
    free(*name);
    *name = copy;
    return copy != NULL;
}

/* The program's text without its names, so that the same mathematics under other names finds the choice. */
static char *anonymous_text(const struct graph *graph)
{
    struct graph *copy = graph_copy(graph);
    bool good = copy && rename_to(&copy->name, 'p', 0);
    for (int i = 0; good && i < copy->axis_count; i++)
        good = rename_to(&copy->axis[i].name, 'A', i);
    for (int i = 0; good && i < copy->operand_count; i++)
        good = rename_to(&copy->operand[i].name, 'o', i);
    for (int i = 0; good && i < copy->parameter_count; i++)
        good = rename_to(&copy->parameter[i].name, 'q', i);
    for (int i = 0; good && i < copy->node_count; i++) {
        free(copy->node[i].name);
        copy->node[i].name = NULL;
    }
    char *text = good ? print_graph(copy) : NULL;
    graph_free(copy);
    return text;
}

/* "M<=4096 K?": sizes count by the power of two that they reach; ? was not given. */
static void add_sizes(const coda_kernel *kernel, bool exact, struct text *text)
{
    for (int i = 0; i < kernel->graph->axis_count; i++) {
        int64_t size = kernel->fixed_size[i], power = 1;
        while (power < size && power < INT64_MAX / 2)
            power *= 2;
        if (size < 1)
            text_add(text, " %s=?", exact ? kernel->graph->axis[i].name : "");
        else
            text_add(text, " %s=%lld", exact ? kernel->graph->axis[i].name : "", (long long)(exact ? size : power));
    }
}

static bool key_of(const struct gpu *gpu, const coda_kernel *kernel, struct digest *key)
{
    struct text text = {0};
    char *program = anonymous_text(kernel->graph);
    text_add(&text, "tune coda %s NVRTC %d.%d driver %d %s %s exact %d\n", CODA_VERSION, gpu->compiler.major,
             gpu->compiler.minor, gpu->driver.version, gpu->name, gpu->architecture, kernel->options.exact);
    add_sizes(kernel, false, &text);
    text_append(&text, "\n");
    text_append(&text, program ? program : "");
    bool good = program && !text.failed;
    if (good)
        *key = digest_of(text.data, text.length);
    free(program);
    text_free(&text);
    return good;
}

/* ---------------------------------------------------------------- files
 * "schedule rows columns\n" and a line for people. */

bool tune_recall(const struct gpu *gpu, const coda_kernel *kernel, coda_options *choice)
{
    struct digest key;
    char schedule[16], *data;
    int rows, columns;
    size_t size;
    bool found = false;
    const coda_options *given = &kernel->options;
    if (given->schedule || given->tile_rows || given->tile_columns || !gpu->cache.folder[0] ||
        !key_of(gpu, kernel, &key) || !cache_get(&gpu->cache, "tune", &key, (void **)&data, &size))
        return false;
    if (sscanf(data, "%15s %d %d\n", schedule, &rows, &columns) == 3)
        for (int i = 1; i < CANDIDATES && !found; i++)
            if (!strcmp(candidates[i].schedule, schedule) && candidates[i].rows == rows &&
                candidates[i].columns == columns) {
                tune_candidate(i, choice);
                choice->exact = given->exact;
                found = true;
            }
    free(data);
    return found;
}

coda_status tune_remember(const coda_kernel *kernel, const coda_options *choice, double ms, coda_error *error)
{
    const struct gpu *gpu = kernel->device->state;
    struct digest key;
    struct text text = {0};
    if (!gpu->cache.folder[0])
        return fail(error, CODA_UNSUPPORTED, "a choice is remembered in the cache, which is %s", gpu->cache.remark);
    if (!key_of(gpu, kernel, &key))
        return fail_memory(error, "the key of a choice", sizeof key);
    if (!choice || !choice->schedule) {
        cache_remove(&gpu->cache, "tune", &key);
        return CODA_OK;
    }
    text_add(&text, "%s %d %d\n%s", choice->schedule, choice->tile_rows, choice->tile_columns, kernel->graph->name);
    add_sizes(kernel, true, &text);
    text_add(&text, " on %s: %s", gpu->name[0] ? gpu->name : gpu->architecture, choice->schedule);
    if (choice->tile_rows)
        text_add(&text, " %d x %d", choice->tile_rows, choice->tile_columns);
    if (ms > 0)
        text_add(&text, ", %.4f ms", ms);
    coda_status status = text.failed ? fail_memory(error, "a choice", text.length) : CODA_OK;
    if (status == CODA_OK && !cache_put(&gpu->cache, "tune", &key, text.data, text.length))
        status = fail(error, CODA_IO, "the choice could not be written into %s", gpu->cache.folder);
    text_free(&text);
    return status;
}

static void add_line(void *context, const char *data, size_t size)
{
    const char *line = memchr(data, '\n', size);
    if (line)
        text_add(context, "%s\n", line + 1);
}

void tune_list(const struct gpu *gpu, struct text *lines)
{
    cache_each(&gpu->cache, "tune", add_line, lines);
}
