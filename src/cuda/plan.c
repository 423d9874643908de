#include "cuda/plan.h"

#include <stdlib.h>
#include <string.h>

struct planner {
    struct plan *plan;
    coda_error *error;
    unsigned char *seen; /* one a node: bit 0 full width, bit 1 half */
};

bool is_run_reduction(const struct node *node)
{
    return op_is_reduction(node->op) && !(node->run.axis < 0 && node->run.value == 0);
}

int plan_extent(const struct plan *plan, const struct extent *extent)
{
    int64_t size = extent_size(extent, plan->fixed);
    return size > INT32_MAX / 4 ? INT32_MAX / 4 : (int)size;
}

int plan_distance(const struct plan *plan, const struct dim *dim)
{
    if (dim->form == DIM_HALVES)
        return plan_extent(plan, &dim->run);
    return dim->form == DIM_RUNS && dim->run.axis < 0 && dim->run.value == 2 ? 1 : 0;
}

int plan_value(const struct plan *plan, int node, bool id)
{
    for (int i = 0; i < plan->value_count; i++)
        if (plan->value[i].node == node && plan->value[i].id == id)
            return i;
    return -1;
}

int plan_input(const struct plan *plan, int node, int distance)
{
    for (int i = 0; i < plan->input_count; i++)
        if (plan->input[i].node == node && plan->input[i].distance == distance)
            return i;
    return -1;
}

int plan_old_value(const struct plan *plan, int operand)
{
    for (int i = 0; i < plan->input_count; i++)
        if (plan->input[i].node < 0 && plan->input[i].operand == operand)
            return i;
    return -1;
}

int plan_column(const struct plan *plan, int node)
{
    for (int i = 0; i < plan->column_count; i++)
        if (plan->column[i].node == node)
            return i;
    return -1;
}

const struct reduction *plan_reduction(const struct plan *plan, int node)
{
    for (int i = 0; i < plan->reduction_count; i++)
        if (plan->reduction[i].node == node)
            return &plan->reduction[i];
    return NULL;
}

int plan_span(const struct plan *plan)
{
    return plan->blocks * plan->step * BLOCK_COLUMNS;
}

bool plan_gathers(const struct plan *plan)
{
    for (int i = 0; i < plan->input_count; i++)
        if (plan->input[i].id_value >= 0)
            return true;
    return false;
}

int plan_angle_period(const struct plan *plan)
{
    int64_t head = 0, group = plan->blocks * BLOCK_COLUMNS;
    for (int i = 0; i < plan->graph->node_count; i++) {
        const struct node *node = &plan->graph->node[i];
        if (!plan->form->used[i] || node->op != OP_ROPE)
            continue;
        int64_t width = dim_size(&plan->graph->node[node->input[1]].shape.dim[1], plan->fixed);
        if (head && head != width)
            return 0;
        head = width;
    }
    return head == 0 ? 0 : head < group ? 1 : head < 1 << 20 ? (int)(head / group) : 0;
}

bool plan_adds(const struct plan *plan, int operand)
{
    const struct operand *out = &plan->graph->operand[operand];
    bool half = out->dtype == CODA_BF16 || out->dtype == CODA_F16;
    return out->role == CODA_ACCUMULATE && (out->dtype == CODA_F32 || (half && plan->adds_halves));
}

bool plan_stores_wide(const struct plan *plan)
{
    for (int i = 0; i < plan->graph->operand_count; i++) {
        const struct operand *operand = &plan->graph->operand[i];
        if (operand->role != CODA_IN && plan->form->space[operand->node] == SPACE_TILE &&
            coda_dtype_size(operand->dtype) == 4)
            return true;
    }
    return false;
}

bool plan_loads_ahead(const struct plan *plan)
{
    return plan->blocks <= 2;
}

static bool is_power_of_two(int x)
{
    return x > 0 && (x & (x - 1)) == 0;
}

static coda_status too_many(struct planner *p, const char *what, int limit)
{
    return fail(p->error, CODA_UNSUPPORTED, "%s: more than %d %s in one CUDA kernel; split the program",
                p->plan->graph->name, limit, what);
}

/* ---------------------------------------------------------------- products */

static struct factor factor_of(const struct graph *graph, int node, bool right)
{
    bool transposed = graph->node[node].op == OP_TRANSPOSE;
    int in = transposed ? graph->node[node].input[0] : node;
    return (struct factor){graph->node[in].index, right == transposed};
}

