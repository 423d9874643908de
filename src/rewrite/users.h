/* Who reads a node. */
#ifndef CODA_REWRITE_USERS_H
#define CODA_REWRITE_USERS_H

#include "ir/build.h"

struct users {
    int *begin; /* one a node and one more: users of n are user[begin[n]] .. user[begin[n + 1] - 1] */
    struct user {
        int node, place;
    } * user;   /* in order */
    bool *used; /* some out needs the node */
    int *out_count;
};

/* only_used: readers that some out needs. */
bool users_open(struct users *users, const struct graph *graph,
                bool only_used); /* false: no memory; users_close is still allowed */
void users_close(struct users *users);
/* Readers and outs of n together. */
int users_count(const struct users *users, int n);

#endif
