#include "rewrite/buffers.h"
#include "rewrite/builder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_REPORTED = 512 }; /* programs: longer lists are nobody's schedule */

struct value {
    const char *name;
    char type[160]; /* "[M, D] bf16" */
    int first, last;
    int buffer;
};

struct lifetimes {
    struct value *value;
    int count, room;
    int buffers;
};

static bool is_result(const struct graph *const results[2], const char *name)
{
    for (int i = 0; i < 2; i++) {
        int o = results[i] != NULL ? graph_find_operand(results[i], name) : -1;
        if (o >= 0 && results[i]->operand[o].role != CODA_IN)
            return true;
    }
    return false;
}

static struct value *find_value(struct lifetimes *l, const char *name)
{
    for (int i = l->count - 1; i >= 0; i--)
        if (strcmp(l->value[i].name, name) == 0)
            return &l->value[i];
    return NULL;
}

static bool add_value(struct lifetimes *l, const struct graph *graph, const struct operand *out, int program)
{
    if (l->count == l->room) {
        int room = l->room ? 2 * l->room : 32;
        struct value *larger = realloc(l->value, (size_t)room * sizeof *larger);
        if (larger == NULL)
            return false;
        l->value = larger;
        l->room = room;
    }
    struct value *value = &l->value[l->count++];
    char shape[128];
    shape_print(graph, &out->shape, shape, sizeof shape);
    *value = (struct value){.name = out->name, .first = program, .last = program, .buffer = -1};
    snprintf(value->type, sizeof value->type, "%s %s", shape, coda_dtype_name(out->dtype));
    return true;
}

static bool find_lifetimes(struct lifetimes *l, const struct unit *unit, const struct graph *const results[2])
{
    for (int p = 0; p < unit->count; p++) {
        const struct graph *graph = unit->graph[p];
        for (int o = 0; o < graph->operand_count; o++) {
            const struct operand *operand = &graph->operand[o];
            struct value *value = operand->role == CODA_IN ? find_value(l, operand->name) : NULL;
            if (value != NULL)
                value->last = p;
            else if (operand->role == CODA_OUT && !is_result(results, operand->name) &&
                     !add_value(l, graph, operand, p))
                return false;
        }
    }
    return true;
}

/* The first buffer of the type that is free when the value is written; a program's outs do not replace its `in`s. */
static void assign(struct lifetimes *l)
{
    for (int i = 0; i < l->count; i++) {
        struct value *value = &l->value[i];
        for (int b = 0; b < l->buffers && value->buffer < 0; b++) {
            bool fits = true;
            for (int k = 0; k < i && fits; k++)
                fits = l->value[k].buffer != b ||
                       (strcmp(l->value[k].type, value->type) == 0 && l->value[k].last < value->first);
            if (fits)
                value->buffer = b;
        }
        if (value->buffer < 0)
            value->buffer = l->buffers++;
    }
}

bool report_buffers(struct report *report, const struct unit *unit, const struct graph *const results[2])
{
    struct lifetimes l = {0};
    bool found = unit->count <= MAX_REPORTED && find_lifetimes(&l, unit, results);
    if (found && l.count > 0) {
        assign(&l);
        report_line(report, "buffers: %d for the %d values between programs", l.buffers, l.count);
        for (int b = 0; b < l.buffers; b++) {
            char names[400] = "", type[160] = "";
            int length = 0;
            for (int i = 0; i < l.count; i++)
                if (l.value[i].buffer == b) {
                    append(names, sizeof names, &length, "%s%.60s", length ? ", then " : "", l.value[i].name);
                    memcpy(type, l.value[i].type, sizeof type);
                }
            report_line(report, "    %s: %s", type, names);
        }
    }
    free(l.value);
    return found || unit->count > MAX_REPORTED;
}
