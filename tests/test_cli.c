/* The command: exit statuses, what it says and where, JSON that parses, and every program of the documentation. */
#include <dirent.h>
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

static const char *coda(void)
{
    const char *path = getenv("CODA");
    return path ? path : "build/coda";
}

enum { OUTPUT = 1 << 18 };

/* Runs "coda ARGUMENTS" through the shell, both streams into one text; returns the exit status, -1 for a signal. */
static int run(const char *arguments, char *output)
{
    static char line[8192];
    size_t length = 0;
    snprintf(line, sizeof line, "%s %s%s", coda(), arguments, strstr(arguments, "2>") ? "" : " 2>&1");
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    while (length < OUTPUT - 1 && !feof(pipe) && !ferror(pipe))
        length += fread(output + length, 1, OUTPUT - 1 - length, pipe);
    output[length] = 0;
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void expect(const char *arguments, int status, const char *fragment)
{
    static char output[OUTPUT];
    int found = run(arguments, output);
    if (found != status || !strstr(output, fragment))
        fail_msg("coda %s: status %d, expected %d with \"%s\" in\n%s", arguments, found, status, fragment, output);
}

/* A file that goes with the test. */
static void write_file(char *path, const char *text)
{
    strcpy(path, "/tmp/coda-test-XXXXXX");
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    assert_int_equal(write(descriptor, text, strlen(text)), (ssize_t)strlen(text));
    close(descriptor);
}

static void every_command_has_help(void **state)
{
    static const char *const commands[] = {"check", "run",  "grad",  "rewrite", "explain", "emit",
                                           "bench", "tune", "train", "sample",  "info"};
    (void)state;
    expect("--help", 0, "usage: coda COMMAND");
    expect("help", 0, "usage: coda COMMAND");
    expect("--version", 0, "coda ");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char arguments[64], usage[64];
        snprintf(usage, sizeof usage, "usage: coda %s", commands[i]);
        snprintf(arguments, sizeof arguments, "%s --help", commands[i]);
        expect(arguments, 0, usage);
        snprintf(arguments, sizeof arguments, "help %s", commands[i]);
        expect(arguments, 0, usage);
    }
}

