/* Do two graphs compute the same? Every node of both gets a number; nodes that compute the same get the same one. */
#include "ir/build.h"
#include <stdlib.h>
#include <string.h>

/* What a node computes, with inputs by number and axes as the first graph counts them. Zeroed first: compared as bytes.
 */
struct key {
    int op, input_count, input[MAX_INPUTS];
    int64_t shape[2][5];
    int rank, index, dtype, axis, pairs, inverse;
    int64_t run_axis, run_value, cols[5];
    double number;
};

struct numbering {
    const struct graph *graph[2];
    int axis[2][MAX_AXES + 1]; /* axis + 1 -> the first graph's axis; -2: the first has none of that name */
    int *number[2];            /* one a node */
    struct key *key;           /* one a number */
    int *slot;                 /* open addressing: number + 1, 0 empty */
    size_t slot_count;
    int count;
};

static void put_dim(const struct numbering *n, int which, const struct dim *dim, int64_t *key)
{
    if (dim->form == DIM_ABSENT)
        return;
    key[0] = dim->form;
    key[1] = n->axis[which][dim->axis + 1];
    key[2] = dim->axis < 0 ? dim->constant : 0;
    if (dim->form == DIM_WHOLE)
        return;
    key[3] = n->axis[which][dim->run.axis + 1];
    key[4] = dim->run.value;
}

static void make_key(const struct numbering *n, int which, int index, struct key *key)
{
    const struct node *node = &n->graph[which]->node[index];
    memset(key, 0, sizeof *key);
    key->op = (int)node->op;
    key->input_count = node->input_count;
    for (int i = 0; i < node->input_count; i++)
        key->input[i] = n->number[which][node->input[i]];
    key->rank = node->shape.rank;
    for (int i = 0; i < node->shape.rank; i++)
        put_dim(n, which, &node->shape.dim[i], key->shape[i]);
    key->index = node->op == OP_IN || node->op == OP_PARAM ? node->index : 0;
    key->dtype = node->op == OP_IN || node->op == OP_CAST ? (int)node->dtype : 0;
    key->axis = n->axis[which][node->axis + 1];
    key->run_axis = n->axis[which][node->run.axis + 1];
    key->run_value = node->run.value;
    if (node->op == OP_NUMBER)
        memcpy(&key->number, &node->number, sizeof key->number);
    if (node->op == OP_ROPE) {
        key->pairs = node->rope_pairs;
        key->inverse = node->rope_inverse;
        put_dim(n, which, &node->rope_cols, key->cols);
    }
}

static int number_of(struct numbering *n, const struct key *key)
{
    uint64_t hash = 14695981039346656037u;
    const unsigned char *bytes = (const unsigned char *)key;
    for (size_t i = 0; i < sizeof *key; i++)
        hash = (hash ^ bytes[i]) * 1099511628211u;
    size_t at = (size_t)hash & (n->slot_count - 1);
    while (n->slot[at] != 0 && memcmp(&n->key[n->slot[at] - 1], key, sizeof *key) != 0)
        at = (at + 1) & (n->slot_count - 1);
    if (n->slot[at] == 0) {
        n->key[n->count] = *key;
        n->slot[at] = ++n->count;
    }
    return n->slot[at] - 1;
}

/* Axes correspond by name. A derived one must be the same sum in both. */
static bool match_axes(struct numbering *n)
{
    const struct graph *a = n->graph[0], *b = n->graph[1];
    for (int which = 0; which < 2; which++)
        n->axis[which][0] = -1;
    for (int i = 0; i < a->axis_count; i++)
        n->axis[0][i + 1] = i;
    for (int i = 0; i < b->axis_count; i++) {
        int same = graph_find_axis(a, b->axis[i].name);
        n->axis[1][i + 1] = same < 0 ? -2 : same;
    }
    for (int i = 0; i < b->axis_count; i++) {
        int same = n->axis[1][i + 1];
        if (same < 0)
            continue;
        int64_t sum[MAX_AXES + 1] = {0};
        for (int k = 0; k < a->axis[same].term_count; k++)
            sum[a->axis[same].term[k].axis + 1] += a->axis[same].term[k].factor;
        for (int k = 0; k < b->axis[i].term_count; k++) {
            int term = n->axis[1][b->axis[i].term[k].axis + 1];
            if (term < -1)
                return false;
            sum[term + 1] -= b->axis[i].term[k].factor;
        }
        for (int k = 0; k <= MAX_AXES; k++)
            if (sum[k] != 0)
                return false;
    }
    return true;
}

static bool same_declarations(const struct numbering *n)
{
    const struct graph *a = n->graph[0], *b = n->graph[1];
    if (a->is_block != b->is_block || a->operand_count != b->operand_count || a->parameter_count != b->parameter_count)
        return false;
    for (int i = 0; i < a->operand_count; i++) {
        const struct operand *p = &a->operand[i], *q = &b->operand[i];
        if (strcmp(p->name, q->name) != 0 || p->role != q->role || p->dtype != q->dtype ||
            p->shape.rank != q->shape.rank)
            return false;
        for (int k = 0; k < p->shape.rank; k++) {
            int64_t left[5] = {0}, right[5] = {0};
            put_dim(n, 0, &p->shape.dim[k], left);
            put_dim(n, 1, &q->shape.dim[k], right);
            if (memcmp(left, right, sizeof left) != 0)
                return false;
        }
    }
    for (int i = 0; i < a->parameter_count; i++) {
        const struct parameter *p = &a->parameter[i], *q = &b->parameter[i];
        if (strcmp(p->name, q->name) != 0 || memcmp(&p->default_value, &q->default_value, sizeof p->default_value) != 0)
            return false;
    }
    return true;
}

static bool allocate(struct numbering *n)
{
    size_t total = 1;
    for (int which = 0; which < 2; which++) {
        size_t count = n->graph[which]->node_count ? (size_t)n->graph[which]->node_count : 1;
        n->number[which] = calloc(count, sizeof *n->number[which]);
        total += count;
    }
    for (n->slot_count = 16; n->slot_count < 2 * total; n->slot_count *= 2)
        ;
    n->slot = calloc(n->slot_count, sizeof *n->slot);
    n->key = malloc(total * sizeof *n->key);
    return n->number[0] && n->number[1] && n->slot && n->key;
}

bool graph_equal(const struct graph *a, const struct graph *b)
{
    struct numbering n = {.graph = {a, b}};
    bool equal = false;
    if (!match_axes(&n) || !same_declarations(&n) || !allocate(&n))
        goto done;
    for (int which = 0; which < 2; which++)
        for (int i = 0; i < n.graph[which]->node_count; i++) {
            struct key key;
            make_key(&n, which, i, &key);
            n.number[which][i] = number_of(&n, &key);
        }
    equal = true;
    for (int i = 0; i < a->operand_count; i++)
        equal = equal && n.number[0][a->operand[i].node] == n.number[1][b->operand[i].node];
done:
    free(n.number[0]);
    free(n.number[1]);
    free(n.slot);
    free(n.key);
    return equal;
}
