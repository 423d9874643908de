/* The CPU device's inner functions, of every instruction set that the machine has: against long double, plain loops and
 * coda_convert. */
#include "cpu/cpu.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct instruction_set *const candidates[] = {
    &instruction_set_portable,
#if defined(__x86_64__) || defined(__i386__)
    &instruction_set_avx2,
    &instruction_set_avx512,
#endif
};
enum { CANDIDATES = sizeof candidates / sizeof *candidates };

static struct {
    unsigned features;
    int count;
    const struct instruction_set *set[CANDIDATES];
} present;

static int find_instruction_sets(void **state)
{
    struct machine machine;
    (void)state;
    cpu_machine_inspect(&machine);
    present.features = machine.features;
    print_message("instruction sets:");
    for (int i = 0; i < CANDIDATES; i++) {
        bool has = !(candidates[i]->needs & ~machine.features);
        print_message(" %s%s", candidates[i]->name, has ? "" : " (not on this machine)");
        if (has)
            present.set[present.count++] = candidates[i];
    }
    print_message("\n");
    return 0;
}

static uint32_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

/* In -4 .. 4. */
static float random_float(uint64_t *seed)
{
    return (float)(next_random(seed) % 8001) / 1000 - 4;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* ---------------------------------------------------------------- elementary functions */

static long double sigmoid(long double a)
{
    return 1 / (1 + expl(-a));
}

static long double gelu(long double a)
{
    return 0.5L * a * erfcl(-a * 0.70710678118654752440084436210484904L);
}

static long double twice_u(long double a)
{
    return 1.59576912160573071175978423973L * (a + 0.044715L * a * a * a);
}

static long double gelu_tanh(long double a)
{
    return a * sigmoid(twice_u(a));
}

static long double silu(long double a)
{
    return a * sigmoid(a);
}

static long double rsqrt(long double a)
{
    return 1 / sqrtl(a);
}

/* Bounds in units in the last place, as src/runtime/elementary.h states them: units + per_square x^2 + per_u |2 u|. `least`:
 * below it the result has that absolute error, because what it is made of leaves the normal range. */
static const struct {
    enum op op;
    long double (*exact)(long double);
    double units, per_square, per_u, least;
} functions[] = {
    {OP_EXP, expl, 2, 0, 0, 1.2e-38},          {OP_LOG, logl, 2, 0, 0, 1.2e-38},
    {OP_SQRT, sqrtl, 0.5001, 0, 0, 1.2e-38},   {OP_RSQRT, rsqrt, 1.5, 0, 0, 1.2e-38},
    {OP_TANH, tanhl, 3, 0, 0, 1.2e-38},        {OP_SIGMOID, sigmoid, 4, 0, 0, 2e-38},
    {OP_SILU, silu, 5, 0, 0, 2e-36},           {OP_GELU, gelu, 8, 1.2, 0, 1e-37},
    {OP_GELU_TANH, gelu_tanh, 8, 0, 3, 2e-36}, {OP_ERF, erfl, 4, 0, 0, 1.2e-38},
};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

static void check_value(const struct instruction_set *isa, int f, float x, float y)
{
    const long double exact = functions[f].exact(x);
    const float nearest = (float)exact;
    if (isnan(nearest) || isinf(nearest)) {
        bool near_limit = isinf(nearest) && fabsl(exact) < 3.4029e38L && fabsf(y) > 3.4028e38f;
        if (isnan(nearest) ? !isnan(y) : y != nearest && !near_limit)
            fail_msg("%s: %s(%a) is %a; expected %a", isa->name, op_name(functions[f].op), (double)x, (double)y,
                     (double)nearest);
        return;
    }
    double units = functions[f].units + functions[f].per_square * (double)x * (double)x +
                   functions[f].per_u * fabs((double)twice_u(x));
    units += isa->needs ? 0 : 2; /* without fused multiply-add */
    double last_place = nearest == 0 ? 0 : ldexp(1, ilogbf(nearest) - 23);
    double bound = fmax(functions[f].least, units * last_place);
    if (!(fabsl(y - exact) <= bound))
        fail_msg("%s: %s(%a) is %a; expected %La within %g: it is off by %.2f units", isa->name,
                 op_name(functions[f].op), (double)x, (double)y, exact, bound, (double)fabsl(y - exact) / last_place);
}

static void elementary_functions_are_within_their_bounds(void **state)
{
    enum { STEP = 9973 }; /* through every exponent and sign */
    (void)state;
    for (int s = 0; s < present.count; s++)
        for (int f = 0; f < FUNCTIONS; f++)
            for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += (uint64_t)ROOM * STEP) {
                float x[ROOM], y[ROOM];
                for (int j = 0; j < ROOM; j++)
                    x[j] = float_of((uint32_t)(bits + (uint64_t)j * STEP));
                struct rows r = {.rows = 1, .width = ROOM, .out = y, .in = {x}};
                present.set[s]->elementwise[functions[f].op][0](&r);
                for (int j = 0; j < ROOM; j++)
                    check_value(present.set[s], f, x[j], y[j]);
            }
}

