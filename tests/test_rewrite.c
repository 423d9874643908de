/* Blocks against the programs that they become, and what the compiler says where they cannot. */
#include "kit/blocks.h"
#include "kit/random.h"
#include "kit/random_block.h"
#include "kit/texts.h"
#include "rewrite/rewrite.h"
#include "rewrite/rules.h"

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

/* ---- the blocks of blocks/ */

static const struct {
    const char *name;
    bool passes;                 /* it needs some between products */
    int forward, with_gradients; /* programs */
} block_files[] = {
    {"llama3", false, 4, 14},        {"llama3_head", false, 3, 8},
    {"gpt2", false, 6, 17},          {"qwen3", false, 4, 14},
    {"gemma", true, 6, 18},          {"parallel", false, 3, 13},
    {"relu2", false, 4, 13},         {"scaled_residual", false, 4, 14},
    {"llama3_start", false, 2, 5},   {"llama3_end", false, 5, 15},
    {"llama3_logits", false, 4, 14}, {"gemma_head", false, 3, 6},
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

/* ---- against the programs that a person wrote */

extern const char *const coda_standard_texts[][2];

static const struct {
    const char *derived, *written;
    coda_dims dims; /* of the written one, to the sizes below */
} pairs[] = {
    {"llama3_X1", "gemm_residual_rms", {3, {{"M", 384}, {"K", 320}, {"N", 256}}}},
    {"llama3_G", "gemm_rms_swiglu", {3, {{"M", 384}, {"K", 256}, {"N", 640}}}},
    {"llama3_X", "gemm_residual_rms", {3, {{"M", 384}, {"K", 640}, {"N", 256}}}},
    {"llama3_QKV", "gemm_rms_rope", {6, {{"M", 384}, {"K", 256}, {"Q", 320}, {"E", 64}, {"D", 64}, {"P", 100}}}},
    {"llama3_bwd_dZ", "rope_bwd", {5, {{"M", 384}, {"N", 448}, {"T", 384}, {"D", 64}, {"P", 100}}}},
    {"llama3_bwd_dX2", "gemm_rms_bwd_qkv", {4, {{"M", 384}, {"N", 256}, {"Q", 320}, {"E", 64}}}},
    {"llama3_bwd_dWq_Wk_Wv", "gemm_wgrad", {3, {{"K", 384}, {"M", 448}, {"N", 256}}}},
    {"llama3_bwd_dG", "gemm_swiglu_bwd", {3, {{"M", 384}, {"K", 256}, {"N", 640}}}},
    {"llama3_bwd_dWd", "gemm_wgrad", {3, {{"K", 384}, {"M", 256}, {"N", 640}}}},
    {"llama3_bwd_dx", "gemm_rms_bwd_twin", {3, {{"M", 384}, {"K", 640}, {"N", 256}}}},
    {"llama3_bwd_dWg", "gemm_wgrad", {3, {{"K", 384}, {"M", 640}, {"N", 256}}}},
    {"llama3_bwd_dWu", "gemm_wgrad", {3, {{"K", 384}, {"M", 640}, {"N", 256}}}},
    {"llama3_bwd_dy", "gemm_dgrad", {3, {{"M", 384}, {"K", 256}, {"N", 320}}}},
    {"llama3_bwd_dWo", "gemm_wgrad", {3, {{"K", 384}, {"M", 256}, {"N", 320}}}},
};

static const coda_dims derived_dims = {
    8, {{"M", 384}, {"A", 320}, {"D", 256}, {"F", 640}, {"Q", 320}, {"E", 64}, {"H", 64}, {"P", 100}}};

/* An operand as one number: role, type and sizes. */
static int compare_numbers(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(int64_t[4]));
}

struct summary {
    int64_t operand[MAX_OPERANDS][4];
    int count;
    double bytes, arithmetic;
};

