/* What is known of a program's products before their sizes are. */
#include "cpu/cpu.h"
#include "runtime/counts.h"

/* Is every operand of the product tree of type bf16? */
static bool only_bf16(const struct graph *graph, int node)
{
    const struct node *n = &graph->node[node];
    if (n->op == OP_IN)
        return graph->operand[n->index].dtype == CODA_BF16;
    for (int i = 0; i < n->input_count; i++)
        if (!only_bf16(graph, n->input[i]))
            return false;
    return true;
}

static const struct microkernel *choose_microkernel(const struct cpu_kernel *k, const struct cpu_state *state)
{
    bool bf16 = true;
    for (int a = 0; a < k->plan.form->accumulator_count; a++)
        bf16 = bf16 && only_bf16(k->plan.graph, k->plan.form->accumulator[a]);
    const struct microkernel *const *micro = k->plan.isa->microkernels;
    while (((*micro)->only_bf16 && !bf16) || ((*micro)->needs & ~state->features))
        micro++;
    return *micro;
}

/* Two operands of `@` that are the same matrix. */
static bool same_matrix(const struct graph *graph, int p, int q)
{
    const struct node *a = &graph->node[p], *b = &graph->node[q];
    return p == q || (a->op == OP_TRANSPOSE && b->op == OP_TRANSPOSE && a->input[0] == b->input[0]);
}

/* Accumulators with the same left operand at the same place of their sums share its packing. */
static void share_left(struct gemm_plan *gemm, const struct graph *graph, int accumulators)
{
    for (int place = 0; place < gemm->rank; place++) {
        int slots = 0;
        for (int a = 0; a < accumulators; a++) {
            struct gemm_product *product = &gemm->product[a][place];
            product->slot = -1;
            for (int other = 0; other < a && product->left >= 0 && product->slot < 0; other++)
                if (gemm->product[other][place].left >= 0 &&
                    same_matrix(graph, gemm->product[other][place].left, product->left))
                    product->slot = gemm->product[other][place].slot;
            if (product->left >= 0 && product->slot < 0)
                product->slot = slots++;
        }
        gemm->left_slots = slots > gemm->left_slots ? slots : gemm->left_slots;
    }
}

coda_status cpu_gemm_prepare(struct cpu_kernel *k, const struct cpu_state *state, coda_error *error)
{
    const struct graph *graph = k->plan.graph;
    const struct form *form = k->plan.form;
    struct gemm_plan *gemm = &k->gemm;
    (void)error;
    if (form->accumulator_count == 0)
        return CODA_OK;
    gemm->microkernel = choose_microkernel(k, state);
    for (int a = 0; a < form->accumulator_count; a++) {
        const struct node *node = &graph->node[form->accumulator[a]];
        for (int place = 0; place < MAX_PRODUCTS; place++) {
            bool there = 2 * place < node->input_count;
            gemm->product[a][place].left = there ? node->input[2 * place] : -1;
            gemm->product[a][place].right = there ? node->input[2 * place + 1] : -1;
        }
        if (node->input_count / 2 > gemm->rank)
            gemm->rank = node->input_count / 2;
    }
    share_left(gemm, graph, form->accumulator_count);
    return CODA_OK;
}

void cpu_gemm_measure(struct cpu_kernel *k, const struct cpu_state *state, int64_t *packed_size, int64_t *partial_size)
{
    struct gemm_plan *gemm = &k->gemm;
    const struct microkernel *micro = gemm->microkernel;
    const int64_t element = (int64_t)coda_dtype_size(micro->packed);
    /* a right panel is as large as the first cache: what passes beside it costs less than more blocks would */
    int64_t depth = micro->best_depth ? micro->best_depth : state->machine.level1 / (micro->columns * element);
    gemm->depth_multiple = round_up(8, micro->depth);
    depth = depth < 64 ? 64 : depth > 1024 ? 1024 : depth;
    gemm->depth = round_up(depth, gemm->depth_multiple);
    gemm->padded_columns = round_up(k->plan.tile_columns, micro->columns);
    int64_t accumulators = k->plan.form->accumulator_count;
    int64_t left = gemm->left_slots * k->plan.padded_rows * gemm->depth * element;
    int64_t right = accumulators * gemm->padded_columns * gemm->depth * element;
    int64_t most = state->machine.level3 / 2;
    *packed_size = most < 4 << 20 ? 4 << 20 : most > 32 << 20 ? 32 << 20 : most;
    *packed_size = *packed_size < left ? left : *packed_size;
    *packed_size = *packed_size < right ? right : *packed_size;
    int64_t tile = accumulators * k->plan.padded_rows * k->plan.stride;
    *partial_size = tile > 2 << 20 ? tile : 2 << 20;
    k->accumulator_floats = tile;
    int64_t lines = k->plan.padded_rows > gemm->padded_columns ? k->plan.padded_rows : gemm->padded_columns;
    k->scratch_floats = cpu_matrix_scratch_floats(micro, gemm->depth, lines);
    k->panel_floats = micro->columns * gemm->depth * element / (int64_t)sizeof(float);
}
