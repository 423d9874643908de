#include "lang/number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 64 };

/* What the current locale writes between 0 and 5 of one half. */
static size_t decimal_point(char point[16])
{
    char half[24];
    int length = snprintf(half, sizeof half, "%.1f", 0.5);
    if (length < 3 || length > 16)
        return 0;
    memcpy(point, half + 1, (size_t)length - 2);
    return (size_t)length - 2;
}

bool number_parse(const char *text, int length, double *number)
{
    char copy[LONGEST + 32], point[16];
    size_t used = 0, width = decimal_point(point);
    if (length > LONGEST)
        return false;
    for (int i = 0; i < length; i++) {
        if (text[i] == '.') {
            memcpy(copy + used, point, width);
            used += width;
        } else
            copy[used++] = text[i];
    }
    copy[used] = '\0';
    *number = strtod(copy, NULL);
    return isfinite(*number);
}

bool integer_parse(const char *text, int length, int64_t *integer)
{
    int64_t value = 0;
    for (int i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9' || value > (INT64_MAX - 9) / 10)
            return false;
        value = 10 * value + (text[i] - '0');
    }
    *integer = value;
    return length > 0;
}

/* 1e-06 reads 1e-6, and 1e+20 reads 1e20. */
static void shorten_exponent(char *text)
{
    char *exponent = strchr(text, 'e');
    if (!exponent)
        return;
    char *from = ++exponent;
    if (*from == '-')
        exponent++;
    from++;
    while (*from == '0' && from[1])
        from++;
    memmove(exponent, from, strlen(from) + 1);
}

void number_print(double number, char text[NUMBER_TEXT])
{
    char point[16];
    size_t width = decimal_point(point);
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, NUMBER_TEXT, "%.*g", digits, number);
        if (strtod(text, NULL) == number)
            break;
    }
    char *at = width > 0 ? memmem(text, strlen(text), point, width) : NULL;
    if (at) {
        *at = '.';
        memmove(at + 1, at + width, strlen(at + width) + 1);
    }
    shorten_exponent(text);
}
