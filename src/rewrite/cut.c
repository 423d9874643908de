#include "rewrite/cut.h"

#include <stdlib.h>
#include <string.h>

/* `in dX`, where X is a name, is a gradient, and so is what is computed from one. */
static void mark_gradients(struct cutting *c)
{
    for (int n = 0; n < c->graph->node_count; n++) {
        const struct node *node = &c->graph->node[n];
        const char *name = node->op == OP_IN ? c->graph->operand[node->index].name : "";
        c->gradient[n] = name[0] == 'd' && name[1] != '\0' && names_taken(&c->names, name + 1);
        for (int k = 0; k < node->input_count; k++)
            c->gradient[n] = c->gradient[n] || c->gradient[node->input[k]];
    }
}

static bool open_cutting(struct cutting *c)
{
    size_t count = (size_t)c->graph->node_count + 1;
    bool named = names_open(&c->names, c->graph);
    c->time = calloc(count, sizeof *c->time);
    c->need = calloc(count, sizeof *c->need);
    c->group = calloc(count, sizeof *c->group);
    c->gradient = calloc(count, sizeof *c->gradient);
    c->value = malloc(count * sizeof *c->value);
    c->runs = malloc(count * sizeof *c->runs);
    c->made = calloc(count, sizeof *c->made);
    c->stamp = calloc(count, sizeof *c->stamp);
    c->stack = malloc(count * (MAX_INPUTS + 1) * sizeof *c->stack);
    for (int i = 0; i < c->unit->count && named; i++)
        named = names_add(&c->names, c->unit->graph[i]) && names_take(&c->names, c->unit->graph[i]->name);
    bool open = named && users_open(&c->users, c->graph, true) &&
                (c->origin == NULL || names_add(&c->names, c->origin)) && c->time && c->need && c->group &&
                c->gradient && c->value && c->runs && c->made && c->stamp && c->stack;
    for (size_t n = 0; open && n < count; n++)
        c->value[n].piece = c->runs[n].piece = -1;
    if (open)
        mark_gradients(c);
    if (!open)
        refuse(&c->why, CODA_MEMORY, "", "no memory to cut `%.60s` into programs", c->graph->name);
    return open;
}

static void close_cutting(struct cutting *c)
{
    users_close(&c->users);
    names_close(&c->names);
    free(c->time);
    free(c->need);
    free(c->group);
    free(c->gradient);
    free(c->value);
    free(c->runs);
    free(c->made);
    free(c->stamp);
    free(c->stack);
    free(c->piece);
    free(c->dependence);
}

bool unit_append(struct unit *unit, struct graph *graph)
{
    struct graph **grown = realloc(unit->graph, ((size_t)unit->count + 1) * sizeof *grown);
    if (grown == NULL) {
        graph_free(graph);
        return false;
    }
    unit->graph = grown;
    unit->graph[unit->count++] = graph;
    return true;
}

/* A derived program that is not block-local is a limit of the rules: say which one. */
static bool check_program(struct cutting *c, const struct graph *graph)
{
    struct form form;
    struct complaint why = {0};
    char *text = NULL;
    if (form_create(graph, &form, NULL, &why) == CODA_OK) {
        form_free(&form);
        return true;
    }
    text = print_graph(graph);
    refuse(&c->why, why.status == CODA_MEMORY ? CODA_MEMORY : CODA_UNSUPPORTED, "",
           "no rule brings this part into a program: %.240s", why.reason);
    advise(&c->why, "%.500s", text != NULL ? text : "");
    free(text);
    return false;
}

/* ---------------------------------------------------------------- the order to run in */

/* The next program to run: a product that nothing waits for as soon as it can, so that its operands are free early;
 * else the earliest. -1: none is ready. */
static int next_ready(const struct cutting *c, const int *waiting, const bool *done)
{
    int best = -1;
    for (int p = 0; p < c->piece_count; p++) {
        if (done[p] || waiting[p] > 0)
            continue;
        const struct piece *piece = &c->piece[p], *than = best < 0 ? NULL : &c->piece[best];
        bool first = than == NULL || (piece->leaf != than->leaf ? piece->leaf : piece->key < than->key);
        best = first ? p : best;
    }
    return best;
}

static bool order_pieces(struct cutting *c, int *order)
{
    int *waiting = calloc((size_t)c->piece_count + 1, sizeof *waiting), count = 0;
    bool *done = calloc((size_t)c->piece_count + 1, sizeof *done), ordered = false;
    if (waiting == NULL || done == NULL)
        goto done;
    for (int i = 0; i < c->dependence_count; i++)
        waiting[c->dependence[i].piece]++;
    for (; count < c->piece_count; count++) {
        int p = next_ready(c, waiting, done);
        if (p < 0)
            break;
        done[p] = true;
        order[count] = p;
        for (int i = 0; i < c->dependence_count; i++)
            waiting[c->dependence[i].piece] -= c->dependence[i].on == p;
    }
    ordered = count == c->piece_count;
done:
    free(waiting);
    free(done);
    if (!ordered)
        refuse(&c->why, CODA_UNSUPPORTED, "", "the programs of `%.60s` depend on each other", c->graph->name);
    return ordered;
}

static bool emit(struct cutting *c, const char *name, struct unit *unit)
{
    struct graph **program = calloc((size_t)c->piece_count + 1, sizeof *program);
    int *order = calloc((size_t)c->piece_count + 1, sizeof *order);
    bool made = program != NULL && order != NULL;
    if (!made)
        refuse(&c->why, CODA_MEMORY, "", "no memory for %d programs", c->piece_count);
    for (int p = 0; p < c->piece_count && made; p++) {
        program[p] = emit_piece(c, p);
        made = program[p] != NULL && check_program(c, program[p]);
    }
    made = made && order_pieces(c, order);
    for (int i = 0; i < c->piece_count && made; i++) {
        struct graph *next = program[order[i]];
        made = name_piece(c, order[i], name, next);
        program[order[i]] = made ? NULL : next;
        made = made && unit_append(unit, next);
        if (!made)
            refuse(&c->why, CODA_MEMORY, "", "no memory for a program");
    }
    for (int p = 0; p < c->piece_count && program != NULL; p++)
        graph_free(program[p]);
    free(program);
    free(order);
    return made;
}

coda_status cut_graph(const struct graph *graph, const struct graph *origin, const char *name, bool backward,
                      bool allow_passes, struct unit *unit, struct report *report, struct complaint *why)
{
    struct cutting c = {.graph = graph,
                        .origin = origin,
                        .unit = unit,
                        .report = report,
                        .allow_passes = allow_passes,
                        .matrix_dtype = matrix_dtype(graph),
                        .runs_stem = backward ? "c" : "S"};
    memset(why, 0, sizeof *why);
    if (open_cutting(&c) && find_moments(&c) && place_stores(&c) && place_crossings(&c))
        emit(&c, name, unit);
    *why = c.why;
    close_cutting(&c);
    return why->status;
}
