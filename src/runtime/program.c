/* Questions about a program. */
#include "lang/lang.h"
#include "runtime/device.h"
#include "runtime/sizes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *coda_program_name(const coda_program *program)
{
    return program->graph->name;
}

int coda_program_is_block(const coda_program *program)
{
    return program->graph->is_block;
}

int coda_program_condition(const coda_program *program)
{
    return program->graph->conditional ? program->graph->condition : -1;
}

char *coda_program_text(const coda_program *program)
{
    return print_graph(program->graph);
}

void coda_free(void *pointer)
{
    free(pointer);
}

int coda_program_operand_count(const coda_program *program)
{
    return program->graph->operand_count;
}

coda_status coda_program_operand(const coda_program *program, int index, coda_operand *operand)
{
    const struct graph *graph = program->graph;
    if (index < 0 || index >= graph->operand_count)
        return CODA_INVALID;
    const struct operand *o = &graph->operand[index];
    *operand = (coda_operand){.name = o->name, .role = o->role, .dtype = o->dtype, .rank = o->shape.rank};
    for (int i = 0; i < o->shape.rank; i++)
        dim_print(graph, &o->shape.dim[i], operand->dim[i], sizeof operand->dim[i]);
    return CODA_OK;
}

int coda_program_axis_count(const coda_program *program)
{
    return program->graph->axis_count;
}

coda_status coda_program_axis(const coda_program *program, int index, coda_axis *axis)
{
    const struct graph *graph = program->graph;
    if (index < 0 || index >= graph->axis_count)
        return CODA_INVALID;
    *axis = (coda_axis){.name = graph->axis[index].name,
                        .derived = graph->axis[index].term_count > 0,
                        .fixed = axis_is_fixed(graph, index)};
    return CODA_OK;
}

int coda_program_parameter_count(const coda_program *program)
{
    return program->graph->parameter_count;
}

const char *coda_program_parameter(const coda_program *program, int index, double *default_value)
{
    const struct graph *graph = program->graph;
    if (index < 0 || index >= graph->parameter_count)
        return NULL;
    if (default_value)
        *default_value = graph->parameter[index].default_value;
    return graph->parameter[index].name;
}

coda_status coda_program_operand_shape(const coda_program *program, int index, const coda_dims *dims, int64_t shape[2],
                                       coda_error *error)
{
    const struct graph *graph = program->graph;
    int64_t sizes[MAX_AXES];
    if (index < 0 || index >= graph->operand_count)
        return fail(error, CODA_INVALID, "%s has %d operands; there is no operand %d", graph->name,
                    graph->operand_count, index);
    coda_status status = sizes_from_dims(graph, dims, sizes, error);
    if (status != CODA_OK)
        return status;
    const struct operand *operand = &graph->operand[index];
    int64_t found[2] = {0, 0};
    for (int i = 0; i < operand->shape.rank; i++) {
        found[i] = dim_size(&operand->shape.dim[i], sizes);
        if (found[i] <= 0) {
            char text[64];
            dim_print(graph, &operand->shape.dim[i], text, sizeof text);
            return fail(error, CODA_INVALID, "%s: the size of %s, which operand %s needs, is not given", graph->name,
                        text, operand->name);
        }
    }
    memcpy(shape, found, sizeof *shape * (size_t)operand->shape.rank);
    return CODA_OK;
}

static double elements(const struct shape *shape, const int64_t *sizes)
{
    double count = 1;
    for (int i = 0; i < shape->rank; i++)
        count *= (double)dim_size(&shape->dim[i], sizes);
    return count;
}

/* Rows x columns x inner size of one product, twice. */
static double product_flops(const struct graph *graph, const struct node *gemm, const int64_t *sizes)
{
    double flops = 0;
    for (int i = 0; i < gemm->input_count; i += 2) {
        const struct shape *left = &graph->node[gemm->input[i]].shape;
        flops += 2 * elements(&gemm->shape, sizes) * (double)dim_size(&left->dim[1], sizes);
    }
    return flops;
}

