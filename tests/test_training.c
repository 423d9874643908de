/* Training as a user sees it: paths agree, a stopped run goes on to the same bits, threads do not matter, trouble is
 * named. */
#include "coda.h"
#include "kit/llama.h"
#include "kit/scratch.h"
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <cmocka.h>

struct setting {
    coda_device *device;
    char directory[SCRATCH_PATH], data[SCRATCH_PATH];
};

static void check(coda_status status, const coda_error *error)
{
    if (status != CODA_OK)
        fail_msg("%s", error->message);
}

/* A text that a small model can learn something from. */
static int setup(void **state)
{
    struct setting *s = calloc(1, sizeof *s);
    char text[6000];
    size_t length = 0;
    if (!s || coda_device_open("cpu", &s->device, NULL) != CODA_OK)
        return -1;
    for (int i = 0; length + 64 < sizeof text; i++)
        length += (size_t)snprintf(text + length, 64, "%d plus %d is %d.\n", i, i % 7, i + i % 7);
    scratch_new(s->directory);
    scratch_write(s->directory, "text.txt", text, length, s->data);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    struct setting *s = *state;
    scratch_free(s->directory);
    coda_device_close(s->device);
    free(s);
    return 0;
}

static coda_train_config configuration(const struct setting *s, const char *out)
{
    coda_train_config c;
    coda_train_config_defaults(&c);
    c.model = (coda_llama_config){48, 136, 2, 4, 2, 12, 256, 32, 1e-6, 10000, {0}, 1};
    c.steps = 200;
    c.batch = 4;
    c.sequence = 24;
    c.warmup = 10;
    c.learning_rate = 3e-3;
    c.checkpoint_interval = 0;
    snprintf(c.data, sizeof c.data, "%s", s->data);
    snprintf(c.out, sizeof c.out, "%s/%s", s->directory, out);
    return c;
}

/* Field by field, for structs may have gaps. */
static void assert_same_configuration(const coda_train_config *a, const coda_train_config *b)
{
    char x[CODA_PATH_SIZE], y[CODA_PATH_SIZE];
    for (int i = 0; coda_train_config_key(i, NULL, a, x); i++) {
        coda_train_config_key(i, NULL, b, y);
        assert_string_equal(x, y);
    }
}

struct run {
    coda_llama *llama;
    coda_trainer *trainer;
};

static struct run open_run(const struct setting *s, const coda_train_config *c)
{
    struct run r;
    coda_error error;
    check(coda_llama_create(s->device, &c->model, c->dtype, c->seed, &r.llama, &error), &error);
    check(coda_trainer_create(r.llama, c, &r.trainer, &error), &error);
    return r;
}

static void close_run(struct run *r)
{
    coda_trainer_free(r->trainer);
    coda_llama_free(r->llama);
}

static double steps(struct run *r, int count)
{
    coda_step_report report = {0};
    coda_error error;
    for (int i = 0; i < count; i++)
        check(coda_trainer_step(r->trainer, &report, &error), &error);
    return report.loss;
}

static void assert_same_weights(const struct run *a, const struct run *b)
{
    for (int i = 0; i < coda_llama_tensor_count(a->llama); i++) {
        coda_tensor x, y;
        coda_llama_tensor(a->llama, i, NULL, &x);
        coda_llama_tensor(b->llama, i, NULL, &y);
        assert_memory_equal(x.data, y.data, (size_t)(x.shape[0] * x.shape[1]) * coda_dtype_size(x.dtype));
    }
}

static void both_paths_learn_alike(void **state)
{
    struct setting *s = *state;
    static const struct {
        coda_dtype dtype;
        int steps;
    } rows[] = {{CODA_BF16, 200}, {CODA_F32, 40}, {CODA_F16, 10}};
    for (int d = 0; d < 3; d++) {
        double start[2], loss[2];
        for (int path = 0; path < 2; path++) {
            coda_train_config c = configuration(s, "alike");
            c.dtype = rows[d].dtype;
            c.path = (coda_path)path;
            struct run r = open_run(s, &c);
            start[path] = steps(&r, 1);
            loss[path] = steps(&r, rows[d].steps - 1);
            close_run(&r);
        }
        if (!(fabs(loss[0] - loss[1]) < 0.01) || !(loss[0] < start[0] * (rows[d].steps == 200 ? 0.5 : 0.95)))
            fail_msg("%s: from %.4f to %.4f fused and %.4f unfused", coda_dtype_name(rows[d].dtype), start[0], loss[0],
                     loss[1]);
    }
}

