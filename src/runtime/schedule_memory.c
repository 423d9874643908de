/* Where the values of a schedule lie. */
#include "runtime/schedule.h"
#include "runtime/sizes.h"

#include <string.h>

bool is_value_used(const struct plan_value *value, int phases)
{
    return ((phases & CODA_FORWARD) && value->used[0]) || ((phases & CODA_BACKWARD) && value->used[1]);
}

int unknown_axis(const struct plan_value *value, const int64_t *sizes)
{
    for (int i = 0; i < value->shape.rank; i++)
        if (dim_size(&value->shape.dim[i], sizes) < 1)
            return value->shape.dim[i].axis;
    return -1;
}

static int64_t size_of_dim(const coda_schedule *schedule, const struct plan_value *value, int i, const int64_t *sizes)
{
    int64_t size = dim_size(&value->shape.dim[i], sizes);
    return i == 0 && value->wide && size > schedule->plan.chunk_rows ? schedule->plan.chunk_rows : size;
}

coda_tensor schedule_tensor(const coda_schedule *schedule, int value, const int64_t *sizes, void *data)
{
    const struct plan_value *v = &schedule->plan.value[value];
    coda_tensor tensor = {.data = data, .dtype = v->dtype, .rank = v->shape.rank, .shape = {1, 1}};
    for (int i = 0; i < v->shape.rank; i++)
        tensor.shape[i] = size_of_dim(schedule, v, i, sizes);
    tensor.stride = v->shape.rank == 2 ? tensor.shape[1] : 1;
    return tensor;
}

/* Saved memory is laid out alike for both phases. */
static bool is_slot_used(const struct memory_plan *plan, int slot, int phases)
{
    if (plan->slot[slot].home == PLAN_SAVED)
        return true;
    for (int v = plan->caller_count; v < plan->value_count; v++)
        if (plan->value[v].slot == slot && is_value_used(&plan->value[v], phases))
            return true;
    return false;
}

coda_status schedule_layout(const coda_schedule *schedule, int phases, const int64_t *sizes, struct slot_layout *layout,
                            coda_error *error)
{
    const struct memory_plan *plan = &schedule->plan;
    layout->saved = layout->scratch = 0;
    for (int s = 0; s < plan->slot_count; s++) {
        const struct plan_value *value = &plan->value[plan->slot[s].value];
        size_t *end = plan->slot[s].home == PLAN_SAVED ? &layout->saved : &layout->scratch;
        layout->offset[s] = 0;
        if (plan->slot[s].home == PLAN_INPUT)
            continue;
        int axis = unknown_axis(value, sizes);
        if (axis >= 0 && !is_slot_used(plan, s, phases))
            continue;
        if (axis >= 0)
            return fail(error, CODA_INVALID,
                        "%s: the size of axis %s, which %s needs, is not given; give it when the schedule is created",
                        schedule->block->name, schedule->block->axis[axis].name, value->name);
        size_t bytes = memory_plan_slot_bytes(plan, s, sizes);
        layout->offset[s] = *end;
        if (!bytes || __builtin_add_overflow(*end, bytes, end))
            return fail(error, CODA_INVALID, "%s: %s is larger than memory can be", schedule->block->name, value->name);
    }
    return CODA_OK;
}

double schedule_plan_bytes(const coda_schedule *schedule, const struct memory_plan *plan)
{
    int64_t sizes[MAX_AXES];
    double bytes = 0;
    struct complaint why = {0};
    memcpy(sizes, schedule->fixed_size, sizeof sizes);
    for (int i = 0; i < schedule->block->axis_count; i++)
        if (!sizes[i] && schedule->block->axis[i].term_count == 0)
            sizes[i] = 4096;
    if (sizes_complete(schedule->block, sizes, &why) != CODA_OK)
        return plan->slot_count;
    for (int s = 0; s < plan->slot_count; s++)
        if (plan->slot[s].home != PLAN_INPUT)
            bytes += (double)memory_plan_slot_bytes(plan, s, sizes);
    return bytes;
}

