/* Models: making them, files in Hugging Face's form, generation. */
#include "coda.h"
#include "kit/llama.h"
#include "kit/scratch.h"
#include "model/safetensors.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

struct setting {
    coda_device *device;
    char directory[SCRATCH_PATH];
};

static int setup(void **state)
{
    struct setting *s = calloc(1, sizeof *s);
    if (!s || coda_device_open("cpu", &s->device, NULL) != CODA_OK)
        return -1;
    scratch_new(s->directory);
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

static coda_llama *create(const struct setting *s, coda_dtype dtype, uint64_t seed)
{
    coda_llama *llama = NULL;
    coda_error error;
    coda_llama_config config = llama_small(0);
    if (coda_llama_create(s->device, &config, dtype, seed, &llama, &error) != CODA_OK)
        fail_msg("%s", error.message);
    return llama;
}

/* Tensors that differ in a bit. */
static int differing(const coda_llama *a, const coda_llama *b)
{
    int count = 0;
    assert_int_equal(coda_llama_tensor_count(a), coda_llama_tensor_count(b));
    for (int i = 0; i < coda_llama_tensor_count(a); i++) {
        coda_tensor x, y;
        const char *name[2];
        coda_llama_tensor(a, i, &name[0], &x);
        coda_llama_tensor(b, i, &name[1], &y);
        assert_string_equal(name[0], name[1]);
        count += memcmp(x.data, y.data, (size_t)(x.shape[0] * x.shape[1]) * coda_dtype_size(x.dtype)) != 0;
    }
    return count;
}

static void a_seed_gives_the_same_model(void **state)
{
    coda_llama *a = create(*state, CODA_BF16, 5), *b = create(*state, CODA_BF16, 5), *c = create(*state, CODA_BF16, 6);
    assert_int_equal(differing(a, b), 0);
    assert_int_equal(differing(a, c), coda_llama_tensor_count(a) - 5); /* all but the norms */
    coda_llama_free(a);
    coda_llama_free(b);
    coda_llama_free(c);
}

static void impossible_models_are_refused(void **state)
{
    struct setting *s = *state;
    coda_llama *llama = NULL;
    coda_error error;
    coda_llama_config config = llama_small(0), wrong = config;
    wrong.num_key_value_heads = 3;
    assert_int_equal(coda_llama_create(s->device, &wrong, CODA_F32, 1, &llama, &error), CODA_INVALID);
    assert_int_equal(coda_llama_create(s->device, &config, CODA_I32, 1, &llama, &error), CODA_INVALID);
    assert_non_null(strstr(error.message, "i32"));
    assert_int_equal(coda_llama_create(NULL, &config, CODA_F32, 1, &llama, &error), CODA_INVALID);
    wrong = config;
    wrong.hidden_size = 1 << 20;
    wrong.intermediate_size = 1 << 22;
    assert_int_equal(coda_llama_create(s->device, &wrong, CODA_F32, 1, &llama, &error), CODA_INVALID);
    assert_null(llama);
}

static void a_saved_model_loads_with_the_same_bits(void **state)
{
    struct setting *s = *state;
    static const coda_dtype dtypes[] = {CODA_F32, CODA_BF16, CODA_F16};
    for (int i = 0; i < 3; i++) {
        char directory[SCRATCH_PATH + 32];
        coda_error error;
        coda_llama *llama = NULL, *loaded = NULL, *wide = NULL;
        coda_llama_config config = llama_small(0);
        if (i > 0)
            config.rope_scaling = (coda_rope_scaling){CODA_ROPE_LLAMA3, 8, 1, 4, 32};
        assert_int_equal(coda_llama_create(s->device, &config, dtypes[i], 3, &llama, &error), CODA_OK);
        llama_randomize(llama, 1, 2);
        snprintf(directory, sizeof directory, "%s/deep/down/%s", s->directory, coda_dtype_name(dtypes[i]));
        assert_int_equal(coda_llama_save(llama, directory, &error), CODA_OK);
        assert_int_equal(coda_llama_save(llama, directory, &error), CODA_OK);
        assert_int_equal(scratch_count(directory), 2);
        assert_int_equal(coda_llama_load(s->device, directory, dtypes[i], &loaded, &error), CODA_OK);
        assert_int_equal(differing(llama, loaded), 0);
        const coda_llama_config *had = coda_llama_configuration(llama), *has = coda_llama_configuration(loaded);
        assert_memory_equal(had, has, offsetof(coda_llama_config, rope_scaling));
        assert_int_equal(had->rope_scaling.type, has->rope_scaling.type);
        assert_true(had->rope_scaling.factor == has->rope_scaling.factor);
        assert_int_equal(had->tie_word_embeddings, has->tie_word_embeddings);
        assert_int_equal(coda_llama_load(s->device, directory, CODA_F32, &wide, &error), CODA_OK);
        coda_llama_free(llama);
        coda_llama_free(loaded);
        coda_llama_free(wide);
    }
}

/* What is done to a good model's files before they are loaded. */
enum damage { NO_WEIGHTS, NO_CONFIG, CUT, EXTRA, MISSING, WRONG_SHAPE, WRONG_CONFIG, FOREIGN, TIED_EXTRA };

static const struct {
    enum damage damage;
    coda_status status;
    const char *says;
} damages[] = {
    {NO_WEIGHTS, CODA_IO, "model.safetensors"},
    {NO_CONFIG, CODA_IO, "config.json"},
    {CUT, CODA_INVALID, "truncated"},
    {EXTRA, CODA_INVALID, "`model.layers.0.self_attn.q_proj.bias`, which no Llama"},
    {MISSING, CODA_INVALID, "no tensor `model.norm.weight`"},
    {WRONG_SHAPE, CODA_INVALID, "`model.norm.weight` has 2 dimensions"},
    {WRONG_CONFIG, CODA_INVALID, "config.json asks for"},
    {FOREIGN, CODA_INVALID, "no safetensors file"},
    {TIED_EXTRA, CODA_OK, NULL},
};

/* Rewrites the weights with a change in their list. */
static void rewrite(const coda_llama *llama, const char *path, enum damage damage)
{
    struct safetensors_tensor *tensors = calloc(64, sizeof *tensors);
    static const float zeros[4096];
    int count = 0;
    assert_non_null(tensors);
    for (int i = 0; i < coda_llama_tensor_count(llama); i++) {
        const char *name;
        coda_tensor t;
        coda_llama_tensor(llama, i, &name, &t);
        bool norm = strcmp(name, "model.norm.weight") == 0;
        if (damage == MISSING && norm)
            continue;
        struct safetensors_tensor *to = &tensors[count++];
        snprintf(to->name, sizeof to->name, "%s", name);
        to->dtype = t.dtype;
        to->rank = damage == WRONG_SHAPE && norm ? 2 : t.rank;
        to->shape[0] = t.shape[0];
        to->shape[1] = damage == WRONG_SHAPE && norm ? 1 : t.shape[1];
        to->data = t.data;
    }
    if (damage == EXTRA || damage == TIED_EXTRA)
        tensors[count++] = (struct safetensors_tensor){"", CODA_F32, 1, {4, 0}, zeros};
    if (damage == EXTRA)
        snprintf(tensors[count - 1].name, sizeof tensors->name, "model.layers.0.self_attn.q_proj.bias");
    if (damage == TIED_EXTRA)
        snprintf(tensors[count - 1].name, sizeof tensors->name, "lm_head.weight");
    assert_int_equal(safetensors_write(path, tensors, count, NULL, 0, NULL), CODA_OK);
    free(tensors);
}

static void damage_files(const struct setting *s, const coda_llama *llama, const char *directory, enum damage damage)
{
    char weights[SCRATCH_PATH + 64], config[SCRATCH_PATH + 64], path[SCRATCH_PATH];
    snprintf(weights, sizeof weights, "%s/model.safetensors", directory);
    snprintf(config, sizeof config, "%s/config.json", directory);
    (void)s;
    if (damage == NO_WEIGHTS)
        unlink(weights);
    else if (damage == NO_CONFIG)
        unlink(config);
    else if (damage == CUT)
        assert_int_equal(truncate(weights, 5000), 0);
    else if (damage == FOREIGN)
        scratch_write(directory, "model.safetensors", "PK\3\4 a zip archive", 18, path);
    else if (damage == WRONG_CONFIG) {
        size_t length;
        char *text = scratch_read(config, &length), *place = strstr(text, "\"intermediate_size\": 28");
        assert_non_null(place);
        memcpy(place, "\"intermediate_size\": 29", 23);
        scratch_write(directory, "config.json", text, length, path);
        free(text);
    } else
        rewrite(llama, weights, damage);
}

static void damaged_models_are_refused_with_the_reason(void **state)
{
    struct setting *s = *state;
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        char directory[SCRATCH_PATH + 32];
        coda_error error = {CODA_OK, ""};
        coda_llama *llama, *loaded = NULL;
        coda_llama_config config = llama_small(0);
        config.tie_word_embeddings = damages[i].damage == TIED_EXTRA;
        assert_int_equal(coda_llama_create(s->device, &config, CODA_F32, 1, &llama, NULL), CODA_OK);
        snprintf(directory, sizeof directory, "%s/damage-%zu", s->directory, i);
        assert_int_equal(coda_llama_save(llama, directory, NULL), CODA_OK);
        damage_files(s, llama, directory, damages[i].damage);
        coda_status status = coda_llama_load(s->device, directory, CODA_F32, &loaded, &error);
        if (status != damages[i].status || (damages[i].says && !strstr(error.message, damages[i].says)))
            fail_msg("damage %zu: %s: %s", i, coda_status_name(status), error.message);
        coda_llama_free(loaded);
        coda_llama_free(llama);
    }
}

