#include "cli.h"

#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} commands[] = {
    {"check", command_check, "parse, infer shapes, check that programs are block-local"},
    {"run", command_run, "run on random input and compare with the reference"},
    {"explain", command_explain, "operations, bytes, and time at the device's measured ceilings"},
    {"bench", command_bench, "time against the bare product and the unfused chain"},
    {"tune", command_tune, "measure the device's ways to run a program, and remember the fastest"},
    {"grad", command_grad, "print the backward programs"},
    {"rewrite", command_rewrite, "print the programs that a block becomes"},
    {"emit", command_emit, "print the source that a kernel is generated as"},
    {"train", command_train, "train a Llama"},
    {"sample", command_sample, "generate text from a checkpoint"},
    {"info", command_info, "devices, instruction sets, libraries, standard programs"},
};

enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_help(FILE *file)
{
    fputs("usage: coda COMMAND [options] ...\n\n"
          "Transformer blocks as programs of one matrix product and its epilogue.\n\n",
          file);
    for (int i = 0; i < COMMANDS; i++)
        fprintf(file, "  %-8s  %s\n", commands[i].name, commands[i].summary);
    fputs("\n'coda COMMAND --help' tells more. Exit status: 0 good, 1 a check failed, 2 bad usage.\n", file);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    if (strcmp(name, "--version") == 0) {
        puts("coda " CODA_VERSION);
        return EXIT_GOOD;
    }
    if (strcmp(name, "help") == 0 && argc > 2) {
        char help[] = "--help";
        char *arguments[] = {argv[2], help, NULL};
        for (int i = 0; i < COMMANDS; i++)
            if (strcmp(argv[2], commands[i].name) == 0)
                return commands[i].run(2, arguments);
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help(stdout);
        return EXIT_GOOD;
    }
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0) {
            int status = commands[i].run(argc - 1, argv + 1);
            if (fflush(stdout) != 0 || ferror(stdout)) {
                perror("coda: the output could not be written");
                status = status ? status : EXIT_FAILED;
            }
            return status;
        }
    if (argc > 1)
        fprintf(stderr, "coda: there is no command %s\n", name);
    print_help(stderr);
    return EXIT_USAGE;
}
