/* Sizes of axes: derived ones from their terms and back, which ones kernels must know, and what pairs and heads ask of
 * them. */
#include "ir/build.h"
#include <inttypes.h>

int64_t extent_size(const struct extent *extent, const int64_t *sizes)
{
    if (extent->axis < 0)
        return extent->value;
    return sizes[extent->axis] / (extent->value > 1 ? extent->value : 1);
}

int64_t dim_size(const struct dim *dim, const int64_t *sizes)
{
    if (dim->form == DIM_ABSENT)
        return 1;
    int64_t size = dim->axis < 0 ? dim->constant : sizes[dim->axis];
    if (size <= 0 || dim->form == DIM_WHOLE)
        return size;
    if (dim->form == DIM_HALVES)
        return size / 2;
    int64_t run = extent_size(&dim->run, sizes);
    return run <= 0 ? 0 : (size - 1) / run + 1;
}

/* ---------------------------------------------------------------- derived axes */

/* The known part of an axis's sum, and its unknown term where there is exactly one. */
struct partial_sum {
    int64_t known;
    int unknown_count;
    int unknown; /* index of the last unknown term */
    bool overflow;
};

static struct partial_sum add_terms(const struct axis *axis, const int64_t *sizes)
{
    struct partial_sum sum = {0};
    for (int i = 0; i < axis->term_count; i++) {
        int64_t size = axis->term[i].axis < 0 ? 1 : sizes[axis->term[i].axis], product;
        if (size == 0) {
            sum.unknown_count++;
            sum.unknown = i;
        } else if (__builtin_mul_overflow(size, axis->term[i].factor, &product) ||
                   __builtin_add_overflow(sum.known, product, &sum.known)) {
            sum.overflow = true;
        }
    }
    return sum;
}

static coda_status contradict(const struct graph *graph, const struct axis *axis, int64_t found, int64_t expected,
                              struct complaint *why)
{
    char terms[256];
    int length = 0;
    terms[0] = '\0';
    for (int i = 0; i < axis->term_count; i++) {
        append(terms, sizeof terms, &length, "%s", i ? " + " : "");
        if (axis->term[i].axis < 0) {
            append(terms, sizeof terms, &length, "%" PRId64, axis->term[i].factor);
            continue;
        }
        if (axis->term[i].factor != 1)
            append(terms, sizeof terms, &length, "%" PRId64 "*", axis->term[i].factor);
        append(terms, sizeof terms, &length, "%s", graph->axis[axis->term[i].axis].name);
    }
    refuse(why, CODA_INVALID, "Check the shapes of the operands that have these axes.",
           "%.60s is %" PRId64 ", but %.160s is %" PRId64, axis->name, found, terms, expected);
    return CODA_INVALID;
}

/* Sets what one derived axis determines: its own size or one of its terms'. */
static coda_status complete_axis(const struct graph *graph, int index, int64_t *sizes, bool *changed,
                                 struct complaint *why)
{
    const struct axis *axis = &graph->axis[index];
    struct partial_sum sum = add_terms(axis, sizes);
    if (sum.overflow || (sum.unknown_count == 0 && sum.known < 1)) {
        refuse(why, CODA_INVALID, "Check the sizes of its terms.", "the size of %.60s is out of range", axis->name);
        return CODA_INVALID;
    }
    if (sum.unknown_count == 0) {
        if (sizes[index] == 0) {
            sizes[index] = sum.known;
            *changed = true;
        }
        return sizes[index] == sum.known ? CODA_OK : contradict(graph, axis, sizes[index], sum.known, why);
    }
    if (sum.unknown_count > 1 || sizes[index] == 0)
        return CODA_OK;
    int64_t factor = axis->term[sum.unknown].factor, rest = sizes[index] - sum.known;
    if (factor < 1 || rest < factor || rest % factor != 0)
        return contradict(graph, axis, sizes[index], sum.known, why);
    sizes[axis->term[sum.unknown].axis] = rest / factor;
    *changed = true;
    return CODA_OK;
}

coda_status sizes_complete(const struct graph *graph, int64_t *sizes, struct complaint *why)
{
    for (int i = 0; i < graph->axis_count; i++)
        if (sizes[i] < 0) {
            refuse(why, CODA_INVALID, "Sizes are 1 or more.", "%.60s is %" PRId64, graph->axis[i].name, sizes[i]);
            return CODA_INVALID;
        }
    bool changed = true;
    for (int round = 0; changed && round <= graph->axis_count; round++) {
        changed = false;
        for (int i = 0; i < graph->axis_count; i++) {
            if (graph->axis[i].term_count == 0)
                continue;
            coda_status status = complete_axis(graph, i, sizes, &changed, why);
            if (status != CODA_OK)
                return status;
        }
    }
    return CODA_OK;
}

