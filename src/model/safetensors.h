/* The safetensors format: 8 bytes of length, a JSON header, and the tensors' bytes end to end.
 * https://huggingface.co/docs/safetensors */
#ifndef CODA_MODEL_SAFETENSORS_H
#define CODA_MODEL_SAFETENSORS_H

#include "model/common.h"

enum { SAFETENSORS_RANK = 8, SAFETENSORS_LARGEST_HEADER = 100 << 20 };

struct safetensors_type {
    const char *name; /* "F32" */
    int64_t size;
    int dtype; /* the coda_dtype, or -1 for types that this library does not read */
};

struct safetensors_entry {
    const char *name;
    const struct safetensors_type *type;
    int rank;
    int64_t shape[SAFETENSORS_RANK];
    int64_t begin, end; /* bytes, from the start of the data */
};

struct safetensors_pair {
    const char *key, *value;
};

/* A checked header. */
struct safetensors {
    char path[CODA_PATH_SIZE + 64];
    int descriptor; /* -1: none */
    int64_t data_start, data_length;
    int64_t count, metadata_count;
    struct safetensors_entry *entry; /* in order of name */
    struct safetensors_pair *metadata;
    char *strings;
};

/* Checks the header of a file of `file_length` bytes of which the first `available` are at `bytes`, all of the header
 * among them: types, shapes, and that the tensors fill the data end to end, without a hole, an overlap or a name given
 * twice. */
coda_status safetensors_parse(struct safetensors *file, const char *path, const char *bytes, size_t available,
                              int64_t file_length, coda_error *error);
coda_status safetensors_open(struct safetensors *file, const char *path, coda_error *error);
void safetensors_close(struct safetensors *file);
const struct safetensors_entry *safetensors_find(const struct safetensors *file, const char *name); /* or NULL */
const char *safetensors_metadata(const struct safetensors *file, const char *key);                  /* or NULL */
/* Reads a floating-point tensor as `dtype`. */
coda_status safetensors_read(const struct safetensors *file, const struct safetensors_entry *entry, coda_dtype dtype,
                             void *to, coda_error *error);

/* A tensor to write. */
struct safetensors_tensor {
    char name[128];
    coda_dtype dtype; /* CODA_F32, CODA_BF16 or CODA_F16 */
    int rank;         /* 1 or 2 */
    int64_t shape[2];
    const void *data; /* rows without gaps */
};
coda_status safetensors_write(const char *path, const struct safetensors_tensor *tensors, int count,
                              const struct safetensors_pair *metadata, int metadata_count, coda_error *error);

#endif
