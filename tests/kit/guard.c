#include "guard.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SLACK = 0xA5 };

bool guarded_new(struct guarded *block, size_t bytes, enum guard_side side)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t inner = (bytes + page - 1) / page * page + (bytes == 0 ? page : 0);
    unsigned char *mapping = mmap(NULL, inner + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED)
        return false;
    if (mprotect(mapping + page, inner, PROT_READ | PROT_WRITE) != 0) {
        munmap(mapping, inner + 2 * page);
        return false;
    }
    memset(mapping + page, SLACK, inner);
    block->data = mapping + page + (side == GUARD_END ? inner - bytes : 0);
    block->bytes = bytes;
    block->mapping = mapping;
    block->mapped = inner + 2 * page;
    block->page = page;
    return true;
}

bool guarded_intact(const struct guarded *block)
{
    const unsigned char *begin = (const unsigned char *)block->mapping + block->page;
    const unsigned char *end = (const unsigned char *)block->mapping + block->mapped - block->page;
    for (const unsigned char *p = begin; p < end; p++)
        if ((p < block->data || p >= block->data + block->bytes) && *p != SLACK)
            return false;
    return true;
}

void guarded_free(struct guarded *block)
{
    if (block->mapping)
        munmap(block->mapping, block->mapped);
    memset(block, 0, sizeof *block);
}
