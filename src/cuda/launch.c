/* Launching: checks that only a GPU needs, parameters, grid. No allocation, no synchronisation. */
#include "cuda/kernel.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* ---------------------------------------------------------------- checks */

static coda_status check_width(const struct plan *plan, const struct launch *launch, coda_error *error)
{
    for (int i = 0; i < plan->graph->operand_count; i++) {
        const coda_tensor *t = &launch->operand[i];
        if (t->shape[0] > INT32_MAX - 1024 || (t->rank == 2 && t->stride > INT32_MAX - 1024))
            return fail(error, CODA_UNSUPPORTED,
                        "%s: operand %s has %lld rows of stride %lld; CUDA kernels index rows and columns by 32 bits",
                        plan->graph->name, plan->graph->operand[i].name, (long long)t->shape[0],
                        (long long)(t->rank == 2 ? t->stride : 1));
    }
    return CODA_OK;
}

/* Memory of this GPU, by the driver's word or as it was when the driver was last asked. */
static coda_status check_pointer(const struct gpu *gpu, const struct plan *plan, int i, const coda_tensor *t,
                                 coda_error *error)
{
    int attribute[4] = {POINTER_MEMORY_TYPE, POINTER_DEVICE_ORDINAL, POINTER_RANGE_START, POINTER_RANGE_SIZE};
    unsigned type = 0;
    int ordinal = -1;
    device_pointer address = (device_pointer)(uintptr_t)t->data, first = 0;
    size_t size = 0;
    void *value[4] = {&type, &ordinal, &first, &size};
    if (pointers_know(gpu->pointers, address))
        return CODA_OK;
    int result = gpu->driver.PointerGetAttributes(4, attribute, value, address);
    if (result == 0 && type == MEMORY_IS_DEVICE && ordinal == gpu->ordinal) {
        pointers_learn(gpu->pointers, address, first, size);
        return CODA_OK;
    }
    if (result == 0 && type == MEMORY_IS_DEVICE)
        return fail(error, CODA_INVALID, "%s: operand %s lies in the memory of GPU %d; the kernel is for GPU %d",
                    plan->graph->name, plan->graph->operand[i].name, ordinal, gpu->ordinal);
    return fail(
        error, CODA_INVALID,
        "%s: operand %s (%p) does not lie in the GPU's memory; allocate it with coda_allocate on this device, and copy "
        "with coda_copy_in",
        plan->graph->name, plan->graph->operand[i].name, t->data);
}

/* Blocks run in any order, so a vector that one of them writes may not be one that others read. */
static coda_status check_vectors(const struct plan *plan, const struct launch *launch, coda_error *error)
{
    const struct graph *graph = plan->graph;
    if (plan->form->row_axis < 0 || plan->form->column_axis < 0)
        return CODA_OK;
    for (int i = 0; i < graph->operand_count; i++) {
        enum space space = plan->form->space[graph->operand[i].node];
        if (graph->operand[i].role == CODA_IN || space == SPACE_TILE || space == SPACE_HALF)
            continue;
        for (int k = 0; k < graph->operand_count; k++)
            if (graph->operand[k].role == CODA_IN && launch->operand[k].data == launch->operand[i].data)
                return fail(error, CODA_UNSUPPORTED,
                            "%s: out %s takes the memory of %s, which other blocks of the GPU may still read; give it "
                            "memory of "
                            "its own",
                            graph->name, graph->operand[i].name, graph->operand[k].name);
    }
    return CODA_OK;
}

/* ---------------------------------------------------------------- parameters */

static bool is_wide(const coda_tensor *t)
{
    return (uintptr_t)t->data % 16 == 0 && (t->rank < 2 || (size_t)t->stride * coda_dtype_size(t->dtype) % 16 == 0);
}

/* Can products load 16 bytes at a time? */
static bool chunks_align(const struct plan *plan, const struct launch *launch)
{
    for (int a = 0; a < plan->accumulator_count; a++) {
        int64_t before = 0;
        for (int s = 0; s < plan->product[a].segment_count; s++) {
            const struct segment *segment = &plan->product[a].segment[s];
            before = segment->continues ? before : 0;
            if (!is_wide(&launch->operand[segment->left.operand]) || (segment->left.k_major && before % 8))
                return false;
            for (int r = 0; r < segment->right_count; r++)
                if (!is_wide(&launch->operand[segment->right[r].operand]))
                    return false;
            before += launch->operand[segment->right[0].operand].shape[segment->right[0].k_major];
        }
    }
    return true;
}

/* Has it few enough elements that 32 bits index them? */
static bool is_short(const coda_tensor *t)
{
    return t->rank < 2 || t->shape[0] * t->stride <= UINT32_MAX;
}

