/* What programs store for each other, and which program stores it. */
#include "rewrite/cut.h"
#include "rewrite/rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HOST_WALK = 512, NO_MEMORY = -2 };

coda_dtype matrix_dtype(const struct graph *graph)
{
    for (int products = 1; products >= 0; products--)
        for (int n = 0; n < graph->node_count; n++) {
            const struct node *x = &graph->node[n];
            if (products && x->op != OP_GEMM)
                continue;
            if (products)
                x = &graph->node[strip_operand(graph, x->input[1])];
            if (x->op == OP_STACK)
                x = &graph->node[x->input[0]];
            if (x->op == OP_IN && x->shape.rank == 2 &&
                (x->dtype == CODA_F32 || x->dtype == CODA_BF16 || x->dtype == CODA_F16))
                return x->dtype;
        }
    return CODA_BF16;
}

/* Matrices have the type of the others; vectors and runs are f32. */
coda_dtype shape_dtype(const struct shape *shape, coda_dtype matrix)
{
    bool runs = shape->rank < 2;
    for (int i = 0; i < shape->rank; i++)
        runs = runs || (shape->dim[i].form == DIM_RUNS && !is_pair_dim(&shape->dim[i]));
    return runs ? CODA_F32 : matrix;
}

coda_dtype stored_dtype(const struct cutting *cutting, int node)
{
    return shape_dtype(&cutting->graph->node[node].shape, cutting->matrix_dtype);
}

static bool lies_on(const struct piece *piece, const struct shape *shape)
{
    if (shape->rank == 2)
        return shape->dim[0].axis == piece->row_axis && shape->dim[1].axis == piece->column_axis;
    return shape->rank == 1 && (shape->dim[0].axis == piece->row_axis || shape->dim[0].axis == piece->column_axis);
}

/* When the value can be computed: a picked value is read later than it is known. */
static moment computed_at(const struct cutting *cutting, int n)
{
    const struct node *node = &cutting->graph->node[n];
    return node->op == OP_PICK ? cutting->time[node->input[0]] : cutting->time[n];
}

/* ---------------------------------------------------------------- the program that stores a value */

/* Counts, for each group of products, the operand as one that its epilogue reads: directly, or in a value of operands.
 */
static void score_operand(const struct cutting *cutting, int operand, int *stack, long *score)
{
    const struct graph *graph = cutting->graph;
    long weight = graph->node[operand].shape.rank == 2 ? 4 : 1;
    int top = 0, walked = 0;
    stack[top++] = operand;
    while (top > 0 && walked++ < HOST_WALK) {
        int n = stack[--top];
        for (int i = cutting->users.begin[n]; i < cutting->users.begin[n + 1]; i++) {
            int u = cutting->users.user[i].node;
            moment at = cutting->time[u];
            if (cutting->group[u] >= 0)
                continue;
            if (at >= 0 && at % PERIOD == 0)
                score[at / PERIOD] += weight;
            else if (at == BOUNDARY && top < HOST_WALK)
                stack[top++] = u;
        }
    }
}

/* Adds what each group of products shares with the computation of n: its matrix and vector operands. */
static bool score_hosts(const struct cutting *cutting, int root, long *score)
{
    const struct graph *graph = cutting->graph;
    int *stack = malloc(2 * (HOST_WALK + MAX_INPUTS) * sizeof *stack), top = 0, walked = 0;
    if (stack == NULL)
        return false;
    stack[top++] = root;
    while (top > 0 && walked++ < HOST_WALK) {
        int n = stack[--top];
        const struct node *node = &graph->node[n];
        if (node->op == OP_IN || cutting->time[n] > BOUNDARY)
            score_operand(cutting, n, stack + HOST_WALK + MAX_INPUTS, score);
        for (int k = 0; k < node->input_count && top < HOST_WALK && cutting->group[n] < 0; k++)
            stack[top++] = node->input[k];
    }
    free(stack);
    return true;
}

