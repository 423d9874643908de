#include "lang/diagnostics.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    LAST_LINE = 48,      /* bytes kept free for "... and N more errors" */
    VISIBLE_LINE = 150,  /* bytes of a source line that are shown */
    VISIBLE_BEFORE = 90, /* of them at most before the span */
    VISIBLE_FILE = 200,
    ADVICE_WIDTH = 110,
};

int diagnostics_line(const struct diagnostics *diagnostics, int offset)
{
    int line = 1;
    for (int i = 0; i < offset && i < diagnostics->length; i++)
        line += diagnostics->text[i] == '\n';
    return line;
}

bool diagnostics_full(const struct diagnostics *diagnostics)
{
    bool first_taken = !diagnostics->first || diagnostics->first->status != CODA_OK;
    return diagnostics->hidden > 0 || (!diagnostics->error && first_taken);
}

/* Is the byte inside a UTF-8 sequence, so that it has no column of its own? */
static bool continues_sequence(const struct diagnostics *diagnostics, int offset)
{
    return !diagnostics->ascii_only && ((unsigned char)diagnostics->text[offset] & 0xC0) == 0x80;
}

/* The part of the source line that is shown. */
struct window {
    int line_begin, begin, end;
    bool cut_left, cut_right;
};

static struct window find_window(const struct diagnostics *diagnostics, int offset)
{
    const char *text = diagnostics->text;
    struct window w = {.line_begin = offset, .end = offset};
    while (w.line_begin > 0 && text[w.line_begin - 1] != '\n')
        w.line_begin--;
    while (w.end < diagnostics->length && text[w.end] != '\n')
        w.end++;
    while (w.end > offset && (text[w.end - 1] == ' ' || text[w.end - 1] == '\t' || text[w.end - 1] == '\r'))
        w.end--;
    w.begin = w.line_begin;
    if (w.end - w.begin > VISIBLE_LINE) {
        if (offset - w.begin > VISIBLE_BEFORE)
            w.begin = offset - VISIBLE_BEFORE;
        if (w.end - w.begin > VISIBLE_LINE)
            w.end = w.begin + VISIBLE_LINE;
        while (w.begin < offset && continues_sequence(diagnostics, w.begin))
            w.begin++;
        while (w.end < diagnostics->length && continues_sequence(diagnostics, w.end))
            w.end++;
    }
    w.cut_left = w.begin > w.line_begin;
    w.cut_right = w.end < diagnostics->length && text[w.end] != '\n' && w.end - w.begin >= VISIBLE_LINE;
    return w;
}

/* Writes the source line and the caret under it; `out` has room for both lines. */
static void write_source(const struct diagnostics *diagnostics, const struct window *w, struct span span, char *out)
{
    char *to = out;
    to += sprintf(to, "%s", w->cut_left ? "..." : "");
    for (int i = w->begin; i < w->end; i++) {
        unsigned char c = (unsigned char)diagnostics->text[i];
        bool hidden = (c < 0x20 && c != '\t') || c == 0x7F || (c >= 0x80 && diagnostics->ascii_only);
        *to++ = hidden ? '?' : (char)c;
    }
    to += sprintf(to, "%s\n", w->cut_right ? "..." : "");
    to += sprintf(to, "%s", w->cut_left ? "   " : "");
    for (int i = w->begin; i < span.begin; i++)
        if (!continues_sequence(diagnostics, i))
            *to++ = diagnostics->text[i] == '\t' ? '\t' : ' ';
    *to++ = '^';
    for (int i = span.begin + 1; i < span.end && i < w->end; i++)
        if (!continues_sequence(diagnostics, i))
            *to++ = '~';
    *to++ = '\n';
    *to = '\0';
}

/* Copies advice with every line indented, and long ones wrapped between words. */
static void write_advice(const char *advice, char *out, size_t size)
{
    size_t used = 0;
    int column = 0;
    for (; *advice && used + 16 < size; advice++) {
        int word = (int)strcspn(advice + 1, " \n");
        bool wrap = *advice == ' ' && column + 1 + word > ADVICE_WIDTH;
        if (column == 0)
            used += (size_t)sprintf(out + used, "    ");
        out[used++] = wrap ? '\n' : *advice;
        column = wrap || *advice == '\n' ? 0 : column + 1;
    }
    out[used++] = '\n';
    out[used] = '\0';
}

static void append(struct diagnostics *diagnostics, struct span span, const char *reason, const char *advice)
{
    char source[4 * VISIBLE_LINE], indented[640] = "", entry[2 * VISIBLE_FILE + sizeof source + 1200];
    const char *file = diagnostics->file_name ? diagnostics->file_name : "<text>";
    struct window w = find_window(diagnostics, span.begin);
    int column = 1;
    for (int i = w.line_begin; i < span.begin; i++)
        column += !continues_sequence(diagnostics, i);
    source[0] = '\0';
    if (w.end > w.line_begin)
        write_source(diagnostics, &w, span, source);
    if (advice && *advice)
        write_advice(advice, indented, sizeof indented);
    int length = snprintf(entry, sizeof entry, "%.*s:%d:%d: error: %s\n%s%s", VISIBLE_FILE, file,
                          diagnostics_line(diagnostics, span.begin), column, reason, source, indented);
    if (diagnostics->used + (size_t)length + LAST_LINE > sizeof diagnostics->error->message) {
        diagnostics->hidden++;
        return;
    }
    memcpy(diagnostics->error->message + diagnostics->used, entry, (size_t)length + 1);
    diagnostics->used += (size_t)length;
}

void diagnostics_report(struct diagnostics *diagnostics, struct span span, const char *advice, const char *format, ...)
{
    struct complaint here = {.status = CODA_INVALID};
    va_list arguments;
    diagnostics->count++;
    if (diagnostics_full(diagnostics)) {
        diagnostics->hidden++;
        return;
    }
    va_start(arguments, format);
    vsnprintf(here.reason, sizeof here.reason, format, arguments);
    va_end(arguments);
    snprintf(here.advice, sizeof here.advice, "%s", advice ? advice : "");
    if (diagnostics->first && diagnostics->first->status == CODA_OK)
        *diagnostics->first = here;
    if (diagnostics->error)
        append(diagnostics, span, here.reason, here.advice);
}

coda_status diagnostics_finish(struct diagnostics *diagnostics)
{
    coda_error *error = diagnostics->error;
    if (diagnostics->count == 0)
        return CODA_OK;
    if (error) {
        error->status = CODA_INVALID;
        if (diagnostics->hidden > 0)
            snprintf(error->message + diagnostics->used, sizeof error->message - diagnostics->used,
                     "... and %d more error%s", diagnostics->hidden, diagnostics->hidden == 1 ? "" : "s");
        else
            error->message[diagnostics->used - 1] = '\0'; /* the last line has no newline */
    }
    return CODA_INVALID;
}
