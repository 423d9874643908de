#include "cli.h"

#include <string.h>

static const char help[] =
    "usage: coda explain [options] FILE...\n"
    "\n"
    "Prints what a launch computes and moves, fused and unfused, and how long the device needs "
    "at its ceilings, which are\n"
    "measured now: a cache-friendly product and a pass over memory. Of a block: the same of each "
    "program that it becomes, and\n"
    "which rule did what on which statement, with what that saves in kernels and bytes.\n"
    "\n"
    "  --grad            of a block: with its backward programs\n"
    "  --allow-passes    of a block: with extra passes where no rule serves\n"
    "  --device NAME     ref, cpu (the default), cuda or cuda:1\n"
    "  --dims M=..,N=..  sizes; others are those of a layer (see --width, --tokens)\n"
    "  --width N         width of that layer (1024)\n"
    "  --tokens N        rows of that layer (1024)\n"
    "  --program NAME    only this program of the files\n"
    "  --dtype TYPE      bf16 operands become f32, f16, e4m3 or e5m2 ones\n"
    "  --threads N       of the CPU device\n"
    "  --json            one object a program, a line each\n"
    "\n"
    "Exit status: 0 good, 1 the text is wrong or the device failed, 2 bad usage.\n";

struct estimate {
    coda_cost cost;
    struct ceilings ceilings;
    double compute_ms, memory_ms, unfused_memory_ms; /* an epilogue operation counts as 16 of a product's */
};

static void estimate_times(struct estimate *e)
{
    e->compute_ms = (e->cost.flops + 16 * e->cost.elementwise_flops) / e->ceilings.gflops * 1e-6;
    e->memory_ms = e->cost.bytes / e->ceilings.gbytes * 1e-6;
    e->unfused_memory_ms = e->cost.unfused_bytes / e->ceilings.gbytes * 1e-6;
}

