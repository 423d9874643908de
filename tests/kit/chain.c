#include "chain.h"
#include "random.h"
#include "ref/ref.h"
#include "rewrite/builder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- joining */

enum { MAX_STORED = 4096 };

struct joining {
    struct builder b;
    const struct graph *wanted;
    int stored_count;
    struct {
        const char *name;
        int node;
    } stored[MAX_STORED];
};

static int find_stored(const struct joining *j, const char *name)
{
    for (int i = j->stored_count - 1; i >= 0; i--)
        if (strcmp(j->stored[i].name, name) == 0)
            return j->stored[i].node;
    return -1;
}

static int axis_in(struct joining *j, const struct graph *from, int axis)
{
    if (axis < 0)
        return -1;
    int known = graph_find_axis(j->b.graph, from->axis[axis].name);
    int made = graph_add_axis(j->b.graph, from->axis[axis].name, &j->b.why);
    for (int k = 0; made >= 0 && known < 0 && k < from->axis[axis].term_count; k++) {
        int term = axis_in(j, from, from->axis[axis].term[k].axis);
        j->b.graph->axis[made].term[k].axis = term;
        j->b.graph->axis[made].term[k].factor = from->axis[axis].term[k].factor;
        j->b.graph->axis[made].term_count = k + 1;
    }
    return made;
}

static void move_dim(struct joining *j, const struct graph *from, struct dim *dim)
{
    dim->axis = axis_in(j, from, dim->axis);
    dim->run.axis = axis_in(j, from, dim->run.axis);
}

/* The graph with the axes of the joined one. */
static struct graph *with_axes(struct joining *j, const struct graph *program)
{
    struct graph *moved = graph_copy(program);
    for (int n = 0; moved && n < moved->node_count; n++) {
        struct node *node = &moved->node[n];
        for (int d = 0; d < node->shape.rank; d++)
            move_dim(j, program, &node->shape.dim[d]);
        move_dim(j, program, &node->rope_cols);
        node->axis = axis_in(j, program, node->axis);
        node->run.axis = axis_in(j, program, node->run.axis);
    }
    return moved;
}

static int join_node(struct joining *j, const struct graph *program, int n, const int *made)
{
    const struct node *node = &program->node[n];
    int input[MAX_INPUTS];
    for (int k = 0; k < node->input_count; k++)
        input[k] = made[node->input[k]];
    if (node->op == OP_IN) {
        int stored = find_stored(j, program->operand[node->index].name);
        return stored >= 0 ? stored : build_in(&j->b, program->operand[node->index].name, node->dtype, &node->shape);
    }
    if (op_is_reduction(node->op) && is_whole_run(node->run))
        return graph_reduce(j->b.graph, node->op, input[0], node->axis, node->run, &j->b.why);
    return build_like(&j->b, program, n, input);
}

static bool is_wanted(const struct joining *j, const char *name)
{
    int o = j->wanted ? graph_find_operand(j->wanted, name) : 0;
    return !j->wanted || (o >= 0 && j->wanted->operand[o].role != CODA_IN);
}

/* The matrix as it was, but for the value of each row at its column. */
static int patched(struct joining *j, const struct graph *program, int o, const int *made)
{
    const struct operand *out = &program->operand[o];
    int ids = made[program->operand[out->ids].node], old = find_stored(j, out->name);
    int here = graph_onehot(j->b.graph, ids, axis_in(j, program, out->shape.dim[1].axis), &j->b.why);
    return here < 0 || old < 0 ? -1 : build_where(&j->b, here, made[out->node], old);
}

static void join_program(struct joining *j, const struct graph *program)
{
    struct graph *moved = with_axes(j, program);
    int *made = calloc((size_t)program->node_count + 1, sizeof *made);
    for (int n = 0; moved && made && n < moved->node_count && !builder_failed(&j->b); n++)
        made[n] = join_node(j, moved, n, made);
    for (int o = 0; moved && made && o < program->operand_count && !builder_failed(&j->b); o++) {
        const struct operand *out = &program->operand[o];
        if (out->role == CODA_IN)
            continue;
        if (program->conditional && find_stored(j, out->name) >= 0)
            continue; /* what is there is as good: random operands meet no condition */
        if (out->role == CODA_PATCH) {
            made[out->node] = patched(j, program, o, made);
            if (made[out->node] < 0)
                break;
        }
        if (is_wanted(j, out->name))
            build_out(&j->b, out->name, CODA_OUT, CODA_F32, made[out->node]);
        j->stored[j->stored_count].name = out->name;
        j->stored[j->stored_count++].node = made[out->node];
    }
    graph_free(moved);
    free(made);
}

struct graph *chain_join(const struct graph *const *program, int count, const struct graph *wanted,
                         struct complaint *why)
{
    struct graph empty;
    memset(&empty, 0, sizeof empty);
    empty.name = (char[]){"joined"};
    struct joining *j = calloc(1, sizeof *j);
    if (j)
        j->wanted = wanted;
    if (j && builder_open(&j->b, &empty, "joined", true))
        for (int i = 0; i < count && !builder_failed(&j->b); i++)
            join_program(j, program[i]);
    if (!j)
        return NULL;
    *why = j->b.why;
    struct graph *graph = builder_close(&j->b);
    free(j);
    return graph;
}

/* ---- numbers */

