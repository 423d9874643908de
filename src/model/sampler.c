#include "model/sampler.h"
#include <math.h>

static bool likelier(const float *logits, int32_t a, int32_t b)
{
    return logits[a] > logits[b] || (a < b && logits[a] == logits[b]);
}

/* Moves the k likeliest to the front of `order`, in no particular order (quickselect). */
static void select_likeliest(const float *logits, int32_t *order, int64_t count, int64_t k)
{
    int64_t low = 0, high = count - 1;
    while (low < high) {
        int32_t pivot = order[low + (high - low) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (likelier(logits, order[i], pivot))
                i++;
            while (likelier(logits, pivot, order[j]))
                j--;
            if (i <= j) {
                int32_t swapped = order[i];
                order[i++] = order[j];
                order[j--] = swapped;
            }
        }
        if (k - 1 <= j)
            high = j;
        else if (k - 1 >= i)
            low = i;
        else
            return;
    }
}

int32_t choose_token(float *logits, int32_t *order, int64_t count, double temperature, int64_t top_k, double random)
{
    int64_t candidates = 0;
    int32_t best = -1;
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(logits[i]))
            continue;
        order[candidates++] = (int32_t)i;
        if (best < 0 || likelier(logits, (int32_t)i, best))
            best = (int32_t)i;
    }
    if (best < 0 || temperature <= 0)
        return best;
    if (top_k > 0 && top_k < candidates) {
        select_likeliest(logits, order, candidates, top_k);
        candidates = top_k;
    }
    double total = 0, sum = 0;
    for (int64_t i = 0; i < candidates; i++)
        total += exp(((double)logits[order[i]] - logits[best]) / temperature);
    for (int64_t i = 0; i < candidates; i++) {
        sum += exp(((double)logits[order[i]] - logits[best]) / temperature);
        if (sum > random * total)
            return order[i];
    }
    return best;
}
