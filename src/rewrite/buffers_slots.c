/* Which values share memory: those of one type and shape, where the last use of the first comes before the write of the
 * next, or where a program writes the next in the place of the first. */
#include "ir/build.h"
#include "rewrite/buffers.h"

#include <stdlib.h>
#include <string.h>

struct sharing {
    struct memory_plan *plan;
    bool keep_saved;
    int holder[MAX_SLOTS];     /* the value that has the slot now */
    bool has_saved[MAX_SLOTS]; /* a kept value had it */
};

static bool same_type(const struct plan_value *a, const struct plan_value *b)
{
    return a->dtype == b->dtype && a->wide == b->wide && shape_equal(&a->shape, &b->shape);
}

/* Is the value the runs of a vector's gradient? Those are summed as one dense matrix. */
static bool is_summed(const struct memory_plan *plan, int value)
{
    for (int s = 0; s < plan->step_count; s++)
        if (plan->step[s].program < 0 && plan->step[s].value[0] == value)
            return true;
    return false;
}

static bool open_to(const struct sharing *sharing, int slot, int value)
{
    const struct memory_plan *plan = sharing->plan;
    if (sharing->keep_saved && sharing->has_saved[slot])
        return false;
    if (plan->slot[slot].home == PLAN_INPUT && is_summed(plan, value))
        return false;
    return same_type(&plan->value[plan->slot[slot].value], &plan->value[value]);
}

/* The slot of an `in` of the step that ends there and may be written over; -1: none. */
static int slot_in_place(const struct sharing *sharing, const struct graph *graph, const struct form *form, int step,
                         int out)
{
    const struct memory_plan *plan = sharing->plan;
    const int *value = plan->step[step].value;
    for (int i = 0; i < graph->operand_count; i++) {
        const struct plan_value *in = &plan->value[value[i]];
        if (graph->operand[i].role == CODA_IN && in->slot >= 0 && in->last == step &&
            sharing->holder[in->slot] == value[i] && open_to(sharing, in->slot, value[out]) &&
            may_replace(graph, form, out, i))
            return in->slot;
    }
    return -1;
}

static int free_slot(const struct sharing *sharing, int step, int value)
{
    const struct memory_plan *plan = sharing->plan;
    for (int slot = 0; slot < plan->slot_count; slot++)
        if (plan->value[sharing->holder[slot]].last < step && open_to(sharing, slot, value))
            return slot;
    return -1;
}

static bool take_slot(struct sharing *sharing, int slot, int value, struct complaint *why)
{
    struct memory_plan *plan = sharing->plan;
    if (slot < 0) {
        if (plan->slot_count == MAX_SLOTS)
            return refuse(why, CODA_UNSUPPORTED, "Split the block.", "more than %d buffers", MAX_SLOTS), false;
        slot = plan->slot_count++;
        plan->slot[slot] = (struct plan_slot){plan->value[value].kind, value};
    }
    plan->value[value].slot = slot;
    sharing->holder[slot] = value;
    if (plan->value[value].kind == PLAN_SAVED) {
        sharing->has_saved[slot] = true;
        plan->slot[slot].home = PLAN_SAVED;
    }
    return true;
}

static bool place_outs(struct sharing *sharing, const struct graph *graph, int step, struct complaint *why)
{
    const struct memory_plan *plan = sharing->plan;
    struct form form;
    int node;
    if (form_create(graph, &form, &node, why) != CODA_OK)
        return false;
    bool placed = true;
    for (int o = 0; o < graph->operand_count && placed; o++) {
        int value = plan->step[step].value[o];
        if (graph->operand[o].role == CODA_IN || value < plan->caller_count || plan->value[value].slot >= 0)
            continue; /* the last: written again, on a condition, or patched */
        int slot = slot_in_place(sharing, graph, &form, step, o);
        placed = take_slot(sharing, slot >= 0 ? slot : free_slot(sharing, step, value), value, why);
    }
    form_free(&form);
    return placed;
}

