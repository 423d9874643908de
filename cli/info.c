#include "cli.h"

#include <string.h>

static const char help[] = "usage: coda info [--json]\n"
                           "\n"
                           "Prints the version, every device with what it found, and the standard programs.\n"
                           "CODA_CPU forces the CPU's instruction set, CODA_THREADS the number of threads.\n";

static const char *const devices[] = {"cpu", "cuda", "ref"};

static void print_lines(const char *text)
{
    while (*text) {
        size_t length = strcspn(text, "\n");
        printf("    %.*s\n", (int)length, text);
        text += length + (text[length] == '\n');
    }
}

static void describe(const char *name, struct json *json)
{
    coda_device *device = NULL;
    coda_error error = {0};
    bool found = coda_device_open(name, &device, &error) == CODA_OK;
    const char *text = found ? coda_device_description(device) : error.message;
    if (json) {
        json_begin(json);
        json_text(json, "name", name);
        json_bool(json, "found", found);
        json_text(json, "description", text);
        if (found)
            json_number(json, "threads", coda_device_threads(device));
        json_end(json);
    } else {
        printf("device %s%s\n", name, found ? "" : " (not found)");
        print_lines(text);
    }
    coda_device_close(device);
}

int command_info(int argc, char **argv)
{
    struct arguments arguments = {0};
    struct json json = {stdout, false};
    const coda_module *module;
    coda_error error;
    int status = read_arguments(&arguments, "json", help, argc, argv);
    if (status >= 0)
        return status;
    if (arguments.file_count)
        return usage_error(arguments.command, "unexpected argument %s", arguments.file[0]);
    if (coda_standard_module(&module, &error) != CODA_OK)
        return report(arguments.command, &error);
    if (arguments.json) {
        json_begin(&json);
        json_text(&json, "version", CODA_VERSION);
        json_array(&json, "devices");
    } else
        printf("coda %s\n", CODA_VERSION);
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        describe(devices[i], arguments.json ? &json : NULL);
    if (arguments.json) {
        json_array_end(&json);
        json_array(&json, "programs");
        for (int i = 0; i < coda_module_size(module); i++)
            json_item(&json, coda_program_name(coda_module_program(module, i)));
        json_array_end(&json);
        json_line(&json);
        return EXIT_GOOD;
    }
    printf("standard programs\n");
    for (int i = 0; i < coda_module_size(module); i++)
        printf("    %s\n", coda_program_name(coda_module_program(module, i)));
    return EXIT_GOOD;
}
