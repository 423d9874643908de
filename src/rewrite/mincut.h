/* The smallest set of values that separates what is computed once from what is computed again. */
#ifndef CODA_REWRITE_MINCUT_H
#define CODA_REWRITE_MINCUT_H

#include <stdbool.h>

/* A network whose vertices have capacities. Vertices that are no source and no sink and lie on no path cost nothing. */
struct network {
    int vertex_count;
    int edge_count, edge_capacity;
    struct network_edge {
        int to, next, reverse;
        long capacity;
    } * edge;
    int *first; /* two a vertex (entry and exit), then the source and the sink */
};

enum { UNLIMITED = 1 << 30 };

bool network_open(struct network *network, int vertex_count);
void network_close(struct network *network);
bool network_vertex(struct network *network, int vertex, long capacity);
bool network_edge(struct network *network, int from, int to); /* of no limit */
bool network_source(struct network *network, int vertex);
bool network_sink(struct network *network, int vertex);

/* Sets cut[vertex] for a cut of least capacity, of several the one nearest to the sinks. Returns 0, 1 where every cut
 * breaks an unlimited vertex, or -1 without memory. */
int network_cut(struct network *network, bool *cut);

#endif