static void assert_same_files(const char *a, const char *b)
{
    static const char *const files[] = {"model.safetensors", "training.safetensors", "config.json"};
    for (int i = 0; i < 3; i++) {
        char path[2][CODA_PATH_SIZE + 32];
        size_t length[2];
        snprintf(path[0], sizeof path[0], "%s/%s", a, files[i]);
        snprintf(path[1], sizeof path[1], "%s/%s", b, files[i]);
        char *x = scratch_read(path[0], &length[0]), *y = scratch_read(path[1], &length[1]);
        assert_int_equal(length[0], length[1]);
        assert_memory_equal(x, y, length[0]);
        free(x);
        free(y);
    }
}

static void a_resumed_run_ends_in_the_same_bits(void **state)
{
    struct setting *s = *state;
    int half_way = getenv("CODA_TEST_QUICK") ? 10 : 100; /* of twice as many steps */
    for (int path = 0; path < 2; path++) {
        char half[CODA_PATH_SIZE], whole[CODA_PATH_SIZE], resumed[CODA_PATH_SIZE], found[CODA_PATH_SIZE];
        coda_error error;
        coda_train_config c = configuration(s, path ? "resume-unfused" : "resume-fused"), again;
        c.path = (coda_path)path;
        c.accumulation = 2;
        c.steps = 2 * half_way;
        struct run straight = open_run(s, &c);
        steps(&straight, half_way);
        check(coda_trainer_save(straight.trainer, NULL, half, &error), &error);
        double loss = steps(&straight, half_way);
        check(coda_trainer_save(straight.trainer, NULL, whole, &error), &error);

        char settings[CODA_PATH_SIZE + 32];
        struct run r;
        snprintf(settings, sizeof settings, "%s/training.json", half);
        coda_train_config_defaults(&again);
        check(coda_train_config_load(settings, &again, &error), &error);
        assert_same_configuration(&again, coda_trainer_configuration(straight.trainer));
        check(coda_llama_load(s->device, half, c.dtype, &r.llama, &error), &error);
        check(coda_trainer_create(r.llama, &again, &r.trainer, &error), &error);
        check(coda_trainer_resume(r.trainer, half, &error), &error);
        assert_int_equal(coda_trainer_steps_done(r.trainer), half_way);
        assert_true(steps(&r, half_way) == loss);
        assert_same_weights(&straight, &r);
        snprintf(settings, sizeof settings, "%s/again", s->directory);
        check(coda_trainer_save(r.trainer, settings, resumed, &error), &error);
        assert_same_files(whole, resumed);
        check(coda_checkpoint_find(c.out, found, &error), &error);
        assert_string_equal(found, whole);
        close_run(&straight);
        close_run(&r);
    }
}

static void threads_do_not_change_a_bit(void **state)
{
    struct setting *s = *state;
    static const int threads[] = {1, 2, 3, 7};
    int before = coda_device_threads(s->device);
    for (int path = 0; path < 2; path++) {
        coda_train_config c = configuration(s, "threads");
        c.path = (coda_path)path;
        struct run first = {NULL, NULL};
        for (int i = 0; i < 4; i++) {
            assert_int_equal(coda_device_set_threads(s->device, threads[i], NULL), CODA_OK);
            struct run r = open_run(s, &c);
            steps(&r, 3);
            if (i == 0) {
                first = r;
                continue;
            }
            assert_same_weights(&first, &r);
            close_run(&r);
        }
        close_run(&first);
    }
    coda_device_set_threads(s->device, before, NULL);
}

/* Two passes of half the batch make the step that one pass makes, but for the order of sums. */
static void accumulation_adds_up(void **state)
{
    struct setting *s = *state;
    coda_train_config c = configuration(s, "accumulation");
    coda_step_report whole, parts;
    c.dtype = CODA_F32;
    struct run r = open_run(s, &c);
    assert_int_equal(coda_trainer_step(r.trainer, &whole, NULL), CODA_OK);
    close_run(&r);
    c.batch = 2;
    c.accumulation = 2;
    r = open_run(s, &c);
    assert_int_equal(coda_trainer_step(r.trainer, &parts, NULL), CODA_OK);
    close_run(&r);
    assert_int_equal(whole.tokens, parts.tokens);
    /* sums of 96 losses and of 96 rows in another order, each in f32 */
    assert_true(fabs(whole.loss - parts.loss) <= 96 * 0x1p-24 * whole.loss);
    assert_true(fabs(whole.gradient_norm - parts.gradient_norm) <= 96 * 0x1p-24 * whole.gradient_norm);
}

