#include "standard.h"

#include "sets.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

int open_devices(void **state)
{
    static const char *const sets[] = {"portable", "avx2", "avx512", "avx512bf16", "amx"};
    static struct devices devices;
    devices.count = 0;
    assert_int_equal(coda_device_open("ref", &devices.device[0], NULL), CODA_OK);
    snprintf(devices.name[0], sizeof devices.name[0], "ref");
    devices.standard[devices.count++] = STANDARD_DOUBLE;
    print_message("devices: ref");
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        coda_device *device;
        setenv("CODA_CPU", sets[i], 1);
        if (!wanted_set(sets[i]) || coda_device_open("cpu", &device, NULL) != CODA_OK)
            continue;
        snprintf(devices.name[devices.count], sizeof devices.name[0], "cpu (%s)", sets[i]);
        devices.standard[devices.count] = STANDARD_EXACT;
        devices.device[devices.count++] = device;
        print_message(", cpu (%s)", sets[i]);
    }
    print_message("\n");
    unsetenv("CODA_CPU");
    *state = &devices;
    return devices.count >= 2 ? 0 : -1; /* portable C runs everywhere, where no other set is asked for */
}

int close_devices(void **state)
{
    struct devices *devices = *state;
    for (int i = 0; i < devices->count; i++)
        coda_device_close(devices->device[i]);
    return 0;
}

bool quick(void)
{
    return getenv("CODA_TEST_QUICK") != NULL;
}

const coda_module *standard_module(void)
{
    const coda_module *module = NULL;
    coda_error error = {0};
    if (coda_standard_module(&module, &error) != CODA_OK)
        fail_msg("%s", error.message);
    return module;
}

const coda_program *standard_program(const char *name)
{
    const coda_program *program = coda_module_find(standard_module(), name);
    if (!program)
        fail_msg("there is no standard program %s", name);
    return program;
}

static bool sizes_fit(const coda_program *program, const coda_dims *dims)
{
    int64_t sizes[MAX_AXES] = {0};
    struct complaint why;
    for (int i = 0; i < dims->count; i++)
        sizes[graph_find_axis(program->graph, dims->item[i].axis)] = dims->item[i].size;
    return sizes_complete(program->graph, sizes, &why) == CODA_OK &&
           sizes_check(program->graph, sizes, &why) == CODA_OK;
}

void set_size(const coda_program *program, coda_dims *dims, int index, int64_t size)
{
    dims->item[index].size = size;
    if (sizes_fit(program, dims))
        return;
    int64_t head = 16;
    for (int i = 0; i < dims->count; i++)
        if (strcmp(dims->item[i].axis, "D") == 0)
            head = dims->item[i].size;
    dims->item[index].size = (size + head - 1) / head * head;
    assert_true(sizes_fit(program, dims));
}

bool is_length(const char *axis)
{
    return strcmp(axis, "D") == 0 || strcmp(axis, "T") == 0;
}

coda_dims small_sizes(const coda_program *program, int64_t head)
{
    coda_dims dims = {0};
    coda_axis axis;
    for (int i = 0; i < coda_program_axis_count(program); i++) {
        assert_int_equal(coda_program_axis(program, i, &axis), CODA_OK);
        if (axis.derived)
            continue;
        dims.item[dims.count].axis = axis.name;
        dims.item[dims.count++].size = is_length(axis.name) ? head : 3 * head;
    }
    for (int i = 0; i < dims.count; i++)
        if (!is_length(dims.item[i].axis))
            set_size(program, &dims, i, 19 + 8 * i);
    return dims;
}

coda_dims large_sizes(const coda_program *program)
{
    coda_dims dims = small_sizes(program, 32);
    for (int i = 0; i < dims.count; i++)
        if (!is_length(dims.item[i].axis))
            set_size(program, &dims, i, i == 0 ? 150 : 301 - 20 * i);
    return dims;
}

void take_bits(const struct trial *trial, struct bits *bits)
{
    memset(bits, 0, sizeof *bits);
    for (int i = 0; i < trial->count; i++) {
        const coda_tensor *tensor = &trial->tensor[i];
        if (trial->graph->operand[i].role == CODA_IN)
            continue;
        bits->size[i] = (size_t)(tensor_rows(tensor) * tensor_columns(tensor)) * coda_dtype_size(tensor->dtype);
        bits->data[i] = malloc(bits->size[i]);
        assert_non_null(bits->data[i]);
        tensor_dense(tensor, bits->data[i]);
    }
}

void free_bits(struct bits *bits)
{
    for (int i = 0; i < MAX_OPERANDS; i++)
        free(bits->data[i]);
}

const char *differing_out(const struct trial *trial, const struct bits *expected)
{
    struct bits found;
    const char *name = NULL;
    take_bits(trial, &found);
    for (int i = 0; i < trial->count; i++)
        if (found.data[i] && memcmp(found.data[i], expected->data[i], found.size[i]) != 0)
            name = trial->graph->operand[i].name;
    free_bits(&found);
    return name;
}
