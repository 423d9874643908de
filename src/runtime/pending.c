#include "runtime/pending.h"
#include "runtime/sizes.h"

bool pending_is_apart(struct pending *pending, const struct graph *graph, const coda_tensor *tensor, int count,
                      int sets)
{
    int all = count * sets, before = pending->count;
    bool apart = before > 0 && before + all <= MAX_PENDING && !graph->conditional; /* it may end at once */
    for (int i = 0; i < all && apart; i++) {
        bool written = graph->operand[i % count].role != CODA_IN;
        for (int k = 0; k < before && apart; k++)
            apart = !((written || pending->written[k]) && tensors_overlap(&tensor[i], &pending->tensor[k]));
    }
    pending->count = apart ? before : 0;
    for (int i = 0; i < all && all <= MAX_PENDING; i++) {
        pending->tensor[pending->count] = tensor[i];
        pending->written[pending->count++] = graph->operand[i % count].role != CODA_IN;
    }
    return apart;
}
