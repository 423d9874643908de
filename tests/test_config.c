/* Configurations of models and of training: what is accepted, and what is said about everything else. */
#include "coda.h"
#include "kit/scratch.h"
#include "model/config.h"
#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define SIZES                                                                                                          \
    "\"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "           \
    "\"vocab_size\": 100"

static const struct {
    const char *text;
    coda_status status;
    const char *says;
} models[] = {
    {"{" SIZES "}", CODA_OK, NULL},
    {"{" SIZES ", \"num_key_value_heads\": 2, \"head_dim\": null, \"rope_theta\": 5e5, \"tie_word_embeddings\": true}",
     CODA_OK, NULL},
    {"{" SIZES ", \"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_act\": \"silu\", "
     "\"rope_scaling\": null, \"torch_dtype\": \"bfloat16\", \"attention_dropout\": 0.0, \"mlp_bias\": null}",
     CODA_OK, NULL},
    /* not this Llama */
    {"{" SIZES ", \"hidden_act\": \"gelu\"}", CODA_UNSUPPORTED, "hidden_act"},
    {"{" SIZES ", \"attention_bias\": true}", CODA_UNSUPPORTED, "attention_bias"},
    {"{" SIZES ", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2}}", CODA_UNSUPPORTED,
     "`yarn` is not known"},
    {"{" SIZES ", \"rope_parameters\": {\"partial_rotary_factor\": 0.5}}", CODA_UNSUPPORTED, "partial_rotary_factor"},
    /* rotary embeddings */
    {"{" SIZES ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}", CODA_OK, NULL},
    {"{" SIZES ", \"rope_scaling\": {\"type\": \"linear\", \"rope_type\": \"linear\", \"factor\": 2}}", CODA_OK, NULL},
    {"{" SIZES ", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5e5}}", CODA_OK, NULL},
    {"{" SIZES ", \"rope_parameters\": null}", CODA_OK, NULL},
    {"{" SIZES ", \"rope_scaling\": {\"rope_type\": \"linear\"}}", CODA_INVALID, "needs `factor`"},
    {"{" SIZES ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}}", CODA_INVALID, "`low_freq_factor`"},
    {"{" SIZES ", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 0.5}}", CODA_INVALID, "from 1 to"},
    {"{" SIZES ", \"rope_scaling\": {\"factor\": 2, \"factor\": 2}}", CODA_INVALID, "`factor` is given twice"},
    {"{" SIZES ", \"rope_scaling\": null, \"rope_parameters\": null}", CODA_INVALID,
     "`rope_parameters` is given twice"},
    {"{" SIZES ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
     "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 8192}}",
     CODA_INVALID, "high_freq_factor (4) must be above"},
    {"{" SIZES ", \"model_type\": \"mamba\"}", CODA_UNSUPPORTED, "model_type"},
    /* keys */
    {"{" SIZES ", \"rms_norm_epsilon\": 1e-5}", CODA_INVALID, "did you mean `rms_norm_eps`?"},
    {"{" SIZES ", \"hidden_sise\": 64}", CODA_INVALID, "did you mean `hidden_size`?"},
    {"{" SIZES ", \"zzz\": 64}", CODA_INVALID, "unknown key `zzz`"},
    {"{" SIZES ", \"learning_rate\": 64}", CODA_INVALID, "a key of training"},
    {"{" SIZES ", \"vocab_size\": 64}", CODA_INVALID, "`vocab_size` is given twice"},
    {"{\"hidden_size\": 64}", CODA_INVALID, "`intermediate_size` is missing"},
    /* values */
    {"{" SIZES ", \"head_dim\": 0.5}", CODA_INVALID, "expected an integer"},
    {"{" SIZES ", \"head_dim\": \"16\"}", CODA_INVALID, "expected a number, found a string"},
    {"{" SIZES ", \"head_dim\": 7}", CODA_INVALID, "must be even"},
    {"{" SIZES ", \"num_key_value_heads\": 3}", CODA_INVALID, "must be a multiple of num_key_value_heads (3)"},
    {"{" SIZES ", \"num_key_value_heads\": -1}", CODA_INVALID, "from 0 to 4096"},
    {"{" SIZES ", \"rope_theta\": 0}", CODA_INVALID, "from 1 to"},
    {"{" SIZES ", \"tie_word_embeddings\": 1}", CODA_INVALID, "expected true or false"},
    {"{" SIZES ", \"rms_norm_eps\": 1e999}", CODA_INVALID, "no number"},
    {"{" SIZES ", \"rms_norm_eps\": 01}", CODA_INVALID, "no number"},
    {"{\"hidden_size\": 65, \"intermediate_size\": 96, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
     "\"vocab_size\": 9}",
     CODA_INVALID, "hidden_size (65) must be a multiple"},
    /* syntax, with its place */
    {"{\n  \"hidden_size\": 64,\n  \"vocab_size\" 9\n}", CODA_INVALID, ":3:16: error: expected `:`, found a number"},
    {"{\"hidden_size\": 64", CODA_INVALID, "found the end of the file"},
    {"{\"hidden_size\": 64,}", CODA_INVALID, "expected a string, found punctuation"},
    {"{\"hidden_size\": nul}", CODA_INVALID, "expected a number"},
    {"", CODA_INVALID, "expected an object"},
    {"[1]", CODA_INVALID, "expected an object `{`, found an array"},
    {"{" SIZES "} x", CODA_INVALID, "expected the end of the file"},
    {"{" SIZES ", \"architectures\": "
     "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}",
     CODA_INVALID, "nested deeper"},
    {"{\"hidden_size\": \"abc\n", CODA_INVALID, "expected a number"},
};

