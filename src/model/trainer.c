#include "model/trainer.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The gradients of a layer's queries, keys and values are one matrix, rows end to end. */
static bool is_layer_tensor(const coda_llama *llama, int index, enum layer_tensor tensor)
{
    return index > EMBEDDING_INDEX && index < final_norm_index(llama) && (index - 1) % LAYER_TENSORS == (int)tensor;
}

static double gradient_bytes(const coda_llama *m, int index)
{
    double count = (double)elements(&m->weight[index]);
    if (is_layer_tensor(m, index, QUERY))
        count += (double)elements(&m->weight[index + 1]) + (double)elements(&m->weight[index + 2]);
    return count * sizeof(float);
}

static coda_status allocate(coda_trainer *t, coda_error *error)
{
    const coda_llama *m = t->llama;
    float ***list[] = {&t->gradient, &t->master, &t->mean, &t->square};
    int64_t largest = 0;
    t->memory.device = m->device;
    for (int l = 0; l < 4; l++) {
        *list[l] = calloc((size_t)m->weight_count, sizeof **list[l]);
        if (!*list[l])
            return model_no_memory(error, "the optimizer's lists", (size_t)m->weight_count * sizeof **list[l]);
    }
    for (int i = 0; i < m->weight_count; i++) {
        double bytes = (double)elements(&m->weight[i]) * sizeof(float);
        largest = maximum(largest, m->weight[i].rows * ceiling(m->weight[i].columns, RUN));
        for (int l = 0; l < 4; l++) {
            if (l == 0 && (is_layer_tensor(m, i, KEY) || is_layer_tensor(m, i, VALUE))) {
                t->gradient[i] = t->gradient[i - 1] + elements(&m->weight[i - 1]);
                continue;
            }
            coda_status status = memory_take(&t->memory, l == 0 ? gradient_bytes(m, i) : bytes, &(*list[l])[i], error);
            if (status != CODA_OK)
                return status;
        }
        coda_convert(t->master[i], CODA_F32, m->weight[i].data, m->dtype, elements(&m->weight[i]));
    }
    return memory_take(&t->memory, (double)largest * sizeof(float), &t->norm_partials, error);
}

coda_status coda_trainer_create(coda_llama *llama, const coda_train_config *config, coda_trainer **trainer,
                                coda_error *error)
{
    coda_status status;
    if (!llama || !config)
        return model_fail(error, CODA_INVALID, "a trainer needs a model and a configuration");
    coda_trainer *t = calloc(1, sizeof *t);
    if (!t)
        return model_no_memory(error, "a trainer", sizeof *t);
    t->llama = llama;
    t->config = *config;
    t->config.model = llama->config;
    status = coda_train_config_check(&t->config, error);
    if (status == CODA_OK && t->config.dtype != llama->dtype)
        status = model_fail(error, CODA_INVALID, "the configuration's dtype is %s, but the model's is %s",
                            coda_dtype_name(t->config.dtype), coda_dtype_name(llama->dtype));
    if (status == CODA_OK && t->config.data[0]) {
        status = data_open(&t->data, t->config.data, t->config.data_format, llama->config.vocab_size,
                           t->config.sequence, error);
        t->has_data = status == CODA_OK;
    }
    if (status == CODA_OK)
        status = workspace_open(&t->workspace, llama, t->config.batch * t->config.sequence, t->config.path,
                                FOR_TRAINING, error);
    if (status == CODA_OK)
        status = allocate(t, error);
    if (status != CODA_OK) {
        coda_trainer_free(t);
        return status;
    }
    t->model_bytes_before = kernels_bytes(&llama->kernels, false);
    t->optimizer_bytes_before = kernels_bytes(&llama->kernels, true);
    *trainer = t;
    return CODA_OK;
}

void coda_trainer_free(coda_trainer *trainer)
{
    if (!trainer)
        return;
    if (trainer->has_data)
        data_close(&trainer->data);
    workspace_close(&trainer->workspace);
    memory_close(&trainer->memory);
    free(trainer->gradient);
    free(trainer->master);
    free(trainer->mean);
    free(trainer->square);
    free(trainer);
}

const coda_train_config *coda_trainer_configuration(const coda_trainer *trainer)
{
    return &trainer->config;
}