static int64_t id_limit(const struct chain *chain, int operand)
{
    const struct graph *graph = chain->graph;
    int64_t limit = 4;
    for (int n = 0; n < graph->node_count; n++) {
        const struct node *node = &graph->node[n];
        for (int k = 0; k < node->input_count; k++) {
            if (node->input[k] != graph->operand[operand].node)
                continue;
            const struct shape *first = &graph->node[node->input[0]].shape;
            int64_t bound = limit;
            if (node->op == OP_ROPE)
                bound = dim_size(&graph->node[node->input[1]].shape.dim[0], chain->size);
            else if (node->op == OP_GATHER)
                bound = dim_size(&first->dim[0], chain->size);
            limit = bound < limit ? bound : limit;
        }
    }
    return limit;
}

static void fill(struct chain *chain, int o, struct random *random)
{
    const struct operand *operand = &chain->graph->operand[o];
    struct chain_operand *numbers = &chain->operand[o];
    bool positive = operand->shape.rank < 2;
    for (int d = 0; d < operand->shape.rank; d++)
        positive = positive || operand->shape.dim[d].form == DIM_RUNS;
    for (int64_t i = 0; i < numbers->count; i++) {
        double x =
            (double)(1 + 2 * random_below(random, 2048)) / 4096; /* exact in f32, as are steps of 2^-10; never 1/2 */
        numbers->value[i] = positive ? 0.25 + x : 2 * x - 1;
        if (operand->dtype == CODA_I32)
            numbers->value[i] = (double)random_below(random, id_limit(chain, o));
    }
}

static bool is_table(const struct graph *graph, int operand)
{
    for (int n = 0; n < graph->node_count; n++)
        if (graph->node[n].op == OP_ROPE && graph->node[n].input[1] == graph->operand[operand].node)
            return true;
    return false;
}

/* Rows of cosines, then sines: what a rotation is orthogonal with. */
static void fill_table(struct chain_operand *table, struct random *random)
{
    int64_t half = table->columns / 2;
    for (int64_t i = 0; i < table->rows; i++)
        for (int64_t j = 0; j < half; j++) {
            double angle = 6 * random_uniform(random);
            table->value[i * table->columns + j] = cos(angle);
            table->value[i * table->columns + half + j] = sin(angle);
        }
}

bool chain_open(struct chain *chain, const struct graph *graph, const int64_t *size, uint64_t seed)
{
    struct random random = {seed};
    struct complaint why = {0};
    memset(chain, 0, sizeof *chain);
    chain->graph = graph;
    memcpy(chain->size, size, sizeof chain->size);
    if (sizes_complete(graph, chain->size, &why) != CODA_OK)
        return false;
    for (int o = 0; o < graph->operand_count; o++) {
        const struct shape *shape = &graph->operand[o].shape;
        struct chain_operand *numbers = &chain->operand[o];
        numbers->rows = shape->rank == 2 ? dim_size(&shape->dim[0], chain->size) : 1;
        numbers->columns = shape->rank > 0 ? dim_size(&shape->dim[shape->rank - 1], chain->size) : 1;
        numbers->count = numbers->rows * numbers->columns;
        numbers->value = numbers->count > 0 ? calloc((size_t)numbers->count, sizeof(double)) : NULL;
        if (!numbers->value) {
            chain_close(chain);
            return false;
        }
        if (is_table(graph, o))
            fill_table(numbers, &random);
        else if (graph->operand[o].role == CODA_IN)
            fill(chain, o, &random);
    }
    return true;
}

void chain_close(struct chain *chain)
{
    for (int o = 0; o < MAX_GRAPH_OPERANDS; o++)
        free(chain->operand[o].value);
    memset(chain, 0, sizeof *chain);
}

bool chain_run(struct chain *chain, char *message, size_t size)
{
    const struct graph *graph = chain->graph;
    coda_tensor tensor[MAX_GRAPH_OPERANDS] = {0};
    double *out[MAX_GRAPH_OPERANDS] = {0}, parameter[MAX_OPERANDS];
    void *memory[MAX_GRAPH_OPERANDS] = {0};
    coda_error error = {0};
    coda_status status = CODA_OK;
    for (int o = 0; o < graph->operand_count && status == CODA_OK; o++) {
        const struct operand *operand = &graph->operand[o];
        struct chain_operand *numbers = &chain->operand[o];
        memory[o] = malloc((size_t)numbers->count * 4);
        status = memory[o] ? CODA_OK : CODA_MEMORY;
        coda_dtype dtype = operand->dtype == CODA_I32 ? CODA_I32 : CODA_F32;
        for (int64_t i = 0; memory[o] && i < numbers->count; i++) {
            if (dtype == CODA_I32)
                ((int32_t *)memory[o])[i] = (int32_t)numbers->value[i];
            else
                ((float *)memory[o])[i] = (float)numbers->value[i];
        }
        tensor[o] =
            (coda_tensor){memory[o], dtype, operand->shape.rank, {numbers->rows, numbers->columns}, numbers->columns};
        if (operand->role != CODA_IN)
            out[o] = numbers->value;
    }
    for (int p = 0; p < graph->parameter_count; p++)
        parameter[p] = graph->parameter[p].default_value;
    struct launch launch = {.size = chain->size, .operand = tensor, .parameter = parameter};
    if (status == CODA_OK)
        status = ref_evaluate(graph, &launch, out, &error);
    for (int o = 0; o < graph->operand_count; o++)
        free(memory[o]);
    snprintf(message, size, "%.300s", error.message);
    return status == CODA_OK;
}
