#include "blocks.h"
#include "rewrite/adjoint.h"
#include "rewrite/rewrite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool complain(struct block_check *check, const char *what, const char *detail)
{
    snprintf(check->message, sizeof check->message, "%s: %.5800s", what, detail);
    return false;
}

static struct graph *widen(const struct graph *graph)
{
    static const coda_dtype narrow[] = {CODA_BF16, CODA_F16, CODA_E4M3, CODA_E5M2};
    struct graph *wide = graph_copy(graph);
    for (int i = 0; i < 4 && wide; i++) {
        struct graph *next = graph_retype(wide, narrow[i], CODA_F32);
        graph_free(wide);
        wide = next;
    }
    return wide;
}

static void sizes_of(const struct graph *graph, const coda_dims *dims, int64_t *size)
{
    memset(size, 0, MAX_AXES * sizeof *size);
    for (int i = 0; i < dims->count; i++) {
        int axis = graph_find_axis(graph, dims->item[i].axis);
        if (axis >= 0 && graph->axis[axis].term_count == 0)
            size[axis] = dims->item[i].size;
    }
}

/* The block with the gradient of every float operand but tables, as one graph that nothing has rewritten. */
static struct graph *plain_gradient(const struct graph *block, struct complaint *why)
{
    struct request request = {0};
    struct joint joint;
    for (int o = 0; o < block->operand_count; o++) {
        const struct operand *operand = &block->operand[o];
        request.wanted[o] = operand->role == CODA_IN && operand->dtype != CODA_I32;
        for (int n = 0; n < block->node_count; n++)
            if (block->node[n].op == OP_ROPE && block->node[n].input[1] == operand->node)
                request.wanted[o] = false;
    }
    if (differentiate_graph(block, &request, &joint, why) != CODA_OK)
        return NULL;
    struct graph *graph = joint.graph;
    joint.graph = NULL;
    joint_free(&joint);
    return graph;
}

/* Largest difference of out `name`; runs of a vector are added up. */
static double difference(const struct chain *whole, int o, const struct chain *cut, int p)
{
    const struct chain_operand *a = &whole->operand[o], *b = &cut->operand[p];
    bool runs = whole->graph->operand[o].shape.rank == 1 && cut->graph->operand[p].shape.rank == 2;
    bool rows = runs && cut->graph->operand[p].shape.dim[0].form == DIM_WHOLE;
    double largest = 0, worst = 0;
    for (int64_t k = 0; k < a->count; k++) {
        double value = runs ? 0 : b->value[k];
        for (int64_t i = 0; runs && i < (rows ? b->columns : b->rows); i++)
            value += rows ? b->value[k * b->columns + i] : b->value[i * b->columns + k];
        double apart = fabs(value - a->value[k]);
        worst = apart > worst || apart != apart ? apart : worst;
        largest = fabs(a->value[k]) > largest ? fabs(a->value[k]) : largest;
    }
    return worst / (1 + largest);
}

static bool compare(const struct graph *whole, const struct graph *cut, const coda_dims *dims, double bound,
                    uint64_t seed, struct block_check *check)
{
    int64_t sizes[2][MAX_AXES];
    struct chain a, b = {0};
    sizes_of(whole, dims, sizes[0]);
    sizes_of(cut, dims, sizes[1]);
    if (!chain_open(&a, whole, sizes[0], seed))
        return complain(check, "sizes", "an axis of the block has no size");
    bool good = chain_open(&b, cut, sizes[1], seed);
    for (int o = 0; o < cut->operand_count && good; o++)
        if (cut->operand[o].role == CODA_IN) {
            int same = graph_find_operand(whole, cut->operand[o].name);
            good = same >= 0 && a.operand[same].count == b.operand[o].count;
            if (good)
                memcpy(b.operand[o].value, a.operand[same].value, (size_t)a.operand[same].count * sizeof(double));
            else
                complain(check, "a program reads what nothing gave", cut->operand[o].name);
        }
    good = good && chain_run(&a, check->message, sizeof check->message) &&
           chain_run(&b, check->message, sizeof check->message);
    for (int o = 0; o < whole->operand_count && good; o++) {
        if (whole->operand[o].role == CODA_IN)
            continue;
        int same = graph_find_operand(cut, whole->operand[o].name);
        double error = same < 0 ? INFINITY : difference(&a, o, &b, same);
        check->error = error > check->error || error != error ? error : check->error;
        if (!(error <= bound)) {
            snprintf(check->message, sizeof check->message, "`%.60s` differs by %g", whole->operand[o].name, error);
            good = false;
        }
    }
    chain_close(&a);
    chain_close(&b);
    return good;
}

static bool reparses(const struct unit *unit, struct block_check *check)
{
    for (int i = 0; i < unit->count; i++) {
        struct unit again = {0};
        coda_error error = {0};
        char *text = print_graph(unit->graph[i]);
        bool good = text && parse(text, strlen(text), "derived", &again, &error) == CODA_OK;
        if (!good)
            complain(check, "a derived program is refused", error.message);
        unit_free(&again);
        free(text);
        if (!good)
            return false;
    }
    return true;
}

bool block_agrees(const struct graph *block, const coda_dims *dims, bool backward, bool allow_passes, uint64_t seed,
                  struct block_check *check)
{
    const coda_rewrite_options options = {.backward = backward, .allow_passes = allow_passes};
    return block_agrees_with(block, dims, &options, 1e-9, seed, check);
}

bool block_agrees_with(const struct graph *block, const coda_dims *dims, const coda_rewrite_options *options,
                       double bound, uint64_t seed, struct block_check *check)
{
    bool backward = options->backward;
    struct complaint why = {0};
    struct unit unit = {0};
    coda_error error = {0};
    struct graph *wide = widen(block), *whole = NULL, *cut = NULL;
    bool good = false;
    memset(check, 0, sizeof *check);
    if (!wide || rewrite_block(wide, options, &unit, NULL, &error) != CODA_OK) {
        complain(check, error.status == CODA_UNSUPPORTED ? "unsupported" : "rewrite", error.message);
        goto done;
    }
    check->programs = unit.count;
    for (int i = 0; i < unit.count; i++)
        check->passes += strstr(unit.graph[i]->name, "pass") != NULL;
    const struct graph *alone[1] = {wide};
    struct graph *gradient = backward ? plain_gradient(wide, &why) : NULL;
    const struct graph *both[2] = {wide, gradient};
    whole = backward && !gradient ? NULL : chain_join(backward ? both : alone, backward ? 2 : 1, NULL, &why);
    graph_free(gradient);
    cut = whole ? chain_join((const struct graph *const *)unit.graph, unit.count, whole, &why) : NULL;
    if (!cut)
        complain(check, "graphs do not fit together", why.reason);
    else
        good = reparses(&unit, check) && compare(whole, cut, dims, bound, seed, check);
done:
    graph_free(wide);
    graph_free(whole);
    graph_free(cut);
    unit_free(&unit);
    return good;
}
