/* Every block of blocks/, forward and backward as derived programs on the CPU device, learns to map its inputs to given
 * outputs: gradients that are wrong, or programs that a device does not run, would not. */
#include "kit/random.h"
#include "kit/texts.h"
#include "lang/lang.h"
#include "rewrite/rewrite.h"
#include "runtime/device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { STEPS = 300, MAX_TENSORS = 256, MAX_PROGRAMS = 64 };

static const struct {
    const char *axis;
    int64_t size;
} sizes[] = {{"M", 70}, {"A", 16}, {"D", 16}, {"F", 24}, {"Q", 16},
             {"E", 8},  {"H", 8},  {"P", 40}, {"V", 30}, {"N", 48}};

struct tensor {
    char name[256];
    coda_tensor view;
    bool data, written; /* no weight; an out of some program */
    float *velocity;
};

struct training {
    struct graph *block;
    struct unit programs;
    coda_device *device;
    coda_program program[MAX_PROGRAMS];
    coda_kernel *kernel[MAX_PROGRAMS];
    struct tensor tensor[MAX_TENSORS];
    int tensor_count;
    float *target[MAX_OPERANDS]; /* one an out of the block */
};

static void check(coda_status status, const coda_error *error, const char *what)
{
    if (status != CODA_OK)
        fail_msg("%s: %s", what, error->message);
}

static struct tensor *find(struct training *t, const char *name)
{
    for (int i = 0; i < t->tensor_count; i++)
        if (strcmp(t->tensor[i].name, name) == 0)
            return &t->tensor[i];
    return NULL;
}

static int64_t count_of(const struct tensor *tensor)
{
    return tensor->view.shape[0] * (tensor->view.rank == 2 ? tensor->view.shape[1] : 1);
}

/* ---- setting up */

static void size_axes(const struct graph *graph, int64_t *size)
{
    struct complaint why = {0};
    memset(size, 0, MAX_AXES * sizeof *size);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int axis = graph_find_axis(graph, sizes[i].axis);
        if (axis >= 0 && graph->axis[axis].term_count == 0)
            size[axis] = sizes[i].size;
    }
    if (sizes_complete(graph, size, &why) != CODA_OK)
        fail_msg("%s", why.reason);
}

static void add_tensor(struct training *t, const struct graph *graph, int o, const int64_t *size)
{
    const struct operand *operand = &graph->operand[o];
    if (find(t, operand->name) != NULL)
        return;
    assert_true(t->tensor_count < MAX_TENSORS);
    struct tensor *tensor = &t->tensor[t->tensor_count++];
    snprintf(tensor->name, sizeof tensor->name, "%s", operand->name);
    tensor->view.dtype = operand->dtype;
    tensor->view.rank = operand->shape.rank;
    for (int d = 0; d < operand->shape.rank; d++)
        tensor->view.shape[d] = dim_size(&operand->shape.dim[d], size);
    tensor->view.data = calloc((size_t)count_of(tensor), 4);
    tensor->velocity = calloc((size_t)count_of(tensor), sizeof(float));
    assert_true(tensor->view.data != NULL && tensor->velocity != NULL);
}

static void fill(struct training *t, struct tensor *tensor, struct random *random)
{
    float *values = tensor->view.data;
    int64_t count = count_of(tensor), columns = tensor->view.shape[tensor->view.rank - 1];
    bool table = strcmp(tensor->name, "table") == 0, weight = strncmp(tensor->name, "W", 1) == 0;
    bool scale = tensor->view.rank == 1 && (tensor->name[0] == 'g' || tensor->name[0] == 'a' || tensor->name[0] == 'c');
    tensor->data = strchr("xyst", tensor->name[0]) != NULL || table || strcmp(tensor->name, "pos") == 0;
    for (int64_t i = 0; i < count; i++) {
        if (tensor->view.dtype == CODA_I32)
            ((int32_t *)tensor->view.data)[i] = (int32_t)random_below(random, 30);
        else if (table)
            values[i] = (float)(i % columns < columns / 2
                                    ? cos((double)(i / columns) * 0.3 * (double)(i % columns))
                                    : sin((double)(i / columns) * 0.3 * (double)(i % columns - columns / 2)));
        else
            values[i] = (float)((scale ? 1 : 0) + random_normal(random) * (weight         ? 1 / sqrt((double)columns)
                                                                           : scale        ? 0.1
                                                                           : tensor->data ? 1
                                                                                          : 0.1));
    }
    (void)t;
}

