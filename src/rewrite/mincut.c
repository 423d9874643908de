#include "rewrite/mincut.h"

#include <stdlib.h>
#include <string.h>

bool network_open(struct network *network, int vertex_count)
{
    int ends = 2 * vertex_count + 2;
    memset(network, 0, sizeof *network);
    network->vertex_count = vertex_count;
    network->first = malloc((size_t)ends * sizeof *network->first);
    for (int i = 0; network->first != NULL && i < ends; i++)
        network->first[i] = -1;
    return network->first != NULL;
}

void network_close(struct network *network)
{
    free(network->first);
    free(network->edge);
    memset(network, 0, sizeof *network);
}

static void append_edge(struct network *network, int from, int to, long capacity)
{
    struct network_edge *edge = &network->edge[network->edge_count];
    *edge = (struct network_edge){to, network->first[from], network->edge_count ^ 1, capacity};
    network->first[from] = network->edge_count++;
}

static bool add_edge(struct network *network, int from, int to, long capacity)
{
    if (network->edge_count + 2 > network->edge_capacity) {
        int larger = network->edge_capacity ? 2 * network->edge_capacity : 256;
        struct network_edge *edge = realloc(network->edge, (size_t)larger * sizeof *edge);
        if (edge == NULL)
            return false;
        network->edge = edge;
        network->edge_capacity = larger;
    }
    append_edge(network, from, to, capacity);
    append_edge(network, to, from, 0);
    return true;
}

bool network_vertex(struct network *network, int vertex, long capacity)
{
    return add_edge(network, 2 * vertex, 2 * vertex + 1, capacity);
}

bool network_edge(struct network *network, int from, int to)
{
    return add_edge(network, 2 * from + 1, 2 * to, UNLIMITED);
}

bool network_source(struct network *network, int vertex)
{
    return add_edge(network, 2 * network->vertex_count, 2 * vertex, UNLIMITED);
}

bool network_sink(struct network *network, int vertex)
{
    return add_edge(network, 2 * vertex + 1, 2 * network->vertex_count + 1, UNLIMITED);
}

/* Breadth first from the source over edges with room left; by[v] is the edge that reached v. False: the sink is cut
 * off. */
static bool find_path(const struct network *network, int *by, int *queue)
{
    int ends = 2 * network->vertex_count + 2, source = ends - 2, sink = ends - 1, head = 0, tail = 0;
    for (int i = 0; i < ends; i++)
        by[i] = -1;
    queue[tail++] = source;
    while (head < tail && by[sink] < 0) {
        int at = queue[head++];
        for (int e = network->first[at]; e >= 0; e = network->edge[e].next) {
            int to = network->edge[e].to;
            if (network->edge[e].capacity == 0 || by[to] >= 0 || to == source)
                continue;
            by[to] = e;
            queue[tail++] = to;
        }
    }
    return by[sink] >= 0;
}

static long augment(struct network *network, const int *by)
{
    int source = 2 * network->vertex_count, sink = source + 1;
    long room = UNLIMITED;
    for (int at = sink; at != source; at = network->edge[network->edge[by[at]].reverse].to)
        room = network->edge[by[at]].capacity < room ? network->edge[by[at]].capacity : room;
    for (int at = sink; at != source; at = network->edge[network->edge[by[at]].reverse].to) {
        network->edge[by[at]].capacity -= room;
        network->edge[network->edge[by[at]].reverse].capacity += room;
    }
    return room;
}

/* Which ends still reach the sink: backwards over edges with room left. */
static void reach_sink(const struct network *network, bool *reaches, int *queue)
{
    int ends = 2 * network->vertex_count + 2, head = 0, tail = 0;
    memset(reaches, 0, (size_t)ends * sizeof *reaches);
    reaches[ends - 1] = true;
    queue[tail++] = ends - 1;
    while (head < tail) {
        int at = queue[head++];
        for (int e = network->first[at]; e >= 0; e = network->edge[e].next) {
            int from = network->edge[e].to;
            if (reaches[from] || network->edge[network->edge[e].reverse].capacity == 0)
                continue;
            reaches[from] = true;
            queue[tail++] = from;
        }
    }
}

static bool has_capacity(const struct network *network, int vertex)
{
    for (int e = network->first[2 * vertex]; e >= 0; e = network->edge[e].next)
        if (network->edge[e].to == 2 * vertex + 1 && e % 2 == 0)
            return true;
    return false;
}

int network_cut(struct network *network, bool *cut)
{
    size_t ends = 2 * (size_t)network->vertex_count + 2;
    int *by = malloc(ends * sizeof *by), *queue = malloc(ends * sizeof *queue), result = -1;
    bool *reaches = malloc(ends * sizeof *reaches);
    if (by == NULL || queue == NULL || reaches == NULL)
        goto done;
    result = 0;
    while (result == 0 && find_path(network, by, queue))
        result = augment(network, by) >= UNLIMITED;
    reach_sink(network, reaches, queue);
    for (int v = 0; v < network->vertex_count; v++)
        cut[v] = !reaches[2 * v] && reaches[2 * v + 1] && has_capacity(network, v);
done:
    free(by);
    free(queue);
    free(reaches);
    return result;
}
