/* What the vector and matrix units of this machine reach: loops of products alone, one line an instruction set.
 *
 *     gcc -O2 -pthread bench/cpu_peaks.c -o build/cpu_peaks && build/cpu_peaks [threads]
 *
 * fma: multiply-adds of f32 in registers; dpbf16: pairs of bf16 (VDPBF16PS) in registers; amx: tile products in registers;
 * amx+loads: with a tile load before each product, from a working set of 8 and 64 KB a thread. */
#include <immintrin.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
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

__attribute__((target("avx2,fma"))) static void fma_256(char *memory, int64_t rounds)
{
    __m256 sum[12], a = _mm256_loadu_ps((float *)memory), b = _mm256_loadu_ps((float *)memory + 8);
    for (int i = 0; i < 12; i++)
        sum[i] = a;
    for (int64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            sum[i] = _mm256_fmadd_ps(a, b, sum[i]);
        __asm__ volatile("" : "+x"(a));
    }
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++)
        _mm256_storeu_ps((float *)memory + 16 + 8 * i, sum[i]);
}

__attribute__((target("avx512f"))) static void fma_512(char *memory, int64_t rounds)
{
    __m512 sum[24], a = _mm512_loadu_ps(memory), b = _mm512_loadu_ps(memory + 64);
    for (int i = 0; i < 24; i++)
        sum[i] = a;
    for (int64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 24
        for (int i = 0; i < 24; i++)
            sum[i] = _mm512_fmadd_ps(a, b, sum[i]);
        __asm__ volatile("" : "+v"(a));
    }
#pragma GCC unroll 24
    for (int i = 0; i < 24; i++)
        _mm512_storeu_ps(memory + 128 + 64 * i, sum[i]);
}

__attribute__((target("avx512f,avx512bf16"))) static void dot_512(char *memory, int64_t rounds)
{
    __m512 sum[24];
    __m512i a = _mm512_loadu_si512(memory), b = _mm512_loadu_si512(memory + 64);
    for (int i = 0; i < 24; i++)
        sum[i] = _mm512_castsi512_ps(a);
    for (int64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 24
        for (int i = 0; i < 24; i++)
            sum[i] = _mm512_dpbf16_ps(sum[i], (__m512bh)a, (__m512bh)b);
        __asm__ volatile("" : "+v"(a));
    }
#pragma GCC unroll 24
    for (int i = 0; i < 24; i++)
        _mm512_storeu_ps(memory + 128 + 64 * i, sum[i]);
}

static const unsigned char configuration[64] = {
    [0] = 1,   [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64, [26] = 64, [28] = 64, [30] = 64,
    [48] = 16, [49] = 16, [50] = 16, [51] = 16, [52] = 16, [53] = 16, [54] = 16, [55] = 16};
#define LOAD(tile, at) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(at), "r"(64L) : "memory")
#define DOT(sum, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sum : : : "memory")

static void begin_tiles(void)
{
    __asm__ volatile("ldtilecfg (%0)" : : "r"(configuration) : "memory");
}

static void end_tiles(void)
{
    __asm__ volatile("tilerelease" : : : "memory");
}

static void tiles_alone(char *memory, int64_t rounds)
{
    begin_tiles();
    LOAD(4, memory);
    LOAD(5, memory);
    LOAD(6, memory);
    LOAD(7, memory);
    for (int64_t r = 0; r < rounds; r++) {
        DOT(0, 4, 6);
        DOT(1, 4, 7);
        DOT(2, 5, 6);
        DOT(3, 5, 7);
    }
    end_tiles();
}

static void tiles_from(char *memory, int64_t rounds, int64_t size)
{
    begin_tiles();
    for (int64_t r = 0, at = 0; r < rounds; r++, at = (at + 4096) % size) {
        LOAD(6, memory + at);
        LOAD(4, memory + at + 1024);
        DOT(0, 4, 6);
        LOAD(7, memory + at + 2048);
        DOT(1, 4, 7);
        LOAD(5, memory + at + 3072);
        DOT(2, 5, 6);
        DOT(3, 5, 7);
    }
    end_tiles();
}

static void tiles_8(char *memory, int64_t rounds)
{
    tiles_from(memory, rounds, 8 << 10);
}

static void tiles_64(char *memory, int64_t rounds)
{
    tiles_from(memory, rounds, 64 << 10);
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
        {"fma 256", 12 * 16, fma_256, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")},
        {"fma 512", 24 * 32, fma_512, __builtin_cpu_supports("avx512f")},
        {"dpbf16 512", 24 * 64, dot_512, bf16},
        {"amx", 4 * 16384, tiles_alone, amx},
        {"amx+loads 8 KB", 4 * 16384, tiles_8, amx},
        {"amx+loads 64 KB", 4 * 16384, tiles_64, amx},
    };
    if (threads < 1 || threads > MAX_THREADS)
        return 2;
    for (unsigned i = 0; i < sizeof loops / sizeof *loops; i++) {
        double best = 1e9;
        now = &loops[i];
        for (int round = 0; now->supported && round < 9; round++) {
            pthread_t thread[MAX_THREADS];
            double start = seconds();
            for (int t = 0; t < threads; t++)
                pthread_create(&thread[t], NULL, work, aligned_alloc(4096, 1 << 17));
            for (int t = 0; t < threads; t++)
                pthread_join(thread[t], NULL);
            double time = seconds() - start;
            best = time < best ? time : best;
        }
        if (now->supported)
            printf("%-16s %d threads %9.1f GFLOP/s\n", now->name, threads, now->flops * ROUNDS * threads / best * 1e-9);
    }
    return 0;
}
