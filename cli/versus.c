#include "training.h"

#include <string.h>

struct side {
    double seconds, loss, steps, tokens;
    coda_traffic traffic;
};

static coda_status run_side(coda_device *device, const coda_train_config *config, long steps, struct side *side,
                            coda_error *error)
{
    coda_llama *llama = NULL;
    coda_trainer *trainer = NULL;
    coda_step_report report = {0};
    coda_status status = coda_llama_create(device, &config->model, config->dtype, config->seed, &llama, error);
    if (status == CODA_OK)
        status = coda_trainer_create(llama, config, &trainer, error);
    for (long i = 0; i <= steps && status == CODA_OK && !stop_wanted(); i++) {
        double start = now_ms();
        status = coda_trainer_step(trainer, &report, error);
        if (i == 0) /* the first touches new memory: it counts for the loss alone */
            continue;
        side->seconds += (now_ms() - start) / 1000;
        side->tokens += (double)report.tokens;
    }
    if (status == CODA_OK) {
        coda_trainer_traffic(trainer, &side->traffic);
        side->loss = report.loss;
        side->steps = (double)report.step;
    }
    coda_trainer_free(trainer);
    coda_llama_free(llama);
    return status;
}

static double rate(const struct side *side)
{
    return side->seconds > 0 ? side->tokens / side->seconds : 0;
}

static void print_table(const struct side side[2])
{
    static const char *const names[] = {"fused", "unfused"};
    printf("\n%-8s  %10s  %22s  %16s  %s\n", "", "tokens/s", "MB a step of the model", "and of attention", "loss");
    for (int i = 0; i < 2; i++)
        printf("%-8s  %10.0f  %22.1f  %16.1f  %.4f after %.0f steps\n", names[i], rate(&side[i]),
               side[i].traffic.model / side[i].steps / 1e6, side[i].traffic.attention / side[i].steps / 1e6,
               side[i].loss, side[i].steps);
    printf("fused: %.2fx the speed, %.0f%% of the bytes\n", rate(&side[0]) / rate(&side[1]),
           100 * side[0].traffic.model / side[1].traffic.model);
}

static void print_object(struct json *json, const struct side side[2])
{
    static const char *const names[] = {"fused", "unfused"};
    json_begin(json);
    json_text(json, "event", "comparison");
    json_array(json, "paths");
    for (int i = 0; i < 2; i++) {
        json_begin(json);
        json_text(json, "path", names[i]);
        json_number(json, "steps", side[i].steps);
        json_number(json, "tokens_per_second", rate(&side[i]));
        json_number(json, "model_bytes_per_step", side[i].traffic.model / side[i].steps);
        json_number(json, "attention_bytes_per_step", side[i].traffic.attention / side[i].steps);
        json_number(json, "optimizer_bytes_per_step", side[i].traffic.optimizer / side[i].steps);
        json_number(json, "loss", side[i].loss);
        json_end(json);
    }
    json_array_end(json);
    json_line(json);
}

int versus(const char *command, coda_device *device, const coda_train_config *config, long steps, struct json *json)
{
    struct side side[2];
    coda_error error;
    memset(side, 0, sizeof side);
    if (!json) {
        printf("\nFused against unfused: %ld steps of each from the same start ...\n", steps);
        fflush(stdout);
    }
    for (int path = 0; path < 2; path++) {
        coda_train_config own = *config;
        own.path = (coda_path)path;
        coda_status status = run_side(device, &own, steps, &side[path], &error);
        if (status != CODA_OK)
            return report(command, &error);
        if (stop_wanted())
            return -1;
    }
    if (json)
        print_object(json, side);
    else
        print_table(side);
    return -1;
}
