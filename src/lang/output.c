#include "lang/output.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

bool output_is_over(const struct output *text)
{
    return text->cut || text->no_memory;
}

static bool make_room(struct output *text, size_t length)
{
    size_t size = text->size ? text->size : 1024;
    while (size - text->length <= length)
        size *= 2;
    char *data = realloc(text->data, size);
    if (!data) {
        text->no_memory = true;
        return false;
    }
    text->data = data;
    text->size = size;
    return true;
}

void output_add(struct output *text, const char *format, ...)
{
    va_list arguments, again;
    size_t room = text->size - text->length;
    if (output_is_over(text))
        return;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(room ? text->data + text->length : NULL, room, format, arguments);
    va_end(arguments);
    if (length >= 0 && (size_t)length >= room) {
        if (text->fixed) {
            text->cut = true;
            text->length = text->size ? text->size - 1 : 0;
        } else if (make_room(text, (size_t)length))
            vsnprintf(text->data + text->length, text->size - text->length, format, again);
    }
    va_end(again);
    if (length >= 0 && !output_is_over(text))
        text->length += (size_t)length;
}
