/* Reads JSON from front to back: the caller asks for what it expects, and whatever else stands there is an error with
 * its line and column. Nothing is allocated, nesting is bounded.
 *
 *     json_read_object(j);
 *     while (json_read_key(j, key, sizeof key))
 *         json_read_number(j, &x);
 *     return json_read_end(j);
 *
 * After an error every call does nothing and returns false; `status` stays. */
#ifndef CODA_MODEL_JSON_H
#define CODA_MODEL_JSON_H

#include "model/common.h"

enum { JSON_DEPTH = 32 };

struct json_reader {
    const char *text;
    size_t length, at;
    size_t key_at; /* where the last key began */
    const char *file;
    int depth;
    bool filled[JSON_DEPTH + 1]; /* the object or array at this depth has had an element */
    coda_status status;
    coda_error *error;
};

void json_read_open(struct json_reader *json, const char *text, size_t length, const char *file, coda_error *error);
bool json_read_object(struct json_reader *json); /* enters one */
bool json_read_key(struct json_reader *json, char *key,
                   size_t room);                  /* the next key of an object; false: it has ended */
bool json_read_array(struct json_reader *json);   /* enters one */
bool json_read_element(struct json_reader *json); /* before each element; false: the array has ended */
bool json_read_string(struct json_reader *json, char *text,
                      size_t room); /* UTF-8, zero-terminated; no zero bytes inside */
bool json_read_number(struct json_reader *json, double *number);
bool json_read_integer(struct json_reader *json, int64_t *number); /* a number without a fraction, |number| <= 2^53 */
bool json_read_boolean(struct json_reader *json, bool *value);
bool json_read_null(struct json_reader *json); /* takes a null if one is next; never an error */
char json_read_peek(struct json_reader *json); /* first character of the next value: { [ " t f n - 0..9; 0 at the end or
                                                  after an error */
bool json_read_skip(struct json_reader *json); /* any value */
coda_status json_read_end(struct json_reader *json); /* nothing but space may remain */

/* An error at byte `at` of the text: "file:line:column: error: ...", with the line where it is short. */
void json_read_fail(struct json_reader *json, coda_status status, size_t at, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Text of a number that reads back to the same bits, whatever the locale; room for 32 bytes. */
void json_format_number(double number, char *text);
/* Reads a whole string as a number. Accepts what JSON does. */
bool json_parse_number(const char *text, size_t length, double *number);

/* Grows as it is printed to; `failed` once memory is out. */
struct json_text {
    char *text;
    size_t length, room;
    bool failed;
};
void json_print(struct json_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void json_print_string(struct json_text *text, const char *string); /* quoted and escaped */

#endif
