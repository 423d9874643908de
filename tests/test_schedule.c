/* Schedules against the compiler's programs run one by one, each value in memory of its own: the same bits whatever
 * shares memory, whichever rows run at a time. */
#include "kit/random_block.h"
#include "kit/scheduled.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const struct {
    const char *name, *gradients; /* that arrive */
} blocks[] = {
    {"llama3", "dX,dQKV"},  {"llama3_start", "dX, dQKV"},   {"llama3_end", "dce"},
    {"llama3_head", "dce"}, {"gemma_head", "dce"},          {"qwen3", "dX,dQKV"},
    {"gpt2", "dX,dQKV"},    {"gemma", "dQKV,dX"},           {"parallel", "dX,dY,dQKV"},
    {"relu2", "dX,dQKV"},   {"scaled_residual", "dX,dQKV"},
};

static const struct {
    int together, keep_saved, consumes;
} ways[] = {{0, 0, 0}, {0, 1, 0}, {0, 0, 1}, {1, 0, 0}, {1, 1, 1}};

static void every_block_gives_the_bits_of_its_programs_however_memory_is_shared(void **state)
{
    (void)state;
    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++) {
        struct block_trial t;
        open_trial(&t, "cpu", blocks[b].name, CODA_BF16, 70, 1);
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            struct running r;
            const coda_schedule_options options = {.size = sizeof options,
                                                   .backward = 1,
                                                   .allow_passes = 1,
                                                   .exponentials = -1,
                                                   .together = ways[w].together,
                                                   .keep_saved = ways[w].keep_saved,
                                                   .consumes = ways[w].consumes ? blocks[b].gradients : NULL};
            open_running(&r, &t, &options);
            if (ways[w].together) {
                assert_int_equal(r.saved_bytes, 0);
                launch(&r, CODA_FORWARD | CODA_BACKWARD);
            } else {
                launch(&r, CODA_FORWARD);
                launch(&r, CODA_BACKWARD);
            }
            compare(&r, &t, 0, CODA_FORWARD | CODA_BACKWARD);
            close_running(&r);
        }
        close_trial(&t);
    }
}

/* Gradients of weights as sets of one launch wait for each other; their operands live longer, in no more memory. */
static void joined_gradients_have_the_same_bits(void **state)
{
    static const char *const names[] = {"llama3", "gpt2", "qwen3", "parallel", "llama3_start"};
    (void)state;
    for (size_t b = 0; b < sizeof names / sizeof *names; b++) {
        struct block_trial t;
        open_trial(&t, "cpu", names[b], CODA_BF16, 70, 1);
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
            for (int overwrite = 0; overwrite < 2; overwrite++) {
                struct running r, apart;
                coda_schedule_options options = {.size = sizeof options,
                                                 .backward = 1,
                                                 .allow_passes = 1,
                                                 .together = ways[w].together,
                                                 .keep_saved = ways[w].keep_saved,
                                                 .consumes = ways[w].consumes ? "dQKV,dX" : NULL,
                                                 .overwrite = overwrite,
                                                 .join = -1};
                open_running(&apart, &t, &options);
                options.join = 1;
                open_running(&r, &t, &options);
                assert_true(r.scratch_bytes <= apart.scratch_bytes && r.saved_bytes <= apart.saved_bytes);
                if (!ways[w].together)
                    launch(&r, CODA_FORWARD);
                launch(&r, ways[w].together ? CODA_FORWARD | CODA_BACKWARD : CODA_BACKWARD);
                compare(&r, &t, 0, CODA_FORWARD | CODA_BACKWARD);
                close_running(&apart);
                close_running(&r);
            }
        close_trial(&t);
    }
}

