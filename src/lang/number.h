/* Numbers as text, the same in every locale. */
#ifndef CODA_LANG_NUMBER_H
#define CODA_LANG_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

enum { NUMBER_TEXT = 40 };

/* False where the number is too large for a double, or its text has more than 64 bytes. */
bool number_parse(const char *text, int length, double *number);
/* False where the text is not digits alone or does not fit. */
bool integer_parse(const char *text, int length, int64_t *integer);

/* The shortest text that parses to the same double. */
void number_print(double number, char text[NUMBER_TEXT]);

#endif
