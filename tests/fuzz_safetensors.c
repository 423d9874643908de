/* Any bytes as a safetensors file: accepted headers describe memory that is there, others give a message. */
#include "model/safetensors.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct safetensors file;
    coda_error error = {CODA_OK, ""};
    if (safetensors_parse(&file, "fuzz", (const char *)bytes, length, (int64_t)length, &error) != CODA_OK) {
        if (error.status == CODA_OK || !error.message[0])
            abort();
        return 0;
    }
    int64_t total = 0;
    for (int64_t i = 0; i < file.count; i++) {
        const struct safetensors_entry *entry = &file.entry[i];
        if (entry->begin < 0 || entry->end < entry->begin || file.data_start + entry->end > (int64_t)length)
            abort();
        if (safetensors_find(&file, entry->name) != entry)
            abort();
        total += entry->end - entry->begin;
    }
    if (total != file.data_length)
        abort();
    safetensors_close(&file);
    return 0;
}
