/* What a trainer holds. */
#ifndef CODA_MODEL_TRAINER_H
#define CODA_MODEL_TRAINER_H

#include "model/data.h"
#include "model/pass.h"

struct coda_trainer {
    coda_llama *llama;
    coda_train_config config;
    struct data data;
    bool has_data;
    int64_t step; /* steps done */
    struct workspace workspace;
    struct memory memory; /* of what follows, by weight, all f32 */
    float **gradient, **master, **mean, **square;
    float *norm_partials;          /* of square_sum: as many as the largest weight has */
    double optimizer_bytes_before; /* moved by other trainers of the model */
    double model_bytes_before;
};

/* Forward and, with gradients, backward of one batch; adds to the gradients and to *loss. The loss's rows are
 * multiplied by `scale`, a power of two, so that gradients of f16 do not vanish. */
coda_status trainer_pass(coda_trainer *trainer, const coda_batch *batch, double divisor, float scale, bool backward,
                         double *loss, coda_error *error);
/* Clips by the global norm and updates every weight. */
coda_status optimizer_step(coda_trainer *trainer, double scale, coda_step_report *report, coda_error *error);
double learning_rate_at(const coda_train_config *config, int64_t step);
/* The square of the gradients' norm; names a gradient that is not finite. */
coda_status gradient_norm(coda_trainer *trainer, double scale, double *norm, int *trouble, coda_error *error);

#endif
