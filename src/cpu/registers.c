/* Registers of the values of one pass: each is free again after the last step that reads it. */
#include "cpu/frame.h"

#include <stdlib.h>

struct allocation {
    const struct plan *plan;
    int *last; /* one a value: the last step that reads it, or -1 */
    int *held; /* one a register: the value that it holds, or -1 */
    int held_count;
};

static void use_value(struct allocation *a, int value, int step)
{
    if (a->last[value] < step)
        a->last[value] = step;
}

static void find_last_uses(struct allocation *a, const struct step_list *list)
{
    for (int s = 0; s < list->count; s++)
        for (int k = 0; k < list->step[s].input_count; k++)
            use_value(a, list->step[s].input[k], s);
    /* who reads one of two values may read either; they were made before it */
    for (int v = a->plan->value_count - 1; v >= 0; v--)
        if (a->plan->value[v].storage == EITHER) {
            use_value(a, a->plan->value[v].yes, a->last[v]);
            use_value(a, a->plan->value[v].no, a->last[v]);
        }
}

/* A register that is free before step s, or at s where the step may write over an input. */
static int take_register(struct allocation *a, const struct step *step, int s)
{
    for (int r = 0; r < a->held_count; r++) {
        int last = a->held[r] < 0 ? -1 : a->last[a->held[r]];
        if (last < s || (last == s && step->inplace))
            return r;
    }
    return a->held_count++;
}

static void give_register(struct allocation *a, struct plan *plan, const struct step *step, int value, int s)
{
    if (value < 0 || plan->value[value].storage != IN_REGISTERS)
        return;
    int r = take_register(a, step, s);
    a->held[r] = value;
    if (a->last[value] < s)
        a->last[value] = s; /* nothing reads it, but it is written */
    plan->value[value].offset = r;
}

coda_status cpu_plan_allocate_registers(struct plan *plan, const struct step_list *list, coda_error *error)
{
    size_t values = (size_t)plan->value_count + 1;
    struct allocation a = {.plan = plan};
    coda_status status = CODA_OK;
    a.last = calloc(values, sizeof *a.last);
    a.held = calloc(values, sizeof *a.held);
    if (!a.last || !a.held) {
        status = fail_memory(error, "registers of a kernel", values * sizeof *a.last);
        goto done;
    }
    for (int v = 0; v < plan->value_count; v++)
        a.last[v] = -1;
    find_last_uses(&a, list);
    for (int s = 0; s < list->count; s++) {
        const struct step *step = &list->step[s];
        give_register(&a, plan, step, step->result, s);
        for (int k = 0; step->compiled && k < step->compiled->output_count; k++)
            give_register(&a, plan, step, step->compiled->output[k], s);
    }
    if (a.held_count > plan->register_count)
        plan->register_count = a.held_count;
done:
    free(a.last);
    free(a.held);
    return status;
}
