#include "cli.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum form { FLAG, TEXT, COUNT };

static const struct known {
    const char *name;
    enum form form;
    size_t place;
} known[] = {
    {"json", FLAG, offsetof(struct arguments, json)},
    {"grad", FLAG, offsetof(struct arguments, backward)},
    {"allow-passes", FLAG, offsetof(struct arguments, passes)},
    {"exponentials", FLAG, offsetof(struct arguments, exponentials)},
    {"cubin", FLAG, offsetof(struct arguments, cubin)},
    {"device", TEXT, offsetof(struct arguments, device)},
    {"dims", TEXT, offsetof(struct arguments, dims)},
    {"param", TEXT, offsetof(struct arguments, parameters)},
    {"wrt", TEXT, offsetof(struct arguments, wrt)},
    {"save", TEXT, offsetof(struct arguments, save)},
    {"target", TEXT, offsetof(struct arguments, target)},
    {"dtype", TEXT, offsetof(struct arguments, dtype)},
    {"output", TEXT, offsetof(struct arguments, output)},
    {"program", TEXT, offsetof(struct arguments, program)},
    {"seed", COUNT, offsetof(struct arguments, seed)},
    {"rounds", COUNT, offsetof(struct arguments, rounds)},
    {"threads", COUNT, offsetof(struct arguments, threads)},
    {"schedule", TEXT, offsetof(struct arguments, schedule)},
    {"width", COUNT, offsetof(struct arguments, width)},
    {"tokens", COUNT, offsetof(struct arguments, tokens)},
    {"without", COUNT, offsetof(struct arguments, without)},
    {"steady", FLAG, offsetof(struct arguments, steady)},
    {"launches", FLAG, offsetof(struct arguments, launches)},
    {"library", FLAG, offsetof(struct arguments, library)},
    {"forget", FLAG, offsetof(struct arguments, forget)},
    {"join", TEXT, offsetof(struct arguments, join)},
    {"chunk", COUNT, offsetof(struct arguments, chunk)},
};

enum { KNOWN = sizeof known / sizeof *known };

int usage_error(const char *command, const char *format, ...)
{
    va_list list;
    fprintf(stderr, "coda %s: ", command);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fprintf(stderr, "\nTry 'coda %s --help'.\n", command);
    return EXIT_USAGE;
}

int report(const char *command, const coda_error *error)
{
    /* Diagnostics of a text begin with its name and place, as compilers' do. */
    if (strstr(error->message, ": error: "))
        fprintf(stderr, "%s\n", error->message);
    else
        fprintf(stderr, "coda %s: %s\n", command, error->message);
    return EXIT_FAILED;
}

static bool accepts(const char *accepted, const char *name)
{
    size_t length = strlen(name);
    for (const char *p = accepted; (p = strstr(p, name)); p += length)
        if ((p == accepted || p[-1] == ' ') && (p[length] == ' ' || p[length] == 0))
            return true;
    return false;
}

static int take(struct arguments *arguments, const struct known *option, const char *value)
{
    unsigned char *place = (unsigned char *)arguments + option->place;
    if (option->form == FLAG)
        *(int *)(void *)place = 1;
    else if (option->form == TEXT)
        *(const char **)(void *)place = value;
    else {
        char *end;
        errno = 0;
        long number = strtol(value, &end, 10);
        if (errno || *end || end == value || number < 0 || number > INT_MAX)
            return usage_error(arguments->command, "--%s %s: expected a number of at least 0", option->name, value);
        *(long *)(void *)place = number;
    }
    return -1;
}

int read_arguments(struct arguments *arguments, const char *accepted, const char *help, int argc, char **argv)
{
    struct option options[KNOWN + 2] = {{"help", no_argument, NULL, 'h'}};
    int count = 1;
    for (int i = 0; i < KNOWN; i++)
        if (accepts(accepted, known[i].name))
            options[count++] =
                (struct option){known[i].name, known[i].form == FLAG ? no_argument : required_argument, NULL, 256 + i};
    arguments->command = argv[0];
    opterr = 0;
    optind = 1;
    for (int code; (code = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        if (code == 'h') {
            fputs(help, stdout);
            return EXIT_GOOD;
        }
        if (code == '?') {
            const char *text = argv[optind - 1];
            bool misses_value = optopt >= 256;
            return usage_error(arguments->command, misses_value ? "%s needs a value" : "unknown or ambiguous option %s",
                               text);
        }
        int status = take(arguments, &known[code - 256], optarg);
        if (status >= 0)
            return status;
    }
    arguments->file = argv + optind;
    arguments->file_count = argc - optind;
    return -1;
}
