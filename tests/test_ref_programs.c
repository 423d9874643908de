/* The reference on the standard programs, against the same mathematics written out in C. */
#include "ref/ref.h"
#include "kit/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A program, its sizes, random operands, and its outs in double. Parameters have their defaults where the seed is even.
 */
struct run {
    const struct graph *graph;
    int64_t size[MAX_AXES];
    double parameter[MAX_OPERANDS];
    coda_tensor operand[MAX_OPERANDS];
    double *out[MAX_OPERANDS];
    bool checked[MAX_OPERANDS];
};

static void set_sizes(struct run *r, const char *dims)
{
    char name[16];
    long long size;
    int used;
    for (; sscanf(dims, " %15[A-Z]=%lld%n", name, &size, &used) == 2; dims += used) {
        int axis = graph_find_axis(r->graph, name);
        if (axis >= 0)
            r->size[axis] = size;
    }
    struct complaint why = {0};
    if (sizes_complete(r->graph, r->size, &why) != CODA_OK || sizes_check(r->graph, r->size, &why) != CODA_OK)
        fail_msg("%s: %s", r->graph->name, why.reason);
    for (int a = 0; a < r->graph->axis_count; a++)
        if (r->size[a] == 0)
            fail_msg("%s: no size of axis %s", r->graph->name, r->graph->axis[a].name);
}

/* An id of a row. Where the program picks, one in eight is the ignored one and some are just outside. */
static double random_id(const struct run *r, struct random *random)
{
    if (graph_find_operand(r->graph, "table") >= 0)
        return (double)random_below(random, r->size[graph_find_axis(r->graph, "P")]);
    int64_t limit = r->size[graph_find_axis(r->graph, "V")];
    int table = graph_find_operand(r->graph, "E");
    if (table >= 0 && r->graph->operand[table].role == CODA_IN)
        return (double)random_below(random, limit);
    return random_below(random, 8) == 0 ? -100 : (double)(random_below(random, limit + 2) - 1);
}

static double random_value(const struct run *r, const struct operand *operand, struct random *random)
{
    if (operand->dtype == CODA_I32)
        return random_id(r, random);
    bool positive = strchr("RSv", operand->name[0]) != NULL; /* 1/RMS, sums of squares, second moments */
    return positive ? 0.25 + random_uniform(random) : random_normal(random);
}

static void make_operand(struct run *r, int index, struct random *random)
{
    const struct operand *operand = &r->graph->operand[index];
    coda_tensor *tensor = &r->operand[index];
    *tensor = (coda_tensor){.dtype = operand->dtype, .rank = operand->shape.rank, .shape = {1, 1}};
    for (int d = 0; d < operand->shape.rank; d++)
        tensor->shape[d] = dim_size(&operand->shape.dim[d], r->size);
    int64_t rows = tensor->rank == 2 ? tensor->shape[0] : 1, columns = tensor->shape[tensor->rank == 2];
    tensor->stride = tensor->rank == 2 ? columns + random_below(random, 3) : 1;
    int64_t count = rows * (tensor->rank == 2 ? tensor->stride : columns);
    tensor->data = calloc((size_t)count, coda_dtype_size(tensor->dtype));
    assert_non_null(tensor->data);
    if (operand->role != CODA_IN) {
        r->out[index] = calloc((size_t)(rows * columns), sizeof(double));
        assert_non_null(r->out[index]);
    }
    for (int64_t i = 0; i < count && operand->role != CODA_OUT; i++) {
        float x = (float)random_value(r, operand, random);
        coda_convert((char *)tensor->data + (size_t)i * coda_dtype_size(tensor->dtype), tensor->dtype, &x, CODA_F32, 1);
    }
}

static void run_program(struct run *r, const char *name, const char *dims, uint64_t seed)
{
    const coda_module *module;
    coda_error error = {0};
    struct random random = {seed};
    if (coda_standard_module(&module, &error) != CODA_OK)
        fail_msg("%s", error.message);
    const coda_program *program = coda_module_find(module, name);
    assert_non_null(program);
    memset(r, 0, sizeof *r);
    r->graph = program->graph;
    set_sizes(r, dims);
    for (int p = 0; p < r->graph->parameter_count; p++)
        r->parameter[p] = seed % 2 == 0 ? r->graph->parameter[p].default_value : 0.25 + random_uniform(&random) / 2;
    for (int o = 0; o < r->graph->operand_count; o++)
        make_operand(r, o, &random);
    struct launch launch = {.size = r->size, .operand = r->operand, .parameter = r->parameter};
    if (ref_evaluate(r->graph, &launch, r->out, &error) != CODA_OK)
        fail_msg("%s: %s", name, error.message);
}

