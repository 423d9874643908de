/* `when m` on the GPU: all of a launch or nothing, in every schedule; the bits of the program without a condition. */
#include "cuda/kernel.h"
#include "image.h"
#include "sizes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kit/conditions.h"

static int failures, launches;

struct run {
    coda_module *module;
    struct trial trial;
    struct image image;
    coda_kernel *kernel;
};

static bool run_new(struct run *r, coda_device *device, const char *text, const char *schedule, coda_error *error)
{
    coda_dims all = {5, {{"M", 200}, {"N", 520}, {"K", 136}, {"R", 30}, {"X", 517}}}, dims = {0};
    coda_options options = {.size = sizeof options, .schedule = schedule};
    struct layout layout = {GUARD_END, 0};
    memset(r, 0, sizeof *r);
    if (coda_module_parse(text, strlen(text), NULL, &r->module, error) != CODA_OK)
        return false;
    const coda_program *program = coda_module_program(r->module, 0);
    for (int i = 0; i < all.count; i++)
        if (graph_find_axis(program->graph, all.item[i].axis) >= 0)
            dims.item[dims.count++] = all.item[i];
    return trial_new(&r->trial, program, &dims, 9, layout, error) == CODA_OK &&
           image_new(&r->image, device, &r->trial, PLACING_ALIGNED, error) == CODA_OK &&
           coda_kernel_create(device, program, NULL, &options, &r->kernel, error) == CODA_OK;
}

static void run_free(struct run *r)
{
    coda_kernel_free(r->kernel);
    image_free(&r->image);
    trial_free(&r->trial);
    coda_module_free(r->module);
}

static size_t dense_bytes(const coda_tensor *t)
{
    return (size_t)(tensor_rows(t) * tensor_columns(t)) * coda_dtype_size(t->dtype);
}

/* Sends the operands with outs poisoned, launches if asked, and takes everything back. */
static bool run_once(struct run *r, bool launches_it, coda_error *error)
{
    trial_reset(&r->trial, POISON_BYTES);
    if (image_send(&r->image, &r->trial, error) != CODA_OK)
        return false;
    if (launches_it && coda_kernel_launch(r->kernel, r->image.tensor, r->image.count, NULL, NULL, error) != CODA_OK)
        return false;
    if (coda_synchronize(r->image.device, NULL, error) != CODA_OK)
        return false;
    const char *beside = image_receive(&r->image, &r->trial, error);
    if (beside)
        snprintf(error->message, sizeof error->message, "written beside %s", beside);
    return !beside;
}

static void set_condition(struct trial *trial, uint32_t first, uint32_t last)
{
    uint32_t *element = trial->initial[0];
    size_t count = dense_bytes(&trial->tensor[0]) / sizeof *element;
    memset(element, 0, count * sizeof *element);
    element[0] = first;
    element[count - 1] = count > 1 ? last : first;
}

static bool same_outs(const struct trial *with, const struct trial *without)
{
    bool same = true;
    for (int i = 1; i < with->count && same; i++) {
        size_t bytes = dense_bytes(&with->tensor[i]);
        unsigned char *found = malloc(bytes), *wanted = malloc(bytes);
        tensor_dense(&with->tensor[i], found);
        tensor_dense(&without->tensor[i - 1], wanted);
        same = !memcmp(found, wanted, bytes);
        free(found);
        free(wanted);
    }
    return same;
}

static void compare(coda_device *device, int body, const char *schedule, int condition)
{
    char text[512];
    coda_error error = {0};
    struct run with, without;
    conditional_text(text, sizeof text, conditional_bodies[body], NULL);
    bool good = run_new(&without, device, text, schedule, &error);
    conditional_text(text, sizeof text, conditional_bodies[body], conditions[condition].type);
    good = run_new(&with, device, text, schedule, &error) && good;
    for (int i = 1; i < with.trial.count && good; i++)
        memcpy(without.trial.initial[i - 1], with.trial.initial[i], dense_bytes(&with.trial.tensor[i]));
    if (good)
        set_condition(&with.trial, conditions[condition].first, conditions[condition].last);
    for (int again = 0; again < 2 && good; again++) /* the second time as a launch that is remembered */
        good = run_once(&without, conditions[condition].holds, &error) && run_once(&with, true, &error) &&
               same_outs(&with.trial, &without.trial);
    launches++;
    if (!good) {
        failures++;
        printf("FAIL condition %d, schedule %s, %s: %s\n", condition, schedule ? schedule : "", text,
               error.message[0] ? error.message : "other bits");
    }
    run_free(&with);
    run_free(&without);
}

int main(void)
{
    static const char *const schedules[] = {NULL, "portable", "direct", "warps"};
    coda_device *device;
    coda_error error = {0};
    if (open_gpu(&device, &error) != CODA_OK) {
        printf("skipped: %s\n", error.message);
        return 77;
    }
    const bool quick = getenv("CODA_TEST_QUICK") != NULL, hopper = ((struct gpu *)device->state)->capability == 90;
    for (int b = 0; b < CONDITIONAL_BODIES; b++)
        for (int s = 0; s < (b > 1 ? 1 : hopper ? 4 : 2); s++)
            for (int c = 0; c < (quick ? 3 : CONDITIONS); c++)
                if (!(b == 1 && s == 3)) /* an f32 tile is not for rounded accumulators */
                    compare(device, b, schedules[s], c);
    printf("%s %d conditions: a launch does all of its work or nothing\n", failures ? "FAIL" : "ok", launches);
    coda_device_close(device);
    return failures != 0;
}
