#include "model/json.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void json_read_open(struct json_reader *json, const char *text, size_t length, const char *file, coda_error *error)
{
    memset(json, 0, sizeof *json);
    json->text = text;
    json->length = length;
    json->file = file;
    json->error = error;
}

void json_read_fail(struct json_reader *json, coda_status status, size_t at, const char *format, ...)
{
    if (json->status != CODA_OK)
        return;
    json->status = status;
    size_t begin = 0, line = 1;
    for (size_t i = 0; i < at && i < json->length; i++)
        if (json->text[i] == '\n') {
            begin = i + 1;
            line++;
        }
    char why[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);

    enum { SHOWN = 120 };
    char shown[SHOWN + 1];
    size_t width = 0;
    while (width < SHOWN && begin + width < json->length && json->text[begin + width] != '\n') {
        unsigned char c = (unsigned char)json->text[begin + width];
        shown[width++] = c < ' ' || c >= 127 ? ' ' : (char)c;
    }
    shown[width] = 0;
    size_t column = at - begin;
    if (column <= width && width < SHOWN)
        describe_error(json->error, status, "%s:%zu:%zu: error: %s\n    %s\n    %*s^", json->file, line, column + 1,
                       why, shown, (int)column, "");
    else
        describe_error(json->error, status, "%s:%zu:%zu: error: %s", json->file, line, column + 1, why);
}

static void skip_space(struct json_reader *json)
{
    while (json->at < json->length && strchr(" \t\r\n", json->text[json->at]) && json->text[json->at])
        json->at++;
}

char json_read_peek(struct json_reader *json)
{
    if (json->status != CODA_OK)
        return 0;
    skip_space(json);
    return json->at < json->length ? json->text[json->at] : 0;
}

/* What stands at the current place, for messages. */
static const char *found(struct json_reader *json)
{
    switch (json_read_peek(json)) {
    case 0:
        return json->at < json->length ? "a zero byte" : "the end of the file";
    case '{':
        return "an object";
    case '[':
        return "an array";
    case '"':
        return "a string";
    case 't':
    case 'f':
        return "a boolean";
    case 'n':
        return "null";
    case '}':
    case ']':
    case ',':
    case ':':
        return "punctuation";
    default:
        return strchr("-0123456789", json->text[json->at]) ? "a number" : "text that is no JSON";
    }
}

static bool expect(struct json_reader *json, char c, const char *what)
{
    if (json->status != CODA_OK)
        return false;
    if (json_read_peek(json) == c) {
        json->at++;
        return true;
    }
    json_read_fail(json, CODA_INVALID, json->at, "expected %s, found %s", what, found(json));
    return false;
}

static bool enter(struct json_reader *json, char c, const char *what)
{
    if (!expect(json, c, what))
        return false;
    if (json->depth == JSON_DEPTH) {
        json_read_fail(json, CODA_INVALID, json->at - 1, "nested deeper than %d levels", JSON_DEPTH);
        return false;
    }
    json->filled[++json->depth] = false;
    return true;
}

bool json_read_object(struct json_reader *json)
{
    return enter(json, '{', "an object `{`");
}

bool json_read_array(struct json_reader *json)
{
    return enter(json, '[', "an array `[`");
}

/* Moves to the next element of the innermost object or array, which ends in `close`. */
static bool next(struct json_reader *json, char close)
{
    char c = json_read_peek(json);
    if (json->status != CODA_OK)
        return false;
    bool filled = json->filled[json->depth];
    json->filled[json->depth] = true;
    if (c == close) {
        json->at++;
        json->depth--;
        return false;
    }
    return !filled || expect(json, ',', close == '}' ? "`,` or `}`" : "`,` or `]`");
}

bool json_read_element(struct json_reader *json)
{
    return next(json, ']');
}

bool json_read_key(struct json_reader *json, char *key, size_t room)
{
    if (!next(json, '}'))
        return false;
    json_read_peek(json);
    json->key_at = json->at;
    return json_read_string(json, key, room) && expect(json, ':', "`:`");
}

static size_t encode_utf8(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t count = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = count - 1; i > 0; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)((0xf00u >> count & 0xf0u) | c);
    return count;
}

static bool hexadecimal(struct json_reader *json, uint32_t *value)
{
    *value = 0;
    for (int i = 0; i < 4; i++, json->at++) {
        char c = json->at < json->length ? json->text[json->at] : 0;
        const char *digits = "0123456789abcdefABCDEF", *digit = c ? strchr(digits, c) : NULL;
        if (!digit)
            return false;
        uint32_t d = (uint32_t)(digit - digits);
        *value = *value * 16 + (d < 16 ? d : d - 6);
    }
    return true;
}

