#include "cli.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
    "usage: coda emit [--target c|cuda|cuda:sm_80] [options] FILE...\n"
    "\n"
    "Prints the source that each program's kernel is generated as: CUDA C text, or the listing of the steps\n"
    "that the CPU device runs. With --cubin, writes the compiled kernel, which needs NVRTC but no GPU.\n"
    "\n"
    "  --target c|cuda   (c)\n"
    "  --cubin           one program's machine code, to standard output where that is no terminal\n"
    "  --output FILE     write to FILE instead\n"
    "  --schedule NAME   portable, direct, warps or copied (CUDA; default: the device's choice)\n"
    "  --dims D=..       sizes of axes that kernels need when they are created (32)\n"
    "  --dtype TYPE      bf16 operands become f32, f16, e4m3 or e5m2 ones\n"
    "  --program NAME    only this program of the files\n"
    "\n"
    "Exit status: 0 good, 1 the program does not compile there, 2 bad usage.\n";

static coda_dims fixed_sizes(const coda_program *program, const coda_dims *dims)
{
    coda_dims fixed = {0};
    for (int i = 0; i < coda_program_axis_count(program); i++) {
        coda_axis axis;
        if (coda_program_axis(program, i, &axis) != CODA_OK || !axis.fixed)
            continue;
        for (int k = 0; k < dims->count; k++)
            if (strcmp(dims->item[k].axis, axis.name) == 0)
                fixed.item[fixed.count++] = dims->item[k];
    }
    return fixed;
}

static int no_binary(const struct arguments *arguments, const coda_device *device)
{
    fprintf(stderr, "coda %s: %s compiles no machine code here\n", arguments->command, coda_device_name(device));
    fprintf(stderr, "%s\n", coda_device_description(device));
    return EXIT_FAILED;
}

static int write_kernel(const struct arguments *arguments, const coda_device *device, const coda_kernel *kernel)
{
    const char *text = coda_kernel_source(kernel);
    const void *content = text;
    size_t size = strlen(text);
    if (arguments->cubin && !(content = coda_kernel_binary(kernel, &size)))
        return no_binary(arguments, device);
    FILE *file = arguments->output ? fopen(arguments->output, "wb") : stdout;
    bool good = file && fwrite(content, 1, size, file) == size;
    if (good && !arguments->cubin)
        good = fputc('\n', file) != EOF;
    if (file && file != stdout)
        good = fclose(file) == 0 && good;
    else if (file)
        good = fflush(file) == 0 && good;
    if (good)
        return EXIT_GOOD;
    fprintf(stderr, "coda %s: %s: %s\n", arguments->command, arguments->output ? arguments->output : "standard output",
            strerror(errno));
    return EXIT_FAILED;
}

static int emit(const struct arguments *arguments, const coda_program *program)
{
    coda_device *device;
    coda_kernel *kernel;
    coda_dims dims;
    coda_error error;
    coda_options options = {.size = sizeof options, .schedule = arguments->schedule};
    int status = choose_sizes(arguments, program, SIZES_SMALL, &dims);
    if (status < 0)
        status = open_device(arguments, &device);
    if (status >= 0)
        return status;
    coda_dims fixed = fixed_sizes(program, &dims);
    if (coda_kernel_create(device, program, &fixed, &options, &kernel, &error) == CODA_OK) {
        status = write_kernel(arguments, device, kernel);
        coda_kernel_free(kernel);
    } else
        status = report(arguments->command, &error);
    coda_device_close(device);
    return status;
}

/* A file holds one kernel, and a terminal none of machine code. */
static int check_destination(struct arguments *arguments)
{
    if (arguments->cubin && strcmp(arguments->target, "c") == 0)
        return usage_error(arguments->command, "--cubin needs --target cuda or cuda:sm_80");
    if (arguments->cubin && !arguments->output && isatty(STDOUT_FILENO))
        return usage_error(arguments->command, "--cubin writes machine code; give --output FILE or redirect");
    if ((arguments->cubin || arguments->output) && !arguments->program && arguments->file_count == 1) {
        struct source source;
        int status = open_source(arguments, arguments->file[0], &source);
        if (status >= 0)
            return status;
        int count = source.count;
        close_source(&source);
        if (count > 1)
            return usage_error(arguments->command, "%s has %d programs; choose one with --program NAME",
                               arguments->file[0], count);
    } else if ((arguments->cubin || arguments->output) && arguments->file_count > 1)
        return usage_error(arguments->command, "--cubin and --output take one program, not %d files",
                           arguments->file_count);
    return -1;
}

int command_emit(int argc, char **argv)
{
    struct arguments arguments = {.target = "c"};
    int status = read_arguments(&arguments, "target dims dtype program cubin output schedule", help, argc, argv);
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
    status = check_destination(&arguments);
    return status >= 0 ? status : for_each_program(&arguments, emit);
}