static bool is_fast(const coda_tensor *t)
{
    return is_wide(t) && is_short(t);
}

/* May tiles inside the matrix move 16 bytes at a time everywhere, and index by 32 bits? Outs of runs and vectors are stored
 * one by one. */
static bool all_fast(const struct plan *plan, const struct launch *launch)
{
    const struct graph *graph = plan->graph;
    for (int i = 0; i < plan->input_count; i++)
        if (!is_fast(&launch->operand[plan->input[i].operand]))
            return false;
    for (int i = 0; i < plan->column_count; i++)
        if (!is_fast(&launch->operand[plan->column[i].operand]))
            return false;
    for (int i = 0; i < graph->node_count; i++)
        if (plan->form->used[i] && graph->node[i].op == OP_ROPE &&
            !is_wide(&launch->operand[graph->node[graph->node[i].input[1]].index]))
            return false;
    for (int i = 0; i < graph->operand_count; i++) {
        enum space space = plan->form->space[graph->operand[i].node];
        bool tile = space == SPACE_TILE || space == SPACE_HALF;
        if (graph->operand[i].role != CODA_IN && !(tile ? is_fast : is_short)(&launch->operand[i]))
            return false;
    }
    return true;
}

static void fill_parameters(const struct plan *plan, const struct launch *launch, const struct geometry *geometry,
                            int map_count, unsigned char *bytes)
{
    const struct graph *graph = plan->graph;
    struct parameter_layout layout = parameter_layout(graph, map_count);
    uint64_t wide = 0;
    for (int i = 0; i < graph->operand_count; i++) {
        const coda_tensor *t = &launch->operand[i];
        struct device_tensor d = {(uint64_t)(uintptr_t)t->data, (int32_t)t->shape[0],
                                  (int32_t)(t->rank == 2 ? t->shape[1] : 1), (int32_t)t->stride, 0};
        memcpy(bytes + layout.tensors + i * (int)sizeof d, &d, sizeof d);
        wide |= (uint64_t)is_wide(t) << i;
    }
    memcpy(bytes + layout.wide, &wide, sizeof wide);
    for (int i = 0; i < graph->parameter_count; i++) {
        float value = (float)launch->parameter[i];
        memcpy(bytes + layout.parameters + 4 * i, &value, sizeof value);
    }
    for (int i = 0; i < graph->axis_count; i++) {
        int32_t size = (int32_t)minimum(launch->size[i], INT32_MAX);
        memcpy(bytes + layout.sizes + 4 * i, &size, sizeof size);
    }
    memcpy(bytes + layout.geometry, geometry, sizeof *geometry);
}

/* ---------------------------------------------------------------- grid */

static int64_t size_of(const struct launch *launch, int axis)
{
    return axis < 0 ? 1 : launch->size[axis];
}

/* Without a product: some sixty blocks a multiprocessor, so that the last ones to finish leave little idle, but of eight
 * steps at least, since a block starts with its rows' values and an empty pipeline. Each has whole runs of columns. */
static void elementwise_grid(const struct gpu *gpu, const struct plan *plan, int across, int64_t rows, int64_t columns,
                             struct geometry *geometry, struct launch_configuration *c)
{
    int64_t width = (int64_t)across * plan->blocks * BLOCK_COLUMNS, bands = ceiling(rows, BAND_ROWS / across);
    int64_t unit = width > 256 ? width : 256, steps = ceiling(columns, width);
    int64_t each = minimum(ceiling(steps * bands, 64 * (int64_t)gpu->multiprocessors), 32) * width;
    if (unit < plan->run_columns)
        unit = plan->run_columns;
    if (each < 8 * width)
        each = 8 * width;
    if (each < ceiling(columns, 65535))
        each = ceiling(columns, 65535);
    each = ceiling(each, unit) * unit;
    geometry->columns_per_block = (int32_t)each;
    c->grid_x = (unsigned)bands;
    c->grid_y = (unsigned)ceiling(columns, each);
}

struct geometry launch_geometry(const struct plan *plan, const struct launch *launch)
{
    return (struct geometry){.group = 8, .chunks = chunks_align(plan, launch), .all_wide = all_fast(plan, launch)};
}

struct launch_configuration launch_configure(const struct compiled *compiled)
{
    return (struct launch_configuration){.grid_x = 1,
                                         .grid_y = 1,
                                         .grid_z = 1,
                                         .block_x = (unsigned)variant_threads(&compiled->variant),
                                         .block_y = 1,
                                         .block_z = 1,
                                         .shared_bytes = (unsigned)compiled->shared_bytes};
}

