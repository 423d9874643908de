/* The reference: every primitive against values worked out by hand. */
#include "ref/formats.h"
#include "ref/ref.h"
#include "lang/lang.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROOM = 24 };

/* One unit whose single out is y. Values of the ins follow one another, in the order of the text. */
struct example {
    const char *name;
    const char *text;
    const char *dims;
    double in[64];
    double out[ROOM];
};

struct setup {
    struct unit unit;
    const struct graph *graph;
    int64_t size[MAX_AXES];
    double parameter[MAX_OPERANDS];
    coda_tensor operand[MAX_OPERANDS];
};

static void set_up(struct setup *s, const char *text, const char *dims)
{
    coda_error error = {0};
    struct complaint why = {0};
    char name[16];
    long long size;
    int used;
    memset(s, 0, sizeof *s);
    if (parse(text, strlen(text), NULL, &s->unit, &error) != CODA_OK)
        fail_msg("%s", error.message);
    s->graph = s->unit.graph[0];
    for (; sscanf(dims, " %15[A-Z]=%lld%n", name, &size, &used) == 2; dims += used) {
        int axis = graph_find_axis(s->graph, name);
        assert_true(axis >= 0);
        s->size[axis] = size;
    }
    if (sizes_complete(s->graph, s->size, &why) != CODA_OK || sizes_check(s->graph, s->size, &why) != CODA_OK)
        fail_msg("%s: %s", text, why.reason);
    for (int p = 0; p < s->graph->parameter_count; p++)
        s->parameter[p] = s->graph->parameter[p].default_value;
    for (int o = 0; o < s->graph->operand_count; o++) {
        const struct operand *operand = &s->graph->operand[o];
        coda_tensor *tensor = &s->operand[o];
        *tensor = (coda_tensor){.dtype = operand->dtype, .rank = operand->shape.rank, .shape = {1, 1}, .stride = 1};
        for (int d = 0; d < tensor->rank; d++)
            tensor->shape[d] = dim_size(&operand->shape.dim[d], s->size);
        if (tensor->rank == 2)
            tensor->stride = tensor->shape[1];
        tensor->data = calloc((size_t)(tensor->shape[0] * tensor->shape[1]), coda_dtype_size(tensor->dtype));
        assert_non_null(tensor->data);
    }
}

static void tear_down(struct setup *s)
{
    for (int o = 0; o < s->graph->operand_count; o++)
        free(s->operand[o].data);
    unit_free(&s->unit);
}

static int64_t element_count(const struct setup *s, int operand)
{
    return s->operand[operand].shape[0] * s->operand[operand].shape[1];
}

static int out_of(const struct setup *s)
{
    for (int o = 0; o < s->graph->operand_count; o++)
        if (s->graph->operand[o].role != CODA_IN)
            return o;
    return -1;
}

static void fill(struct setup *s, const double *values)
{
    for (int o = 0; o < s->graph->operand_count; o++)
        for (int64_t i = 0; i < element_count(s, o) && s->graph->operand[o].role != CODA_OUT; i++) {
            size_t width = coda_dtype_size(s->operand[o].dtype);
            store_element(s->operand[o].dtype, (char *)s->operand[o].data + (size_t)i * width, *values++);
        }
}

static coda_status evaluate_out(struct setup *s, double *out, coda_error *error)
{
    double *outs[MAX_OPERANDS] = {0};
    outs[out_of(s)] = out;
    struct launch launch = {.size = s->size, .operand = s->operand, .parameter = s->parameter};
    return ref_evaluate(s->graph, &launch, outs, error);
}

/* The same number, the same infinity, or both NaN; doubles of a few operations else. */
static bool agrees(double got, double expected)
{
    if (isnan(expected) || isinf(expected))
        return isnan(expected) ? (bool)isnan(got) : got == expected;
    return fabs(got - expected) <= 1e-14 * (1 + fabs(expected));
}