static void elementary_functions_keep_their_special_values(void **state)
{
    static const struct {
        enum op op;
        float x, y;
    } rows[] = {
        {OP_EXP, -INFINITY, 0},
        {OP_EXP, INFINITY, INFINITY},
        {OP_EXP, 0, 1},
        {OP_LOG, 0, -INFINITY},
        {OP_LOG, 1, 0},
        {OP_LOG, INFINITY, INFINITY},
        {OP_TANH, INFINITY, 1},
        {OP_TANH, -INFINITY, -1},
        {OP_TANH, 0, 0},
        {OP_SIGMOID, INFINITY, 1},
        {OP_SIGMOID, -INFINITY, 0},
        {OP_SIGMOID, 0, 0.5f},
        {OP_ERF, INFINITY, 1},
        {OP_ERF, -INFINITY, -1},
        {OP_GELU, INFINITY, INFINITY},
        {OP_GELU, 0, 0},
        {OP_SILU, INFINITY, INFINITY},
        {OP_RSQRT, 0, INFINITY},
    };
    (void)state;
    for (int s = 0; s < present.count; s++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            float x[ROOM], y[ROOM];
            for (int j = 0; j < ROOM; j++)
                x[j] = rows[i].x;
            struct rows r = {.rows = 1, .width = 1, .out = y, .in = {x}};
            present.set[s]->elementwise[rows[i].op][0](&r);
            if (y[0] != rows[i].y)
                fail_msg("%s: %s(%g) is %g; expected %g", present.set[s]->name, op_name(rows[i].op), (double)rows[i].x,
                         (double)y[0], (double)rows[i].y);
        }
}

/* ---------------------------------------------------------------- forms of one function */

enum { ROWS = 3, WIDTH = 45, STRIDE = 64 };

/* The form in which input k is one value a row gives the bits of the form in which that value stands in every column. */
static void check_masks(const struct instruction_set *isa, rows_function *const forms[SCALAR_MASKS], int arity,
                        const char *name, uint64_t *seed)
{
    static float in[3][ROWS * STRIDE], spread[3][ROWS * STRIDE], out[2][ROWS * STRIDE];
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < ROWS * STRIDE; i++)
            in[k][i] = random_float(seed);
    for (int mask = 0; mask < 1 << arity; mask++) {
        struct rows r = {.rows = ROWS, .width = WIDTH, .out = out[0], .out_stride = STRIDE};
        struct rows plain = r;
        plain.out = out[1];
        for (int k = 0; k < arity; k++) {
            for (int i = 0; i < ROWS * STRIDE; i++)
                spread[k][i] = mask >> k & 1 ? in[k][i / STRIDE * STRIDE] : in[k][i];
            r.in[k] = in[k];
            plain.in[k] = spread[k];
            r.in_stride[k] = plain.in_stride[k] = STRIDE;
        }
        assert_non_null(forms[mask]);
        forms[mask](&r);
        forms[0](&plain);
        for (int i = 0; i < ROWS; i++)
            if (memcmp(out[0] + i * STRIDE, out[1] + i * STRIDE, WIDTH * sizeof(float)))
                fail_msg("%s: %s with mask %d differs in row %d", isa->name, name, mask, i);
    }
}

static void every_primitive_takes_one_value_a_row_for_any_input(void **state)
{
    uint64_t seed = 1;
    (void)state;
    for (int s = 0; s < present.count; s++) {
        for (int op = 0; op < OP_COUNT; op++)
            if (op_is_elementwise((enum op)op))
                check_masks(present.set[s], present.set[s]->elementwise[op], op_arity((enum op)op),
                            op_name((enum op)op), &seed);
        for (int f = 0; f < FUSED_COUNT; f++)
            check_masks(present.set[s], present.set[s]->fused[f], 3, "a fused pair", &seed);
    }
}

