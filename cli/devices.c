#include "cli.h"

int open_device(const struct arguments *arguments, coda_device **device)
{
    coda_error error;
    coda_status status = coda_device_open(arguments->device, device, &error);
    if (status != CODA_OK) {
        int code = report(arguments->command, &error);
        return status == CODA_INVALID ? EXIT_USAGE : code;
    }
    if (arguments->threads && coda_device_set_threads(*device, (int)arguments->threads, &error) != CODA_OK) {
        report(arguments->command, &error);
        coda_device_close(*device);
        *device = NULL;
        return EXIT_USAGE;
    }
    return -1;
}
