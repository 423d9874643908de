/* `when m`: a launch that does nothing, or all of it. `out X[t]`: one element a row. What of both is refused. */
#include "kit/standard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kit/conditions.h"

enum { ELEMENTS = 517 }; /* of a condition */

static coda_module *parsed(const char *text)
{
    coda_module *module;
    coda_error error = {0};
    if (coda_module_parse(text, strlen(text), NULL, &module, &error) != CODA_OK)
        fail_msg("%s", error.message);
    return module;
}

static void make_trial(struct trial *trial, const coda_program *program)
{
    coda_dims all = {5, {{"M", 70}, {"N", 150}, {"K", 40}, {"R", 30}, {"X", ELEMENTS}}}, dims = {0};
    coda_error error = {0};
    for (int i = 0; i < all.count; i++)
        if (graph_find_axis(program->graph, all.item[i].axis) >= 0)
            dims.item[dims.count++] = all.item[i];
    if (trial_new(trial, program, &dims, 5, (struct layout){GUARD_END, 3}, &error) != CODA_OK)
        fail_msg("%s", error.message);
}

static void set_condition(struct trial *trial, uint32_t first, uint32_t last)
{
    uint32_t *element = trial->tensor[0].data, *initial = trial->initial[0];
    int64_t count = trial->tensor[0].rank ? ELEMENTS : 1;
    memset(element, 0, (size_t)count * sizeof *element);
    element[0] = first;
    element[count - 1] = count > 1 ? last : first;
    memcpy(initial, element, (size_t)count * sizeof *element);
}

/* Outs as they are, in the order of the text, against those of `expected`, whose operands lack the condition. */
static void compare_with(const struct trial *trial, const struct trial *expected, const char *where)
{
    for (int i = 1; i < trial->count; i++) {
        const coda_tensor *a = &trial->tensor[i], *b = &expected->tensor[i - 1];
        size_t bytes = (size_t)(tensor_rows(a) * tensor_columns(a)) * coda_dtype_size(a->dtype);
        unsigned char *found = malloc(bytes), *wanted = malloc(bytes);
        tensor_dense(a, found);
        tensor_dense(b, wanted);
        if (memcmp(found, wanted, bytes))
            fail_msg("%s: %s differs", where, trial->graph->operand[i].name);
        free(found);
        free(wanted);
    }
}

static void copy_inputs(const struct trial *from, struct trial *to)
{
    for (int i = 1; i < from->count; i++)
        memcpy(to->initial[i - 1], from->initial[i],
               (size_t)(tensor_rows(&from->tensor[i]) * tensor_columns(&from->tensor[i])) *
                   coda_dtype_size(from->tensor[i].dtype));
    trial_reset(to, POISON_BYTES);
}

static void a_launch_whose_condition_is_zero_writes_nothing(void **state)
{
    const struct devices *devices = *state;
    char text[512], where[600], touched[512];
    for (int b = 0; b < CONDITIONAL_BODIES; b++)
        for (int c = 0; c < CONDITIONS; c++) {
            struct trial trial, plain;
            conditional_text(text, sizeof text, conditional_bodies[b], conditions[c].type);
            coda_module *with = parsed(text);
            conditional_text(text, sizeof text, conditional_bodies[b], NULL);
            coda_module *without = parsed(text);
            make_trial(&trial, coda_module_program(with, 0));
            make_trial(&plain, coda_module_program(without, 0));
            for (int d = 0; d < devices->count; d++) {
                coda_error error = {0};
                snprintf(where, sizeof where, "%s, condition %d, %s", devices->name[d], c, text);
                set_condition(&trial, conditions[c].first, conditions[c].last);
                trial_reset(&trial, POISON_BYTES);
                copy_inputs(&trial, &plain);
                if (conditions[c].holds)
                    assert_int_equal(trial_run(&plain, devices->device[d], NULL, NULL), CODA_OK);
                if (trial_run(&trial, devices->device[d], NULL, &error) != CODA_OK)
                    fail_msg("%s: %s", where, error.message);
                compare_with(&trial, &plain, where);
                if (!trial_untouched(&trial, touched, sizeof touched))
                    fail_msg("%s: %s", where, touched);
            }
            trial_free(&trial);
            trial_free(&plain);
            coda_module_free(with);
            coda_module_free(without);
        }
}

static void texts_keep_conditions_and_patches(void **state)
{
    (void)state;
    static const char text[] =
        "program p {\n    in  v : f32[M]\n    when v\n    in  t : i32[M]\n    out E[t] : bf16[M, N] = "
        "v\n}\n";
    coda_module *module = parsed(text);
    const coda_program *program = coda_module_program(module, 0);
    char *printed = coda_program_text(program);
    coda_operand operand;
    assert_string_equal(printed, text);
    assert_int_equal(coda_program_condition(program), 0);
    assert_int_equal(coda_program_operand(program, 2, &operand), CODA_OK);
    assert_int_equal(operand.role, CODA_PATCH);
    coda_module *again = parsed(printed);
    assert_true(graph_equal(program->graph, coda_module_program(again, 0)->graph));
    coda_module *other = parsed("program p { in v : f32[M]; in t : i32[M]; out E[t] : bf16[M, N] = v }");
    assert_false(graph_equal(program->graph, coda_module_program(other, 0)->graph));
    assert_int_equal(coda_program_condition(coda_module_program(other, 0)), -1);
    coda_free(printed);
    coda_module_free(module);
    coda_module_free(again);
    coda_module_free(other);
}

