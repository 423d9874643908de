/* Choices that are measured, remembered and used; timing and graphs. With a driver that runs nothing. */
#include "kit/standard.h"
#include "kit/stub_gpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64];

static int open_cache(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/coda-tune-XXXXXX");
    return mkdtemp(folder) && setenv("CODA_CACHE", folder, 1) == 0 ? 0 : -1;
}

static int remove_cache(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

/* The less shared memory, the faster. */
static float by_shared_memory(const struct stub_counts *counts)
{
    return 1 + 1e-5F * (float)counts->shared_bytes;
}

static coda_device *open_stub(void)
{
    coda_device *device = stub_open();
    stub_copy_parameters(1);
    stub_time(by_shared_memory);
    return device;
}

static const coda_dims sizes = {3, {{"M", 300}, {"N", 256}, {"K", 128}}};

struct seen {
    int count, timed, chosen_count;
    coda_candidate chosen;
    double fastest, first;
};

static void see(void *context, const coda_candidate *candidate)
{
    struct seen *seen = context;
    if (seen->count++ == 0)
        seen->first = candidate->ms;
    if (!candidate->refused) {
        seen->timed++;
        assert_true(candidate->ms > 0);
        if (seen->fastest == 0 || candidate->ms < seen->fastest)
            seen->fastest = candidate->ms;
    }
    if (candidate->chosen) {
        seen->chosen = *candidate;
        seen->chosen_count++;
    }
}

static struct seen tune(coda_device *device, const coda_program *program, const coda_dims *dims,
                        const coda_tune_options *options)
{
    struct seen seen = {0};
    coda_error error = {0};
    if (coda_kernel_tune(device, program, dims, options, see, &seen, &error) != CODA_OK)
        fail_msg("%s", error.message);
    return seen;
}

/* The first variant of a new kernel. */
static struct variant variant_of(coda_device *device, const coda_program *program, const coda_dims *dims,
                                 const coda_options *options, int *count)
{
    coda_kernel *kernel;
    coda_error error = {0};
    if (coda_kernel_create(device, program, dims, options, &kernel, &error) != CODA_OK)
        fail_msg("%s", error.message);
    const struct cuda_kernel *k = kernel->state;
    struct variant variant = k->compiled[0].variant;
    if (count)
        *count = k->variant_count;
    coda_kernel_free(kernel);
    return variant;
}

static bool same_variant(const struct variant *a, const struct variant *b)
{
    return a->mainloop == b->mainloop && a->columns == b->columns && a->bands == b->bands;
}

static void the_fastest_choice_is_remembered_and_used(void **state)
{
    (void)state;
    coda_device *device = open_stub();
    const coda_program *program = standard_program("gemm_residual_rms");
    struct variant before = variant_of(device, program, &sizes, NULL, NULL);
    struct seen seen = tune(device, program, &sizes, NULL);
    assert_int_equal(seen.chosen_count, 1);
    assert_true(seen.timed >= 4);
    assert_true(seen.chosen.ms == seen.fastest && seen.fastest < seen.first);
    int count;
    struct variant after = variant_of(device, program, &sizes, NULL, &count);
    assert_string_equal(mainloop_name(after.mainloop), seen.chosen.options.schedule);
    assert_int_equal(after.columns, seen.chosen.options.tile_columns);
    assert_false(same_variant(&before, &after));
    stub_close(device);
    device = open_stub(); /* another process would read the same */
    struct variant again = variant_of(device, program, &sizes, NULL, NULL);
    assert_true(same_variant(&after, &again));
    assert_non_null(strstr(coda_device_description(device), "tuned: gemm_residual_rms M=300"));
    stub_close(device);
}

/* A kernel whose result depends on how much shared memory its tile takes. */
static void leave_a_trace(const struct stub_counts *counts)
{
    stub_mark_memory((unsigned char)(counts->shared_bytes >> 10));
}

static void see_refusals(void *context, const coda_candidate *candidate)
{
    int *refusals = context;
    *refusals += candidate->refused && strstr(candidate->refused, "other results for");
    if (!candidate->options.schedule)
        assert_true(candidate->chosen);
}

static void candidates_with_other_results_are_refused(void **state)
{
    (void)state;
    coda_device *device = open_stub();
    int refusals = 0;
    coda_error error = {0};
    const coda_program *program = standard_program("gemm_rms_swiglu");
    struct variant before = variant_of(device, program, &sizes, NULL, NULL);
    stub_effect(leave_a_trace);
    if (coda_kernel_tune(device, program, &sizes, NULL, see_refusals, &refusals, &error) != CODA_OK)
        fail_msg("%s", error.message);
    assert_true(refusals >= 2);
    stub_effect(NULL);
    struct variant after = variant_of(device, program, &sizes, NULL, NULL);
    assert_true(same_variant(&before, &after));
    stub_close(device);
}

static void a_choice_holds_for_its_powers_of_two_and_its_program(void **state)
{
    static const struct {
        const char *program;
        coda_dims dims;
        bool holds;
    } rows[] = {
        {"gemm_residual_rms", {3, {{"M", 257}, {"N", 256}, {"K", 65}}}, true},
        {"gemm_residual_rms", {3, {{"M", 512}, {"N", 129}, {"K", 128}}}, true},
        {"gemm_residual_rms", {3, {{"M", 513}, {"N", 256}, {"K", 128}}}, false},
        {"gemm_residual_rms", {3, {{"M", 300}, {"N", 256}, {"K", 64}}}, false},
        {"gemm_residual_rms", {2, {{"M", 300}, {"N", 256}}}, false},
        {"gemm_residual_rms", {0}, false},
        {"gemm", {3, {{"M", 300}, {"N", 256}, {"K", 128}}}, false},
    };
    (void)state;
    coda_device *device = open_stub();
    tune(device, standard_program("gemm_residual_rms"), &sizes,
         &(coda_tune_options){.size = sizeof(coda_tune_options), .schedule = ""});
    struct variant own[sizeof rows / sizeof *rows];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        own[i] = variant_of(device, standard_program(rows[i].program), &rows[i].dims, NULL, NULL);
    tune(device, standard_program("gemm_residual_rms"), &sizes, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct variant now = variant_of(device, standard_program(rows[i].program), &rows[i].dims, NULL, NULL);
        if (same_variant(&own[i], &now) == rows[i].holds)
            fail_msg("row %zu: the choice %s", i, rows[i].holds ? "is not used" : "is used");
    }
    coda_options named = {.size = sizeof named, .schedule = "direct"};
    struct variant direct = variant_of(device, standard_program("gemm_residual_rms"), &sizes, &named, NULL);
    assert_string_equal(mainloop_name(direct.mainloop), "direct");
    stub_close(device);
}

static void a_choice_is_found_under_other_names(void **state)
{
    static const char text[] =
        "program other { in B : bf16[T, C]; in V : bf16[D, C]; in R : bf16[T, D]; in h : bf16[D]; "
        "y = B @ V.T + R; out Y : bf16[T, D] = y; out Q : f32[T, D/128] = sum(y * y, D:128); out "
        "G : bf16[T, D] = y * h }";
    coda_module *module;
    coda_error error = {0};
    (void)state;
    coda_device *device = open_stub();
    struct seen seen = tune(device, standard_program("gemm_residual_rms"), &sizes, NULL);
    if (coda_module_parse(text, strlen(text), "other", &module, &error) != CODA_OK)
        fail_msg("%s", error.message);
    coda_dims dims = {3, {{"T", 300}, {"D", 256}, {"C", 128}}};
    struct variant found = variant_of(device, coda_module_program(module, 0), &dims, NULL, NULL);
    assert_int_equal(found.columns, seen.chosen.options.tile_columns);
    assert_string_equal(mainloop_name(found.mainloop), seen.chosen.options.schedule);
    coda_module_free(module);
    stub_close(device);
}

static void choices_can_be_set_and_forgotten(void **state)
{
    (void)state;
    coda_device *device = open_stub();
    const coda_program *program = standard_program("gemm_rms");
    struct variant own = variant_of(device, program, &sizes, NULL, NULL);
    coda_tune_options options = {.size = sizeof options, .schedule = "portable"};
    assert_int_equal(coda_kernel_tune(device, program, &sizes, &options, NULL, NULL, NULL), CODA_OK);
    struct variant set = variant_of(device, program, &sizes, NULL, NULL);
    assert_string_equal(mainloop_name(set.mainloop), "portable");
    options.schedule = "";
    assert_int_equal(coda_kernel_tune(device, program, &sizes, &options, NULL, NULL, NULL), CODA_OK);
    struct variant after = variant_of(device, program, &sizes, NULL, NULL);
    assert_true(same_variant(&own, &after));
    stub_close(device);
}

static void a_hopper_choice_keeps_a_variant_for_any_operands(void **state)
{
    (void)state;
    coda_device *device = open_stub();
    coda_tune_options options = {.size = sizeof options, .schedule = "direct"};
    int count;
    assert_int_equal(coda_kernel_tune(device, standard_program("gemm"), &sizes, &options, NULL, NULL, NULL), CODA_OK);
    struct variant first = variant_of(device, standard_program("gemm"), &sizes, NULL, &count);
    assert_string_equal(mainloop_name(first.mainloop), "direct");
    assert_int_equal(count, 2);
    stub_close(device);
}

static void damaged_records_are_ignored(void **state)
{
    char command[256];
    (void)state;
    coda_device *device = open_stub();
    const coda_program *program = standard_program("gemm_rms");
    struct variant own = variant_of(device, program, &sizes, NULL, NULL);
    coda_tune_options options = {.size = sizeof options, .schedule = "portable"};
    assert_int_equal(coda_kernel_tune(device, program, &sizes, &options, NULL, NULL, NULL), CODA_OK);
    snprintf(command, sizeof command,
             "for f in %s/*.tune; do printf X | dd of=$f bs=1 seek=60 conv=notrunc 2>/dev/null; done", folder);
    assert_int_equal(system(command), 0);
    struct variant after = variant_of(device, program, &sizes, NULL, NULL);
    assert_true(same_variant(&own, &after));
    stub_close(device);
}

static void what_cannot_be_tuned_is_refused(void **state)
{
    coda_error error = {0};
    coda_tune_options options = {.size = sizeof options, .schedule = "fast"};
    (void)state;
    coda_device *device = open_stub(), *cpu;
    assert_int_equal(coda_kernel_tune(device, standard_program("gemm"), &sizes, &options, NULL, NULL, &error),
                     CODA_INVALID);
    assert_non_null(strstr(error.message, "\"fast\""));
    options.schedule = "cublas"; /* an epilogue is no product alone */
    assert_int_equal(coda_kernel_tune(device, standard_program("gemm_rms"), &sizes, &options, NULL, NULL, &error),
                     CODA_UNSUPPORTED);
    assert_non_null(strstr(error.message, "no product alone"));
    options = (coda_tune_options){.size = sizeof options, .rounds = -1};
    assert_int_equal(coda_kernel_tune(device, standard_program("gemm"), &sizes, &options, NULL, NULL, &error),
                     CODA_INVALID);
    stub_close(device);
    assert_int_equal(coda_device_open("cpu", &cpu, NULL), CODA_OK);
    assert_int_equal(coda_kernel_tune(cpu, standard_program("gemm"), &sizes, NULL, NULL, NULL, &error),
                     CODA_UNSUPPORTED);
    coda_device_close(cpu);
    setenv("CODA_CACHE", "off", 1);
    device = open_stub();
    assert_int_equal(coda_kernel_tune(device, standard_program("gemm"), &sizes, NULL, NULL, NULL, &error),
                     CODA_UNSUPPORTED);
    assert_non_null(strstr(error.message, "CODA_CACHE"));
    stub_close(device);
    setenv("CODA_CACHE", folder, 1);
}

/* ---------------------------------------------------------------- cuBLASLt */

static void products_of_the_library_need_sizes_and_the_library(void **state)
{
    coda_error error = {0};
    coda_kernel *kernel;
    coda_options options = {.size = sizeof options, .schedule = "cublas"};
    (void)state;
    coda_device *device = open_stub();
    coda_status status = coda_kernel_create(device, standard_program("gemm"), NULL, &options, &kernel, &error);
    assert_int_equal(status, CODA_UNSUPPORTED);
    assert_non_null(strstr(error.message, "size of every axis"));
    status = coda_kernel_create(device, standard_program("gemm_rms_swiglu"), &sizes, &options, &kernel, &error);
    assert_int_equal(status, CODA_UNSUPPORTED);
    stub_close(device);
}

/* ---------------------------------------------------------------- timing and graphs */

struct work {
    int calls;
    void *stream;
};

static coda_status note_call(void *context, void *stream, coda_error *error)
{
    struct work *work = context;
    (void)error;
    work->calls++;
    work->stream = stream;
    return CODA_OK;
}

static coda_status refuse_call(void *context, void *stream, coda_error *error)
{
    (void)context, (void)stream;
    if (error)
        snprintf(error->message, sizeof error->message, "refused");
    return CODA_UNSUPPORTED;
}

static void graphs_replay_what_was_captured_or_call_again(void **state)
{
    coda_graph *graph;
    struct work work = {0};
    (void)state;
    coda_device *device = open_stub(), *cpu;
    assert_int_equal(coda_graph_create(device, note_call, &work, &graph, NULL), CODA_OK);
    assert_int_equal(work.calls, 1);
    assert_non_null(work.stream);
    assert_int_equal(coda_graph_launch(graph, NULL, NULL), CODA_OK);
    assert_int_equal(coda_graph_launch(graph, NULL, NULL), CODA_OK);
    assert_int_equal(work.calls, 1);
    assert_int_equal(stub_counts()->replays, 2);
    coda_graph_free(graph);
    assert_int_equal(coda_graph_create(device, refuse_call, &work, &graph, NULL), CODA_UNSUPPORTED);
    stub_close(device);
    assert_int_equal(coda_device_open("cpu", &cpu, NULL), CODA_OK);
    assert_int_equal(coda_graph_create(cpu, note_call, &work, &graph, NULL), CODA_OK);
    assert_int_equal(work.calls, 1);
    assert_int_equal(coda_graph_launch(graph, NULL, NULL), CODA_OK);
    assert_int_equal(work.calls, 2);
    coda_graph_free(graph);
    coda_device_close(cpu);
    coda_graph_free(NULL);
}

static void time_is_taken_around_all_calls(void **state)
{
    static const char *const names[] = {"cpu", "stub"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        coda_device *device;
        struct work work = {0};
        coda_error error = {0};
        double ms = -1;
        if (i)
            device = open_stub();
        else
            assert_int_equal(coda_device_open(names[i], &device, NULL), CODA_OK);
        assert_int_equal(coda_time(device, note_call, &work, 5, &ms, NULL), CODA_OK);
        assert_int_equal(work.calls, 5);
        assert_true(ms >= 0);
        ms = -1;
        assert_int_equal(coda_time(device, refuse_call, &work, 5, &ms, &error), CODA_UNSUPPORTED);
        assert_string_equal(error.message, "refused");
        assert_true(ms == -1);
        assert_int_equal(coda_time(device, note_call, &work, 0, &ms, &error), CODA_INVALID);
        coda_device_close(device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fastest_choice_is_remembered_and_used),
        cmocka_unit_test(candidates_with_other_results_are_refused),
        cmocka_unit_test(a_choice_holds_for_its_powers_of_two_and_its_program),
        cmocka_unit_test(a_choice_is_found_under_other_names),
        cmocka_unit_test(choices_can_be_set_and_forgotten),
        cmocka_unit_test(a_hopper_choice_keeps_a_variant_for_any_operands),
        cmocka_unit_test(damaged_records_are_ignored),
        cmocka_unit_test(what_cannot_be_tuned_is_refused),
        cmocka_unit_test(products_of_the_library_need_sizes_and_the_library),
        cmocka_unit_test(graphs_replay_what_was_captured_or_call_again),
        cmocka_unit_test(time_is_taken_around_all_calls),
    };
    return cmocka_run_group_tests(tests, open_cache, remove_cache);
}