static coda_status make_grid(const struct gpu *gpu, const struct plan *plan, const struct compiled *compiled,
                             const struct launch *launch, struct geometry *geometry, struct launch_configuration *c,
                             coda_error *error)
{
    const struct variant *v = &compiled->variant;
    int64_t rows = size_of(launch, plan->form->row_axis), columns = size_of(launch, plan->form->column_axis);
    *geometry = launch_geometry(plan, launch);
    switch (v->mainloop) {
    case MAINLOOP_ROWS:
        c->grid_x = (unsigned)ceiling(rows, 128);
        return CODA_OK;
    case MAINLOOP_COLUMNS:
        c->grid_x = (unsigned)ceiling(columns, 32);
        return CODA_OK;
    case MAINLOOP_ELEMENTWISE:
        elementwise_grid(gpu, plan, v->across, rows, columns, geometry, c);
        return CODA_OK;
    default:
        break;
    }
    bool hopper = is_hopper(v->mainloop);
    int64_t row_tiles = ceiling(rows, (int64_t)v->bands * BAND_ROWS * (hopper ? v->cluster : 1));
    int64_t column_tiles = ceiling(columns, v->columns);
    if (row_tiles * column_tiles > INT32_MAX / 2)
        return fail(error, CODA_UNSUPPORTED, "%s: %lld x %lld has more tiles than a grid holds", plan->graph->name,
                    (long long)rows, (long long)columns);
    int64_t tiles = row_tiles * column_tiles, narrow = v->narrow ? hopper_narrow_tiles(gpu, v, rows, columns) : 0;
    geometry->row_tiles = (int32_t)row_tiles;
    geometry->column_tiles = (int32_t)column_tiles;
    geometry->whole = (int32_t)(tiles - narrow);
    c->grid_x = (unsigned)(hopper ? hopper_clusters(gpu, v, tiles, narrow) * v->cluster : tiles);
    return CODA_OK;
}

/* ---------------------------------------------------------------- launch */

/* The first variant that can serve the operands as they lie in memory. */
static coda_status find_variant(const struct cuda_kernel *k, const struct launch *launch, const struct compiled **found,
                                coda_error *error)
{
    const char *why = NULL;
    for (int i = 0; i < k->variant_count; i++) {
        const struct variant *v = &k->compiled[i].variant;
        bool hopper = is_hopper(v->mainloop);
        if (v->problems > 1)
            continue;
        if (!hopper || hopper_accepts(&k->plan, v, launch, &why)) {
            *found = &k->compiled[i];
            return CODA_OK;
        }
    }
    return fail(error, CODA_UNSUPPORTED,
                "%s: %s, which the schedule \"%s\" needs; leave the schedule to the device, or use "
                "\"portable\"",
                k->plan.graph->name, why, mainloop_name(k->compiled[0].variant.mainloop));
}

coda_status launch_check(const struct gpu *gpu, const struct plan *plan, const struct launch *launch, coda_error *error)
{
    coda_status status = check_width(plan, launch, error);
    if (status == CODA_OK)
        status = check_vectors(plan, launch, error);
    for (int i = 0; i < plan->graph->operand_count && status == CODA_OK; i++)
        status = check_pointer(gpu, plan, i, &launch->operand[i], error);
    return status;
}

coda_status launch_parameters(const struct gpu *gpu, const struct plan *plan, const struct variant *v,
                              const struct launch *launch, const struct geometry *geometry, unsigned char *bytes,
                              coda_error *error)
{
    fill_parameters(plan, launch, geometry, v->map_count, bytes);
    return v->map_count ? hopper_maps(gpu, plan, v, launch, (struct tensor_map *)(void *)bytes, error) : CODA_OK;
}

/* Everything that precedes the driver's launch: checks, choice of the variant, grid, parameters, tensor maps. */
static coda_status prepare_launch(const struct gpu *gpu, const struct cuda_kernel *k, const struct launch *launch,
                                  struct prepared *p, coda_error *error)
{
    const struct plan *plan = &k->plan;
    const struct compiled *compiled = NULL;
    struct geometry geometry;
    coda_status status = launch_check(gpu, plan, launch, error);
    if (status == CODA_OK)
        status = find_variant(k, launch, &compiled, error);
    if (status != CODA_OK)
        return status;
    p->compiled = compiled;
    p->configuration = launch_configure(compiled);
    status = make_grid(gpu, plan, compiled, launch, &geometry, &p->configuration, error);
    if (status != CODA_OK)
        return status;
    return launch_parameters(gpu, plan, &compiled->variant, launch, &geometry, p->bytes, error);
}

