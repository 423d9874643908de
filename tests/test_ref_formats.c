/* The reference's own element types, against conversion and against rounding worked out by hand. */
#include "ref/formats.h"
#include "kit/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void every_code_is_the_number_that_conversion_says(void **state)
{
    (void)state;
    for (coda_dtype dtype = CODA_BF16; dtype <= CODA_E5M2; dtype++)
        for (uint32_t code = 0; code < 1u << 8 * coda_dtype_size(dtype); code++) {
            uint16_t wide = (uint16_t)code, stored = 0;
            uint8_t narrow = (uint8_t)code;
            const void *element = coda_dtype_size(dtype) == 1 ? (const void *)&narrow : (const void *)&wide;
            float expected;
            coda_convert(&expected, CODA_F32, element, dtype, 1);
            double got = load_element(dtype, element);
            if (!(got == expected || (isnan(got) && isnan(expected))))
                fail_msg("%s %x is %g; expected %g", coda_dtype_name(dtype), code, got, (double)expected);
            store_element(dtype, &stored, got);
            if (!isnan(got) && memcmp(&stored, element, coda_dtype_size(dtype)) != 0)
                fail_msg("%s %x came back as %x", coda_dtype_name(dtype), code, stored);
            assert_true(round_to(dtype, got) == got || isnan(got));
        }
}

static void rounding_a_float_is_conversion(void **state)
{
    (void)state;
    struct random random = {7};
    for (int i = 0; i < 200000; i++) {
        uint32_t bits = (uint32_t)random_next(&random);
        if (i % 2 == 0) /* exponents near those of the small types */
            bits = (bits & 0x807fffff) | (uint32_t)(100 + random_below(&random, 46)) << 23;
        float x;
        memcpy(&x, &bits, sizeof x);
        for (coda_dtype dtype = CODA_F32; dtype <= CODA_I32; dtype++) {
            uint32_t got = 0, expected = 0;
            store_element(dtype, &got, x);
            coda_convert(&expected, dtype, &x, CODA_F32, 1);
            if (got != expected && !(isnan(x) && dtype != CODA_I32))
                fail_msg("%.9g as %s is %x; expected %x", (double)x, coda_dtype_name(dtype), got, expected);
            if (isnan(x) && dtype != CODA_I32)
                assert_true(isnan(load_element(dtype, &got)));
        }
    }
}

/* Through f32 these would round to the tie first, and then to even. */
static void doubles_round_once(void **state)
{
    (void)state;
    static const struct {
        coda_dtype dtype;
        double from, to;
    } rows[] = {
        {CODA_BF16, 1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-7},
        {CODA_BF16, 1 + 3 * 0x1p-8 - 0x1p-40, 1 + 0x1p-7},
        {CODA_F16, 1 + 0x1p-11 + 0x1p-50, 1 + 0x1p-10},
        {CODA_E4M3, 1 + 0x1p-4 + 0x1p-50, 1.125},
        {CODA_E5M2, -1 - 0x1p-3 - 0x1p-50, -1.25},
        {CODA_E4M3, 464 + 0x1p-40, NAN},
        {CODA_E5M2, 61440 - 0x1p-30, 57344},
        {CODA_F16, 65520 - 0x1p-30, 65504},
        {CODA_F32, 1 + 0x1p-24 + 0x1p-50, 1 + 0x1p-23},
        {CODA_F32, 0x1.ffffffp127, INFINITY},
        {CODA_F32, -0x1p-150, 0},
        {CODA_F32, 0x1p-150 + 0x1p-190, 0x1p-149},
        {CODA_BF16, 0x1p-134 + 0x1p-170, 0x1p-133},
        {CODA_I32, 2147483646.9, 2147483646},
        {CODA_I32, -1e10, -2147483648.0},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        uint32_t code = 0;
        store_element(rows[r].dtype, &code, rows[r].from);
        double stored = load_element(rows[r].dtype, &code), rounded = round_to(rows[r].dtype, rows[r].from);
        bool is_nan = isnan(rows[r].to) && isnan(stored) && isnan(rounded);
        if (!is_nan && (stored != rows[r].to || rounded != rows[r].to))
            fail_msg("%.17g as %s is %.17g and %.17g; expected %.17g", rows[r].from, coda_dtype_name(rows[r].dtype),
                     stored, rounded, rows[r].to);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_is_the_number_that_conversion_says),
        cmocka_unit_test(rounding_a_float_is_conversion),
        cmocka_unit_test(doubles_round_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
