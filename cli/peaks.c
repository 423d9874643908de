/* What the arithmetic units of the processor reach: loops of products alone, of the instruction set that the CPU device
 * uses. Other processors, and plain C, have none. */
#include "cli.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

enum { ROUNDS = 1 << 15, WORKING_SET = 64 << 10 };

typedef void peak_loop(char *memory);

__attribute__((target("avx2,fma"))) static void fma_256(char *memory)
{
    __m256 sum[12], a = _mm256_loadu_ps((float *)(void *)memory);
    for (int i = 0; i < 12; i++)
        sum[i] = a;
    for (int r = 0; r < ROUNDS; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            sum[i] = _mm256_fmadd_ps(a, a, sum[i]);
        __asm__ volatile("" : "+x"(a));
    }
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++)
        _mm256_storeu_ps((float *)(void *)memory + 8 * i, sum[i]);
}

__attribute__((target("avx512f"))) static void fma_512(char *memory)
{
    __m512 sum[24], a = _mm512_loadu_ps(memory);
    for (int i = 0; i < 24; i++)
        sum[i] = a;
    for (int r = 0; r < ROUNDS; r++) {
#pragma GCC unroll 24
        for (int i = 0; i < 24; i++)
            sum[i] = _mm512_fmadd_ps(a, a, sum[i]);
        __asm__ volatile("" : "+v"(a));
    }
#pragma GCC unroll 24
    for (int i = 0; i < 24; i++)
        _mm512_storeu_ps(memory + 64 * i, sum[i]);
}

__attribute__((target("avx512f,avx512bf16"))) static void pairs_512(char *memory)
{
    __m512 sum[24];
    __m512i a = _mm512_loadu_si512(memory);
    for (int i = 0; i < 24; i++)
        sum[i] = _mm512_castsi512_ps(a);
    for (int r = 0; r < ROUNDS; r++) {
#pragma GCC unroll 24
        for (int i = 0; i < 24; i++)
            sum[i] = _mm512_dpbf16_ps(sum[i], (__m512bh)a, (__m512bh)a);
        __asm__ volatile("" : "+v"(a));
    }
#pragma GCC unroll 24
    for (int i = 0; i < 24; i++)
        _mm512_storeu_ps(memory + 64 * i, sum[i]);
}

/* The device asked the system for tiles when it opened. */
#define TILE_LOAD(tile, at) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(at), "r"(64L) : "memory")
#define TILE_DOT(sum, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sum : : : "memory")

/* Four sums share each pair of loads, as in a product. */
static void tiles(char *memory) /* NOLINT(readability-non-const-parameter) */
{
    static const unsigned char configuration[64] = {
        [0] = 1,   [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64, [26] = 64, [28] = 64, [30] = 64,
        [48] = 16, [49] = 16, [50] = 16, [51] = 16, [52] = 16, [53] = 16, [54] = 16, [55] = 16};
    __asm__ volatile("ldtilecfg (%0)" : : "r"(configuration) : "memory");
    for (int r = 0, at = 0; r < ROUNDS; r++, at = (at + 4096) % WORKING_SET) {
        TILE_LOAD(6, memory + at);
        TILE_LOAD(4, memory + at + 1024);
        TILE_DOT(0, 4, 6);
        TILE_LOAD(7, memory + at + 2048);
        TILE_DOT(1, 4, 7);
        TILE_LOAD(5, memory + at + 3072);
        TILE_DOT(2, 5, 6);
        TILE_DOT(3, 5, 7);
    }
    __asm__ volatile("tilerelease" : : : "memory");
}

static const struct peak {
    const char *set; /* as the device's description names it */
    double flops;    /* of a round */
    peak_loop *run;
} peaks[] = {{"amx", 4 * 16384, tiles},
             {"avx512bf16", 24 * 64, pairs_512},
             {"avx512", 24 * 32, fma_512},
             {"avx2", 12 * 16, fma_256}};

static void run_loop(void *context, int64_t thread)
{
    _Alignas(64) static const char zeros[64] = {0};
    _Alignas(64) char memory[WORKING_SET + 4096];
    (void)thread;
    for (size_t i = 0; i < sizeof memory; i += sizeof zeros)
        memcpy(memory + i, zeros, sizeof zeros);
    ((const struct peak *)context)->run(memory);
}

double measure_peak(coda_device *device)
{
    static const char prefix[] = "instruction set ";
    const char *description = coda_device_description(device);
    const int threads = coda_device_threads(device) > 0 ? coda_device_threads(device) : 1;
    double best = 0;
    if (strncmp(description, prefix, sizeof prefix - 1) != 0)
        return 0;
    const char *name = description + sizeof prefix - 1;
    for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++)
        for (int round = 0; round < 12; round++) {
            const size_t length = strlen(peaks[i].set);
            if (strncmp(name, peaks[i].set, length) != 0 || name[length] != ',')
                break;
            const double start = now_ms();
            coda_parallel_for(device, threads, run_loop, (void *)&peaks[i]);
            const double gflops = peaks[i].flops * ROUNDS * threads / (now_ms() - start) * 1e-6;
            best = gflops > best ? gflops : best;
        }
    return best;
}
#else
double measure_peak(coda_device *device)
{
    (void)device;
    return 0;
}
#endif
