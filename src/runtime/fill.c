/* Random operands that a program's mathematics accepts: for checks, benchmarks and tests. */
#include "runtime/device.h"
#include "runtime/sizes.h"
#include "runtime/threads.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What the uses of an operand ask of its values. */
struct content {
    bool positive;    /* a root, a logarithm or a division reads it */
    bool logsumexp;   /* it holds log-sum-exps of runs */
    bool rotations;   /* cosines and sines */
    bool ids, inside; /* indices; all of them must be inside their axis */
    int64_t id_bound;
    int64_t inner; /* right factor of a product over so many elements */
};

struct inference {
    const struct graph *graph;
    const int64_t *sizes;
    struct content *content; /* one an operand */
    bool *visited;           /* one a node: its value must be positive */
};

static void need_positive(struct inference *inference, int node);

static int flatten_product(const struct graph *graph, int node, int *factor, int count, int room)
{
    const struct node *n = &graph->node[node];
    if (n->op != OP_MUL || count + 2 > room) {
        factor[count] = node;
        return count + 1;
    }
    count = flatten_product(graph, n->input[0], factor, count, room - 1);
    return flatten_product(graph, n->input[1], factor, count, room);
}

/* x * x is positive whatever x is, so only factors without a partner matter. */
static void need_positive_factors(struct inference *inference, int node)
{
    int factor[16];
    int count = flatten_product(inference->graph, node, factor, 0, 16);
    for (int i = 0; i < count; i++) {
        int partner = i + 1;
        while (partner < count && factor[partner] != factor[i])
            partner++;
        if (factor[i] < 0)
            continue;
        if (partner < count)
            factor[partner] = -1;
        else
            need_positive(inference, factor[i]);
    }
}

static void need_positive(struct inference *inference, int node)
{
    const struct node *n = &inference->graph->node[node];
    if (inference->visited[node])
        return;
    inference->visited[node] = true;
    switch (n->op) {
    case OP_IN:
        inference->content[n->index].positive = true;
        return;
    case OP_MUL:
        need_positive_factors(inference, node);
        return;
    case OP_ADD:
    case OP_DIV:
    case OP_MIN:
    case OP_MAX:
        need_positive(inference, n->input[0]);
        need_positive(inference, n->input[1]);
        return;
    case OP_WHERE:
        need_positive(inference, n->input[1]);
        need_positive(inference, n->input[2]);
        return;
    case OP_SUM:
    case OP_REDUCE_MAX:
    case OP_CAST:
    case OP_BROADCAST:
    case OP_REPEAT:
        need_positive(inference, n->input[0]);
        return;
    default:
        return;
    }
}

static struct content *content_of(struct inference *inference, int node)
{
    const struct node *n = &inference->graph->node[node];
    return n->op == OP_IN ? &inference->content[n->index] : NULL;
}

static void mark_ids(struct inference *inference, int node, int64_t bound, bool inside)
{
    struct content *content = content_of(inference, node);
    if (!content)
        return;
    if (!content->ids || bound < content->id_bound)
        content->id_bound = bound;
    content->ids = true;
    content->inside |= inside;
}

/* Right factors shrink by the root of the inner size, so that products stay near 1. */
static void mark_weight(struct inference *inference, int node, int64_t inner)
{
    const struct node *n = &inference->graph->node[node];
    struct content *content = content_of(inference, node);
    if (content)
        content->inner = inner;
    if (n->op == OP_TRANSPOSE || n->op == OP_STACK)
        for (int i = 0; i < n->input_count; i++)
            mark_weight(inference, n->input[i], inner);
}

static void infer_node(struct inference *inference, const struct node *n)
{
    const struct node *nodes = inference->graph->node;
    const int64_t *sizes = inference->sizes;
    struct content *content;
    switch (n->op) {
    case OP_GEMM:
        for (int i = 0; i + 1 < n->input_count; i += 2)
            mark_weight(inference, n->input[i + 1], dim_size(&nodes[n->input[i]].shape.dim[1], sizes));
        break;
    case OP_RSQRT:
    case OP_SQRT:
    case OP_LOG:
        need_positive(inference, n->input[0]);
        break;
    case OP_DIV:
        need_positive(inference, n->input[1]);
        break;
    case OP_LOGSUMEXP:
        if ((content = content_of(inference, n->input[0])))
            content->logsumexp = true;
        break;
    case OP_GATHER:
        mark_ids(inference, n->input[1], dim_size(&nodes[n->input[0]].shape.dim[0], sizes), true);
        break;
    case OP_PICK:
        mark_ids(inference, n->input[1], dim_size(&nodes[n->input[0]].shape.dim[1], sizes), false);
        break;
    case OP_ONEHOT:
        mark_ids(inference, n->input[0], sizes[n->axis], false);
        break;
    case OP_ROPE:
        if ((content = content_of(inference, n->input[1])))
            content->rotations = true;
        mark_ids(inference, n->input[2], dim_size(&nodes[n->input[1]].shape.dim[0], sizes), true);
        break;
    default:
        break;
    }
}

static coda_status infer(const struct graph *graph, const int64_t *sizes, struct content *content, coda_error *error)
{
    struct inference inference = {graph, sizes, content, calloc((size_t)graph->node_count + 1, sizeof(bool))};
    if (!inference.visited)
        return fail_memory(error, "marks of nodes", (size_t)graph->node_count);
    memset(content, 0, MAX_OPERANDS * sizeof *content);
    for (int i = 0; i < graph->node_count; i++)
        infer_node(&inference, &graph->node[i]);
    for (int i = 0; i < graph->operand_count; i++)
        if (graph->operand[i].role == CODA_PATCH)
            mark_ids(&inference, graph->operand[graph->operand[i].ids].node,
                     dim_size(&graph->operand[i].shape.dim[1], sizes), false);
    free(inference.visited);
    return CODA_OK;
}

