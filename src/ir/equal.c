/* Do two graphs compute the same? Every node of both gets a number; nodes that compute the same get the same one. */
#include "ir/build.h"
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { DIM_WORDS = 5, KEY_WORDS = MAX_INPUTS + 3 * DIM_WORDS + 12 };

/* What a node computes, with inputs by number and axes as the first graph counts them: zeros fill the rest. */
struct key {
    int64_t word[KEY_WORDS];
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

/* So that -0 differs from 0, and a NaN equals itself. */
static int64_t bits_of(double number)
{
    int64_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

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
    bool rotates = node->op == OP_ROPE;
    *key = (struct key){{
        node->op,
        node->input_count,
        node->shape.rank,
        node->op == OP_IN || node->op == OP_PARAM ? node->index : 0,
        node->op == OP_IN || node->op == OP_CAST ? (int64_t)node->dtype : 0,
        node->op == OP_NUMBER ? bits_of(node->number) : 0,
        n->axis[which][node->axis + 1],
        n->axis[which][node->run.axis + 1],
        node->run.value,
        rotates && node->rope_pairs,
        rotates && node->rope_inverse,
    }};
    int64_t *next = &key->word[12];
    for (int i = 0; i < node->shape.rank; i++)
        put_dim(n, which, &node->shape.dim[i], next + (ptrdiff_t)i * DIM_WORDS);
    if (rotates)
        put_dim(n, which, &node->rope_cols, next + 2 * DIM_WORDS);
    next += 3 * DIM_WORDS;
    for (int i = 0; i < node->input_count; i++)
        next[i] = n->number[which][node->input[i]];
}

static int number_of(struct numbering *n, const struct key *key)
{
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < KEY_WORDS; i++) {
        hash = (hash ^ (uint64_t)key->word[i]) * 1099511628211u;
        hash ^= hash >> 29; /* a double's digits are in its high bits */
    }
    size_t at = (size_t)hash & (n->slot_count - 1);
    while (n->slot[at] != 0 && memcmp(n->key[n->slot[at] - 1].word, key->word, sizeof key->word) != 0)
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
    if (a->is_block != b->is_block || a->conditional != b->conditional ||
        (a->conditional && a->condition != b->condition) || a->operand_count != b->operand_count ||
        a->parameter_count != b->parameter_count)
        return false;
    for (int i = 0; i < a->operand_count; i++) {
        const struct operand *p = &a->operand[i], *q = &b->operand[i];
        if (strcmp(p->name, q->name) != 0 || p->role != q->role || p->dtype != q->dtype ||
            p->shape.rank != q->shape.rank || (p->role == CODA_PATCH && p->ids != q->ids))
            return false;
        for (int k = 0; k < p->shape.rank; k++) {
            int64_t left[DIM_WORDS] = {0}, right[DIM_WORDS] = {0};
            put_dim(n, 0, &p->shape.dim[k], left);
            put_dim(n, 1, &q->shape.dim[k], right);
            if (memcmp(left, right, sizeof left) != 0)
                return false;
        }
    }
    for (int i = 0; i < a->parameter_count; i++) {
        const struct parameter *p = &a->parameter[i], *q = &b->parameter[i];
        if (strcmp(p->name, q->name) != 0 || bits_of(p->default_value) != bits_of(q->default_value))
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
