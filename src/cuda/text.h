/* A text that grows. An allocation that fails is remembered, so that callers check once, at the end. */
#ifndef CODA_CUDA_TEXT_H
#define CODA_CUDA_TEXT_H

#include <stdbool.h>
#include <stddef.h>

struct text {
    char *data; /* zero-terminated, or NULL while empty */
    size_t length, capacity;
    bool failed;
};

void text_add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_append(struct text *text, const char *string);
const char *text_of(const struct text *text); /* "" while empty */
void text_clear(struct text *text);
void text_free(struct text *text);

#endif
