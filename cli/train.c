#include "training.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char help_start[] =
    "usage: coda train --data FILE [options]\n"
    "\n"
    "Trains a Llama on a text (a byte a token) or on files of tokens, with every operator between the matrix products\n"
    "inside a program's epilogue; then compares with the unfused path and prints a sample. Ctrl-C finishes the step "
    "and\n"
    "writes a checkpoint. The programs are derived from blocks/llama3_start.coda, llama3.coda and llama3_end.coda:\n"
    "`coda rewrite --grad` prints them, in the order they run in.\n"
    "\n"
    "  --config FILE             JSON with the keys below (model keys inside \"model\"); options overrule it\n"
    "  --resume                  go on from the newest checkpoint in --out\n"
    "  --init DIR                start from a model's weights (config.json and model.safetensors)\n"
    "  --overwrite               remove the checkpoints that are in --out\n"
    "  --compare N               steps of the comparison; 0: none (10)\n"
    "  --sample N                tokens of the sample; 0: none (400)\n"
    "  --prompt TEXT             what the sample continues\n"
    "  --device D                cpu or ref (cpu)\n"
    "  --threads N               threads of the CPU; results do not depend on it\n"
    "  --json                    a JSON object a line\n"
    "  --help                    this text\n";

enum { MAX_OVERRIDES = 64 };

struct run {
    struct arguments arguments; /* device, threads */
    struct json json_output, *json;
    const char *config_file, *init;
    bool resume, overwrite;
    long compare;
    struct speech speech;
    int override_count;
    struct {
        const char *key, *value;
    } override[MAX_OVERRIDES];
    coda_train_config config;
    char checkpoint[CODA_PATH_SIZE]; /* that it goes on from; "" */
    coda_device *device;
    coda_llama *llama;
    coda_trainer *trainer;
};

static volatile sig_atomic_t interrupted;

static void interrupt(int signal)
{
    (void)signal;
    interrupted = 1;
}

bool stop_wanted(void)
{
    return interrupted;
}

/* The first signal asks, a second one ends the process at once. */
static void catch_signals(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = interrupt;
    action.sa_flags = (int)SA_RESETHAND | SA_RESTART;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static void print_help(void)
{
    coda_train_config config;
    char text[CODA_PATH_SIZE];
    const char *name, *help;
    coda_train_config_defaults(&config);
    fputs(help_start, stdout);
    puts("\nKeys, with '-' or '_':");
    for (int i = 0; (name = coda_train_config_key(i, &help, &config, text)); i++) {
        char option[64];
        snprintf(option, sizeof option, "--%s", name);
        for (char *c = option; *c; c++)
            if (*c == '_')
                *c = '-';
        printf("  %-25s %s%s%s%s\n", option, help, *text ? " (" : "", text, *text ? ")" : "");
    }
}

static bool read_count(const char *text, long *number)
{
    char *end;
    errno = 0;
    *number = strtol(text, &end, 10);
    return !errno && end != text && !*end && *number >= 0 && *number <= 1000000000;
}

/* An option that is no key of the configuration. Returns 1 if it was one, 0 if not, -1 after printing what is wrong. */
static int take_option(struct run *run, const char *name, const char *value)
{
    const struct {
        const char *name;
        const char **text;
        long *count;
    } options[] = {
        {"config", &run->config_file, NULL},        {"init", &run->init, NULL},
        {"prompt", &run->speech.prompt, NULL},      {"device", &run->arguments.device, NULL},
        {"compare", NULL, &run->compare},           {"sample", NULL, &run->speech.tokens},
        {"threads", NULL, &run->arguments.threads},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        if (strcmp(options[i].name, name) != 0)
            continue;
        if (options[i].text)
            *options[i].text = value;
        else if (!read_count(value, options[i].count))
            return usage_error("train", "--%s %s: expected a number of at least 0", name, value), -1;
        return 1;
    }
    return 0;
}

static int take_flag(struct run *run, const char *name)
{
    if (strcmp(name, "resume") == 0)
        run->resume = true;
    else if (strcmp(name, "overwrite") == 0)
        run->overwrite = true;
    else if (strcmp(name, "json") == 0)
        run->json = &run->json_output;
    else
        return 0;
    return 1;
}

/* Returns -1 to go on. */
static int read_options(struct run *run, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        char name[64];
        const char *argument = argv[i], *value = strchr(argument, '=');
        size_t length = value ? (size_t)(value - argument) : strlen(argument);
        if (strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0) {
            print_help();
            return EXIT_GOOD;
        }
        if (strncmp(argument, "--", 2) != 0 || length < 3 || length - 2 >= sizeof name)
            return usage_error("train", "unexpected argument %s", argument);
        snprintf(name, sizeof name, "%.*s", (int)(length - 2), argument + 2);
        if (!value && take_flag(run, name))
            continue;
        if (value)
            value++;
        else if (i + 1 < argc)
            value = argv[++i];
        else
            return usage_error("train", "--%s needs a value", name);
        int taken = take_option(run, name, value);
        if (taken < 0)
            return EXIT_USAGE;
        if (taken)
            continue;
        if (run->override_count == MAX_OVERRIDES)
            return usage_error("train", "more than %d options", MAX_OVERRIDES);
        run->override[run->override_count].key = strndup(name, sizeof name);
        run->override[run->override_count++].value = value;
    }
    return -1;
}