static void generate(coda_llama *llama, const int32_t *prompt, int64_t length, coda_sampling sampling, int32_t *tokens,
                     int64_t count)
{
    coda_error error;
    int64_t produced = 0;
    if (coda_llama_generate(llama, prompt, length, &sampling, tokens, count, &produced, &error) != CODA_OK)
        fail_msg("%s", error.message);
    assert_int_equal(produced, count);
}

/* The likeliest next token by the model in double. */
static int32_t likeliest(const struct llama_weights *weights, const int32_t *tokens, int64_t length)
{
    int32_t targets[96], best = -1;
    double least = INFINITY;
    for (int64_t i = 0; i < length; i++)
        targets[i] = -100;
    for (int32_t token = 0; token < weights->config.vocab_size; token++) {
        targets[length - 1] = token;
        double loss = llama_loss(weights, &(coda_batch){1, length, tokens, targets, NULL});
        if (loss < least) {
            least = loss;
            best = token;
        }
    }
    return best;
}

static void greedy_generation_follows_the_model_in_double(void **state)
{
    coda_llama *llama = create(*state, CODA_F32, 1);
    llama_randomize(llama, 1.5, 4);
    struct llama_weights weights = llama_weights_of(llama);
    int32_t tokens[40] = {3, 1, 4};
    for (int start = 1; start <= 3; start += 2) {
        generate(llama, tokens, start, (coda_sampling){.temperature = 0}, tokens + start, 20);
        for (int i = start; i < start + 20; i++)
            assert_int_equal(tokens[i], likeliest(&weights, tokens, i));
    }
    llama_weights_free(&weights);
    coda_llama_free(llama);
}

