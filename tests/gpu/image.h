/* Operands of a trial in GPU memory: rows as far apart as a layout says, patterns around and between them. */
#ifndef GPU_IMAGE_H
#define GPU_IMAGE_H

#include "kit/trial.h"

enum placing {
    PLACING_ALIGNED, /* rows start at multiples of 16 bytes */
    PLACING_PACKED,  /* rows end to end, aligned start */
    PLACING_ODD,     /* an odd stride and start: no access wider than an element is aligned */
};

struct image {
    coda_device *device;
    int count;
    coda_tensor tensor[MAX_OPERANDS]; /* on the device; what a launch takes */
    void *base[MAX_OPERANDS];
    unsigned char *host[MAX_OPERANDS];
    size_t bytes[MAX_OPERANDS], offset[MAX_OPERANDS];
};

/* The machine's GPU, or the device that CODA_TEST_DEVICE names; built with EMULATED one whose kernels run on the host. */
coda_status open_gpu(coda_device **device, coda_error *error);

coda_status image_new(struct image *image, coda_device *device, const struct trial *trial, enum placing placing,
                      coda_error *error);
void image_free(struct image *image);
/* Copies what the trial's operands hold to the device. */
coda_status image_send(struct image *image, const struct trial *trial, coda_error *error);
/* Copies everything back into the trial's operands. Returns the name of an operand around or between whose rows
 * something was written, or NULL. */
const char *image_receive(struct image *image, struct trial *trial, coda_error *error);

#endif