/* Field by field, for structs may have gaps. */
static void assert_same_configuration(const coda_train_config *a, const coda_train_config *b)
{
    char x[CODA_PATH_SIZE], y[CODA_PATH_SIZE];
    for (int i = 0; coda_train_config_key(i, NULL, a, x); i++) {
        coda_train_config_key(i, NULL, b, y);
        assert_string_equal(x, y);
    }
}

static void model_configurations(void **state)
{
    const char *directory = *state;
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        char path[SCRATCH_PATH];
        coda_error error = {CODA_OK, ""};
        coda_llama_config config = {.hidden_size = 12345};
        scratch_write(directory, "config.json", models[i].text, strlen(models[i].text), path);
        coda_status status = coda_llama_config_load(path, &config, &error);
        if (status != models[i].status || (models[i].says && !strstr(error.message, models[i].says)))
            fail_msg("model %zu: %s: %s", i, coda_status_name(status), error.message);
        assert_int_equal(config.hidden_size, status == CODA_OK ? 64 : 12345);
    }
}

static void absent_keys_take_hugging_face_defaults(void **state)
{
    char path[SCRATCH_PATH];
    coda_llama_config config;
    scratch_write(*state, "config.json", "{" SIZES "}", strlen("{" SIZES "}"), path);
    assert_int_equal(coda_llama_config_load(path, &config, NULL), CODA_OK);
    assert_int_equal(config.num_key_value_heads, 4);
    assert_int_equal(config.head_dim, 16);
    assert_int_equal(config.max_position_embeddings, 2048);
    assert_int_equal(config.tie_word_embeddings, 0);
    assert_true(config.rms_norm_eps == 1e-6 && config.rope_theta == 10000);
    assert_int_equal(coda_llama_parameters(&config), 2 * 100 * 64 + 64 + 2 * (4 * 64 * 64 + 3 * 64 * 96 + 2 * 64));
}

