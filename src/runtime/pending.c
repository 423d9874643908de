#include "runtime/pending.h"

#include <string.h>

static struct range range_of(const coda_tensor *t, coda_role role)
{
    int64_t stride = t->stride ? t->stride : t->shape[1], rows = t->shape[0], columns = t->rank == 2 ? t->shape[1] : 1;
    size_t bytes = (size_t)(t->rank == 2 ? (rows - 1) * stride + columns : rows) * coda_dtype_size(t->dtype);
    return (struct range){t->data, (const char *)t->data + bytes, role != CODA_IN};
}

bool pending_is_apart(struct pending *pending, const struct graph *graph, const coda_tensor *tensor, int count,
                      int sets)
{
    struct range range[MAX_PENDING];
    int all = count * sets, before = pending->count;
    if (all > MAX_PENDING) {
        pending->count = 0;
        return false;
    }
    bool apart = before > 0 && before + all <= MAX_PENDING && !graph->conditional; /* it may end at once */
    for (int i = 0; i < all; i++) {
        range[i] = range_of(&tensor[i], graph->operand[i % count].role);
        for (int k = 0; k < before && apart; k++) {
            const struct range *r = &pending->range[k];
            apart = !((r->written || range[i].written) && range[i].first < r->end && r->first < range[i].end);
        }
    }
    pending->count = apart ? before : 0;
    memcpy(pending->range + pending->count, range, (size_t)all * sizeof *range);
    pending->count += all;
    return apart;
}