/* Measured once a command, not once a program. */
static coda_status ceilings_of(coda_device *device, struct ceilings *ceilings, coda_error *error)
{
    static struct ceilings measured;
    coda_status status = measured.gflops > 0 ? CODA_OK : measure_ceilings(device, &measured, error);
    *ceilings = measured;
    return status;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static void print_text(const coda_program *program, const coda_dims *dims, const struct estimate *e)
{
    printf("%s at ", coda_program_name(program));
    print_dims(stdout, dims);
    printf("\n    products            %10.3f GFLOP\n", e->cost.flops * 1e-9);
    printf("    epilogue            %10.3f GFLOP\n", e->cost.elementwise_flops * 1e-9);
    printf("    bytes, fused        %10.3f MB in 1 kernel\n", e->cost.bytes * 1e-6);
    printf("    bytes, unfused      %10.3f MB in %d kernels (%.2fx)\n", e->cost.unfused_bytes * 1e-6,
           e->cost.unfused_kernels, e->cost.unfused_bytes / larger(e->cost.bytes, 1));
    printf("    intensity           %10.1f FLOP/byte; the device turns at %.1f\n",
           e->cost.flops / larger(e->cost.bytes, 1), e->ceilings.gflops / e->ceilings.gbytes);
    printf("    time, fused         %10.4f ms, bound by %s (%.1f GFLOP/s, %.1f GB/s measured)\n",
           larger(e->compute_ms, e->memory_ms), e->compute_ms > e->memory_ms ? "arithmetic" : "memory",
           e->ceilings.gflops, e->ceilings.gbytes);
    printf("    time, unfused       %10.4f ms, the product and then a pass an operator\n",
           larger(e->compute_ms, e->memory_ms) + larger(0, e->unfused_memory_ms - e->memory_ms));
}

static void print_json(const coda_program *program, const coda_dims *dims, const char *device, const struct estimate *e)
{
    struct json json = {stdout, false};
    json_begin(&json);
    json_text(&json, "program", coda_program_name(program));
    json_text(&json, "device", device);
    json_dims(&json, "dims", dims);
    json_number(&json, "flops", e->cost.flops);
    json_number(&json, "elementwise_flops", e->cost.elementwise_flops);
    json_number(&json, "bytes", e->cost.bytes);
    json_number(&json, "unfused_bytes", e->cost.unfused_bytes);
    json_number(&json, "unfused_kernels", e->cost.unfused_kernels);
    json_number(&json, "gflops_ceiling", e->ceilings.gflops);
    json_number(&json, "gbytes_ceiling", e->ceilings.gbytes);
    json_number(&json, "ms", larger(e->compute_ms, e->memory_ms));
    json_number(&json, "unfused_ms",
                larger(e->compute_ms, e->memory_ms) + larger(0, e->unfused_memory_ms - e->memory_ms));
    json_text(&json, "bound_by", e->compute_ms > e->memory_ms ? "arithmetic" : "memory");
    json_line(&json);
}

/* ---------------------------------------------------------------- blocks */

static double fused_ms(const struct estimate *e)
{
    return larger(e->compute_ms, e->memory_ms);
}

static double unfused_ms(const struct estimate *e)
{
    return fused_ms(e) + larger(0, e->unfused_memory_ms - e->memory_ms);
}

static void print_row(const char *name, const struct estimate *e)
{
    printf("    %-26s %10.2f %10.2f %10.2f %8d %10.3f %-10s %11.3f\n", name, e->cost.flops * 1e-9, e->cost.bytes * 1e-6,
           e->cost.unfused_bytes * 1e-6, e->cost.unfused_kernels, fused_ms(e),
           e->compute_ms > e->memory_ms ? "arithmetic" : "memory", unfused_ms(e));
}

static int explain_programs(const struct arguments *arguments, const coda_device *device, const coda_module *module,
                            const coda_dims *dims, const struct ceilings *ceilings)
{
    struct estimate total = {.ceilings = *ceilings};
    coda_error error;
    double fused = 0, unfused = 0;
    for (int i = 0; i < coda_module_size(module); i++) {
        const coda_program *program = coda_module_program(module, i);
        struct estimate e = {.ceilings = *ceilings};
        coda_dims own = own_sizes(program, dims);
        if (coda_program_cost(program, &own, &e.cost, &error) != CODA_OK)
            return report(arguments->command, &error);
        estimate_times(&e);
        if (arguments->json)
            print_json(program, &own, coda_device_name(device), &e);
        else
            print_row(coda_program_name(program), &e);
        fused += fused_ms(&e);
        unfused += unfused_ms(&e);
        total.cost.flops += e.cost.flops;
        total.cost.bytes += e.cost.bytes;
        total.cost.unfused_bytes += e.cost.unfused_bytes;
        total.cost.unfused_kernels += e.cost.unfused_kernels;
    }
    if (!arguments->json)
        printf("    %-26s %10.2f %10.2f %10.2f %8d %10.3f %-10s %11.3f\n", "all", total.cost.flops * 1e-9,
               total.cost.bytes * 1e-6, total.cost.unfused_bytes * 1e-6, total.cost.unfused_kernels, fused, "",
               unfused);
    return EXIT_GOOD;
}

static int explain_block(const struct arguments *arguments, coda_device *device, const coda_program *block,
                         const coda_dims *dims)
{
    coda_rewrite_options options = {.backward = arguments->backward, .allow_passes = arguments->passes, .dims = dims};
    struct ceilings ceilings;
    coda_module *module;
    coda_error error;
    char *said = NULL;
    if (coda_rewrite(block, &options, &module, &said, &error) != CODA_OK)
        return report(arguments->command, &error);
    int status = EXIT_GOOD;
    if (ceilings_of(device, &ceilings, &error) != CODA_OK)
        status = report(arguments->command, &error);
    if (status == EXIT_GOOD && !arguments->json) {
        printf("%s at ", coda_program_name(block));
        print_dims(stdout, dims);
        printf(" becomes %d programs (%.1f GFLOP/s, %.1f GB/s measured)\n", coda_module_size(module), ceilings.gflops,
               ceilings.gbytes);
        printf("    %-26s %10s %10s %10s %8s %10s %-10s %11s\n", "program", "GFLOP", "MB", "unfused MB", "kernels",
               "ms", "bound by", "unfused ms");
    }
    if (status == EXIT_GOOD)
        status = explain_programs(arguments, device, module, dims, &ceilings);
    if (status == EXIT_GOOD && !arguments->json)
        printf("\n%s\n", said ? said : "");
    coda_free(said);
    coda_module_free(module);
    return status;
}

static int explain(const struct arguments *arguments, const coda_program *program)
{
    struct estimate e;
    coda_dims dims;
    coda_device *device;
    coda_error error;
    int status = choose_sizes(arguments, program, SIZES_TYPICAL, &dims);
    if (status < 0)
        status = open_device(arguments, &device);
    if (status >= 0)
        return status;
    if (coda_program_is_block(program))
        status = explain_block(arguments, device, program, &dims);
    else if (coda_program_cost(program, &dims, &e.cost, &error) != CODA_OK ||
             ceilings_of(device, &e.ceilings, &error) != CODA_OK)
        status = report(arguments->command, &error);
    else {
        estimate_times(&e);
        if (arguments->json)
            print_json(program, &dims, coda_device_name(device), &e);
        else
            print_text(program, &dims, &e);
        status = EXIT_GOOD;
    }
    coda_device_close(device);
    return status;
}

int command_explain(int argc, char **argv)
{
    struct arguments arguments = {.device = "cpu"};
    int status = read_arguments(&arguments, "json device dims width tokens program dtype threads grad allow-passes",
                                help, argc, argv);
    if (status >= 0)
        return status;
    if (arguments.file_count == 0)
        return usage_error(arguments.command, "expected at least one file or program name");
    return for_each_program(&arguments, explain);
}
