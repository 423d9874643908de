/* Derived axes: sums of others, and the axis of stacked rows. */
#include "ir/build.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Replaces derived axes by their terms until only free ones are left: at most as many rounds as there are axes. */
static bool expand(const struct graph *graph, struct axis_sum *sum)
{
    bool derived = true;
    for (int round = 0; derived && round <= MAX_AXES; round++) {
        derived = false;
        for (int i = 0; i < graph->axis_count; i++) {
            const struct axis *axis = &graph->axis[i];
            int64_t factor = sum->factor[i], product;
            if (axis->term_count == 0 || factor == 0)
                continue;
            derived = true;
            sum->factor[i] = 0;
            for (int k = 0; k < axis->term_count; k++) {
                int64_t *to = axis->term[k].axis < 0 ? &sum->constant : &sum->factor[axis->term[k].axis];
                if (__builtin_mul_overflow(factor, axis->term[k].factor, &product) ||
                    __builtin_add_overflow(*to, product, to))
                    return false;
            }
        }
    }
    return !derived;
}

bool axis_sum_add(const struct graph *graph, const struct dim *dim, struct axis_sum *sum)
{
    if (dim->axis < 0)
        return !__builtin_add_overflow(sum->constant, dim->constant, &sum->constant);
    return !__builtin_add_overflow(sum->factor[dim->axis], 1, &sum->factor[dim->axis]) && expand(graph, sum);
}

bool axis_sum_equal(const struct axis_sum *a, const struct axis_sum *b)
{
    return a->constant == b->constant && memcmp(a->factor, b->factor, sizeof a->factor) == 0;
}

bool sizes_agree(const struct graph *graph, const struct dim *a, const struct dim *b)
{
    if (dim_equal(a, b))
        return true;
    if (a->form != DIM_WHOLE || b->form != DIM_WHOLE)
        return false;
    struct axis_sum p = {0}, q = {0};
    return axis_sum_add(graph, a, &p) && axis_sum_add(graph, b, &q) && axis_sum_equal(&p, &q);
}

static bool name_is_taken(const struct graph *graph, const char *name)
{
    if (graph_find_axis(graph, name) >= 0 || graph_find_operand(graph, name) >= 0)
        return true;
    for (int i = 0; i < graph->parameter_count; i++)
        if (strcmp(graph->parameter[i].name, name) == 0)
            return true;
    for (int i = 0; i < graph->node_count; i++)
        if (graph->node[i].name && strcmp(graph->node[i].name, name) == 0)
            return true;
    return false;
}

/* Q_E_E for rows of Q, E and E; a number where the names are long or taken. */
static void stacked_name(const struct graph *graph, const int *parts, int count, char *name, int size)
{
    int length = 0;
    name[0] = '\0';
    for (int i = 0; i < count; i++) {
        const struct dim *rows = &graph->node[parts[i]].shape.dim[0];
        if (rows->axis < 0)
            append(name, size, &length, "%s%" PRId64, i ? "_" : "rows_", rows->constant);
        else
            append(name, size, &length, "%s%s", i ? "_" : "", axis_name(graph, rows->axis));
    }
    for (int i = 1; length > 190 || name_is_taken(graph, name); i++)
        length = snprintf(name, (size_t)size, "rows_%d", i);
}

static int add_derived_axis(struct graph *graph, const char *name, const struct axis_sum *sum, struct complaint *why)
{
    struct axis derived = {0};
    for (int i = 0; i <= graph->axis_count; i++) {
        bool constant = i == graph->axis_count;
        int64_t factor = constant ? sum->constant : sum->factor[i];
        if (factor == 0)
            continue;
        if (derived.term_count == MAX_AXIS_TERMS)
            return refuse(why, CODA_UNSUPPORTED, "Stack fewer weights, or store some of them as one.",
                          "the rows of a stack are a sum of more than %d axes", MAX_AXIS_TERMS);
        derived.term[derived.term_count].axis = constant ? -1 : i;
        derived.term[derived.term_count++].factor = factor;
    }
    int index = graph_add_axis(graph, name, why);
    if (index < 0)
        return -1;
    derived.name = graph->axis[index].name;
    graph->axis[index] = derived;
    return index;
}

bool stacked_dim(struct graph *graph, const int *parts, int count, struct dim *dim, struct complaint *why)
{
    struct axis_sum sum = {0};
    for (int i = 0; i < count; i++)
        if (!axis_sum_add(graph, &graph->node[parts[i]].shape.dim[0], &sum)) {
            refuse(why, CODA_UNSUPPORTED, "", "the rows of the stack are too many");
            return false;
        }
    bool constant = true;
    for (int i = 0; i < MAX_AXES; i++)
        constant = constant && sum.factor[i] == 0;
    if (constant) {
        *dim = (struct dim){DIM_WHOLE, -1, sum.constant, no_run()};
        return true;
    }
    for (int i = 0; i < graph->axis_count; i++) {
        struct axis_sum other = {0};
        struct dim candidate = whole_dim(i);
        if (graph->axis[i].term_count > 0 && axis_sum_add(graph, &candidate, &other) && axis_sum_equal(&sum, &other)) {
            graph->axis[i].declared_only = false;
            *dim = candidate;
            return true;
        }
    }
    char name[256];
    stacked_name(graph, parts, count, name, sizeof name);
    int axis = add_derived_axis(graph, name, &sum, why);
    *dim = whole_dim(axis);
    return axis >= 0;
}
