/* docs/authoring.md: every program in it goes through the whole loop, every command in it runs, and its catalogue holds
 * every primitive with its cost. */
#include "ir/graph.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { OUTPUT = 1 << 18, PAGE = 1 << 17, LONGEST = 8192 };

static char page[PAGE];

static int read_page(void **state)
{
    (void)state;
    FILE *file = fopen("docs/authoring.md", "r");
    if (!file)
        return -1;
    page[fread(page, 1, sizeof page - 1, file)] = '\0';
    fclose(file);
    return 0;
}

/* Runs a command, both streams into one text; returns the exit status, -1 for a signal. */
static int run(const char *command, char *output)
{
    char line[2048];
    size_t length = 0;
    snprintf(line, sizeof line, "%s 2>&1", command);
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    while (length < OUTPUT - 1 && !feof(pipe) && !ferror(pipe))
        length += fread(output + length, 1, OUTPUT - 1 - length, pipe);
    output[length] = 0;
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static const char *coda(void)
{
    const char *path = getenv("CODA");
    return path ? path : "build/coda";
}

static void write_file(char *path, const char *text, size_t length)
{
    strcpy(path, "/tmp/coda-authoring-XXXXXX");
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    assert_int_equal(write(descriptor, text, length), (ssize_t)length);
    close(descriptor);
}

/* The next fence of the language: its text without the fence, NULL at the end of the page. */
static const char *next_fence(const char *from, const char *language, size_t *length)
{
    char open[32];
    snprintf(open, sizeof open, "\n```%s\n", language);
    const char *begin = strstr(from, open);
    if (!begin)
        return NULL;
    begin += strlen(open);
    const char *end = strstr(begin, "\n```\n");
    assert_non_null(end);
    *length = (size_t)(end - begin) + 1;
    return begin;
}

static bool contains(const char *text, size_t length, const char *what)
{
    const char *found = strstr(text, what);
    return found && found < text + length;
}

static int count_fences(void)
{
    size_t length;
    int count = 0;
    for (const char *at = page; (at = next_fence(at, "coda", &length)); at += length)
        count++;
    return count;
}

static void every_program_goes_through_the_loop(void **state)
{
    static char output[OUTPUT];
    static const char *const steps[] = {"check", "run --device ref", "run --device cpu", "run --seed 3"};
    size_t length;
    (void)state;
    for (const char *at = page; (at = next_fence(at, "coda", &length)); at += length) {
        bool block = contains(at, length, "block ");
        char path[64], command[256];
        write_file(path, at, length);
        for (size_t i = 0; i <= sizeof steps / sizeof *steps; i++) {
            const char *derive = block ? "rewrite --grad" : "grad";
            const char *step = i < sizeof steps / sizeof *steps ? steps[i] : derive;
            if (block && (strstr(step, "cpu") || strstr(step, "--seed")))
                continue;
            snprintf(command, sizeof command, "%s %s %s", coda(), step, path);
            if (run(command, output) != 0)
                fail_msg("coda %s fails:\n%s\n%.*s", step, output, (int)length, at);
        }
        unlink(path);
    }
    assert_true(count_fences() >= 10);
}

/* All at once, since the device's ceilings are measured once a command. */
static void every_program_is_explained_and_timed(void **state)
{
    static char output[OUTPUT], text[PAGE];
    static const char *const steps[] = {"explain --width 64 --tokens 64", "bench --rounds 1 --width 64 --tokens 64"};
    char path[64], command[256];
    size_t length = 0, total = 0;
    (void)state;
    for (const char *at = page; (at = next_fence(at, "coda", &length)); at += length)
        if (!contains(at, length, "block ")) {
            memcpy(text + total, at, length);
            total += length;
        }
    write_file(path, text, total);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        snprintf(command, sizeof command, "%s %s %s", coda(), steps[i], path);
        if (run(command, output) != 0)
            fail_msg("coda %s fails:\n%s", steps[i], output);
    }
    unlink(path);
}

/* The commands of the loop, on the second example, whose value Z they name. */
static void every_command_runs(void **state)
{
    static char output[OUTPUT], text[LONGEST];
    char path[64], command[512];
    size_t length = 0, commands_length = 0;
    int count = 0;
    (void)state;
    const char *example = page, *commands = next_fence(page, "sh", &commands_length);
    do
        example = next_fence(example, "coda", &length);
    while (example && !contains(example, length, "linear_gelu"));
    assert_non_null(example);
    write_file(path, example, length);
    assert_true(commands_length < sizeof text);
    snprintf(text, sizeof text, "%.*s", (int)commands_length, commands);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char *comment = strchr(line, '#'), *file = strstr(line, "mine.coda");
        if (comment)
            *comment = '\0';
        if (strncmp(line, "build/coda ", 11) != 0)
            continue;
        assert_non_null(file);
        snprintf(command, sizeof command, "%s %.*s%s%s", coda(), (int)(file - line - 11), line + 11, path,
                 file + strlen("mine.coda"));
        if (run(command, output) != 0)
            fail_msg("%s fails:\n%s", command, output);
        count++;
    }
    assert_int_equal(count, 6);
    unlink(path);
}

/* Does a row of the catalogue name the primitive, and end with its cost? */
static bool is_listed(const char *catalogue, const char *name, double cost)
{
    char row[1024];
    for (const char *line = catalogue; *line == '|'; line = strchr(line, '\n') + 1) {
        snprintf(row, sizeof row, "%.*s", (int)(strchr(line, '\n') - line), line);
        char *first = row + 1, *end = strstr(first, " | "), *last = strrchr(row, '|');
        if (!end || !last)
            continue;
        *end = *last = '\0';
        for (char *word = strtok(first, " `,"); word; word = strtok(NULL, " `,"))
            if (strncmp(word, name, strlen(name)) == 0 && strchr("(", word[strlen(name)]))
                return strtod(strrchr(end + 1, '|') + 1, NULL) == cost;
    }
    return false;
}

static void the_catalogue_has_every_primitive_and_its_cost(void **state)
{
    (void)state;
    const char *catalogue = strstr(page, "\n|---|---|---|---|\n");
    assert_non_null(catalogue);
    catalogue += strlen("\n|---|---|---|---|\n");
    for (enum op op = 0; op < OP_COUNT; op++) {
        bool sign = op == OP_NEG || op == OP_ADD || op == OP_SUB || op == OP_MUL || (op >= OP_LT && op <= OP_NE);
        if (!op_is_elementwise(op) || sign)
            continue;
        if (!is_listed(catalogue, op_name(op), op_cost(op)))
            fail_msg("`%s`, which costs %g, is not so in the catalogue", op_name(op), op_cost(op));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_program_goes_through_the_loop),
        cmocka_unit_test(every_program_is_explained_and_timed),
        cmocka_unit_test(every_command_runs),
        cmocka_unit_test(the_catalogue_has_every_primitive_and_its_cost),
    };
    return cmocka_run_group_tests(tests, read_page, NULL);
}
