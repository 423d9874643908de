/* Gradients of a whole model, on both paths, against central differences in double. */
#include "kit/llama.h"
#include "kit/random.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* A model, a batch with ignored targets and weights, and a trainer for each path. */
struct trial {
    coda_device *device;
    coda_llama *llama;
    coda_trainer *trainer[2];
    struct llama_weights weights;
    int32_t tokens[160], targets[160];
    float row_weights[160];
    coda_batch batch;
};

static void make_batch(struct trial *t, int64_t sequences, int64_t length, uint64_t seed)
{
    struct random random = {seed};
    int64_t vocabulary = coda_llama_configuration(t->llama)->vocab_size;
    for (int64_t i = 0; i < sequences * length; i++) {
        t->tokens[i] = (int32_t)random_below(&random, vocabulary);
        t->targets[i] = random_below(&random, 5) ? (int32_t)random_below(&random, vocabulary) : -100;
        t->row_weights[i] = (float)(0.5 + random_uniform(&random));
    }
    t->batch = (coda_batch){sequences, length, t->tokens, t->targets, t->row_weights};
}

static void check(coda_status status, const coda_error *error)
{
    if (status != CODA_OK)
        fail_msg("%s", error->message);
}

static void open_trial(struct trial *t, const char *device, coda_dtype dtype, const coda_llama_config *config,
                       int64_t sequences, int64_t length)
{
    coda_error error;
    memset(t, 0, sizeof *t);
    check(coda_device_open(device, &t->device, &error), &error);
    check(coda_llama_create(t->device, config, dtype, 1, &t->llama, &error), &error);
    llama_randomize(t->llama, 1.5, 3);
    t->weights = llama_weights_of(t->llama);
    make_batch(t, sequences, length, 7);
    for (int path = 0; path < 2; path++) {
        coda_train_config training;
        coda_train_config_defaults(&training);
        training.batch = sequences;
        training.sequence = length;
        training.dtype = dtype;
        training.path = (coda_path)path;
        check(coda_trainer_create(t->llama, &training, &t->trainer[path], &error), &error);
    }
}

static void close_trial(struct trial *t)
{
    llama_weights_free(&t->weights);
    coda_trainer_free(t->trainer[0]);
    coda_trainer_free(t->trainer[1]);
    coda_llama_free(t->llama);
    coda_device_close(t->device);
}

/* Roundings on the longest way from a weight through the loss and back to a gradient, counting a sum of n elements as
 * n: what first-order analysis multiplies the unit roundoff by. */
static double roundings(const coda_llama_config *c, const coda_batch *b)
{
    double layer = 3.0 * (double)c->hidden_size + (double)c->intermediate_size +
                   2.0 * (double)(c->num_attention_heads * c->head_dim) + 2.0 * (double)b->length + 60;
    double head = (double)c->hidden_size + (double)c->vocab_size + 20;
    return 2 * ((double)c->num_hidden_layers * layer + head) + (double)(b->sequences * b->length);
}

struct distance {
    double error[2], exact; /* norms over the samples of a tensor; error of each path */
    double oracle;          /* what the central differences themselves may be off by */
};

static struct distance measure(struct trial *t, int tensor, int samples, struct random *random)
{
    struct distance d = {{0, 0}, 0, 0};
    coda_tensor gradient[2];
    for (int path = 0; path < 2; path++)
        assert_int_equal(coda_trainer_gradient(t->trainer[path], tensor, &gradient[path]), CODA_OK);
    for (int i = 0; i < samples; i++) {
        double error;
        int64_t size = t->weights.size[tensor];
        int64_t element = i == 0 ? 0 : i == 1 ? size - 1 : random_below(random, size);
        double exact = llama_derivative(&t->weights, &t->batch, tensor, element, &error);
        d.exact += exact * exact;
        d.oracle += error * error;
        for (int path = 0; path < 2; path++) {
            double off = ((float *)gradient[path].data)[element] - exact;
            d.error[path] += off * off;
        }
    }
    d.exact = sqrt(d.exact);
    d.oracle = sqrt(d.oracle);
    d.error[0] = sqrt(d.error[0]);
    d.error[1] = sqrt(d.error[1]);
    return d;
}