/* The forward's own y1, before its factors were rounded, instead of one that the backward computes and writes. */
static void a_value_that_is_kept_is_not_computed_again(void **state)
{
    struct block_trial t;
    struct running r, kept;
    coda_schedule_options options = with_backward();
    (void)state;
    open_trial(&t, "cpu", "llama3", CODA_BF16, 70, 1);
    open_running(&r, &t, &options);
    options.save = "y1";
    open_running(&kept, &t, &options);
    assert_true(coda_schedule_find(r.schedule, "Y1_2") >= 0);
    assert_int_equal(coda_schedule_find(kept.schedule, "Y1_2"), -1);
    coda_value value;
    assert_int_equal(coda_schedule_value(kept.schedule, coda_schedule_find(kept.schedule, "Y1"), &value), CODA_OK);
    assert_int_equal(value.kind, CODA_SAVED);
    assert_true(kept.saved_bytes > r.saved_bytes && kept.scratch_bytes < r.scratch_bytes);
    launch(&kept, CODA_FORWARD);
    compare(&kept, &t, 0, CODA_FORWARD);
    launch(&kept, CODA_BACKWARD);
    compare(&kept, &t, 0.01, CODA_FORWARD | CODA_BACKWARD);
    close_running(&kept);
    close_running(&r);
    coda_schedule *schedule;
    coda_error error = {0};
    options.save = "y9";
    assert_int_equal(coda_schedule_create(t.device, t.block, &t.dims, &options, &schedule, &error), CODA_INVALID);
    assert_non_null(strstr(error.message, "y9"));
    close_trial(&t);
}

/* Lists are side by side; a gradient that is not wanted leaves its list to the others. */
static void lists_say_which_steps_are_one_launch(void **state)
{
    struct block_trial t;
    struct running r;
    coda_schedule_options options = with_backward();
    int members[4] = {0}, previous = 0;
    (void)state;
    options.join = 1;
    open_trial(&t, "cpu", "llama3", CODA_BF16, 20, 1);
    open_running(&r, &t, &options);
    for (int i = 0; i < coda_schedule_step_count(r.schedule); i++) {
        coda_step step;
        assert_int_equal(coda_schedule_step(r.schedule, i, &step), CODA_OK);
        assert_true(step.list >= 0 && step.list < 4);
        assert_non_null(step.kernel);
        if (step.list && step.list != previous)
            assert_int_equal(members[step.list], 0);
        members[step.list] += step.list > 0;
        previous = step.list;
    }
    assert_true(members[1] >= 3);
    operand(&r, "dWg")->data = NULL;
    launch(&r, CODA_FORWARD);
    launch(&r, CODA_BACKWARD);
    compare(&r, &t, 0, CODA_FORWARD | CODA_BACKWARD);
    close_running(&r);
    options.join = 0; /* a CPU gains nothing */
    open_running(&r, &t, &options);
    for (int i = 0; i < coda_schedule_step_count(r.schedule); i++) {
        coda_step step;
        assert_int_equal(coda_schedule_step(r.schedule, i, &step), CODA_OK);
        assert_int_equal(step.list, 0);
    }
    close_running(&r);
    close_trial(&t);
}

/* The gradient of the head is added up in another order; everything else is the same to the bit. */
static void rows_in_parts_give_what_all_rows_give(void **state)
{
    static const int64_t rows[] = {1, 64, 65, 200}, chunks[] = {64, 128, 256};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct block_trial t;
        open_trial(&t, "cpu", "llama3_end", CODA_BF16, rows[i], 1);
        for (size_t k = 0; k < sizeof chunks / sizeof *chunks; k++) {
            struct running r;
            coda_schedule_options options = with_backward();
            options.wide_axis = "V";
            options.chunk_rows = chunks[k];
            open_running(&r, &t, &options);
            assert_int_equal(r.saved_bytes, 0);
            coda_tensor *head = operand(&r, "dW"), kept = *head;
            launch(&r, CODA_FORWARD);
            launch(&r, CODA_FORWARD | CODA_BACKWARD);
            coda_tensor *whole = find(&t.values, "dW");
            float largest = 0; /* a sum may cancel: its error is that of its terms */
            for (int64_t e = 0; e < kept.shape[0] * kept.shape[1]; e++)
                largest = fmaxf(largest, fabsf(((float *)whole->data)[e]));
            for (int64_t e = 0; e < kept.shape[0] * kept.shape[1]; e++)
                assert_true(fabsf(((float *)kept.data)[e] - ((float *)whole->data)[e]) <= 1e-5f * largest);
            head->data = NULL;
            compare(&r, &t, 0, CODA_FORWARD | CODA_BACKWARD);
            close_running(&r);
        }
        close_trial(&t);
    }
}