static int find_host(const struct cutting *cutting, int n, const struct shape *shape, moment from, moment last)
{
    long *score = calloc((size_t)cutting->piece_count + 1, sizeof *score), best = -1;
    int host = -1;
    if (score == NULL || !score_hosts(cutting, n, score)) {
        free(score);
        return NO_MEMORY;
    }
    for (int p = 0; p < cutting->piece_count; p++) {
        const struct piece *piece = &cutting->piece[p];
        bool pass = piece->gemm_count == 0;
        if (piece->key < from || piece->key > last || !lies_on(piece, shape) ||
            (!pass && score[p] == 0 && shape->rank == 2))
            continue;
        if (score[p] > best) {
            best = score[p];
            host = p;
        }
    }
    free(score);
    return host;
}

/* The operation on the way from n to what it waits for through which no scale moves; OP_COUNT: none. */
static enum op find_obstacle(const struct cutting *cutting, int n)
{
    const struct graph *graph = cutting->graph;
    for (;;) {
        const struct node *node = &graph->node[n];
        int next = -1;
        bool linear = (node->op >= OP_ADD && node->op <= OP_DIV) || node->op == OP_NEG || node->op == OP_BROADCAST;
        if (node->shape.rank < 2)
            return OP_COUNT;
        if (!linear)
            return node->op;
        for (int k = 0; k < node->input_count; k++)
            if (cutting->time[node->input[k]] == cutting->time[n] && graph->node[node->input[k]].shape.rank == 2)
                next = node->input[k];
        if (next < 0)
            return OP_COUNT;
        n = next;
    }
}

/* The reduction that n waits for: of those that are known with it, one over what a product gives. */
static int find_reduction(struct cutting *cutting, int n)
{
    const struct graph *graph = cutting->graph;
    int walk = ++cutting->walk, top = 0, found = -1;
    cutting->stack[top++] = n;
    while (top > 0) {
        int x = cutting->stack[--top];
        const struct node *node = &graph->node[x];
        if (is_whole_reduction_of_value(graph, x)) {
            bool better = found < 0 || cutting->time[node->input[0]] > cutting->time[graph->node[found].input[0]];
            found = better ? x : found;
            continue;
        }
        for (int k = 0; k < node->input_count; k++)
            if (cutting->time[node->input[k]] == cutting->time[n] && cutting->stamp[node->input[k]] != walk) {
                cutting->stamp[node->input[k]] = walk;
                cutting->stack[top++] = node->input[k];
            }
    }
    return found;
}

/* What people call n: its name, or that of the out that stores it; NULL: neither. */
static const char *known_name(const struct graph *graph, int n)
{
    const char *name = graph->node[n].name;
    for (int o = 0; o < graph->operand_count && name == NULL; o++)
        if (graph->operand[o].node == n && graph->operand[o].role != CODA_IN)
            name = graph->operand[o].name;
    return name;
}

/* Says which value needs which whole row, and why no rule helps. */
static int refuse_pass(struct cutting *cutting, int n)
{
    const struct graph *graph = cutting->graph;
    char value[100] = "", row[100] = "a value", sum[100] = "a reduction";
    int reduction = find_reduction(cutting, n);
    enum op obstacle = find_obstacle(cutting, n);
    print_expression(graph, n, value, sizeof value);
    if (reduction >= 0) {
        print_expression(graph, graph->node[reduction].input[0], row, sizeof row);
        print_expression(graph, reduction, sum, sizeof sum);
    }
    refuse(&cutting->why, CODA_UNSUPPORTED, "",
           "`%s` needs the whole row of `%s`: `%s` is known only when every tile of the row is done",
           known_name(graph, n) != NULL ? known_name(graph, n) : value, row, sum);
    const char *pass = "`--allow-passes` emits one more elementwise pass for it.";
    if (cutting->users.out_count[n] > 0)
        advise(&cutting->why, "It is stored by an `out`, so its scale cannot move behind a product. %s", pass);
    else if (obstacle != OP_COUNT)
        advise(&cutting->why, "No scale moves through `%s`, which stands between it and the next product. %s",
               op_name(obstacle), pass);
    else
        advise(&cutting->why, "Its terms have different scales of rows, so one product would become several. %s", pass);
    return -1;
}

