/* A program taken apart into one program an operator computes the same, and says so in its bytes. */
#include "kit/generate.h"
#include "kit/standard.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_BUFFERS = 512 };

/* Operands of the chain by name. */
struct buffers {
    int count;
    struct {
        const char *name;
        coda_tensor tensor;
        bool owned;
    } item[MAX_BUFFERS];
};

static coda_tensor *find_buffer(struct buffers *buffers, const char *name)
{
    for (int i = 0; i < buffers->count; i++)
        if (strcmp(buffers->item[i].name, name) == 0)
            return &buffers->item[i].tensor;
    return NULL;
}

static coda_tensor *add_buffer(struct buffers *buffers, const char *name, coda_tensor tensor, bool owned)
{
    assert_true(buffers->count < MAX_BUFFERS);
    buffers->item[buffers->count].name = name;
    buffers->item[buffers->count].owned = owned;
    buffers->item[buffers->count].tensor = tensor;
    return &buffers->item[buffers->count++].tensor;
}

static coda_tensor *make_out(struct buffers *buffers, const coda_program *program, int index, const coda_dims *dims)
{
    coda_operand operand;
    coda_tensor tensor = {0};
    assert_int_equal(coda_program_operand(program, index, &operand), CODA_OK);
    if (operand.role == CODA_IN)
        fail_msg("%s reads %s, which nothing wrote", coda_program_name(program), operand.name);
    tensor.dtype = operand.dtype;
    tensor.rank = operand.rank;
    assert_int_equal(coda_program_operand_shape(program, index, dims, tensor.shape, NULL), CODA_OK);
    size_t bytes = (size_t)(tensor_rows(&tensor) * tensor_columns(&tensor)) * coda_dtype_size(operand.dtype);
    tensor.data = malloc(bytes);
    assert_non_null(tensor.data);
    memset(tensor.data, 0xFF, bytes);
    return add_buffer(buffers, operand.name, tensor, true);
}

static void run_step(coda_device *device, const coda_program *program, const struct trial *trial,
                     struct buffers *buffers)
{
    coda_tensor tensor[MAX_OPERANDS];
    double parameter[MAX_OPERANDS];
    coda_error error = {0};
    coda_kernel *kernel;
    int count = coda_program_operand_count(program);
    for (int i = 0; i < count; i++) {
        coda_tensor *found = find_buffer(buffers, program->graph->operand[i].name);
        tensor[i] = found ? *found : *make_out(buffers, program, i, &trial->dims);
    }
    for (int i = 0; i < program->graph->parameter_count; i++)
        for (int j = 0; j < trial->graph->parameter_count; j++)
            if (strcmp(trial->graph->parameter[j].name, program->graph->parameter[i].name) == 0)
                parameter[i] = trial->parameter[j];
    if (coda_kernel_create(device, program, &trial->dims, NULL, &kernel, &error) != CODA_OK)
        fail_msg("%s: %s", coda_program_name(program), error.message);
    if (coda_kernel_launch(kernel, tensor, count, parameter, NULL, &error) != CODA_OK)
        fail_msg("%s: %s", coda_program_name(program), error.message);
    coda_kernel_free(kernel);
}

/* In f32 and double arithmetic, both forms differ by roundings to f32 alone. */
static void compare(const struct trial *trial, int out, const coda_tensor *chain)
{
    const coda_tensor *fused = &trial->tensor[out];
    int64_t count = tensor_rows(fused) * tensor_columns(fused);
    float *expected = malloc((size_t)count * sizeof *expected);
    double error = 0, norm = 0;
    assert_non_null(expected);
    tensor_dense(fused, expected);
    for (int64_t i = 0; i < count; i++) {
        double found = ((const float *)chain->data)[i];
        error += (found - expected[i]) * (found - expected[i]);
        norm += (double)expected[i] * expected[i];
    }
    free(expected);
    if (!(sqrt(error) <= 1e-4 * sqrt(norm) + 1e-5))
        fail_msg("%s: %s is off by %g of %g", coda_program_name(trial->program), trial->graph->operand[out].name,
                 sqrt(error), sqrt(norm));
}

