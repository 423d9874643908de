/* The order that programs run in: as the compiler gave it, but for those that run for some rows at a time, which come
 * together. */
#include "ir/build.h"
#include "rewrite/buffers.h"
#include "rewrite/cut.h"

#include <stdlib.h>
#include <string.h>

/* Marks, one a program. */
struct marks {
    bool chunked[MAX_PLANNED]; /* a value of it lies over both axes */
    bool needed[MAX_PLANNED];  /* by a chunked one */
    bool behind[MAX_PLANNED];  /* waits for a chunked one */
};

static bool shape_has(const struct shape *shape, int axis)
{
    return (shape->rank > 0 && shape->dim[0].axis == axis) || (shape->rank > 1 && shape->dim[1].axis == axis);
}

static bool has_wide_value(const struct graph *graph, const char *row, const char *wide)
{
    int r = graph_find_axis(graph, row), w = graph_find_axis(graph, wide);
    for (int o = 0; o < graph->operand_count && r >= 0 && w >= 0; o++)
        if (shape_has(&graph->operand[o].shape, r) && shape_has(&graph->operand[o].shape, w))
            return true;
    return false;
}

static bool reads_from(const struct graph *reader, const struct graph *writer)
{
    for (int i = 0; i < reader->operand_count; i++) {
        int o = reader->operand[i].role == CODA_IN ? graph_find_operand(writer, reader->operand[i].name) : -1;
        if (o >= 0 && writer->operand[o].role != CODA_IN)
            return true;
    }
    return false;
}

/* Can the program run for `chunk` rows at a time, and give the same in the end? */
static bool runs_by_rows(const struct graph *graph, const struct plan_options *options, struct complaint *why)
{
    int row = graph_find_axis(graph, options->row_axis);
    for (int o = 0; o < graph->operand_count; o++) {
        const struct operand *operand = &graph->operand[o];
        const struct dim *rows = &operand->shape.dim[0];
        bool by_rows = operand->shape.rank > 0 && rows->axis == row;
        bool even = !by_rows || rows->form == DIM_WHOLE ||
                    (rows->form == DIM_RUNS && rows->run.axis < 0 && options->chunk_rows % rows->run.value == 0);
        if (operand->shape.rank > 1 && operand->shape.dim[1].axis == row)
            even = false;
        if (even && (by_rows || operand->role != CODA_OUT))
            continue;
        refuse(why, CODA_UNSUPPORTED, "Run all rows at once: leave chunk_axis out.",
               "`%.60s` cannot run for some rows of %.60s at a time: `%.60s` does not lie row by row", graph->name,
               options->row_axis, operand->name);
        return false;
    }
    return true;
}

static bool mark(struct marks *m, const struct unit *unit, const struct plan_options *options, struct complaint *why)
{
    bool found = false;
    for (int p = 0; p < unit->count; p++) {
        m->chunked[p] = has_wide_value(unit->graph[p], options->row_axis, options->wide_axis);
        found = found || m->chunked[p];
        if (m->chunked[p] && !runs_by_rows(unit->graph[p], options, why))
            return false;
    }
    for (int p = unit->count - 1; p >= 0; p--)
        for (int r = p + 1; r < unit->count && !m->needed[p]; r++)
            m->needed[p] = (m->chunked[r] || m->needed[r]) && reads_from(unit->graph[r], unit->graph[p]);
    for (int p = 0; p < unit->count; p++) {
        for (int q = 0; q < p && !m->behind[p]; q++)
            m->behind[p] = (m->chunked[q] || m->behind[q]) && reads_from(unit->graph[p], unit->graph[q]);
        if (!m->behind[p] || !m->needed[p] || m->chunked[p])
            continue;
        struct complaint not_by_rows;
        m->chunked[p] = runs_by_rows(unit->graph[p], options, &not_by_rows); /* one value a row, say */
        if (!m->chunked[p]) {
            refuse(why, CODA_UNSUPPORTED, "Run all rows at once: leave chunk_axis out.",
                   "`%.60s`, which needs all rows, stands between programs that run for some rows at a time",
                   unit->graph[p]->name);
            return false;
        }
    }
    if (!found)
        refuse(why, CODA_INVALID, "Name an axis of matrices, or leave chunk_axis out.",
               "no value has the axes %.60s and %.60s", options->row_axis, options->wide_axis);
    return found;
}

/* Appends the programs that come before (0), among (1) or after (2) those that run by rows. */
static int append_part(const struct marks *m, int count, int part, int *order, int length)
{
    for (int p = 0; p < count; p++)
        if ((m->chunked[p] ? 1 : m->needed[p] ? 0 : 2) == part)
            order[length++] = p;
    return length;
}

/* Members of a list come with the last of them, in their order. */
static void order_lists(const int *list, int count, int *order)
{
    int length = 0;
    for (int p = 0; p < count; p++) {
        bool waits = false;
        for (int q = p + 1; q < count && list != NULL && list[p] > 0; q++)
            waits = waits || list[q] == list[p];
        for (int q = 0; q < p && !waits && list != NULL && list[p] > 0; q++)
            if (list[q] == list[p])
                order[length++] = q;
        if (!waits)
            order[length++] = p;
    }
}

bool memory_plan_order(const struct unit *unit, const struct plan_options *options, int order[MAX_PLANNED],
                       int *chunk_first, int *chunk_end, struct complaint *why)
{
    *chunk_first = *chunk_end = 0;
    if (options->wide_axis == NULL) {
        order_lists(options->list, unit->count, order);
        return true;
    }
    struct marks *m = calloc(1, sizeof *m);
    bool made = m != NULL && mark(m, unit, options, why);
    if (m == NULL)
        refuse(why, CODA_MEMORY, "", "no memory for the order of programs");
    if (made) {
        *chunk_first = append_part(m, unit->count, 0, order, 0);
        *chunk_end = append_part(m, unit->count, 1, order, *chunk_first);
        append_part(m, unit->count, 2, order, *chunk_end);
    }
    free(m);
    return made;
}