static void end_run(struct run *r)
{
    for (int o = 0; o < r->graph->operand_count; o++) {
        if (r->graph->operand[o].role != CODA_IN && !r->checked[o])
            fail_msg("%s: out %s was not checked", r->graph->name, r->graph->operand[o].name);
        free(r->operand[o].data);
        free(r->out[o]);
    }
}

static int64_t size_of(const struct run *r, const char *axis)
{
    int a = graph_find_axis(r->graph, axis);
    assert_true(a >= 0);
    return r->size[a];
}

static double parameter(const struct run *r, const char *name)
{
    for (int p = 0; p < r->graph->parameter_count; p++)
        if (strcmp(r->graph->parameter[p].name, name) == 0)
            return r->parameter[p];
    fail_msg("no parameter %s", name);
    return 0;
}

/* An operand's element, as the launch gave it. */
static double at(const struct run *r, const char *name, int64_t i, int64_t j)
{
    int o = graph_find_operand(r->graph, name);
    assert_true(o >= 0);
    const coda_tensor *t = &r->operand[o];
    int64_t k = t->rank == 2 ? i * t->stride + j : i;
    if (t->dtype == CODA_I32)
        return ((const int32_t *)t->data)[k];
    float x;
    coda_convert(&x, CODA_F32, (const char *)t->data + (size_t)k * coda_dtype_size(t->dtype), t->dtype, 1);
    return x;
}

/* Doubles of at most 300 terms of size 10 or so, added in another order: 300 * 300 * 10 * 2^-53 < 1e-9 absolute, and
 * the same relative to larger results. */
static void expect(struct run *r, const char *name, int64_t i, int64_t j, double expected)
{
    int o = graph_find_operand(r->graph, name);
    assert_true(o >= 0);
    const coda_tensor *t = &r->operand[o];
    double got = r->out[o][t->rank == 2 ? i * t->shape[1] + j : i];
    r->checked[o] = true;
    if (!(fabs(got - expected) <= 1e-9 * (1 + fabs(expected))))
        fail_msg("%s: %s[%lld, %lld] is %.17g; expected %.17g", r->graph->name, name, (long long)i, (long long)j, got,
                 expected);
}

/* Row m of A times row n of W (`transposed`), or times column n. */
static double dot(const struct run *r, const char *a, const char *w, bool transposed, int64_t m, int64_t n)
{
    double sum = 0;
    int64_t depth = r->operand[graph_find_operand(r->graph, a)].shape[1];
    for (int64_t k = depth - 1; k >= 0; k--)
        sum += at(r, a, m, k) * (transposed ? at(r, w, n, k) : at(r, w, k, n));
    return sum;
}

static double row_sum(const struct run *r, const char *s, int64_t m)
{
    double sum = 0;
    for (int64_t k = 0; k < r->operand[graph_find_operand(r->graph, s)].shape[1]; k++)
        sum += at(r, s, m, k);
    return sum;
}