int64_t coda_trainer_steps_done(const coda_trainer *trainer)
{
    return trainer->step;
}

coda_status coda_trainer_gradient(const coda_trainer *trainer, int index, coda_tensor *gradient)
{
    if (index < 0 || index >= trainer->llama->weight_count)
        return CODA_INVALID;
    *gradient = weight_operand(trainer->llama, index);
    gradient->data = trainer->gradient[index];
    gradient->dtype = CODA_F32;
    return CODA_OK;
}

void coda_trainer_traffic(const coda_trainer *trainer, coda_traffic *traffic)
{
    const struct kernels *kernels = &trainer->llama->kernels;
    traffic->model = kernels_bytes(kernels, false) - trainer->model_bytes_before + trainer->workspace.plain_bytes +
                     parts_bytes(&trainer->workspace.fused.parts);
    traffic->optimizer = kernels_bytes(kernels, true) - trainer->optimizer_bytes_before;
    traffic->attention = trainer->workspace.attention.bytes_moved;
}

static coda_status check_batch(const coda_trainer *t, const coda_batch *b, coda_error *error)
{
    int64_t vocabulary = t->llama->config.vocab_size;
    if (!b || !b->tokens || !b->targets || b->sequences < 1 || b->length < 1)
        return model_fail(error, CODA_INVALID, "a batch needs tokens, targets, and sizes of at least 1");
    if (b->length > t->llama->config.max_position_embeddings || b->sequences > t->workspace.rows / b->length)
        return model_fail(error, CODA_INVALID,
                          "a batch of %lld x %lld tokens; this trainer has room for %lld in all, and %lld a sequence",
                          (long long)b->sequences, (long long)b->length, (long long)t->workspace.rows,
                          (long long)t->llama->config.max_position_embeddings);
    for (int64_t i = 0; i < b->sequences * b->length; i++) {
        if (b->tokens[i] < 0 || b->tokens[i] >= vocabulary)
            return model_fail(error, CODA_INVALID, "token %lld of the batch is %d; expected 0 to %lld", (long long)i,
                              (int)b->tokens[i], (long long)vocabulary - 1);
        if (b->targets[i] != IGNORED && (b->targets[i] < 0 || b->targets[i] >= vocabulary))
            return model_fail(error, CODA_INVALID, "target %lld of the batch is %d; expected 0 to %lld, or -100",
                              (long long)i, (int)b->targets[i], (long long)vocabulary - 1);
    }
    return CODA_OK;
}

/* The sum of the live targets' weights. */
static double live_weight(const coda_batch *b)
{
    double sum = 0;
    for (int64_t i = 0; i < b->sequences * b->length; i++)
        if (b->targets[i] != IGNORED)
            sum += b->weights ? b->weights[i] : 1;
    return sum;
}

static void fill_batch(struct workspace *w, const coda_batch *b, float scale)
{
    int64_t rows = b->sequences * b->length;
    for (int64_t i = 0; i < rows; i++) {
        w->tokens[i] = b->tokens[i];
        w->targets[i] = b->targets[i];
        w->positions[i] = (int32_t)(i % b->length);
        w->weights[i] = scale * (b->weights ? b->weights[i] : 1);
    }
}

coda_status trainer_pass(coda_trainer *trainer, const coda_batch *batch, double divisor, float scale, bool backward,
                         double *loss, coda_error *error)
{
    struct workspace *w = &trainer->workspace;
    bool fused = trainer->config.path == CODA_FUSED;
    struct pass pass = {
        .llama = trainer->llama,
        .workspace = w,
        .sequences = batch->sequences,
        .length = batch->length,
        .gradient = backward ? trainer->gradient : NULL,
        .divisor = divisor > 0 ? divisor : 1,
        .error = error,
    };
    fill_batch(w, batch, scale);
    (fused ? fused_forward : unfused_forward)(&pass);
    (fused ? fused_head : unfused_head)(&pass);
    if (pass.status != CODA_OK)
        return pass.status;
    double sum = 0;
    for (int64_t i = 0; i < pass_rows(&pass); i++)
        sum += w->loss[i];
    if (!isfinite(sum)) {
        char name[NAME_SIZE + 64];
        bool known = pass_find_trouble(&pass, name, sizeof name);
        return model_fail(
            error, CODA_INVALID,
            "step %lld: the loss is not finite; it began in %s. The weights are those of the step before: "
            "lower learning_rate, raise warmup, or use dtype f32",
            (long long)trainer->step + 1, known ? name : "the sum over the batch");
    }
    *loss += sum / scale;
    if (backward)
        (fused ? fused_backward : unfused_backward)(&pass);
    return pass.status;
}

