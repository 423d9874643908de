/* What a launch of a schedule is refused for. */
#include "runtime/schedule.h"

#include <stdio.h>
#include <string.h>

bool is_operand_used(const struct plan_value *value, const coda_tensor *tensor, int phases)
{
    return is_value_used(value, phases) && !(value->optional && !tensor->data);
}

static coda_status check_layout(const coda_schedule *schedule, int index, coda_tensor *tensor, coda_error *error)
{
    const struct plan_value *value = &schedule->plan.value[index];
    const char *block = schedule->block->name, *name = value->name;
    if (!tensor->data)
        return fail(error, CODA_INVALID, "%s: operand %d (%s) has no data (NULL)", block, index, name);
    if (tensor->dtype != value->dtype)
        return fail(error, CODA_INVALID, "%s: operand %d (%s) is %s; expected %s", block, index, name,
                    coda_dtype_name(tensor->dtype), coda_dtype_name(value->dtype));
    if (tensor->rank != value->shape.rank)
        return fail(error, CODA_INVALID, "%s: operand %d (%s) has rank %d; expected %d", block, index, name,
                    tensor->rank, value->shape.rank);
    for (int i = 0; i < tensor->rank; i++)
        if (tensor->shape[i] < 1 || tensor->shape[i] > INT64_MAX / 64)
            return fail(error, CODA_INVALID, "%s: operand %d (%s) has size %lld in dimension %d; expected at least 1",
                        block, index, name, (long long)tensor->shape[i], i);
    for (int i = tensor->rank; i < 2; i++)
        tensor->shape[i] = 1;
    if (tensor->rank < 2 || tensor->stride == 0)
        tensor->stride = tensor->rank < 2 ? 1 : tensor->shape[1];
    if (tensor->stride < tensor->shape[1] || tensor->shape[0] > INT64_MAX / 64 / tensor->stride)
        return fail(error, CODA_INVALID, "%s: operand %d (%s) has row stride %lld; expected at least its %lld columns",
                    block, index, name, (long long)tensor->stride, (long long)tensor->shape[1]);
    return CODA_OK;
}

static coda_status take_sizes(const coda_schedule *schedule, int index, const coda_tensor *tensor, int64_t *sizes,
                              coda_error *error)
{
    const struct plan_value *value = &schedule->plan.value[index];
    for (int i = 0; i < tensor->rank; i++) {
        const struct dim *dim = &value->shape.dim[i];
        if (dim->form != DIM_WHOLE || dim->axis < 0)
            continue;
        if (sizes[dim->axis] && sizes[dim->axis] != tensor->shape[i])
            return fail(error, CODA_INVALID, "%s: operand %d (%s) has %lld in dimension %d, but axis %s is %lld",
                        schedule->block->name, index, value->name, (long long)tensor->shape[i], i,
                        schedule->block->axis[dim->axis].name, (long long)sizes[dim->axis]);
        sizes[dim->axis] = tensor->shape[i];
    }
    return CODA_OK;
}

static coda_status check_shape(const coda_schedule *schedule, int index, const coda_tensor *tensor,
                               const int64_t *sizes, coda_error *error)
{
    const struct plan_value *value = &schedule->plan.value[index];
    for (int i = 0; i < tensor->rank; i++) {
        int64_t expected = dim_size(&value->shape.dim[i], sizes);
        char text[64];
        if (expected == tensor->shape[i])
            continue;
        dim_print(schedule->block, &value->shape.dim[i], text, sizeof text);
        return fail(error, CODA_INVALID, "%s: operand %d (%s) has %lld in dimension %d; expected %s = %lld",
                    schedule->block->name, index, value->name, (long long)tensor->shape[i], i, text,
                    (long long)expected);
    }
    return CODA_OK;
}

coda_status schedule_check(const coda_schedule *schedule, int phases, coda_tensor *operand, int count, int64_t *sizes,
                           coda_error *error)
{
    const struct plan_value *value = schedule->plan.value;
    coda_status status = CODA_OK;
    memcpy(sizes, schedule->fixed_size, sizeof schedule->fixed_size);
    for (int i = 0; i < count && status == CODA_OK; i++) {
        if (!is_operand_used(&value[i], &operand[i], phases))
            continue;
        status = check_layout(schedule, i, &operand[i], error);
        if (status == CODA_OK)
            status = take_sizes(schedule, i, &operand[i], sizes, error);
    }
    struct complaint why = {0};
    if (status == CODA_OK && sizes_complete(schedule->block, sizes, &why) != CODA_OK)
        status = fail_complaint(error, &why);
    for (int i = 0; i < count && status == CODA_OK; i++)
        if (is_operand_used(&value[i], &operand[i], phases))
            status = check_shape(schedule, i, &operand[i], sizes, error);
    return status;
}

