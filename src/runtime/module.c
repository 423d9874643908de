/* Modules: texts that became programs. */
#include "lang/lang.h"
#include "runtime/device.h"
#include "runtime/module.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const char *const coda_standard_texts[][2]; /* programs/ */
extern const char *const coda_block_texts[][2];    /* blocks/ */

enum { MAX_FILE = 16 << 20 };

struct coda_module {
    struct unit unit;
    coda_program *program; /* one a graph of the unit */
};

coda_status module_from_unit(struct unit *unit, coda_module **module, coda_error *error)
{
    coda_module *made = calloc(1, sizeof *made);
    coda_program *programs = calloc((size_t)unit->count + 1, sizeof *programs);
    if (!made || !programs) {
        free(made);
        free(programs);
        unit_free(unit);
        return fail_memory(error, "a module", sizeof *made);
    }
    made->unit = *unit;
    made->program = programs;
    for (int i = 0; i < unit->count; i++)
        programs[i].graph = unit->graph[i];
    *module = made;
    return CODA_OK;
}

coda_status coda_module_parse(const char *text, size_t length, const char *file_name, coda_module **module,
                              coda_error *error)
{
    struct unit unit = {0};
    coda_status status = parse(text, length, file_name ? file_name : "<text>", &unit, error);
    return status == CODA_OK ? module_from_unit(&unit, module, error) : status;
}

static coda_status read_file(const char *path, char **text, size_t *length, coda_error *error)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return fail(error, CODA_IO, "%s: cannot be opened: %s", path, strerror(errno));
    coda_status status = CODA_OK;
    size_t size = 0, room = 1 << 16;
    char *content = malloc(room);
    if (!content) {
        fclose(file);
        return fail_memory(error, path, room);
    }
    while (!feof(file)) {
        if (size == room) {
            char *larger = room < MAX_FILE ? realloc(content, room *= 2) : NULL;
            if (!larger) {
                status =
                    fail(error, CODA_INVALID, "%s: larger than %d bytes; programs are short texts", path, MAX_FILE);
                break;
            }
            content = larger;
        }
        size += fread(content + size, 1, room - size, file);
        if (ferror(file)) {
            status = fail(error, CODA_IO, "%s: cannot be read: %s", path, strerror(errno));
            break;
        }
    }
    fclose(file);
    if (status != CODA_OK) {
        free(content);
        return status;
    }
    *text = content;
    *length = size;
    return CODA_OK;
}

coda_status coda_module_load(const char *path, coda_module **module, coda_error *error)
{
    char *text = NULL;
    size_t length = 0;
    coda_status status = read_file(path, &text, &length, error);
    if (status != CODA_OK)
        return status;
    status = coda_module_parse(text, length, path, module, error);
    free(text);
    return status;
}

void coda_module_free(coda_module *module)
{
    if (!module)
        return;
    unit_free(&module->unit);
    free(module->program);
    free(module);
}

/* The texts that the library carries, parsed once a process, on first use. */
struct carried {
    const char *name;
    const char *const (*text)[2];
    coda_module *module;
    coda_error error;
};
static pthread_once_t programs_once = PTHREAD_ONCE_INIT, blocks_once = PTHREAD_ONCE_INIT;
static struct carried programs = {.name = "standard programs"}, blocks = {.name = "standard blocks"};

static void parse_carried(struct carried *carried)
{
    size_t length = 0;
    for (int i = 0; carried->text[i][0]; i++)
        length += strlen(carried->text[i][1]) + 1;
    char *text = malloc(length + 1);
    if (!text) {
        fail_memory(&carried->error, carried->name, length);
        return;
    }
    char *end = text;
    for (int i = 0; carried->text[i][0]; i++)
        end += sprintf(end, "%s\n", carried->text[i][1]);
    coda_module_parse(text, (size_t)(end - text), carried->name, &carried->module, &carried->error);
    free(text);
}

static void parse_programs(void)
{
    programs.text = coda_standard_texts;
    parse_carried(&programs);
}

static void parse_blocks(void)
{
    blocks.text = coda_block_texts;
    parse_carried(&blocks);
}

static coda_status give(const struct carried *carried, const coda_module **module, coda_error *error)
{
    if (!carried->module)
        return fail(error, carried->error.status, "%s", carried->error.message);
    *module = carried->module;
    return CODA_OK;
}

coda_status coda_standard_module(const coda_module **module, coda_error *error)
{
    pthread_once(&programs_once, parse_programs);
    return give(&programs, module, error);
}

coda_status coda_standard_blocks(const coda_module **module, coda_error *error)
{
    pthread_once(&blocks_once, parse_blocks);
    return give(&blocks, module, error);
}

coda_status coda_module_retype(const coda_module *module, coda_dtype from, coda_dtype to, coda_module **retyped,
                               coda_error *error)
{
    struct unit unit = {0};
    unit.graph = calloc((size_t)module->unit.count + 1, sizeof *unit.graph);
    if (!unit.graph)
        return fail_memory(error, "a module", sizeof *unit.graph);
    for (int i = 0; i < module->unit.count; i++) {
        unit.graph[i] = graph_retype(module->unit.graph[i], from, to);
        if (!unit.graph[i]) {
            unit_free(&unit);
            return fail_memory(error, "a copy of a program", sizeof **unit.graph);
        }
        unit.count++;
    }
    return module_from_unit(&unit, retyped, error);
}

int coda_module_size(const coda_module *module)
{
    return module->unit.count;
}

const coda_program *coda_module_program(const coda_module *module, int index)
{
    return index >= 0 && index < module->unit.count ? &module->program[index] : NULL;
}

const coda_program *coda_module_find(const coda_module *module, const char *program)
{
    for (int i = 0; i < module->unit.count; i++)
        if (!strcmp(module->unit.graph[i]->name, program))
            return &module->program[i];
    return NULL;
}
