#include "bench.h"

#include <string.h>

static const char help[] =
    "usage: coda bench [options] FILE|suite|layer...\n"
    "\n"
    "Times each program against its bare product and the unfused chain (one kernel an operator, "
    "intermediates in memory), in\n"
    "turns, and prints medians and errors. `suite` is every standard program. A block, and "
    "`layer` (a Llama layer and its\n"
    "head), is timed as its schedule: every step, then the forward and the backward as one "
    "launch each (on a GPU a graph)\n"
    "against the sum of their products; steps on a condition are timed as if it held, alone. `coda tune` chooses "
    "tiles, and cuBLASLt for products, "
    "before.\n"
    "\n"
    "  --device NAME     cpu (the default), cuda or cuda:1\n"
    "  --dims M=..,N=..  sizes; others are those of a layer (see --width, --tokens)\n"
    "  --width N         width of the layer (1024)\n"
    "  --tokens N        rows (1024)\n"
    "  --chunk N         rows of the logits that exist at once (a multiple of 64; default: as many as 1.25 GiB hold)\n"
    "  --launches        of a block, each launch of its schedule with the least time that its bytes or products take\n"
    "  --join all|none   gradients of weights as sets of one launch (default: where the device gains by it)\n"
    "  --save a,b        values that a block's forward keeps for its backward (see coda rewrite --help)\n"
    "  --steady          back to back at the power limit, instead of in turns after a flush of "
    "the GPU's L2\n"
    "  --rounds N        how often each is timed (7)\n"
    "  --seed N          of the random input (1)\n"
    "  --program NAME    only this program of the files\n"
    "  --dtype TYPE      bf16 operands become f32, f16, e4m3 or e5m2 ones\n"
    "  --threads N       of the CPU device\n"
    "  --json            one object a row, a line each\n"
    "\n"
    "Columns: time in ms (of the GPU, between two events), the bare products', their ratio, "
    "the same through cuBLASLt where it\n"
    "is found, the unfused chain's, GFLOP/s, its share of the fastest product that was measured "
    "on this device now, and the\n"
    "largest relative error of the outs, fused and unfused, against the reference at sizes of at "
    "most 128.\n"
    "\n"
    "Exit status: 0 good, 1 a program failed or its errors are too large, 2 bad usage.\n";

static int bench_source(struct bench *bench, const struct source *source)
{
    int worst = EXIT_GOOD;
    for (int i = source->first; i < source->first + source->count; i++) {
        const coda_program *program = coda_module_program(source->module, i);
        struct row row;
        coda_dims dims;
        int status;
        if (!is_wanted(bench->arguments, program))
            continue;
        if (coda_program_is_block(program)) {
            status = bench_block(bench, program);
        } else {
            status = choose_sizes(bench->arguments, program, SIZES_TYPICAL, &dims);
            if (status < 0)
                status = bench_program(bench, program, &dims, NULL, &row);
        }
        worst = status > worst ? status : worst;
    }
    return worst;
}

static int bench_suite(struct bench *bench)
{
    struct source source = {0};
    coda_error error;
    if (coda_standard_module(&source.module, &error) != CODA_OK)
        return report(bench->arguments->command, &error);
    source.count = coda_module_size(source.module);
    return bench_source(bench, &source);
}

static int bench_argument(struct bench *bench, const char *text)
{
    struct source source;
    if (strcmp(text, "suite") == 0)
        return bench_suite(bench);
    if (strcmp(text, "layer") == 0)
        return bench_layer(bench);
    int status = open_source(bench->arguments, text, &source);
    if (status >= 0)
        return status;
    status = bench_source(bench, &source);
    close_source(&source);
    return status;
}

int command_bench(int argc, char **argv)
{
    struct arguments arguments = {.device = "cpu", .seed = 1};
    struct bench bench = {.arguments = &arguments};
    coda_error error;
    int status = read_arguments(&arguments,
                                "json device dims param width tokens rounds seed program dtype threads steady chunk "
                                "launches join save",
                                help, argc, argv);
    if (status >= 0)
        return status;
    if (arguments.file_count == 0)
        return usage_error(arguments.command, "expected a file, a program name, suite or layer");
    status = open_device(&arguments, &bench.device);
    if (status >= 0)
        return status;
    status = EXIT_GOOD;
    if (bench_open(&bench, &error) != CODA_OK)
        status = report(arguments.command, &error);
    else
        for (int i = 0; i < arguments.file_count; i++) {
            int one = bench_argument(&bench, arguments.file[i]);
            status = one > status ? one : status;
        }
    bench_close(&bench);
    return status;
}