static void check_chain(coda_device *device, const coda_program *program, const coda_dims *dims, uint64_t seed)
{
    struct trial trial;
    struct buffers buffers = {0};
    coda_module *chain;
    coda_error error = {0};
    assert_int_equal(trial_new(&trial, program, dims, seed, (struct layout){0}, NULL), CODA_OK);
    if (coda_unfuse(program, &chain, &error) != CODA_OK)
        fail_msg("%s: %s", coda_program_name(program), error.message);
    for (int i = 0; i < trial.count; i++)
        if (trial.graph->operand[i].role == CODA_IN)
            add_buffer(&buffers, trial.graph->operand[i].name, trial.tensor[i], false);
        else if (trial.graph->operand[i].role != CODA_OUT) {
            coda_tensor own = trial.tensor[i];
            own.data = malloc(trial.memory[i].bytes);
            memcpy(own.data, trial.tensor[i].data, trial.memory[i].bytes);
            add_buffer(&buffers, trial.graph->operand[i].name, own, true);
        }
    assert_int_equal(trial_run(&trial, device, NULL, NULL), CODA_OK);
    for (int i = 0; i < coda_module_size(chain); i++)
        run_step(device, coda_module_program(chain, i), &trial, &buffers);
    for (int i = 0; i < trial.count; i++)
        if (trial.graph->operand[i].role != CODA_IN)
            compare(&trial, i, find_buffer(&buffers, trial.graph->operand[i].name));
    for (int i = 0; i < buffers.count; i++)
        if (buffers.item[i].owned)
            free(buffers.item[i].tensor.data);
    coda_module_free(chain);
    trial_free(&trial);
}

static void unfused_standard_programs_compute_the_same(void **state)
{
    const struct devices *devices = *state;
    coda_module *exact;
    assert_int_equal(coda_module_retype(standard_module(), CODA_BF16, CODA_F32, &exact, NULL), CODA_OK);
    for (int p = 0; p < coda_module_size(exact); p++) {
        const coda_program *program = coda_module_program(exact, p);
        coda_dims dims = small_sizes(program, 16);
        check_chain(devices->device[0], program, &dims, (uint64_t)p);
    }
    coda_module_free(exact);
}

static void one_operator_a_program(void **state)
{
    (void)state;
    for (int p = 0; p < coda_module_size(standard_module()); p++) {
        const coda_program *program = coda_module_program(standard_module(), p);
        coda_module *chain;
        coda_primitives whole, part;
        int products = 0, elementwise = 0;
        assert_int_equal(coda_unfuse(program, &chain, NULL), CODA_OK);
        coda_program_primitives(program, &whole);
        for (int i = 0; i < coda_module_size(chain); i++) {
            coda_program_primitives(coda_module_program(chain, i), &part);
            assert_true(part.gemms == 0 || part.elementwise == 0);
            products += part.gemms;
            elementwise += part.elementwise;
        }
        assert_int_equal(products, whole.gemms);
        assert_true(elementwise >= whole.elementwise);
        coda_module_free(chain);
    }
}

static void unfused_random_programs_compute_the_same(void **state)
{
    static char text[1 << 14];
    const struct devices *devices = *state;
    struct generator_options options = {.differentiable = true}; /* nothing that jumps at a rounding */
    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct generated generated;
        coda_module *module, *exact;
        coda_dims dims = {0};
        generate(&generated, seed, &options);
        generated_text(&generated, text, sizeof text);
        assert_int_equal(coda_module_parse(text, strlen(text), NULL, &module, NULL), CODA_OK);
        assert_int_equal(coda_module_retype(module, CODA_BF16, CODA_F32, &exact, NULL), CODA_OK);
        coda_module_free(module);
        assert_int_equal(coda_module_retype(exact, CODA_F16, CODA_F32, &module, NULL), CODA_OK);
        coda_module_free(exact);
        const coda_program *program = coda_module_program(module, 0);
        for (int i = 0; i < generated.dims.count; i++)
            if (graph_find_axis(program->graph, generated.dims.item[i].axis) >= 0)
                dims.item[dims.count++] = generated.dims.item[i];
        check_chain(devices->device[0], program, &dims, seed);
        coda_module_free(module);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_operator_a_program),
        cmocka_unit_test(unfused_standard_programs_compute_the_same),
        cmocka_unit_test(unfused_random_programs_compute_the_same),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
