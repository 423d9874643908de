/* The tensors of a checkpoint directory: those of model.safetensors, or where that is missing of the files that
 * model.safetensors.index.json names. */
#ifndef CODA_MODEL_WEIGHT_FILES_H
#define CODA_MODEL_WEIGHT_FILES_H

#include "model/safetensors.h"

struct weight_files {
    struct safetensors *file;
    int count;
};

coda_status weight_files_open(struct weight_files *files, const char *directory, coda_error *error);
void weight_files_close(struct weight_files *files);
/* The tensor and its file, or NULL. */
const struct safetensors_entry *weight_files_find(const struct weight_files *files, const char *name,
                                                  const struct safetensors **file);

#endif