static void what_is_no_condition_or_patch_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } refused[] = {
        {"program p { in m : f32[M, N]; when m; out Y : f32[M, N] = m }", "`when` takes a vector or scalar `in`"},
        {"program p { in m : bf16[M]; when m; out Y : f32[M] = m }", "type f32 or i32, found `m` [M] : bf16"},
        {"program p { in m, n : f32[M]; when m; when n; out Y : f32[M] = m }", "a second `when`"},
        {"program p { in m : f32[M]; y = m * m; when y; out Y : f32[M] = y }", "`y` is no `in`"},
        {"program p { in m : f32[M]; when k; out Y : f32[M] = m }", "unknown name `k`"},
        {"block p { in m : f32[M]; when m; out Y : f32[M] = m }", "a block has no `when`"},
        {"program p { in v : f32[M]; out E[v] : f32[M, N] = v }", "an i32 `in` with one id a row"},
        {"program p { in v : f32[M]; in t : i32[N]; out E[t] : f32[M, N] = v }", "an i32 `in` with one id a row"},
        {"program p { in v : f32[N]; in t : i32[M]; out E[t] : f32[M, N] = v }", "takes one value a row, found `v`"},
        {"program p { in v : f32[M]; in t : i32[M]; out E[t] : f32[M, N/2] = v }", "a matrix of whole axes"},
        {"program p { in v : f32[M]; in t : i32[M]; out E[t] : f32[M, N] += v }", "expected `=`"},
        {"program p { in v : f32[M]; in t : i32[M]; out E[t : f32[M, N] = v }", "expected `]`"},
        {"block p { in v : f32[M]; in t : i32[M]; out E[t] : f32[M, N] = v }", "a block patches no out"},
        {"program p { in v : f32[M]; in X : f32[M, N]; in t : i32[M]; out Y : f32[M, N] = X; out E[t] : f32[M, N] = v "
         "}",
         "a program of row vectors does"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        coda_module *module;
        coda_error error = {0};
        assert_int_not_equal(coda_module_parse(refused[i].text, strlen(refused[i].text), NULL, &module, &error),
                             CODA_OK);
        if (!strstr(error.message, refused[i].message))
            fail_msg("%s\n%s\nexpected: %s", refused[i].text, error.message, refused[i].message);
    }
}

static void no_gradient_goes_through_them(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } refused[] = {
        {"program p { in m : f32[M]; when m; out Y : f32[M] = m * m }", "without its condition"},
        {"program p { in v : f32[M]; in t : i32[M]; out E[t] : f32[M, N] = v }", "keeps what another program wrote"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        coda_module *module = parsed(refused[i].text), *backward;
        coda_error error = {0};
        assert_int_equal(coda_differentiate(coda_module_program(module, 0), NULL, NULL, &backward, &error),
                         CODA_UNSUPPORTED);
        assert_non_null(strstr(error.message, refused[i].message));
        coda_module_free(module);
    }
}

/* Blocks of a GPU run in any order: none may write what another one still asks. */
static void no_out_takes_the_memory_of_a_condition_or_of_ids(void **state)
{
    const struct devices *devices = *state;
    static const struct {
        const char *text, *out, *in;
    } refused[] = {
        {"program p { in m : f32[M]; when m; out Y : f32[M] = m * m }", "Y", "m"},
        {"program p { in t : i32[M]; in v : f32[M]; out s : i32[M] = t + v; out E[t] : f32[M, N] = v }", "s", "t"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        for (int d = 0; d < devices->count; d++) {
            struct trial trial;
            coda_error error = {0};
            coda_module *module = parsed(refused[i].text);
            make_trial(&trial, coda_module_program(module, 0));
            trial_alias(&trial, refused[i].out, refused[i].in);
            assert_int_equal(trial_run(&trial, devices->device[d], NULL, &error), CODA_INVALID);
            assert_non_null(strstr(error.message, "shares memory with"));
            trial_free(&trial);
            coda_module_free(module);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_launch_whose_condition_is_zero_writes_nothing),
        cmocka_unit_test(texts_keep_conditions_and_patches),
        cmocka_unit_test(what_is_no_condition_or_patch_is_refused),
        cmocka_unit_test(no_gradient_goes_through_them),
        cmocka_unit_test(no_out_takes_the_memory_of_a_condition_or_of_ids),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
