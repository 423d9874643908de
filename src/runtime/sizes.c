#include "runtime/sizes.h"

#include <stdio.h>
#include <string.h>

coda_status sizes_from_dims(const struct graph *graph, const coda_dims *dims, int64_t *sizes, coda_error *error)
{
    memset(sizes, 0, MAX_AXES * sizeof *sizes);
    int count = dims ? dims->count : 0;
    if (count < 0 || count > CODA_MAX_DIMS)
        return fail(error, CODA_INVALID, "%d dims; expected 0 to %d", count, CODA_MAX_DIMS);
    for (int i = 0; i < count; i++) {
        const char *name = dims->item[i].axis;
        int axis = name ? graph_find_axis(graph, name) : -1;
        if (axis < 0)
            return fail(error, CODA_INVALID, "%s has no axis \"%.200s\"", graph->name, name ? name : "(null)");
        if (dims->item[i].size < 1)
            return fail(error, CODA_INVALID, "%s: axis %s has size %lld; expected at least 1", graph->name, name,
                        (long long)dims->item[i].size);
        if (sizes[axis] && sizes[axis] != dims->item[i].size)
            return fail(error, CODA_INVALID, "%s: axis %s is given twice, as %lld and %lld", graph->name, name,
                        (long long)sizes[axis], (long long)dims->item[i].size);
        sizes[axis] = dims->item[i].size;
    }
    struct complaint why = {0};
    return sizes_complete(graph, sizes, &why) == CODA_OK ? CODA_OK : fail_complaint(error, &why);
}

/* What a message says of operand i: "gemm: operand 2 (W)". Written only where there is a message: launches are short. */
static const char *label(const struct graph *graph, int i, char text[512])
{
    snprintf(text, 512, "%.200s: operand %d (%.200s)", graph->name, i, graph->operand[i].name);
    return text;
}

static coda_status check_layout(const struct graph *graph, int i, coda_tensor *tensor, coda_error *error)
{
    const struct operand *operand = &graph->operand[i];
    char name[512];
    if (!tensor->data)
        return fail(error, CODA_INVALID, "%s has no data (NULL)", label(graph, i, name));
    if (tensor->dtype != operand->dtype)
        return fail(error, CODA_INVALID, "%s is %s; expected %s", label(graph, i, name), coda_dtype_name(tensor->dtype),
                    coda_dtype_name(operand->dtype));
    if (tensor->rank != operand->shape.rank)
        return fail(error, CODA_INVALID, "%s has rank %d; expected %d", label(graph, i, name), tensor->rank,
                    operand->shape.rank);
    for (int d = 0; d < tensor->rank; d++)
        if (tensor->shape[d] < 1 || tensor->shape[d] > INT64_MAX / 64)
            return fail(error, CODA_INVALID, "%s has size %lld in dimension %d; expected at least 1",
                        label(graph, i, name), (long long)tensor->shape[d], d);
    if (tensor->rank < 2) {
        tensor->shape[1] = 1;
        if (tensor->rank == 0)
            tensor->shape[0] = 1;
        tensor->stride = 1;
        return CODA_OK;
    }
    if (tensor->stride == 0)
        tensor->stride = tensor->shape[1];
    if (tensor->stride < tensor->shape[1])
        return fail(error, CODA_INVALID, "%s has row stride %lld; expected at least its %lld columns",
                    label(graph, i, name), (long long)tensor->stride, (long long)tensor->shape[1]);
    if (tensor->shape[0] > INT64_MAX / 64 / tensor->stride)
        return fail(error, CODA_INVALID, "%s is larger than memory can be", label(graph, i, name));
    return CODA_OK;
}