static int apply_overrides(struct run *run)
{
    coda_error error;
    for (int i = 0; i < run->override_count; i++) {
        if (!run->override[i].key)
            return usage_error("train", "no memory for the options");
        if (coda_train_config_set(&run->config, run->override[i].key, run->override[i].value, &error) != CODA_OK)
            return usage_error("train", "%s", error.message);
    }
    return -1;
}

static bool is_given(const struct run *run, const char *key)
{
    for (int i = 0; i < run->override_count; i++) {
        const char *given = run->override[i].key;
        size_t j = 0;
        while (given[j] && (given[j] == key[j] || (given[j] == '-' && key[j] == '_')))
            j++;
        if (!given[j] && !key[j])
            return true;
    }
    return false;
}

/* Defaults, then the resumed run's configuration, then --config, then options. Returns -1 to go on. */
static int configure(struct run *run)
{
    coda_error error;
    char path[CODA_PATH_SIZE + 32];
    coda_train_config_defaults(&run->config);
    int code = apply_overrides(run); /* --out says where to look */
    if (code >= 0)
        return code;
    coda_status status = coda_checkpoint_find(run->config.out, run->checkpoint, &error);
    if (run->resume && status != CODA_OK)
        return report("train", &error);
    if (status == CODA_OK && strcmp(run->checkpoint, run->config.out) == 0) {
        fprintf(stderr, "coda train: '%s' is a model itself; --out is the directory that holds step-NNNNNNNN\n",
                run->config.out);
        return EXIT_FAILED;
    }
    if (!run->resume && status == CODA_OK && !run->overwrite) {
        fprintf(
            stderr,
            "coda train: '%s' is a checkpoint of an earlier run: --resume goes on from it, --overwrite removes it,\n"
            "--out DIR writes elsewhere\n",
            run->checkpoint);
        return EXIT_FAILED;
    }
    if (!run->resume)
        run->checkpoint[0] = 0;
    else {
        coda_train_config_defaults(&run->config);
        snprintf(path, sizeof path, "%s/training.json", run->checkpoint);
        if (coda_train_config_load(path, &run->config, &error) != CODA_OK)
            return report("train", &error);
    }
    if (run->config_file && coda_train_config_load(run->config_file, &run->config, &error) != CODA_OK)
        return report("train", &error);
    code = apply_overrides(run);
    if (code >= 0)
        return code;
    if (!run->resume && !run->init && !is_given(run, "max_position_embeddings") &&
        run->config.model.max_position_embeddings < run->config.sequence)
        run->config.model.max_position_embeddings = run->config.sequence;
    if (!run->config.data[0])
        return usage_error("train", "--data FILE is missing: any text will do");
    return -1;
}

