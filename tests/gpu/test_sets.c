/* Several sets of operands in one launch: the bits of one set after the other, whatever tiles share a wave. */
#include "cuda/kernel.h"
#include "image.h"
#include "sizes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 8 };

static int failures, joined_launches, launches;

struct sets {
    int count, operands;
    struct trial trial[MOST];
    struct image image[MOST];
    coda_tensor tensor[MOST * MAX_OPERANDS];
};

struct size {
    int64_t m, n, k;
};

/* Ragged and whole tiles, deep and shallow, narrow and wide; columns in eights, so that the copy engine reaches rows. */
static const struct list {
    int count;
    struct size size[MOST];
} lists[] = {
    {2, {{264, 520, 192}, {520, 264, 192}}},
    {3, {{512, 1408, 256}, {1408, 512, 256}, {1408, 512, 256}}},
    {3, {{1400, 8, 72}, {8, 1400, 64}, {136, 136, 520}}},
    {5, {{8, 8, 8}, {256, 256, 64}, {264, 264, 200}, {1016, 256, 128}, {72, 760, 328}}},
    {8,
     {{256, 256, 64},
      {256, 256, 128},
      {256, 264, 64},
      {128, 256, 64},
      {256, 128, 64},
      {512, 512, 72},
      {8, 512, 64},
      {512, 8, 64}}},
};

static void sets_free(struct sets *s)
{
    for (int i = 0; i < s->count; i++) {
        image_free(&s->image[i]);
        trial_free(&s->trial[i]);
    }
}

static bool sets_new(struct sets *s, coda_device *device, const coda_program *program, const struct list *list,
                     enum placing placing, coda_error *error)
{
    memset(s, 0, sizeof *s);
    for (int i = 0; i < list->count; i++) {
        const struct size *size = &list->size[i];
        coda_dims dims = {3, {{"M", size->m}, {"N", size->n}, {"K", size->k}}};
        struct layout layout = {GUARD_END, 0};
        s->count = i + 1;
        if (trial_new(&s->trial[i], program, &dims, 70 + (uint64_t)i, layout, error) != CODA_OK ||
            image_new(&s->image[i], device, &s->trial[i], placing, error) != CODA_OK)
            return false;
        s->operands = s->trial[i].count;
        memcpy(s->tensor + i * s->operands, s->image[i].tensor, (size_t)s->operands * sizeof *s->tensor);
    }
    return true;
}

/* Poisons outs, launches all sets in one call or each by itself, and takes back what they hold. */
static bool run(struct sets *s, coda_kernel *kernel, bool together, coda_error *error)
{
    coda_status status = CODA_OK;
    for (int i = 0; i < s->count; i++) {
        trial_reset(&s->trial[i], POISON_BYTES);
        if (image_send(&s->image[i], &s->trial[i], error) != CODA_OK)
            return false;
    }
    if (together)
        status = coda_kernel_launch_sets(kernel, s->tensor, s->operands, s->count, NULL, NULL, error);
    for (int i = 0; i < s->count && !together && status == CODA_OK; i++)
        status = coda_kernel_launch(kernel, s->image[i].tensor, s->operands, NULL, NULL, error);
    if (status != CODA_OK || coda_synchronize(kernel->device, NULL, error) != CODA_OK)
        return false;
    for (int i = 0; i < s->count; i++) {
        const char *beside = image_receive(&s->image[i], &s->trial[i], error);
        if (beside) {
            snprintf(error->message, sizeof error->message, "set %d: written beside %s", i, beside);
            return false;
        }
    }
    return true;
}

/* Dense copies of what all outs hold, end to end. */
static unsigned char *take_outs(const struct sets *s, size_t *size)
{
    unsigned char *all = NULL;
    *size = 0;
    for (int i = 0; i < s->count; i++)
        for (int o = 0; o < s->operands; o++) {
            const coda_tensor *t = &s->trial[i].tensor[o];
            size_t bytes = (size_t)(tensor_rows(t) * tensor_columns(t)) * coda_dtype_size(t->dtype);
            if (s->trial[i].graph->operand[o].role == CODA_IN)
                continue;
            all = realloc(all, *size + bytes);
            tensor_dense(t, all + *size);
            *size += bytes;
        }
    return all;
}