static void clear_gradients(coda_trainer *t)
{
    for (int i = 0; i < t->llama->weight_count; i++)
        memset(t->gradient[i], 0, (size_t)elements(&t->llama->weight[i]) * sizeof(float));
}

/* 1, or for f16 the power of two that brings gradients near those of a sum over the tokens. */
static float loss_scale(const coda_trainer *t, double divisor)
{
    return t->llama->dtype == CODA_F16 && divisor > 1 ? exp2f(floorf(log2f((float)divisor))) : 1;
}

coda_status coda_trainer_loss(coda_trainer *trainer, const coda_batch *batch, double *loss, coda_error *error)
{
    coda_status status = check_batch(trainer, batch, error);
    double sum = 0;
    if (status == CODA_OK)
        status = trainer_pass(trainer, batch, live_weight(batch), 1, false, &sum, error);
    if (status == CODA_OK)
        *loss = sum;
    return status;
}

coda_status coda_trainer_backward(coda_trainer *trainer, const coda_batch *batch, double *loss, coda_error *error)
{
    coda_status status = check_batch(trainer, batch, error);
    double sum = 0;
    if (status != CODA_OK)
        return status;
    float scale = loss_scale(trainer, live_weight(batch));
    clear_gradients(trainer);
    status = trainer_pass(trainer, batch, live_weight(batch), scale, true, &sum, error);
    for (int i = 0; i < trainer->llama->weight_count && status == CODA_OK && scale != 1; i++)
        for (int64_t j = 0; j < elements(&trainer->llama->weight[i]); j++)
            trainer->gradient[i][j] /= scale;
    if (status == CODA_OK)
        *loss = sum;
    return status;
}

/* The samples of micro-batch `index` of a step: numbered in order of use, so that they depend on the step alone. */
static coda_status sample(const coda_trainer *t, int64_t index, int32_t *tokens, int32_t *targets, coda_error *error)
{
    int64_t length = t->config.sequence;
    int64_t first = (t->step * t->config.accumulation + index) * t->config.batch;
    for (int64_t i = 0; i < t->config.batch; i++) {
        coda_status status =
            data_sample(&t->data, t->config.seed, first + i, length, tokens + i * length, targets + i * length, error);
        if (status != CODA_OK)
            return status;
    }
    return CODA_OK;
}

coda_status coda_trainer_step(coda_trainer *trainer, coda_step_report *report, coda_error *error)
{
    coda_trainer *t = trainer;
    int64_t rows = t->config.batch * t->config.sequence;
    if (!t->has_data)
        return model_fail(error, CODA_INVALID, "this trainer has no data: set `data` in its configuration");
    int32_t *tokens = calloc((size_t)rows * 2, sizeof *tokens);
    if (!tokens)
        return model_no_memory(error, "a batch", (size_t)rows * 2 * sizeof *tokens);
    coda_batch batch = {t->config.batch, t->config.sequence, tokens, tokens + rows, NULL};
    double divisor = (double)rows * (double)t->config.accumulation;
    float scale = loss_scale(t, divisor);
    coda_step_report done = {.tokens = rows * t->config.accumulation};
    coda_status status = CODA_OK;
    clear_gradients(t);
    for (int64_t i = 0; i < t->config.accumulation && status == CODA_OK; i++) {
        status = sample(t, i, tokens, tokens + rows, error);
        if (status == CODA_OK)
            status = trainer_pass(t, &batch, divisor, scale, true, &done.loss, error);
    }
    if (status == CODA_OK)
        status = optimizer_step(t, scale, &done, error);
    if (status == CODA_OK) {
        done.step = ++t->step;
        if (report)
            *report = done;
    }
    free(tokens);
    return status;
}