/* Logits as exponentials: the bits of the programs one by one, however memory is shared and in whatever chunks, and what the
 * pass over the logits gives. */
static void exponentials_of_logits_give_what_logits_give(void **state)
{
    static const char *const names[] = {"llama3_end", "llama3_head"};
    static const int64_t chunks[] = {0, 64, 128};
    (void)state;
    for (size_t b = 0; b < sizeof names / sizeof *names; b++) {
        struct block_trial t, pass;
        open_trial_of(&t, "cpu", names[b], CODA_BF16, 150, 1, 1);
        open_trial_of(&pass, "cpu", names[b], CODA_F32, 150, 1, 0);
        for (size_t w = 0; w < sizeof ways / sizeof *ways + sizeof chunks / sizeof *chunks; w++) {
            size_t chunk = w < sizeof ways / sizeof *ways ? 0 : w - sizeof ways / sizeof *ways;
            struct running r;
            coda_schedule_options options = with_backward();
            options.exponentials = 1;
            options.together = w < sizeof ways / sizeof *ways ? ways[w].together : 1;
            options.keep_saved = w < sizeof ways / sizeof *ways && ways[w].keep_saved;
            options.wide_axis = chunks[chunk] ? "V" : NULL;
            options.chunk_rows = chunks[chunk];
            open_running(&r, &t, &options);
            if (options.together) {
                launch(&r, CODA_FORWARD | CODA_BACKWARD);
            } else {
                launch(&r, CODA_FORWARD);
                launch(&r, CODA_BACKWARD);
            }
            compare(&r, &t, chunks[chunk] ? 1e-6 : 0, CODA_FORWARD | CODA_BACKWARD);
            close_running(&r);
            open_running(&r, &pass, &options);
            launch(&r, CODA_FORWARD);
            launch(&r, options.together ? CODA_FORWARD | CODA_BACKWARD : CODA_BACKWARD);
            compare(&r, &pass, 2e-5, CODA_FORWARD | CODA_BACKWARD);
            close_running(&r);
        }
        close_trial(&t);
        close_trial(&pass);
    }
}

/* Rows whose logits are 0, some, and up to some hundred: those are computed again, whichever rows run at a time. */
static void rows_of_large_logits_are_computed_again(void **state)
{
    static const char text[] = "block head { in x : f32[M, D]; in W : f32[V, D]; in a, t : i32[M]\n"
                               "z = (x @ W.T) * (20 * a)\n out ce : f32[M] = logsumexp(z, V) - pick(z, t) }";
    (void)state;
    struct block_trial t;
    open_trial_of_text(&t, "cpu", text, 150);
    for (int64_t chunk = 0; chunk <= 128; chunk += 64) {
        struct running r;
        coda_schedule_options options = with_backward();
        options.exponentials = 1;
        options.together = 1;
        options.wide_axis = chunk ? "V" : NULL;
        options.chunk_rows = chunk;
        open_running(&r, &t, &options);
        int again = 0, patched = 0;
        for (int i = 0; i < coda_schedule_step_count(r.schedule); i++) {
            coda_step step;
            assert_int_equal(coda_schedule_step(r.schedule, i, &step), CODA_OK);
            again += coda_program_condition(step.program) >= 0;
            for (int o = 0; o < coda_program_operand_count(step.program); o++) {
                coda_operand operand;
                assert_int_equal(coda_program_operand(step.program, o, &operand), CODA_OK);
                patched += operand.role == CODA_PATCH;
            }
        }
        assert_int_equal(again, 3);
        assert_int_equal(patched, 1);
        launch(&r, CODA_FORWARD | CODA_BACKWARD);
        compare(&r, &t, 2e-5, CODA_FORWARD | CODA_BACKWARD);
        float largest = 0;
        coda_tensor *ce = operand(&r, "ce");
        for (int64_t m = 0; m < ce->shape[0]; m++)
            largest = fmaxf(largest, ((float *)ce->data)[m]);
        assert_true(largest > 60); /* so some rows were marked */
        close_running(&r);
    }
    close_trial(&t);
}