static bool was_joined(const coda_kernel *kernel)
{
    const struct cuda_kernel *k = kernel->state;
    for (int i = 0; i < RECENT_LAUNCHES; i++)
        if (k->joined && k->recent_joined.entry[i].compiled)
            return true;
    return false;
}

static void compare(coda_device *device, const char *program, const char *schedule, const struct list *list,
                    enum placing placing)
{
    const coda_module *module;
    struct sets s;
    coda_error error = {0};
    coda_kernel *kernel = NULL;
    coda_options options = {.size = sizeof options, .schedule = schedule, .sets = MOST};
    size_t size = 0, other = 0;
    unsigned char *apart = NULL, *together = NULL;
    coda_standard_module(&module, &error);
    const coda_program *p = coda_module_find(module, program);
    bool good = sets_new(&s, device, p, list, placing, &error) &&
                coda_kernel_create(device, p, NULL, &options, &kernel, &error) == CODA_OK;
    if (good && (good = run(&s, kernel, false, &error)))
        apart = take_outs(&s, &size);
    for (int again = 0; again < 2 && good; again++) {
        free(together);
        if ((good = run(&s, kernel, true, &error)))
            together = take_outs(&s, &other);
        good = good && size == other && !memcmp(apart, together, size);
    }
    launches++;
    if (kernel)
        joined_launches += was_joined(kernel);
    if (!good) {
        failures++;
        printf("FAIL %s %s, list %d, placing %d, %d multiprocessors: %s\n", program, schedule ? schedule : "",
               (int)(list - lists), (int)placing, ((struct gpu *)device->state)->multiprocessors,
               error.message[0] ? error.message : "other bits");
    }
    free(apart);
    free(together);
    coda_kernel_free(kernel);
    sets_free(&s);
}

int main(void)
{
    static const struct {
        const char *name, *schedule;
    } programs[] = {{"gemm_wgrad", NULL}, {"gemm", NULL}, {"gemm_dgrad", NULL}, {"gemm_residual_rms", "direct"}};
    static const int multiprocessors[] = {2, 6, 14, 48, 132};
    coda_device *device;
    coda_error error = {0};
    if (open_gpu(&device, &error) != CODA_OK) {
        printf("skipped: %s\n", error.message);
        return 77;
    }
    struct gpu *gpu = device->state;
    const int all = gpu->multiprocessors;
    const bool quick = getenv("CODA_TEST_QUICK") != NULL;
    for (size_t p = 0; p < (quick ? 1 : sizeof programs / sizeof *programs); p++)
        for (size_t m = quick; m < (quick ? 2 : sizeof multiprocessors / sizeof *multiprocessors); m++)
            for (size_t l = 0; l < sizeof lists / sizeof *lists; l++) {
                gpu->multiprocessors = multiprocessors[m] < all ? multiprocessors[m] : all;
                compare(device, programs[p].name, programs[p].schedule, &lists[l], PLACING_ALIGNED);
                if (m == 1 && !programs[p].schedule) /* rows that the copy engine cannot reach: one after the other */
                    compare(device, programs[p].name, programs[p].schedule, &lists[l], PLACING_ODD);
            }
    gpu->multiprocessors = all;
    bool hopper = gpu->capability == 90;
    if (hopper && joined_launches * 2 < launches) {
        failures++;
        printf("FAIL only %d of %d lists were joined\n", joined_launches, launches);
    }
    printf("%s %d lists of sets have the bits of single launches; %d were one launch\n", failures ? "FAIL" : "ok",
           launches, joined_launches);
    coda_device_close(device);
    return failures != 0;
}
