#include "rewrite/users.h"

#include <stdlib.h>
#include <string.h>

bool users_open(struct users *users, const struct graph *graph, bool only_used)
{
    size_t count = (size_t)graph->node_count, total = 0;
    memset(users, 0, sizeof *users);
    users->begin = calloc(count + 2, sizeof *users->begin);
    users->used = calloc(count + 1, sizeof *users->used);
    users->out_count = calloc(count + 1, sizeof *users->out_count);
    if (!users->begin || !users->used || !users->out_count)
        return false;
    graph_mark_used(graph, users->used);
    for (size_t n = 0; n < count; n++)
        for (int k = 0; k < graph->node[n].input_count && (users->used[n] || !only_used); k++, total++)
            users->begin[graph->node[n].input[k] + 2]++;
    for (size_t n = 2; n < count + 2; n++)
        users->begin[n] += users->begin[n - 1];
    users->user = malloc((total + 1) * sizeof *users->user);
    if (!users->user)
        return false;
    for (size_t n = 0; n < count; n++)
        for (int k = 0; k < graph->node[n].input_count && (users->used[n] || !only_used); k++)
            users->user[users->begin[graph->node[n].input[k] + 1]++] = (struct user){(int)n, k};
    for (int o = 0; o < graph->operand_count; o++)
        if (graph->operand[o].role != CODA_IN)
            users->out_count[graph->operand[o].node]++;
    return true;
}

void users_close(struct users *users)
{
    free(users->begin);
    free(users->user);
    free(users->used);
    free(users->out_count);
    memset(users, 0, sizeof *users);
}

int users_count(const struct users *users, int n)
{
    return users->begin[n + 1] - users->begin[n] + users->out_count[n];
}