/* A soft cap lies between the logits and what is exponentiated. */
static void a_soft_cap_keeps_the_pass(void **state)
{
    (void)state;
    struct block_trial t;
    struct running r;
    coda_schedule_options options = with_backward();
    options.exponentials = 1;
    open_trial(&t, "cpu", "gemma_head", CODA_BF16, 70, 1);
    open_running(&r, &t, &options);
    assert_int_equal(coda_schedule_step_count(r.schedule), coda_module_size(t.programs) + 1); /* the sum of dg */
    close_running(&r);
    close_trial(&t);
}

static void rows_in_parts_need_no_memory_for_all_logits(void **state)
{
    (void)state;
    struct block_trial t;
    struct running whole, parts;
    coda_schedule_options options = with_backward();
    open_trial(&t, "cpu", "llama3_end", CODA_BF16, 640, 1);
    options.together = 1;
    open_running(&whole, &t, &options);
    options.wide_axis = "V";
    options.chunk_rows = 64;
    open_running(&parts, &t, &options);
    size_t logits = (640 - 64) * 130 * 2;
    assert_true(parts.scratch_bytes + logits <= whole.scratch_bytes);
    close_running(&whole);
    close_running(&parts);
    close_trial(&t);
}

static void a_forward_runs_alone(void **state)
{
    static const char *const names[] = {"llama3", "llama3_logits", "qwen3"};
    (void)state;
    for (size_t b = 0; b < sizeof names / sizeof *names; b++) {
        struct block_trial t;
        struct running r;
        open_trial(&t, "cpu", names[b], CODA_BF16, 33, 0);
        open_running(&r, &t, NULL);
        assert_int_equal(r.saved_bytes, 0);
        launch(&r, CODA_FORWARD);
        compare(&r, &t, 0, CODA_FORWARD);
        coda_error error;
        assert_int_equal(
            coda_schedule_launch(r.schedule, CODA_BACKWARD, r.operand, r.count, NULL, r.scratch, NULL, NULL, &error),
            CODA_INVALID);
        assert_non_null(strstr(error.message, "made without its backward"));
        close_running(&r);
        close_trial(&t);
    }
}

static void devices_agree(void **state)
{
    static const char *const names[] = {"llama3", "qwen3", "gpt2"};
    (void)state;
    for (size_t b = 0; b < sizeof names / sizeof *names; b++) {
        struct block_trial t;
        struct running r;
        coda_error error;
        coda_device *cpu, *ref;
        coda_schedule_options options = with_backward();
        open_trial(&t, "ref", names[b], CODA_F32, 70, 1);
        check(coda_device_open("cpu", &cpu, &error), &error);
        ref = t.device;
        t.device = cpu;
        open_running(&r, &t, &options);
        launch(&r, CODA_FORWARD);
        launch(&r, CODA_BACKWARD);
        compare(&r, &t, 2e-5, CODA_FORWARD | CODA_BACKWARD);
        close_running(&r);
        coda_device_close(cpu);
        t.device = ref;
        close_trial(&t);
    }
}

static void what_is_kept_serves_a_second_backward_if_asked(void **state)
{
    (void)state;
    struct block_trial t;
    struct running r;
    coda_schedule_options options = with_backward();
    open_trial(&t, "cpu", "llama3", CODA_BF16, 70, 1);
    options.keep_saved = 1;
    open_running(&r, &t, &options);
    launch(&r, CODA_FORWARD);
    void *before = malloc(r.saved_bytes);
    assert_non_null(before);
    memcpy(before, r.saved, r.saved_bytes);
    for (int time = 0; time < 2; time++) {
        for (int i = 0; i < r.count; i++) {
            coda_value value;
            assert_int_equal(coda_schedule_value(r.schedule, i, &value), CODA_OK);
            if (value.accumulated)
                memset(r.operand[i].data, 0, bytes_of(&r.operand[i]));
        }
        launch(&r, CODA_BACKWARD);
        compare(&r, &t, 0, CODA_FORWARD | CODA_BACKWARD);
        assert_memory_equal(before, r.saved, r.saved_bytes);
    }
    free(before);
    close_running(&r);
    close_trial(&t);
}

