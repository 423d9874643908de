#include "postfix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STACK = 256, TOKEN = 128 };

struct postfix {
    struct graph *graph;
    int stack[STACK];
    int depth;
    struct complaint *why;
};

/* ---------------------------------------------------------------- types */

static bool read_extent(struct graph *graph, const char *text, struct extent *extent)
{
    char name[TOKEN];
    if ((text[0] >= '0' && text[0] <= '9') || text[0] == '-') {
        *extent = (struct extent){-1, atoll(text)};
        return true;
    }
    snprintf(name, sizeof name, "%s", text);
    char *slash = strchr(name, '/');
    if (slash)
        *slash = '\0';
    *extent = (struct extent){graph_add_axis(graph, name, NULL), slash ? atoll(slash + 1) : 1};
    return extent->axis >= 0;
}

static bool read_dim(struct graph *graph, const char *text, struct dim *dim)
{
    char name[TOKEN];
    *dim = (struct dim){DIM_WHOLE, -1, 0, {-1, 0}};
    if ((text[0] >= '0' && text[0] <= '9') || text[0] == '-') {
        dim->constant = atoll(text);
        return true;
    }
    snprintf(name, sizeof name, "%s", text);
    char *slash = strchr(name, '/');
    if (slash) {
        *slash++ = '\0';
        dim->form = DIM_RUNS;
        if (!read_extent(graph, slash, &dim->run))
            return false;
    }
    dim->axis = graph_add_axis(graph, name, NULL);
    return dim->axis >= 0;
}

/* "[M,N/128]" */
static bool read_shape(struct graph *graph, const char *text, struct shape *shape)
{
    char copy[TOKEN], *rest = NULL;
    memset(shape, 0, sizeof *shape);
    if (text[0] != '[')
        return text[0] == '\0';
    snprintf(copy, sizeof copy, "%s", text + 1);
    copy[strcspn(copy, "]")] = '\0';
    for (char *dim = strtok_r(copy, ",", &rest); dim; dim = strtok_r(NULL, ",", &rest)) {
        if (shape->rank < 2 && !read_dim(graph, dim, &shape->dim[shape->rank]))
            return false;
        shape->rank++;
    }
    return true;
}

static bool read_dtype(const char *text, coda_dtype *dtype)
{
    for (int i = CODA_F32; i <= CODA_I32; i++) {
        size_t length = strlen(coda_dtype_name((coda_dtype)i));
        if (strncmp(text, coda_dtype_name((coda_dtype)i), length) == 0 &&
            (text[length] == '[' || text[length] == '\0')) {
            *dtype = (coda_dtype)i;
            return true;
        }
    }
    return false;
}

static bool read_type(struct graph *graph, const char *text, coda_dtype *dtype, struct shape *shape)
{
    return read_dtype(text, dtype) && read_shape(graph, text + strcspn(text, "["), shape);
}

/* ---------------------------------------------------------------- statements */

/* Names before axes: an axis is added where it is first read. */
static bool derive_axis(struct graph *graph, char *text)
{
    char *equal = strchr(text, '='), *rest = NULL;
    if (!equal)
        return false;
    *equal = '\0';
    int index = graph_add_axis(graph, text, NULL);
    if (index < 0)
        return false;
    for (char *term = strtok_r(equal + 1, "+", &rest); term; term = strtok_r(NULL, "+", &rest)) {
        char *times = strchr(term, '*');
        bool number = term[0] >= '0' && term[0] <= '9';
        int axis = number && !times ? -1 : graph_add_axis(graph, times ? times + 1 : term, NULL);
        struct axis *derived = &graph->axis[index];
        derived->term[derived->term_count].axis = axis;
        derived->term[derived->term_count++].factor = number ? atoll(term) : 1;
    }
    return true;
}

int postfix_find(const struct graph *graph, const char *name)
{
    for (int i = 0; i < graph->operand_count; i++)
        if (graph->operand[i].role == CODA_IN && strcmp(graph->operand[i].name, name) == 0)
            return graph->operand[i].node;
    for (int i = 0; i < graph->parameter_count; i++)
        if (strcmp(graph->parameter[i].name, name) == 0)
            return graph->parameter[i].node;
    for (int i = 0; i < graph->node_count; i++)
        if (graph->node[i].name && strcmp(graph->node[i].name, name) == 0)
            return i;
    return -1;
}