/* Appends the products of one pair: a stack along K becomes a segment a part. */
static coda_status add_segments(struct planner *p, struct product *product, int left, int right)
{
    const struct graph *graph = p->plan->graph;
    const struct node *node = &graph->node[right];
    bool transposed = node->op == OP_TRANSPOSE;
    const struct node *stack = transposed ? &graph->node[node->input[0]] : node;
    bool stacked = stack->op == OP_STACK;
    int parts = stacked && !transposed ? stack->input_count : 1;
    for (int i = 0; i < parts; i++) {
        if (product->segment_count == MAX_SEGMENTS)
            return too_many(p, "products added up", MAX_SEGMENTS);
        struct segment *segment = &product->segment[product->segment_count++];
        *segment = (struct segment){.left = factor_of(graph, left, false), .continues = i > 0};
        if (!stacked) {
            segment->right[segment->right_count++] = factor_of(graph, right, true);
        } else if (!transposed) {
            segment->right[segment->right_count++] = factor_of(graph, stack->input[i], true);
        } else {
            for (int k = 0; k < stack->input_count; k++)
                segment->right[segment->right_count++] = (struct factor){graph->node[stack->input[k]].index, true};
        }
    }
    return CODA_OK;
}

/* Do both products walk the same ranges of K with the same left operands? */
static bool walk_alike(const struct graph *graph, const struct product *a, const struct product *b)
{
    if (a->segment_count != b->segment_count)
        return false;
    for (int i = 0; i < a->segment_count; i++) {
        const struct segment *s = &a->segment[i], *t = &b->segment[i];
        const struct factor *u = &s->right[0], *v = &t->right[0];
        if (s->left.operand != t->left.operand || s->left.k_major != t->left.k_major || s->continues != t->continues ||
            !dim_equal(&graph->operand[u->operand].shape.dim[u->k_major],
                       &graph->operand[v->operand].shape.dim[v->k_major]))
            return false;
    }
    return true;
}

static void compare_factors(struct plan *plan)
{
    const struct segment *first = &plan->product[0].segment[0];
    plan->uniform = true;
    plan->left_k_major = first->left.k_major;
    plan->right_k_major = first->right[0].k_major;
    plan->factor_type = plan->graph->operand[first->left.operand].dtype;
    for (int i = 0; i < plan->accumulator_count; i++)
        for (int k = 0; k < plan->product[i].segment_count; k++) {
            const struct segment *s = &plan->product[i].segment[k];
            plan->uniform &= s->left.k_major == plan->left_k_major &&
                             plan->graph->operand[s->left.operand].dtype == plan->factor_type;
            for (int r = 0; r < s->right_count; r++)
                plan->uniform &= s->right[r].k_major == plan->right_k_major &&
                                 plan->graph->operand[s->right[r].operand].dtype == plan->factor_type;
        }
}

static coda_status plan_products(struct planner *p)
{
    struct plan *plan = p->plan;
    plan->accumulator_count = plan->form->accumulator_count;
    for (int i = 0; i < plan->accumulator_count; i++) {
        const struct node *node = &plan->graph->node[plan->form->accumulator[i]];
        for (int k = 0; k + 1 < node->input_count; k += 2) {
            coda_status status = add_segments(p, &plan->product[i], node->input[k], node->input[k + 1]);
            if (status != CODA_OK)
                return status;
        }
    }
    plan->joint = true;
    for (int i = 1; i < plan->accumulator_count; i++)
        plan->joint &= walk_alike(plan->graph, &plan->product[0], &plan->product[i]);
    if (plan->accumulator_count)
        compare_factors(plan);
    if (plan->accumulator_count > 4)
        return too_many(p, "accumulators", 4);
    return CODA_OK;
}

/* ---------------------------------------------------------------- reductions and groups */

