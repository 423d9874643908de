#include "cli.h"

static const char help[] =
    "usage: coda rewrite [options] FILE...\n"
    "\n"
    "Turns each block into programs and prints them in the order to run; says on stderr which rule did\n"
    "what.\n"
    "\n"
    "  --grad            also derive the backward programs\n"
    "  --allow-passes    allow extra elementwise passes where no rule removes a whole-row reduction\n"
    "  --exponentials    with --grad: store exponentials of logits, so that no pass makes the gradient of them\n"
    "  --save a,b        with --grad: values that the forward keeps instead of the backward computing them again\n"
    "  --dims M=..,N=..  sizes: say what each step saves in kernels and bytes\n"
    "  --without N       leave out step N of what is said\n"
    "  --program NAME    only this block of the files\n"
    "  --json            one object a block, a line each: its programs, what was done, and how long it took\n"
    "\n"
    "Exit status: 0 good, 1 no rule serves a statement or the text is wrong, 2 bad usage.\n";

static int print_json(const coda_program *block, const coda_module *module, const char *said, double ms)
{
    struct json json = {stdout, false};
    json_begin(&json);
    json_text(&json, "block", coda_program_name(block));
    json_number(&json, "compile_ms", ms);
    json_array(&json, "programs");
    for (int i = 0; i < coda_module_size(module); i++) {
        const coda_program *program = coda_module_program(module, i);
        char *text = coda_program_text(program);
        json_begin(&json);
        json_text(&json, "name", coda_program_name(program));
        json_text(&json, "text", text ? text : "");
        json_end(&json);
        coda_free(text);
    }
    json_array_end(&json);
    json_text(&json, "report", said ? said : "");
    json_line(&json);
    return EXIT_GOOD;
}

static int rewrite(const struct arguments *arguments, const coda_program *program)
{
    coda_rewrite_options options = {.backward = arguments->backward,
                                    .allow_passes = arguments->passes,
                                    .without = (int)arguments->without,
                                    .save = arguments->save,
                                    .exponentials = arguments->exponentials};
    coda_module *module;
    coda_error error;
    coda_dims dims;
    char *text = NULL;
    int status = arguments->dims ? choose_sizes(arguments, program, SIZES_TYPICAL, &dims) : -1;
    if (status >= 0)
        return status;
    options.dims = arguments->dims ? &dims : NULL;
    double begin = now_ms();
    if (coda_rewrite(program, &options, &module, &text, &error) != CODA_OK)
        return report(arguments->command, &error);
    double ms = now_ms() - begin;
    if (text && !arguments->json)
        fprintf(stderr, "%s\n", text);
    status = arguments->json ? print_json(program, module, text, ms) : print_module(arguments->command, module);
    coda_free(text);
    coda_module_free(module);
    return status;
}

int command_rewrite(int argc, char **argv)
{
    struct arguments arguments = {0};
    int status =
        read_arguments(&arguments, "grad allow-passes exponentials save dims without program json", help, argc, argv);
    if (status >= 0)
        return status;
    if (arguments.file_count == 0)
        return usage_error(arguments.command, "expected at least one file");
    return for_each_program(&arguments, rewrite);
}