static bool push(struct postfix *p, int node)
{
    if (node < 0 || p->depth == STACK)
        return false;
    p->stack[p->depth++] = node;
    return true;
}

/* Drops `count` values and pushes the node made of them. */
static bool replace(struct postfix *p, int count, int node)
{
    p->depth -= count;
    return push(p, node);
}

static bool declare(struct postfix *p, const char *name, const char *type)
{
    coda_dtype dtype = CODA_F32;
    struct shape shape;
    if (read_type(p->graph, type, &dtype, &shape))
        return graph_in(p->graph, name, dtype, &shape, p->why) >= 0;
    return graph_parameter(p->graph, name, atof(type), p->why) >= 0;
}

static bool store(struct postfix *p, char *name, const char *type)
{
    coda_dtype dtype = CODA_F32;
    struct shape shape;
    size_t length = strlen(name);
    coda_role role = length && name[length - 1] == '+' ? CODA_ACCUMULATE : CODA_OUT;
    if (role == CODA_ACCUMULATE)
        name[length - 1] = '\0';
    if (p->depth < 1 || !read_type(p->graph, type, &dtype, &shape))
        return false;
    return graph_out(p->graph, name, role, dtype, &shape, p->stack[--p->depth], p->why) == 0;
}

/* ---------------------------------------------------------------- operations */

static bool elementwise(struct postfix *p, const char *name, bool *known)
{
    for (int i = OP_GEMM + 1; i < OP_CAST; i++) {
        int arity = op_arity((enum op)i);
        if (strcmp(op_name((enum op)i), name) != 0)
            continue;
        *known = true;
        return p->depth >= arity &&
               replace(p, arity, graph_elementwise(p->graph, (enum op)i, &p->stack[p->depth - arity], arity, p->why));
    }
    return false;
}

static bool reduction(struct postfix *p, enum op op, char *argument)
{
    struct extent run = {-1, 0};
    int axis = -1;
    if (argument) {
        char *length = strchr(argument, ':');
        if (length) {
            *length++ = '\0';
            if (!read_extent(p->graph, length, &run))
                return false;
        }
        axis = graph_add_axis(p->graph, argument, NULL);
    }
    return replace(p, 1, graph_reduce(p->graph, op, p->stack[p->depth - 1], axis, run, p->why));
}

static bool rotation(struct postfix *p, const char *name, const char *argument)
{
    const int *input = &p->stack[p->depth - 3];
    struct dim cols;
    if (argument && !read_dim(p->graph, argument, &cols))
        return false;
    return replace(p, 3,
                   graph_rope(p->graph, input[0], input[1], input[2], strstr(name, "pairs") != NULL,
                              strstr(name, "inverse") != NULL, argument ? &cols : NULL, p->why));
}

