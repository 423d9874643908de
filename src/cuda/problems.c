/* Several problems in one launch: one list of all their tiles, so that only its last wave is partial. */
#include "cuda/kernel.h"

#include <string.h>

/* In steps of K: what a tile costs besides them (its epilogue), and what a launch does. */
enum { TILE_STEPS = 6, LAUNCH_STEPS = 6 };

/* Tiles of a cluster, and steps of each. */
struct problem {
    int64_t tiles, steps;
};

/* Tiles from `first` to before `end` that a cluster has: each has every `clusters`-th. */
static int64_t share(int64_t first, int64_t end, int64_t cluster, int64_t clusters)
{
    return ceiling(end - cluster, clusters) - ceiling(first - cluster, clusters);
}

/* Problems come with more steps of K first; tiles of different depth are spread over all clusters. */
static int64_t clusters_of(const struct gpu *gpu, const struct variant *v, const struct problem *problem, int count,
                           int64_t tiles, int64_t narrow)
{
    if (problem[0].steps == problem[count - 1].steps)
        return hopper_clusters(gpu, v, tiles, narrow);
    return minimum(tiles + narrow, gpu->multiprocessors / v->cluster);
}

/* The time of the slowest cluster, in half steps. */
static int64_t time_of(const struct gpu *gpu, const struct variant *v, const struct problem *problem, int count)
{
    int64_t tiles = 0, slowest = 0;
    for (int i = 0; i < count; i++)
        tiles += problem[i].tiles;
    int64_t narrow = v->narrow ? hopper_narrow_of(gpu, v, tiles) : 0;
    int64_t clusters = clusters_of(gpu, v, problem, count, tiles, narrow), whole = tiles - narrow;
    for (int64_t cluster = 0; cluster < clusters; cluster++) {
        int64_t time = 0, first = 0;
        for (int i = 0; i < count; i++) {
            int64_t end = first + problem[i].tiles, split = end < whole ? end : first > whole ? first : whole;
            int64_t halves = share(2 * split - whole, 2 * end - whole, cluster, clusters);
            time += (2 * share(first, split, cluster, clusters) + (split < end ? halves : 0)) *
                    (problem[i].steps + TILE_STEPS);
            first = end;
        }
        slowest = time > slowest ? time : slowest;
    }
    return slowest + 2 * LAUNCH_STEPS;
}

static int64_t steps_of(const struct plan *plan, const struct variant *v, const struct launch *launch)
{
    int64_t steps = 0;
    for (int s = 0; s < plan->product[0].segment_count; s++) {
        const struct factor *right = &plan->product[0].segment[s].right[0];
        steps += ceiling(launch->operand[right->operand].shape[right->k_major], v->depth);
    }
    return steps;
}

static struct problem problem_of(const struct plan *plan, const struct variant *v, const struct launch *launch)
{
    int row = plan->form->row_axis, column = plan->form->column_axis;
    return (struct problem){hopper_tiles(v, row < 0 ? 1 : launch->size[row], column < 0 ? 1 : launch->size[column]),
                            steps_of(plan, v, launch)};
}

/* Of 11 % fewer waves 6 to 9 were gained; of none, at the power limit, up to 2 % lost (docs). */
static bool pays(int64_t together, int64_t apart)
{
    return 25 * together < 24 * apart;
}

/* Can one launch serve them all, and is it faster than one after the other? The longest come first, so that the last
 * wave is short: order[] counts launches. */
static bool should_join(const struct gpu *gpu, const struct cuda_kernel *k, const struct launch *launch, int count,
                        struct problem *problem, int *order)
{
    const struct variant *v = &k->joined->variant;
    const char *why;
    int64_t apart = 0, tiles = 0;
    for (int i = 0; i < count; i++) {
        if (!hopper_accepts(&k->plan, v, &launch[i], &why))
            return false;
        struct problem p = problem_of(&k->plan, v, &launch[i]);
        tiles += p.tiles;
        apart += time_of(gpu, v, &p, 1);
        int at = i;
        for (; at > 0 && problem[at - 1].steps < p.steps; at--)
            problem[at] = problem[at - 1], order[at] = order[at - 1];
        problem[at] = p, order[at] = i;
    }
    return tiles <= INT32_MAX / 4 && pays(time_of(gpu, v, problem, count), apart);
}