static coda_status add_reduction(struct planner *p, int index)
{
    struct plan *plan = p->plan;
    const struct node *node = &plan->graph->node[index];
    const char *name = op_name(node->op);
    int run = plan_extent(plan, &node->run);
    bool over_rows = node->axis == plan->form->row_axis;
    if (plan->form->space[index] == SPACE_COLUMN_PARTS)
        return fail(p->error, CODA_UNSUPPORTED,
                    "%s: `%s` over runs of a column vector has no CUDA path; compute it "
                    "by a program of its own on another device, or give it as an `in`",
                    plan->graph->name, name);
    if (over_rows && (run > BAND_ROWS || run < 16 || !is_power_of_two(run)))
        return fail(p->error, CODA_UNSUPPORTED,
                    "%s: `%s` over runs of %d rows; CUDA kernels reduce runs of 16, 32 or "
                    "64 rows",
                    plan->graph->name, name, run);
    if (over_rows && node->op == OP_LOGSUMEXP)
        return fail(p->error, CODA_UNSUPPORTED, "%s: `logsumexp` over rows has no CUDA path; reduce along the columns",
                    plan->graph->name);
    int longest = plan->accumulator_count ? 256 : 4096;
    if (!over_rows && (run > longest || run < 4 || !is_power_of_two(run)))
        return fail(p->error, CODA_UNSUPPORTED,
                    "%s: `%s` over runs of %d columns; CUDA kernels reduce runs of a power "
                    "of two from 4 to %d",
                    plan->graph->name, name, run, longest);
    if (plan->reduction_count == MAX_REDUCTIONS)
        return too_many(p, "reductions", MAX_REDUCTIONS);
    plan->reduction[plan->reduction_count++] = (struct reduction){.node = index, .run = run, .over_rows = over_rows};
    plan->over_rows_count += over_rows;
    if (!over_rows && run > plan->run_columns)
        plan->run_columns = run;
    return CODA_OK;
}

/* The distance between the two columns that a node brings together; 0: none. */
static int pair_distance(const struct plan *plan, const struct node *node)
{
    switch (node->op) {
    case OP_FIRST:
    case OP_SECOND:
    case OP_JOIN_HALVES:
        return plan_extent(plan, &node->run);
    case OP_EVEN:
    case OP_ODD:
    case OP_JOIN:
        return 1;
    case OP_ROPE: {
        const struct dim *head = &plan->graph->node[node->input[1]].shape.dim[1];
        int64_t width = dim_size(head, plan->fixed);
        return node->rope_pairs ? 1 : width > 1 << 20 ? 1 << 20 : (int)(width / 2);
    }
    default:
        return 0;
    }
}

static bool is_tile_space(enum space space)
{
    return space == SPACE_TILE || space == SPACE_HALF;
}

/* The longest run that a value of the tile reads back; complains of runs over rows. */
static coda_status find_read_back(struct planner *p, int *longest)
{
    struct plan *plan = p->plan;
    *longest = 0;
    for (int i = 0; i < plan->graph->node_count; i++) {
        const struct node *node = &plan->graph->node[i];
        for (int k = 0; plan->form->used[i] && is_tile_space(plan->form->space[i]) && k < node->input_count; k++) {
            int input = node->input[k];
            enum space space = plan->form->space[input];
            if (plan->level[input] == 0)
                continue;
            if (space == SPACE_COLUMN_RUNS)
                return fail(p->error, CODA_UNSUPPORTED,
                            "%s: a reduction over runs of rows is read back by the tile, which CUDA kernels cannot; "
                            "store it and read it in a second program",
                            plan->graph->name);
            int run = space == SPACE_ROW_RUNS ? plan_extent(plan, &plan->graph->node[input].shape.dim[1].run) : 0;
            if (run > *longest)
                *longest = run;
        }
    }
    return CODA_OK;
}

/* Chooses blocks and step: the smallest group that holds the partners of its columns and the runs it reads back. */
static coda_status plan_group(struct planner *p)
{
    struct plan *plan = p->plan;
    int farthest = 0, nearest = 0, read_back = 0;
    for (int i = 0; i < plan->graph->node_count; i++) {
        int distance = plan->form->used[i] ? pair_distance(plan, &plan->graph->node[i]) : 0;
        if (distance > 128 || (distance && !is_power_of_two(distance)))
            return fail(p->error, CODA_UNSUPPORTED,
                        "%s: `%s` brings together columns %d apart; CUDA kernels pair columns a power of two up to 128 "
                        "apart (heads of 2 to 256)",
                        plan->graph->name, op_name(plan->graph->node[i].op), distance);
        if (distance >= BLOCK_COLUMNS) {
            farthest = distance > farthest ? distance : farthest;
            nearest = !nearest || distance < nearest ? distance : nearest;
        }
    }
    coda_status status = find_read_back(p, &read_back);
    if (status != CODA_OK)
        return status;
    if (read_back > 256)
        return fail(p->error, CODA_UNSUPPORTED, "%s: the tile reads back runs of %d columns; at most 256",
                    plan->graph->name, read_back);
    plan->blocks = farthest ? 2 : 1;
    plan->step = farthest ? farthest / BLOCK_COLUMNS : 1;
    bool contiguous = read_back > BLOCK_COLUMNS || nearest != farthest;
    for (int i = 0; i < plan->reduction_count; i++)
        contiguous |= !plan->reduction[i].over_rows && plan->reduction[i].run > BLOCK_COLUMNS &&
                      plan->reduction[i].run < plan_span(plan) && farthest;
    if (contiguous) {
        int columns = read_back > 2 * farthest ? read_back : 2 * farthest;
        plan->blocks = columns > BLOCK_COLUMNS ? columns / BLOCK_COLUMNS : 1;
        plan->step = 1;
    }
    for (int i = 0; i < plan->reduction_count; i++)
        plan->reduction[i].carried =
            !plan->reduction[i].over_rows && plan->reduction[i].run > plan->blocks * BLOCK_COLUMNS;
    if (plan_span(plan) > plan->run_columns)
        plan->run_columns = plan_span(plan);
    return CODA_OK;
}