/* Operations with their number of inputs; arguments follow a colon. */
static bool operation(struct postfix *p, const char *name, char *argument)
{
    static const char *const reductions[] = {"sum", "rmax", "absmax", "logsumexp"};
    struct graph *g = p->graph;
    const int *top = &p->stack[p->depth];
    struct shape shape;
    struct extent h = {-1, 0};
    coda_dtype dtype;
    for (int i = 0; i < 4; i++)
        if (strcmp(name, reductions[i]) == 0)
            return p->depth >= 1 && reduction(p, (enum op)(OP_SUM + i), argument);
    if (strcmp(name, "index") == 0)
        return push(p, graph_index(g, graph_add_axis(g, argument, NULL), p->why));
    if (p->depth < 1)
        return false;
    if (strcmp(name, ".T") == 0)
        return replace(p, 1, graph_transpose(g, top[-1], p->why));
    if (strcmp(name, "even") == 0 || strcmp(name, "odd") == 0)
        return replace(p, 1, graph_pair(g, name[0] == 'e' ? OP_EVEN : OP_ODD, top[-1], p->why));
    if (strcmp(name, "first") == 0 || strcmp(name, "second") == 0)
        return read_extent(g, argument, &h) &&
               replace(p, 1, graph_half(g, name[0] == 'f' ? OP_FIRST : OP_SECOND, top[-1], h, p->why));
    if (strcmp(name, "onehot") == 0)
        return replace(p, 1, graph_onehot(g, top[-1], graph_add_axis(g, argument, NULL), p->why));
    if (strcmp(name, "repeat") == 0)
        return replace(p, 1, graph_repeat(g, top[-1], graph_add_axis(g, argument, NULL), p->why));
    if (strcmp(name, "broadcast") == 0)
        return read_shape(g, argument, &shape) && replace(p, 1, graph_broadcast(g, top[-1], &shape, p->why));
    if (strcmp(name, "cast") == 0)
        return read_dtype(argument, &dtype) && replace(p, 1, graph_cast(g, top[-1], dtype, p->why));
    if (strncmp(name, "stack", 5) == 0) {
        int count = atoi(name + 5);
        return p->depth >= count && replace(p, count, graph_stack(g, top - count, count, p->why));
    }
    if (p->depth < 2)
        return false;
    if (strcmp(name, "@") == 0)
        return replace(p, 2, graph_gemm(g, top[-2], top[-1], p->why));
    if (strcmp(name, "join") == 0)
        return replace(p, 2, graph_join(g, top[-2], top[-1], p->why));
    if (strcmp(name, "joinh") == 0)
        return read_extent(g, argument, &h) && replace(p, 2, graph_join_halves(g, top[-2], top[-1], h, p->why));
    if (strcmp(name, "pick") == 0)
        return replace(p, 2, graph_pick(g, top[-2], top[-1], p->why));
    if (strcmp(name, "gather") == 0)
        return replace(p, 2, graph_gather(g, top[-2], top[-1], p->why));
    return p->depth >= 3 && strncmp(name, "rope", 4) == 0 && rotation(p, name, argument);
}

static bool read_token(struct postfix *p, char *token)
{
    char *colon = strchr(token, ':'), *equal = strchr(token, '='), *end = NULL;
    coda_dtype dtype;
    bool known = false;
    if (strncmp(token, "axis:", 5) == 0)
        return derive_axis(p->graph, token + 5);
    bool done = elementwise(p, token, &known);
    if (known)
        return done;
    if (token[0] == '#')
        return push(p, graph_size(p->graph, graph_add_axis(p->graph, token + 1, NULL), p->why));
    if (token[0] == '>') {
        if (p->depth < 1)
            return false;
        struct node *node = &p->graph->node[p->stack[p->depth - 1]];
        free(node->name);
        node->name = strdup(token + 1);
        return node->name != NULL;
    }
    if (equal && equal != token) {
        *equal = '\0';
        return declare(p, token, equal + 1);
    }
    double number = strtod(token, &end);
    if (end != token && *end == '\0')
        return push(p, graph_number(p->graph, number, p->why));
    if (!colon && postfix_find(p->graph, token) >= 0)
        return push(p, postfix_find(p->graph, token));
    if (colon)
        *colon++ = '\0';
    if (colon && read_dtype(colon, &dtype) && strcmp(token, "cast") != 0)
        return store(p, token, colon);
    return operation(p, token, colon);
}

struct graph *postfix_graph(const char *text, int *top, struct complaint *why)
{
    struct postfix p = {.graph = graph_new("test", false), .why = why};
    char *copy = strdup(text), *rest = NULL;
    bool good = p.graph && copy;
    memset(why, 0, sizeof *why);
    for (char *token = good ? strtok_r(copy, " \n", &rest) : NULL; good && token;
         token = strtok_r(NULL, " \n", &rest)) {
        good = read_token(&p, token);
        if (!good && why->status == CODA_OK)
            snprintf(why->reason, sizeof why->reason, "the test's text is wrong at %.100s", token);
    }
    free(copy);
    if (top)
        *top = p.depth > 0 ? p.stack[p.depth - 1] : -1;
    if (good)
        return p.graph;
    graph_free(p.graph);
    return NULL;
}
