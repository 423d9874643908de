/* Random valid programs on the GPU against the tests' own evaluation. Arguments: the first seed and how many. */
#include "image.h"
#include "kit/compare.h"
#include "kit/generate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum outcome { AGREES, UNSUPPORTED, FAILS };
enum { TEXT = 1 << 14 };

static coda_dims own_dims(const struct generated *generated, const coda_program *program)
{
    coda_dims dims = {0};
    for (int i = 0; i < generated->dims.count; i++) {
        int axis = graph_find_axis(program->graph, generated->dims.item[i].axis);
        if (axis >= 0 && program->graph->axis[axis].term_count == 0)
            dims.item[dims.count++] = generated->dims.item[i];
    }
    return dims;
}

static enum outcome run_kernel(coda_device *device, struct trial *trial, coda_kernel *kernel, enum placing placing,
                               const struct evaluation *evaluation, enum standard standard, char *why, size_t size)
{
    struct image image;
    coda_error error = {0};
    enum outcome outcome = FAILS;
    trial_reset(trial, POISON_NAN);
    if (image_new(&image, device, trial, placing, &error) != CODA_OK) {
        snprintf(why, size, "%s", error.message);
        return FAILS;
    }
    coda_status status = image_send(&image, trial, &error);
    if (status == CODA_OK)
        status = coda_kernel_launch(kernel, image.tensor, image.count, trial->parameter, NULL, &error);
    if (status == CODA_OK)
        status = coda_synchronize(device, NULL, &error);
    const char *damaged = status == CODA_OK ? image_receive(&image, trial, &error) : NULL;
    if (status == CODA_UNSUPPORTED)
        outcome = UNSUPPORTED;
    if (status != CODA_OK)
        snprintf(why, size, "%s", error.message);
    else if (damaged)
        snprintf(why, size, "bytes around %s were written", damaged);
    else if (compare_outs(trial, evaluation, standard, why, size))
        outcome = AGREES;
    image_free(&image);
    return outcome;
}

static enum outcome run_schedule(coda_device *device, struct trial *trial, const coda_options *options,
                                 const struct evaluation *evaluation, char *why, size_t size)
{
    coda_kernel *kernel;
    coda_error error = {0};
    enum outcome outcome = AGREES;
    coda_status status = coda_kernel_create(device, trial->program, &trial->dims, options, &kernel, &error);
    if (status != CODA_OK) {
        snprintf(why, size, "%s", error.message);
        return status == CODA_UNSUPPORTED ? UNSUPPORTED : FAILS;
    }
    for (int placing = 0; placing < 3 && outcome == AGREES; placing++)
        outcome = run_kernel(device, trial, kernel, (enum placing)placing, evaluation,
                             options->exact ? STANDARD_EXACT : STANDARD_PLAIN, why, size);
    coda_kernel_free(kernel);
    return outcome;
}

static enum outcome try_program(coda_device *device, const struct generated *generated, uint64_t seed, char *why,
                                size_t size)
{
    static char text[TEXT];
    coda_module *module;
    coda_error error = {0};
    struct trial trial;
    struct evaluation evaluation;
    const char *reason = "";
    generated_text(generated, text, sizeof text);
    if (coda_module_parse(text, strlen(text), "random", &module, &error) != CODA_OK) {
        snprintf(why, size, "%s", error.message);
        return FAILS;
    }
    const coda_program *program = coda_module_program(module, 0);
    coda_dims dims = own_dims(generated, program);
    struct layout layout = {GUARD_END, 0};
    enum outcome outcome = FAILS;
    if (trial_new(&trial, program, &dims, seed, layout, &error) != CODA_OK) {
        snprintf(why, size, "%s", error.message);
    } else if (!evaluate_trial(&trial, &evaluation, &reason)) {
        snprintf(why, size, "%s", reason);
        trial_free(&trial);
    } else {
        coda_options exact = {.size = sizeof exact, .exact = 1};
        outcome = run_schedule(device, &trial, &exact, &evaluation, why, size);
        evaluation_free(&evaluation);
        trial_free(&trial);
    }
    coda_module_free(module);
    return outcome;
}

int main(int argc, char **argv)
{
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1, count = argc > 2 ? strtoull(argv[2], NULL, 10) : 40;
    static char text[TEXT], why[4200];
    int outcomes[3] = {0};
    coda_device *device;
    coda_error error = {0};
    if (open_gpu(&device, &error) != CODA_OK) {
        printf("skipped: %s\n", error.message);
        return 77;
    }
    for (uint64_t seed = first; seed < first + count; seed++) {
        struct generated generated;
        generate(&generated, seed, NULL);
        enum outcome outcome = try_program(device, &generated, seed, why, sizeof why);
        outcomes[outcome]++;
        if (outcome == FAILS) {
            generated_text(&generated, text, sizeof text);
            printf("FAIL seed %llu: %.600s\n%s\n", (unsigned long long)seed, why, text);
        } else if (outcome == UNSUPPORTED) {
            printf("note seed %llu: %.300s\n", (unsigned long long)seed, why);
        }
        fflush(stdout);
    }
    printf("%s random programs %llu..%llu: %d agree, %d unsupported, %d fail\n", outcomes[FAILS] ? "FAIL" : "ok",
           (unsigned long long)first, (unsigned long long)(first + count - 1), outcomes[AGREES], outcomes[UNSUPPORTED],
           outcomes[FAILS]);
    coda_device_close(device);
    return outcomes[FAILS] != 0;
}
