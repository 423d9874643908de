/* AMX's tile registers as arrays, in the place of runtime/amx_tiles.h, so that the code for them can be tested where the
 * processor has none. Sums follow TDPBF16PS: even and odd steps of K apart, then both added to what is there. */
#ifndef CODA_RUNTIME_AMX_TILES_H
#define CODA_RUNTIME_AMX_TILES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static _Thread_local uint32_t tile_register[8][16][16];

static void tile_load(int tile, const void *from, int64_t stride)
{
    for (int i = 0; i < 16; i++)
        memcpy(tile_register[tile][i], (const char *)from + i * stride, 64);
}

static void tile_store(int tile, void *to, int64_t stride)
{
    for (int i = 0; i < 16; i++)
        memcpy((char *)to + i * stride, tile_register[tile][i], 64);
}

static float tile_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void tile_dot(int sum, int a, int b)
{
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++) {
            float even = 0, odd = 0, all = tile_float(tile_register[sum][m][n]);
            for (int k = 0; k < 16; k++) {
                const uint32_t left = tile_register[a][m][k], right = tile_register[b][k][n];
                even = fmaf(tile_float(left << 16), tile_float(right << 16), even);
                odd = fmaf(tile_float(left & 0xffff0000u), tile_float(right & 0xffff0000u), odd);
            }
            all += even + odd;
            memcpy(&tile_register[sum][m][n], &all, sizeof all);
        }
}

#define TILE_LOAD(tile, from, stride) tile_load(tile, from, stride)
#define TILE_STORE(tile, to, stride)  tile_store(tile, to, stride)
#define TILE_ZERO(tile)               memset(tile_register[tile], 0, sizeof tile_register[tile])
#define TILE_DOT(sum, a, b)           tile_dot(sum, a, b)

/* What a thread finds in its tiles is nothing to rely on. */
static void tiles_begin(void)
{
    memset(tile_register, 0xff, sizeof tile_register);
}

static void tiles_end(void)
{
    tiles_begin();
}

#endif