/* The dims of a query over those of the schedule's creation. */
static coda_status query_sizes(const coda_schedule *schedule, const coda_dims *dims, int64_t *sizes, coda_error *error)
{
    coda_status status = sizes_from_dims(schedule->block, dims, sizes, error);
    for (int i = 0; i < schedule->block->axis_count && status == CODA_OK; i++) {
        if (sizes[i] && schedule->fixed_size[i] && sizes[i] != schedule->fixed_size[i])
            return fail(error, CODA_INVALID, "%s: axis %s is %lld, but the schedule was made for %lld",
                        schedule->block->name, schedule->block->axis[i].name, (long long)sizes[i],
                        (long long)schedule->fixed_size[i]);
        if (!sizes[i])
            sizes[i] = schedule->fixed_size[i];
    }
    struct complaint why = {0};
    if (status == CODA_OK && sizes_complete(schedule->block, sizes, &why) != CODA_OK)
        return fail_complaint(error, &why);
    return status;
}

coda_status coda_schedule_shape(const coda_schedule *schedule, int index, const coda_dims *dims, int64_t shape[2],
                                coda_error *error)
{
    int64_t sizes[MAX_AXES];
    if (index < 0 || index >= schedule->plan.value_count)
        return fail(error, CODA_INVALID, "%s: there is no value %d; expected 0 to %d", schedule->block->name, index,
                    schedule->plan.value_count - 1);
    const struct plan_value *value = &schedule->plan.value[index];
    coda_status status = query_sizes(schedule, dims, sizes, error);
    if (status != CODA_OK)
        return status;
    int axis = unknown_axis(value, sizes);
    if (axis >= 0)
        return fail(error, CODA_INVALID, "%s: the size of axis %s, which %s needs, is not given", schedule->block->name,
                    schedule->block->axis[axis].name, value->name);
    coda_tensor tensor = schedule_tensor(schedule, index, sizes, NULL);
    memcpy(shape, tensor.shape, sizeof *shape * (size_t)value->shape.rank);
    return CODA_OK;
}

coda_status coda_schedule_memory(const coda_schedule *schedule, const coda_dims *dims, size_t *saved, size_t *scratch,
                                 coda_error *error)
{
    int64_t sizes[MAX_AXES];
    struct slot_layout layout;
    coda_status status = query_sizes(schedule, dims, sizes, error);
    if (status == CODA_OK)
        status = schedule_layout(schedule, CODA_FORWARD | CODA_BACKWARD, sizes, &layout, error);
    if (status != CODA_OK)
        return status;
    if (saved)
        *saved = layout.saved;
    if (scratch)
        *scratch = layout.scratch;
    return CODA_OK;
}

coda_status coda_schedule_locate(const coda_schedule *schedule, int index, const coda_dims *dims, void *saved,
                                 void *scratch, coda_tensor *tensor, coda_error *error)
{
    int64_t sizes[MAX_AXES];
    struct slot_layout layout;
    const struct memory_plan *plan = &schedule->plan;
    bool own = index >= plan->caller_count && index < plan->value_count;
    int slot = own ? plan->value[index].slot : -1;
    if (slot < 0 || plan->slot[slot].home == PLAN_INPUT)
        return fail(error, CODA_INVALID, "%s: value %d lies neither in saved nor in scratch memory",
                    schedule->block->name, index);
    coda_status status = query_sizes(schedule, dims, sizes, error);
    if (status == CODA_OK)
        status = schedule_layout(schedule, CODA_FORWARD | CODA_BACKWARD, sizes, &layout, error);
    if (status != CODA_OK)
        return status;
    char *memory = plan->slot[slot].home == PLAN_SAVED ? saved : scratch;
    if (!memory)
        return fail(error, CODA_INVALID, "%s: %s lies in memory that is NULL", schedule->block->name,
                    plan->value[index].name);
    *tensor = schedule_tensor(schedule, index, sizes, memory + layout.offset[slot]);
    return CODA_OK;
}