static void run_example(const struct example *example)
{
    struct setup s;
    coda_error error = {0};
    double out[ROOM];
    set_up(&s, example->text, example->dims);
    fill(&s, example->in);
    int64_t count = element_count(&s, out_of(&s));
    assert_true(count <= ROOM);
    if (evaluate_out(&s, out, &error) != CODA_OK)
        fail_msg("%s: %s", example->name, error.message);
    for (int64_t i = 0; i < count; i++)
        if (!agrees(out[i], example->out[i]))
            fail_msg("%s: element %lld is %.17g; expected %.17g", example->name, (long long)i, out[i], example->out[i]);
    tear_down(&s);
}

/* ---------------------------------------------------------------- primitives */

static const struct {
    enum op op;
    const char *expression;
    double a, b, c, y;
} scalars[] = {
    {OP_NEG, "-a", 2, 0, 0, -2},
    {OP_EXP, "exp(a)", 1, 0, 0, 2.718281828459045},
    {OP_EXP, "exp(a)", -INFINITY, 0, 0, 0},
    {OP_LOG, "log(a)", 10, 0, 0, 2.302585092994046},
    {OP_LOG, "log(a)", 0, 0, 0, -INFINITY},
    {OP_SQRT, "sqrt(a)", 2, 0, 0, 1.4142135623730951},
    {OP_SQRT, "sqrt(a)", -1, 0, 0, NAN},
    {OP_RSQRT, "rsqrt(a)", 16, 0, 0, 0.25},
    {OP_TANH, "tanh(a)", 0.5, 0, 0, 0.46211715726000976},
    {OP_SIGMOID, "sigmoid(a)", 1, 0, 0, 0.7310585786300049},
    {OP_SIGMOID, "sigmoid(a)", -1000, 0, 0, 0},
    {OP_SILU, "silu(a)", -1, 0, 0, -0.2689414213699951},
    {OP_SILU, "silu(a)", -1000, 0, 0, 0},
    {OP_GELU, "gelu(a)", 1, 0, 0, 0.8413447460685429},
    {OP_GELU, "gelu(a)", -2, 0, 0, -0.04550026389635842},
    {OP_GELU_TANH, "gelu_tanh(a)", 1, 0, 0, 0.8411919906082768},
    {OP_GELU_TANH, "gelu_tanh(a)", -100, 0, 0, 0},
    {OP_ERF, "erf(a)", 0.5, 0, 0, 0.5204998778130465},
    {OP_RELU, "relu(a)", -3, 0, 0, 0},
    {OP_RELU, "relu(a)", 3, 0, 0, 3},
    {OP_RELU, "relu(a)", NAN, 0, 0, NAN},
    {OP_ABS, "abs(a)", -3, 0, 0, 3},
    {OP_ADD, "a + b", 2, 3, 0, 5},
    {OP_SUB, "a - b", 2, 3, 0, -1},
    {OP_MUL, "a * b", 2, 3, 0, 6},
    {OP_DIV, "a / b", 3, 2, 0, 1.5},
    {OP_DIV, "a / b", 3, 0, 0, INFINITY},
    {OP_MIN, "min(a, b)", 2, 3, 0, 2},
    {OP_MIN, "min(a, b)", 2, NAN, 0, NAN},
    {OP_MIN, "min(a, b)", NAN, 2, 0, NAN},
    {OP_MAX, "max(a, b)", 2, 3, 0, 3},
    {OP_MAX, "max(a, b)", 2, NAN, 0, NAN},
    {OP_MAX, "max(a, b)", NAN, 2, 0, NAN},
    {OP_LT, "a < b", 2, 3, 0, 1},
    {OP_LT, "a < b", 3, 3, 0, 0},
    {OP_LE, "a <= b", 3, 3, 0, 1},
    {OP_LE, "a <= b", NAN, 3, 0, 0},
    {OP_GT, "a > b", 3, 3, 0, 0},
    {OP_GT, "a > b", 4, 3, 0, 1},
    {OP_GE, "a >= b", 3, 3, 0, 1},
    {OP_GE, "a >= b", 2, 3, 0, 0},
    {OP_EQ, "a == b", 3, 3, 0, 1},
    {OP_EQ, "a == b", NAN, NAN, 0, 0},
    {OP_NE, "a != b", 3, 3, 0, 0},
    {OP_NE, "a != b", NAN, NAN, 0, 1},
    {OP_CLAMP, "clamp(a, b, c)", 5, -1, 1, 1},
    {OP_CLAMP, "clamp(a, b, c)", -5, -1, 1, -1},
    {OP_CLAMP, "clamp(a, b, c)", 0.5, -1, 1, 0.5},
    {OP_CLAMP, "clamp(a, b, c)", NAN, -1, 1, NAN},
    {OP_WHERE, "where(a, b, c)", 1, 2, NAN, 2},
    {OP_WHERE, "where(a, b, c)", 0, NAN, 3, 3},
    {OP_WHERE, "where(a, b, c)", NAN, 2, 3, 2},
};

