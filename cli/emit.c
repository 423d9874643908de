#include "cli.h"

#include <string.h>

static const char help[] =
    "usage: coda emit [--target c|cuda|cuda:sm_80] [options] FILE...\n"
    "\n"
    "Prints the source that each program's kernel is generated as: CUDA C text, or the listing of the steps\n"
    "that the CPU device runs.\n"
    "\n"
    "  --target c|cuda   (c)\n"
    "  --dims D=..       sizes of axes that kernels need when they are created (32)\n"
    "  --dtype TYPE      bf16 operands become f32, f16, e4m3 or e5m2 ones\n"
    "  --program NAME    only this program of the files\n"
    "\n"
    "Exit status: 0 good, 1 the program does not compile there, 2 bad usage.\n";

static int emit(const struct arguments *arguments, const coda_program *program)
{
    coda_device *device;
    coda_kernel *kernel;
    coda_dims dims, fixed = {0};
    coda_error error;
    int status = choose_sizes(arguments, program, SIZES_SMALL, &dims);
    if (status < 0)
        status = open_device(arguments, &device);
    if (status >= 0)
        return status;
    for (int i = 0; i < coda_program_axis_count(program); i++) {
        coda_axis axis;
        if (coda_program_axis(program, i, &axis) != CODA_OK || !axis.fixed)
            continue;
        for (int k = 0; k < dims.count; k++)
            if (strcmp(dims.item[k].axis, axis.name) == 0)
                fixed.item[fixed.count++] = dims.item[k];
    }
    if (coda_kernel_create(device, program, &fixed, NULL, &kernel, &error) == CODA_OK) {
        puts(coda_kernel_source(kernel));
        coda_kernel_free(kernel);
        status = EXIT_GOOD;
    } else
        status = report(arguments->command, &error);
    coda_device_close(device);
    return status;
}

int command_emit(int argc, char **argv)
{
    struct arguments arguments = {.target = "c"};
    int status = read_arguments(&arguments, "target dims dtype program", help, argc, argv);
    if (status >= 0)
        return status;
    if (strcmp(arguments.target, "c") == 0)
        arguments.device = "cpu";
    else if (strcmp(arguments.target, "cuda") == 0)
        arguments.device = "cuda:sm_90a";
    else if (strncmp(arguments.target, "cuda:", 5) == 0)
        arguments.device = arguments.target;
    else
        return usage_error(arguments.command, "--target %s: expected c, cuda or cuda:sm_80", arguments.target);
    if (arguments.file_count == 0)
        return usage_error(arguments.command, "expected at least one file or program name");
    return for_each_program(&arguments, emit);
}
