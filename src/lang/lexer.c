#include "lang/lexer.h"

#include <string.h>

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

bool is_name(const char *text, size_t length)
{
    if (length == 0 || length > MAX_NAME || !is_letter(text[0]))
        return false;
    for (size_t i = 1; i < length; i++)
        if (!is_letter(text[i]) && !is_digit(text[i]))
            return false;
    return true;
}

bool is_reserved_word(const char *text, size_t length)
{
    static const char *const words[] = {"in", "param", "axis", "out", "program", "block", "when"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i]) == length && memcmp(text, words[i], length) == 0)
            return true;
    return false;
}

void lexer_start(struct lexer *lexer, const char *text, int length)
{
    *lexer = (struct lexer){.text = text, .length = length, .last = TOKEN_END, .fresh = true};
    if (length >= 3 && text[0] == '\xEF' && text[1] == '\xBB' && text[2] == '\xBF')
        lexer->position = 3; /* a byte order mark, as some editors write it */
}

static char peek(const struct lexer *lexer, int ahead)
{
    return lexer->position + ahead < lexer->length ? lexer->text[lexer->position + ahead] : '\0';
}

static bool newline_ends_statement(const struct lexer *lexer)
{
    return lexer->depth == 0 && lexer->last != TOKEN_END && lexer->last != TOKEN_OPEN_BRACE &&
           lexer->last < TOKEN_COMMA;
}

/* Skips blanks, comments and newlines that end nothing. Returns true at a newline that ends a statement. */
static bool skip_blanks(struct lexer *lexer)
{
    for (; lexer->position < lexer->length; lexer->position++) {
        char c = lexer->text[lexer->position];
        if (c == '#')
            while (lexer->position + 1 < lexer->length && peek(lexer, 1) != '\n')
                lexer->position++;
        else if (c == '\n') {
            lexer->fresh = true;
            if (newline_ends_statement(lexer))
                return true;
        } else if (c != ' ' && c != '\t' && c != '\r')
            return false;
    }
    return false;
}

static int skip_digits(struct lexer *lexer)
{
    int count = 0;
    for (; is_digit(peek(lexer, 0)); count++)
        lexer->position++;
    return count;
}

static enum token_kind number(struct lexer *lexer)
{
    bool good = true;
    skip_digits(lexer);
    if (peek(lexer, 0) == '.') {
        lexer->position++;
        good = skip_digits(lexer) > 0;
    }
    if (peek(lexer, 0) == 'e' || peek(lexer, 0) == 'E') {
        lexer->position++;
        if (peek(lexer, 0) == '+' || peek(lexer, 0) == '-')
            lexer->position++;
        good = skip_digits(lexer) > 0 && good;
    }
    while (is_letter(peek(lexer, 0)) || is_digit(peek(lexer, 0)) || peek(lexer, 0) == '.') {
        good = false;
        lexer->position++;
    }
    return good ? TOKEN_NUMBER : TOKEN_BAD_NUMBER;
}

static enum token_kind name(struct lexer *lexer)
{
    int begin = lexer->position;
    while (is_letter(peek(lexer, 0)) || is_digit(peek(lexer, 0)))
        lexer->position++;
    return lexer->position - begin > MAX_NAME ? TOKEN_LONG_NAME : TOKEN_NAME;
}

/* One sign, with the form that it takes before `=` where there is one. */
static const struct {
    char sign;
    enum token_kind alone, before_equal;
} signs[] = {
    {'{', TOKEN_OPEN_BRACE, TOKEN_EOF},
    {'}', TOKEN_CLOSE_BRACE, TOKEN_EOF},
    {'(', TOKEN_OPEN_PAREN, TOKEN_EOF},
    {')', TOKEN_CLOSE_PAREN, TOKEN_EOF},
    {'[', TOKEN_OPEN_BRACKET, TOKEN_EOF},
    {']', TOKEN_CLOSE_BRACKET, TOKEN_EOF},
    {':', TOKEN_COLON, TOKEN_EOF},
    {'.', TOKEN_DOT, TOKEN_EOF},
    {',', TOKEN_COMMA, TOKEN_EOF},
    {'=', TOKEN_ASSIGN, TOKEN_EQ},
    {'+', TOKEN_PLUS, TOKEN_ACCUMULATE},
    {'-', TOKEN_MINUS, TOKEN_EOF},
    {'*', TOKEN_TIMES, TOKEN_EOF},
    {'/', TOKEN_DIVIDE, TOKEN_EOF},
    {'@', TOKEN_MATMUL, TOKEN_EOF},
    {'<', TOKEN_LT, TOKEN_LE},
    {'>', TOKEN_GT, TOKEN_GE},
    {'!', TOKEN_BAD_CHARACTER, TOKEN_NE},
    {';', TOKEN_END, TOKEN_EOF},
};

static enum token_kind sign(struct lexer *lexer)
{
    char c = lexer->text[lexer->position++];
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        if (signs[i].sign != c)
            continue;
        if (signs[i].before_equal == TOKEN_EOF || peek(lexer, 0) != '=')
            return signs[i].alone;
        lexer->position++;
        return signs[i].before_equal;
    }
    while (((unsigned char)peek(lexer, 0) & 0xC0) == 0x80) /* the rest of one UTF-8 sequence */
        lexer->position++;
    return TOKEN_BAD_CHARACTER;
}

static void track_depth(struct lexer *lexer, enum token_kind kind)
{
    if (kind == TOKEN_OPEN_PAREN || kind == TOKEN_OPEN_BRACKET)
        lexer->depth++;
    else if ((kind == TOKEN_CLOSE_PAREN || kind == TOKEN_CLOSE_BRACKET) && lexer->depth > 0)
        lexer->depth--;
    else if (kind == TOKEN_OPEN_BRACE || kind == TOKEN_CLOSE_BRACE || kind == TOKEN_END)
        lexer->depth = 0;
}

struct token lexer_next(struct lexer *lexer)
{
    bool ends = skip_blanks(lexer);
    struct token token = {.kind = TOKEN_EOF, .begin = lexer->position, .first_on_line = lexer->fresh};
    if (ends) {
        lexer->position++;
        token.kind = TOKEN_END;
    } else if (lexer->position < lexer->length) {
        char c = lexer->text[lexer->position];
        lexer->fresh = false;
        token.kind = is_letter(c) ? name(lexer) : is_digit(c) ? number(lexer) : sign(lexer);
    }
    token.end = lexer->position;
    lexer->last = token.kind;
    track_depth(lexer, token.kind);
    return token;
}

/* Bytes of the UTF-8 sequence at `s`, 0 where there is none (RFC 3629: no overlong forms, no surrogates). */
static int sequence_length(const unsigned char *s, size_t left)
{
    if (s[0] < 0x80)
        return s[0] != 0;
    int length = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    if (s[0] < 0xC2 || s[0] > 0xF4 || (size_t)length > left)
        return 0;
    for (int i = 1; i < length; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    bool overlong = (s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xF0 && s[1] < 0x90);
    bool outside = (s[0] == 0xED && s[1] > 0x9F) || (s[0] == 0xF4 && s[1] > 0x8F);
    return overlong || outside ? 0 : length;
}

long find_bad_byte(const char *text, size_t length)
{
    for (size_t i = 0; i < length;) {
        int bytes = sequence_length((const unsigned char *)text + i, length - i);
        if (bytes == 0)
            return (long)i;
        i += (size_t)bytes;
    }
    return -1;
}
