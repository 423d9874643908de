#include "model/checkpoint.h"
#include "model/config.h"
#include "model/files.h"
#include "model/safetensors.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LONG_PATH = CODA_PATH_SIZE + 64, STATES = 3 };

static const char training_file[] = "training.safetensors", settings_file[] = "training.json";
static const char *const state_names[STATES] = {"master", "exp_avg", "exp_avg_sq"};

static float *const *state_list(const coda_trainer *t, int state)
{
    return state == 0 ? t->master : state == 1 ? t->mean : t->square;
}

static void state_name(char *name, size_t room, int state, const char *weight)
{
    snprintf(name, room, "%s.%s", state_names[state], weight);
}

/* The numbers that a resumed run must find again. */
struct facts {
    char step[24], tokens[24], fingerprint[24], seed[24];
};

static struct facts facts_of(const coda_trainer *t)
{
    struct facts f;
    snprintf(f.step, sizeof f.step, "%lld", (long long)t->step);
    snprintf(f.tokens, sizeof f.tokens, "%lld", t->has_data ? (long long)t->data.tokens : 0);
    snprintf(f.fingerprint, sizeof f.fingerprint, "%016llx", t->has_data ? (unsigned long long)t->data.fingerprint : 0);
    snprintf(f.seed, sizeof f.seed, "%llu", (unsigned long long)t->config.seed);
    return f;
}

coda_status write_training(const coda_trainer *trainer, const char *directory, coda_error *error)
{
    const coda_llama *m = trainer->llama;
    char path[LONG_PATH];
    struct json_text text = {0};
    struct facts facts = facts_of(trainer);
    const struct safetensors_pair metadata[] = {{"step", facts.step},
                                                {"seed", facts.seed},
                                                {"data_tokens", facts.tokens},
                                                {"data_fingerprint", facts.fingerprint},
                                                {"dtype", coda_dtype_name(m->dtype)}};
    int count = STATES * m->weight_count;
    struct safetensors_tensor *tensors = calloc((size_t)count, sizeof *tensors);
    if (!tensors)
        return model_no_memory(error, "a list of tensors", (size_t)count * sizeof *tensors);
    for (int i = 0; i < count; i++) {
        const struct weight *weight = &m->weight[i / STATES];
        state_name(tensors[i].name, sizeof tensors[i].name, i % STATES, weight->name);
        tensors[i].dtype = CODA_F32;
        tensors[i].rank = weight->rank;
        tensors[i].shape[0] = weight->rank == 1 ? weight->columns : weight->rows;
        tensors[i].shape[1] = weight->columns;
        tensors[i].data = state_list(trainer, i % STATES)[i / STATES];
    }
    coda_status status = join_path(path, sizeof path, directory, training_file, error);
    if (status == CODA_OK)
        status = safetensors_write(path, tensors, count, metadata, (int)(sizeof metadata / sizeof metadata[0]), error);
    if (status == CODA_OK)
        status = join_path(path, sizeof path, directory, settings_file, error);
    if (status != CODA_OK)
        goto done;
    write_train_config(&text, &trainer->config);
    status = text.failed ? model_no_memory(error, settings_file, text.length)
                         : write_text_file(path, text.text, text.length, error);
done:
    free(text.text);
    free(tensors);
    return status;
}

int64_t checkpoint_step(const char *name)
{
    if (strncmp(name, "step-", 5) != 0 || strlen(name) < 6 || strlen(name) > 20)
        return -1;
    if (strspn(name + 5, "0123456789") != strlen(name + 5))
        return -1;
    return strtoll(name + 5, NULL, 10);
}

