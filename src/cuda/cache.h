/* Compiled kernels on disk. A file's name is the hash of everything that made it, its content is checksummed, and it
 * appears by rename: any number of processes may share a folder without locks. */
#ifndef CODA_CUDA_CACHE_H
#define CODA_CUDA_CACHE_H

#include "runtime/device.h"

struct digest {
    unsigned char byte[32];
};

/* SHA-256. */
struct digest digest_of(const void *data, size_t size);
void digest_hex(const struct digest *digest, char text[65]);

struct cache {
    char folder[768]; /* "" where there is none */
    char remark[256]; /* why there is none, or where it is */
};

/* $CODA_CACHE ("off": none), else $XDG_CACHE_HOME/coda, else ~/.cache/coda. Makes the folder. */
void cache_open(struct cache *cache);
/* The content under a key; false where it is absent, or was damaged and is ignored.
 * kind   what it is, the file's suffix: "cubin", "tune" */
bool cache_get(const struct cache *cache, const char *kind, const struct digest *key, void **data, size_t *size);
/* False: it could not be written. For a kernel no error: it is compiled again another time. */
bool cache_put(const struct cache *cache, const char *kind, const struct digest *key, const void *data, size_t size);
void cache_remove(const struct cache *cache, const char *kind, const struct digest *key);
/* Visits every undamaged content of a kind, in no order. */
void cache_each(const struct cache *cache, const char *kind,
                void (*visit)(void *context, const char *data, size_t size), void *context);

#endif