static void the_rate_rises_and_falls(void **state)
{
    struct setting *s = *state;
    coda_train_config c = configuration(s, "rate");
    coda_step_report report;
    c.steps = 12;
    c.warmup = 4;
    c.learning_rate = 1e-3;
    c.minimum_rate = 0.25;
    struct run r = open_run(s, &c);
    double last = 0;
    for (int i = 1; i <= 12; i++) {
        assert_int_equal(coda_trainer_step(r.trainer, &report, NULL), CODA_OK);
        assert_int_equal(report.step, i);
        if (i <= 4)
            assert_true(fabs(report.learning_rate - 1e-3 * i / 4) < 1e-12);
        else if (i > 5)
            assert_true(report.learning_rate < last);
        last = report.learning_rate;
    }
    assert_true(fabs(last - 0.25e-3) < 1e-12);
    close_run(&r);
}

/* Poison in one weight: the message says which, and nothing else has changed. */
static void trouble_is_named_and_changes_nothing(void **state)
{
    struct setting *s = *state;
    for (int path = 0; path < 2; path++) {
        coda_train_config c = configuration(s, "trouble");
        c.path = (coda_path)path;
        struct run r = open_run(s, &c), other = open_run(s, &c);
        coda_error error;
        coda_tensor bad;
        const char *name;
        steps(&r, 2);
        steps(&other, 2);
        int index = 1 + 9 + 6; /* layer 1, gate */
        coda_llama_tensor(r.llama, index, &name, &bad);
        assert_string_equal(name, "model.layers.1.mlp.gate_proj.weight");
        uint16_t *element = (uint16_t *)bad.data + 5, good = *element;
        *element = 0x7fc0; /* NaN */
        assert_int_equal(coda_trainer_step(r.trainer, NULL, &error), CODA_INVALID);
        assert_non_null(strstr(error.message, "step 3: the loss is not finite"));
        assert_non_null(strstr(error.message, "the weight model.layers.1.mlp.gate_proj.weight"));
        assert_int_equal(coda_trainer_steps_done(r.trainer), 2);
        *element = good;
        assert_true(steps(&r, 1) == steps(&other, 1));
        assert_same_weights(&r, &other);
        close_run(&r);
        close_run(&other);
    }
}

/* A weight that is finite but overflows f16: the value where it happens is named. */
static void overflow_is_named_by_its_value(void **state)
{
    struct setting *s = *state;
    coda_train_config c = configuration(s, "overflow");
    c.dtype = CODA_F16;
    struct run r = open_run(s, &c);
    coda_error error;
    coda_tensor up;
    coda_llama_tensor(r.llama, 1 + 7, NULL, &up);
    for (int64_t i = 0; i < up.shape[0] * up.shape[1]; i++)
        ((uint16_t *)up.data)[i] = 0x7bff; /* 65504 */
    assert_int_equal(coda_trainer_step(r.trainer, NULL, &error), CODA_INVALID);
    if (!strstr(error.message, "the MLP's up projection of layer 0"))
        fail_msg("%s", error.message);
    close_run(&r);
}

static void a_failed_save_keeps_the_old_checkpoint(void **state)
{
    struct setting *s = *state;
    coda_train_config c = configuration(s, "full");
    coda_error error;
    char first[CODA_PATH_SIZE], found[CODA_PATH_SIZE], blocked[SCRATCH_PATH + 16];
    struct rlimit before, small;
    struct run r = open_run(s, &c);
    steps(&r, 1);
    check(coda_trainer_save(r.trainer, NULL, first, &error), &error);
    assert_int_equal(scratch_count(c.out), 1);
    for (int again = 0; again < 2; again++) { /* once for a new name, once over the first */
        assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
        small = before;
        small.rlim_cur = again ? 100000 : 1000;
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &small);
        steps(&r, 1 - again);
        coda_status status = coda_trainer_save(r.trainer, NULL, NULL, &error);
        setrlimit(RLIMIT_FSIZE, &before);
        assert_int_equal(status, CODA_IO);
        assert_int_equal(scratch_count(c.out), 1);
        check(coda_checkpoint_find(c.out, found, &error), &error);
        assert_string_equal(found, first);
    }
    snprintf(blocked, sizeof blocked, "%s/sub", s->data); /* inside a file */
    assert_int_equal(coda_trainer_save(r.trainer, blocked, NULL, &error), CODA_IO);
    assert_non_null(strstr(error.message, s->data));
    close_run(&r);
}

