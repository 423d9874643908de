/* Loops of nothing but products, of each instruction set: what the units of an x86-64 processor reach. `memory` is of
 * PEAK_MEMORY bytes, aligned to 64; the caller has asked the system for tiles. */
#ifndef CODA_CLI_PEAK_LOOPS_H
#define CODA_CLI_PEAK_LOOPS_H

#include <immintrin.h>
#include <stdint.h>

enum { PEAK_MEMORY = 128 << 10 };

/* Multiply-adds of a round, times two. */
enum { FMA_256_FLOPS = 12 * 16, FMA_512_FLOPS = 24 * 32, PAIRS_512_FLOPS = 24 * 64, TILES_FLOPS = 4 * 16384 };

__attribute__((target("avx2,fma"))) static void fma_256(char *memory, int64_t rounds)
{
    __m256 sum[12], a = _mm256_loadu_ps((float *)(void *)memory);
    for (int i = 0; i < 12; i++)
        sum[i] = a;
    for (int64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            sum[i] = _mm256_fmadd_ps(a, a, sum[i]);
        __asm__ volatile("" : "+x"(a));
    }
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++)
        _mm256_storeu_ps((float *)(void *)memory + 8 * i, sum[i]);
}

__attribute__((target("avx512f"))) static void fma_512(char *memory, int64_t rounds)
{
    __m512 sum[24], a = _mm512_loadu_ps(memory);
    for (int i = 0; i < 24; i++)
        sum[i] = a;
    for (int64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 24
        for (int i = 0; i < 24; i++)
            sum[i] = _mm512_fmadd_ps(a, a, sum[i]);
        __asm__ volatile("" : "+v"(a));
    }
#pragma GCC unroll 24
    for (int i = 0; i < 24; i++)
        _mm512_storeu_ps(memory + 64 * i, sum[i]);
}

__attribute__((target("avx512f,avx512bf16"))) static void pairs_512(char *memory, int64_t rounds)
{
    __m512 sum[24];
    __m512i a = _mm512_loadu_si512(memory);
    for (int i = 0; i < 24; i++)
        sum[i] = _mm512_castsi512_ps(a);
    for (int64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 24
        for (int i = 0; i < 24; i++)
            sum[i] = _mm512_dpbf16_ps(sum[i], (__m512bh)a, (__m512bh)a);
        __asm__ volatile("" : "+v"(a));
    }
#pragma GCC unroll 24
    for (int i = 0; i < 24; i++)
        _mm512_storeu_ps(memory + 64 * i, sum[i]);
}

#define PEAK_LOAD(tile, at) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(at), "r"(64L) : "memory")
#define PEAK_DOT(sum, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sum : : : "memory")

static void peak_begin_tiles(void)
{
    static const unsigned char configuration[64] = {
        [0] = 1,   [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64, [26] = 64, [28] = 64, [30] = 64,
        [48] = 16, [49] = 16, [50] = 16, [51] = 16, [52] = 16, [53] = 16, [54] = 16, [55] = 16};
    __asm__ volatile("ldtilecfg (%0)" : : "r"(configuration) : "memory");
}

static void peak_end_tiles(void)
{
    __asm__ volatile("tilerelease" : : : "memory");
}

/* Two sums share a left operand, with four tiles in use, as in our products. */
static void peak_tiles(char *memory, int64_t rounds, int64_t size) /* NOLINT(readability-non-const-parameter) */
{
    peak_begin_tiles();
    for (int64_t r = 0, at = 0; r < 2 * rounds; r++, at = (at + 4096) % size) {
        PEAK_LOAD(2, memory + at);
        PEAK_LOAD(3, memory + at + 1024);
        PEAK_DOT(0, 2, 3);
        PEAK_LOAD(3, memory + at + 2048);
        PEAK_DOT(1, 2, 3);
    }
    peak_end_tiles();
}

#endif