static bool is_leaf(enum op op)
{
    return op <= OP_STACK;
}

coda_status coda_program_cost(const coda_program *program, const coda_dims *dims, coda_cost *cost, coda_error *error)
{
    const struct graph *graph = program->graph;
    int64_t sizes[MAX_AXES];
    coda_cost sum = {0};
    coda_status status = sizes_from_dims(graph, dims, sizes, error);
    if (status != CODA_OK)
        return status;
    for (int i = 0; i < graph->operand_count; i++) {
        int64_t shape[2] = {1, 1};
        status = coda_program_operand_shape(program, i, dims, shape, error);
        if (status != CODA_OK)
            return status;
        double columns = graph->operand[i].role == CODA_PATCH ? 1 : (double)shape[1];
        double bytes = (double)shape[0] * columns * (double)coda_dtype_size(graph->operand[i].dtype);
        sum.bytes += graph->operand[i].role == CODA_ACCUMULATE ? 2 * bytes : bytes;
        if (graph->operand[i].role == CODA_ACCUMULATE) { /* an addition of its own: reads the value, reads and writes */
            sum.unfused_bytes += 2 * bytes + 2 * (double)shape[0] * (double)shape[1];
            sum.unfused_kernels++;
        } else if (graph->operand[i].role == CODA_OUT && coda_dtype_size(graph->operand[i].dtype) > 2)
            sum.unfused_bytes += bytes / 2; /* stored wider than the 2 bytes that every value counts */
    }
    bool *used = calloc((size_t)graph->node_count + 1, sizeof *used);
    if (!used)
        return fail_memory(error, "a mark a node", (size_t)graph->node_count);
    graph_mark_used(graph, used);
    for (int i = 0; i < graph->node_count; i++) {
        const struct node *node = &graph->node[i];
        if (!used[i] || is_leaf(node->op) || node->shape.rank == 0)
            continue;
        if (node->op == OP_GEMM)
            sum.flops += product_flops(graph, node, sizes);
        else
            sum.elementwise_flops +=
                (op_is_elementwise(node->op) ? op_cost(node->op) : 1) * elements(&node->shape, sizes);
        sum.unfused_kernels++;
        sum.unfused_bytes += 2 * elements(&node->shape, sizes);
        for (int j = 0; j < node->input_count; j++) {
            const struct node *input = &graph->node[node->input[j]];
            sum.unfused_bytes += (input->op == OP_IN ? (double)coda_dtype_size(input->dtype) : 2) *
                                 (input->shape.rank ? elements(&input->shape, sizes) : 0);
        }
    }
    free(used);
    *cost = sum;
    return CODA_OK;
}

static void count_operands(const struct graph *graph, coda_primitives *count)
{
    for (int i = 0; i < graph->operand_count; i++) {
        if (graph->operand[i].shape.rank == 2)
            count->tiles++;
        else
            count->vectors++;
    }
}

void coda_program_primitives(const coda_program *program, coda_primitives *primitives)
{
    const struct graph *graph = program->graph;
    coda_primitives count = {0};
    bool *used = calloc((size_t)graph->node_count + 1, sizeof *used);
    if (used)
        graph_mark_used(graph, used);
    for (int i = 0; used && i < graph->node_count; i++) {
        const struct node *node = &graph->node[i];
        if (!used[i])
            continue;
        if (node->op == OP_GEMM) {
            count.accumulators++;
            count.gemms += node->input_count / 2;
        } else if (op_is_elementwise(node->op) || node->op == OP_CAST) {
            count.elementwise += node->shape.rank > 0;
        } else if (node->op >= OP_EVEN && node->op <= OP_ROPE) {
            count.pairwise++;
        } else if (node->op == OP_LOGSUMEXP || node->op >= OP_PICK) {
            count.stateful++;
        } else if (op_is_reduction(node->op)) {
            count.reductions++;
        }
    }
    free(used);
    count_operands(graph, &count);
    *primitives = count;
}
