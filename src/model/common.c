#include "model/common.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void describe_error(coda_error *error, coda_status status, const char *format, ...)
{
    if (!error)
        return;
    va_list arguments;
    va_start(arguments, format);
    error->status = status;
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
}

void describe_no_memory(coda_error *error, const char *what, size_t bytes)
{
    describe_error(error, CODA_MEMORY, "cannot allocate %zu bytes for %s: use a smaller model, batch or sequence",
                   bytes, what);
}

void describe_system_error(coda_error *error, const char *verb, const char *path)
{
    char reason[128] = "";
    int code = errno;
    const char *text = strerror_r(code, reason, sizeof reason);
    const char *advice = code == ENOSPC   ? ": free some space and repeat"
                         : code == EACCES ? ": give a path that you may use"
                                          : "";
    describe_error(error, CODA_IO, "cannot %s '%s': %s%s", verb, path, text, advice);
}

/* Edits between two short names, a swap of neighbours counting one. */
static int edit_distance(const char *a, const char *b)
{
    enum { LONGEST = 64 };
    int row[3][LONGEST + 1];
    size_t n = strlen(a), m = strlen(b);
    if (n > LONGEST || m > LONGEST)
        return LONGEST;
    for (size_t j = 0; j <= m; j++)
        row[0][j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int *now = row[i % 3];
        const int *last = row[(i - 1) % 3], *before = row[(i + 1) % 3];
        now[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int best = last[j - 1] + (a[i - 1] != b[j - 1]);
            best = best < last[j] + 1 ? best : last[j] + 1;
            best = best < now[j - 1] + 1 ? best : now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
    }
    return row[n % 3][m];
}

const char *nearest_name(const char *name, const char *const *names)
{
    const char *best = NULL;
    int least = (int)strlen(name) / 3 + 2;
    for (; *names; names++) {
        bool part = strlen(name) >= 3 && (strstr(*names, name) || strstr(name, *names));
        int distance = part ? 1 : edit_distance(name, *names);
        if (distance < least) {
            least = distance;
            best = *names;
        }
    }
    return best;
}