static const struct {
    const char *device;
    coda_dtype dtype;
    int wide;
    int64_t sequences, length;
    int samples; /* elements of each tensor */
} rows[] = {
    {"ref", CODA_F32, 0, 2, 9, 20}, {"cpu", CODA_F32, 0, 2, 9, 20},  {"cpu", CODA_F32, 0, 1, 70, 6},
    {"cpu", CODA_F32, 1, 2, 7, 4},  {"cpu", CODA_BF16, 1, 1, 7, 5},  {"cpu", CODA_BF16, 0, 1, 70, 6},
    {"cpu", CODA_F16, 0, 2, 9, 20}, {"ref", CODA_BF16, 0, 2, 9, 20},
};

/* f32: every tensor of both paths within what rounding can do. */
static void judge_exact(const struct trial *t, size_t row, int tensor, const struct distance *d)
{
    const char *name;
    double bound = 0x1p-24 * roundings(&t->weights.config, &t->batch) * d->exact + d->oracle;
    coda_llama_tensor(t->llama, tensor, &name, NULL);
    for (int path = 0; path < 2; path++)
        if (!(d->error[path] <= bound))
            fail_msg("row %zu, path %d, %s: error %.3g of %.3g, bound %.3g", row, path, name, d->error[path], d->exact,
                     bound);
}

/* Narrow types: over the whole gradient, each tensor relative to its size, the fused path makes at most twice the error
 * of the unfused one, which rounds every value between operators. */
static void gradients_agree_with_central_differences(void **state)
{
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        struct trial t;
        struct random random = {11 + r};
        coda_llama_config config = llama_small(rows[r].wide);
        coda_error error;
        open_trial(&t, rows[r].device, rows[r].dtype, &config, rows[r].sequences, rows[r].length);
        double unit = rows[r].dtype == CODA_F32 ? 0x1p-24 : rows[r].dtype == CODA_F16 ? 0x1p-11 : 0x1p-8;
        double loss[2], exact = llama_loss(&t.weights, &t.batch), relative[2] = {0, 0};
        for (int path = 0; path < 2; path++) {
            check(coda_trainer_backward(t.trainer[path], &t.batch, &loss[path], &error), &error);
            if (!(fabs(loss[path] - exact) <= unit * roundings(&config, &t.batch) * (1 + exact)))
                fail_msg("row %zu, path %d: loss %.9g, expected %.9g", r, path, loss[path], exact);
        }
        for (int i = 0; i < t.weights.count; i++) {
            struct distance d = measure(&t, i, rows[r].samples, &random);
            if (rows[r].dtype == CODA_F32)
                judge_exact(&t, r, i, &d);
            for (int path = 0; path < 2; path++)
                relative[path] += pow(d.error[path] / d.exact, 2);
        }
        if (rows[r].dtype != CODA_F32 && !(relative[0] <= 4 * relative[1]))
            fail_msg("row %zu (%s %s): relative error %.3g, unfused %.3g", r, rows[r].device,
                     coda_dtype_name(rows[r].dtype), sqrt(relative[0]), sqrt(relative[1]));
        close_trial(&t);
    }
}

/* A vocabulary so large that logits are made 64 rows at a time: the second part has 16. */
static void logits_in_parts_give_the_gradient_of_the_whole(void **state)
{
    (void)state;
    struct trial t;
    struct random random = {5};
    coda_error error;
    coda_llama_config config = llama_small(0);
    config.vocab_size = (1 << 18) + 5;
    open_trial(&t, "cpu", CODA_F32, &config, 1, 80);
    for (int i = 0; i < 80; i++)
        if (i % 9 != 4)
            t.targets[i] = -100;
    double exact = llama_loss(&t.weights, &t.batch), loss;
    for (int path = 0; path < 2; path++) {
        check(coda_trainer_backward(t.trainer[path], &t.batch, &loss, &error), &error);
        assert_true(fabs(loss - exact) <= 0x1p-24 * roundings(&config, &t.batch) * (1 + exact));
    }
    for (int i = 1; i < t.weights.count; i += 3) {
        struct distance d = measure(&t, i, 2, &random);
        judge_exact(&t, 100, i, &d);
    }
    int norm = t.weights.count - 2; /* its gradient comes from both parts */
    struct distance d = measure(&t, norm, 4, &random);
    judge_exact(&t, 100, norm, &d);
    close_trial(&t);
}

