#include "cli.h"

#include <string.h>

static const char help[] =
    "usage: coda check [options] FILE...\n"
    "\n"
    "Parses each file (or standard program), infers shapes and checks that every program is block-local. Prints each\n"
    "program's operands, its primitives by class, and what the fusion saves at typical sizes.\n"
    "\n"
    "  --program NAME    only this program of the files\n"
    "  --dims M=..,N=..  sizes for the savings; others are those of a layer (see --width, --tokens)\n"
    "  --width N         width of that layer (1024)\n"
    "  --tokens N        rows of that layer (1024)\n"
    "  --dtype TYPE      bf16 operands become f32, f16, e4m3 or e5m2 ones\n"
    "  --json            one object a program, a line each\n"
    "\n"
    "Exit status: 0 all programs are good, 1 some are not, 2 bad usage.\n";

static const char *role_name(coda_role role)
{
    return role == CODA_IN ? "in" : role == CODA_OUT ? "out" : role == CODA_PATCH ? "patch" : "out +=";
}

static void operand_type(const coda_operand *operand, char *text, size_t size)
{
    if (operand->rank == 0)
        snprintf(text, size, "%s", coda_dtype_name(operand->dtype));
    else if (operand->rank == 1)
        snprintf(text, size, "%s[%s]", coda_dtype_name(operand->dtype), operand->dim[0]);
    else
        snprintf(text, size, "%s[%s, %s]", coda_dtype_name(operand->dtype), operand->dim[0], operand->dim[1]);
}

static void print_text(const coda_program *program, const coda_dims *dims, const coda_cost *cost, int kernels)
{
    coda_operand operand;
    coda_primitives p;
    char type[256];
    printf("%s %s\n", coda_program_is_block(program) ? "block" : "program", coda_program_name(program));
    for (int i = 0; i < coda_program_operand_count(program); i++)
        if (coda_program_operand(program, i, &operand) == CODA_OK) {
            operand_type(&operand, type, sizeof type);
            printf("    %-6s %-6s : %s\n", role_name(operand.role), operand.name, type);
        }
    if (coda_program_condition(program) >= 0 &&
        coda_program_operand(program, coda_program_condition(program), &operand) == CODA_OK)
        printf("    when   %s\n", operand.name);
    for (int i = 0; i < coda_program_parameter_count(program); i++) {
        double value;
        const char *name = coda_program_parameter(program, i, &value);
        printf("    param  %-6s = %g\n", name, value);
    }
    coda_program_primitives(program, &p);
    printf("    %d product%s in %d accumulator%s, %d elementwise, %d pairwise, %d vectors, %d tiles, %d reductions, "
           "%d stateful\n",
           p.gemms, p.gemms == 1 ? "" : "s", p.accumulators, p.accumulators == 1 ? "" : "s", p.elementwise, p.pairwise,
           p.vectors, p.tiles, p.reductions, p.stateful);
    printf("    at ");
    print_dims(stdout, dims);
    if (kernels == 0)
        printf(": unfused %.1f MB in %d kernels; no rules to fuse them (coda rewrite says why)\n",
               cost->unfused_bytes * 1e-6, cost->unfused_kernels);
    else
        printf(": moves %.1f MB in %d kernel%s; unfused %.1f MB in %d (%.2fx)\n", cost->bytes * 1e-6, kernels,
               kernels == 1 ? "" : "s", cost->unfused_bytes * 1e-6, cost->unfused_kernels,
               cost->bytes > 0 ? cost->unfused_bytes / cost->bytes : 1);
}

