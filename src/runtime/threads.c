/* The threads of a CPU device: they spin briefly between loops, then sleep, so that an idle or crowded machine loses
 * nothing to them. A loop does not wait for a thread that has not woken up yet. */
#include "runtime/threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { SPINS = 2000 }; /* some tens of microseconds: the gap between two launches of a training step */

struct thread_pool {
    pthread_mutex_t busy; /* held by the caller whose loop runs; others run theirs alone */
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t opened, left;
    atomic_ulong loop; /* number of the newest loop; changes when one opens or the pool stops */
    bool open, stop;
    int joined, active, limit; /* workers that took part in this loop, that still do, that may */
    int64_t count;
    void (*body)(void *context, int64_t index);
    void *context;
    atomic_llong next;
    int workers;
    pthread_t worker[];
};

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void take_indices(struct thread_pool *pool)
{
    for (;;) {
        int64_t i = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (i >= pool->count)
            return;
        pool->body(pool->context, i);
    }
}

static void *work(void *argument)
{
    struct thread_pool *pool = argument;
    unsigned long seen = 0;
    pthread_mutex_lock(&pool->lock);
    while (!pool->stop) {
        unsigned long loop = atomic_load(&pool->loop);
        if (loop != seen && pool->open && pool->joined < pool->limit) {
            pool->joined++;
            pool->active++;
            pthread_mutex_unlock(&pool->lock);
            take_indices(pool);
            pthread_mutex_lock(&pool->lock);
            if (--pool->active == 0)
                pthread_cond_signal(&pool->left);
        }
        seen = loop;
        pthread_mutex_unlock(&pool->lock);
        for (int i = 0; i < SPINS && atomic_load_explicit(&pool->loop, memory_order_relaxed) == seen; i++)
            pause_briefly();
        pthread_mutex_lock(&pool->lock);
        while (!pool->stop && atomic_load(&pool->loop) == seen)
            pthread_cond_wait(&pool->opened, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

struct thread_pool *pool_create(int threads)
{
    int workers = threads > 1 ? threads - 1 : 0;
    struct thread_pool *pool = calloc(1, sizeof *pool + (size_t)workers * sizeof *pool->worker);
    if (!pool)
        return NULL;
    pthread_mutex_init(&pool->busy, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->opened, NULL);
    pthread_cond_init(&pool->left, NULL);
    /* Fewer threads than asked for are slower, not wrong. */
    while (pool->workers < workers && pthread_create(&pool->worker[pool->workers], NULL, work, pool) == 0)
        pool->workers++;
    return pool;
}

void pool_free(struct thread_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    atomic_fetch_add(&pool->loop, 1);
    pthread_cond_broadcast(&pool->opened);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->workers; i++)
        pthread_join(pool->worker[i], NULL);
    pthread_cond_destroy(&pool->left);
    pthread_cond_destroy(&pool->opened);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->busy);
    free(pool);
}

static void run_alone(int64_t count, void (*body)(void *context, int64_t index), void *context)
{
    for (int64_t i = 0; i < count; i++)
        body(context, i);
}

void pool_run(struct thread_pool *pool, int64_t count, void (*body)(void *context, int64_t index), void *context)
{
    if (!pool || pool->workers == 0 || count <= 1 || pthread_mutex_trylock(&pool->busy)) {
        run_alone(count, body, context);
        return;
    }
    pthread_mutex_lock(&pool->lock);
    pool->count = count;
    pool->body = body;
    pool->context = context;
    atomic_store(&pool->next, 0);
    pool->joined = pool->active = 0;
    pool->limit = count - 1 < pool->workers ? (int)(count - 1) : pool->workers;
    pool->open = true;
    atomic_fetch_add(&pool->loop, 1);
    pthread_cond_broadcast(&pool->opened);
    pthread_mutex_unlock(&pool->lock);
    take_indices(pool);
    pthread_mutex_lock(&pool->lock);
    pool->open = false;
    while (pool->active > 0)
        pthread_cond_wait(&pool->left, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
    pthread_mutex_unlock(&pool->busy);
}
