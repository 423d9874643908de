/* What a program's values need of the tile machine: sites, passes, guards, fused multiply-adds. */
#include "cpu/plan.h"

#include <stdlib.h>

static bool is_whole_reduction(const struct node *node)
{
    return op_is_reduction(node->op) && node->run.axis < 0 && node->run.value == 0;
}

static enum site site_of(enum space space)
{
    switch (space) {
    case SPACE_ROW:
        return SITE_ROW;
    case SPACE_COLUMN:
    case SPACE_COLUMN_PARTS:
        return SITE_COLUMN;
    case SPACE_COLUMN_RUNS:
        return SITE_BAND;
    case SPACE_TILE:
    case SPACE_HALF:
    case SPACE_ROW_RUNS:
        return SITE_TILE;
    default:
        return SITE_UNIFORM;
    }
}

/* A reduction over rows is known one pass later than what it reduces. */
static void find_levels(struct builder *b)
{
    for (int n = 0; n < b->graph->node_count; n++) {
        const struct node *node = &b->graph->node[n];
        b->site[n] = site_of(b->form->space[n]);
        bool leaf = is_whole_reduction(node) || b->form->space[n] == SPACE_NONE || node->op == OP_GEMM;
        for (int k = 0; k < node->input_count && !leaf; k++)
            if (b->form->space[node->input[k]] != SPACE_NONE && b->level[node->input[k]] > b->level[n])
                b->level[n] = b->level[node->input[k]];
        if (!leaf && op_is_reduction(node->op) && b->site[n] == SITE_BAND && b->site[node->input[0]] == SITE_TILE)
            b->level[n]++;
    }
}

static void count_users(struct builder *b)
{
    for (int n = 0; n < b->graph->node_count; n++)
        for (int k = 0; b->form->used[n] && k < b->graph->node[n].input_count; k++)
            b->user_count[b->graph->node[n].input[k]]++;
    for (int i = 0; i < b->graph->operand_count; i++)
        if (b->graph->operand[i].role != CODA_IN)
            b->user_count[b->graph->operand[i].node]++;
}

/* ---------------------------------------------------------------- guards */

/* The guard below `parent` for one outcome of a condition, made at its first use; -1 with an error where memory ends.
 */
static int guard_under(struct builder *b, int parent, int condition, bool wanted)
{
    struct plan *plan = b->plan;
    for (int i = 0; i < plan->guard_count; i++) {
        const struct guard *g = &plan->guard[i];
        if (g->parent == parent && g->condition == condition && g->wanted == wanted)
            return i;
    }
    if (plan->guard_count == plan->guard_capacity) {
        int capacity = plan->guard_capacity ? 2 * plan->guard_capacity : 8;
        struct guard *grown = realloc(plan->guard, (size_t)capacity * sizeof *grown);
        if (!grown)
            return -2;
        plan->guard = grown;
        plan->guard_capacity = capacity;
    }
    int depth = parent < 0 ? 1 : plan->guard[parent].depth + 1;
    plan->guard[plan->guard_count] = (struct guard){parent, condition, depth, wanted};
    return plan->guard_count++;
}

/* The guard that holds whenever one of two does. */
static int common_guard(const struct plan *plan, int a, int b)
{
    while (a != b) {
        int depth_a = a < 0 ? 0 : plan->guard[a].depth, depth_b = b < 0 ? 0 : plan->guard[b].depth;
        if (depth_a >= depth_b)
            a = plan->guard[a].parent;
        if (depth_b >= depth_a)
            b = plan->guard[b].parent;
    }
    return a;
}

static bool is_uniform_where(const struct builder *b, int n)
{
    const struct node *node = &b->graph->node[n];
    return node->op == OP_WHERE && b->site[n] == SITE_TILE && b->site[node->input[0]] == SITE_UNIFORM;
}

/* From users to inputs: a value that only one branch of a uniform `where` needs is guarded by its condition. */
static coda_status find_guards(struct builder *b, bool *seen)
{
    for (int i = 0; i < b->graph->operand_count; i++)
        if (b->graph->operand[i].role != CODA_IN)
            seen[b->graph->operand[i].node] = true;
    for (int n = b->graph->node_count - 1; n >= 0; n--) {
        const struct node *node = &b->graph->node[n];
        for (int k = 0; b->form->used[n] && k < node->input_count; k++) {
            int x = node->input[k], guard = b->guard[n];
            if (is_uniform_where(b, n) && k > 0)
                guard = guard_under(b, guard, node->input[0], k == 1);
            if (guard < -1)
                return fail_memory(b->error, "guards of a kernel", sizeof(struct guard));
            b->guard[x] = seen[x] ? common_guard(b->plan, b->guard[x], guard) : guard;
            seen[x] = true;
        }
    }
    return CODA_OK;
}

/* ---------------------------------------------------------------- fused multiply-adds */

static bool may_fuse(const struct builder *b, int sum, int product)
{
    const struct node *x = &b->graph->node[sum], *y = &b->graph->node[product];
    return y->op == OP_MUL && b->user_count[product] == 1 && b->site[product] == SITE_TILE &&
           b->guard[product] == b->guard[sum] && shape_equal(&x->shape, &y->shape) && b->fused[product] < 0;
}

static void find_fused(struct builder *b)
{
    for (int n = 0; n < b->graph->node_count; n++) {
        const struct node *node = &b->graph->node[n];
        if (!b->form->used[n] || b->site[n] != SITE_TILE || (node->op != OP_ADD && node->op != OP_SUB))
            continue;
        for (int k = 0; k < 2; k++)
            if (may_fuse(b, n, node->input[k])) {
                b->fused[node->input[k]] = n;
                break;
            }
    }
}

coda_status cpu_analyse(struct builder *b)
{
    int count = b->graph->node_count;
    bool *seen = calloc((size_t)count + 1, sizeof *seen);
    if (!seen)
        return fail_memory(b->error, "the analysis of a program", (size_t)count);
    for (int n = 0; n < count; n++) {
        b->guard[n] = b->fused[n] = b->value[n] = -1;
        b->level[n] = b->user_count[n] = 0;
    }
    find_levels(b);
    count_users(b);
    coda_status status = find_guards(b, seen);
    if (status == CODA_OK)
        find_fused(b);
    free(seen);
    return status;
}