static void old_checkpoints_go_and_the_same_step_is_replaced(void **state)
{
    struct setting *s = *state;
    coda_train_config c = configuration(s, "keep");
    coda_error error;
    char path[CODA_PATH_SIZE], later[CODA_PATH_SIZE + 32];
    c.keep = 2;
    struct run r = open_run(s, &c);
    for (int i = 0; i < 4; i++) {
        steps(&r, 1);
        check(coda_trainer_save(r.trainer, NULL, path, &error), &error);
        check(coda_trainer_save(r.trainer, NULL, path, &error), &error);
        assert_int_equal(scratch_count(c.out), i == 0 ? 1 : 2);
    }
    /* a later one is another run's */
    snprintf(later, sizeof later, "%s/step-00000099", c.out);
    check(coda_llama_save(r.llama, later, &error), &error);
    steps(&r, 1);
    check(coda_trainer_save(r.trainer, NULL, path, &error), &error);
    assert_int_equal(scratch_count(c.out), 3);
    assert_int_equal(scratch_count(path), 4);
    close_run(&r);
}

static void resuming_something_else_is_refused(void **state)
{
    struct setting *s = *state;
    coda_train_config c = configuration(s, "else"), other;
    coda_error error;
    char path[CODA_PATH_SIZE];
    struct run r = open_run(s, &c);
    steps(&r, 2);
    check(coda_trainer_save(r.trainer, NULL, path, &error), &error);
    static const struct {
        const char *what, *says;
    } cases[] = {{"seed", "seed"}, {"data", "data_tokens"}, {"model", "of another model"}, {"dtype", "dtype"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        other = c;
        if (i == 0)
            other.seed = 2;
        else if (i == 1)
            scratch_write(s->directory, "other.txt", "another text, long enough to be sampled from", 44, other.data);
        else if (i == 2)
            other.model.intermediate_size = 64;
        else
            other.dtype = CODA_F32;
        struct run wrong = open_run(s, &other), fresh = open_run(s, &other);
        assert_int_equal(coda_trainer_resume(wrong.trainer, path, &error), CODA_INVALID);
        if (!strstr(error.message, cases[i].says))
            fail_msg("%s: %s", cases[i].what, error.message);
        assert_same_weights(&wrong, &fresh);
        assert_int_equal(coda_trainer_steps_done(wrong.trainer), 0);
        close_run(&wrong);
        close_run(&fresh);
    }
    assert_int_equal(coda_trainer_resume(r.trainer, s->directory, &error), CODA_IO);
    assert_int_equal(coda_checkpoint_find(s->directory, path, &error), CODA_IO);
    assert_non_null(strstr(error.message, "holds no checkpoint"));
    close_run(&r);
}

static void the_fused_path_moves_fewer_bytes(void **state)
{
    struct setting *s = *state;
    coda_traffic traffic[2];
    for (int path = 0; path < 2; path++) {
        coda_train_config c = configuration(s, "traffic");
        c.path = (coda_path)path;
        struct run r = open_run(s, &c);
        steps(&r, 1);
        coda_trainer_traffic(r.trainer, &traffic[path]);
        close_run(&r);
    }
    assert_true(traffic[0].model > 0 && traffic[0].model < traffic[1].model);
    assert_true(traffic[0].attention > 0 && traffic[0].attention == traffic[1].attention);
    assert_true(traffic[0].optimizer > 0 && traffic[0].optimizer == traffic[1].optimizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_paths_learn_alike),
        cmocka_unit_test(a_resumed_run_ends_in_the_same_bits),
        cmocka_unit_test(threads_do_not_change_a_bit),
        cmocka_unit_test(accumulation_adds_up),
        cmocka_unit_test(the_rate_rises_and_falls),
        cmocka_unit_test(trouble_is_named_and_changes_nothing),
        cmocka_unit_test(overflow_is_named_by_its_value),
        cmocka_unit_test(a_failed_save_keeps_the_old_checkpoint),
        cmocka_unit_test(old_checkpoints_go_and_the_same_step_is_replaced),
        cmocka_unit_test(resuming_something_else_is_refused),
        cmocka_unit_test(the_fused_path_moves_fewer_bytes),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