/* The context holds 80 positions. */
static void generation_goes_on_past_the_context(void **state)
{
    coda_llama *llama = create(*state, CODA_F32, 1);
    llama_randomize(llama, 1.5, 4);
    struct llama_weights weights = llama_weights_of(llama);
    int32_t tokens[300] = {3}, window[80];
    generate(llama, tokens, 1, (coda_sampling){.temperature = 0}, tokens + 1, 200);
    for (int i = 0; i < 201; i++)
        assert_in_range(tokens[i], 0, 16);
    /* position 80 is the first that sees a halved context: 40 tokens and the newest */
    memcpy(window, tokens + 40, 41 * sizeof *window);
    assert_int_equal(tokens[81], likeliest(&weights, window, 41));
    /* a prompt longer than the context: its newest part counts */
    int32_t next[1];
    generate(llama, tokens, 150, (coda_sampling){.temperature = 0}, next, 1);
    assert_int_equal(next[0], likeliest(&weights, tokens + 70, 80));
    llama_weights_free(&weights);
    coda_llama_free(llama);
}

static void sampling_follows_its_seed_and_its_limits(void **state)
{
    coda_llama *llama = create(*state, CODA_BF16, 1);
    int32_t prompt[] = {5}, a[60], b[60], greedy[60];
    int counts[17] = {0};
    generate(llama, prompt, 1, (coda_sampling){.temperature = 1, .seed = 7}, a, 60);
    generate(llama, prompt, 1, (coda_sampling){.temperature = 1, .seed = 7}, b, 60);
    assert_memory_equal(a, b, sizeof a);
    generate(llama, prompt, 1, (coda_sampling){.temperature = 1, .seed = 8}, b, 60);
    assert_memory_not_equal(a, b, sizeof a);
    generate(llama, prompt, 1, (coda_sampling){.temperature = 0}, greedy, 60);
    generate(llama, prompt, 1, (coda_sampling){.temperature = 5, .top_k = 1, .seed = 8}, b, 60);
    assert_memory_equal(greedy, b, sizeof b);
    for (uint64_t seed = 0; seed < 200; seed++) {
        generate(llama, prompt, 1, (coda_sampling){.temperature = 100, .top_k = 3, .seed = seed}, b, 1);
        counts[b[0]]++;
    }
    int used = 0;
    for (int i = 0; i < 17; i++)
        used += counts[i] > 0;
    assert_int_equal(used, 3);
    coda_llama_free(llama);
}

