#include "training.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_STEPS = 1000 };

struct side {
    coda_llama *llama;
    coda_trainer *trainer;
    double ms[MAX_STEPS]; /* of each step but the first, which touches new memory */
    double tokens;        /* of a step */
    double loss, steps;
    coda_traffic traffic;
};

static coda_status open_side(struct side *side, coda_device *device, const coda_train_config *config, coda_path path,
                             coda_error *error)
{
    coda_train_config own = *config;
    own.path = path;
    coda_status status = coda_llama_create(device, &own.model, own.dtype, own.seed, &side->llama, error);
    return status == CODA_OK ? coda_trainer_create(side->llama, &own, &side->trainer, error) : status;
}

static coda_status run_step(struct side *side, long step, coda_error *error)
{
    coda_step_report report = {0};
    double start = now_ms();
    coda_status status = coda_trainer_step(side->trainer, &report, error);
    if (step > 0)
        side->ms[step - 1] = now_ms() - start;
    side->loss = report.loss;
    side->steps = (double)report.step;
    side->tokens = (double)report.tokens;
    return status;
}

static double rate(const struct side *side, long steps)
{
    double sorted[MAX_STEPS];
    memcpy(sorted, side->ms, (size_t)steps * sizeof *sorted);
    return side->tokens / median(sorted, (int)steps) * 1000;
}

static void print_table(const struct side side[2], long steps)
{
    static const char *const names[] = {"fused", "unfused"};
    printf("\n%-8s  %10s  %22s  %16s  %s\n", "", "tokens/s", "MB a step of the model", "and of attention", "loss");
    for (int i = 0; i < 2; i++)
        printf("%-8s  %10.0f  %22.1f  %16.1f  %.4f after %.0f steps\n", names[i], rate(&side[i], steps),
               side[i].traffic.model / side[i].steps / 1e6, side[i].traffic.attention / side[i].steps / 1e6,
               side[i].loss, side[i].steps);
    printf("fused: %.2fx the speed, %.0f%% of the bytes\n", rate(&side[0], steps) / rate(&side[1], steps),
           100 * side[0].traffic.model / side[1].traffic.model);
}

static void print_object(struct json *json, const struct side side[2], long steps)
{
    static const char *const names[] = {"fused", "unfused"};
    json_begin(json);
    json_text(json, "event", "comparison");
    json_array(json, "paths");
    for (int i = 0; i < 2; i++) {
        json_begin(json);
        json_text(json, "path", names[i]);
        json_number(json, "steps", side[i].steps);
        json_number(json, "tokens_per_second", rate(&side[i], steps));
        json_number(json, "model_bytes_per_step", side[i].traffic.model / side[i].steps);
        json_number(json, "attention_bytes_per_step", side[i].traffic.attention / side[i].steps);
        json_number(json, "optimizer_bytes_per_step", side[i].traffic.optimizer / side[i].steps);
        json_number(json, "loss", side[i].loss);
        json_end(json);
    }
    json_array_end(json);
    json_line(json);
}

/* The paths take turns, so that whatever else the machine does meets both. */
int versus(const char *command, coda_device *device, const coda_train_config *config, long steps, struct json *json)
{
    struct side *side = calloc(2, sizeof *side);
    coda_error error;
    coda_status status = CODA_OK;
    if (!side) {
        fprintf(stderr, "coda %s: no memory for the comparison\n", command);
        return EXIT_FAILED;
    }
    steps = steps < MAX_STEPS ? steps : MAX_STEPS;
    if (!json) {
        printf("\nFused against unfused: %ld steps of each from the same start ...\n", steps);
        fflush(stdout);
    }
    for (int path = 0; path < 2 && status == CODA_OK; path++)
        status = open_side(&side[path], device, config, (coda_path)path, &error);
    for (long i = 0; i <= steps && status == CODA_OK && !stop_wanted(); i++)
        for (int path = 0; path < 2 && status == CODA_OK; path++)
            status = run_step(&side[path], i, &error);
    for (int path = 0; path < 2 && status == CODA_OK; path++)
        coda_trainer_traffic(side[path].trainer, &side[path].traffic);
    if (status == CODA_OK && !stop_wanted()) {
        if (json)
            print_object(json, side, steps);
        else
            print_table(side, steps);
    }
    for (int path = 0; path < 2; path++) {
        coda_trainer_free(side[path].trainer);
        coda_llama_free(side[path].llama);
    }
    free(side);
    return status == CODA_OK ? -1 : report(command, &error);
}