static coda_status open_run(struct run *run, coda_error *error)
{
    coda_train_config *config = &run->config;
    const char *source = run->resume ? run->checkpoint : run->init;
    coda_status status = CODA_OK;
    if (!source)
        status = coda_train_config_check(config, error);
    if (status == CODA_OK && source)
        status = coda_llama_load(run->device, source, config->dtype, &run->llama, error);
    else if (status == CODA_OK)
        status = coda_llama_create(run->device, &config->model, config->dtype, config->seed, &run->llama, error);
    if (status != CODA_OK)
        return status;
    config->model = *coda_llama_configuration(run->llama);
    status = coda_trainer_create(run->llama, config, &run->trainer, error);
    if (status == CODA_OK && run->resume)
        status = coda_trainer_resume(run->trainer, run->checkpoint, error);
    return status;
}

/* Says before the work what would otherwise show after it. */
static bool can_write(const char *out, coda_error *error)
{
    char path[CODA_PATH_SIZE + 32];
    error->status = CODA_IO;
    for (size_t i = 1; i <= strlen(out); i++) {
        if (out[i] != '/' && out[i] != 0)
            continue;
        snprintf(path, sizeof path, "%.*s", (int)i, out);
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            break;
    }
    snprintf(path, sizeof path, "%s/.writable.%ld.tmp", out, (long)getpid());
    FILE *file = fopen(path, "w");
    if (!file) {
        snprintf(error->message, sizeof error->message, "cannot write into '%.900s': %s: give another --out", out,
                 strerror(errno));
        return false;
    }
    fclose(file);
    unlink(path);
    return true;
}

/* Only the files that a checkpoint has are removed. */
static void remove_checkpoints(const char *out)
{
    static const char *const files[] = {"config.json", "model.safetensors", "training.safetensors", "training.json"};
    char path[CODA_PATH_SIZE], file[CODA_PATH_SIZE + 32];
    while (coda_checkpoint_find(out, path, NULL) == CODA_OK && strcmp(path, out) != 0) {
        for (int i = 0; i < 4; i++) {
            snprintf(file, sizeof file, "%s/%s", path, files[i]);
            unlink(file);
        }
        if (rmdir(path) != 0)
            return;
    }
}

static void print_start(const struct run *run)
{
    const coda_llama_config *model = &run->config.model;
    double parameters = (double)coda_llama_parameters(model);
    int64_t done = coda_trainer_steps_done(run->trainer);
    int64_t tokens = run->config.batch * run->config.sequence * run->config.accumulation;
    if (run->json) {
        json_begin(run->json);
        json_text(run->json, "event", "start");
        json_number(run->json, "parameters", parameters);
        json_number(run->json, "step", (double)done);
        json_number(run->json, "steps", (double)run->config.steps);
        json_text(run->json, "data", run->config.data);
        json_text(run->json, "dtype", coda_dtype_name(run->config.dtype));
        json_text(run->json, "path", run->config.path == CODA_FUSED ? "fused" : "unfused");
        json_number(run->json, "threads", coda_device_threads(run->device));
        json_line(run->json);
        return;
    }
    printf("A Llama of %.2f million parameters (%lld layers of width %lld) learns %s: %lld steps of %lld tokens in %s, "
           "%d threads\n",
           parameters / 1e6, (long long)model->num_hidden_layers, (long long)model->hidden_size, run->config.data,
           (long long)run->config.steps, (long long)tokens, coda_dtype_name(run->config.dtype),
           coda_device_threads(run->device));
    if (done)
        printf("Going on from %s\n", run->checkpoint);
}