static int stop_at_four(void *context, int32_t token)
{
    (void)token;
    return ++*(int *)context == 4;
}

static void the_caller_can_end_a_generation(void **state)
{
    coda_llama *llama = create(*state, CODA_BF16, 1);
    int32_t prompt[] = {5}, tokens[60];
    int64_t produced = 0;
    int calls = 0;
    coda_sampling sampling = {.temperature = 1, .each = stop_at_four, .context = &calls};
    assert_int_equal(coda_llama_generate(llama, prompt, 1, &sampling, tokens, 60, &produced, NULL), CODA_OK);
    assert_int_equal(produced, 4);
    coda_llama_free(llama);
}

static void wrong_prompts_and_damaged_weights_are_refused(void **state)
{
    coda_llama *llama = create(*state, CODA_BF16, 1);
    coda_error error;
    int32_t prompt[] = {5, 17}, tokens[4];
    coda_sampling sampling = {.temperature = 1};
    assert_int_equal(coda_llama_generate(llama, prompt, 2, &sampling, tokens, 4, NULL, &error), CODA_INVALID);
    assert_non_null(strstr(error.message, "token 1 of the prompt is 17"));
    assert_int_equal(coda_llama_generate(llama, prompt, 0, &sampling, tokens, 4, NULL, &error), CODA_INVALID);
    sampling.temperature = NAN;
    assert_int_equal(coda_llama_generate(llama, prompt, 1, &sampling, tokens, 4, NULL, &error), CODA_INVALID);
    coda_tensor embedding;
    coda_llama_tensor(llama, 0, NULL, &embedding);
    memset(embedding.data, 0xff, (size_t)(embedding.shape[0] * embedding.shape[1]) * 2);
    sampling.temperature = 1;
    assert_int_equal(coda_llama_generate(llama, prompt, 1, &sampling, tokens, 4, NULL, &error), CODA_INVALID);
    assert_non_null(strstr(error.message, "no finite logit"));
    coda_llama_free(llama);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_seed_gives_the_same_model),
        cmocka_unit_test(impossible_models_are_refused),
        cmocka_unit_test(a_saved_model_loads_with_the_same_bits),
        cmocka_unit_test(damaged_models_are_refused_with_the_reason),
        cmocka_unit_test(greedy_generation_follows_the_model_in_double),
        cmocka_unit_test(generation_goes_on_past_the_context),
        cmocka_unit_test(sampling_follows_its_seed_and_its_limits),
        cmocka_unit_test(the_caller_can_end_a_generation),
        cmocka_unit_test(wrong_prompts_and_damaged_weights_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