/* The residual stream and its gradient may stay in one place. */
static void results_may_take_the_place_of_what_was_read(void **state)
{
    (void)state;
    struct block_trial t;
    struct running r;
    coda_schedule_options options = with_backward();
    open_trial(&t, "cpu", "llama3", CODA_BF16, 70, 1);
    open_running(&r, &t, NULL);
    *operand(&r, "X") = *operand(&r, "x");
    launch(&r, CODA_FORWARD);
    compare(&r, &t, 0, CODA_FORWARD);
    close_running(&r);
    open_running(&r, &t, &options);
    *operand(&r, "dx") = *operand(&r, "dX");
    launch(&r, CODA_FORWARD);
    launch(&r, CODA_BACKWARD);
    compare(&r, &t, 0, CODA_FORWARD | CODA_BACKWARD);
    close_running(&r);
    close_trial(&t);
}

static void gradients_that_nobody_wants_are_left_out(void **state)
{
    static const char *const names[] = {"dWg", "dWd", "dg0", "dWq_Wk_Wv"};
    (void)state;
    struct block_trial t;
    struct running r;
    coda_schedule_options options = with_backward();
    open_trial(&t, "cpu", "llama3", CODA_BF16, 70, 1);
    open_running(&r, &t, &options);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        coda_value value;
        assert_int_equal(coda_schedule_value(r.schedule, coda_schedule_find(r.schedule, names[i]), &value), CODA_OK);
        assert_int_equal(value.optional, 1);
        operand(&r, names[i])->data = NULL;
    }
    launch(&r, CODA_FORWARD);
    launch(&r, CODA_BACKWARD);
    compare(&r, &t, 0, CODA_FORWARD | CODA_BACKWARD);
    close_running(&r);
    close_trial(&t);
}

/* Nothing is set to 0 before, and a second launch gives what the first gave. */
static void gradients_may_be_written_over_what_is_there(void **state)
{
    (void)state;
    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++) {
        struct block_trial t;
        struct running r;
        coda_schedule_options options = with_backward();
        options.allow_passes = options.overwrite = options.together = 1;
        open_trial(&t, "cpu", blocks[b].name, CODA_BF16, 70, 1);
        open_running(&r, &t, &options);
        for (int i = 0; i < r.count; i++) {
            coda_value value;
            assert_int_equal(coda_schedule_value(r.schedule, i, &value), CODA_OK);
            assert_int_equal(value.accumulated, 0);
        }
        for (int i = 0; i < 2; i++) {
            launch(&r, CODA_FORWARD | CODA_BACKWARD);
            compare(&r, &t, 0, CODA_FORWARD | CODA_BACKWARD);
        }
        close_running(&r);
        close_trial(&t);
    }
}

static void the_first_rows_write_and_later_ones_add(void **state)
{
    (void)state;
    struct block_trial t;
    struct running adds, writes;
    coda_schedule_options options = with_backward();
    options.wide_axis = "V";
    options.chunk_rows = 64;
    open_trial(&t, "cpu", "llama3_end", CODA_BF16, 200, 1);
    open_running(&adds, &t, &options);
    options.overwrite = 1;
    open_running(&writes, &t, &options);
    launch(&adds, CODA_FORWARD | CODA_BACKWARD);
    for (int i = 0; i < 2; i++) {
        launch(&writes, CODA_FORWARD | CODA_BACKWARD);
        for (int k = 0; k < adds.own.count; k++) {
            coda_tensor *a = &adds.own.item[k].tensor;
            assert_memory_equal(a->data, operand(&writes, adds.own.item[k].name)->data, bytes_of(a));
        }
    }
    close_running(&adds);
    close_running(&writes);
    close_trial(&t);
}

enum { LAUNCHERS = 3 };

struct launcher {
    struct running running;
    pthread_t thread;
    coda_status status;
};

static void *launch_often(void *context)
{
    struct launcher *l = context;
    struct running *r = &l->running;
    for (int i = 0; i < 20 && l->status == CODA_OK; i++)
        l->status = coda_schedule_launch(r->schedule, CODA_FORWARD, r->operand, r->count, r->saved, r->scratch, NULL,
                                         NULL, NULL);
    return NULL;
}