/* The escape after a backslash. */
static size_t escape(struct json_reader *json, char out[4])
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    size_t start = json->at - 1;
    char c = json->at < json->length ? json->text[json->at++] : 0;
    const char *simple = c ? strchr(from, c) : NULL;
    if (simple) {
        out[0] = to[simple - from];
        return 1;
    }
    uint32_t code = 0, low = 0;
    bool good = c == 'u' && hexadecimal(json, &code);
    if (good && code >= 0xd800 && code < 0xdc00) {
        good = json->at + 1 < json->length && json->text[json->at] == '\\' && json->text[json->at + 1] == 'u';
        json->at += 2;
        good = good && hexadecimal(json, &low) && low >= 0xdc00 && low < 0xe000;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    if (!good || code == 0 || (code >= 0xd800 && code < 0xe000)) {
        json_read_fail(json, CODA_INVALID, start, "expected an escape such as \\n or \\u00e9 (not of a zero byte)");
        return 0;
    }
    return encode_utf8(code, out);
}

bool json_read_string(struct json_reader *json, char *text, size_t room)
{
    size_t start = json->at, used = 0;
    if (!expect(json, '"', "a string"))
        return false;
    while (json->status == CODA_OK) {
        unsigned char c = json->at < json->length ? (unsigned char)json->text[json->at] : 0;
        if (c < ' ') {
            json_read_fail(json, CODA_INVALID, json->at, "a string that is not closed on its line");
            return false;
        }
        json->at++;
        if (c == '"')
            break;
        char bytes[4] = {(char)c};
        size_t count = c == '\\' ? escape(json, bytes) : 1;
        if (used + count >= room) {
            json_read_fail(json, CODA_INVALID, start, "a string longer than %zu bytes", room - 1);
            return false;
        }
        memcpy(text + used, bytes, count);
        used += count;
    }
    text[used] = 0;
    return json->status == CODA_OK;
}

bool json_read_number(struct json_reader *json, double *number)
{
    char c = json_read_peek(json);
    if (json->status != CODA_OK)
        return false;
    if (!c || !strchr("-0123456789", c)) {
        json_read_fail(json, CODA_INVALID, json->at, "expected a number, found %s", found(json));
        return false;
    }
    size_t start = json->at, end = start;
    while (end < json->length && json->text[end] && strchr("+-.0123456789eE", json->text[end]))
        end++;
    if (!json_parse_number(json->text + start, end - start, number)) {
        json_read_fail(json, CODA_INVALID, start, "`%.*s` is no number that can be represented",
                       (int)minimum((int64_t)(end - start), 60), json->text + start);
        return false;
    }
    json->at = end;
    return true;
}

bool json_read_integer(struct json_reader *json, int64_t *number)
{
    json_read_peek(json);
    size_t start = json->at;
    double value;
    if (!json_read_number(json, &value))
        return false;
    const double limit = 9007199254740992.0; /* 2^53: integers up to here are exact */
    if (value < -limit || value > limit || value != (double)(int64_t)value) {
        json_read_fail(json, CODA_INVALID, start, "expected an integer");
        return false;
    }
    *number = (int64_t)value;
    return true;
}

static bool word(struct json_reader *json, const char *text)
{
    size_t length = strlen(text);
    if (json->length - json->at < length || memcmp(json->text + json->at, text, length) != 0)
        return false;
    json->at += length;
    return true;
}

bool json_read_boolean(struct json_reader *json, bool *value)
{
    json_read_peek(json);
    if (json->status != CODA_OK)
        return false;
    if (word(json, "true"))
        *value = true;
    else if (word(json, "false"))
        *value = false;
    else
        json_read_fail(json, CODA_INVALID, json->at, "expected true or false, found %s", found(json));
    return json->status == CODA_OK;
}

bool json_read_null(struct json_reader *json)
{
    return json_read_peek(json) == 'n' && word(json, "null");
}

bool json_read_skip(struct json_reader *json)
{
    char ignored[4096];
    double number;
    bool boolean;
    switch (json_read_peek(json)) {
    case '{':
        json_read_object(json);
        while (json_read_key(json, ignored, sizeof ignored))
            json_read_skip(json);
        break;
    case '[':
        json_read_array(json);
        while (json_read_element(json))
            json_read_skip(json);
        break;
    case '"':
        json_read_string(json, ignored, sizeof ignored);
        break;
    case 'n':
        if (!json_read_null(json))
            json_read_fail(json, CODA_INVALID, json->at, "expected a value, found text that is no JSON");
        break;
    case 't':
    case 'f':
        json_read_boolean(json, &boolean);
        break;
    default:
        json_read_number(json, &number);
    }
    return json->status == CODA_OK;
}

coda_status json_read_end(struct json_reader *json)
{
    if (json->status == CODA_OK) {
        skip_space(json);
        if (json->at < json->length)
            json_read_fail(json, CODA_INVALID, json->at, "expected the end of the file, found %s", found(json));
    }
    return json->status;
}
