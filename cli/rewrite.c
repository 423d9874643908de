#include "cli.h"

static const char help[] =
    "usage: coda rewrite [options] FILE...\n"
    "\n"
    "Turns each block into programs and prints them in the order to run; says on stderr which rule did\n"
    "what.\n"
    "\n"
    "  --grad          also derive the backward programs\n"
    "  --allow-passes  allow extra elementwise passes where no rule removes a whole-row reduction\n"
    "  --program NAME  only this block of the files\n"
    "\n"
    "Exit status: 0 good, 1 no rule serves a statement or the text is wrong, 2 bad usage.\n";

static int rewrite(const struct arguments *arguments, const coda_program *program)
{
    coda_rewrite_options options = {.backward = arguments->backward, .allow_passes = arguments->passes};
    coda_module *module;
    coda_error error;
    char *text = NULL;
    if (coda_rewrite(program, &options, &module, &text, &error) != CODA_OK)
        return report(arguments->command, &error);
    if (text)
        fprintf(stderr, "%s\n", text);
    coda_free(text);
    int status = print_module(arguments->command, module);
    coda_module_free(module);
    return status;
}

int command_rewrite(int argc, char **argv)
{
    struct arguments arguments = {0};
    int status = read_arguments(&arguments, "grad allow-passes program", help, argc, argv);
    if (status >= 0)
        return status;
    if (arguments.file_count == 0)
        return usage_error(arguments.command, "expected at least one file");
    return for_each_program(&arguments, rewrite);
}
