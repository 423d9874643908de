/* Schedules whose gradients are written over what is there: the first step that gives one writes, later ones (another step,
 * or the next chunk of rows) add. */
#include "runtime/schedule.h"

static coda_role role_of(const coda_schedule *schedule, const struct plan_step *step, int index)
{
    return step->program < 0 ? index == 1 ? CODA_ACCUMULATE : CODA_IN
                             : schedule->unit.graph[step->program]->operand[index].role;
}

bool step_writes_first(const coda_schedule *schedule, int step, int index)
{
    const struct memory_plan *plan = &schedule->plan;
    int value = plan->step[step].value[index];
    if (role_of(schedule, &plan->step[step], index) != CODA_ACCUMULATE)
        return false;
    for (int s = 0; s < step; s++)
        for (int o = 0; o < plan->step[s].count; o++)
            if (plan->step[s].value[o] == value && role_of(schedule, &plan->step[s], o) != CODA_IN)
                return false;
    return true;
}

coda_status step_written(const coda_schedule *schedule, int step, const struct graph *graph, struct graph **written,
                         coda_error *error)
{
    struct graph *copy = NULL;
    *written = NULL;
    for (int o = 0; o < schedule->plan.step[step].count; o++) {
        if (!step_writes_first(schedule, step, o))
            continue;
        if (!copy && !(copy = graph_copy(graph)))
            return fail_memory(error, "a program that writes its sums", sizeof *copy);
        copy->operand[o].role = CODA_OUT;
    }
    *written = copy;
    return CODA_OK;
}