/* Each with memory of its own. */
static void several_threads_may_launch_one_schedule(void **state)
{
    static struct launcher launcher[LAUNCHERS];
    (void)state;
    struct block_trial t;
    coda_schedule *own[LAUNCHERS];
    coda_schedule_options options = with_backward();
    open_trial(&t, "cpu", "llama3", CODA_BF16, 70, 1);
    for (int i = 0; i < LAUNCHERS; i++) {
        open_running(&launcher[i].running, &t, &options);
        own[i] = launcher[i].running.schedule;
        launcher[i].running.schedule = own[0];
    }
    for (int i = 0; i < LAUNCHERS; i++)
        assert_int_equal(pthread_create(&launcher[i].thread, NULL, launch_often, &launcher[i]), 0);
    for (int i = 0; i < LAUNCHERS; i++) {
        pthread_join(launcher[i].thread, NULL);
        assert_int_equal(launcher[i].status, CODA_OK);
        launch(&launcher[i].running, CODA_BACKWARD);
        compare(&launcher[i].running, &t, 0, CODA_FORWARD | CODA_BACKWARD);
    }
    for (int i = LAUNCHERS - 1; i >= 0; i--) {
        launcher[i].running.schedule = own[i];
        close_running(&launcher[i].running);
    }
    close_trial(&t);
}

/* ---------------------------------------------------------------- random blocks */

enum { RANDOM_BLOCKS = 60 };

static void random_blocks_give_the_bits_of_their_programs(void **state)
{
    static char text[RANDOM_BLOCK_TEXT];
    int in_parts = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= RANDOM_BLOCKS; seed++) {
        struct block_trial t;
        struct running r;
        coda_error error;
        coda_schedule *schedule = NULL;
        coda_schedule_options options = with_backward();
        random_block(text, seed);
        open_trial_of_text(&t, "cpu", text, 130);
        options.together = seed % 2 == 0;
        options.keep_saved = seed % 3 == 0;
        open_running(&r, &t, &options);
        launch(&r, options.together ? CODA_FORWARD | CODA_BACKWARD : CODA_FORWARD);
        if (!options.together)
            launch(&r, CODA_BACKWARD);
        compare(&r, &t, 0, CODA_FORWARD | CODA_BACKWARD);
        close_running(&r);
        options.wide_axis = "F"; /* where every program with a matrix [M, F] can run by rows */
        options.chunk_rows = 64;
        if (coda_schedule_create(t.device, t.block, &t.dims, &options, &schedule, &error) == CODA_OK) {
            coda_schedule_free(schedule);
            open_running(&r, &t, &options);
            launch(&r, CODA_FORWARD | CODA_BACKWARD);
            compare(&r, &t, 1e-5, CODA_FORWARD | CODA_BACKWARD);
            close_running(&r);
            in_parts++;
        }
        close_trial(&t);
    }
    assert_true(in_parts > RANDOM_BLOCKS / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_gives_the_bits_of_its_programs_however_memory_is_shared),
        cmocka_unit_test(joined_gradients_have_the_same_bits),
        cmocka_unit_test(lists_say_which_steps_are_one_launch),
        cmocka_unit_test(a_value_that_is_kept_is_not_computed_again),
        cmocka_unit_test(rows_in_parts_give_what_all_rows_give),
        cmocka_unit_test(exponentials_of_logits_give_what_logits_give),
        cmocka_unit_test(rows_of_large_logits_are_computed_again),
        cmocka_unit_test(a_soft_cap_keeps_the_pass),
        cmocka_unit_test(rows_in_parts_need_no_memory_for_all_logits),
        cmocka_unit_test(a_forward_runs_alone),
        cmocka_unit_test(devices_agree),
        cmocka_unit_test(what_is_kept_serves_a_second_backward_if_asked),
        cmocka_unit_test(results_may_take_the_place_of_what_was_read),
        cmocka_unit_test(gradients_that_nobody_wants_are_left_out),
        cmocka_unit_test(gradients_may_be_written_over_what_is_there),
        cmocka_unit_test(the_first_rows_write_and_later_ones_add),
        cmocka_unit_test(several_threads_may_launch_one_schedule),
        cmocka_unit_test(random_blocks_give_the_bits_of_their_programs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