static void summarise(const struct graph *graph, const coda_dims *sizes, struct summary *summary)
{
    int64_t size[MAX_AXES] = {0};
    bool used[4096];
    memset(summary, 0, sizeof *summary);
    for (int i = 0; i < sizes->count; i++) {
        int axis = graph_find_axis(graph, sizes->item[i].axis);
        if (axis >= 0)
            size[axis] = sizes->item[i].size;
    }
    assert_int_equal(sizes_complete(graph, size, &(struct complaint){0}), CODA_OK);
    for (int o = 0; o < graph->operand_count; o++) {
        const struct operand *operand = &graph->operand[o];
        int64_t *row = summary->operand[summary->count++];
        row[0] = operand->role;
        row[1] = operand->dtype;
        row[2] = operand->shape.rank > 0 ? dim_size(&operand->shape.dim[0], size) : 1;
        row[3] = operand->shape.rank > 1 ? dim_size(&operand->shape.dim[1], size) : 1;
        summary->bytes += (double)(row[2] * row[3]) * (double)coda_dtype_size(operand->dtype);
    }
    qsort(summary->operand, (size_t)summary->count, sizeof summary->operand[0], compare_numbers);
    assert_true(graph->node_count < 4096);
    graph_mark_used(graph, used);
    for (int n = 0; n < graph->node_count; n++) { /* reductions cost one operation an element that they read */
        const struct node *node = &graph->node[n];
        const struct shape *shape = op_is_reduction(node->op) ? &graph->node[node->input[0]].shape : &node->shape;
        double elements = 1;
        for (int d = 0; d < shape->rank; d++)
            elements *= (double)dim_size(&shape->dim[d], size);
        summary->arithmetic += used[n] ? op_cost(node->op) * elements : 0;
    }
}

static const struct graph *find_program(const struct unit *unit, const char *name)
{
    for (int i = 0; i < unit->count; i++)
        if (strcmp(unit->graph[i]->name, name) == 0)
            return unit->graph[i];
    fail_msg("no program %s", name);
    return NULL;
}

static void a_llama_layer_costs_what_the_written_programs_cost(void **state)
{
    struct unit block = read_text(read_block("llama3")), derived = {0};
    coda_rewrite_options options = {.backward = 1};
    coda_error error = {0};
    (void)state;
    assert_int_equal(rewrite_block(block.graph[0], &options, &derived, NULL, &error), CODA_OK);
    assert_int_equal(derived.count, sizeof pairs / sizeof *pairs);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct summary ours, theirs;
        char path[128];
        const char *text = NULL;
        snprintf(path, sizeof path, "programs/%s.coda", pairs[i].written);
        for (int k = 0; coda_standard_texts[k][0]; k++)
            if (strstr(coda_standard_texts[k][0], path))
                text = coda_standard_texts[k][1];
        assert_non_null(text);
        struct unit written = read_text(text);
        summarise(find_program(&derived, pairs[i].derived), &derived_dims, &ours);
        summarise(written.graph[0], &pairs[i].dims, &theirs);
        if (ours.count != theirs.count || memcmp(ours.operand, theirs.operand, sizeof ours.operand) != 0)
            fail_msg("%s and %s have other operands: %d (%g bytes) and %d (%g bytes)", pairs[i].derived,
                     pairs[i].written, ours.count, ours.bytes, theirs.count, theirs.bytes);
        if (ours.arithmetic > 1.1 * theirs.arithmetic)
            fail_msg("%s computes %g, %s %g", pairs[i].derived, ours.arithmetic, pairs[i].written, theirs.arithmetic);
        unit_free(&written);
    }
    unit_free(&derived);
    unit_free(&block);
}

/* ---- rules, each on a block that it alone decides */