/* Llama 3.1's stretched frequencies, as `transformers` 5.17 computes them in f32. */
static void scaled_rotary_frequencies(void **state)
{
    static const struct {
        int pair;
        double frequency;
    } expected[] = {{0, 1},
                    {5, 0.12868738174438477},
                    {12, 0.00729266507551074},
                    {14, 0.0032114461064338684},
                    {15, 0.0013718936825171113},
                    {16, 0.0005248460220173001},
                    {17, 0.0001785077911335975},
                    {24, 6.647869668086059e-06},
                    {31, 3.76732259610435e-07}};
    static const char *const objects[] = {"\"rope_theta\": 5e5, \"rope_scaling\": {",
                                          "\"rope_parameters\": {\"rope_theta\": 5e5, "};
    for (int o = 0; o < 2; o++) {
        char path[SCRATCH_PATH], text[1024];
        coda_error error = {CODA_OK, ""};
        coda_llama_config config;
        int length = snprintf(text, sizeof text,
                              "{" SIZES ", \"head_dim\": 64, %s\"rope_type\": \"llama3\", \"factor\": 8.0, "
                              "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
                              "\"original_max_position_embeddings\": 8192}}",
                              objects[o]);
        scratch_write(*state, "config.json", text, (size_t)length, path);
        if (coda_llama_config_load(path, &config, &error) != CODA_OK)
            fail_msg("%s", error.message);
        for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
            double found = config_rope_frequency(&config, expected[i].pair);
            assert_true(fabs(found / expected[i].frequency - 1) < 1e-6);
        }
        config.rope_scaling.type = CODA_ROPE_LINEAR;
        assert_true(config_rope_frequency(&config, 0) == 0.125);
        config.rope_scaling.type = (coda_rope_type)9;
        assert_int_equal(coda_llama_config_check(&config, &error), CODA_INVALID);
    }
}

static const struct {
    const char *text, *says;
} trainings[] = {
    {"{}", NULL},
    {"{\"steps\": 7, \"model\": {\"hidden_size\": 128, \"model_type\": \"llama\"}, \"dtype\": \"f32\"}", NULL},
    {"{\"step\": 7}", "did you mean `steps`?"},
    {"{\"lerning_rate\": 7}", "did you mean `learning_rate`?"},
    {"{\"hidden_size\": 7}", "put it inside \"model\""},
    {"{\"dtype\": \"f64\"}", "found \"f64\""},
    {"{\"path\": 3}", "expected a string"},
    {"{\"beta1\": 1}", "from 0 to 0.999999"},
    {"{\"batch\": 0}", "from 1 to"},
    {"{\"steps\": 1, \"steps\": 2}", "given twice"},
    {"{\"model\": {}, \"model\": {}}", "given twice"},
    {"{\"model\": {\"steps\": 1}}", "a key of training"},
    {"{\"model\": 5}", "expected an object"},
};

static void training_configurations(void **state)
{
    for (size_t i = 0; i < sizeof trainings / sizeof trainings[0]; i++) {
        char path[SCRATCH_PATH];
        coda_error error = {CODA_OK, ""};
        coda_train_config config, before;
        coda_train_config_defaults(&config);
        before = config;
        scratch_write(*state, "train.json", trainings[i].text, strlen(trainings[i].text), path);
        coda_status status = coda_train_config_load(path, &config, &error);
        if (status != (trainings[i].says ? CODA_INVALID : CODA_OK) ||
            (trainings[i].says && !strstr(error.message, trainings[i].says)))
            fail_msg("training %zu: %s: %s", i, coda_status_name(status), error.message);
        if (status != CODA_OK)
            assert_same_configuration(&config, &before);
        else if (i == 1)
            assert_true(config.steps == 7 && config.model.hidden_size == 128 && config.dtype == CODA_F32);
    }
}