static void print_json(const char *file, const coda_program *program, const coda_dims *dims, const coda_cost *cost,
                       int kernels)
{
    struct json json = {stdout, false};
    coda_operand operand;
    coda_primitives p;
    char type[256];
    json_begin(&json);
    json_text(&json, "file", file);
    json_text(&json, "program", coda_program_name(program));
    json_bool(&json, "block", coda_program_is_block(program));
    json_array(&json, "operands");
    for (int i = 0; i < coda_program_operand_count(program); i++)
        if (coda_program_operand(program, i, &operand) == CODA_OK) {
            operand_type(&operand, type, sizeof type);
            json_begin(&json);
            json_text(&json, "name", operand.name);
            json_text(&json, "role", role_name(operand.role));
            json_text(&json, "type", type);
            json_end(&json);
        }
    json_array_end(&json);
    if (coda_program_condition(program) >= 0 &&
        coda_program_operand(program, coda_program_condition(program), &operand) == CODA_OK)
        json_text(&json, "when", operand.name);
    coda_program_primitives(program, &p);
    json_number(&json, "gemms", p.gemms);
    json_number(&json, "accumulators", p.accumulators);
    json_number(&json, "elementwise", p.elementwise);
    json_number(&json, "pairwise", p.pairwise);
    json_number(&json, "vectors", p.vectors);
    json_number(&json, "tiles", p.tiles);
    json_number(&json, "reductions", p.reductions);
    json_number(&json, "stateful", p.stateful);
    json_dims(&json, "dims", dims);
    json_number(&json, "kernels", kernels);
    json_number(&json, "bytes", cost->bytes);
    json_number(&json, "unfused_bytes", cost->unfused_bytes);
    json_number(&json, "unfused_kernels", cost->unfused_kernels);
    json_line(&json);
}

/* A program is one kernel; a block costs what the programs that it becomes cost, if rules for it are known: 0 kernels
 * otherwise. */
static coda_status count_cost(const coda_program *program, const coda_dims *dims, coda_cost *cost, int *kernels,
                              coda_error *error)
{
    coda_rewrite_options options = {.allow_passes = 1};
    coda_module *module;
    coda_status status = coda_program_cost(program, dims, cost, error);
    *kernels = 1;
    if (status != CODA_OK || !coda_program_is_block(program))
        return status;
    status = coda_rewrite(program, &options, &module, NULL, error);
    if (status != CODA_OK) {
        *kernels = 0;
        return status == CODA_UNSUPPORTED ? CODA_OK : status;
    }
    *kernels = coda_module_size(module);
    cost->bytes = 0;
    for (int i = 0; i < *kernels && status == CODA_OK; i++) {
        coda_cost part = {0};
        coda_dims own = own_sizes(coda_module_program(module, i), dims);
        status = coda_program_cost(coda_module_program(module, i), &own, &part, error);
        cost->bytes += part.bytes;
    }
    coda_module_free(module);
    return status;
}

static int check_file(const struct arguments *arguments, const char *file)
{
    struct source source;
    int status = open_source(arguments, file, &source);
    if (status >= 0)
        return status;
    status = EXIT_GOOD;
    for (int i = source.first; i < source.first + source.count && status == EXIT_GOOD; i++) {
        const coda_program *program = coda_module_program(source.module, i);
        coda_dims dims;
        coda_cost cost = {0};
        coda_error error;
        int kernels = 1;
        if (!is_wanted(arguments, program))
            continue;
        status = choose_sizes(arguments, program, SIZES_TYPICAL, &dims);
        if (status < 0)
            status = count_cost(program, &dims, &cost, &kernels, &error) == CODA_OK
                         ? EXIT_GOOD
                         : report(arguments->command, &error);
        if (status == EXIT_GOOD && arguments->json)
            print_json(file, program, &dims, &cost, kernels);
        else if (status == EXIT_GOOD)
            print_text(program, &dims, &cost, kernels);
    }
    close_source(&source);
    return status;
}

int command_check(int argc, char **argv)
{
    struct arguments arguments = {0};
    int status = read_arguments(&arguments, "json program dims width tokens dtype", help, argc, argv);
    if (status >= 0)
        return status;
    if (arguments.file_count == 0)
        return usage_error(arguments.command, "expected at least one file or program name");
    int worst = EXIT_GOOD;
    for (int i = 0; i < arguments.file_count; i++) {
        status = check_file(&arguments, arguments.file[i]);
        worst = status > worst ? status : worst;
    }
    return worst;
}