/* The piece that computes n, a value of this shape known `from` then and needed at `last`; -1 with why set. */
static int host_of(struct cutting *cutting, int n, const struct shape *shape, moment from, moment last)
{
    int host = -1;
    if (from >= 0 && from % PERIOD == 0)
        return (int)(from / PERIOD);
    if (shape->rank == 0 || shape->dim[0].axis < 0)
        return refuse(&cutting->why, CODA_UNSUPPORTED, "Use it where it is computed.",
                      "no program stores a single number");
    host = find_host(cutting, n, shape, from, last);
    if (host == NO_MEMORY)
        return refuse(&cutting->why, CODA_MEMORY, "", "no memory to place a value");
    if (host >= 0)
        return host;
    bool extra = from >= 0 && shape->rank == 2; /* not one that runs before all products */
    if (extra && !cutting->allow_passes)
        return refuse_pass(cutting, n);
    if (!add_piece(cutting, from, false, shape->dim[0].axis, shape->rank == 2 ? shape->dim[1].axis : -1))
        return -1;
    if (extra) {
        report_rule(cutting->report, RULE_EXTRA_PASS, cutting->graph, n);
        report_figure(cutting->report, "costs a kernel, and at least a write and a read of %s", cutting->graph, n,
                      stored_dtype(cutting, n));
    }
    return cutting->piece_count - 1;
}

static bool add_root(struct cutting *cutting, int p, struct root root)
{
    struct piece *piece = &cutting->piece[p];
    if (piece->root_count == MAX_OPERANDS) {
        refuse(&cutting->why, CODA_UNSUPPORTED, "Split the block.", "one product stores more than %d values",
               MAX_OPERANDS);
        return false;
    }
    piece->root[piece->root_count++] = root;
    return true;
}

static bool name_store(struct cutting *cutting, int n, struct place *place, const char *stem)
{
    char made[STORED_NAME];
    if (cutting->graph->node[n].name != NULL) {
        name_of_store(&cutting->names, cutting->graph->node[n].name, made);
        stem = made;
    }
    if (names_make(&cutting->names, stem, place->name))
        return true;
    refuse(&cutting->why, CODA_MEMORY, "", "no memory for a name");
    return false;
}

bool place_value(struct cutting *cutting, int n, moment last)
{
    const struct graph *graph = cutting->graph;
    struct place *place = &cutting->value[n];
    if (graph->node[n].op == OP_IN || place->piece >= 0)
        return true;
    int host = host_of(cutting, n, &graph->node[n].shape, computed_at(cutting, n), last);
    if (host < 0)
        return false;
    place->piece = host;
    const char *stem = graph->node[n].shape.rank < 2 ? "R" : cutting->gradient[n] ? "dZ" : "H";
    return name_store(cutting, n, place, stem) && add_root(cutting, host, (struct root){n, false, -1});
}

/* Is the input of the whole reduction n one value a run already? Then that is what is stored. */
static bool reduces_runs(const struct graph *graph, int n)
{
    const struct shape *shape = &graph->node[graph->node[n].input[0]].shape;
    for (int i = 0; i < shape->rank; i++)
        if (shape->dim[i].axis == graph->node[n].axis)
            return shape->dim[i].form == DIM_RUNS;
    return false;
}

const struct place *runs_of(const struct cutting *cutting, int n)
{
    return reduces_runs(cutting->graph, n) ? &cutting->value[cutting->graph->node[n].input[0]] : &cutting->runs[n];
}