static coda_status plan_levels(struct planner *p)
{
    struct plan *plan = p->plan;
    for (int i = 0; i < plan->graph->node_count; i++) {
        const struct node *node = &plan->graph->node[i];
        if (!plan->form->used[i])
            continue;
        for (int k = 0; k < node->input_count; k++)
            if (plan->level[node->input[k]] > plan->level[i])
                plan->level[i] = plan->level[node->input[k]];
        if (is_run_reduction(node)) {
            coda_status status = add_reduction(p, i);
            if (status != CODA_OK)
                return status;
            plan->level[i]++;
        }
        if (plan->level[i] + 1 > plan->level_count)
            plan->level_count = plan->level[i] + 1;
    }
    return CODA_OK;
}

/* ---------------------------------------------------------------- what a tile reads */

static coda_status need_value(struct planner *p, int node, bool id)
{
    struct plan *plan = p->plan;
    if (plan_value(plan, node, id) >= 0)
        return CODA_OK;
    if (plan->value_count == MAX_VALUES)
        return too_many(p, "row values", MAX_VALUES);
    plan->value[plan->value_count++] = (struct row_value){node, id};
    return CODA_OK;
}

static coda_status need_input(struct planner *p, int operand, int node, int distance, int id_value)
{
    struct plan *plan = p->plan;
    if (node >= 0 && plan_input(plan, node, distance) >= 0)
        return CODA_OK;
    if (plan->input_count == MAX_TILE_INPUTS)
        return too_many(p, "tile operands", MAX_TILE_INPUTS);
    plan->input[plan->input_count++] = (struct tile_input){operand, node, distance, id_value};
    return CODA_OK;
}

static coda_status need_column(struct planner *p, int node)
{
    struct plan *plan = p->plan;
    const struct node *n = &plan->graph->node[node];
    if (plan_column(plan, node) >= 0)
        return CODA_OK;
    if (plan->column_count == MAX_COLUMN_INPUTS)
        return too_many(p, "column vectors", MAX_COLUMN_INPUTS);
    bool repeats = n->op == OP_REPEAT;
    int operand = repeats ? plan->graph->node[n->input[0]].index : n->index;
    plan->column[plan->column_count++] = (struct column_input){operand, node, repeats};
    return CODA_OK;
}

static coda_status demand(struct planner *p, int index, int distance);

/* What one node reads besides values of the epilogue. */
static coda_status demand_leaf(struct planner *p, int index, int distance)
{
    struct plan *plan = p->plan;
    const struct node *node = &plan->graph->node[index];
    enum space space = plan->form->space[index];
    coda_status status;
    switch (node->op) {
    case OP_IN:
        if (is_tile_space(space))
            return need_input(p, node->index, index, space == SPACE_HALF ? distance : 0, -1);
        return space == SPACE_COLUMN ? need_column(p, index) : CODA_OK;
    case OP_REPEAT:
        if (space != SPACE_COLUMN)
            return fail(p->error, CODA_UNSUPPORTED, "%s: `repeat` of what is no column vector has no CUDA path",
                        plan->graph->name);
        return need_column(p, index);
    case OP_GATHER:
        status = need_value(p, node->input[1], true);
        if (status != CODA_OK)
            return status;
        return need_input(p, plan->graph->node[node->input[0]].index, index, 0, plan_value(plan, node->input[1], true));
    case OP_ONEHOT:
        return need_value(p, node->input[0], true);
    case OP_ROPE:
        status = need_value(p, node->input[2], true);
        return status != CODA_OK ? status : demand(p, node->input[0], 0);
    default:
        return CODA_OK;
    }
}