/* Takes the size of a whole axis from dimension d of operand i. */
static coda_status take_size(const struct graph *graph, int i, int d, int64_t size, int64_t *sizes, coda_error *error)
{
    const struct dim *dim = &graph->operand[i].shape.dim[d];
    if (dim->form != DIM_WHOLE || dim->axis < 0)
        return CODA_OK;
    char name[512];
    if (sizes[dim->axis] && sizes[dim->axis] != size)
        return fail(error, CODA_INVALID, "%s has %lld in dimension %d, but axis %s is %lld", label(graph, i, name),
                    (long long)size, d, graph->axis[dim->axis].name, (long long)sizes[dim->axis]);
    sizes[dim->axis] = size;
    return CODA_OK;
}

static coda_status check_shapes(const struct graph *graph, const coda_tensor *operand, const int64_t *sizes,
                                coda_error *error)
{
    char name[512], text[64];
    for (int i = 0; i < graph->operand_count; i++)
        for (int d = 0; d < graph->operand[i].shape.rank; d++) {
            int64_t expected = dim_size(&graph->operand[i].shape.dim[d], sizes);
            if (expected == operand[i].shape[d])
                continue;
            dim_print(graph, &graph->operand[i].shape.dim[d], text, sizeof text);
            return fail(error, CODA_INVALID, "%s has %lld in dimension %d; expected %s = %lld", label(graph, i, name),
                        (long long)operand[i].shape[d], d, text, (long long)expected);
        }
    return CODA_OK;
}

coda_status sizes_from_operands(const struct graph *graph, coda_tensor *operand, int count, int64_t *sizes,
                                coda_error *error)
{
    coda_status status = CODA_OK;
    struct complaint why = {0};
    if (count != graph->operand_count)
        return fail(error, CODA_INVALID, "%s: %d operands; expected %d", graph->name, count, graph->operand_count);
    for (int i = 0; i < count && status == CODA_OK; i++) {
        status = check_layout(graph, i, &operand[i], error);
        for (int d = 0; d < operand[i].rank && status == CODA_OK; d++)
            status = take_size(graph, i, d, operand[i].shape[d], sizes, error);
    }
    if (status != CODA_OK)
        return status;
    if (sizes_complete(graph, sizes, &why) != CODA_OK)
        return fail_complaint(error, &why);
    for (int i = 0; i < graph->axis_count; i++)
        if (sizes[i] < 1)
            return fail(error, CODA_INVALID,
                        "%s: no operand gives the size of axis %s; give it when the kernel is created", graph->name,
                        graph->axis[i].name);
    return check_shapes(graph, operand, sizes, error);
}

static bool was_checked(const struct checked_sizes *checked, const int64_t *sizes)
{
    unsigned version = __atomic_load_n(&checked->version, __ATOMIC_ACQUIRE);
    bool same = version % 2 == 0 && version > 0;
    for (int i = 0; i < MAX_AXES && same; i++)
        same = __atomic_load_n(&checked->size[i], __ATOMIC_RELAXED) == sizes[i];
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return same && version == __atomic_load_n(&checked->version, __ATOMIC_RELAXED);
}

static void remember(struct checked_sizes *checked, const int64_t *sizes)
{
    unsigned version = __atomic_load_n(&checked->version, __ATOMIC_RELAXED);
    if (version % 2 || !__atomic_compare_exchange_n(&checked->version, &version, version + 1, false, __ATOMIC_ACQUIRE,
                                                    __ATOMIC_RELAXED))
        return; /* another thread remembers its own */
    __atomic_thread_fence(__ATOMIC_RELEASE);
    for (int i = 0; i < MAX_AXES; i++)
        __atomic_store_n(&checked->size[i], sizes[i], __ATOMIC_RELAXED);
    __atomic_store_n(&checked->version, version + 2, __ATOMIC_RELEASE);
}

coda_status check_sizes(coda_kernel *kernel, const int64_t *sizes, coda_error *error)
{
    struct complaint why = {0};
    if (was_checked(&kernel->checked, sizes))
        return CODA_OK;
    if (sizes_check(kernel->graph, sizes, &why) != CODA_OK)
        return fail_complaint(error, &why);
    remember(&kernel->checked, sizes);
    return CODA_OK;
}