static void open_kernels(struct training *t)
{
    coda_error error = {0};
    for (int i = 0; i < t->programs.count; i++) {
        coda_dims dims = {0};
        const struct graph *graph = t->programs.graph[i];
        int64_t size[MAX_AXES];
        size_axes(graph, size);
        for (int a = 0; a < graph->axis_count; a++)
            if (graph->axis[a].term_count == 0) {
                dims.item[dims.count].axis = graph->axis[a].name;
                dims.item[dims.count++].size = size[a];
            }
        t->program[i].graph = t->programs.graph[i];
        check(coda_kernel_create(t->device, &t->program[i], &dims, NULL, &t->kernel[i], &error), &error, graph->name);
        for (int o = 0; o < graph->operand_count; o++) {
            add_tensor(t, graph, o, size);
            find(t, graph->operand[o].name)->written |= graph->operand[o].role != CODA_IN;
        }
    }
}

static void open_training(struct training *t, const char *name)
{
    struct unit unit = {0};
    coda_rewrite_options options = {.backward = 1, .allow_passes = 1};
    coda_error error = {0};
    struct random random = {17};
    int64_t size[MAX_AXES];
    char *text = read_block(name);
    memset(t, 0, sizeof *t);
    check(parse(text, strlen(text), name, &unit, &error), &error, name);
    t->block = graph_retype(unit.graph[0], CODA_BF16, CODA_F32);
    assert_non_null(t->block);
    unit_free(&unit);
    check(rewrite_block(t->block, &options, &t->programs, NULL, &error), &error, name);
    assert_true(t->programs.count <= MAX_PROGRAMS);
    check(coda_device_open("cpu", &t->device, &error), &error, "cpu");
    check(coda_device_set_threads(t->device, 1, &error), &error, "cpu"); /* small matrices */
    size_axes(t->block, size);
    for (int o = 0; o < t->block->operand_count; o++) {
        add_tensor(t, t->block, o, size);
        if (t->block->operand[o].role == CODA_IN)
            fill(t, find(t, t->block->operand[o].name), &random);
    }
    open_kernels(t);
}

static void close_training(struct training *t)
{
    for (int i = 0; i < t->programs.count; i++)
        coda_kernel_free(t->kernel[i]);
    for (int i = 0; i < t->tensor_count; i++) {
        free(t->tensor[i].view.data);
        free(t->tensor[i].velocity);
    }
    for (int o = 0; o < MAX_OPERANDS; o++)
        free(t->target[o]);
    coda_device_close(t->device);
    graph_free(t->block);
    unit_free(&t->programs);
}

/* ---- one step */

static void launch(struct training *t, int i)
{
    const struct graph *graph = t->programs.graph[i];
    coda_tensor operand[MAX_OPERANDS];
    coda_error error = {0};
    for (int o = 0; o < graph->operand_count; o++) {
        struct tensor *tensor = find(t, graph->operand[o].name);
        operand[o] = tensor->view;
        if (graph->operand[o].role == CODA_ACCUMULATE)
            memset(tensor->view.data, 0, (size_t)count_of(tensor) * 4);
    }
    check(coda_kernel_launch(t->kernel[i], operand, graph->operand_count, NULL, NULL, &error), &error, graph->name);
}

/* Half the mean square between outs and targets (the out itself, where it is a loss), and its gradient into d<out>. */
static double set_gradients(struct training *t)
{
    double loss = 0;
    for (int o = 0; o < t->block->operand_count; o++) {
        char name[300];
        if (t->block->operand[o].role == CODA_IN)
            continue;
        struct tensor *out = find(t, t->block->operand[o].name);
        snprintf(name, sizeof name, "d%s", out->name);
        struct tensor *d = find(t, name);
        int64_t count = count_of(out);
        bool is_loss = out->view.rank == 1;
        for (int64_t i = 0; i < count; i++) {
            double value = ((float *)out->view.data)[i], apart = is_loss ? 1 : value - t->target[o][i];
            loss += (is_loss ? value : apart * apart / 2) / (double)count;
            ((float *)d->view.data)[i] = (float)(apart / (double)count);
        }
    }
    return loss;
}