static const uint64_t STEP = 0x9E3779B97F4A7C15u;

/* splitmix64 */
static double uniform(uint64_t *state)
{
    uint64_t z = *state += STEP;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static double normal(uint64_t *state)
{
    double radius = sqrt(-2 * log(1 - uniform(state)));
    return radius * cos(6.283185307179586 * uniform(state));
}

static int32_t random_id(const struct content *content, uint64_t *state)
{
    if (!content->ids)
        return (int32_t)(uniform(state) * 10);
    bool outside = uniform(state) < 0.125 && !content->inside;
    int64_t bound = content->id_bound < INT32_MAX ? content->id_bound : INT32_MAX;
    int32_t id = (int32_t)(uniform(state) * (double)bound);
    return outside ? -100 : id;
}

/* The true length of the run that element j stands for; 1 where elements are no runs. */
static double run_length(const struct dim *dim, const int64_t *sizes, int64_t j)
{
    if (dim->form != DIM_RUNS)
        return 1;
    int64_t run = extent_size(&dim->run, sizes), size = dim->axis < 0 ? dim->constant : sizes[dim->axis];
    int64_t left = size - j * run;
    return (double)(left < run ? left : run);
}

static float random_value(const struct content *content, const struct operand *operand, const int64_t *sizes, int64_t i,
                          int64_t columns, uint64_t *state)
{
    double length = operand->shape.rank == 2 ? run_length(&operand->shape.dim[1], sizes, i % columns) : 1;
    if (content->rotations) {
        /* Both halves of a row take the same angles. */
        int64_t j = i % columns, half = columns / 2;
        double angle = (double)(i / columns) * pow(10000, -(double)(half ? j % half : 0) / (double)(half ? half : 1));
        return (float)(j < half ? cos(angle) : sin(angle));
    }
    if (content->logsumexp)
        return (float)(log(length) + 0.5 + 0.1 * normal(state));
    if (content->positive)
        return (float)(length * (0.5 + uniform(state)));
    if (content->inner)
        return (float)(normal(state) / sqrt((double)content->inner));
    return (float)normal(state);
}

/* How often an element takes from the generator, whose state only counts: any part of an operand can be filled alone. */
static uint64_t draws(const struct content *content)
{
    return content->rotations ? 0 : content->positive && !content->logsumexp ? 1 : 2;
}

struct filling {
    const struct content *content;
    const struct operand *operand;
    const int64_t *sizes;
    int64_t count, columns;
    uint64_t seed;
    unsigned char *data;
};

enum { PART = 1 << 16 };

static void fill_part(void *context, int64_t part)
{
    const struct filling *f = context;
    size_t size = coda_dtype_size(f->operand->dtype);
    int64_t first = part * PART, end = first + PART < f->count ? first + PART : f->count;
    uint64_t state = f->seed + (uint64_t)first * draws(f->content) * STEP;
    for (int64_t i = first; i < end; i++) {
        float value = random_value(f->content, f->operand, f->sizes, i, f->columns, &state);
        coda_convert(f->data + (size_t)i * size, f->operand->dtype, &value, CODA_F32, 1);
    }
}

/* Large operands on all processors: the values do not depend on it. */
static void fill_values(struct filling *f)
{
    int64_t parts = (f->count + PART - 1) / PART;
    struct thread_pool *pool = parts >= 16 ? pool_create((int)sysconf(_SC_NPROCESSORS_ONLN)) : NULL;
    pool_run(pool, parts, fill_part, f);
    pool_free(pool);
}

static void fill(const struct content *content, const struct operand *operand, const int64_t *sizes, uint64_t seed,
                 void *data)
{
    int64_t rows = operand->shape.rank == 2 ? dim_size(&operand->shape.dim[0], sizes) : 1;
    int64_t columns = operand->shape.rank ? dim_size(&operand->shape.dim[operand->shape.rank - 1], sizes) : 1;
    if (operand->role == CODA_OUT) {
        memset(data, 0xFF, (size_t)(rows * columns) * coda_dtype_size(operand->dtype));
    } else if (operand->dtype == CODA_I32) {
        uint64_t state = seed;
        for (int64_t i = 0; i < rows * columns; i++) {
            int32_t id = random_id(content, &state);
            memcpy((unsigned char *)data + (size_t)i * sizeof id, &id, sizeof id);
        }
    } else {
        struct filling filling = {content, operand, sizes, rows * columns, columns, seed, data};
        fill_values(&filling);
    }
}

coda_status coda_program_fill(const coda_program *program, int index, const coda_dims *dims, uint64_t seed, void *data,
                              coda_error *error)
{
    int64_t sizes[MAX_AXES], shape[2];
    struct content content[MAX_OPERANDS];
    if (!program || !data)
        return fail(error, CODA_INVALID, "coda_program_fill needs a program and memory to fill");
    const struct graph *graph = program->graph;
    coda_status status = coda_program_operand_shape(program, index, dims, shape, error);
    if (status == CODA_OK)
        status = sizes_from_dims(graph, dims, sizes, error);
    if (status == CODA_OK)
        status = infer(graph, sizes, content, error);
    if (status == CODA_OK)
        fill(&content[index], &graph->operand[index], sizes, seed + (uint64_t)index * 0x9E3779B97F4A7C15u, data);
    return status;
}
