#include "training.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char unknown[] = "\xef\xbf\xbd"; /* U+FFFD */

/* Bytes of the sequence that begins with `byte`; 0: none does. */
static int sequence_length(unsigned char byte)
{
    return byte < 0x80 ? 1 : byte < 0xc2 ? 0 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : byte < 0xf5 ? 4 : 0;
}

/* Overlong forms, surrogates and what lies past U+10FFFF show in the second byte. */
static bool second_is_valid(unsigned char first, unsigned char second)
{
    return !((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) || (first == 0xf0 && second < 0x90) ||
             (first == 0xf4 && second > 0x8f));
}

void clean_end(struct cleaner *cleaner, char *text)
{
    text[0] = 0;
    if (cleaner->held)
        strcpy(text, unknown);
    cleaner->held = 0;
}

void clean_byte(struct cleaner *cleaner, unsigned char byte, char *text)
{
    text[0] = 0;
    if (cleaner->held) {
        bool valid = (byte & 0xc0) == 0x80 && (cleaner->held > 1 || second_is_valid(cleaner->pending[0], byte));
        if (valid) {
            cleaner->pending[cleaner->held++] = byte;
            if (cleaner->held == cleaner->wanted) {
                memcpy(text, cleaner->pending, (size_t)cleaner->held);
                text[cleaner->held] = 0;
                cleaner->held = 0;
            }
            return;
        }
        clean_end(cleaner, text);
        text += strlen(text);
    }
    int length = sequence_length(byte);
    bool control = (byte < ' ' && byte != '\n' && byte != '\t') || byte == 0x7f;
    if (length == 0 || control) {
        strcpy(text, unknown);
    } else if (length == 1) {
        text[0] = (char)byte;
        text[1] = 0;
    } else {
        cleaner->pending[0] = byte;
        cleaner->held = 1;
        cleaner->wanted = length;
    }
}

static long read_ids(const char *command, const char *prompt, int32_t *tokens)
{
    long count = 0;
    for (const char *at = prompt; *at;) {
        char *end;
        errno = 0;
        long id = strtol(at, &end, 10);
        if (end == at || errno || id < 0 || id > INT32_MAX || (*end && *end != ','))
            return usage_error(command, "--prompt: the vocabulary is not bytes; expected token ids such as 1,2,3"), -1;
        tokens[count++] = (int32_t)id;
        at = *end ? end + 1 : end;
    }
    return count;
}

long read_prompt(const char *command, const char *prompt, int64_t vocabulary, int32_t **tokens)
{
    size_t length = strlen(prompt);
    int32_t *list = malloc((length + 1) * sizeof *list);
    if (!list) {
        fprintf(stderr, "coda %s: no memory for the prompt\n", command);
        return -1;
    }
    long count = (long)length;
    if (vocabulary == 256)
        for (size_t i = 0; i < length; i++)
            list[i] = (unsigned char)prompt[i];
    else
        count = read_ids(command, prompt, list);
    if (count == 0) {
        list[0] = vocabulary == 256 ? '\n' : 0; /* a start without words */
        count = 1;
    }
    if (count < 0)
        free(list);
    else
        *tokens = list;
    return count;
}

struct output {
    bool bytes;
    struct cleaner cleaner;
};

static int print_token(void *context, int32_t token)
{
    struct output *output = context;
    char text[CLEAN_SIZE];
    if (output->bytes) {
        clean_byte(&output->cleaner, (unsigned char)token, text);
        fputs(text, stdout);
    } else
        printf(" %d", (int)token);
    fflush(stdout);
    return stop_wanted();
}

static int keep_token(void *context, int32_t token)
{
    (void)context;
    (void)token;
    return stop_wanted();
}

/* The whole text as one string of JSON. */
static void write_member(struct json *json, bool bytes, const int32_t *tokens, int64_t count)
{
    char *text = malloc((size_t)count * CLEAN_SIZE + CLEAN_SIZE), *at = text;
    struct cleaner cleaner = {{0}, 0, 0};
    if (!text)
        return;
    *at = 0;
    for (int64_t i = 0; i < count; i++, at += strlen(at)) {
        if (bytes)
            clean_byte(&cleaner, (unsigned char)tokens[i], at);
        else
            snprintf(at, CLEAN_SIZE, i ? ",%d" : "%d", (int)tokens[i]);
    }
    if (bytes)
        clean_end(&cleaner, at);
    json_text(json, bytes ? "text" : "tokens", text);
    free(text);
}

coda_status speak(const char *command, coda_llama *llama, const struct speech *speech, struct json *json,
                  coda_error *error)
{
    int64_t vocabulary = coda_llama_configuration(llama)->vocab_size, produced = 0;
    struct output output = {vocabulary == 256, {{0}, 0, 0}};
    int32_t *prompt = NULL, *tokens = NULL;
    long length = read_prompt(command, speech->prompt, vocabulary, &prompt);
    if (length < 0) {
        error->message[0] = 0;
        return error->status = CODA_INVALID;
    }
    coda_sampling sampling = {speech->temperature, speech->top_k, (uint64_t)speech->seed,
                              json ? keep_token : print_token, &output};
    coda_status status = CODA_MEMORY;
    snprintf(error->message, sizeof error->message, "no memory for %ld tokens", speech->tokens);
    tokens = malloc(((size_t)speech->tokens + 1) * sizeof *tokens);
    if (!json)
        fputs(speech->prompt, stdout);
    if (tokens)
        status = coda_llama_generate(llama, prompt, length, &sampling, tokens, speech->tokens, &produced, error);
    if (status == CODA_OK && json)
        write_member(json, output.bytes, tokens, produced);
    if (!json) {
        char text[CLEAN_SIZE];
        clean_end(&output.cleaner, text);
        puts(text);
    }
    free(tokens);
    free(prompt);
    return status;
}
