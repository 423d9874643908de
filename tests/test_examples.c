/* The programs of examples/ build and do what they say. CODA names the command; examples lie beside it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const struct {
    const char *name, *says; /* the last line */
} examples[] = {
    {"hello", "10.5 0\n"},
    {"train_block", "step 60: "},
};

static void examples_run(void **state)
{
    const char *command = getenv("CODA");
    (void)state;
    if (!command)
        skip();
    int length = (int)(strrchr(command, '/') ? strrchr(command, '/') - command : 0);
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        char path[1024], line[256], last[256] = "";
        snprintf(path, sizeof path, "%.*s/examples/%s", length, command, examples[i].name);
        FILE *output = popen(path, "r");
        assert_non_null(output);
        while (fgets(line, sizeof line, output))
            memcpy(last, line, sizeof last);
        int status = pclose(output);
        if (status != 0 || strncmp(last, examples[i].says, strlen(examples[i].says)) != 0)
            fail_msg("%s: status %d, said last: %s", path, status, last);
        if (i == 1) /* it starts at 117 */
            assert_true(atof(last + strlen(examples[i].says)) < 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(examples_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