static void every_elementwise_primitive_means_what_its_row_says(void **state)
{
    (void)state;
    bool covered[OP_COUNT] = {0};
    for (size_t k = 0; k < sizeof scalars / sizeof *scalars; k++) {
        int arity = op_arity(scalars[k].op);
        char text[256];
        snprintf(text, sizeof text, "program p {\n in a%s : f32[N]\n out y : f32[N] = %s\n}\n",
                 arity == 1   ? ""
                 : arity == 2 ? ", b"
                              : ", b, c",
                 scalars[k].expression);
        struct example example = {
            scalars[k].expression, text, "N=1", {scalars[k].a, scalars[k].b, scalars[k].c}, {scalars[k].y}};
        run_example(&example);
        covered[scalars[k].op] = true;
    }
    for (int op = 0; op < OP_COUNT; op++)
        if (op_is_elementwise(op) && !covered[op])
            fail_msg("`%s` has no example", op_name(op));
}

/* ---------------------------------------------------------------- broadcasting, pairs, runs, products */

static const struct example examples[] = {
    {"vectors of rows and columns",
     "program p { in x : f32[M, N]; in r : f32[M]; in c : f32[N]; in s : f32\n"
     "out y : f32[M, N] = x * r + c * s }",
     "M=2 N=3",
     {1, 2, 3, 4, 5, 6, 10, 100, 1, 2, 3, 0.5},
     {10.5, 21, 31.5, 400.5, 501, 601.5}},
    {"two vectors make a matrix",
     "program p { in x : f32[M, N]; in r : f32[M]; in c : f32[N]\n"
     "out y : f32[M, N] = c * r + 0 * x }",
     "M=2 N=3",
     {0, 0, 0, 0, 0, 0, 10, 100, 1, 2, 3},
     {10, 20, 30, 100, 200, 300}},
    {"a value of a run repeats over a ragged run",
     "program p { in x : f32[M, N]; in s : f32[M, N/4]\n"
     "out y : f32[M, N] = x + s }",
     "M=1 N=5",
     {1, 2, 3, 4, 5, 10, 20},
     {11, 12, 13, 14, 25}},
    {"a value of a run of rows repeats",
     "program p { in x : f32[M, N]; in s : f32[M/2, N]\n"
     "out y : f32[M, N] = x + s }",
     "M=3 N=2",
     {1, 2, 3, 4, 5, 6, 10, 20, 30, 40},
     {11, 22, 13, 24, 35, 46}},
    {"pairs take adjacent columns",
     "program p { in x : f32[M, N]\n a, b = pairs(x)\n out y : f32[M, N/2] = a - 10 * b }",
     "M=2 N=4",
     {1, 2, 3, 4, 5, 6, 7, 8},
     {-19, -37, -55, -73}},
    {"join undoes pairs",
     "program p { in x : f32[M, N]\n a, b = pairs(x)\n out y : f32[M, N] = join(b, a) }",
     "M=1 N=4",
     {1, 2, 3, 4},
     {2, 1, 4, 3}},
    {"join takes a number, one value a row, or one a pair",
     "program p { in x : f32[M, N]; in r : f32[M]; in h : f32[N/2]\n a, b = pairs(x)\n"
     "out y : f32[M, N] = join(a, 7) + join(r, b) + join(h, b) }",
     "M=2 N=4",
     {1, 2, 3, 4, 5, 6, 7, 8, 100, 200, 1000, 2000},
     {1101, 11, 2103, 15, 1205, 19, 2207, 23}},
    {"halves take columns h apart",
     "program p { in x : f32[M, N]\n a, b = halves(x, 2)\n"
     "out y : f32[M, N/2] = a - 10 * b }",
     "M=1 N=8",
     {1, 2, 3, 4, 5, 6, 7, 8},
     {-29, -38, -65, -74}},
    {"join_halves undoes halves",
     "program p { in x : f32[M, N]\n a, b = halves(x, 2)\n"
     "out y : f32[M, N] = join_halves(b, a, 2) }",
     "M=1 N=8",
     {1, 2, 3, 4, 5, 6, 7, 8},
     {3, 4, 1, 2, 7, 8, 5, 6}},
    {"join_halves takes a number, one value a row, or one a column of a half",
     "program p { in x : f32[M, N]; in r : f32[M]; in h : f32[N/2]\n a, b = halves(x, 2)\n"
     "out y : f32[M, N] = join_halves(a, 7, 2) + join_halves(r, b, 2) + join_halves(h, b, 2) }",
     "M=1 N=8",
     {1, 2, 3, 4, 5, 6, 7, 8, 100, 1000, 2000, 3000, 4000},
     {1101, 2102, 13, 15, 3105, 4106, 21, 23}},
    {"values of halves meet operands of half the width",
     "program p { in x : f32[M, N]; in z : f32[M, N/2]\n"
     "a, b = halves(x, 1)\n out y : f32[M, N/2] = a * b + z }",
     "M=1 N=4",
     {1, 2, 3, 4, 10, 20},
     {12, 32}},
    {"repeat serves every head",
     "program p { in x : f32[M, N]; in g : f32[D]\n out y : f32[M, N] = x * repeat(g, N) }",
     "M=1 N=6 D=2",
     {1, 2, 3, 4, 5, 6, 10, 100},
     {10, 200, 30, 400, 50, 600}},
    {"index counts columns",
     "program p { in x : f32[M, N]\n out y : f32[M, N] = x * (index(N) < 2) + index(N) }",
     "M=2 N=3",
     {5, 6, 7, 8, 9, 10},
     {5, 7, 2, 8, 10, 2}},
    {"the size of an axis is a number",
     "program p { axis T = 2*N + 1\n in x : f32[M, N]\n out y : f32[M, N] = x / N + T }",
     "M=1 N=2",
     {1, 3},
     {5.5, 6.5}},
    {"parameters and numbers",
     "program p { in x : f32[N]\n param k = -1.5\n out y : f32[N] = k * x + 2e-1 }",
     "N=2",
     {1, 3},
     {-1.3, -4.3}},
    {"broadcast to a shape",
     "program p { in x : f32[M, N]; in c : f32[N]\n"
     "out y : f32[M, N] = broadcast(c, [M, N]) - x }",
     "M=2 N=2",
     {1, 2, 3, 4, 10, 20},
     {9, 18, 7, 16}},
    {"cast rounds to nearest even",
     "program p { in x : f32[N]\n out y : f32[N] = cast(x, bf16) }",
     "N=4",
     {1.00390625, 1.01171875, -3.39e38, 1e-45},
     {1, 1.015625, -0x1.fep127, 0}},
    {"cast to e4m3",
     "program p { in x : f32[N]\n out y : f32[N] = cast(x, e4m3) }",
     "N=5",
     {17, 19, 464, 465, -0.0029296875},
     {16, 20, 448, NAN, -0.00390625}},
    /* products */
    {"one by one",
     "program p { in A : f32[M, K]; in W : f32[N, K]\n out y : f32[M, N] = A @ W.T }",
     "M=1 N=1 K=1",
     {3, -2},
     {-6}},
    {"a product with a transposed right side",
     "program p { in A : f32[M, K]; in W : f32[N, K]\n"
     "out y : f32[M, N] = A @ W.T }",
     "M=2 N=3 K=2",
     {1, 2, 3, 4, 1, 0, 0, 1, 1, 1},
     {1, 2, 3, 3, 4, 7}},
    {"a product as stored",
     "program p { in A : f32[M, K]; in W : f32[K, N]\n out y : f32[M, N] = A @ W }",
     "M=2 N=3 K=2",
     {1, 2, 3, 4, 1, 0, 5, 0, 1, 1},
     {1, 2, 7, 3, 4, 19}},
    {"a product with a transposed left side",
     "program p { in A : f32[K, M]; in W : f32[K, N]\n"
     "out y : f32[M, N] = A.T @ W }",
     "M=2 N=1 K=3",
     {1, 2, 3, 4, 5, 6, 1, 10, 100},
     {531, 642}},
    {"summed products",
     "program p { in A, B : f32[M, K]; in W, V : f32[K, N]\n out y : f32[M, N] = A @ W + B @ V }",
     "M=1 N=2 K=2",
     {1, 2, 3, 4, 1, 0, 0, 1, 10, 20, 30, 40},
     {151, 222}},
    {"stacked rows",
     "program p { axis N = Q + E\n in A : f32[M, K]; in W : f32[Q, K]; in V : f32[E, K]\n"
     "out y : f32[M, N] = A @ stack(W, V).T }",
     "M=1 Q=1 E=2 K=2",
     {1, 2, 1, 0, 0, 1, 1, 1},
     {1, 2, 3}},
    {"stacked depth",
     "program p { axis K = Q + E\n in A : f32[M, K]; in W : f32[Q, N]; in V : f32[E, N]\n"
     "out y : f32[M, N] = A @ stack(W, V) }",
     "M=1 Q=1 E=2 N=2",
     {1, 2, 3, 1, 0, 0, 1, 1, 1},
     {4, 5}},
    /* reductions */
    {"sums over ragged runs",
     "program p { in x : f32[M, N]\n out y : f32[M, N/3] = sum(x, N:3) }",
     "M=2 N=4",
     {1, 2, 3, 4, 5, 6, 7, 8},
     {6, 4, 18, 8}},
    {"a run longer than the axis",
     "program p { in x : f32[M, N]\n out y : f32[M, N/128] = sum(x, N:128) }",
     "M=2 N=3",
     {1, 2, 3, 4, 5, 6},
     {6, 15}},
    {"sums over runs of rows",
     "program p { in x : f32[M, N]\n out y : f32[M/3, N] = sum(x, M:3) }",
     "M=4 N=2",
     {1, 2, 3, 4, 5, 6, 7, 8},
     {9, 12, 7, 8}},
    {"a run whose length is an axis",
     "program p { in x : f32[M, N]; in g : f32[D]\n out y : f32[M, N/D] = sum(x * repeat(g, N), N:D) }",
     "M=1 N=6 D=3",
     {1, 2, 3, 4, 5, 6, 1, 10, 100},
     {321, 654}},
    {"max over runs",
     "program p { in x : f32[M, N]\n out y : f32[M, N/3] = max(x, N:3) }",
     "M=1 N=7",
     {-1, -2, -0.5, NAN, 3, 1, -INFINITY},
     {-0.5, NAN, -INFINITY}},
    {"absmax over runs",
     "program p { in x : f32[M, N]\n out y : f32[M, N/3] = absmax(x, N:3) }",
     "M=1 N=7",
     {1, -2, 0, 3, NAN, 1, -0.5},
     {2, NAN, 0.5}},
    {"mean over ragged runs",
     "program p { in x : f32[M, N]\n out y : f32[M, N/3] = mean(x, N:3) }",
     "M=1 N=4",
     {1, 2, 3, 5},
     {2, 5}},
    {"logsumexp of large and small values",
     "program p { in x : f32[M, N]\n out y : f32[M, N/3] = logsumexp(x, N:3) }",
     "M=1 N=12",
     {1e30, 1e30, 1e30, -1e30, -1e30, -1e30, 0, 0, 0, 1e4, -1e4, 0},
     {1e30f, -1e30f, 1.0986122886681098, 1e4}},
    {"logsumexp of infinities",
     "program p { in x : f32[M, N]\n out y : f32[M, N/3] = logsumexp(x, N:3) }",
     "M=1 N=13",
     {-INFINITY, -INFINITY, -INFINITY, -INFINITY, 2, -INFINITY, INFINITY, 1, -INFINITY, NAN, 1, 2, -INFINITY},
     {-INFINITY, 2, INFINITY, NAN, -INFINITY}},
    {"a partial is reduced whole",
     "program p { in x : f32[M, N]; in s : f32[M, K/128]\n"
     "out y : f32[M, N] = x * sum(s) + logsumexp(s) * 0 + max(s) }",
     "M=2 N=1 K=130",
     {1, 2, 3, 4, 5, 6},
     {11, 28}},
    {"a run inside the epilogue",
     "program p { in x : f32[M, N]\n out y : f32[M, N] = x / absmax(x, N:3) }",
     "M=1 N=4",
     {1, -2, 4, 3},
     {0.25, -0.5, 1, 1}},
    {"a whole row of a block",
     "block p { in x : f32[M, N]\n out y : f32[M, N] = x - max(x, N) + sum(x, M) }",
     "M=2 N=2",
     {1, 2, 3, 5},
     {3, 7, 2, 7}},
    /* by index */
    {"pick",
     "program p { in x : f32[M, N]; in t : i32[M]\n out y : f32[M] = pick(x, t) }",
     "M=4 N=2",
     {1, 2, 3, 4, 5, 6, 7, NAN, 1, 0, -1, 2},
     {2, 3, 0, 0}},
    {"onehot",
     "program p { in x : f32[M, N]; in t : i32[M]\n out y : f32[M, N] = x - onehot(t, N) }",
     "M=3 N=2",
     {0, 0, 0, 0, 0, 0, 1, -1, 2},
     {0, -1, 0, 0, 0, 0}},
    {"gather",
     "program p { in E : f32[V, N]; in t : i32[M]\n out y : f32[M, N] = gather(E, t) }",
     "M=3 N=2 V=2",
     {1, 2, 3, 4, 1, 0, 1},
     {3, 4, 1, 2, 3, 4}},
    {"rope, half-split, with a limit",
     "program p { axis N = T + E\n in x : f32[M, N]; in e : f32[E]\n"
     "in table : f32[P, D]; in pos : i32[M]\n out y : f32[M, N] = rope(x, table, pos, cols = T) + 0 * sum(e, E) }",
     "M=1 T=4 E=4 D=4 P=2",
     {1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 9, 9, 9, 9, 0.5, 0, 2, 1, 1},
     {-5.5, -4, 3.5, 2, 5, 6, 7, 8}},
    {"rope, adjacent columns",
     "program p { in x : f32[M, N]; in table : f32[P, D]; in pos : i32[M]\n"
     "out y : f32[M, N] = rope_pairs(x, table, pos) }",
     "M=1 N=4 D=4 P=1",
     {1, 2, 3, 4, 0.5, 0, 2, 1, 0},
     {-3.5, 3, -4, 3}},
    {"rope, inverse",
     "program p { in x : f32[M, N]; in table : f32[P, D]; in pos : i32[M]\n"
     "out y : f32[M, N] = rope_inverse(x, table, pos) }",
     "M=1 N=4 D=2 P=1",
     {1, 2, 3, 4, 0.5, 2, 0},
     {4.5, -1, 9.5, -4}},
    {"rope, adjacent columns, inverse",
     "program p { in x : f32[M, N]; in table : f32[P, D]; in pos : i32[M]\n"
     "out y : f32[M, N] = rope_pairs_inverse(x, table, pos) }",
     "M=1 N=4 D=4 P=1",
     {1, 2, 3, 4, 0.5, 0, 2, 1, 0},
     {4.5, -1, 4, -3}},
    {"an out adds to what is there",
     "program p { in x : f32[N]\n out y : f32[N] += 2 * x }",
     "N=2",
     {1, 2, 10, 20},
     {12, 24}},
    {"attention is a block",
     "block p { in Q : f32[M, D]; in K, V : f32[T, D]\n y1 = softmax((Q @ K.T) * log(2)) @ V\n"
     "out y : f32[M, D] = y1 }",
     "M=1 T=2 D=2",
     {1, 0, 1, 5, 0, 5, 3, 30, 6, 60},
     {4, 40}},
};

static void examples_worked_by_hand_agree(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof examples / sizeof *examples; k++)
        run_example(&examples[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_elementwise_primitive_means_what_its_row_says),
        cmocka_unit_test(examples_worked_by_hand_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
