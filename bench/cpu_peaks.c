/* What the vector and matrix units of this machine reach: loops of products alone, one line an instruction set.
 *
 *     gcc -O2 -pthread bench/cpu_peaks.c -o build/cpu_peaks && build/cpu_peaks [threads]
 *
 * fma: multiply-adds of f32 in registers; dpbf16: pairs of bf16 (VDPBF16PS) in registers; amx: tile products in registers;
 * amx+loads: with a tile load before each product, from a working set of 8 and 64 KB a thread; 4 tiles: with three loads for
 * two products and half of the tiles in use. */
#include "../cli/peak_loops.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 1 << 20, MAX_THREADS = 64 };

struct loop {
    const char *name;
    double flops; /* of a round */
    void (*run)(char *memory, int64_t rounds);
    int supported;
};

/* Four sums share each pair of loads, with all eight tiles in use; from `size` bytes, 0: without loads. */
static void eight_tiles(char *memory, int64_t rounds, int64_t size) /* NOLINT(readability-non-const-parameter) */
{
    peak_begin_tiles();
    for (int64_t r = 0; size == 0 && r < rounds; r++) {
        PEAK_DOT(0, 4, 6);
        PEAK_DOT(1, 4, 7);
        PEAK_DOT(2, 5, 6);
        PEAK_DOT(3, 5, 7);
    }
    for (int64_t r = 0, at = 0; size > 0 && r < rounds; r++, at = (at + 4096) % size) {
        PEAK_LOAD(6, memory + at);
        PEAK_LOAD(4, memory + at + 1024);
        PEAK_DOT(0, 4, 6);
        PEAK_LOAD(7, memory + at + 2048);
        PEAK_DOT(1, 4, 7);
        PEAK_LOAD(5, memory + at + 3072);
        PEAK_DOT(2, 5, 6);
        PEAK_DOT(3, 5, 7);
    }
    peak_end_tiles();
}

static void tiles_alone(char *memory, int64_t rounds)
{
    eight_tiles(memory, rounds, 0);
}

static void tiles_8(char *memory, int64_t rounds)
{
    eight_tiles(memory, rounds, 8 << 10);
}

static void tiles_64(char *memory, int64_t rounds)
{
    eight_tiles(memory, rounds, 64 << 10);
}

static void few_tiles_8(char *memory, int64_t rounds)
{
    peak_tiles(memory, rounds, 8 << 10);
}

static void few_tiles_64(char *memory, int64_t rounds)
{
    peak_tiles(memory, rounds, 64 << 10);
}

static const struct loop *now;

static void *work(void *memory)
{
    now->run(memory, ROUNDS);
    return NULL;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int count, char **word)
{
    const int threads = count > 1 ? atoi(word[1]) : 1;
    __builtin_cpu_init();
    const int bf16 = __builtin_cpu_supports("avx512bf16");
    unsigned a = 7, b, c = 0, d;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    const int amx = (d >> 22 & 1) && syscall(SYS_arch_prctl, 0x1023, 18) == 0;
    const struct loop loops[] = {
        {"fma 256", FMA_256_FLOPS, fma_256, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")},
        {"fma 512", FMA_512_FLOPS, fma_512, __builtin_cpu_supports("avx512f")},
        {"dpbf16 512", PAIRS_512_FLOPS, pairs_512, bf16},
        {"amx", TILES_FLOPS, tiles_alone, amx},
        {"amx+loads 8 KB", TILES_FLOPS, tiles_8, amx},
        {"amx+loads 64 KB", TILES_FLOPS, tiles_64, amx},
        {"amx, 4 tiles 8 KB", TILES_FLOPS, few_tiles_8, amx},
        {"amx, 4 tiles 64 KB", TILES_FLOPS, few_tiles_64, amx},
    };
    if (threads < 1 || threads > MAX_THREADS)
        return 2;
    char *memory[MAX_THREADS];
    for (int t = 0; t < threads; t++)
        memset(memory[t] = aligned_alloc(4096, PEAK_MEMORY), 0, PEAK_MEMORY);
    for (unsigned i = 0; i < sizeof loops / sizeof *loops; i++) {
        double best = 1e9;
        now = &loops[i];
        for (int round = 0; now->supported && round < 9; round++) {
            pthread_t thread[MAX_THREADS];
            double start = seconds();
            for (int t = 0; t < threads; t++)
                pthread_create(&thread[t], NULL, work, memory[t]);
            for (int t = 0; t < threads; t++)
                pthread_join(thread[t], NULL);
            double time = seconds() - start;
            best = time < best ? time : best;
        }
        if (now->supported)
            printf("%-18s %d threads %9.1f GFLOP/s\n", now->name, threads, now->flops * ROUNDS * threads / best * 1e-9);
    }
    return 0;
}
