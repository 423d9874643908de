#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int find_axis(const coda_program *program, const char *name, size_t length, coda_axis *axis)
{
    for (int i = 0; i < coda_program_axis_count(program); i++)
        if (coda_program_axis(program, i, axis) == CODA_OK && strlen(axis->name) == length &&
            strncmp(axis->name, name, length) == 0)
            return i;
    return -1;
}

static int64_t *size_of(coda_dims *dims, const char *axis)
{
    for (int i = 0; i < dims->count; i++)
        if (strcmp(dims->item[i].axis, axis) == 0)
            return &dims->item[i].size;
    if (dims->count == CODA_MAX_DIMS)
        return NULL;
    dims->item[dims->count].axis = axis;
    dims->item[dims->count].size = 0;
    return &dims->item[dims->count++].size;
}

/* Reads "M=300,N=520". */
static int read_sizes(const struct arguments *arguments, const coda_program *program, coda_dims *dims)
{
    const char *text = arguments->dims;
    while (text && *text) {
        size_t length = strcspn(text, "=,");
        char *end;
        coda_axis axis;
        if (text[length] != '=')
            return usage_error(arguments->command, "--dims %s: expected AXIS=SIZE,AXIS=SIZE", arguments->dims);
        errno = 0;
        long long size = strtoll(text + length + 1, &end, 10);
        if (errno || end == text + length + 1 || size < 1 || (*end && *end != ','))
            return usage_error(arguments->command, "--dims %s: sizes are whole numbers of at least 1", arguments->dims);
        if (find_axis(program, text, length, &axis) < 0)
            return usage_error(arguments->command, "--dims %s: %s has no axis %.*s", arguments->dims,
                               coda_program_name(program), (int)length, text);
        int64_t *place = size_of(dims, axis.name);
        if (place)
            *place = size;
        text = *end ? end + 1 : end;
    }
    return -1;
}

/* Do all sizes together fit the program? The reference looks at them when it makes a kernel. */
static bool fits(coda_device *reference, const coda_program *program, const coda_dims *dims)
{
    coda_kernel *kernel = NULL;
    bool good = coda_kernel_create(reference, program, dims, NULL, &kernel, NULL) == CODA_OK;
    int64_t shape[2];
    for (int i = 0; good && i < coda_program_operand_count(program); i++)
        good = coda_program_operand_shape(program, i, dims, shape, NULL) == CODA_OK;
    coda_kernel_free(kernel);
    return good;
}

static bool was_given(const coda_dims *given, const char *axis)
{
    for (int i = 0; i < given->count; i++)
        if (strcmp(given->item[i].axis, axis) == 0)
            return true;
    return false;
}

/* Multiples of 32 everywhere suit every program; then each free axis becomes odd, or even, if the program still fits.
 */
static void choose_small(const coda_program *program, const coda_dims *given, coda_device *reference, coda_dims *dims)
{
    static const int64_t plain[] = {64, 96, 160, 64, 32, 96, 128, 64};
    static const int64_t odd[] = {37, 85, 149, 53, 29, 91, 133, 61};
    coda_axis axis;
    for (int i = 0; i < coda_program_axis_count(program); i++)
        if (coda_program_axis(program, i, &axis) == CODA_OK && !axis.derived && !was_given(given, axis.name)) {
            int64_t *size = size_of(dims, axis.name);
            if (size)
                *size = axis.fixed ? 32 : plain[i % 8];
        }
    for (int i = 0; i < coda_program_axis_count(program); i++) {
        if (coda_program_axis(program, i, &axis) != CODA_OK || axis.derived || was_given(given, axis.name))
            continue;
        int64_t *size = size_of(dims, axis.name);
        if (!size)
            continue;
        /* An axis that is fixed and no head is one that only runs mention: several of them. */
        const int64_t choice[] = {axis.fixed ? 300 : odd[i % 8], axis.fixed ? 32 : odd[i % 8] + 1, plain[i % 8]};
        for (int k = 0; k < 3; k++) {
            *size = choice[k];
            if (fits(reference, program, dims))
                break;
        }
    }
}

/* A layer of a Llama: tokens rows, heads of 64, a quarter as many key heads, a vocabulary of eight widths. */
static int64_t typical_size(const struct arguments *arguments, const coda_axis *axis)
{
    long width = arguments->width ? arguments->width : 1024, tokens = arguments->tokens ? arguments->tokens : 1024;
    switch (axis->name[1] ? 0 : axis->name[0]) {
    case 'M':
    case 'P':
        return tokens;
    case 'V':
        return 8 * width;
    case 'E':
        return width / 4 > 64 ? width / 4 : 64;
    case 'D':
        return axis->fixed ? 64 : width; /* of a head, or of the model */
    case 'R':
        return (tokens + 63) / 64;
    default:
        return width;
    }
}

static void choose_typical(const struct arguments *arguments, const coda_program *program, const coda_dims *given,
                           coda_dims *dims)
{
    coda_axis axis;
    for (int i = 0; i < coda_program_axis_count(program); i++)
        if (coda_program_axis(program, i, &axis) == CODA_OK && !axis.derived && !was_given(given, axis.name)) {
            int64_t *size = size_of(dims, axis.name);
            if (size)
                *size = typical_size(arguments, &axis);
        }
}

int choose_sizes(const struct arguments *arguments, const coda_program *program, enum size_style style, coda_dims *dims)
{
    coda_device *reference;
    coda_error error;
    memset(dims, 0, sizeof *dims);
    int status = read_sizes(arguments, program, dims);
    if (status >= 0 || style == SIZES_GIVEN)
        return status;
    if (coda_device_open("ref", &reference, &error) != CODA_OK)
        return report(arguments->command, &error);
    coda_dims given = *dims;
    if (style == SIZES_SMALL)
        choose_small(program, &given, reference, dims);
    else
        choose_typical(arguments, program, &given, dims);
    coda_device_close(reference);
    return -1;
}

coda_dims own_sizes(const coda_program *program, const coda_dims *dims)
{
    coda_dims own = {0};
    for (int i = 0; i < dims->count; i++) {
        coda_axis axis;
        if (find_axis(program, dims->item[i].axis, strlen(dims->item[i].axis), &axis) >= 0 && !axis.derived)
            own.item[own.count++] = dims->item[i];
    }
    return own;
}

int choose_parameters(const struct arguments *arguments, const coda_program *program, double *values)
{
    int count = coda_program_parameter_count(program);
    for (int i = 0; i < count; i++)
        coda_program_parameter(program, i, &values[i]);
    const char *text = arguments->parameters;
    while (text && *text) {
        size_t length = strcspn(text, "=,");
        const char *number = text[length] == '=' ? text + length + 1 : text;
        char *end;
        double value = strtod(number, &end);
        if (number == text || end == number || (*end && *end != ','))
            return usage_error(arguments->command, "--param %s: expected NAME=NUMBER,NAME=NUMBER",
                               arguments->parameters);
        int found = -1;
        for (int i = 0; i < count; i++) {
            const char *name = coda_program_parameter(program, i, NULL);
            if (strlen(name) == length && strncmp(name, text, length) == 0)
                found = i;
        }
        if (found < 0)
            return usage_error(arguments->command, "--param %s: %s has no param %.*s", arguments->parameters,
                               coda_program_name(program), (int)length, text);
        values[found] = value;
        text = *end ? end + 1 : end;
    }
    return -1;
}

void print_dims(FILE *file, const coda_dims *dims)
{
    for (int i = 0; i < dims->count; i++)
        fprintf(file, "%s%s=%lld", i ? "," : "", dims->item[i].axis, (long long)dims->item[i].size);
}