static const struct {
    const char *key, *value, *says;
} options[] = {
    {"steps", "12", NULL},
    {"learning-rate", "1e-4", NULL},
    {"hidden-size", "512", NULL},
    {"tie_word_embeddings", "false", NULL},
    {"data", "a \"b\" \\c", NULL},
    {"data-format", "u32", NULL},
    {"steps", "twelve", "must be an integer from 1 to 1000000000000; found \"twelve\""},
    {"steps", "", "must be an integer"},
    {"steps", "1 2", "found \"1 2\""},
    {"steps", "1.5", "must be an integer"},
    {"stepz", "1", "did you mean `steps`?"},
    {"hiden-size", "1", "did you mean `hidden_size`?"},
    {"qqqqqqqq", "1", "unknown key"},
    {"steps", "0", "must be an integer from 1"},
    {"dtype", "f64", "f32, bf16 or f16"},
    {"tie-word-embeddings", "yes", "must be true or false"},
    {"data", "a\nb", "without control characters"},
};

static void options_of_the_command_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        coda_error error = {CODA_OK, ""};
        coda_train_config config;
        coda_train_config_defaults(&config);
        coda_status status = coda_train_config_set(&config, options[i].key, options[i].value, &error);
        if (status != (options[i].says ? CODA_INVALID : CODA_OK) ||
            (options[i].says && !strstr(error.message, options[i].says)))
            fail_msg("option %zu: %s: %s", i, coda_status_name(status), error.message);
    }
    coda_train_config config;
    coda_train_config_defaults(&config);
    coda_train_config_set(&config, "data", "a \"b\" \\c", NULL);
    assert_string_equal(config.data, "a \"b\" \\c");
}

/* Every key's printed value sets the same value, in every locale. */
static void printed_values_read_back(void **state)
{
    (void)state;
    static const char *const locales[] = {"C", "de_DE.UTF-8"};
    for (int l = 0; l < 2; l++) {
        if (!setlocale(LC_ALL, locales[l]))
            continue;
        coda_train_config from, to;
        char text[CODA_PATH_SIZE];
        const char *name;
        int count = 0;
        coda_train_config_defaults(&from);
        from.learning_rate = 0.1 + 0.2;
        from.epsilon = 1e-300;
        from.clip = 1.0 / 3;
        coda_train_config_defaults(&to);
        for (; (name = coda_train_config_key(count, NULL, &from, text)); count++)
            assert_int_equal(coda_train_config_set(&to, name, text, NULL), CODA_OK);
        assert_same_configuration(&from, &to);
        assert_true(to.learning_rate == 0.1 + 0.2 && to.epsilon == 1e-300 && to.clip == 1.0 / 3);
        assert_true(count > 25);
    }
    setlocale(LC_ALL, "C");
}

static void parts_must_fit_each_other(void **state)
{
    (void)state;
    coda_train_config config;
    coda_error error;
    coda_train_config_defaults(&config);
    assert_int_equal(coda_train_config_check(&config, &error), CODA_OK);
    config.sequence = config.model.max_position_embeddings + 1;
    assert_int_equal(coda_train_config_check(&config, &error), CODA_INVALID);
    assert_non_null(strstr(error.message, "max_position_embeddings"));
    coda_train_config_defaults(&config);
    config.learning_rate = -1;
    assert_int_equal(coda_train_config_check(&config, &error), CODA_INVALID);
    coda_train_config_defaults(&config);
    config.path = (coda_path)7;
    assert_int_equal(coda_train_config_check(&config, &error), CODA_INVALID);
    assert_null(coda_train_config_key(1000, NULL, &config, NULL));
    assert_null(coda_train_config_key(-1, NULL, &config, NULL));
}

static int setup(void **state)
{
    char *directory = malloc(SCRATCH_PATH);
    if (!directory)
        return -1;
    scratch_new(directory);
    *state = directory;
    return 0;
}

static int teardown(void **state)
{
    scratch_free(*state);
    free(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(model_configurations),        cmocka_unit_test(absent_keys_take_hugging_face_defaults),
        cmocka_unit_test(scaled_rotary_frequencies),   cmocka_unit_test(training_configurations),
        cmocka_unit_test(options_of_the_command_line), cmocka_unit_test(printed_values_read_back),
        cmocka_unit_test(parts_must_fit_each_other),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
