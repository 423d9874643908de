/* Blocks against the programs that they become, and what the compiler says where they cannot. */
#include "kit/blocks.h"
#include "rewrite/rewrite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const coda_dims dims = {12,
                               {{"M", 5},
                                {"A", 8},
                                {"D", 6},
                                {"F", 7},
                                {"Q", 8},
                                {"E", 4},
                                {"H", 4},
                                {"P", 9},
                                {"V", 11},
                                {"B", 5},
                                {"N", 13},
                                {"K", 10}}};

static struct unit read_text(const char *text)
{
    struct unit unit = {0};
    coda_error error = {0};
    if (parse(text, strlen(text), "block", &unit, &error) != CODA_OK)
        fail_msg("%s", error.message);
    return unit;
}

static char *read_block(const char *name)
{
    static char text[1 << 16];
    char path[256];
    snprintf(path, sizeof path, "blocks/%s.coda", name);
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s cannot be opened: run the tests from the repository's root", path);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

/* ---- the blocks of blocks/ */

static const struct {
    const char *name;
    bool passes;             /* it needs some between products */
    int forward, with_gradients; /* programs */
} block_files[] = {
    {"llama3", false, 4, 14},
    {"llama3_head", false, 3, 8},
    {"gpt2", false, 6, 17},
    {"qwen3", false, 4, 14},
    {"gemma", true, 6, 18},
    {"parallel", false, 3, 13},
    {"relu2", false, 4, 13},
    {"scaled_residual", false, 4, 14},
};

static void every_block_computes_what_it_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof block_files / sizeof *block_files; i++) {
        struct unit unit = read_text(read_block(block_files[i].name));
        struct block_check check;
        for (int backward = 0; backward < 2; backward++) {
            if (!block_agrees(unit.graph[0], &dims, backward, block_files[i].passes, 3, &check))
                fail_msg("%s: %s", block_files[i].name, check.message);
            assert_true(check.error < 1e-12);
            assert_int_equal(check.programs, backward ? block_files[i].with_gradients : block_files[i].forward);
        }
        unit_free(&unit);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_computes_what_it_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
