/* Values that a launch computes once, in double: parameters, sizes, and what follows from them. */
#include "cpu/cpu.h"

#include <math.h>

static double ref_sigmoid(double a)
{
    return 1 / (1 + exp(-a));
}

static double ref_gelu(double a)
{
    return 0.5 * a * erfc(-a * 0.70710678118654752440);
}

static double ref_gelu_tanh(double a)
{
    return a * ref_sigmoid(1.59576912160573071176 * (a + 0.044715 * a * a * a));
}

static double ref_max(double a, double b)
{
    return isnan(a) || a > b ? a : b;
}

static double ref_min(double a, double b)
{
    return isnan(a) || a < b ? a : b;
}

static double elementwise(enum op op, double a, double b, double c)
{
    switch (op) {
#define PRIMITIVE(op, name, arity, meaning, cuda, da, db, dc, cost)                                                    \
    case OP_##op:                                                                                                      \
        return meaning;
#include "ir/primitives.def"
#undef PRIMITIVE
    default:
        return a;
    }
}

static double rounded(const struct instruction_set *isa, coda_dtype dtype, double x)
{
    float row[ROOM] = {(float)x};
    struct rows r = {.rows = 1, .width = 1, .out = row, .in = {row}};
    isa->round[dtype](&r);
    return row[0];
}

/* A scalar operand, or a vector reduced whole. */
static double operand_value(const struct instruction_set *isa, const coda_tensor *t, const struct node *node)
{
    float x[256 + ROOM];
    double sum = 0, top = node->op == OP_ABSMAX ? 0 : -INFINITY;
    int64_t size = (int64_t)coda_dtype_size(t->dtype), count = t->rank == 0 ? 1 : t->shape[0];
    for (int64_t i = 0; i < count; i += 256) {
        int piece = (int)(count - i < 256 ? count - i : 256);
        isa->load[t->dtype](x, (const char *)t->data + i * size, piece);
        for (int j = 0; j < piece; j++) {
            double y = node->op == OP_ABSMAX ? fabs((double)x[j]) : (double)x[j], above = ref_max(top, y);
            if (node->op == OP_LOGSUMEXP)
                sum = isfinite(above) ? sum * exp(top - above) + exp(y - above) : 0;
            else
                sum += y;
            top = above;
        }
    }
    if (node->op == OP_LOGSUMEXP)
        return isfinite(top) ? top + log(sum) : top;
    return node->op == OP_SUM || node->op == OP_IN ? sum : top;
}

static double node_value(const struct cpu_kernel *k, const struct launch *launch, int n)
{
    const struct graph *graph = k->plan.graph;
    const struct node *node = &graph->node[n];
    const double *value = k->uniform_value;
    switch (node->op) {
    case OP_NUMBER:
        return node->number;
    case OP_PARAM:
        return launch->parameter[node->index];
    case OP_SIZE:
        return (double)launch->size[node->axis];
    case OP_IN:
        return operand_value(k->plan.isa, &launch->operand[node->index], node);
    case OP_BROADCAST:
        return value[node->input[0]];
    case OP_CAST:
        return rounded(k->plan.isa, node->dtype, value[node->input[0]]);
    default:
        break;
    }
    if (op_is_reduction(node->op))
        return operand_value(k->plan.isa, &launch->operand[graph->node[node->input[0]].index], node);
    double a = value[node->input[0]];
    double b = node->input_count > 1 ? value[node->input[1]] : 0;
    double c = node->input_count > 2 ? value[node->input[2]] : 0;
    return elementwise(node->op, a, b, c);
}

void cpu_evaluate_uniforms(struct cpu_kernel *k, const struct launch *launch)
{
    for (int n = 0; n < k->plan.graph->node_count; n++) {
        if (!k->plan.form->used[n] || k->plan.form->space[n] != SPACE_UNIFORM)
            continue;
        k->uniform_value[n] = node_value(k, launch, n);
        if (k->plan.uniform_slot[n] >= 0)
            k->uniforms[k->plan.uniform_slot[n] * SLOT] = (float)k->uniform_value[n];
    }
}
