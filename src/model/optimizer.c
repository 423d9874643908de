/* AdamW with the norm of all gradients clipped, and the rate's schedule. */
#include "model/trainer.h"
#include <math.h>

/* Rises linearly from the first step, then a half cosine down to minimum_rate of the highest. */
double learning_rate_at(const coda_train_config *config, int64_t step)
{
    if (step < config->warmup)
        return config->learning_rate * (double)(step + 1) / (double)config->warmup;
    int64_t fall = config->steps - config->warmup;
    double part = fall > 1 ? fmin(1, (double)(step - config->warmup) / (double)(fall - 1)) : 1;
    double share = config->minimum_rate + (1 - config->minimum_rate) * 0.5 * (1 + cos(3.14159265358979323846 * part));
    return config->learning_rate * share;
}

/* Programs take matrices: a vector is one row. */
static coda_tensor flat(const struct weight *weight, const void *data, coda_dtype dtype)
{
    return matrix(data, dtype, weight->rows, weight->columns);
}

coda_status gradient_norm(coda_trainer *trainer, double scale, double *norm, int *trouble, coda_error *error)
{
    coda_llama *m = trainer->llama;
    double sum = 0;
    *trouble = -1;
    for (int i = m->weight_count - 1; i >= 0; i--) { /* the order of the backward, but for the head */
        const struct weight *weight = &m->weight[i];
        const coda_tensor operands[] = {flat(weight, trainer->gradient[i], CODA_F32),
                                        partials(trainer->norm_partials, weight->rows, weight->columns)};
        coda_status status = coda_kernel_launch(m->kernels.kernel[SQUARE_SUM], operands, 2, NULL, NULL, error);
        if (status != CODA_OK)
            return status;
        double part = 0;
        for (int64_t j = 0; j < weight->rows * ceiling(weight->columns, RUN); j++)
            part += trainer->norm_partials[j];
        if (!isfinite(part) && *trouble < 0)
            *trouble = i;
        sum += part;
    }
    *norm = sqrt(sum) / scale;
    return CODA_OK;
}

coda_status optimizer_step(coda_trainer *trainer, double scale, coda_step_report *report, coda_error *error)
{
    coda_llama *m = trainer->llama;
    const coda_train_config *c = &trainer->config;
    int trouble;
    coda_status status = gradient_norm(trainer, scale, &report->gradient_norm, &trouble, error);
    if (status != CODA_OK)
        return status;
    if (trouble >= 0)
        return model_fail(
            error, CODA_INVALID,
            "step %lld: a gradient is not finite; it began in that of %s. The weights are those of the step "
            "before: lower learning_rate, raise warmup, or use dtype f32",
            (long long)trainer->step + 1, m->weight[trouble].name);
    double clip = c->clip > 0 && report->gradient_norm > c->clip ? c->clip / report->gradient_norm : 1;
    double steps = (double)trainer->step + 1;
    report->learning_rate = learning_rate_at(c, trainer->step);
    for (int i = 0; i < m->weight_count && status == CODA_OK; i++) {
        const struct weight *weight = &m->weight[i];
        const double parameters[] = {clip / scale,
                                     report->learning_rate,
                                     c->beta1,
                                     c->beta2,
                                     c->epsilon,
                                     weight->rank == 2 ? c->weight_decay : 0,
                                     1 / (1 - pow(c->beta1, steps)),
                                     1 / (1 - pow(c->beta2, steps))};
        coda_tensor master = flat(weight, trainer->master[i], CODA_F32),
                    mean = flat(weight, trainer->mean[i], CODA_F32);
        coda_tensor square = flat(weight, trainer->square[i], CODA_F32);
        const coda_tensor operands[] = {
            flat(weight, trainer->gradient[i], CODA_F32), master, mean, square, mean, square, master,
            flat(weight, weight->data, m->dtype)};
        status = coda_kernel_launch(m->kernels.kernel[ADAMW], operands, 8, parameters, NULL, error);
    }
    return status;
}
