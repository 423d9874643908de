/* Errors of a text: file:line:column, reason, the source line with a caret, advice. */
#ifndef CODA_LANG_DIAGNOSTICS_H
#define CODA_LANG_DIAGNOSTICS_H

#include "ir/graph.h"

struct diagnostics {
    const char *text;
    int length;
    const char *file_name;
    bool ascii_only;         /* the text is not UTF-8: its bytes must not reach the message */
    coda_error *error;       /* receives the text of all errors; may be NULL */
    struct complaint *first; /* receives the first error alone; may be NULL */
    size_t used;             /* bytes of error->message */
    int count, hidden;       /* errors; those of them that found no room */
};

/* Adds an error about the bytes of `span`; `advice` may be NULL. */
void diagnostics_report(struct diagnostics *diagnostics, struct span span, const char *advice, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Are further errors only counted? Then the work of wording them well can be saved. */
bool diagnostics_full(const struct diagnostics *diagnostics);

/* Says how many errors found no room. CODA_OK where there was no error, else CODA_INVALID. */
coda_status diagnostics_finish(struct diagnostics *diagnostics);

int diagnostics_line(const struct diagnostics *diagnostics, int offset); /* counts from 1 */

#endif