static void ignored_targets_give_zero_loss_and_gradients(void **state)
{
    (void)state;
    struct trial t;
    coda_error error;
    coda_llama_config config = llama_small(0);
    open_trial(&t, "cpu", CODA_BF16, &config, 2, 9);
    for (int path = 0; path < 2; path++) {
        double loss = 1;
        check(coda_trainer_backward(t.trainer[path], &t.batch, &loss, &error), &error);
        assert_true(loss > 0);
        for (int i = 0; i < 18; i++)
            t.targets[i] = -100;
        check(coda_trainer_backward(t.trainer[path], &t.batch, &loss, &error), &error);
        assert_true(loss == 0);
        for (int i = 0; i < t.weights.count; i++) {
            coda_tensor gradient;
            assert_int_equal(coda_trainer_gradient(t.trainer[path], i, &gradient), CODA_OK);
            for (int64_t j = 0; j < t.weights.size[i]; j++)
                assert_true(((float *)gradient.data)[j] == 0);
        }
        make_batch(&t, 2, 9, 7);
    }
    close_trial(&t);
}

static void row_weights_of_zero_act_like_ignored_targets(void **state)
{
    (void)state;
    struct trial t;
    coda_error error;
    coda_llama_config config = llama_small(0);
    open_trial(&t, "cpu", CODA_F32, &config, 2, 9);
    double ignored, weighted;
    for (int i = 0; i < 18; i++)
        t.targets[i] = i % 3 ? i % 17 : -100;
    check(coda_trainer_loss(t.trainer[0], &t.batch, &ignored, &error), &error);
    for (int i = 0; i < 18; i += 3) {
        t.targets[i] = 1;
        t.row_weights[i] = 0;
    }
    check(coda_trainer_loss(t.trainer[0], &t.batch, &weighted, &error), &error);
    assert_true(ignored == weighted);
    close_trial(&t);
}

static void wrong_batches_are_refused(void **state)
{
    (void)state;
    struct trial t;
    coda_error error;
    coda_llama_config config = llama_small(0);
    open_trial(&t, "cpu", CODA_F32, &config, 2, 9);
    double loss = 5;
    static const struct {
        int token, target;
        int64_t sequences, length;
        const char *says;
    } wrong[] = {
        {17, 0, 2, 9, "token 3"},     {-1, 0, 2, 9, "token 3"}, {0, 17, 2, 9, "target 3"},   {0, -1, 2, 9, "target 3"},
        {0, 0, 3, 9, "has room for"}, {0, 0, 0, 9, "at least"}, {0, 0, 1, 81, "a sequence"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        make_batch(&t, 2, 9, 7);
        t.tokens[3] = wrong[i].token;
        t.targets[3] = wrong[i].target;
        t.batch.sequences = wrong[i].sequences;
        t.batch.length = wrong[i].length;
        assert_int_equal(coda_trainer_backward(t.trainer[0], &t.batch, &loss, &error), CODA_INVALID);
        if (!strstr(error.message, wrong[i].says))
            fail_msg("row %zu says: %s", i, error.message);
    }
    assert_true(loss == 5);
    close_trial(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_agree_with_central_differences),
        cmocka_unit_test(logits_in_parts_give_the_gradient_of_the_whole),
        cmocka_unit_test(ignored_targets_give_zero_loss_and_gradients),
        cmocka_unit_test(row_weights_of_zero_act_like_ignored_targets),
        cmocka_unit_test(wrong_batches_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