static const struct {
    enum rule rule;
    const char *text;
    bool backward, passes, exponentials;
} rule_blocks[] = {
    {RULE_DEFERRED_SCALE,
     "block b { in x : f32[M, D]; in W : f32[F, D]; in g : f32[D]\n"
     "out y : f32[M, F] = (x * rsqrt(sum(x * x, D) + 1) * g) @ W.T }",
     false, false, false},
    {RULE_DEFERRED_MEAN, "block b { in x : f32[M, D]; in W : f32[F, D]\n out y : f32[M, F] = (x - mean(x, D)) @ W.T }",
     false, false, false},
    {RULE_EXPANDED_SUM,
     "block b { in x : f32[M, D]; in W : f32[F, D]\n d = x - mean(x, D)\n"
     "out y : f32[M, F] = (x @ W.T) * sum(d * d, D) }",
     false, false, false},
    {RULE_MOVED_DOT,
     "block b { in x : f32[M, D]; in W : f32[F, D]\n out y : f32[M, F] = tanh((x * rsqrt(sum(x * x, D) + 1)) @ W.T) }",
     true, false, false},
    {RULE_DROPPED_ROTATION,
     "block b { in x : f32[M, D]; in V : f32[A, D]; in t : f32[P, H]; in p : i32[M]\n"
     "out y : f32[M, A] = rope((x * rsqrt(sum(x * x, D) + 1)) @ V.T, t, p) }",
     true, false, false},
    {RULE_SPLIT_SUM, "block b { in x : f32[M, D]; in W : f32[F, D]\n out y : f32[M, F] = (x @ W.T) * sum(x * x, D) }",
     false, false, false},
    {RULE_KEPT, "block b { in x : f32[M, D]; in W : f32[F, D]\n out y : f32[M, F] = silu(x @ W.T) }", true, false,
     false},
    {RULE_TWIN, "block b { in x : f32[M, D]; in W, V : f32[F, D]\n out y : f32[M, F] = tanh(x @ W.T) * (x @ V.T) }",
     false, false, false},
    {RULE_SUMMED,
     "block b { in x : f32[M, D]; in y : f32[M, A]; in W : f32[F, D]; in V : f32[F, A]\n"
     "out z : f32[M, F] = tanh(x @ W.T + y @ V.T) }",
     false, false, false},
    {RULE_EXTRA_PASS,
     "block b { in x : f32[M, D]; in W : f32[F, D]\n y = x @ W.T\n out z : f32[M, F] = y / sum(y * y, F) }", false,
     true, false},
    {RULE_EXPONENTIALS,
     "block b { in x : f32[M, D]; in W : f32[F, D]; in t : i32[M]\n z = x @ W.T\n"
     "out ce : f32[M] = logsumexp(z, F) - pick(z, t) }",
     true, false, true},
};

static void every_rule_keeps_the_values_and_is_reported(void **state)
{
    (void)state;
    assert_int_equal(sizeof rule_blocks / sizeof *rule_blocks, RULE_COUNT);
    for (size_t i = 0; i < sizeof rule_blocks / sizeof *rule_blocks; i++) {
        struct unit unit = read_text(rule_blocks[i].text), made = {0};
        coda_rewrite_options options = {.backward = rule_blocks[i].backward,
                                        .allow_passes = rule_blocks[i].passes,
                                        .exponentials = rule_blocks[i].exponentials};
        struct block_check check;
        coda_error error = {0};
        char *report = NULL;
        const char *name = rule_name(rule_blocks[i].rule);
        double bound = rule_blocks[i].exponentials ? 1e-6 : 1e-9; /* a `cast` is one to f32 */
        if (!block_agrees_with(unit.graph[0], &dims, &options, bound, 5, &check))
            fail_msg("%s: %s", name, check.message);
        if (rewrite_block(unit.graph[0], &options, &made, &report, &error) != CODA_OK)
            fail_msg("%s: %s", name, error.message);
        if (report == NULL || strstr(report, name) == NULL ||
            strstr(report, rule_statement(rule_blocks[i].rule)) == NULL)
            fail_msg("%s is not in the report:\n%s", name, report ? report : "");
        free(report);
        unit_free(&made);
        unit_free(&unit);
    }
}

/* How many steps the report numbers. */
static int count_steps(const char *report)
{
    char begin[16];
    int count = 0;
    for (const char *at = report; at != NULL; at = strstr(report, begin)) {
        count++;
        snprintf(begin, sizeof begin, "\n%d. ", count + 1);
        if (strncmp(report, "1. ", 3) != 0)
            return 0;
    }
    return count;
}

/* Each step of each block left out: other programs, the same results. The report says what a step saves. */
static void every_step_can_be_left_out_and_says_what_it_saves(void **state)
{
    int steps = 0;
    (void)state;
    for (size_t i = 0; i < sizeof block_files / sizeof *block_files; i++) {
        struct unit unit = read_text(read_block(block_files[i].name)), made = {0};
        coda_rewrite_options options = {.backward = 1, .allow_passes = 1, .dims = &dims};
        struct block_check check;
        coda_error error = {0};
        char *report = NULL;
        int said = 0;
        if (rewrite_with_gains(unit.graph[0], &options, &made, &report, &error) != CODA_OK)
            fail_msg("%s: %s", block_files[i].name, error.message);
        int count = count_steps(report);
        for (const char *at = report; (at = strstr(at, "\n    saves ")) != NULL; at++)
            said++;
        for (const char *at = report; (at = strstr(at, "\n    costs ")) != NULL; at++)
            said++;
        assert_true(count > 0 && said >= count);
        for (options.without = 1; options.without <= count; options.without++)
            if (!block_agrees_with(unit.graph[0], &dims, &options, 1e-6, 6, &check))
                fail_msg("%s without %d: %s\n%s", block_files[i].name, options.without, check.message, report);
        steps += count;
        free(report);
        unit_free(&made);
        unit_free(&unit);
    }
    assert_true(steps > 40);
}

