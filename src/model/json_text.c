/* Numbers and text of JSON, whatever the program's locale: strtod and printf may want a decimal comma. */
#include "model/json.h"
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t digits(const char *text, size_t length, size_t at)
{
    size_t start = at;
    while (at < length && text[at] >= '0' && text[at] <= '9')
        at++;
    return at - start;
}

/* JSON's grammar of numbers, which is narrower than strtod's. */
static bool is_number(const char *text, size_t length)
{
    size_t at = length && text[0] == '-', count = digits(text, length, at);
    if (!count || (count > 1 && text[at] == '0'))
        return false;
    at += count;
    if (at < length && text[at] == '.') {
        count = digits(text, length, at + 1);
        if (!count)
            return false;
        at += 1 + count;
    }
    if (at < length && (text[at] == 'e' || text[at] == 'E')) {
        at++;
        at += at < length && (text[at] == '+' || text[at] == '-');
        count = digits(text, length, at);
        if (!count)
            return false;
        at += count;
    }
    return at == length;
}

bool json_parse_number(const char *text, size_t length, double *number)
{
    char copy[96];
    const char *point = localeconv()->decimal_point;
    size_t used = 0, extra = strlen(point);
    if (!is_number(text, length) || length + extra >= sizeof copy)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '.') {
            memcpy(copy + used, point, extra);
            used += extra;
        } else {
            copy[used++] = text[i];
        }
    }
    copy[used] = 0;
    *number = strtod(copy, NULL);
    return isfinite(*number);
}

void json_format_number(double number, char *text)
{
    char printed[64];
    int precision = 15;
    do
        snprintf(printed, sizeof printed, "%.*g", precision, number);
    while (strtod(printed, NULL) != number && ++precision <= 17);
    const char *point = localeconv()->decimal_point, *comma = strstr(printed, point);
    if (comma && *point)
        snprintf(text, 32, "%.*s.%s", (int)(comma - printed), printed, comma + strlen(point));
    else
        snprintf(text, 32, "%.31s", printed);
}

static bool reserve(struct json_text *text, size_t extra)
{
    if (text->failed)
        return false;
    if (text->length + extra < text->room)
        return true;
    size_t room = 2 * (text->length + extra) + 256;
    char *grown = realloc(text->text, room);
    if (!grown) {
        text->failed = true;
        return false;
    }
    text->text = grown;
    text->room = room;
    return true;
}

void json_print(struct json_text *text, const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    if (length < 0)
        text->failed = true;
    else if (reserve(text, (size_t)length + 1))
        text->length += (size_t)vsnprintf(text->text + text->length, (size_t)length + 1, format, again);
    va_end(again);
    va_end(arguments);
}

void json_print_string(struct json_text *text, const char *string)
{
    json_print(text, "\"");
    for (; *string; string++) {
        unsigned char c = (unsigned char)*string;
        if (c == '"' || c == '\\')
            json_print(text, "\\%c", c);
        else if (c < ' ')
            json_print(text, "\\u%04x", c);
        else
            json_print(text, "%c", c);
    }
    json_print(text, "\"");
}