/* Everything is written and flushed under a hidden name; one rename makes it a checkpoint. */
coda_status coda_trainer_save(coda_trainer *trainer, const char *parent, char *path, coda_error *error)
{
    char name[48], place[LONG_PATH], temporary[LONG_PATH];
    bool exchanged = false;
    coda_error ignored;
    if (!parent)
        parent = trainer->config.out;
    coda_status status = make_directories(parent, error);
    if (status != CODA_OK)
        return status;
    snprintf(name, sizeof name, "step-%08lld", (long long)trainer->step);
    status = join_path(place, CODA_PATH_SIZE, parent, name, error);
    snprintf(name, sizeof name, ".step-%08lld.%ld.tmp", (long long)trainer->step, (long)getpid());
    if (status == CODA_OK)
        status = join_path(temporary, sizeof temporary, parent, name, error);
    if (status != CODA_OK)
        return status;
    status = remove_directory(temporary, error); /* of a process of the same number that was killed */
    if (status == CODA_OK && mkdir(temporary, 0777) != 0)
        status = model_system_error(error, "create the directory", temporary);
    if (status != CODA_OK)
        return status;
    status = write_model(trainer->llama, temporary, error);
    if (status == CODA_OK)
        status = write_training(trainer, temporary, error);
    if (status == CODA_OK)
        status = flush_directory(temporary, error);
    if (status == CODA_OK)
        status = exchange_directory(temporary, place, &exchanged, error);
    if (status != CODA_OK || exchanged)
        remove_directory(temporary, &ignored);
    if (status == CODA_OK)
        status = flush_directory(parent, error);
    if (status == CODA_OK && path)
        snprintf(path, CODA_PATH_SIZE, "%.*s", CODA_PATH_SIZE - 1, place);
    if (status == CODA_OK && trainer->config.keep > 0)
        status = remove_old_checkpoints(parent, trainer->step, trainer->config.keep, error);
    return status;
}

static int newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x > y ? -1 : x < y;
}

/* Steps of the checkpoints in a directory, newest first; release with free. */
static coda_status list_checkpoints(const char *parent, int64_t **steps, int *count, coda_error *error)
{
    DIR *directory = opendir(parent);
    if (!directory)
        return model_system_error(error, "open", parent);
    coda_status status = CODA_OK;
    int64_t *list = NULL;
    int used = 0;
    struct dirent *entry;
    while ((entry = readdir(directory)) && status == CODA_OK) {
        int64_t step = checkpoint_step(entry->d_name);
        if (step < 0)
            continue;
        int64_t *grown = realloc(list, (size_t)(used + 1) * sizeof *list);
        if (!grown) {
            status = model_no_memory(error, "a list of checkpoints", (size_t)(used + 1) * sizeof *list);
            break;
        }
        list = grown;
        list[used++] = step;
    }
    closedir(directory);
    if (status != CODA_OK) {
        free(list);
        return status;
    }
    if (used)
        qsort(list, (size_t)used, sizeof *list, newest_first);
    *steps = list;
    *count = used;
    return CODA_OK;
}

coda_status remove_old_checkpoints(const char *parent, int64_t step, int64_t keep, coda_error *error)
{
    int64_t *steps;
    int count;
    coda_status status = list_checkpoints(parent, &steps, &count, error);
    if (status != CODA_OK)
        return status;
    for (int i = 0; i < count && status == CODA_OK; i++) {
        if (steps[i] > step || keep-- > 0)
            continue;
        char name[48], path[LONG_PATH];
        snprintf(name, sizeof name, "step-%08lld", (long long)steps[i]);
        status = join_path(path, sizeof path, parent, name, error);
        if (status == CODA_OK)
            status = remove_directory(path, error);
    }
    free(steps);
    return status;
}

static bool holds(const char *directory, const char *file)
{
    char path[LONG_PATH];
    struct stat info;
    return join_path(path, sizeof path, directory, file, NULL) == CODA_OK && stat(path, &info) == 0;
}

coda_status coda_checkpoint_find(const char *directory, char *path, coda_error *error)
{
    int64_t *steps;
    int count;
    char found[CODA_PATH_SIZE];
    if (holds(directory, "config.json") && strlen(directory) < CODA_PATH_SIZE) {
        snprintf(path, CODA_PATH_SIZE, "%s", directory);
        return CODA_OK;
    }
    coda_status status = list_checkpoints(directory, &steps, &count, error);
    if (status != CODA_OK)
        return status;
    status = model_fail(error, CODA_IO,
                        "'%s' holds no checkpoint: expected config.json and model.safetensors in it, or directories "
                        "step-NNNNNNNN",
                        directory);
    for (int i = 0; i < count && status == CODA_IO; i++) {
        char name[48];
        snprintf(name, sizeof name, "step-%08lld", (long long)steps[i]);
        if (join_path(found, sizeof found, directory, name, NULL) == CODA_OK && holds(found, "config.json")) {
            memcpy(path, found, strlen(found) + 1);
            status = CODA_OK;
        }
    }
    free(steps);
    return status;
}