/* The pass over x that a deferred scale makes needless would read x once more, which is stored in any case. */
static void a_deferred_scale_saves_one_kernel_and_one_read(void **state)
{
    static const char text[] = "block b { in y : bf16[M, K]; in V : bf16[D, K]; in W : bf16[F, D]; in g : bf16[D]\n"
                               "x = y @ V.T\n out X : bf16[M, D] = x\n"
                               "out z : bf16[M, F] = (x * rsqrt(sum(x * x, D) + 1) * g) @ W.T }";
    const coda_dims sizes = {4, {{"M", 1000}, {"K", 100}, {"D", 1000}, {"F", 300}}};
    struct unit unit = read_text(text), made = {0};
    coda_rewrite_options options = {.dims = &sizes};
    coda_error error = {0};
    char *report = NULL;
    (void)state;
    assert_int_equal(rewrite_with_gains(unit.graph[0], &options, &made, &report, &error), CODA_OK);
    if (strstr(report, "1. deferred scale") == NULL || strstr(report, "saves 1 kernel, 2.00 MB") == NULL)
        fail_msg("%s", report);
    free(report);
    unit_free(&made);
    unit_free(&unit);
}

/* ---- buffers */

/* The first or last program that has the operand. */
static int program_of(const struct unit *unit, const char *name, bool last)
{
    int found = -1;
    for (int i = 0; i < unit->count; i++)
        if (graph_find_operand(unit->graph[i], name) >= 0 && (last || found < 0))
            found = i;
    return found;
}

/* "    [M, D] bf16: H1, then H2, in its place H3": H1 is read for the last time before H2 is written, H2 by the program
 * that writes H3. Returns how many names it has. */
static int check_buffer(const struct unit *unit, char *line)
{
    const char *const joints[2] = {", then ", ", in its place "};
    char *name = strstr(line, ": ") + 2, *next;
    int count = 0, free_after = -1;
    for (int in_place = 0; name != NULL; name = next) {
        char *end[2] = {strstr(name, joints[0]), strstr(name, joints[1])};
        int joint = end[1] != NULL && (end[0] == NULL || end[1] < end[0]);
        next = end[joint];
        if (next != NULL) {
            *next = '\0';
            next += strlen(joints[joint]);
        }
        int first = program_of(unit, name, false);
        if (first < 0 || first < free_after || (first == free_after) != in_place)
            fail_msg("%s is written while its buffer is read", name);
        free_after = program_of(unit, name, true);
        in_place = joint;
        count++;
    }
    return count;
}

static void values_share_a_buffer_only_when_they_do_not_meet(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof block_files / sizeof *block_files; i++) {
        struct unit unit = read_text(read_block(block_files[i].name)), made = {0};
        coda_rewrite_options options = {.backward = 1, .allow_passes = 1};
        coda_error error = {0};
        char *report = NULL;
        int buffers = 0, values = 0, lines = 0, names = 0;
        assert_int_equal(rewrite_block(unit.graph[0], &options, &made, &report, &error), CODA_OK);
        char *line = strstr(report, "buffers: ");
        assert_non_null(line);
        assert_int_equal(sscanf(line, "buffers: %d for the %d values", &buffers, &values), 2);
        for (line = strchr(line, '\n') + 1; *line == ' '; lines++) {
            char *end = strchr(line, '\n');
            *end = '\0';
            names += check_buffer(&made, line);
            line = end + 1;
        }
        assert_int_equal(lines, buffers);
        assert_int_equal(names, values);
        assert_true(buffers < values);
        free(report);
        unit_free(&made);
        unit_free(&unit);
    }
}

/* ---- what cannot be rewritten, and limits */