static coda_status save(struct run *run, struct progress *progress, coda_error *error)
{
    char path[CODA_PATH_SIZE];
    coda_status status = coda_trainer_save(run->trainer, NULL, path, error);
    if (status == CODA_OK && run->json) {
        json_begin(run->json);
        json_text(run->json, "event", "checkpoint");
        json_number(run->json, "step", (double)coda_trainer_steps_done(run->trainer));
        json_text(run->json, "path", path);
        json_line(run->json);
    } else if (status == CODA_OK &&
               (interrupted || !progress->terminal || coda_trainer_steps_done(run->trainer) >= run->config.steps)) {
        progress_clear(progress);
        printf("%sCheckpoint %s\n", interrupted ? "Stopped. " : "", path);
    }
    if (status == CODA_OK && interrupted && !run->json)
        printf("`coda train --resume --out %s` goes on from there\n", run->config.out);
    return status;
}

static coda_status train(struct run *run, coda_error *error)
{
    struct progress progress;
    coda_step_report step = {0};
    int64_t interval = run->config.checkpoint_interval,
            saved = run->resume ? coda_trainer_steps_done(run->trainer) : -1;
    coda_status status = CODA_OK;
    progress_begin(&progress, run->json, coda_trainer_steps_done(run->trainer), run->config.steps);
    while (status == CODA_OK && !interrupted && coda_trainer_steps_done(run->trainer) < run->config.steps) {
        status = coda_trainer_step(run->trainer, &step, error);
        if (status != CODA_OK)
            break;
        progress_step(&progress, &step);
        if (interval > 0 && step.step % interval == 0 && step.step < run->config.steps && !interrupted) {
            /* A full disk now may have room at the end: what was learned is not given up. */
            if (save(run, &progress, error) == CODA_OK) {
                saved = step.step;
            } else {
                progress_clear(&progress);
                report("train", error);
                fputs("Training goes on; the checkpoint before this one is intact.\n", stderr);
            }
        }
    }
    if (status == CODA_OK && saved != coda_trainer_steps_done(run->trainer))
        return save(run, &progress, error);
    progress_clear(&progress);
    return status;
}

static int finish(struct run *run)
{
    coda_error error;
    int code = -1;
    if (run->compare > 0 && !interrupted)
        code = versus("train", run->device, &run->config, run->compare, run->json);
    if (code >= 0 || run->speech.tokens == 0 || interrupted)
        return code >= 0 ? code : EXIT_GOOD;
    if (run->json) {
        json_begin(run->json);
        json_text(run->json, "event", "sample");
    } else
        printf("\nA sample:\n\n");
    coda_status status = speak("train", run->llama, &run->speech, run->json, &error);
    if (run->json)
        json_line(run->json);
    return status == CODA_OK ? EXIT_GOOD : error.message[0] ? report("train", &error) : EXIT_USAGE;
}

int command_train(int argc, char **argv)
{
    struct run run = {.arguments = {.command = "train", .device = "cpu"},
                      .json_output = {stdout, false},
                      .compare = 10,
                      .speech = {"", 0.8, 400, 0, 1}};
    coda_error error;
    int code = read_options(&run, argc, argv);
    if (code < 0)
        code = configure(&run);
    if (code < 0)
        code = open_device(&run.arguments, &run.device);
    if (code < 0) {
        coda_status status = open_run(&run, &error);
        if (status == CODA_OK && !can_write(run.config.out, &error))
            status = error.status;
        if (status == CODA_OK) {
            catch_signals();
            if (run.overwrite && !run.resume)
                remove_checkpoints(run.config.out);
            print_start(&run);
            fflush(stdout);
            status = train(&run, &error);
        }
        code = status == CODA_OK ? finish(&run) : report("train", &error);
    }
    coda_trainer_free(run.trainer);
    coda_llama_free(run.llama);
    coda_device_close(run.device);
    for (int i = 0; i < run.override_count; i++)
        free((char *)run.override[i].key);
    return code;
}