/* May a launch begin while the one before it in its stream ends? Its kernel waits (await_launches_before); captured graphs
 * have had such edges since CUDA 12.3. */
static bool begins_early(const struct gpu *gpu)
{
    return gpu->capability >= 90 && gpu->driver.version >= 12030;
}

/* A kernel that is apart waits at its end for the launches before it, so that those after it need only wait for it. The portable
 * mainloops wait at their beginning in any case, and so do kernels that may end at once. */
static bool waits_last(const struct plan *plan, enum mainloop mainloop)
{
    return mainloop != MAINLOOP_PORTABLE && mainloop != MAINLOOP_PLAIN && !plan->graph->conditional;
}

static void set_apart(const struct plan *plan, const struct prepared *p, bool apart)
{
    const struct variant *v = &p->compiled->variant;
    int32_t flag = apart && waits_last(plan, v->mainloop);
    int geometry = parameter_layout(plan->graph, v->map_count).geometry;
    memcpy(p->bytes + geometry + offsetof(struct geometry, apart), &flag, sizeof flag);
}

coda_status launch_start(const struct gpu *gpu, const struct plan *plan, const struct prepared *p, void *stream,
                         bool apart, coda_error *error)
{
    struct launch_configuration configuration = p->configuration;
    struct launch_attribute attribute[2];
    void *arguments[1] = {p->bytes};
    set_apart(plan, p, apart);
    configuration.stream = stream;
    configuration.attributes = attribute;
    if (p->compiled->variant.cluster > 1)
        attribute[configuration.attribute_count++] = (struct launch_attribute){
            .id = LAUNCH_CLUSTER, .value.cluster = {(unsigned)p->compiled->variant.cluster, 1, 1}};
    if (begins_early(gpu))
        attribute[configuration.attribute_count++] =
            (struct launch_attribute){.id = LAUNCH_BEGINS_EARLY, .value.flag = 1};
    return driver_check(&gpu->driver,
                        gpu->driver.LaunchKernelEx(&configuration, p->compiled->function, arguments, NULL),
                        "cuLaunchKernelEx", plan->graph->name, error);
}

static coda_status launch_anew(const struct gpu *gpu, struct cuda_kernel *k, const struct launch *launch,
                               unsigned generation, coda_error *error)
{
    _Alignas(64) unsigned char bytes[PARAMETER_BYTES];
    struct prepared own = {.bytes = bytes};
    struct prepared *entry = recent_take(&k->recent);
    struct prepared *p = entry ? entry : &own;
    coda_status status = prepare_launch(gpu, k, launch, p, error);
    if (status == CODA_OK)
        status = launch_start(gpu, &k->plan, p, launch->stream, launch->apart, error);
    recent_keep(&k->recent, entry, launch, generation, status == CODA_OK);
    return status;
}

/* A product through the library; CODA_UNSUPPORTED where it cannot take these operands. */
static coda_status launch_blas(const struct gpu *gpu, const struct cuda_kernel *k, const struct launch *launch,
                               coda_error *error)
{
    coda_status status = CODA_OK;
    for (int i = 0; i < k->plan.graph->operand_count && status == CODA_OK; i++)
        status = check_pointer(gpu, &k->plan, i, &launch->operand[i], error);
    return status == CODA_OK ? blas_launch(gpu, k->blas, launch, error) : status;
}

static coda_status launch_variant(const struct gpu *gpu, struct cuda_kernel *k, const struct launch *launch,
                                  coda_error *error)
{
    unsigned generation = __atomic_load_n(&gpu->pointers->generation, __ATOMIC_ACQUIRE);
    struct prepared *entry = recent_find(&k->recent, launch, generation);
    if (!entry)
        return launch_anew(gpu, k, launch, generation, error);
    coda_status status = launch_start(gpu, &k->plan, entry, launch->stream, launch->apart, error);
    recent_give_back(entry);
    return status;
}

coda_status launch_alone(const struct gpu *gpu, struct cuda_kernel *k, const struct launch *launch, coda_error *error)
{
    bool by_blas = k->blas && (k->variant_count == 0 || blas_accepts(k->blas, launch));
    return by_blas ? launch_blas(gpu, k, launch, error) : launch_variant(gpu, k, launch, error);
}

coda_status cuda_launch(coda_kernel *kernel, const struct launch *launch, coda_error *error)
{
    const struct gpu *gpu = kernel->device->state;
    bool entered = false;
    coda_status status = gpu_enter_if_needed(gpu, &entered, error);
    if (status != CODA_OK)
        return status;
    status = launch_alone(gpu, kernel->state, launch, error);
    if (entered)
        gpu_leave(gpu);
    return status;
}
