/* The reference on the standard programs, against the same mathematics written out in C. */
#include "kit/reference_run.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Row m of A times row n of W (`transposed`), or times column n. */
static double dot(const struct run *r, const char *a, const char *w, bool transposed, int64_t m, int64_t n)
{
    double sum = 0;
    int64_t depth = r->operand[graph_find_operand(r->graph, a)].shape[1];
    for (int64_t k = depth - 1; k >= 0; k--)
        sum += run_at(r, a, m, k) * (transposed ? run_at(r, w, n, k) : run_at(r, w, k, n));
    return sum;
}

static double row_sum(const struct run *r, const char *s, int64_t m)
{
    double sum = 0;
    for (int64_t k = 0; k < r->operand[graph_find_operand(r->graph, s)].shape[1]; k++)
        sum += run_at(r, s, m, k);
    return sum;
}

static double rstd(const struct run *r, int64_t m)
{
    return 1 / sqrt(row_sum(r, "S", m) / (double)run_size(r, "K") + run_parameter(r, "eps"));
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double row_logsumexp(const struct run *r, const char *l, int64_t m)
{
    double sum = 0;
    for (int64_t k = 0; k < r->operand[graph_find_operand(r->graph, l)].shape[1]; k++)
        sum += exp(run_at(r, l, m, k));
    return log(sum);
}

static void check_gemm(struct run *r)
{
    for (int64_t m = 0; m < run_size(r, "M"); m++)
        for (int64_t n = 0; n < run_size(r, "N"); n++)
            run_expect(r, "Y", m, n, dot(r, "A", "W", true, m, n));
}

static void check_gemm_dgrad(struct run *r)
{
    for (int64_t m = 0; m < run_size(r, "M"); m++)
        for (int64_t n = 0; n < run_size(r, "N"); n++)
            run_expect(r, "dA", m, n, dot(r, "dY", "W", false, m, n));
}

static void check_gemm_wgrad(struct run *r)
{
    for (int64_t m = 0; m < run_size(r, "M"); m++)
        for (int64_t n = 0; n < run_size(r, "N"); n++) {
            double sum = run_at(r, "dW", m, n);
            for (int64_t k = 0; k < run_size(r, "K"); k++)
                sum += run_at(r, "dY", k, m) * run_at(r, "X", k, n);
            run_expect(r, "dW", m, n, sum);
        }
}

static void check_gemm_rms(struct run *r)
{
    for (int64_t m = 0; m < run_size(r, "M"); m++) {
        run_expect(r, "R", m, 0, rstd(r, m));
        for (int64_t n = 0; n < run_size(r, "N"); n++)
            run_expect(r, "Y", m, n, dot(r, "H", "W", true, m, n) * rstd(r, m));
    }
}

/* x and its statistics: X, H and the sums of squares S. */
static void check_norm_outs(struct run *r, int64_t m, double (*x)(const struct run *r, int64_t m, int64_t n))
{
    int64_t columns = run_size(r, "N");
    double sum = 0;
    for (int64_t n = 0; n < columns; n++) {
        double value = x(r, m, n);
        run_expect(r, "X", m, n, value);
        run_expect(r, "H", m, n, value * run_at(r, "g", n, 0));
        sum += value * value;
        if ((n + 1) % 128 == 0 || n + 1 == columns) {
            run_expect(r, "S", m, n / 128, sum);
            sum = 0;
        }
    }
}

static double residual(const struct run *r, int64_t m, int64_t n)
{
    return dot(r, "A", "W", true, m, n) + run_at(r, "C", m, n);
}

static double embedding(const struct run *r, int64_t m, int64_t n)
{
    return run_at(r, "E", (int64_t)run_at(r, "t", m, 0), n);
}

static void check_gemm_residual_rms(struct run *r)
{
    for (int64_t m = 0; m < run_size(r, "M"); m++)
        check_norm_outs(r, m, residual);
}

static void check_embed_rms(struct run *r)
{
    for (int64_t m = 0; m < run_size(r, "M"); m++)
        check_norm_outs(r, m, embedding);
}

static void check_square_sum(struct run *r)
{
    for (int64_t m = 0; m < run_size(r, "M"); m++)
        for (int64_t first = 0; first < run_size(r, "N"); first += 128) {
            double sum = 0;
            for (int64_t n = first; n < first + 128 && n < run_size(r, "N"); n++)
                sum += run_at(r, "G", m, n) * run_at(r, "G", m, n);
            run_expect(r, "S", m, first / 128, sum);
        }
}

static void check_column_sum(struct run *r)
{
    for (int64_t n = 0; n < run_size(r, "N"); n++) {
        double sum = run_at(r, "g", n, 0);
        for (int64_t m = 0; m < run_size(r, "R"); m++)
            sum += run_at(r, "P", m, n);
        run_expect(r, "g", n, 0, sum);
    }
}

static void check_adamw(struct run *r)
{
    double b1 = run_parameter(r, "b1"), b2 = run_parameter(r, "b2");
    for (int64_t i = 0; i < run_size(r, "M"); i++)
        for (int64_t j = 0; j < run_size(r, "N"); j++) {
            double g = run_at(r, "G", i, j) * run_parameter(r, "scale");
            double m = b1 * run_at(r, "m", i, j) + (1 - b1) * g, v = b2 * run_at(r, "v", i, j) + (1 - b2) * g * g;
            double step = m * run_parameter(r, "c1") / (sqrt(v * run_parameter(r, "c2")) + run_parameter(r, "eps"));
            double w = run_at(r, "w", i, j);
            w -= run_parameter(r, "lr") * (step + run_parameter(r, "decay") * w);
            run_expect(r, "m2", i, j, m);
            run_expect(r, "v2", i, j, v);
            run_expect(r, "w2", i, j, w);
            run_expect(r, "W", i, j, w);
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
    for (int64_t m = 0; m < run_size(r, "M"); m++) {
        double scale = norm ? rstd(r, m) : 1;
        if (norm)
            run_expect(r, "R", m, 0, scale);
        for (int64_t n = 0; n < run_size(r, "N"); n++) {
            double g = dot(r, a, "Wg", true, m, n) * scale, u = dot(r, a, "Wu", true, m, n) * scale;
            run_expect(r, "G", m, n, g);
            run_expect(r, "U", m, n, u);
            run_expect(r, "Y", m, n, activation(g) * u);
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
    int64_t columns = run_size(r, "N");
    for (int64_t m = 0; m < run_size(r, "M"); m++) {
        double sum = 0;
        for (int64_t n = 0; n < columns; n++) {
            double d = dot(r, "dX", "W", false, m, n), g = run_at(r, "G", m, n), u = run_at(r, "U", m, n);
            double slope = sigmoid(g) + g * sigmoid(g) * sigmoid(-g);
            run_expect(r, "dG", m, n, d * u * slope);
            run_expect(r, "dU", m, n, d * silu(g));
            run_expect(r, "Y", m, n, silu(g) * u);
            sum += g * d * u * slope + u * d * silu(g);
            if ((n + 1) % 128 == 0 || n + 1 == columns) {
                run_expect(r, "c", m, n / 128, sum);
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
    int64_t q = run_size(r, "Q"), e = run_size(r, "E");
    double sum = 0;
    for (int64_t k = 0; k < q + 2 * e; k++) {
        double w = k < q       ? run_at(r, "Wq", k, n)
                   : k < q + e ? run_at(r, "Wk", k - q, n)
                               : run_at(r, "Wv", k - q - e, n);
        sum += run_at(r, "dZ", m, k) * w;
    }
    return sum;
}

static void check_gemm_rms_bwd(struct run *r)
{
    int64_t rows = run_size(r, "M");
    bool residual_arrives = graph_find_operand(r->graph, "dR") >= 0;
    for (int64_t n = 0; n < run_size(r, "N"); n++) {
        double sum = 0;
        for (int64_t m = 0; m < rows; m++) {
            double d = dgrad(r, m, n), scale = run_at(r, "R", m, 0), xn = run_at(r, "X", m, n) * scale,
                   g = run_at(r, "g", n, 0);
            double s = row_sum(r, "c", m) / (double)run_size(r, "N");
            run_expect(r, "dX", m, n, (residual_arrives ? run_at(r, "dR", m, n) : 0) + scale * (d * g - xn * s));
            run_expect(r, "H", m, n, xn * g);
            sum += d * xn;
            if ((m + 1) % 64 == 0 || m + 1 == rows) {
                run_expect(r, "dg", m / 64, n, sum);
                sum = 0;
            }
        }
    }
}

/* Z, L, T and Q of a head whose logits before the cap are y. */
static void check_head(struct run *r, const char *a, bool norm)
{
    int64_t columns = run_size(r, "V");
    double cap = run_parameter(r, "cap");
    for (int64_t m = 0; m < run_size(r, "M"); m++) {
        double exps = 0, sum = 0, target = 0, scale = norm ? rstd(r, m) : 1;
        if (norm)
            run_expect(r, "R", m, 0, scale);
        for (int64_t n = 0; n < columns; n++) {
            double y = dot(r, a, "W", true, m, n) * scale, z = cap > 0 ? cap * tanh(y / cap) : y;
            run_expect(r, "Z", m, n, y);
            exps += exp(z);
            sum += z;
            if (run_at(r, "t", m, 0) == (double)n)
                target = z;
            if ((n + 1) % 128 == 0 || n + 1 == columns) {
                run_expect(r, "L", m, n / 128, log(exps));
                run_expect(r, "Q", m, n / 128, sum);
                exps = sum = 0;
            }
        }
        run_expect(r, "T", m, 0, target);
    }
}

static void check_gemm_lse(struct run *r)
{
    check_head(r, "A", false);
}

static void check_gemm_exp(struct run *r)
{
    int64_t columns = run_size(r, "V");
    for (int64_t m = 0; m < run_size(r, "M"); m++) {
        double picked = 0, sum = 0;
        for (int64_t n = 0; n < columns; n++) {
            double z = dot(r, "A", "W", true, m, n), e = exp(z - run_at(r, "c", m, 0));
            picked = n == run_at(r, "t", m, 0) ? z : picked;
            sum += e;
            run_expect(r, "E", m, n, e);
            if (n % 128 == 127 || n + 1 == columns) {
                run_expect(r, "S", m, n / 128, sum);
                sum = 0;
            }
        }
        run_expect(r, "T", m, 0, picked);
    }
}

static void check_gemm_lse_again(struct run *r)
{
    int64_t columns = run_size(r, "V");
    for (int64_t m = 0; m < run_size(r, "M"); m++) {
        double sum = 0;
        for (int64_t n = 0; n < columns; n++) {
            sum += exp(dot(r, "A", "W", true, m, n));
            if (n % 128 == 127 || n + 1 == columns) {
                run_expect(r, "L", m, n / 128, log(sum));
                sum = 0;
            }
        }
    }
}

static void check_cross_entropy_patch(struct run *r)
{
    for (int64_t m = 0; m < run_size(r, "M"); m++) {
        double sum = row_sum(r, "S", m), t = run_at(r, "t", m, 0), lse = run_at(r, "c", m, 0) + log(sum);
        double weight = t == run_parameter(r, "ignore") ? 0 : run_at(r, "w", m, 0);
        run_expect(r, "ce", m, 0, (lse - run_at(r, "T", m, 0)) * weight);
        run_expect(r, "s", m, 0, weight / sum);
        run_expect(r, "marked", m, 0, fabs(log(sum)) >= 45);
        for (int64_t n = 0; n < run_size(r, "V"); n++)
            run_expect(r, "E", m, n,
                       n == t ? sum * (fmin(exp(run_at(r, "T", m, 0) - lse), 1) - 1) : run_at(r, "E", m, n));
    }
}

static void check_gemm_rms_lse(struct run *r)
{
    check_head(r, "H", true);
}

static void check_cross_entropy_loss(struct run *r)
{
    double smoothing = run_parameter(r, "smoothing");
    for (int64_t m = 0; m < run_size(r, "M"); m++) {
        double lse = row_logsumexp(r, "L", m), mean = row_sum(r, "Q", m) / (double)run_size(r, "V");
        double weight =
            run_at(r, "t", m, 0) == run_parameter(r, "ignore") ? 0 : run_at(r, "w", m, 0) / run_parameter(r, "divisor");
        run_expect(r, "ce", m, 0, (lse - (1 - smoothing) * run_at(r, "T", m, 0) - smoothing * mean) * weight);
        run_expect(r, "zl", m, 0, run_parameter(r, "zloss") * lse * lse * weight);
    }
}

static void check_cross_entropy_bwd(struct run *r)
{
    double smoothing = run_parameter(r, "smoothing"), cap = run_parameter(r, "cap");
    int64_t columns = run_size(r, "V");
    for (int64_t m = 0; m < run_size(r, "M"); m++) {
        double lse = row_logsumexp(r, "L", m), sum = 0;
        double weight =
            run_at(r, "t", m, 0) == run_parameter(r, "ignore") ? 0 : run_at(r, "w", m, 0) / run_parameter(r, "divisor");
        for (int64_t n = 0; n < columns; n++) {
            double y = run_at(r, "Z", m, n), z = cap > 0 ? cap * tanh(y / cap) : y;
            double dz = exp(z - lse) * (1 + 2 * run_parameter(r, "zloss") * lse) - smoothing / (double)columns;
            dz -= run_at(r, "t", m, 0) == (double)n ? 1 - smoothing : 0;
            double dy = dz * weight * (cap > 0 ? 1 / pow(cosh(y / cap), 2) : 1);
            run_expect(r, "dZ", m, n, dy);
            sum += y * dy;
            if ((n + 1) % 128 == 0 || n + 1 == columns) {
                run_expect(r, "c", m, n / 128, sum);
                sum = 0;
            }
        }
    }
}

/* Column n of row m of x, rotated by `direction` times the row's angles; columns from `limit` on pass through. */
static double rotated(const struct run *r, const double *x, int64_t m, int64_t n, int64_t limit, double direction)
{
    int64_t width = run_size(r, "D"), i = n % width, head = n - i, half = width / 2,
            p = (int64_t)run_at(r, "pos", m, 0);
    if (n >= limit)
        return x[n];
    double c = run_at(r, "table", p, i % half), s = direction * run_at(r, "table", p, half + i % half);
    return i < half ? x[head + i] * c - x[head + half + i] * s : x[head + i] * c + x[head + i - half] * s;
}

static void check_gemm_rope(struct run *r)
{
    int64_t columns = run_size(r, "N");
    double *x = calloc((size_t)columns, sizeof *x);
    for (int64_t m = 0; m < run_size(r, "M"); m++) {
        for (int64_t n = 0; n < columns; n++)
            x[n] = dot(r, "A", "W", true, m, n);
        for (int64_t n = 0; n < columns; n++)
            run_expect(r, "Y", m, n, rotated(r, x, m, n, columns, 1));
    }
    free(x);
}

static void check_rope_bwd(struct run *r)
{
    int64_t columns = run_size(r, "N");
    double *x = calloc((size_t)columns, sizeof *x);
    for (int64_t m = 0; m < run_size(r, "M"); m++) {
        double sum = 0;
        for (int64_t n = 0; n < columns; n++)
            x[n] = run_at(r, "dY", m, n);
        for (int64_t n = 0; n < columns; n++) {
            run_expect(r, "dZ", m, n, rotated(r, x, m, n, run_size(r, "T"), -1));
            sum += x[n] * run_at(r, "Y", m, n);
            if ((n + 1) % 128 == 0 || n + 1 == columns) {
                run_expect(r, "c", m, n / 128, sum);
                sum = 0;
            }
        }
    }
    free(x);
}

/* z = r (H [Wq; Wk; Wv]^T) */
static double qkv(const struct run *r, int64_t m, int64_t n)
{
    int64_t q = run_size(r, "Q"), e = run_size(r, "E");
    double d = n < q       ? dot(r, "H", "Wq", true, m, n)
               : n < q + e ? dot(r, "H", "Wk", true, m, n - q)
                           : dot(r, "H", "Wv", true, m, n - q - e);
    return d * rstd(r, m);
}

static void check_gemm_rms_rope(struct run *r)
{
    int64_t columns = run_size(r, "N");
    double *x = calloc((size_t)columns, sizeof *x);
    for (int64_t m = 0; m < run_size(r, "M"); m++) {
        run_expect(r, "R", m, 0, rstd(r, m));
        for (int64_t n = 0; n < columns; n++)
            x[n] = qkv(r, m, n);
        for (int64_t n = 0; n < columns; n++)
            run_expect(r, "Y", m, n, rotated(r, x, m, n, run_size(r, "T"), 1));
    }
    free(x);
}

static void check_gemm_qknorm_rope(struct run *r)
{
    int64_t columns = run_size(r, "N"), width = run_size(r, "D"), q = run_size(r, "Q"), limit = run_size(r, "T");
    double *z = calloc((size_t)columns, sizeof *z), *x = calloc((size_t)columns, sizeof *x);
    for (int64_t m = 0; m < run_size(r, "M"); m++) {
        run_expect(r, "R", m, 0, rstd(r, m));
        for (int64_t n = 0; n < columns; n++) {
            x[n] = z[n] = qkv(r, m, n);
            run_expect(r, "Z", m, n, z[n]);
        }
        for (int64_t n = 0; n < limit; n++) {
            double sum = 0;
            for (int64_t i = 0; i < width; i++)
                sum += pow(z[n - n % width + i], 2);
            x[n] *= run_at(r, n < q ? "gq" : "gk", n % width, 0) / sqrt(sum / (double)width + run_parameter(r, "eps"));
        }
        for (int64_t n = 0; n < columns; n++)
            run_expect(r, "Y", m, n, rotated(r, x, m, n, limit, 1));
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
