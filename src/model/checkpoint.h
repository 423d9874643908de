/* Checkpoints: directories that appear complete or not at all. */
#ifndef CODA_MODEL_CHECKPOINT_H
#define CODA_MODEL_CHECKPOINT_H

#include "model/trainer.h"

/* Writes config.json and model.safetensors into an existing directory. */
coda_status write_model(const coda_llama *llama, const char *directory, coda_error *error);
/* Writes training.safetensors and training.json likewise. */
coda_status write_training(const coda_trainer *trainer, const char *directory, coda_error *error);

/* The step of a name "step-NNNNNNNN", or -1. */
int64_t checkpoint_step(const char *name);
/* Of the checkpoints of `parent` up to `step`, removes all but the newest `keep`. Later ones are of another run's. */
coda_status remove_old_checkpoints(const char *parent, int64_t step, int64_t keep, coda_error *error);

#endif
