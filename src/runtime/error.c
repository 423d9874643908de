#include "runtime/device.h"

#include <stdarg.h>
#include <stdio.h>

const char *coda_version(void)
{
    return CODA_VERSION;
}

const char *coda_status_name(coda_status status)
{
    static const char *const names[] = {"ok", "invalid", "unsupported", "memory", "device", "io", "stopped"};
    return (unsigned)status < sizeof names / sizeof *names ? names[status] : "unknown status";
}

coda_status fail(coda_error *error, coda_status status, const char *format, ...)
{
    if (!error)
        return status;
    error->status = status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    return status;
}

coda_status fail_complaint(coda_error *error, const struct complaint *why)
{
    return fail(error, why->status, why->advice[0] ? "%s\n%s" : "%s", why->reason, why->advice);
}

coda_status fail_memory(coda_error *error, const char *what, size_t bytes)
{
    return fail(error, CODA_MEMORY, "no memory for %s (%zu bytes)", what, bytes);
}