static coda_status prepare_joined(const struct gpu *gpu, const struct cuda_kernel *k, const struct launch *launch,
                                  int count, const struct problem *problem, const int *order, struct prepared *p,
                                  coda_error *error)
{
    const struct plan *plan = &k->plan;
    const struct variant *v = &k->joined->variant;
    int each = parameter_layout(plan->graph, v->map_count).total;
    int32_t first[MAX_PROBLEMS + 1];
    int64_t tiles = 0;
    for (int i = 0; i < v->problems; i++) {
        first[i] = i < count ? (int32_t)tiles : INT32_MAX;
        tiles += i < count ? problem[i].tiles : 0;
    }
    first[v->problems] = (int32_t)tiles;
    int64_t narrow = v->narrow ? hopper_narrow_of(gpu, v, tiles) : 0;
    coda_status status = CODA_OK;
    memset(p->bytes, 0, (size_t)v->problems * (size_t)each);
    for (int i = 0; i < count && status == CODA_OK; i++) {
        const struct launch *one = &launch[order[i]];
        struct geometry geometry = launch_geometry(plan, one);
        int64_t columns = plan->form->column_axis < 0 ? 1 : one->size[plan->form->column_axis];
        geometry.column_tiles = (int32_t)ceiling(columns, v->columns);
        geometry.row_tiles = (int32_t)(problem[i].tiles / geometry.column_tiles);
        geometry.whole = (int32_t)(tiles - narrow);
        status = launch_check(gpu, plan, one, error);
        if (status == CODA_OK)
            status = launch_parameters(gpu, plan, v, one, &geometry, p->bytes + i * each, error);
    }
    memcpy(p->bytes + v->problems * each, first, ((size_t)v->problems + 1) * sizeof *first);
    p->compiled = k->joined;
    p->configuration = launch_configure(k->joined);
    p->configuration.grid_x = (unsigned)(clusters_of(gpu, v, problem, count, tiles, narrow) * v->cluster);
    return status;
}

/* One after the other: where one launch would be slower, or cannot serve the operands. */
static coda_status launch_apart(const struct gpu *gpu, struct cuda_kernel *k, const struct launch *launch, int count,
                                coda_error *error)
{
    coda_status status = CODA_OK;
    for (int i = 0; i < count && status == CODA_OK; i++)
        status = launch_alone(gpu, k, &launch[i], error);
    return status;
}

static coda_status join_anew(const struct gpu *gpu, struct cuda_kernel *k, const struct launch *launch, int count,
                             const struct launch *all, unsigned generation, coda_error *error)
{
    _Alignas(64) unsigned char bytes[PARAMETER_BYTES];
    struct prepared own = {.bytes = bytes};
    struct problem problem[MAX_PROBLEMS] = {0};
    int order[MAX_PROBLEMS];
    if (!should_join(gpu, k, launch, count, problem, order))
        return launch_apart(gpu, k, launch, count, error);
    struct prepared *entry = recent_take(&k->recent_joined);
    struct prepared *p = entry ? entry : &own;
    coda_status status = prepare_joined(gpu, k, launch, count, problem, order, p, error);
    if (status == CODA_OK)
        status = launch_start(gpu, &k->plan, p, launch->stream, launch->apart, error);
    recent_keep(&k->recent_joined, entry, all, generation, status == CODA_OK);
    return status;
}

/* The operands of all, one after the other, as they are remembered. */
static coda_status launch_joined(const struct gpu *gpu, struct cuda_kernel *k, const struct launch *launch, int count,
                                 coda_error *error)
{
    coda_tensor operand[MAX_PROBLEMS * MAX_OPERANDS];
    struct launch all = launch[0];
    size_t operands = (size_t)k->plan.graph->operand_count;
    for (int i = 0; i < count; i++)
        memcpy(operand + (size_t)i * operands, launch[i].operand, operands * sizeof *operand);
    memset(operand + (size_t)count * operands, 0,
           (size_t)(k->joined->variant.problems - count) * operands * sizeof *operand);
    all.operand = operand;
    unsigned generation = __atomic_load_n(&gpu->pointers->generation, __ATOMIC_ACQUIRE);
    struct prepared *entry = recent_find(&k->recent_joined, &all, generation);
    if (!entry)
        return join_anew(gpu, k, launch, count, &all, generation, error);
    coda_status status = launch_start(gpu, &k->plan, entry, launch->stream, launch->apart, error);
    recent_give_back(entry);
    return status;
}

coda_status cuda_launch_sets(coda_kernel *kernel, const struct launch *launch, int count, coda_error *error)
{
    const struct gpu *gpu = kernel->device->state;
    struct cuda_kernel *k = kernel->state;
    bool entered = false;
    coda_status status = gpu_enter_if_needed(gpu, &entered, error);
    if (status != CODA_OK)
        return status;
    int most = k->joined && !k->blas ? k->joined->variant.problems : 1;
    for (int i = 0; i < count && status == CODA_OK; i += most) {
        int together = count - i < most ? count - i : most;
        status =
            together > 1 ? launch_joined(gpu, k, launch + i, together, error) : launch_alone(gpu, k, launch + i, error);
    }
    if (entered)
        gpu_leave(gpu);
    return status;
}

double cuda_product_time(const coda_device *device, const struct product_size *size, int count)
{
    const struct gpu *gpu = device->state;
    const struct variant v = {.bands = 2, .columns = 256, .cluster = 2, .depth = 64, .narrow = true};
    struct problem problem[MAX_PROBLEMS] = {0};
    if (gpu->capability != 90 || count < 1 || count > MAX_PROBLEMS)
        return 0;
    for (int i = 0; i < count; i++) {
        struct problem p = {hopper_tiles(&v, size[i].rows, size[i].columns), ceiling(size[i].depth, v.depth)};
        int at = i;
        for (; at > 0 && problem[at - 1].steps < p.steps; at--)
            problem[at] = problem[at - 1];
        problem[at] = p;
    }
    return (double)time_of(gpu, &v, problem, count);
}
