/* Random valid programs from a seed, on every device, against an independent evaluation. A failure prints the program,
 * made as small as it goes by dropping outs. */
#include "kit/generate.h"
#include "kit/standard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PROGRAMS = 400, TEXT = 1 << 14 };

enum outcome { AGREES, UNSUPPORTED, FAILS };

static coda_dims own_dims(const struct generated *generated, const coda_program *program)
{
    coda_dims dims = {0};
    for (int i = 0; i < generated->dims.count; i++) {
        int axis = graph_find_axis(program->graph, generated->dims.item[i].axis);
        if (axis >= 0 && program->graph->axis[axis].term_count == 0)
            dims.item[dims.count++] = generated->dims.item[i];
    }
    return dims;
}

static enum outcome run_on_devices(const struct devices *devices, struct trial *trial, char *why, size_t size)
{
    struct evaluation evaluation;
    const char *reason;
    enum outcome outcome = AGREES;
    if (!evaluate_trial(trial, &evaluation, &reason)) {
        snprintf(why, size, "%s", reason);
        return FAILS;
    }
    for (int d = 0; d < devices->count && outcome == AGREES; d++) {
        coda_error error = {0};
        char text[512];
        coda_device_set_threads(devices->device[d], trial->size[0] % 8 ? 1 : 3, NULL);
        trial_reset(trial, POISON_NAN);
        coda_status status = trial_run(trial, devices->device[d], NULL, &error);
        if (status == CODA_UNSUPPORTED)
            outcome = UNSUPPORTED;
        else if (status != CODA_OK || !compare_outs(trial, &evaluation, devices->standard[d], text, sizeof text) ||
                 !trial_untouched(trial, text, sizeof text))
            outcome = FAILS;
        if (outcome != AGREES)
            snprintf(why, size, "%s: %s", devices->name[d], status == CODA_OK ? text : error.message);
    }
    evaluation_free(&evaluation);
    return outcome;
}

static enum outcome try_program(const struct devices *devices, const struct generated *generated, uint64_t seed,
                                char *why, size_t size)
{
    static char text[TEXT];
    coda_module *module;
    coda_error error = {0};
    struct trial trial;
    generated_text(generated, text, sizeof text);
    if (coda_module_parse(text, strlen(text), "random", &module, &error) != CODA_OK) {
        snprintf(why, size, "%s", error.message);
        return FAILS;
    }
    const coda_program *program = coda_module_program(module, 0);
    coda_dims dims = own_dims(generated, program);
    struct layout layout = {GUARD_END, (int64_t)(seed % 2)};
    enum outcome outcome = FAILS;
    if (trial_new(&trial, program, &dims, seed, layout, &error) == CODA_OK) {
        outcome = run_on_devices(devices, &trial, why, size);
        trial_free(&trial);
    } else
        snprintf(why, size, "%s", error.message);
    coda_module_free(module);
    return outcome;
}

/* Drops outs while the program still fails, then fails the test with what is left. */
static void fail_with_smallest(const struct devices *devices, struct generated *generated, uint64_t seed)
{
    static char text[TEXT], why[5000], last[5000];
    try_program(devices, generated, seed, last, sizeof last);
    for (int out = 0; out < GENERATED_LINES;) {
        struct generated smaller = *generated;
        if (!generated_drop_out(&smaller, out))
            break;
        if (try_program(devices, &smaller, seed, why, sizeof why) == FAILS && !strstr(why, ": error: ")) {
            *generated = smaller;
            snprintf(last, sizeof last, "%s", why);
        } else
            out++;
    }
    generated_text(generated, text, sizeof text);
    for (int i = 0; i < generated->dims.count; i++)
        print_error("%s=%lld ", generated->dims.item[i].axis, (long long)generated->dims.item[i].size);
    print_error("\nseed %llu\n%s%s\n", (unsigned long long)seed, text, last);
    fail();
}

static void random_programs_agree_on_every_device(void **state)
{
    static char why[5000];
    const char *from = getenv("CODA_RANDOM_SEED"), *count = getenv("CODA_RANDOM_COUNT");
    uint64_t first = from ? strtoull(from, NULL, 10) : 1;
    int programs = count ? atoi(count) : quick() ? PROGRAMS / 4 : PROGRAMS, unsupported = 0;
    for (uint64_t seed = first; seed < first + (uint64_t)programs; seed++) {
        struct generated generated;
        generate(&generated, seed, NULL);
        enum outcome outcome = try_program(*state, &generated, seed, why, sizeof why);
        if (outcome == FAILS)
            fail_with_smallest(*state, &generated, seed);
        if (outcome == UNSUPPORTED) {
            print_message("seed %llu: %s\n", (unsigned long long)seed, why);
            unsupported++;
        }
    }
    assert_int_equal(unsupported, 0);
}

static void printed_random_programs_parse_to_the_same_text(void **state)
{
    static char text[TEXT];
    (void)state;
    for (uint64_t seed = 1; seed <= PROGRAMS; seed++) {
        struct generated generated;
        coda_module *module, *again;
        coda_error error = {0};
        generate(&generated, seed, NULL);
        generated_text(&generated, text, sizeof text);
        if (coda_module_parse(text, strlen(text), "random", &module, &error) != CODA_OK)
            fail_msg("%s\n%s", text, error.message);
        char *first = coda_program_text(coda_module_program(module, 0));
        assert_non_null(first);
        if (coda_module_parse(first, strlen(first), "printed", &again, &error) != CODA_OK)
            fail_msg("%s\n%s", first, error.message);
        assert_true(graph_equal(coda_module_program(module, 0)->graph, coda_module_program(again, 0)->graph));
        char *second = coda_program_text(coda_module_program(again, 0));
        assert_string_equal(first, second);
        coda_free(first);
        coda_free(second);
        coda_module_free(module);
        coda_module_free(again);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(printed_random_programs_parse_to_the_same_text),
        cmocka_unit_test(random_programs_agree_on_every_device),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
