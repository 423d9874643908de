#include "cli.h"

#include <string.h>

static const char help[] = "usage: coda explain [options] FILE...\n"
                           "\n"
                           "Prints what a launch computes and moves, fused and unfused, and how long the device needs "
                           "at its ceilings, which are\n"
                           "measured now: a cache-friendly product and a pass over memory.\n"
                           "\n"
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
    double compute_ms, memory_ms, unfused_memory_ms; /* epilogue operations count as a sixteenth of the product's */
};

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
    if (coda_program_cost(program, &dims, &e.cost, &error) != CODA_OK ||
        measure_ceilings(device, &e.ceilings, &error) != CODA_OK)
        status = report(arguments->command, &error);
    else {
        e.compute_ms = (e.cost.flops + 16 * e.cost.elementwise_flops) / e.ceilings.gflops * 1e-6;
        e.memory_ms = e.cost.bytes / e.ceilings.gbytes * 1e-6;
        e.unfused_memory_ms = e.cost.unfused_bytes / e.ceilings.gbytes * 1e-6;
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
    int status = read_arguments(&arguments, "json device dims width tokens program dtype threads", help, argc, argv);
    if (status >= 0)
        return status;
    if (arguments.file_count == 0)
        return usage_error(arguments.command, "expected at least one file or program name");
    return for_each_program(&arguments, explain);
}