/* ---------------------------------------------------------------- fixed axes */

/* Is the axis the length of a run, of a half or of a head? */
static bool is_length(const struct graph *graph, int axis)
{
    for (int i = 0; i < graph->operand_count; i++)
        for (int k = 0; k < graph->operand[i].shape.rank; k++) {
            const struct dim *dim = &graph->operand[i].shape.dim[k];
            if (dim->form != DIM_WHOLE && dim->run.axis == axis)
                return true;
        }
    for (int i = 0; i < graph->node_count; i++) {
        const struct node *node = &graph->node[i];
        if (node->run.axis == axis)
            return true;
        if (node->op == OP_ROPE && graph->node[node->input[1]].shape.dim[1].axis == axis)
            return true;
        for (int k = 0; k < node->shape.rank; k++)
            if (node->shape.dim[k].form != DIM_WHOLE && node->shape.dim[k].run.axis == axis)
                return true;
    }
    return false;
}

static bool occurs(const struct graph *graph, int axis)
{
    for (int i = 0; i < graph->operand_count; i++)
        for (int k = 0; k < graph->operand[i].shape.rank; k++)
            if (graph->operand[i].shape.dim[k].axis == axis)
                return true;
    for (int i = 0; i < graph->node_count; i++) {
        const struct node *node = &graph->node[i];
        if (node->axis == axis || (node->rope_cols.form != DIM_ABSENT && node->rope_cols.axis == axis))
            return true;
        for (int k = 0; k < node->shape.rank; k++)
            if (node->shape.dim[k].axis == axis)
                return true;
    }
    return false;
}

/* Does a value, a number or a term of such an axis need the size? */
static bool is_needed(const struct graph *graph, int axis)
{
    bool needed[MAX_AXES] = {false};
    for (int i = 0; i < graph->axis_count; i++)
        needed[i] = occurs(graph, i) || is_length(graph, i);
    for (int round = 0; round < graph->axis_count; round++)
        for (int i = 0; i < graph->axis_count; i++)
            for (int k = 0; needed[i] && k < graph->axis[i].term_count; k++)
                if (graph->axis[i].term[k].axis >= 0)
                    needed[graph->axis[i].term[k].axis] = true;
    return needed[axis];
}

/* Marks the axes whose sizes follow from the shapes of the operands. */
static void mark_given(const struct graph *graph, bool *given)
{
    for (int i = 0; i < graph->operand_count; i++)
        for (int k = 0; k < graph->operand[i].shape.rank; k++) {
            const struct dim *dim = &graph->operand[i].shape.dim[k];
            if (dim->form == DIM_WHOLE && dim->axis >= 0)
                given[dim->axis] = true;
        }
    bool changed = true;
    for (int round = 0; changed && round <= graph->axis_count; round++) {
        changed = false;
        for (int i = 0; i < graph->axis_count; i++) {
            const struct axis *axis = &graph->axis[i];
            int unknown_count = 0, unknown = -1;
            for (int k = 0; k < axis->term_count; k++)
                if (axis->term[k].axis >= 0 && !given[axis->term[k].axis]) {
                    unknown_count++;
                    unknown = axis->term[k].axis;
                }
            int follows = axis->term_count == 0            ? -1
                          : unknown_count == 0             ? i
                          : unknown_count == 1 && given[i] ? unknown
                                                           : -1;
            if (follows >= 0 && !given[follows])
                changed = given[follows] = true;
        }
    }
}

bool axis_is_fixed(const struct graph *graph, int axis)
{
    if (axis < 0 || axis >= graph->axis_count)
        return false;
    if (is_length(graph, axis))
        return true;
    bool given[MAX_AXES] = {false};
    mark_given(graph, given);
    return !given[axis] && is_needed(graph, axis);
}

/* ---------------------------------------------------------------- divisibility */

static coda_status indivisible(const struct graph *graph, const struct node *node, const struct dim *dim, int64_t size,
                               int64_t divisor, struct complaint *why)
{
    char text[SHAPE_TEXT];
    dim_print(graph, dim, text, sizeof text);
    refuse(why, CODA_INVALID, "Choose a size that is a multiple, or another length.",
           "`%s` needs %.60s to be a multiple of %" PRId64 ", found %" PRId64, op_name(node->op), text, divisor, size);
    return CODA_INVALID;
}

static coda_status check_multiple(const struct graph *graph, const struct node *node, const struct dim *dim,
                                  int64_t divisor, const int64_t *sizes, struct complaint *why)
{
    int64_t size = dim_size(dim, sizes);
    if (size > 0 && divisor > 0 && size % divisor != 0)
        return indivisible(graph, node, dim, size, divisor, why);
    return CODA_OK;
}

