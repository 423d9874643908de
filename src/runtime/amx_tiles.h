/* Tile registers of AMX with bf16, for files compiled for them: the device's products and the model's attention.
 *
 * The wrappers are our own because gcc 12's intrinsics name neither the memory they read nor the tiles they change. The
 * system's permission is asked when the CPU device opens. */
#ifndef CODA_RUNTIME_AMX_TILES_H
#define CODA_RUNTIME_AMX_TILES_H

#include <stdint.h>

#define TILE_LOAD(tile, from, stride)                                                                                  \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(from), "r"((int64_t)(stride)) : "memory")
#define TILE_STORE(tile, to, stride)                                                                                   \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(to), "r"((int64_t)(stride)) : "memory")
#define TILE_ZERO(tile)     __asm__ volatile("tilezero %%tmm" #tile : : : "memory")
#define TILE_DOT(sum, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sum : : : "memory")

/* Palette 1; all eight tiles have 16 rows of 64 bytes. */
static const unsigned char tile_configuration[64] = {
    [0] = 1,   [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64, [26] = 64, [28] = 64, [30] = 64,
    [48] = 16, [49] = 16, [50] = 16, [51] = 16, [52] = 16, [53] = 16, [54] = 16, [55] = 16};

/* Around all work on tiles, on its thread. */
static void tiles_begin(void)
{
    __asm__ volatile("ldtilecfg (%0)" : : "r"(tile_configuration) : "memory");
}

static void tiles_end(void)
{
    __asm__ volatile("tilerelease" : : : "memory");
}

#endif
