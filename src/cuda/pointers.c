#include "cuda/pointers.h"

static unsigned slot_of(uint64_t address)
{
    return (unsigned)((address >> 21) * UINT64_C(0x9e3779b97f4a7c15) >> 56) % POINTER_SLOTS;
}

static bool holds(const struct pointer_slot *slot, uint64_t address)
{
    unsigned version = __atomic_load_n(&slot->version, __ATOMIC_ACQUIRE);
    uint64_t first = __atomic_load_n(&slot->first, __ATOMIC_RELAXED);
    uint64_t end = __atomic_load_n(&slot->end, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    bool steady = version % 2 == 0 && version == __atomic_load_n(&slot->version, __ATOMIC_RELAXED);
    return steady && address >= first && address < end;
}

bool pointers_know(const struct pointer_table *table, uint64_t address)
{
    return holds(&table->slot[slot_of(address)], address);
}

/* Takes the slot for writing; false: another thread is writing it. */
static bool open_slot(struct pointer_slot *slot)
{
    unsigned version = __atomic_load_n(&slot->version, __ATOMIC_RELAXED);
    if (version % 2 ||
        !__atomic_compare_exchange_n(&slot->version, &version, version + 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return false;
    __atomic_thread_fence(__ATOMIC_RELEASE);
    return true;
}

static void close_slot(struct pointer_slot *slot, uint64_t first, uint64_t end)
{
    __atomic_store_n(&slot->first, first, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->end, end, __ATOMIC_RELAXED);
    __atomic_fetch_add(&slot->version, 1, __ATOMIC_RELEASE);
}

void pointers_learn(struct pointer_table *table, uint64_t address, uint64_t first, uint64_t size)
{
    struct pointer_slot *slot = &table->slot[slot_of(address)];
    if (address >= first && address - first < size && open_slot(slot))
        close_slot(slot, first, first + size);
}

void pointers_forget(struct pointer_table *table, uint64_t address)
{
    for (int i = 0; i < POINTER_SLOTS; i++)
        while (holds(&table->slot[i], address))
            if (open_slot(&table->slot[i]))
                close_slot(&table->slot[i], 0, 0);
    __atomic_fetch_add(&table->generation, 1, __ATOMIC_RELEASE);
}