static void a_nan_of_a_branch_not_taken_does_not_matter(void **state)
{
    (void)state;
    for (int s = 0; s < present.count; s++) {
        float condition[ROOM] = {1, 0, NAN, -2}, yes[ROOM] = {1, NAN, 3, 4}, no[ROOM] = {NAN, 2, NAN, NAN}, y[ROOM];
        const float expected[4] = {1, 2, 3, 4};
        struct rows r = {.rows = 1, .width = 4, .out = y, .in = {condition, yes, no}};
        present.set[s]->elementwise[OP_WHERE][0](&r);
        assert_memory_equal(y, expected, sizeof expected);
    }
}

static void minima_and_maxima_keep_a_nan(void **state)
{
    static const enum op ops[] = {OP_MIN, OP_MAX, OP_RELU};
    (void)state;
    for (int s = 0; s < present.count; s++)
        for (size_t o = 0; o < sizeof ops / sizeof *ops; o++) {
            float a[ROOM] = {NAN, 1, NAN}, b[ROOM] = {1, NAN, NAN}, y[ROOM];
            struct rows r = {.rows = 1, .width = 3, .out = y, .in = {a, b}};
            present.set[s]->elementwise[ops[o]][0](&r);
            for (int j = 0; j < 3; j++)
                assert_true(isnan(y[j]) || (ops[o] == OP_RELU && j == 1));
        }
}

/* ---------------------------------------------------------------- element types */

static bool same_element(coda_dtype dtype, const void *a, const void *b)
{
    float x, y;
    if (!memcmp(a, b, coda_dtype_size(dtype)))
        return true;
    coda_convert(&x, CODA_F32, a, dtype, 1);
    coda_convert(&y, CODA_F32, b, dtype, 1);
    return dtype != CODA_I32 && isnan(x) && isnan(y); /* NaNs may differ in what they carry */
}

static void storing_rounds_as_coda_convert(void **state)
{
    enum { STEP = 40009 };
    (void)state;
    for (int s = 0; s < present.count; s++)
        for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
            for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += (uint64_t)ROOM * STEP) {
                float x[ROOM];
                char y[ROOM * 4], expected[ROOM * 4];
                for (int j = 0; j < ROOM; j++)
                    x[j] = float_of((uint32_t)(bits + (uint64_t)j * STEP) & (j % 3 ? 0xffffffffu : 0xffff0000u));
                present.set[s]->store[dtype](y, x, ROOM);
                coda_convert(expected, (coda_dtype)dtype, x, CODA_F32, ROOM);
                size_t size = coda_dtype_size((coda_dtype)dtype);
                for (int j = 0; j < ROOM; j++)
                    if (!same_element((coda_dtype)dtype, y + (size_t)j * size, expected + (size_t)j * size))
                        fail_msg("%s: %a as %s", present.set[s]->name, (double)x[j],
                                 coda_dtype_name((coda_dtype)dtype));
            }
}

static void loading_gives_every_code_its_value(void **state)
{
    (void)state;
    for (int s = 0; s < present.count; s++)
        for (int dtype = CODA_BF16; dtype <= CODA_E5M2; dtype++)
            for (uint32_t code = 0; code < (coda_dtype_size((coda_dtype)dtype) == 1 ? 256u : 65536u); code++) {
                float y[ROOM], expected;
                unsigned char element[2] = {(unsigned char)code, (unsigned char)(code >> 8)};
                present.set[s]->load[dtype](y, element, 1);
                coda_convert(&expected, CODA_F32, element, (coda_dtype)dtype, 1);
                if (bits_of(y[0]) != bits_of(expected) && !(isnan(y[0]) && isnan(expected)))
                    fail_msg("%s: code %x of %s is %g; expected %g", present.set[s]->name, code,
                             coda_dtype_name((coda_dtype)dtype), (double)y[0], (double)expected);
            }
}

static void streams_write_what_stores_write(void **state)
{
    uint64_t seed = 5;
    (void)state;
    for (int s = 0; s < present.count; s++)
        for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
            for (int count = 1; present.set[s]->stream[dtype] && count < 150; count += 7)
                for (int shift = 0; shift < 2; shift++) {
                    _Alignas(64) char a[1024] = {0}, b[1024] = {0};
                    float x[192];
                    for (int j = 0; j < 192; j++)
                        x[j] = random_float(&seed);
                    size_t at = (size_t)shift * coda_dtype_size((coda_dtype)dtype);
                    present.set[s]->stream[dtype](a + at, x, count);
                    present.set[s]->stream_end();
                    present.set[s]->store[dtype](b + at, x, count);
                    assert_memory_equal(a, b, sizeof a);
                }
}

/* ---------------------------------------------------------------- reductions */

