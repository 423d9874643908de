/* What `train` and `sample` share. */
#ifndef CODA_CLI_TRAINING_H
#define CODA_CLI_TRAINING_H

#include "cli.h"

#include <stddef.h>

/* ---------------------------------------------------------------- text of unknown bytes (text.c) */

/* Turns bytes into UTF-8 that a terminal shows as it is: control characters and broken sequences become U+FFFD. */
struct cleaner {
    unsigned char pending[4];
    int held, wanted;
};

enum { CLEAN_SIZE = 16 };
/* Writes what the byte completes, zero-terminated, to `text` (CLEAN_SIZE bytes). */
void clean_byte(struct cleaner *cleaner, unsigned char byte, char *text);
void clean_end(struct cleaner *cleaner, char *text); /* what an unfinished sequence becomes */

/* Text to tokens of a model: bytes, or "1,2,3" where the vocabulary is no bytes'. Returns their number, or -1 after
 * printing why not. Release *tokens with free. */
long read_prompt(const char *command, const char *prompt, int64_t vocabulary, int32_t **tokens);

/* Generates and prints: as it comes, or as a member "text" or "tokens" of an object that is being written. */
struct speech {
    const char *prompt;
    double temperature;
    long tokens, top_k, seed;
};
coda_status speak(const char *command, coda_llama *llama, const struct speech *speech, struct json *json,
                  coda_error *error);

/* ---------------------------------------------------------------- the course of a run (progress.c) */

struct progress {
    struct json *json; /* NULL: for people */
    bool terminal;
    int64_t first, steps; /* steps done before, and in all */
    double start_ms, line_ms;
    double tokens;
};

void progress_begin(struct progress *progress, struct json *json, int64_t first, int64_t steps);
void progress_step(struct progress *progress, const coda_step_report *report);
void progress_clear(struct progress *progress);        /* before another line is printed */
double progress_rate(const struct progress *progress); /* tokens a second */

/* ---------------------------------------------------------------- fused against unfused (versus.c) */

/* Trains two fresh models with the same seed for `steps` steps, one on each path, and prints what it took. */
int versus(const char *command, coda_device *device, const coda_train_config *config, long steps, struct json *json);

/* Has the user asked to stop? (train.c) */
bool stop_wanted(void);

#endif