/* Notes what the tile must load for a value, walking down to what the prologue knows. */
static coda_status demand(struct planner *p, int index, int distance)
{
    struct plan *plan = p->plan;
    const struct node *node = &plan->graph->node[index];
    unsigned char bit = distance ? 2 : 1;
    enum space space = plan->form->space[index];
    if (p->seen[index] & bit)
        return CODA_OK;
    p->seen[index] |= bit;
    if (space == SPACE_ROW)
        return need_value(p, index, false);
    switch (node->op) {
    case OP_IN:
    case OP_REPEAT:
    case OP_GATHER:
    case OP_ONEHOT:
    case OP_ROPE:
        return demand_leaf(p, index, distance);
    case OP_GEMM:
    case OP_PARAM:
    case OP_NUMBER:
    case OP_SIZE:
    case OP_INDEX:
        return CODA_OK;
    default:
        break;
    }
    if (op_is_reduction(node->op) && !is_run_reduction(node))
        return CODA_OK;
    int below = distance;
    if (node->op == OP_FIRST || node->op == OP_SECOND || node->op == OP_EVEN || node->op == OP_ODD) {
        if (pair_distance(plan, node) != distance)
            return fail(p->error, CODA_UNSUPPORTED,
                        "%s: pairs and halves of different lengths meet in one value, which "
                        "CUDA kernels cannot hold",
                        plan->graph->name);
        below = 0;
    } else if (node->op == OP_JOIN || node->op == OP_JOIN_HALVES) {
        below = pair_distance(plan, node);
    }
    for (int k = 0; k < node->input_count; k++) {
        coda_status status = demand(p, node->input[k], below);
        if (status != CODA_OK)
            return status;
    }
    return CODA_OK;
}

static coda_status demand_out(struct planner *p, int index)
{
    struct plan *plan = p->plan;
    const struct operand *out = &plan->graph->operand[index];
    const struct node *node = &plan->graph->node[out->node];
    enum space space = plan->form->space[out->node];
    int distance = space == SPACE_HALF ? plan_distance(plan, &node->shape.dim[1]) : 0;
    coda_status status;
    if (node->op == OP_PICK) {
        status = need_value(p, node->input[1], true);
        return status != CODA_OK ? status : demand(p, node->input[0], 0);
    }
    if (space == SPACE_ROW) {
        plan->writes_rows = true;
        return CODA_OK;
    }
    status = demand(p, out->node, distance);
    if (status == CODA_OK && is_tile_space(space) && out->role == CODA_ACCUMULATE)
        status = need_input(p, index, -1, distance, -1);
    bool wide = out->dtype == CODA_F32 || out->dtype == CODA_I32 || out->dtype == CODA_F16;
    if (is_tile_space(space) && wide)
        plan->exact = true;
    return status;
}

static coda_status plan_reads(struct planner *p)
{
    const struct graph *graph = p->plan->graph;
    coda_status status = CODA_OK;
    for (int i = 0; i < graph->operand_count && status == CODA_OK; i++)
        if (graph->operand[i].role != CODA_IN)
            status = demand_out(p, i);
    return status;
}

static coda_status check_size(struct planner *p)
{
    int used = 0;
    for (int i = 0; i < p->plan->graph->node_count; i++)
        used += p->plan->form->used[i];
    return used > MAX_USED_NODES ? too_many(p, "operations", MAX_USED_NODES) : CODA_OK;
}

coda_status plan_create(const coda_kernel *kernel, bool adds_halves, struct plan *plan, coda_error *error)
{
    *plan = (struct plan){
        .graph = kernel->graph, .form = &kernel->form, .fixed = kernel->fixed_size, .adds_halves = adds_halves};
    size_t count = (size_t)kernel->graph->node_count + 1;
    struct planner p = {plan, error, calloc(count, 1)};
    plan->level = calloc(count, sizeof *plan->level);
    if (!p.seen || !plan->level) {
        free(p.seen);
        plan_free(plan);
        return fail_memory(error, "a plan of a kernel", count);
    }
    plan->run_columns = BLOCK_COLUMNS;
    coda_status status = check_size(&p);
    if (status == CODA_OK)
        status = plan_products(&p);
    if (status == CODA_OK)
        status = plan_levels(&p);
    if (status == CODA_OK)
        status = plan_group(&p);
    if (status == CODA_OK)
        status = plan_reads(&p);
    free(p.seen);
    if (status == CODA_OK)
        plan->copied_out = plan_copied_out(plan);
    else
        plan_free(plan);
    return status;
}

void plan_free(struct plan *plan)
{
    free(plan->level);
    plan->level = NULL;
}