static const struct {
    const char *text, *says[3];
} refused[] = {
    {"block b { in x : f32[M, D]; in W : f32[F, D]\n y = x @ W.T\n out z : f32[M, F] = y / sum(y * y, F) }",
     {"needs the whole row of `y * y`", "stored by an `out`", "--allow-passes"}},
    {"block b { in x : f32[M, D]; in W : f32[F, D]; in V : f32[D, F]\n y = x @ W.T\n"
     "out z : f32[M, D] = tanh(y * rsqrt(sum(y * y, F))) @ V.T }",
     {"needs the whole row of `y * y`", "through `tanh`", "--allow-passes"}},
    {"block b { in a : f32[M, A]; in h : f32[M, D]; in W : f32[D, A]; in s : f32[D]\n y = a @ W.T\n"
     "z = h + s * (y * rsqrt(sum(y * y, D)) - h)\n out H : f32[M, D] = z * rsqrt(sum(z * z, D)) }",
     {"`H` needs the whole row of `y * y`", "stored by an `out`", "--allow-passes"}},
    {"program p { in x : f32[M, D]\n out y : f32[M, D] = x * 2 }", {"is a program, not a block", "coda grad", "`p`"}},
};

static void what_cannot_be_rewritten_says_why(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct unit unit = read_text(refused[i].text), made = {0};
        coda_rewrite_options options = {0};
        coda_error error = {0};
        char *report = NULL;
        coda_status status = rewrite_block(unit.graph[0], &options, &made, &report, &error);
        assert_true(status == CODA_UNSUPPORTED || status == CODA_INVALID);
        assert_int_equal(made.count, 0);
        assert_null(report);
        for (int k = 0; k < 3; k++)
            if (strstr(error.message, refused[i].says[k]) == NULL)
                fail_msg("`%s` does not occur in: %s", refused[i].says[k], error.message);
        unit_free(&unit);
    }
}

static void the_same_block_gives_the_same_text(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof block_files / sizeof *block_files; i++) {
        struct unit unit = read_text(read_block(block_files[i].name)), made[2] = {{0}};
        coda_rewrite_options options = {.backward = 1, .allow_passes = 1};
        coda_error error = {0};
        for (int k = 0; k < 2; k++)
            assert_int_equal(rewrite_block(unit.graph[0], &options, &made[k], NULL, &error), CODA_OK);
        assert_same_text(&made[0], &made[1]);
        unit_free(&made[0]);
        unit_free(&made[1]);
        unit_free(&unit);
    }
}

/* ---- random blocks */

enum { RANDOM_BLOCKS = 300 };

static void check_random_blocks(void (*make)(char *text, uint64_t seed))
{
    static char text[RANDOM_BLOCK_TEXT];
    const char *only = getenv("CODA_SEED");
    int programs = 0, blocks = getenv("CODA_TEST_QUICK") ? RANDOM_BLOCKS / 5 : RANDOM_BLOCKS;
    uint64_t first = only ? strtoull(only, NULL, 10) : 1, end = only ? first + 1 : (uint64_t)blocks + 1;
    for (uint64_t seed = first; seed < end; seed++) {
        struct block_check check;
        make(text, seed);
        struct unit unit = read_text(text);
        if (!block_agrees(unit.graph[0], &dims, true, true, seed, &check))
            fail_msg("seed %llu: %s\n%s", (unsigned long long)seed, check.message, text);
        programs += check.programs;
        unit_free(&unit);
    }
    assert_true(only || programs > 5 * blocks);
}

static void random_blocks_compute_the_same_before_and_after(void **state)
{
    (void)state;
    check_random_blocks(random_block);
}

static void so_do_blocks_with_all_that_stands_between_products(void **state)
{
    (void)state;
    check_random_blocks(rich_random_block);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_computes_what_it_says),
        cmocka_unit_test(a_llama_layer_costs_what_the_written_programs_cost),
        cmocka_unit_test(every_rule_keeps_the_values_and_is_reported),
        cmocka_unit_test(every_step_can_be_left_out_and_says_what_it_saves),
        cmocka_unit_test(a_deferred_scale_saves_one_kernel_and_one_read),
        cmocka_unit_test(values_share_a_buffer_only_when_they_do_not_meet),
        cmocka_unit_test(what_cannot_be_rewritten_says_why),
        cmocka_unit_test(the_same_block_gives_the_same_text),
        cmocka_unit_test(random_blocks_compute_the_same_before_and_after),
        cmocka_unit_test(so_do_blocks_with_all_that_stands_between_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
