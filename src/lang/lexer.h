/* Tokens of a text. The lexer is a position in the text and nothing else, so a copy of it looks ahead at no cost. */
#ifndef CODA_LANG_LEXER_H
#define CODA_LANG_LEXER_H

#include <stdbool.h>
#include <stddef.h>

enum { MAX_NAME = 200 };

enum token_kind {
    TOKEN_EOF,
    TOKEN_END, /* a newline or `;` that ends a statement */
    TOKEN_NAME,
    TOKEN_NUMBER,
    TOKEN_BAD_CHARACTER,
    TOKEN_BAD_NUMBER,
    TOKEN_LONG_NAME,
    TOKEN_OPEN_BRACE,
    TOKEN_CLOSE_BRACE,
    TOKEN_OPEN_PAREN,
    TOKEN_CLOSE_PAREN,
    TOKEN_OPEN_BRACKET,
    TOKEN_CLOSE_BRACKET,
    TOKEN_COLON,
    TOKEN_DOT,
    /* tokens after which a newline does not end a statement */
    TOKEN_COMMA,
    TOKEN_ASSIGN,
    TOKEN_ACCUMULATE,
    TOKEN_PLUS,
    TOKEN_MINUS,
    TOKEN_TIMES,
    TOKEN_DIVIDE,
    TOKEN_MATMUL,
    TOKEN_LT,
    TOKEN_LE,
    TOKEN_GT,
    TOKEN_GE,
    TOKEN_EQ,
    TOKEN_NE,
};

struct token {
    enum token_kind kind;
    int begin, end; /* byte offsets */
    bool first_on_line;
};

struct lexer {
    const char *text;
    int length;
    int position;
    int depth; /* of open parentheses and brackets: inside them a newline is a blank */
    enum token_kind last;
    bool fresh; /* no token yet on this line */
};

void lexer_start(struct lexer *lexer, const char *text, int length);
struct token lexer_next(struct lexer *lexer);

bool is_reserved_word(const char *text, size_t length); /* in, out, program, .. */
bool is_name(const char *text, size_t length);          /* letter or _, then letters, digits, _; at most MAX_NAME */

/* Offset of the first byte that is NUL or not UTF-8; -1: none. */
long find_bad_byte(const char *text, size_t length);

#endif
