/* Reading and writing of safetensors files. */
#include "model/files.h"
#include "model/json.h"
#include "model/safetensors.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors files are little-endian");

static coda_status read_at(int descriptor, const char *path, void *to, int64_t count, int64_t at, coda_error *error)
{
    char *bytes = to;
    while (count > 0) {
        ssize_t got = pread(descriptor, bytes, (size_t)minimum(count, 1 << 30), at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return model_system_error(error, "read", path);
        if (got == 0)
            return model_fail(error, CODA_IO, "'%s' became shorter while it was read", path);
        bytes += got;
        at += got;
        count -= got;
    }
    return CODA_OK;
}

coda_status safetensors_open(struct safetensors *file, const char *path, coda_error *error)
{
    coda_status status;
    char *bytes = NULL;
    memset(file, 0, sizeof *file);
    file->descriptor = -1;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    if (descriptor < 0 || fstat(descriptor, &info) != 0) {
        status = model_system_error(error, "open", path);
        goto done;
    }
    unsigned char prefix[8] = {0};
    int64_t length = info.st_size, wanted = 8;
    if (length >= 8) {
        status = read_at(descriptor, path, prefix, 8, 0, error);
        if (status != CODA_OK)
            goto done;
        uint64_t header = 0;
        for (int i = 7; i >= 0; i--)
            header = header << 8 | prefix[i];
        /* An impossible length needs no more than its own eight bytes to be refused. */
        if (header <= SAFETENSORS_LARGEST_HEADER && header <= (uint64_t)(length - 8))
            wanted += (int64_t)header;
    }
    wanted = minimum(wanted, length);
    bytes = malloc((size_t)wanted + 1);
    if (!bytes) {
        status = model_no_memory(error, "the header of a safetensors file", (size_t)wanted);
        goto done;
    }
    status = read_at(descriptor, path, bytes, wanted, 0, error);
    if (status == CODA_OK)
        status = safetensors_parse(file, path, bytes, (size_t)wanted, length, error);
    if (status == CODA_OK) {
        file->descriptor = descriptor;
        descriptor = -1;
    }
done:
    free(bytes);
    if (descriptor >= 0)
        close(descriptor);
    return status;
}

void safetensors_close(struct safetensors *file)
{
    if (file->descriptor >= 0)
        close(file->descriptor);
    free(file->entry);
    free(file->metadata);
    free(file->strings);
    file->entry = NULL;
    file->metadata = NULL;
    file->strings = NULL;
    file->descriptor = -1;
    file->count = file->metadata_count = 0;
}

coda_status safetensors_read(const struct safetensors *file, const struct safetensors_entry *entry, coda_dtype dtype,
                             void *to, coda_error *error)
{
    enum { CHUNK = 1 << 18 };
    if (entry->type->dtype < 0)
        return model_fail(error, CODA_UNSUPPORTED, "'%s': `%s` is %s; convert the file to F32, BF16 or F16", file->path,
                          entry->name, entry->type->name);
    int64_t at = file->data_start + entry->begin, length = entry->end - entry->begin;
    coda_dtype from = (coda_dtype)entry->type->dtype;
    if (from == dtype)
        return read_at(file->descriptor, file->path, to, length, at, error);
    char *chunk = malloc(CHUNK);
    if (!chunk)
        return model_no_memory(error, "reading a tensor", CHUNK);
    coda_status status = CODA_OK;
    char *out = to;
    while (length > 0 && status == CODA_OK) {
        int64_t bytes = minimum(length, CHUNK), count = bytes / entry->type->size;
        status = read_at(file->descriptor, file->path, chunk, bytes, at, error);
        if (status == CODA_OK)
            coda_convert(out, dtype, chunk, from, count);
        out += count * (int64_t)coda_dtype_size(dtype);
        at += bytes;
        length -= bytes;
    }
    free(chunk);
    return status;
}

static const char *type_name(coda_dtype dtype)
{
    return dtype == CODA_F32 ? "F32" : dtype == CODA_BF16 ? "BF16" : "F16";
}

static int64_t tensor_bytes(const struct safetensors_tensor *tensor)
{
    return tensor->shape[0] * (tensor->rank == 2 ? tensor->shape[1] : 1) * (int64_t)coda_dtype_size(tensor->dtype);
}

/* The eight bytes of length and the header, padded with spaces so that the data is aligned. */
static void print_header(struct json_text *text, const struct safetensors_tensor *tensors, int count,
                         const struct safetensors_pair *metadata, int metadata_count)
{
    int64_t at = 0;
    json_print(text, "        {\"__metadata__\":{");
    for (int i = 0; i < metadata_count; i++) {
        json_print(text, i ? "," : "");
        json_print_string(text, metadata[i].key);
        json_print(text, ":");
        json_print_string(text, metadata[i].value);
    }
    json_print(text, "}");
    for (int i = 0; i < count; i++) {
        const struct safetensors_tensor *tensor = &tensors[i];
        int64_t end = at + tensor_bytes(tensor);
        json_print(text, ",");
        json_print_string(text, tensor->name);
        json_print(text, ":{\"dtype\":\"%s\",\"shape\":[%lld", type_name(tensor->dtype), (long long)tensor->shape[0]);
        if (tensor->rank == 2)
            json_print(text, ",%lld", (long long)tensor->shape[1]);
        json_print(text, "],\"data_offsets\":[%lld,%lld]}", (long long)at, (long long)end);
        at = end;
    }
    json_print(text, "}");
    while (text->length % 64 && !text->failed)
        json_print(text, " ");
    for (int i = 0; i < 8 && !text->failed; i++)
        text->text[i] = (char)((text->length - 8) >> (8 * i) & 0xff);
}

coda_status safetensors_write(const char *path, const struct safetensors_tensor *tensors, int count,
                              const struct safetensors_pair *metadata, int metadata_count, coda_error *error)
{
    struct json_text header = {0};
    struct output output = {.descriptor = -1};
    coda_status status;
    print_header(&header, tensors, count, metadata, metadata_count);
    if (header.failed) {
        status = model_no_memory(error, "the header of a safetensors file", header.length);
        goto done;
    }
    status = output_open(&output, path, error);
    if (status == CODA_OK)
        status = output_write(&output, header.text, header.length, error);
    for (int i = 0; i < count && status == CODA_OK; i++)
        status = output_write(&output, tensors[i].data, (size_t)tensor_bytes(&tensors[i]), error);
    if (status == CODA_OK)
        status = output_commit(&output, error);
done:
    output_abandon(&output);
    free(header.text);
    return status;
}
