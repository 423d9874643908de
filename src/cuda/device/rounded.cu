/* A finished tile, rounded to bf16, on its way from the accumulators to those who run the epilogue: half of it in shared
 * memory at once, the other half in registers. */

/* 16-byte chunks of a row change places by the row, so that neither stores of 8 rows nor loads of 2 x 4 chunks meet in a
 * bank. */
INLINE int row_swizzle(int row) { return (row & 1) << 2 | (row >> 1 & 3); }

/* Two words of rounded accumulators: 8 columns, rows r and r + 8, from fragment index i. */
INLINE u32 round_pair(const float *d, int i) { return pack_bf16(d[2 * i], d[2 * i + 1]); }
/* Where block b of group c of a half lies in shared memory, and the first index of its 16 columns j in the fragment: halves
 * of all accumulators lie side by side. */
INLINE int kept_block(int c, int b) { return SPREAD ? c * BLOCKS + b : coda_block(c, b); }
INLINE int sixteen(int half, int j)
{
    const int each = HALF_COLUMNS / 16, i = j % each, block = i / 2;
    const int inside = SPREAD ? 2 * (coda_block(block / BLOCKS, block % BLOCKS) + block_of(half, 0)) + i % 2 : half * each + i;
    return 8 * (j / each * (TILE_COLUMNS / 16) + inside);
}
#define SIXTEENS (HALF_COLUMNS * ACCUMULATORS / 16)

/* Stores four words for 16 rows by 16 columns in the warp's own rows. */
INLINE void store_sixteen(u32 rows, int j, int lane, u32 a, u32 b, u32 c, u32 d)
{
    const int row = (lane >> 3 & 1) * 8 + (lane & 7);
    const u32 to = rows + row * ROW_BYTES + ((lane >> 4 ^ row_swizzle(row)) << 4);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to ^ j << 5), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}
/* Rounds the fragment: its first half into shared memory, the second (if the tile is kept in two) into registers. */
INLINE void keep_rounded(const float *d, u32 rows, u32 *kept, int lane)
{
    UNROLL for (int j = 0; j < SIXTEENS; j++)
    {
        const int i = sixteen(0, j) / 2;
        store_sixteen(rows, j, lane, round_pair(d, i), round_pair(d, i + 1), round_pair(d, i + 2), round_pair(d, i + 3));
    }
    if (HALVES > 1)
        UNROLL for (int j = 0; j < SIXTEENS; j++)
        UNROLL for (int w = 0; w < 4; w++) kept[4 * j + w] = round_pair(d, sixteen(1, j) / 2 + w);
    __syncwarp();
}
INLINE void store_kept(const u32 *kept, u32 rows, int lane)
{
    UNROLL for (int j = 0; j < SIXTEENS; j++)
        store_sixteen(rows, j, lane, kept[4 * j], kept[4 * j + 1], kept[4 * j + 2], kept[4 * j + 3]);
    __syncwarp();
}
INLINE void take_accumulators(Accumulators &acc, u32 rows, int c, int lane)
{
    const int row = lane >> 2, quad = lane & 3;
    UNROLL for (int a = 0; a < ACCUMULATORS; a++)
    UNROLL for (int b = 0; b < BLOCKS; b++)
    UNROLL for (int h = 0; h < 2; h++)
        shared_load_16(acc.w[a][b][h],
                       rows + (row + 8 * h) * ROW_BYTES +
                           ((4 * (a * (HALF_COLUMNS / 32) + kept_block(c, b)) + quad ^ row_swizzle(row)) << 4));
    __syncwarp(); /* coda_group may use the place for parts of runs of rows */
}

/* A tile in one register: registers are what these loops are short of. */
INLINE u32 pack_tile(const Tile &tile) { return (u32)tile.m / TILE_ROWS << 16 | (u32)tile.n / PLACE_COLUMNS; }
INLINE int packed_row(u32 tile) { return (tile >> 16) * TILE_ROWS; }
INLINE int packed_column(u32 tile) { return (tile & 0xffff) * PLACE_COLUMNS; }