/* ---------------------------------------------------------------- memory */

struct range {
    uintptr_t first, end;
};

static struct range range_of(const coda_tensor *tensor)
{
    int64_t last = tensor->rank == 2 ? (tensor->shape[0] - 1) * tensor->stride + tensor->shape[1] : tensor->shape[0];
    uintptr_t first = (uintptr_t)tensor->data;
    return (struct range){first, first + (size_t)last * coda_dtype_size(tensor->dtype)};
}

static bool meet(struct range a, struct range b)
{
    return a.first < b.end && b.first < a.end;
}

/* Columns of one larger matrix lie between each other's rows. */
static bool interleave(const coda_tensor *a, const coda_tensor *b)
{
    size_t size = coda_dtype_size(a->dtype);
    if (a->rank != 2 || b->rank != 2 || size != coda_dtype_size(b->dtype) || a->stride != b->stride)
        return false;
    int64_t row = a->stride * (int64_t)size;
    int64_t shift = (int64_t)((uintptr_t)b->data - (uintptr_t)a->data) % row;
    shift += shift < 0 ? row : 0;
    return shift >= a->shape[1] * (int64_t)size && shift + b->shape[1] * (int64_t)size <= row;
}

static bool same_elements(const coda_tensor *a, const coda_tensor *b)
{
    return a->data == b->data && a->dtype == b->dtype && a->shape[0] == b->shape[0] && a->shape[1] == b->shape[1] &&
           a->stride == b->stride;
}

/* May values i and j have the same memory? An input may go to a result that is written when it, or what took its place,
 * has been read for the last time: at that very step the kernel's launch decides. Steps that run for some rows at a time
 * come again, but to other rows. */
static bool may_share(const struct memory_plan *plan, const coda_tensor *operand, int i, int j)
{
    const struct plan_value *in = &plan->value[i], *out = &plan->value[j];
    if (in->kind == PLAN_RESULT && out->kind == PLAN_INPUT)
        return may_share(plan, operand, j, i);
    if (in->kind == out->kind)
        return in->kind == PLAN_INPUT && !in->consumed && !out->consumed;
    bool by_rows = in->busy >= plan->chunk_first && out->first < plan->chunk_end;
    return in->busy <= out->first && !out->accumulated && (!by_rows || same_elements(&operand[i], &operand[j]));
}

static coda_status check_block(const coda_schedule *schedule, const char *what, const void *memory, size_t bytes,
                               coda_error *error)
{
    if (bytes && !memory)
        return fail(error, CODA_INVALID, "%s: the %s memory is NULL; expected %zu bytes", schedule->block->name, what,
                    bytes);
    if (bytes && (uintptr_t)memory % SLOT_ALIGNMENT)
        return fail(error, CODA_INVALID, "%s: the %s memory is at %p; expected a multiple of %d", schedule->block->name,
                    what, memory, SLOT_ALIGNMENT);
    return CODA_OK;
}

coda_status schedule_check_memory(const coda_schedule *schedule, int phases, const coda_tensor *operand,
                                  const struct slot_layout *layout, const void *saved, const void *scratch,
                                  coda_error *error)
{
    const struct memory_plan *plan = &schedule->plan;
    const char *block = schedule->block->name;
    coda_status status = check_block(schedule, "saved", saved, layout->saved, error);
    if (status == CODA_OK)
        status = check_block(schedule, "scratch", scratch, layout->scratch, error);
    if (status != CODA_OK)
        return status;
    const struct range own[2] = {{(uintptr_t)saved, (uintptr_t)saved + layout->saved},
                                 {(uintptr_t)scratch, (uintptr_t)scratch + layout->scratch}};
    struct range range[MAX_CALLER];
    if (layout->saved && layout->scratch && meet(own[0], own[1]))
        return fail(error, CODA_INVALID, "%s: the saved and the scratch memory overlap", block);
    for (int i = 0; i < plan->caller_count; i++) {
        range[i] = (struct range){0, 0};
        if (!is_operand_used(&plan->value[i], &operand[i], phases))
            continue;
        range[i] = range_of(&operand[i]);
        for (int k = 0; k < 2; k++)
            if (meet(range[i], own[k]))
                return fail(error, CODA_INVALID, "%s: operand %d (%s) lies in the %s memory", block, i,
                            plan->value[i].name, k ? "scratch" : "saved");
        for (int j = 0; j < i; j++)
            if (meet(range[i], range[j]) && !may_share(plan, operand, i, j) && !interleave(&operand[i], &operand[j]))
                return fail(error, CODA_INVALID,
                            "%s: operands %d (%s) and %d (%s) share memory, but one is written while the other is in "
                            "use",
                            block, j, plan->value[j].name, i, plan->value[i].name);
    }
    return CODA_OK;
}