static bool place_runs(struct cutting *cutting, int n, moment last)
{
    const struct graph *graph = cutting->graph;
    int x = graph->node[n].input[0];
    if (reduces_runs(graph, n))
        return place_value(cutting, x, last);
    int host = host_of(cutting, x, &graph->node[x].shape, cutting->time[x], last);
    if (host < 0)
        return false;
    cutting->runs[n].piece = host;
    report_rule(cutting->report, RULE_SPLIT_SUM, graph, n);
    report_figure(cutting->report, "saves a kernel, and a read of %s", graph, x, stored_dtype(cutting, x));
    return name_store(cutting, n, &cutting->runs[n], cutting->runs_stem) &&
           add_root(cutting, host, (struct root){n, true, -1});
}

/* ---------------------------------------------------------------- what is stored in any case */

static bool place_operands(struct cutting *cutting, int n)
{
    const struct graph *graph = cutting->graph;
    const struct node *node = &graph->node[n];
    for (int k = 0; k < node->input_count; k++) {
        int x = strip_operand(graph, node->input[k]);
        const struct node *operand = &graph->node[x];
        for (int i = 0; operand->op == OP_STACK && i < operand->input_count; i++)
            if (!place_value(cutting, operand->input[i], cutting->need[operand->input[i]]))
                return false;
        if (operand->op != OP_STACK && !place_value(cutting, x, cutting->need[x]))
            return false;
    }
    return true;
}

/* Gives a value that is stored anyway the name of the out. False: there is none of the out's type. */
static bool adopt_root(struct cutting *cutting, int o)
{
    const struct operand *out = &cutting->graph->operand[o];
    struct place *place = &cutting->value[out->node];
    if (place->piece < 0 || out->role != CODA_OUT)
        return false;
    struct piece *piece = &cutting->piece[place->piece];
    for (int r = 0; r < piece->root_count; r++)
        if (piece->root[r].node == out->node && !piece->root[r].runs && piece->root[r].out < 0) {
            piece->root[r].out = o;
            snprintf(place->name, STORED_NAME, "%.200s", out->name);
            return true;
        }
    return false;
}

static bool place_out(struct cutting *cutting, int o)
{
    const struct graph *graph = cutting->graph;
    const struct operand *out = &graph->operand[o];
    struct place *place = &cutting->value[out->node];
    if (adopt_root(cutting, o))
        return true;
    int host = place->piece;
    if (host < 0)
        host = host_of(cutting, out->node, &graph->node[out->node].shape, computed_at(cutting, out->node),
                       cutting->need[out->node]);
    if (host < 0)
        return false;
    if (place->piece < 0 && out->role == CODA_OUT && graph->node[out->node].op != OP_IN) {
        place->piece = host;
        snprintf(place->name, STORED_NAME, "%.200s", out->name);
    }
    return add_root(cutting, host, (struct root){out->node, false, o});
}

bool place_stores(struct cutting *cutting)
{
    const struct graph *graph = cutting->graph;
    bool placed = true;
    for (int n = 0; n < graph->node_count && placed; n++) {
        if (!cutting->users.used[n] || !is_whole_reduction_of_value(graph, n))
            continue;
        placed = place_runs(cutting, n, cutting->need[n] - 1);
        if (placed && cutting->piece[runs_of(cutting, n)->piece].key >= cutting->time[n])
            placed = time_nodes(cutting);
    }
    for (int n = 0; n < graph->node_count && placed; n++) {
        if (cutting->users.used[n] && graph->node[n].op == OP_GEMM)
            placed = place_operands(cutting, n);
        if (cutting->users.used[n] && graph->node[n].op == OP_PICK)
            placed = placed && place_value(cutting, n, NEVER);
    }
    for (int o = 0; o < graph->operand_count && placed; o++)
        if (graph->operand[o].role != CODA_IN)
            placed = place_out(cutting, o);
    return placed;
}
