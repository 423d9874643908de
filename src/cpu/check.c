/* What only a launch can know to be wrong. */
#include "cpu/cpu.h"

static coda_status check_operand(const struct graph *graph, const struct node *node, const struct launch *launch,
                                 coda_error *error)
{
    const struct node *table = &graph->node[node->input[node->op == OP_GATHER ? 0 : 1]];
    const struct node *ids = &graph->node[node->input[node->input_count - 1]];
    const coda_tensor *t = &launch->operand[ids->index];
    const int64_t rows = launch->operand[table->index].shape[0];
    const int32_t *id = t->data;
    for (int64_t i = 0; i < t->shape[0]; i++)
        if (id[i] < 0 || id[i] >= rows)
            return fail(
                error, CODA_INVALID,
                "%s: %s: row %lld of `%s` is %d, but `%s` has %lld rows; give ids from 0 to %lld, or a larger `%s`",
                graph->name, op_name(node->op), (long long)i, graph->operand[ids->index].name, id[i],
                graph->operand[table->index].name, (long long)rows, (long long)rows - 1,
                graph->operand[table->index].name);
    return CODA_OK;
}

coda_status cpu_check_ids(const struct cpu_kernel *k, const struct launch *launch, coda_error *error)
{
    const struct graph *graph = k->plan.graph;
    coda_status status = CODA_OK;
    for (int n = 0; n < graph->node_count && status == CODA_OK; n++)
        if (k->plan.form->used[n] && (graph->node[n].op == OP_GATHER || graph->node[n].op == OP_ROPE))
            status = check_operand(graph, &graph->node[n], launch, error);
    return status;
}

coda_status cpu_check_picks(const struct cpu_kernel *k, const struct launch *launch, coda_error *error)
{
    const struct graph *graph = k->plan.graph;
    for (int i = 0; i < graph->operand_count; i++) {
        if (graph->operand[i].role == CODA_IN || graph->node[graph->operand[i].node].op != OP_PICK)
            continue;
        for (int j = 0; j < graph->operand_count; j++)
            if (graph->operand[j].role == CODA_IN && launch->operand[j].data == launch->operand[i].data)
                return fail(error, CODA_INVALID,
                            "%s: `%s` has the memory of `%s`, which other tiles still read when one writes it; give it "
                            "memory of its own",
                            graph->name, graph->operand[i].name, graph->operand[j].name);
    }
    return CODA_OK;
}
