/* A pool of threads that run the indices of one loop at a time. */
#ifndef CODA_RUNTIME_THREADS_H
#define CODA_RUNTIME_THREADS_H

#include <stdbool.h>
#include <stdint.h>

struct thread_pool;

/* `threads` counts the caller's own. NULL: no memory. */
struct thread_pool *pool_create(int threads);
void pool_free(struct thread_pool *pool); /* NULL is allowed */

/* As coda_parallel_for. A loop that starts while another runs, inside it or on another thread, runs on its caller alone. */
void pool_run(struct thread_pool *pool, int64_t count, void (*body)(void *context, int64_t index), void *context);

#endif