bool memory_plan_slots(struct memory_plan *plan, const struct unit *unit, bool keep_saved, struct complaint *why)
{
    struct sharing *sharing = calloc(1, sizeof *sharing);
    if (sharing == NULL)
        return refuse(why, CODA_MEMORY, "", "no memory for the plan of buffers"), false;
    sharing->plan = plan;
    sharing->keep_saved = keep_saved;
    bool placed = true;
    for (int v = 0; v < plan->caller_count && placed; v++)
        if (plan->value[v].consumed)
            placed = take_slot(sharing, -1, v, why);
    for (int s = 0; s < plan->step_count && placed; s++)
        if (plan->step[s].program >= 0)
            placed = place_outs(sharing, unit->graph[plan->step[s].program], s, why);
    for (int v = 0; v < plan->value_count && placed; v++) {
        const struct plan_value *value = &plan->value[v];
        struct plan_value *owner = value->slot >= 0 ? &plan->value[plan->slot[value->slot].value] : NULL;
        if (owner == NULL || plan->slot[value->slot].home != PLAN_INPUT)
            continue;
        owner->busy = owner->busy > value->last ? owner->busy : value->last;
        owner->used[0] |= value->used[0];
        owner->used[1] |= value->used[1];
    }
    free(sharing);
    return placed;
}

/* ---------------------------------------------------------------- in words */

static void report_slot(struct report *report, const struct memory_plan *plan, int slot)
{
    const struct plan_value *type = &plan->value[plan->slot[slot].value];
    char names[600] = "", shape[128];
    int length = 0, last = -1;
    for (int v = plan->caller_count; v < plan->value_count; v++) {
        const struct plan_value *value = &plan->value[v];
        if (value->slot != slot)
            continue;
        const char *before = last < 0 ? "" : value->first == last ? ", in its place " : ", then ";
        append(names, sizeof names, &length, "%s%.60s", before, value->name);
        last = value->last;
    }
    shape_print(plan->block, &type->shape, shape, sizeof shape);
    report_line(report, "    %s %s%s: %s", shape, coda_dtype_name(type->dtype),
                plan->slot[slot].home == PLAN_SAVED ? ", kept" : "", names);
}

size_t memory_plan_slot_bytes(const struct memory_plan *plan, int slot, const int64_t *sizes)
{
    const struct plan_value *value = &plan->value[plan->slot[slot].value];
    size_t bytes = coda_dtype_size(value->dtype);
    for (int i = 0; i < value->shape.rank; i++) {
        int64_t size = dim_size(&value->shape.dim[i], sizes);
        if (i == 0 && value->wide && size > plan->chunk_rows)
            size = plan->chunk_rows;
        if (size < 1 || __builtin_mul_overflow(bytes, (size_t)size, &bytes))
            return 0;
    }
    return bytes > SIZE_MAX - SLOT_ALIGNMENT ? 0 : (bytes + SLOT_ALIGNMENT - 1) / SLOT_ALIGNMENT * SLOT_ALIGNMENT;
}

/* ", 3.4 MB kept for the backward, 2.0 MB scratch"; nothing where sizes are missing. */
static void print_bytes(const struct report *report, const struct memory_plan *plan, char *text, int size)
{
    int64_t sizes[MAX_AXES];
    double kept = 0, scratch = 0;
    int length = 0;
    text[0] = '\0';
    if (report == NULL || report->dims == NULL || !sizes_under(plan->block, report->dims, sizes))
        return;
    for (int slot = 0; slot < plan->slot_count; slot++) {
        size_t bytes = memory_plan_slot_bytes(plan, slot, sizes);
        if (bytes == 0)
            return;
        *(plan->slot[slot].home == PLAN_SAVED ? &kept : &scratch) += (double)bytes;
    }
    append(text, size, &length, ", %.3f MB kept for the backward, %.3f MB scratch", kept / 1e6, scratch / 1e6);
}

void report_memory_plan(struct report *report, const struct memory_plan *plan)
{
    int count = plan->value_count - plan->caller_count;
    if (count == 0)
        return;
    char bytes[128];
    print_bytes(report, plan, bytes, sizeof bytes);
    report_line(report, "buffers: %d for the %d values between programs%s", plan->slot_count, count, bytes);
    for (int slot = 0; slot < plan->slot_count; slot++)
        report_slot(report, plan, slot);
}