static void bad_usage_is_status_2_and_says_what_to_do(void **state)
{
    static const char *const rows[][2] = {
        {"", "usage: coda COMMAND"},
        {"fly", "there is no command fly"},
        {"check", "expected at least one file"},
        {"check nonsense", "neither a file nor a standard program"},
        {"check --bogus gemm", "unknown or ambiguous option --bogus"},
        {"check --program nope gemm", "holds no program nope"},
        {"check --dtype int gemm", "expected f32, bf16"},
        {"run", "expected at least one file"},
        {"run --dims gemm", "expected at least one file"},
        {"run gemm --dims", "--dims needs a value"},
        {"run --dims M gemm", "expected AXIS=SIZE"},
        {"run --dims M=0 gemm", "whole numbers of at least 1"},
        {"run --dims M=-3 gemm", "whole numbers of at least 1"},
        {"run --dims M=1.5 gemm", "whole numbers of at least 1"},
        {"run --dims M=99999999999999999999 gemm", "whole numbers of at least 1"},
        {"run --dims Z=4 gemm", "gemm has no axis Z"},
        {"run --device gpu gemm", "no device \"gpu\""},
        {"run --threads 0x gemm", "expected a number"},
        {"run --threads 100000 gemm", "100000"},
        {"run --param cap gemm_lse", "expected NAME=NUMBER"},
        {"run --param cap=x gemm_lse", "expected NAME=NUMBER"},
        {"run --param tap=1 gemm_lse", "gemm_lse has no param tap"},
        {"emit --target fortran gemm", "expected c, cuda or cuda:sm_80"},
        {"bench", "suite or layer"},
        {"info extra", "unexpected argument"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect(rows[i][0], 2, rows[i][1]);
}

static void failures_are_status_1(void **state)
{
    static const char bad[] = "program bad {\n    in x : f32[M, N]\n    out Y : f32[M, N] = x / sum(x, N)\n}\n";
    char path[64], arguments[256], place[128];
    (void)state;
    write_file(path, bad);
    snprintf(arguments, sizeof arguments, "check %s", path);
    snprintf(place, sizeof place, "%s:3:", path);
    expect(arguments, 1, place);
    expect(arguments, 1, "^");
    snprintf(arguments, sizeof arguments, "check gemm %s", path);
    expect(arguments, 1, "program gemm");
    unlink(path);
    expect("check /nowhere/x.coda", 1, "/nowhere/x.coda");
    expect("run --device ref --dims N=40,D=32 gemm_rope", 1, "40");
    expect("grad --wrt nothing gemm", 1, "nothing");
    expect("info 2>&1 >/dev/full", 1, "could not be written");
}

static void blocks_become_programs(void **state)
{
    static const char block[] =
        "block norm_between {\n    in A : bf16[M, K]\n    in W : bf16[D, K]\n    in g : bf16[D]\n"
        "    in V : bf16[N, D]\n    x = A @ W.T\n"
        "    h = x * rsqrt(mean(x * x, D) + 1e-6) * g\n    out X : bf16[M, D] = x\n"
        "    out Y : bf16[M, N] = h @ V.T\n}\n";
    char path[64], arguments[128];
    (void)state;
    write_file(path, block);
    snprintf(arguments, sizeof arguments, "rewrite %s", path);
    expect(arguments, 0, "sum(x * x, D:128)");
    expect(arguments, 0, "deferred scale");
    snprintf(arguments, sizeof arguments, "rewrite --grad %s", path);
    expect(arguments, 0, "_bwd");
    snprintf(arguments, sizeof arguments, "check %s", path);
    expect(arguments, 0, "in 2 kernels");
    snprintf(arguments, sizeof arguments, "run %s", path);
    expect(arguments, 0, "norm_between on ref");
    snprintf(arguments, sizeof arguments, "rewrite --dims M=1000,D=1000,K=10,N=10 %s", path);
    expect(arguments, 0, "saves 1 kernel, 2.00 MB");
    snprintf(arguments, sizeof arguments, "rewrite --without 1 %s", path);
    expect(arguments, 1, "--allow-passes");
    snprintf(arguments, sizeof arguments, "rewrite --without 7 %s", path);
    expect(arguments, 1, "no step 7 to leave out");
    snprintf(arguments, sizeof arguments, "rewrite --without 1 --allow-passes %s", path);
    expect(arguments, 0, "extra pass");
    snprintf(arguments, sizeof arguments, "explain --dims M=100,D=100,K=10,N=10 %s", path);
    expect(arguments, 0, "1. deferred scale");
    unlink(path);
}

static void programs_check_and_run(void **state)
{
    (void)state;
    expect("check programs/*.coda", 0, "program gemm_rms_swiglu");
    expect("run --device ref gemm_rms_swiglu", 0, "good");
    expect("run programs/*.coda", 0, "rope_bwd on cpu");
    expect("run --device cpu --dims M=300,N=520,K=264 programs/gemm_rms_swiglu.coda", 0, "[300, 520]");
    expect("run --dtype f32 --seed 7 --threads 3 gemm_residual_rms gemm_swiglu_bwd", 0, "gemm_swiglu_bwd");
    expect("run --dtype f16 gemm_rms_rope", 0, "f16");
    expect("run --param cap=5,eps=1e-3 gemm_rms_lse", 0, "good");
    expect("emit gemm_rms_swiglu", 0, "silu");
    expect("grad gemm_rms_swiglu", 0, "Z.T @ H");
    expect("grad --wrt W gemm", 0, "out dW : f32[N, K] +=");
    expect("explain --dims M=64,N=64,K=64 gemm", 0, "products");
}

/* ---------------------------------------------------------------- JSON */

static const char *after_space(const char *p)
{
    return p + strspn(p, " \t\r\n");
}

static const char *json_value(const char *p);

static const char *json_string(const char *p)
{
    if (*p != '"')
        return NULL;
    for (p++; *p && *p != '"'; p++) {
        if (*p == '\\' && !*++p)
            return NULL;
        if ((unsigned char)*p < 0x20)
            return NULL;
    }
    return *p ? p + 1 : NULL;
}

static const char *json_members(const char *p, char end, bool named)
{
    p = after_space(p);
    if (*p == end)
        return p + 1;
    for (;;) {
        if (named) {
            p = json_string(after_space(p));
            p = p ? after_space(p) : NULL;
            if (!p || *p++ != ':')
                return NULL;
        }
        p = json_value(p);
        p = p ? after_space(p) : NULL;
        if (!p || (*p != ',' && *p != end))
            return NULL;
        if (*p++ == end)
            return p;
    }
}

/* The end of a value, or NULL where it is none. */
static const char *json_value(const char *p)
{
    static const char *const words[] = {"true", "false", "null"};
    p = after_space(p);
    if (*p == '{')
        return json_members(p + 1, '}', true);
    if (*p == '[')
        return json_members(p + 1, ']', false);
    if (*p == '"')
        return json_string(p);
    for (int i = 0; i < 3; i++)
        if (strncmp(p, words[i], strlen(words[i])) == 0)
            return p + strlen(words[i]);
    char *end;
    strtod(p, &end);
    return end != p && strchr("-0123456789", *p) ? end : NULL;
}

static void json_output_is_an_object_a_line(void **state)
{
    static char output[OUTPUT];
    static const struct {
        const char *arguments, *member;
        int lines;
    } rows[] = {
        {"check --json gemm gemm_lse", "\"unfused_bytes\"", 2},
        {"run --json --device ref gemm_rms_swiglu", "\"max_bound\"", 1},
        {"run --json gemm", "\"good\": true", 1},
        {"explain --json --dims M=64,N=64,K=64 gemm", "\"bound_by\"", 1},
        {"explain --json --grad --dims M=64 blocks/llama3.coda", "\"bound_by\"", 14},
        {"rewrite --json --grad --dims M=64 blocks/llama3.coda", "\"compile_ms\"", 1},
        {"info --json", "\"programs\"", 1},
        {"bench --json --rounds 1 --dims M=64,N=64,K=64 gemm_residual_rms", "\"ratio_to_bare\"", 1},
        {"bench --json --rounds 1 --dims M=64,N=64 square_sum", "\"bare_ms\": null", 1},
        {"bench --json --rounds 1 --steady --dims M=64,N=64 square_sum", "\"steady\"", 1},
        {"bench --json --rounds 1 --width 128 --tokens 128 --chunk 64 --dims V=512 blocks/llama3_head.coda",
         "\"memory\"", 13},
        {"bench --json --rounds 1 --launches --width 128 --tokens 128 --chunk 64 --dims V=512 blocks/llama3_head.coda",
         "\"floor_ms\"", 15},
        {"bench --json --rounds 1 --launches --join all --width 128 --tokens 64 blocks/llama3.coda",
         "\"launch\": \"llama3_bwd_dWd + llama3_bwd_dWg + llama3_bwd_dWu\"", 16},
        {"bench --json --rounds 1 --width 128 --tokens 64 layer", "\"peak_share\"", 29},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char arguments[256];
        int lines = 0;
        snprintf(arguments, sizeof arguments, "%s 2>/dev/null", rows[i].arguments);
        int status = run(arguments, output);
        if (status != 0 || !strstr(output, rows[i].member))
            fail_msg("coda %s: status %d, expected %s in\n%s", rows[i].arguments, status, rows[i].member, output);
        for (const char *p = output; *p; lines++) {
            const char *end = *p == '{' ? json_value(p) : NULL;
            if (!end || *end != '\n')
                fail_msg("coda %s: line %d is no JSON object:\n%s", rows[i].arguments, lines + 1, p);
            p = end + 1;
        }
        assert_int_equal(lines, rows[i].lines);
    }
}

/* ---------------------------------------------------------------- the documentation */

static int check_fence(const char *file, int line, const char *text)
{
    static char output[OUTPUT];
    static const char *const commands[] = {"check", "run --device ref", "run --device cpu"};
    char path[64], arguments[128];
    int failures = 0;
    write_file(path, text);
    for (int i = 0; i < 3; i++) {
        snprintf(arguments, sizeof arguments, "%s %s", commands[i], path);
        if (run(arguments, output) != 0) {
            print_error("%s:%d: coda %s fails:\n%s\n", file, line, commands[i], output);
            failures++;
        }
    }
    unlink(path);
    return failures;
}

/* Runs every ```coda fence of one file; returns how many there are. */
static int check_document(const char *path, int *failures)
{
    static char text[1 << 16];
    char line[1024];
    int fences = 0, number = 0, start = 0;
    bool inside = false;
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    while (fgets(line, sizeof line, file)) {
        number++;
        if (!inside && strcmp(line, "```coda\n") == 0) {
            inside = true;
            start = number;
            text[0] = 0;
        } else if (inside && strcmp(line, "```\n") == 0) {
            inside = false;
            fences++;
            *failures += check_fence(path, start, text);
        } else if (inside) {
            assert_true(strlen(text) + strlen(line) < sizeof text);
            strcat(text, line);
        }
    }
    fclose(file);
    assert_false(inside);
    return fences;
}

static void every_program_in_the_documentation_checks_and_runs(void **state)
{
    (void)state;
    int failures = 0, fences = check_document("README.md", &failures);
    DIR *folder = opendir("docs");
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        char path[512];
        const char *end = strrchr(entry->d_name, '.');
        if (!end || strcmp(end, ".md") != 0)
            continue;
        snprintf(path, sizeof path, "docs/%s", entry->d_name);
        fences += check_document(path, &failures);
    }
    closedir(folder);
    print_message("%d programs in the documentation\n", fences);
    assert_true(fences >= 8);
    assert_int_equal(failures, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_command_has_help),
        cmocka_unit_test(bad_usage_is_status_2_and_says_what_to_do),
        cmocka_unit_test(failures_are_status_1),
        cmocka_unit_test(programs_check_and_run),
        cmocka_unit_test(blocks_become_programs),
        cmocka_unit_test(json_output_is_an_object_a_line),
        cmocka_unit_test(every_program_in_the_documentation_checks_and_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