static double rstd(const struct run *r, int64_t m)
{
    return 1 / sqrt(row_sum(r, "S", m) / (double)size_of(r, "K") + parameter(r, "eps"));
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double row_logsumexp(const struct run *r, const char *l, int64_t m)
{
    double sum = 0;
    for (int64_t k = 0; k < r->operand[graph_find_operand(r->graph, l)].shape[1]; k++)
        sum += exp(at(r, l, m, k));
    return log(sum);
}

static void check_gemm(struct run *r)
{
    for (int64_t m = 0; m < size_of(r, "M"); m++)
        for (int64_t n = 0; n < size_of(r, "N"); n++)
            expect(r, "Y", m, n, dot(r, "A", "W", true, m, n));
}

static void check_gemm_dgrad(struct run *r)
{
    for (int64_t m = 0; m < size_of(r, "M"); m++)
        for (int64_t n = 0; n < size_of(r, "N"); n++)
            expect(r, "dA", m, n, dot(r, "dY", "W", false, m, n));
}

static void check_gemm_wgrad(struct run *r)
{
    for (int64_t m = 0; m < size_of(r, "M"); m++)
        for (int64_t n = 0; n < size_of(r, "N"); n++) {
            double sum = at(r, "dW", m, n);
            for (int64_t k = 0; k < size_of(r, "K"); k++)
                sum += at(r, "dY", k, m) * at(r, "X", k, n);
            expect(r, "dW", m, n, sum);
        }
}

static void check_gemm_rms(struct run *r)
{
    for (int64_t m = 0; m < size_of(r, "M"); m++) {
        expect(r, "R", m, 0, rstd(r, m));
        for (int64_t n = 0; n < size_of(r, "N"); n++)
            expect(r, "Y", m, n, dot(r, "H", "W", true, m, n) * rstd(r, m));
    }
}

/* x and its statistics: X, H and the sums of squares S. */
static void check_norm_outs(struct run *r, int64_t m, double (*x)(const struct run *r, int64_t m, int64_t n))
{
    int64_t columns = size_of(r, "N");
    double sum = 0;
    for (int64_t n = 0; n < columns; n++) {
        double value = x(r, m, n);
        expect(r, "X", m, n, value);
        expect(r, "H", m, n, value * at(r, "g", n, 0));
        sum += value * value;
        if ((n + 1) % 128 == 0 || n + 1 == columns) {
            expect(r, "S", m, n / 128, sum);
            sum = 0;
        }
    }
}

static double residual(const struct run *r, int64_t m, int64_t n)
{
    return dot(r, "A", "W", true, m, n) + at(r, "C", m, n);
}

static double embedding(const struct run *r, int64_t m, int64_t n)
{
    return at(r, "E", (int64_t)at(r, "t", m, 0), n);
}

static void check_gemm_residual_rms(struct run *r)
{
    for (int64_t m = 0; m < size_of(r, "M"); m++)
        check_norm_outs(r, m, residual);
}

static void check_embed_rms(struct run *r)
{
    for (int64_t m = 0; m < size_of(r, "M"); m++)
        check_norm_outs(r, m, embedding);
}

static void check_square_sum(struct run *r)
{
    for (int64_t m = 0; m < size_of(r, "M"); m++)
        for (int64_t first = 0; first < size_of(r, "N"); first += 128) {
            double sum = 0;
            for (int64_t n = first; n < first + 128 && n < size_of(r, "N"); n++)
                sum += at(r, "G", m, n) * at(r, "G", m, n);
            expect(r, "S", m, first / 128, sum);
        }
}

static void check_column_sum(struct run *r)
{
    for (int64_t n = 0; n < size_of(r, "N"); n++) {
        double sum = at(r, "g", n, 0);
        for (int64_t m = 0; m < size_of(r, "R"); m++)
            sum += at(r, "P", m, n);
        expect(r, "g", n, 0, sum);
    }
}

static void check_adamw(struct run *r)
{
    double b1 = parameter(r, "b1"), b2 = parameter(r, "b2");
    for (int64_t i = 0; i < size_of(r, "M"); i++)
        for (int64_t j = 0; j < size_of(r, "N"); j++) {
            double g = at(r, "G", i, j) * parameter(r, "scale");
            double m = b1 * at(r, "m", i, j) + (1 - b1) * g, v = b2 * at(r, "v", i, j) + (1 - b2) * g * g;
            double step = m * parameter(r, "c1") / (sqrt(v * parameter(r, "c2")) + parameter(r, "eps"));
            double w = at(r, "w", i, j);
            w -= parameter(r, "lr") * (step + parameter(r, "decay") * w);
            expect(r, "m2", i, j, m);
            expect(r, "v2", i, j, v);
            expect(r, "w2", i, j, w);
            expect(r, "W", i, j, w);
        }
}

static double silu(double x)
{
    return x * sigmoid(x);
}

static double gelu_tanh(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

static void check_gated(struct run *r, const char *a, bool norm, double (*activation)(double x))
{
    for (int64_t m = 0; m < size_of(r, "M"); m++) {
        double scale = norm ? rstd(r, m) : 1;
        if (norm)
            expect(r, "R", m, 0, scale);
        for (int64_t n = 0; n < size_of(r, "N"); n++) {
            double g = dot(r, a, "Wg", true, m, n) * scale, u = dot(r, a, "Wu", true, m, n) * scale;
            expect(r, "G", m, n, g);
            expect(r, "U", m, n, u);
            expect(r, "Y", m, n, activation(g) * u);
        }
    }
}

static void check_gemm_swiglu(struct run *r)
{
    check_gated(r, "A", false, silu);
}

static void check_gemm_rms_swiglu(struct run *r)
{
    check_gated(r, "H", true, silu);
}

static void check_gemm_rms_geglu(struct run *r)
{
    check_gated(r, "H", true, gelu_tanh);
}

static void check_gemm_swiglu_bwd(struct run *r)
{
    int64_t columns = size_of(r, "N");
    for (int64_t m = 0; m < size_of(r, "M"); m++) {
        double sum = 0;
        for (int64_t n = 0; n < columns; n++) {
            double d = dot(r, "dX", "W", false, m, n), g = at(r, "G", m, n), u = at(r, "U", m, n);
            double slope = sigmoid(g) + g * sigmoid(g) * sigmoid(-g);
            expect(r, "dG", m, n, d * u * slope);
            expect(r, "dU", m, n, d * silu(g));
            expect(r, "Y", m, n, silu(g) * u);
            sum += g * d * u * slope + u * d * silu(g);
            if ((n + 1) % 128 == 0 || n + 1 == columns) {
                expect(r, "c", m, n / 128, sum);
                sum = 0;
            }
        }
    }
}

/* The dgrad that each of the gemm_rms_bwd programs starts from. */
static double dgrad(const struct run *r, int64_t m, int64_t n)
{
    if (graph_find_operand(r->graph, "Wg") >= 0)
        return dot(r, "dG", "Wg", false, m, n) + dot(r, "dU", "Wu", false, m, n);
    if (graph_find_operand(r->graph, "Wq") < 0)
        return dot(r, "dZ", "W", false, m, n);
    int64_t q = size_of(r, "Q"), e = size_of(r, "E");
    double sum = 0;
    for (int64_t k = 0; k < q + 2 * e; k++) {
        double w = k < q ? at(r, "Wq", k, n) : k < q + e ? at(r, "Wk", k - q, n) : at(r, "Wv", k - q - e, n);
        sum += at(r, "dZ", m, k) * w;
    }
    return sum;
}

static void check_gemm_rms_bwd(struct run *r)
{
    int64_t rows = size_of(r, "M");
    bool residual_arrives = graph_find_operand(r->graph, "dR") >= 0;
    for (int64_t n = 0; n < size_of(r, "N"); n++) {
        double sum = 0;
        for (int64_t m = 0; m < rows; m++) {
            double d = dgrad(r, m, n), scale = at(r, "R", m, 0), xn = at(r, "X", m, n) * scale, g = at(r, "g", n, 0);
            double s = row_sum(r, "c", m) / (double)size_of(r, "N");
            expect(r, "dX", m, n, (residual_arrives ? at(r, "dR", m, n) : 0) + scale * (d * g - xn * s));
            expect(r, "H", m, n, xn * g);
            sum += d * xn;
            if ((m + 1) % 64 == 0 || m + 1 == rows) {
                expect(r, "dg", m / 64, n, sum);
                sum = 0;
            }
        }
    }
}

/* Z, L, T and Q of a head whose logits before the cap are y. */
static void check_head(struct run *r, const char *a, bool norm)
{
    int64_t columns = size_of(r, "V");
    double cap = parameter(r, "cap");
    for (int64_t m = 0; m < size_of(r, "M"); m++) {
        double exps = 0, sum = 0, target = 0, scale = norm ? rstd(r, m) : 1;
        if (norm)
            expect(r, "R", m, 0, scale);
        for (int64_t n = 0; n < columns; n++) {
            double y = dot(r, a, "W", true, m, n) * scale, z = cap > 0 ? cap * tanh(y / cap) : y;
            expect(r, "Z", m, n, y);
            exps += exp(z);
            sum += z;
            if (at(r, "t", m, 0) == (double)n)
                target = z;
            if ((n + 1) % 128 == 0 || n + 1 == columns) {
                expect(r, "L", m, n / 128, log(exps));
                expect(r, "Q", m, n / 128, sum);
                exps = sum = 0;
            }
        }
        expect(r, "T", m, 0, target);
    }
}

static void check_gemm_lse(struct run *r)
{
    check_head(r, "A", false);
}

static void check_gemm_exp(struct run *r)
{
    int64_t columns = size_of(r, "V");
    for (int64_t m = 0; m < size_of(r, "M"); m++) {
        double picked = 0, sum = 0;
        for (int64_t n = 0; n < columns; n++) {
            double z = dot(r, "A", "W", true, m, n), e = exp(z - at(r, "c", m, 0));
            picked = n == at(r, "t", m, 0) ? z : picked;
            sum += e;
            expect(r, "E", m, n, e);
            if (n % 128 == 127 || n + 1 == columns) {
                expect(r, "S", m, n / 128, sum);
                sum = 0;
            }
        }
        expect(r, "T", m, 0, picked);
    }
}

static void check_gemm_lse_again(struct run *r)
{
    int64_t columns = size_of(r, "V");
    for (int64_t m = 0; m < size_of(r, "M"); m++) {
        double sum = 0;
        for (int64_t n = 0; n < columns; n++) {
            sum += exp(dot(r, "A", "W", true, m, n));
            if (n % 128 == 127 || n + 1 == columns) {
                expect(r, "L", m, n / 128, log(sum));
                sum = 0;
            }
        }
    }
}

static void check_cross_entropy_patch(struct run *r)
{
    for (int64_t m = 0; m < size_of(r, "M"); m++) {
        double sum = row_sum(r, "S", m), t = at(r, "t", m, 0), lse = at(r, "c", m, 0) + log(sum);
        double weight = t == parameter(r, "ignore") ? 0 : at(r, "w", m, 0);
        expect(r, "ce", m, 0, (lse - at(r, "T", m, 0)) * weight);
        expect(r, "s", m, 0, weight / sum);
        expect(r, "marked", m, 0, fabs(log(sum)) >= 45);
        for (int64_t n = 0; n < size_of(r, "V"); n++)
            expect(r, "E", m, n, n == t ? sum * (fmin(exp(at(r, "T", m, 0) - lse), 1) - 1) : at(r, "E", m, n));
    }
}

static void check_gemm_rms_lse(struct run *r)
{
    check_head(r, "H", true);
}

static void check_cross_entropy_loss(struct run *r)
{
    double smoothing = parameter(r, "smoothing");
    for (int64_t m = 0; m < size_of(r, "M"); m++) {
        double lse = row_logsumexp(r, "L", m), mean = row_sum(r, "Q", m) / (double)size_of(r, "V");
        double weight = at(r, "t", m, 0) == parameter(r, "ignore") ? 0 : at(r, "w", m, 0) / parameter(r, "divisor");
        expect(r, "ce", m, 0, (lse - (1 - smoothing) * at(r, "T", m, 0) - smoothing * mean) * weight);
        expect(r, "zl", m, 0, parameter(r, "zloss") * lse * lse * weight);
    }
}

static void check_cross_entropy_bwd(struct run *r)
{
    double smoothing = parameter(r, "smoothing"), cap = parameter(r, "cap");
    int64_t columns = size_of(r, "V");
    for (int64_t m = 0; m < size_of(r, "M"); m++) {
        double lse = row_logsumexp(r, "L", m), sum = 0;
        double weight = at(r, "t", m, 0) == parameter(r, "ignore") ? 0 : at(r, "w", m, 0) / parameter(r, "divisor");
        for (int64_t n = 0; n < columns; n++) {
            double y = at(r, "Z", m, n), z = cap > 0 ? cap * tanh(y / cap) : y;
            double dz = exp(z - lse) * (1 + 2 * parameter(r, "zloss") * lse) - smoothing / (double)columns;
            dz -= at(r, "t", m, 0) == (double)n ? 1 - smoothing : 0;
            double dy = dz * weight * (cap > 0 ? 1 / pow(cosh(y / cap), 2) : 1);
            expect(r, "dZ", m, n, dy);
            sum += y * dy;
            if ((n + 1) % 128 == 0 || n + 1 == columns) {
                expect(r, "c", m, n / 128, sum);
                sum = 0;
            }
        }
    }
}

/* Column n of row m of x, rotated by `direction` times the row's angles; columns from `limit` on pass through. */
static double rotated(const struct run *r, const double *x, int64_t m, int64_t n, int64_t limit, double direction)
{
    int64_t width = size_of(r, "D"), i = n % width, head = n - i, half = width / 2, p = (int64_t)at(r, "pos", m, 0);
    if (n >= limit)
        return x[n];
    double c = at(r, "table", p, i % half), s = direction * at(r, "table", p, half + i % half);
    return i < half ? x[head + i] * c - x[head + half + i] * s : x[head + i] * c + x[head + i - half] * s;
}

static void check_gemm_rope(struct run *r)
{
    int64_t columns = size_of(r, "N");
    double *x = calloc((size_t)columns, sizeof *x);
    for (int64_t m = 0; m < size_of(r, "M"); m++) {
        for (int64_t n = 0; n < columns; n++)
            x[n] = dot(r, "A", "W", true, m, n);
        for (int64_t n = 0; n < columns; n++)
            expect(r, "Y", m, n, rotated(r, x, m, n, columns, 1));
    }
    free(x);
}

static void check_rope_bwd(struct run *r)
{
    int64_t columns = size_of(r, "N");
    double *x = calloc((size_t)columns, sizeof *x);
    for (int64_t m = 0; m < size_of(r, "M"); m++) {
        double sum = 0;
        for (int64_t n = 0; n < columns; n++)
            x[n] = at(r, "dY", m, n);
        for (int64_t n = 0; n < columns; n++) {
            expect(r, "dZ", m, n, rotated(r, x, m, n, size_of(r, "T"), -1));
            sum += x[n] * at(r, "Y", m, n);
            if ((n + 1) % 128 == 0 || n + 1 == columns) {
                expect(r, "c", m, n / 128, sum);
                sum = 0;
            }
        }
    }
    free(x);
}

/* z = r (H [Wq; Wk; Wv]^T) */
static double qkv(const struct run *r, int64_t m, int64_t n)
{
    int64_t q = size_of(r, "Q"), e = size_of(r, "E");
    double d = n < q       ? dot(r, "H", "Wq", true, m, n)
               : n < q + e ? dot(r, "H", "Wk", true, m, n - q)
                           : dot(r, "H", "Wv", true, m, n - q - e);
    return d * rstd(r, m);
}

static void check_gemm_rms_rope(struct run *r)
{
    int64_t columns = size_of(r, "N");
    double *x = calloc((size_t)columns, sizeof *x);
    for (int64_t m = 0; m < size_of(r, "M"); m++) {
        expect(r, "R", m, 0, rstd(r, m));
        for (int64_t n = 0; n < columns; n++)
            x[n] = qkv(r, m, n);
        for (int64_t n = 0; n < columns; n++)
            expect(r, "Y", m, n, rotated(r, x, m, n, size_of(r, "T"), 1));
    }
    free(x);
}

static void check_gemm_qknorm_rope(struct run *r)
{
    int64_t columns = size_of(r, "N"), width = size_of(r, "D"), q = size_of(r, "Q"), limit = size_of(r, "T");
    double *z = calloc((size_t)columns, sizeof *z), *x = calloc((size_t)columns, sizeof *x);
    for (int64_t m = 0; m < size_of(r, "M"); m++) {
        expect(r, "R", m, 0, rstd(r, m));
        for (int64_t n = 0; n < columns; n++) {
            x[n] = z[n] = qkv(r, m, n);
            expect(r, "Z", m, n, z[n]);
        }
        for (int64_t n = 0; n < limit; n++) {
            double sum = 0;
            for (int64_t i = 0; i < width; i++)
                sum += pow(z[n - n % width + i], 2);
            x[n] *= at(r, n < q ? "gq" : "gk", n % width, 0) / sqrt(sum / (double)width + parameter(r, "eps"));
        }
        for (int64_t n = 0; n < columns; n++)
            expect(r, "Y", m, n, rotated(r, x, m, n, limit, 1));
    }
    free(x);
    free(z);
}

/* Sizes of the programs' axes, ended by NULL; axes that a program does not have are skipped. */
static const char *const ragged[] = {
    "M=1 N=1 K=1 V=1 R=1",
    "M=3 N=5 K=7 V=9 R=4",
    "M=2 N=131 K=130 V=300 R=129",
    "M=67 N=6 K=2 V=127 R=1",
    "M=65 N=129 K=1 V=128 R=3",
    "M=3 N=259 K=301 V=257 R=2",
    NULL,
};
static const char *const heads[] = {
    "M=1 Q=2 E=2 D=2 P=1 K=1 N=6 T=4",
    "M=3 Q=8 E=4 D=4 P=5 K=7 N=16 T=12",
    "M=2 Q=96 E=24 D=8 P=9 K=129 N=144 T=120",
    NULL,
};
static const char *const stacked[] = {"M=1 Q=1 E=1 N=1", "M=66 Q=3 E=2 N=5", "M=3 Q=100 E=17 N=130", NULL};

static const struct {
    const char *name;
    void (*check)(struct run *r);
    const char *const *dims;
} programs[] = {
    {"adamw", check_adamw, ragged},
    {"column_sum", check_column_sum, ragged},
    {"cross_entropy_bwd", check_cross_entropy_bwd, ragged},
    {"cross_entropy_loss", check_cross_entropy_loss, ragged},
    {"cross_entropy_patch", check_cross_entropy_patch, ragged},
    {"embed_rms", check_embed_rms, ragged},
    {"gemm", check_gemm, ragged},
    {"gemm_dgrad", check_gemm_dgrad, ragged},
    {"gemm_exp", check_gemm_exp, ragged},
    {"gemm_lse", check_gemm_lse, ragged},
    {"gemm_lse_again", check_gemm_lse_again, ragged},
    {"gemm_qknorm_rope", check_gemm_qknorm_rope, heads},
    {"gemm_residual_rms", check_gemm_residual_rms, ragged},
    {"gemm_rms", check_gemm_rms, ragged},
    {"gemm_rms_bwd", check_gemm_rms_bwd, ragged},
    {"gemm_rms_bwd_head", check_gemm_rms_bwd, ragged},
    {"gemm_rms_bwd_qkv", check_gemm_rms_bwd, stacked},
    {"gemm_rms_bwd_twin", check_gemm_rms_bwd, ragged},
    {"gemm_rms_geglu", check_gemm_rms_geglu, ragged},
    {"gemm_rms_lse", check_gemm_rms_lse, ragged},
    {"gemm_rms_rope", check_gemm_rms_rope, heads},
    {"gemm_rms_swiglu", check_gemm_rms_swiglu, ragged},
    {"gemm_rope", check_gemm_rope, heads},
    {"gemm_swiglu", check_gemm_swiglu, ragged},
    {"gemm_swiglu_bwd", check_gemm_swiglu_bwd, ragged},
    {"gemm_wgrad", check_gemm_wgrad, ragged},
    {"rope_bwd", check_rope_bwd, heads},
    {"square_sum", check_square_sum, ragged},
};

static void standard_programs_compute_what_their_text_says(void **state)
{
    (void)state;
    for (size_t p = 0; p < sizeof programs / sizeof *programs; p++)
        for (int d = 0; programs[p].dims[d / 2] != NULL; d++) {
            struct run r;
            run_program(&r, programs[p].name, programs[p].dims[d / 2], 1000 * (uint64_t)p + (uint64_t)d);
            programs[p].check(&r);
            end_run(&r);
        }
}

static void the_table_of_this_test_names_every_standard_program(void **state)
{
    (void)state;
    const coda_module *module;
    assert_int_equal(coda_standard_module(&module, NULL), CODA_OK);
    for (int i = 0; i < coda_module_size(module); i++) {
        const char *name = coda_program_name(coda_module_program(module, i));
        bool found = false;
        for (size_t p = 0; p < sizeof programs / sizeof *programs; p++)
            found |= strcmp(programs[p].name, name) == 0;
        if (!found)
            fail_msg("%s has no independent computation here", name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(standard_programs_compute_what_their_text_says),
        cmocka_unit_test(the_table_of_this_test_names_every_standard_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
