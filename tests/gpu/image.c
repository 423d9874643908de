#include "image.h"
#ifdef EMULATED
#include "../emulated/emulated_gpu.h"
#endif

#include <stdlib.h>
#include <string.h>

enum { SLACK = 4096, PATTERN = 0xA5 };

static int64_t stride_of(const coda_tensor *t, enum placing placing)
{
    int64_t columns = tensor_columns(t), step = (int64_t)(16 / coda_dtype_size(t->dtype));
    if (placing == PLACING_ALIGNED)
        return (columns + step - 1) / step * step;
    return placing == PLACING_PACKED ? columns : (columns | 1) + 2;
}

coda_status open_gpu(coda_device **device, coda_error *error)
{
    const char *name = getenv("CODA_TEST_DEVICE"); /* "cuda:sm_90a" fails, but fills the cache without a GPU */
#ifdef EMULATED
    (void)error;
    *device = emulated_open(name ? name : "cuda:sm_90a");
    return CODA_OK;
#else
    return coda_device_open(name ? name : "cuda", device, error);
#endif
}

coda_status image_new(struct image *image, coda_device *device, const struct trial *trial, enum placing placing,
                      coda_error *error)
{
    memset(image, 0, sizeof *image);
    image->device = device;
    image->count = trial->count;
    for (int i = 0; i < trial->count; i++) {
        coda_tensor *t = &image->tensor[i];
        *t = trial->tensor[i];
        size_t size = coda_dtype_size(t->dtype);
        int64_t stride = t->rank == 2 ? stride_of(t, placing) : tensor_columns(t);
        t->stride = t->rank == 2 ? stride : 0;
        image->offset[i] = SLACK + (placing == PLACING_ODD ? size : 0);
        image->bytes[i] =
            image->offset[i] + (size_t)((tensor_rows(&trial->tensor[i]) - 1) * stride + tensor_columns(t)) * size;
        image->bytes[i] += SLACK;
        image->host[i] = malloc(image->bytes[i]);
        coda_status status =
            image->host[i] ? coda_allocate(device, image->bytes[i], &image->base[i], error) : CODA_MEMORY;
        if (status != CODA_OK) {
            image_free(image);
            return status;
        }
        t->data = (char *)image->base[i] + image->offset[i];
    }
    return CODA_OK;
}

void image_free(struct image *image)
{
    for (int i = 0; i < image->count; i++) {
        coda_release(image->device, image->base[i]);
        free(image->host[i]);
    }
    memset(image, 0, sizeof *image);
}

/* Row r of operand i in the host's copy of the image. */
static unsigned char *row_at(const struct image *image, int i, int64_t r)
{
    const coda_tensor *t = &image->tensor[i];
    return image->host[i] + image->offset[i] + (size_t)(r * t->stride) * coda_dtype_size(t->dtype);
}

static unsigned char *trial_row(const struct trial *trial, int i, int64_t r)
{
    const coda_tensor *t = &trial->tensor[i];
    return (unsigned char *)t->data + (size_t)(r * t->stride) * coda_dtype_size(t->dtype);
}

static size_t row_bytes(const coda_tensor *t)
{
    return (size_t)tensor_columns(t) * coda_dtype_size(t->dtype);
}

coda_status image_send(struct image *image, const struct trial *trial, coda_error *error)
{
    coda_status status = CODA_OK;
    for (int i = 0; i < image->count && status == CODA_OK; i++) {
        memset(image->host[i], PATTERN, image->bytes[i]);
        for (int64_t r = 0; r < tensor_rows(&trial->tensor[i]); r++)
            memcpy(row_at(image, i, r), trial_row(trial, i, r), row_bytes(&trial->tensor[i]));
        status = coda_copy_in(image->device, image->base[i], image->host[i], image->bytes[i], error);
    }
    return status;
}

static bool gap_is_clean(const unsigned char *from, const unsigned char *to)
{
    for (; from < to; from++)
        if (*from != PATTERN)
            return false;
    return true;
}

const char *image_receive(struct image *image, struct trial *trial, coda_error *error)
{
    for (int i = 0; i < image->count; i++) {
        const coda_tensor *t = &trial->tensor[i];
        if (coda_copy_out(image->device, image->host[i], image->base[i], image->bytes[i], error) != CODA_OK)
            return "copy";
        const unsigned char *end = image->host[i] + image->offset[i];
        if (!gap_is_clean(image->host[i], end))
            return trial->graph->operand[i].name;
        for (int64_t r = 0; r < tensor_rows(t); r++) {
            if (!gap_is_clean(end, row_at(image, i, r)))
                return trial->graph->operand[i].name;
            memcpy(trial_row(trial, i, r), row_at(image, i, r), row_bytes(t));
            end = row_at(image, i, r) + row_bytes(t);
        }
        if (!gap_is_clean(end, image->host[i] + image->bytes[i]))
            return trial->graph->operand[i].name;
    }
    return NULL;
}