static int64_t stride_of(const coda_tensor *t)
{
    return t->stride ? t->stride : t->shape[1];
}

/* The bytes from the first element to the last. */
static size_t extent_of(const coda_tensor *t)
{
    int64_t rows = t->rank == 2 ? t->shape[0] : 1;
    int64_t columns = t->rank == 2 ? t->shape[1] : t->shape[0];
    return (size_t)((rows - 1) * stride_of(t) + columns) * coda_dtype_size(t->dtype);
}

/* Column ranges of one larger matrix do not overlap although their byte ranges interleave. */
static bool interleaved(const coda_tensor *a, const coda_tensor *b)
{
    size_t size = coda_dtype_size(a->dtype);
    if (a->rank != 2 || b->rank != 2 || size != coda_dtype_size(b->dtype) || stride_of(a) != stride_of(b) ||
        !stride_of(a))
        return false;
    uintptr_t difference = (uintptr_t)b->data - (uintptr_t)a->data;
    int64_t row = stride_of(a) * (int64_t)size;
    int64_t shift = (int64_t)difference % row;
    if (shift < 0)
        shift += row;
    return shift >= a->shape[1] * (int64_t)size && shift + b->shape[1] * (int64_t)size <= row;
}

bool tensors_overlap(const coda_tensor *a, const coda_tensor *b)
{
    uintptr_t first = (uintptr_t)a->data, second = (uintptr_t)b->data;
    return first < second + extent_of(b) && second < first + extent_of(a) && !interleaved(a, b);
}

static bool same_elements(const coda_tensor *a, const coda_tensor *b)
{
    return a->data == b->data && a->dtype == b->dtype && a->rank == b->rank && a->shape[0] == b->shape[0] &&
           a->shape[1] == b->shape[1] && a->stride == b->stride;
}

coda_status check_memory(const coda_kernel *kernel, const coda_tensor *operand, coda_error *error)
{
    const struct graph *graph = kernel->graph;
    char name[512], other[512];
    for (int i = 0; i < graph->operand_count; i++) {
        if ((uintptr_t)operand[i].data % coda_dtype_size(operand[i].dtype))
            return fail(error, CODA_INVALID, "%s is at %p; expected an address that is a multiple of %zu",
                        label(graph, i, name), operand[i].data, coda_dtype_size(operand[i].dtype));
        if (graph->operand[i].role == CODA_IN)
            continue;
        for (int j = 0; j < graph->operand_count; j++) {
            if (j == i || !tensors_overlap(&operand[i], &operand[j]))
                continue;
            if (graph->operand[j].role == CODA_IN && same_elements(&operand[i], &operand[j]) &&
                (graph->is_block || is_read_in_place(graph, &kernel->form, j))) /* a block reads all before it writes */
                continue;
            return fail(error, CODA_INVALID,
                        "%s shares memory with %s\nAn out may only be the very same elements as an in that is read "
                        "where it is written",
                        label(graph, i, name), label(graph, j, other));
        }
    }
    return CODA_OK;
}

coda_status check_apart(const coda_kernel *kernel, const coda_tensor *first, int first_set, const coda_tensor *second,
                        int second_set, coda_error *error)
{
    const struct graph *graph = kernel->graph;
    for (int i = 0; i < graph->operand_count; i++)
        for (int j = 0; j < graph->operand_count; j++) {
            bool written = graph->operand[i].role != CODA_IN || graph->operand[j].role != CODA_IN;
            if (written && tensors_overlap(&first[i], &second[j]))
                return fail(error, CODA_INVALID,
                            "%s: operand %s of set %d shares memory with operand %s of set %d, and one of them is "
                            "written\nLaunch sets that depend on each other one after the other",
                            graph->name, graph->operand[i].name, first_set, graph->operand[j].name, second_set);
        }
    return CODA_OK;
}
