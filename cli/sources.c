#include "cli.h"

#include <string.h>
#include <unistd.h>

static bool find_standard(const char *name, struct source *source)
{
    const coda_module *module;
    if (coda_standard_module(&module, NULL) != CODA_OK)
        return false;
    for (int i = 0; i < coda_module_size(module); i++)
        if (strcmp(coda_program_name(coda_module_program(module, i)), name) == 0) {
            *source = (struct source){.module = module, .first = i, .count = 1};
            return true;
        }
    return false;
}

static int retype(const struct arguments *arguments, struct source *source)
{
    coda_module *retyped;
    coda_error error;
    coda_dtype type = CODA_BF16;
    while (type <= CODA_E5M2 && strcmp(coda_dtype_name(type), arguments->dtype) != 0)
        type++;
    if (strcmp(arguments->dtype, "f32") == 0)
        type = CODA_F32;
    else if (type > CODA_E5M2)
        return usage_error(arguments->command, "--dtype %s: expected f32, bf16, f16, e4m3 or e5m2", arguments->dtype);
    if (type == CODA_BF16)
        return -1;
    if (coda_module_retype(source->module, CODA_BF16, type, &retyped, &error) != CODA_OK)
        return report(arguments->command, &error);
    coda_module_free(source->owned);
    source->module = source->owned = retyped;
    return -1;
}

int open_source(const struct arguments *arguments, const char *text, struct source *source)
{
    coda_error error;
    memset(source, 0, sizeof *source);
    if (access(text, F_OK) == 0 || strchr(text, '/') || !find_standard(text, source)) {
        if (access(text, F_OK) != 0 && !strpbrk(text, "/."))
            return usage_error(arguments->command,
                               "%s is neither a file nor a standard program (`coda info` lists them)", text);
        if (coda_module_load(text, &source->owned, &error) != CODA_OK)
            return report(arguments->command, &error);
        source->module = source->owned;
        source->count = coda_module_size(source->module);
    }
    int status = arguments->dtype ? retype(arguments, source) : -1;
    if (status < 0 && arguments->program && !coda_module_find(source->module, arguments->program))
        status = usage_error(arguments->command, "%s holds no program %s", text, arguments->program);
    if (status >= 0)
        close_source(source);
    return status;
}

void close_source(struct source *source)
{
    coda_module_free(source->owned);
    memset(source, 0, sizeof *source);
}

bool is_wanted(const struct arguments *arguments, const coda_program *program)
{
    return !arguments->program || strcmp(arguments->program, coda_program_name(program)) == 0;
}

int for_each_program(const struct arguments *arguments,
                     int (*visit)(const struct arguments *arguments, const coda_program *program))
{
    int worst = EXIT_GOOD;
    for (int k = 0; k < arguments->file_count; k++) {
        struct source source;
        int status = open_source(arguments, arguments->file[k], &source);
        for (int i = 0; status < 0 && i < source.count; i++) {
            const coda_program *program = coda_module_program(source.module, source.first + i);
            int one = is_wanted(arguments, program) ? visit(arguments, program) : EXIT_GOOD;
            worst = one > worst ? one : worst;
        }
        if (status < 0)
            close_source(&source);
        else
            worst = status > worst ? status : worst;
    }
    return worst;
}
