#include "cli.h"

static const char help[] = "usage: coda grad [options] FILE...\n"
                           "\n"
                           "Derives the backward of each program and prints the programs in the order to run.\n"
                           "\n"
                           "  --wrt a,b       the `in`s to differentiate for; all floating-point ones without it\n"
                           "  --save x,y      values to keep from the forward instead of recomputing them\n"
                           "  --program NAME  only this program of the files\n"
                           "\n"
                           "Exit status: 0 good, 1 a rule is missing or the text is wrong, 2 bad usage.\n";

int print_module(const char *command, const coda_module *module)
{
    for (int i = 0; i < coda_module_size(module); i++) {
        char *text = coda_program_text(coda_module_program(module, i));
        if (!text) {
            fprintf(stderr, "coda %s: out of memory\n", command);
            return EXIT_FAILED;
        }
        printf("%s%s", i ? "\n" : "", text);
        coda_free(text);
    }
    return EXIT_GOOD;
}

static int differentiate(const struct arguments *arguments, const coda_program *program)
{
    coda_module *backward;
    coda_error error;
    if (coda_differentiate(program, arguments->wrt, arguments->save, &backward, &error) != CODA_OK)
        return report(arguments->command, &error);
    int status = print_module(arguments->command, backward);
    coda_module_free(backward);
    return status;
}

int command_grad(int argc, char **argv)
{
    struct arguments arguments = {0};
    int status = read_arguments(&arguments, "wrt save program", help, argc, argv);
    if (status >= 0)
        return status;
    if (arguments.file_count == 0)
        return usage_error(arguments.command, "expected at least one file or program name");
    return for_each_program(&arguments, differentiate);
}