/* The tensor that holds the weight's gradient; of a stack, *row is where its rows begin. NULL: none. */
static struct tensor *find_gradient(struct training *t, const struct tensor *weight, int64_t *row)
{
    char name[300];
    *row = 0;
    snprintf(name, sizeof name, "d%s", weight->name);
    struct tensor *d = find(t, name);
    if (d != NULL || weight->name[0] != 'W' || strchr("qkv", weight->name[1]) == NULL)
        return d;
    *row = weight->name[1] == 'q' ? 0 : weight->name[1] == 'k' ? 16 : 24;
    return find(t, "dWq_Wk_Wv");
}

/* Element i of the gradient; runs are added up, and a repeated weight has a gradient a column. */
static double gradient(const struct tensor *weight, const struct tensor *d, int64_t row, int64_t i)
{
    const float *values = d->view.data;
    if (d->view.rank == weight->view.rank)
        return values[row * weight->view.shape[weight->view.rank - 1] + i];
    double sum = 0;
    for (int64_t r = 0; r < d->view.shape[0]; r++)
        for (int64_t c = i; c < d->view.shape[1]; c += weight->view.shape[0])
            sum += values[r * d->view.shape[1] + c];
    return sum;
}

static void descend(struct training *t, double rate)
{
    for (int k = 0; k < t->tensor_count; k++) {
        struct tensor *weight = &t->tensor[k];
        int o = graph_find_operand(t->block, weight->name);
        if (o < 0 || t->block->operand[o].role != CODA_IN || weight->data || weight->view.dtype != CODA_F32)
            continue;
        int64_t row;
        const struct tensor *d = find_gradient(t, weight, &row);
        assert_non_null(d);
        for (int64_t i = 0; i < count_of(weight); i++) {
            weight->velocity[i] = (float)(0.9 * weight->velocity[i] + gradient(weight, d, row, i));
            ((float *)weight->view.data)[i] -= (float)rate * weight->velocity[i];
        }
    }
}

/* Programs whose results only the backward reads run after the outs are known. */
static double step(struct training *t, double rate)
{
    int i = 0;
    for (; i < t->programs.count && strstr(t->programs.graph[i]->name, "_bwd_") == NULL; i++)
        launch(t, i);
    double loss = set_gradients(t);
    for (; i < t->programs.count && rate > 0; i++)
        launch(t, i);
    if (rate > 0)
        descend(t, rate);
    return loss;
}

/* ---- the test */

/* Targets: what other weights make of the same inputs, so that they can be reached. */
static void make_targets(struct training *t)
{
    struct random random = {99};
    float *kept[MAX_TENSORS] = {0};
    for (int k = 0; k < t->tensor_count; k++) {
        struct tensor *tensor = &t->tensor[k];
        int o = graph_find_operand(t->block, tensor->name);
        if (o < 0 || t->block->operand[o].role != CODA_IN || tensor->data || tensor->view.dtype != CODA_F32)
            continue;
        kept[k] = tensor->view.data;
        tensor->view.data = calloc((size_t)count_of(tensor), 4);
        fill(t, tensor, &random);
    }
    for (int i = 0; i < t->programs.count && strstr(t->programs.graph[i]->name, "_bwd_") == NULL; i++)
        launch(t, i);
    for (int o = 0; o < t->block->operand_count; o++)
        if (t->block->operand[o].role != CODA_IN) {
            struct tensor *out = find(t, t->block->operand[o].name);
            t->target[o] = malloc((size_t)count_of(out) * 4);
            memcpy(t->target[o], out->view.data, (size_t)count_of(out) * 4);
        }
    for (int k = 0; k < t->tensor_count; k++)
        if (kept[k] != NULL) {
            free(t->tensor[k].view.data);
            t->tensor[k].view.data = kept[k];
        }
}

static void every_block_learns_on_the_cpu(void **state)
{
    static const char *const name[] = {"llama3",     "llama3_head", "gpt2",  "qwen3",          "gemma",
                                       "gemma_head", "parallel",    "relu2", "scaled_residual"};
    (void)state;
    for (size_t b = 0; b < sizeof name / sizeof *name; b++) {
        static struct training t;
        double first = 0, last = 0;
        open_training(&t, name[b]);
        make_targets(&t);
        for (int i = 0; i < STEPS; i++) {
            last = step(&t, 0.2);
            first = i == 0 ? last : first;
        }
        print_message("%s: %g -> %g\n", name[b], first, last);
        if (!(last < first / 3))
            fail_msg("%s: the loss went from %g to %g", name[b], first, last);
        close_training(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_learns_on_the_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
