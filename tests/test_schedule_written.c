/* The schedule that the compiler derives of a Llama layer against the programs that people wrote for it. */
#include "kit/random_block.h"
#include "kit/scheduled.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* One layer by the standard programs, operands under the names that the compiler gives. */
static const struct {
    const char *program, *operands;
} written[] = {
    {"gemm_residual_rms", "y Wo x g0 X1 S H1"},
    {"gemm_rms_swiglu", "H1 Wg Wu S G U R Y1"},
    {"gemm_residual_rms", "Y1 Wd X1 g1 X S_2 H2"},
    {"gemm_rms_rope", "H2 Wq Wk Wv S_2 table pos QKV R_2"},
    {"rope_bwd", "dQKV QKV table pos dZ c"},
    {"gemm_rms_bwd_qkv", "dZ Wq Wk Wv X g1 R_2 c dX dX2 H2_2 dg1"},
    {"gemm_wgrad", "dZ H2_2 dWq_Wk_Wv"},
    {"gemm_swiglu_bwd", "dX2 Wd G U dG dU c_2 Y1_2"},
    {"gemm_wgrad", "dX2 Y1_2 dWd"},
    {"gemm_rms_bwd_twin", "dG dU Wg Wu X1 g0 R c_2 dX2 dx H1_2 dg0"},
    {"gemm_dgrad", "dx Wo dy"},
    {"gemm_wgrad", "dx y dWo"},
    {"gemm_wgrad", "dG H1_2 dWg"},
    {"gemm_wgrad", "dU H1_2 dWu"},
};

/* Clears what the derived programs gave, to be written again. */
static void forget_outs(struct block_trial *t)
{
    for (int p = 0; p < coda_module_size(t->programs); p++) {
        const coda_program *program = coda_module_program(t->programs, p);
        for (int o = 0; o < coda_program_operand_count(program); o++) {
            coda_operand info;
            assert_int_equal(coda_program_operand(program, o, &info), CODA_OK);
            coda_tensor *value = find(&t->values, info.name);
            if (info.role != CODA_IN)
                memset(value->data, info.role == CODA_OUT ? 0xFF : 0, bytes_of(value));
        }
    }
}

static void run_written(struct block_trial *t, const coda_program *program, const char *names)
{
    coda_tensor operand[16];
    coda_dims dims = {0};
    coda_kernel *kernel;
    coda_error error;
    int count = 0;
    for (; *names; count++) {
        char name[NAME];
        size_t length = strcspn(names, " ");
        snprintf(name, sizeof name, "%.*s", (int)length, names);
        assert_non_null(find(&t->values, name));
        operand[count] = *find(&t->values, name);
        names += length + (names[length] == ' ');
    }
    for (int i = 0; i < coda_program_axis_count(program); i++) {
        coda_axis axis;
        assert_int_equal(coda_program_axis(program, i, &axis), CODA_OK);
        if (axis.fixed && !axis.derived) { /* a head, and the columns that are rotated */
            dims.item[dims.count].axis = axis.name;
            dims.item[dims.count++].size = axis.name[0] == 'D' ? 8 : 24;
        }
    }
    check(coda_kernel_create(t->device, program, &dims, NULL, &kernel, &error), &error);
    check(coda_kernel_launch(kernel, operand, count, NULL, NULL, &error), &error);
    coda_kernel_free(kernel);
}

static void the_derived_layer_agrees_with_the_written_programs(void **state)
{
    (void)state;
    struct block_trial t;
    struct running r;
    coda_error error;
    const coda_module *standard;
    coda_module *retyped;
    coda_schedule_options options = with_backward();
    open_trial(&t, "cpu", "llama3", CODA_F32, 70, 1);
    open_running(&r, &t, &options);
    launch(&r, CODA_FORWARD);
    launch(&r, CODA_BACKWARD);
    forget_outs(&t);
    check(coda_standard_module(&standard, &error), &error);
    check(coda_module_retype(standard, CODA_BF16, CODA_F32, &retyped, &error), &error);
    for (size_t i = 0; i < sizeof written / sizeof *written; i++)
        run_written(&t, coda_module_find(retyped, written[i].program), written[i].operands);
    compare(&r, &t, 1e-6, CODA_FORWARD | CODA_BACKWARD);
    coda_module_free(retyped);
    close_running(&r);
    close_trial(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_derived_layer_agrees_with_the_written_programs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
