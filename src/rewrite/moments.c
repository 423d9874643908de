/* Which products share a program, and when every value is known. */
#include "rewrite/cut.h"
#include "rewrite/rules.h"

#include <stdlib.h>

int strip_operand(const struct graph *graph, int node)
{
    return graph->node[node].op == OP_TRANSPOSE ? graph->node[node].input[0] : node;
}

bool is_whole_reduction_of_value(const struct graph *graph, int node)
{
    const struct node *n = &graph->node[node];
    if (!op_is_reduction(n->op) || !is_whole_run(n->run))
        return false;
    const struct node *x = &graph->node[n->input[0]];
    if (x->op != OP_IN)
        return true;
    if (!graph->is_block)
        return false;
    for (int i = 0; i < x->shape.rank; i++)
        if (x->shape.dim[i].axis == n->axis)
            return x->shape.dim[i].form == DIM_WHOLE;
    return true;
}

/* Does a product, or a reduction that something reads, depend on the node? */
static bool *find_feeding(const struct cutting *cutting)
{
    const struct graph *graph = cutting->graph;
    const struct users *users = &cutting->users;
    bool *feeds = calloc((size_t)graph->node_count + 1, sizeof *feeds);
    for (int n = graph->node_count - 1; n >= 0 && feeds != NULL; n--)
        for (int i = users->begin[n]; i < users->begin[n + 1]; i++) {
            int u = users->user[i].node;
            feeds[n] = feeds[n] || feeds[u] || graph->node[u].op == OP_GEMM || graph->node[u].op == OP_PICK ||
                       is_whole_reduction_of_value(graph, u);
        }
    return feeds;
}

static bool is_operand_in(const struct graph *graph, int node)
{
    const struct node *n = &graph->node[strip_operand(graph, node)];
    if (n->op != OP_STACK)
        return n->op == OP_IN;
    for (int k = 0; k < n->input_count; k++)
        if (graph->node[n->input[k]].op != OP_IN)
            return false;
    return true;
}

/* Products with the same left operands and shape sit side by side in one tile. */
static bool makes_twin(const struct graph *graph, const struct piece *piece, int gemm)
{
    const struct node *a = &graph->node[piece->gemm[0]], *b = &graph->node[gemm];
    if (piece->gemm_count == MAX_PRODUCTS || a->input_count != b->input_count || !shape_equal(&a->shape, &b->shape))
        return false;
    for (int k = 0; k < a->input_count; k++)
        if (k % 2 == 0 ? a->input[k] != b->input[k] : !is_operand_in(graph, b->input[k]))
            return false;
    return true;
}

bool add_piece(struct cutting *cutting, moment key, bool leaf, int row_axis, int column_axis)
{
    if (cutting->piece_count == cutting->piece_capacity) {
        int larger = cutting->piece_capacity ? 2 * cutting->piece_capacity : 16;
        struct piece *piece = realloc(cutting->piece, (size_t)larger * sizeof *piece);
        if (piece == NULL)
            return refuse(&cutting->why, CODA_MEMORY, "", "no memory for %d programs", larger), false;
        cutting->piece = piece;
        cutting->piece_capacity = larger;
    }
    cutting->piece[cutting->piece_count++] =
        (struct piece){.key = key, .leaf = leaf, .row_axis = row_axis, .column_axis = column_axis};
    return true;
}

static bool group_product(struct cutting *cutting, int n, bool leaf)
{
    const struct graph *graph = cutting->graph;
    for (int p = 0; p < cutting->piece_count; p++)
        if (cutting->piece[p].leaf == leaf && makes_twin(graph, &cutting->piece[p], n) &&
            apply_rule(cutting->report, RULE_TWIN, graph, n)) {
            cutting->piece[p].gemm[cutting->piece[p].gemm_count++] = n;
            cutting->group[n] = p;
            return true;
        }
    const struct shape *shape = &graph->node[n].shape;
    if (graph->node[n].input_count > 2) {
        report_rule(cutting->report, RULE_SUMMED, graph, n);
        report_figure(cutting->report, "saves a kernel, and for each further product a write and a read of %s", graph,
                      n, stored_dtype(cutting, n));
    }
    if (!add_piece(cutting, (moment)PERIOD * cutting->piece_count, leaf, shape->dim[0].axis, shape->dim[1].axis))
        return false;
    struct piece *piece = &cutting->piece[cutting->piece_count - 1];
    piece->gemm[piece->gemm_count++] = n;
    cutting->group[n] = cutting->piece_count - 1;
    return true;
}

static bool group_products(struct cutting *cutting)
{
    const struct graph *graph = cutting->graph;
    bool *feeds = find_feeding(cutting), made = feeds != NULL;
    if (feeds == NULL)
        refuse(&cutting->why, CODA_MEMORY, "", "no memory to group products");
    for (int leaf = 0; leaf < 2; leaf++)
        for (int n = 0; n < graph->node_count && made; n++)
            if (cutting->users.used[n] && graph->node[n].op == OP_GEMM && feeds[n] == !leaf)
                made = group_product(cutting, n, leaf);
    free(feeds);
    return made;
}

static void time_node(struct cutting *cutting, int n)
{
    const struct graph *graph = cutting->graph;
    const struct node *node = &graph->node[n];
    moment time = BOUNDARY;
    if (node->op == OP_GEMM) {
        cutting->time[n] = cutting->piece[cutting->group[n]].key;
        return;
    }
    for (int k = 0; k < node->input_count; k++)
        if (cutting->time[node->input[k]] > time)
            time = cutting->time[node->input[k]];
    /* The runs of a reduction may be stored by a later program than the first that could. */
    const struct place *runs = is_whole_reduction_of_value(graph, n) ? runs_of(cutting, n) : NULL;
    if (runs != NULL && runs->piece >= 0 && cutting->piece[runs->piece].key > time)
        time = cutting->piece[runs->piece].key;
    if (time % PERIOD == PERIOD - 1)
        refuse(&cutting->why, CODA_UNSUPPORTED, "Split the block.", "a chain of %d reductions over whole rows", PERIOD);
    cutting->time[n] = time + (is_whole_reduction_of_value(graph, n) ||
                               (node->op == OP_PICK && cutting->users.begin[n] < cutting->users.begin[n + 1]));
}

/* The last moment at which n can be computed: its first reader's, or just before the product that it is an operand of.
 */
static moment first_need(const struct cutting *cutting, int n)
{
    const struct users *users = &cutting->users;
    moment first = NEVER;
    for (int i = users->begin[n]; i < users->begin[n + 1]; i++) {
        int u = users->user[i].node;
        bool in_epilogue = cutting->time[u] >= 0 && cutting->time[u] % PERIOD == 0;
        moment at = cutting->group[u] >= 0 ? cutting->time[u] - 1 : in_epilogue ? cutting->time[u] : cutting->need[u];
        if (at < first)
            first = at;
    }
    return first;
}

bool time_nodes(struct cutting *cutting)
{
    const struct graph *graph = cutting->graph;
    for (int n = 0; n < graph->node_count; n++)
        if (cutting->users.used[n])
            time_node(cutting, n);
    for (int n = graph->node_count - 1; n >= 0; n--)
        cutting->need[n] = first_need(cutting, n);
    return cutting->why.status == CODA_OK;
}

bool find_moments(struct cutting *cutting)
{
    for (int n = 0; n < cutting->graph->node_count; n++)
        cutting->group[n] = -1;
    return group_products(cutting) && time_nodes(cutting);
}