static double reduce_exactly(int reduction, const float *x, int count)
{
    double sum = 0, top = reduction == REDUCE_ABSMAX ? 0 : -INFINITY;
    for (int j = 0; j < count; j++) {
        sum += (double)x[j];
        top = fmax(top, reduction == REDUCE_ABSMAX ? fabs((double)x[j]) : (double)x[j]);
    }
    if (reduction != REDUCE_LOGSUMEXP)
        return reduction == REDUCE_SUM ? sum : top;
    sum = 0;
    for (int j = 0; j < count; j++)
        sum += exp((double)x[j] - top);
    return top + log(sum);
}

/* As the tile machine does it: a logsumexp is three steps. */
static void reduce_runs(const struct instruction_set *set, int reduction, const struct rows *r, int run)
{
    float top[ROOM], sum[ROOM];
    if (reduction != REDUCE_LOGSUMEXP) {
        set->reduce[reduction](r, run);
        return;
    }
    struct rows part = *r;
    part.out = top;
    set->reduce[REDUCE_MAX](&part, run);
    part.out = sum;
    part.in[1] = top;
    set->sum_exponentials(&part, run);
    set->finish_runs(&(struct rows){.rows = 1, .width = (r->width + run - 1) / run, .out = r->out, .in = {sum, top}});
}

static void runs_reduce_to_what_they_hold_wherever_they_stand(void **state)
{
    static const int runs[] = {1, 2, 3, 7, 8, 16, 31, 32, 48, 64, 100, 128, 300};
    enum { MOST = 300, PLACES = 2 };
    uint64_t seed = 2;
    (void)state;
    for (int s = 0; s < present.count; s++)
        for (int reduction = 0; reduction < REDUCTION_COUNT; reduction++)
            for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
                float x[PLACES * MOST + ROOM], y[ROOM + PLACES * MOST];
                int run = runs[i], last = run / 2 + 1;
                for (int j = 0; j < run; j++)
                    x[j] = x[j + run] = random_float(&seed);
                struct rows r = {.rows = 1, .width = run + (run > 1 ? last : 1), .out = y, .in = {x}};
                reduce_runs(present.set[s], reduction, &r, run);
                double bound = 1e-6 * run;
                assert_true(fabs((double)y[0] - reduce_exactly(reduction, x, run)) <= bound);
                assert_true(fabs((double)y[1] - reduce_exactly(reduction, x, run > 1 ? last : 1)) <= bound);
                r.width = 2 * run;
                reduce_runs(present.set[s], reduction, &r, run);
                assert_true(bits_of(y[0]) == bits_of(y[1]));
            }
}

static void logsumexp_of_infinities_is_no_nan(void **state)
{
    static const struct {
        float x[3], y;
    } rows[] = {{{-INFINITY, -INFINITY, -INFINITY}, -INFINITY},
                {{1, INFINITY, -INFINITY}, INFINITY},
                {{-INFINITY, 2, -INFINITY}, 2},
                {{1e30f, -1e30f, 1e30f}, 1e30f}};
    (void)state;
    for (int s = 0; s < present.count; s++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            float x[ROOM] = {rows[i].x[0], rows[i].x[1], rows[i].x[2]}, y[ROOM];
            struct rows r = {.rows = 1, .width = 3, .out = y, .in = {x}};
            reduce_runs(present.set[s], REDUCE_LOGSUMEXP, &r, 3);
            assert_true(y[0] == rows[i].y);
            float sum[ROOM] = {0}, top[ROOM];
            for (int j = 0; j < ROOM; j++)
                top[j] = -INFINITY;
            for (int k = 0; k < 3; k++) {
                float row[ROOM] = {x[k]};
                struct rows one = {.rows = 1, .width = 1, .out = sum, .in = {row}};
                present.set[s]->accumulate[REDUCE_LOGSUMEXP](&one, top);
            }
            present.set[s]->finish_logsumexp(sum, top, 1);
            assert_true(sum[0] == rows[i].y);
            struct partial partial = {0, -INFINITY};
            for (int k = 0; k < 3; k++)
                present.set[s]->fold[REDUCE_LOGSUMEXP](&partial, x + k, 1);
            assert_true(partial.top == fmaxf(fmaxf(x[0], x[1]), x[2]));
        }
}

/* ---------------------------------------------------------------- microkernels */

static const coda_dtype packed_types[] = {CODA_F32, CODA_BF16, CODA_F16};

static float element_value(coda_dtype dtype, const char *at)
{
    float x;
    coda_convert(&x, CODA_F32, at, dtype, 1);
    return x;
}

/* Where step k of line i stands in a panel of `width` lines: `step` steps of a line lie side by side. */
static int64_t place_in_panel(const struct packing *packing, int width, int64_t k, int i)
{
    return (k / packing->step) * width * packing->step + i * packing->step + k % packing->step;
}

