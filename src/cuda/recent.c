#include "cuda/recent.h"

#include <stdlib.h>
#include <string.h>

coda_status recent_create(struct recent *recent, const struct graph *graph, int sets, coda_error *error)
{
    size_t operands = (size_t)graph->operand_count * (size_t)sets * sizeof(coda_tensor);
    size_t parameters = (size_t)graph->parameter_count * sizeof(double);
    size_t each = (PARAMETER_BYTES + operands + parameters + 63) / 64 * 64;
    memset(recent, 0, sizeof *recent);
    recent->memory = aligned_alloc(64, RECENT_LAUNCHES * each);
    if (!recent->memory)
        return fail_memory(error, "a kernel's latest launches", RECENT_LAUNCHES * each);
    recent->operand_count = graph->operand_count * sets;
    recent->parameter_count = graph->parameter_count;
    for (int i = 0; i < RECENT_LAUNCHES; i++) {
        unsigned char *base = (unsigned char *)recent->memory + (size_t)i * each;
        struct prepared *entry = &recent->entry[i];
        entry->bytes = base;
        entry->operand = (coda_tensor *)(void *)(base + PARAMETER_BYTES);
        entry->parameter = (double *)(void *)(base + PARAMETER_BYTES + operands);
    }
    return CODA_OK;
}

void recent_free(struct recent *recent)
{
    free(recent->memory);
    recent->memory = NULL;
}

static bool take(struct prepared *entry)
{
    return !__atomic_exchange_n(&entry->taken, true, __ATOMIC_ACQUIRE);
}

void recent_give_back(struct prepared *entry)
{
    __atomic_store_n(&entry->taken, false, __ATOMIC_RELEASE);
}

static bool is_same(const struct recent *recent, const struct prepared *entry, const struct launch *launch,
                    unsigned generation)
{
    return entry->compiled && entry->generation == generation &&
           !memcmp(entry->operand, launch->operand, (size_t)recent->operand_count * sizeof *entry->operand) &&
           !memcmp(entry->parameter, launch->parameter, (size_t)recent->parameter_count * sizeof *entry->parameter);
}

struct prepared *recent_find(struct recent *recent, const struct launch *launch, unsigned generation)
{
    for (int i = 0; i < RECENT_LAUNCHES; i++) {
        struct prepared *entry = &recent->entry[i];
        if (!take(entry))
            continue;
        if (is_same(recent, entry, launch, generation))
            return entry;
        recent_give_back(entry);
    }
    return NULL;
}

struct prepared *recent_take(struct recent *recent)
{
    for (int i = 0; i < RECENT_LAUNCHES; i++) {
        unsigned oldest = __atomic_fetch_add(&recent->next, 1, __ATOMIC_RELAXED) % RECENT_LAUNCHES;
        struct prepared *entry = &recent->entry[oldest];
        if (take(entry)) {
            entry->compiled = NULL;
            return entry;
        }
    }
    return NULL;
}

void recent_keep(const struct recent *recent, struct prepared *entry, const struct launch *launch, unsigned generation,
                 bool good)
{
    if (!entry)
        return;
    if (good) {
        memcpy(entry->operand, launch->operand, (size_t)recent->operand_count * sizeof *entry->operand);
        memcpy(entry->parameter, launch->parameter, (size_t)recent->parameter_count * sizeof *entry->parameter);
        entry->generation = generation;
    } else {
        entry->compiled = NULL;
    }
    recent_give_back(entry);
}