static coda_status check_rope(const struct graph *graph, const struct node *node, const int64_t *sizes,
                              struct complaint *why)
{
    const struct dim *columns = &node->shape.dim[1], *head = &graph->node[node->input[1]].shape.dim[1];
    int64_t width = dim_size(head, sizes);
    coda_status status = check_multiple(graph, node, head, 2, sizes, why);
    if (status == CODA_OK)
        status = check_multiple(graph, node, columns, width, sizes, why);
    if (status != CODA_OK || node->rope_cols.form == DIM_ABSENT)
        return status;
    int64_t size = dim_size(columns, sizes), limit = dim_size(&node->rope_cols, sizes);
    if (size > 0 && limit > size) {
        refuse(why, CODA_INVALID, "Rotate no more columns than there are.",
               "`rope` of %" PRId64 " columns, but there are %" PRId64, limit, size);
        return CODA_INVALID;
    }
    return check_multiple(graph, node, &node->rope_cols, width, sizes, why);
}

static coda_status check_node(const struct graph *graph, const struct node *node, const int64_t *sizes,
                              struct complaint *why)
{
    int64_t doubled = 0;
    switch (node->op) {
    case OP_EVEN:
    case OP_ODD:
        return check_multiple(graph, node, &graph->node[node->input[0]].shape.dim[1], 2, sizes, why);
    case OP_JOIN:
        return check_multiple(graph, node, &node->shape.dim[1], 2, sizes, why);
    case OP_FIRST:
    case OP_SECOND:
    case OP_JOIN_HALVES:
        if (__builtin_mul_overflow(extent_size(&node->run, sizes), (int64_t)2, &doubled))
            doubled = INT64_MAX;
        return check_multiple(
            graph, node, node->op == OP_JOIN_HALVES ? &node->shape.dim[1] : &graph->node[node->input[0]].shape.dim[1],
            doubled, sizes, why);
    case OP_ROPE:
        return check_rope(graph, node, sizes, why);
    case OP_REPEAT:
        return check_multiple(graph, node, &node->shape.dim[0],
                              dim_size(&graph->node[node->input[0]].shape.dim[0], sizes), sizes, why);
    default:
        return CODA_OK;
    }
}

/* A length such as H/2 is exact and at least 1. */
static coda_status check_extent(const struct graph *graph, const struct extent *extent, const int64_t *sizes,
                                struct complaint *why)
{
    if (extent->axis < 0 || extent->value <= 1 || sizes[extent->axis] == 0 || sizes[extent->axis] % extent->value == 0)
        return CODA_OK;
    refuse(why, CODA_INVALID, "Choose a multiple.",
           "the length %.60s/%" PRId64 " is no whole number: %.60s is %" PRId64, axis_name(graph, extent->axis),
           extent->value, axis_name(graph, extent->axis), sizes[extent->axis]);
    return CODA_INVALID;
}

static coda_status check_shape(const struct graph *graph, const struct shape *shape, const int64_t *sizes,
                               struct complaint *why)
{
    int64_t count = 8; /* bytes of the widest element */
    for (int i = 0; i < shape->rank; i++) {
        coda_status status = CODA_OK;
        if (shape->dim[i].form != DIM_WHOLE)
            status = check_extent(graph, &shape->dim[i].run, sizes, why);
        if (status != CODA_OK)
            return status;
        int64_t size = dim_size(&shape->dim[i], sizes);
        if (__builtin_mul_overflow(count, size > 0 ? size : 1, &count)) {
            char text[SHAPE_TEXT];
            shape_print(graph, shape, text, sizeof text);
            refuse(why, CODA_INVALID, "Check the sizes.", "a value %s has more elements than memory can hold", text);
            return CODA_INVALID;
        }
    }
    return CODA_OK;
}

coda_status sizes_check(const struct graph *graph, const int64_t *sizes, struct complaint *why)
{
    for (int i = 0; i < graph->axis_count; i++)
        if (sizes[i] < 0) {
            refuse(why, CODA_INVALID, "Sizes are 1 or more.", "%.60s is %" PRId64, graph->axis[i].name, sizes[i]);
            return CODA_INVALID;
        }
    for (int i = 0; i < graph->operand_count; i++) {
        coda_status status = check_shape(graph, &graph->operand[i].shape, sizes, why);
        if (status != CODA_OK)
            return status;
    }
    for (int i = 0; i < graph->node_count; i++) {
        const struct node *node = &graph->node[i];
        coda_status status = check_shape(graph, &node->shape, sizes, why);
        if (status == CODA_OK)
            status = check_extent(graph, &node->run, sizes, why);
        if (status == CODA_OK)
            status = check_node(graph, node, sizes, why);
        if (status != CODA_OK)
            return status;
    }
    return CODA_OK;
}