static void check_packing(const struct microkernel *micro, int side, coda_dtype dtype, int depth, bool deep)
{
    const struct packing *packing = &micro->side[side];
    const int width = side ? micro->columns : micro->rows;
    enum { MOST = 64, LONG = 96 };
    const size_t size = coda_dtype_size(dtype), packed = coda_dtype_size(micro->packed);
    static char block[LONG * LONG * 4], panel[MOST * LONG * 4 + 64];
    uint64_t seed = (uint64_t)depth;
    for (int i = 0; i < LONG * LONG; i++) {
        float x = random_float(&seed);
        coda_convert(block + (size_t)i * size, dtype, &x, CODA_F32, 1);
    }
    const int64_t padded = (depth + packing->step - 1) / packing->step * packing->step;
    memset(panel, 0x55, sizeof panel);
    (deep ? packing->deep : packing->wide)[dtype](panel, block, LONG, width, depth);
    for (int64_t k = 0; k < padded; k++)
        for (int i = 0; i < width; i++) {
            float found = element_value(micro->packed, panel + (size_t)place_in_panel(packing, width, k, i) * packed);
            const char *at = block + (size_t)(deep ? i * LONG + k : k * LONG + i) * size;
            float expected = k < depth ? element_value(dtype, at) : 0;
            if (found != expected)
                fail_msg("%s: %s packing of %s, width %d, depth %d: step %d of line %d is %g; expected %g", micro->name,
                         deep ? "deep" : "wide", coda_dtype_name(dtype), width, depth, (int)k, i, (double)found,
                         (double)expected);
        }
    for (size_t i = (size_t)(padded * width) * packed; i < sizeof panel; i++)
        if (panel[i] != 0x55)
            fail_msg("%s: packing of depth %d writes behind its panel", micro->name, depth);
}

static void packing_puts_every_element_in_its_place(void **state)
{
    static const int depths[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48};
    (void)state;
    for (int s = 0; s < present.count; s++)
        for (const struct microkernel *const *micro = present.set[s]->microkernels; *micro; micro++)
            for (size_t t = 0; t < sizeof packed_types / sizeof *packed_types; t++)
                for (size_t d = 0; d < 2 * sizeof depths / sizeof *depths; d++) {
                    const int side = (int)(d % 2), depth = depths[d / 2];
                    if ((*micro)->needs & ~present.features)
                        continue;
                    if ((*micro)->side[side].deep[packed_types[t]])
                        check_packing(*micro, side, packed_types[t], depth, true);
                    if ((*micro)->side[side].wide[packed_types[t]] && depth <= WIDE_STEPS)
                        check_packing(*micro, side, packed_types[t], depth, false);
                }
}

/* Whole numbers of the narrowest tile, wide ones for few threads, and work for every thread where there is enough. */
static void a_launch_takes_wide_tiles_where_they_keep_all_threads_busy(void **state)
{
    (void)state;
    const struct plan plan = {.tile_rows = 96, .tile_columns = 1024, .least_columns = 256};
    static const struct {
        int64_t rows, columns, threads;
        int expected;
    } launches[] = {{2048, 1024, 1, 1024}, {2048, 1024, 2, 1024}, {4096, 4096, 4, 1024}, {1, 1024, 4, 256},
                    {96, 2048, 4, 512},    {96, 256, 8, 1024},    {192, 4096, 2, 1024},  {1024, 1024, 44, 256}};
    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++)
        assert_int_equal(cpu_launch_columns(&plan, launches[i].rows, launches[i].columns, launches[i].threads),
                         launches[i].expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elementary_functions_are_within_their_bounds),
        cmocka_unit_test(elementary_functions_keep_their_special_values),
        cmocka_unit_test(every_primitive_takes_one_value_a_row_for_any_input),
        cmocka_unit_test(a_nan_of_a_branch_not_taken_does_not_matter),
        cmocka_unit_test(minima_and_maxima_keep_a_nan),
        cmocka_unit_test(storing_rounds_as_coda_convert),
        cmocka_unit_test(loading_gives_every_code_its_value),
        cmocka_unit_test(streams_write_what_stores_write),
        cmocka_unit_test(runs_reduce_to_what_they_hold_wherever_they_stand),
        cmocka_unit_test(logsumexp_of_infinities_is_no_nan),
        cmocka_unit_test(a_launch_takes_wide_tiles_where_they_keep_all_threads_busy),
        cmocka_unit_test(packing_puts_every_element_in_its_place),
    };
    return cmocka_run_group_tests(tests, find_instruction_sets, NULL);
}
