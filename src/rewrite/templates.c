#include "lang/lang.h"
#include "rewrite/adjoint.h"

#include <stdlib.h>

static const char *const adjoint_text[OP_COUNT][3] = {
#define PRIMITIVE(op, name, arity, meaning, cuda, da, db, dc, cost) [OP_##op] = {da, db, dc},
#include "ir/primitives.def"
#undef PRIMITIVE
};

static const char *const names[5] = {"a", "b", "c", "y", "d"};

/* The text as a graph whose first five nodes are a, b, c, y, d. */
static int parse_template(struct templates *templates, enum op op, int k, struct complaint *why)
{
    struct graph *graph = graph_new("adjoint", true);
    struct shape scalar = scalar_shape();
    int node[5];
    if (graph == NULL)
        return refuse(why, CODA_MEMORY, "", "no memory for the adjoint of `%s`", op_name(op));
    bool made = true;
    for (int i = 0; i < 5 && made; i++) {
        node[i] = graph_in(graph, names[i], CODA_F32, &scalar, why);
        made = node[i] >= 0;
    }
    int root = made ? parse_expression(graph, adjoint_text[op][k], names, node, 5, why) : -1;
    if (root < 0) {
        graph_free(graph);
        return -1;
    }
    templates->graph[op][k] = graph;
    templates->root[op][k] = root;
    return root;
}

int template_apply(struct templates *templates, struct builder *b, enum op op, int k, const int value[5], bool *absent)
{
    *absent = adjoint_text[op][k] == NULL || adjoint_text[op][k][0] == '\0';
    if (*absent || builder_failed(b))
        return -1;
    if (templates->graph[op][k] == NULL && parse_template(templates, op, k, &b->why) < 0)
        return -1;
    const struct graph *graph = templates->graph[op][k];
    int *made = malloc((size_t)graph->node_count * sizeof *made);
    if (made == NULL)
        return refuse(&b->why, CODA_MEMORY, "", "no memory for the adjoint of `%s`", op_name(op));
    for (int i = 0; i < 5; i++)
        made[i] = value[i];
    for (int i = 5; i < graph->node_count; i++) {
        int input[MAX_INPUTS];
        for (int j = 0; j < graph->node[i].input_count; j++)
            input[j] = made[graph->node[i].input[j]];
        made[i] = build_like(b, graph, i, input);
    }
    int result = made[templates->root[op][k]];
    free(made);
    return result;
}

void templates_free(struct templates *templates)
{
    for (int op = 0; op < OP_COUNT; op++)
        for (int k = 0; k < 3; k++)
            graph_free(templates->graph[op][k]);
}
