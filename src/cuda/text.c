#include "cuda/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(struct text *text, size_t more)
{
    size_t need = text->length + more + 1;
    if (text->failed || need <= text->capacity)
        return !text->failed;
    size_t capacity = text->capacity ? text->capacity : 4096;
    while (capacity < need)
        capacity *= 2;
    char *data = realloc(text->data, capacity);
    if (!data) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->capacity = capacity;
    return true;
}

void text_append(struct text *text, const char *string)
{
    size_t length = strlen(string);
    if (!reserve(text, length))
        return;
    memcpy(text->data + text->length, string, length + 1);
    text->length += length;
}

void text_add(struct text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (length < 0 || !reserve(text, (size_t)length))
        return;
    va_start(arguments, format);
    vsnprintf(text->data + text->length, (size_t)length + 1, format, arguments);
    va_end(arguments);
    text->length += (size_t)length;
}

void text_free(struct text *text)
{
    free(text->data);
    *text = (struct text){0};
}

const char *text_of(const struct text *text)
{
    return text->length ? text->data : "";
}

void text_clear(struct text *text)
{
    text->length = 0;
}
