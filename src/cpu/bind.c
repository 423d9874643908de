/* A launch's view of a plan: which steps run, and where their inputs lie. */
#include "cpu/cpu.h"

/* The value that is there in this launch. */
static int resolve(const struct cpu_kernel *k, int value)
{
    while (k->plan.value[value].storage == EITHER) {
        const struct value *v = &k->plan.value[value];
        value = k->uniform_value[v->condition] != 0 ? v->yes : v->no;
    }
    return value;
}

static struct place place_for(const struct cpu_kernel *k, int index, enum site site)
{
    const struct value *v = &k->plan.value[index];
    struct place place = {.storage = v->storage, .offset = v->offset, .run = 1};
    bool in_tile = site == SITE_TILE;
    switch (v->storage) {
    case IN_ROWS:
        place.step = place.stride = in_tile;
        break;
    case IN_REGISTERS:
        place.stride = k->plan.stride;
        break;
    case IN_ACCUMULATORS:
        place.step = place.stride = k->plan.stride;
        break;
    case IN_BANDS:
        place.run = in_tile ? v->row_run : 1;
        place.step = in_tile ? k->plan.stride : 0;
        place.stride = in_tile ? 0 : k->plan.stride;
        break;
    default:
        break;
    }
    return place;
}

static void decide_guards(struct cpu_kernel *k)
{
    for (int g = 0; g < k->plan.guard_count; g++) {
        const struct guard *guard = &k->plan.guard[g];
        bool holds = (k->uniform_value[guard->condition] != 0) == guard->wanted;
        k->active[g] = holds && (guard->parent < 0 || k->active[guard->parent]);
    }
}

/* Are the outs so large that little of them would still be in a cache when it is read? */
static bool outs_are_large(const struct graph *graph, const struct launch *launch, const struct machine *machine)
{
    enum { MOST = 32 << 20 }; /* a share of a large cache at best */
    int64_t bytes = 0, cache = machine->level3 < MOST ? machine->level3 : MOST;
    for (int i = 0; i < graph->operand_count; i++) {
        const coda_tensor *t = &launch->operand[i];
        if (graph->operand[i].role == CODA_OUT && t->rank == 2)
            bytes += t->shape[0] * t->shape[1] * (int64_t)coda_dtype_size(t->dtype);
    }
    return bytes > cache / 4;
}

/* Products alone may be cut into narrower tiles than the plan's. */
static int tile_columns(const struct cpu_kernel *k, const struct launch *launch, int64_t threads)
{
    const struct form *form = k->plan.form;
    return k->gemm.microkernel
               ? cpu_launch_columns(&k->plan, launch->size[form->row_axis], launch->size[form->column_axis], threads)
               : k->plan.tile_columns;
}

void cpu_bind_launch(struct cpu_kernel *k, const struct launch *launch, const struct machine *machine, int64_t threads)
{
    struct bound_step *next = k->bound;
    cpu_evaluate_uniforms(k, launch);
    decide_guards(k);
    k->binding = (struct binding){.plan = &k->plan,
                                  .launch = launch,
                                  .active = k->active,
                                  .uniforms = k->uniforms,
                                  .tile_columns = tile_columns(k, launch, threads),
                                  .stream = outs_are_large(k->plan.graph, launch, machine)};
    for (int p = 0; p < PHASE_COUNT; p++)
        for (int l = 0; l < LIST_COUNT; l++) {
            const struct step_list *list = &k->plan.phase[p].list[l];
            struct bound_list *bound = &k->binding.list[p][l];
            bound->step = next;
            for (int i = 0; i < list->count; i++) {
                const struct step *step = &list->step[i];
                if (step->guard >= 0 && !k->active[step->guard])
                    continue;
                next->step = step;
                if (step->result >= 0)
                    next->result = place_for(k, step->result, step->site);
                for (int x = 0; x < step->input_count; x++)
                    next->input[x] = place_for(k, resolve(k, step->input[x]), step->site);
                for (int x = 0; step->compiled && x < step->compiled->output_count; x++)
                    next->output[x] = place_for(k, step->compiled->output[x], step->site);
                next++;
            }
            bound->count = (int)(next - bound->step);
        }
}