static coda_status check_fact(const struct safetensors *file, const char *key, const char *now, const char *advice,
                              coda_error *error)
{
    const char *then = safetensors_metadata(file, key);
    if (then && strcmp(then, now) == 0)
        return CODA_OK;
    return model_fail(error, CODA_INVALID, "'%s' was written with %s %s, but now it is %s: %s", file->path, key,
                      then ? then : "(none)", now, advice);
}

static coda_status check_facts(const coda_trainer *t, const struct safetensors *file, coda_error *error)
{
    struct facts facts = facts_of(t);
    const char *data = "give the data of that run, or start a new run from its weights";
    coda_status status = check_fact(file, "dtype", coda_dtype_name(t->llama->dtype), "give that dtype", error);
    if (status == CODA_OK)
        status = check_fact(file, "data_tokens", facts.tokens, data, error);
    if (status == CODA_OK)
        status = check_fact(file, "data_fingerprint", facts.fingerprint, data, error);
    if (status == CODA_OK)
        status = check_fact(file, "seed", facts.seed, "give that seed", error);
    return status;
}

/* Reads into fresh memory first, so that a failure leaves the trainer as it was. */
static coda_status read_state(coda_trainer *t, const struct safetensors *file, float **to, coda_error *error)
{
    for (int i = 0; i < STATES * t->llama->weight_count; i++) {
        const struct weight *weight = &t->llama->weight[i / STATES];
        char name[NAME_SIZE + 32];
        state_name(name, sizeof name, i % STATES, weight->name);
        const struct safetensors_entry *entry = safetensors_find(file, name);
        int64_t bytes = elements(weight) * (int64_t)sizeof(float);
        if (!entry || entry->type->dtype != CODA_F32 || entry->end - entry->begin != bytes)
            return model_fail(error, CODA_INVALID,
                              "'%s' has no tensor `%s` of %lld f32 elements: it is of another model", file->path, name,
                              (long long)elements(weight));
        to[i] = malloc((size_t)bytes);
        if (!to[i])
            return model_no_memory(error, "the optimizer's state", (size_t)bytes);
        coda_status status = safetensors_read(file, entry, CODA_F32, to[i], error);
        if (status != CODA_OK)
            return status;
    }
    return CODA_OK;
}

static coda_status read_step(const struct safetensors *file, int64_t *step, coda_error *error)
{
    const char *text = safetensors_metadata(file, "step");
    char *end = NULL;
    errno = 0;
    long long value = text ? strtoll(text, &end, 10) : -1;
    if (!text || errno || *end || end == text || value < 0)
        return model_fail(error, CODA_INVALID, "'%s' does not say its step", file->path);
    *step = value;
    return CODA_OK;
}

coda_status coda_trainer_resume(coda_trainer *trainer, const char *checkpoint, coda_error *error)
{
    coda_llama *m = trainer->llama;
    char path[LONG_PATH];
    struct safetensors file = {.descriptor = -1};
    int64_t step = 0;
    float **state = calloc((size_t)m->weight_count * STATES, sizeof *state);
    if (!state)
        return model_no_memory(error, "the optimizer's state", (size_t)m->weight_count * STATES * sizeof *state);
    coda_status status = join_path(path, sizeof path, checkpoint, training_file, error);
    if (status == CODA_OK)
        status = safetensors_open(&file, path, error);
    if (status == CODA_OK)
        status = read_step(&file, &step, error);
    if (status == CODA_OK)
        status = check_facts(trainer, &file, error);
    if (status == CODA_OK)
        status = read_state(trainer, &file, state, error);
    for (int i = 0; i < STATES * m->weight_count; i++) {
        if (status == CODA_OK)
            memcpy(state_list(trainer, i % STATES)[i / STATES], state[i],
                   (size_t)elements(&m->weight[i / STATES]) * sizeof(float));
        free(state[i]);
    }
    for (int i = 0; i < m->weight_count && status == CODA_OK; i++)
        coda_convert(m->weight[i].data, m->dtype, trainer->master[i], CODA_F32, elements(&m->weight[i]));
    if (status == CODA_OK)
        trainer->step = step;
    safetensors_close(&file);
    free(state);
    return status;
}
