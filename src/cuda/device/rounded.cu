/* A finished tile, rounded to bf16, on its way from the accumulators to those who run the epilogue, or to memory: half of it in
 * shared memory at once, the other half in registers. */

#define SLAB_BYTES (16 * ROW_BYTES)
#if OUT_COPIED /* as the copy engine takes it: boxes of 64 columns, whose 16-byte chunks change places by the row */
#define SLAB_BOX 2048
INLINE u32 chunk_at(u32 rows, int row, int chunk) { return rows + row * 128 + ((chunk ^ row & 7) << 4); }
INLINE u32 sixteen_at(u32 first, int j) { return (first ^ j % 4 << 5) + j / 4 * SLAB_BOX; }
#else /* so that neither stores of 8 rows nor loads of 2 x 4 chunks meet in a bank */
INLINE int row_swizzle(int row) { return (row & 1) << 2 | (row >> 1 & 3); }
INLINE u32 chunk_at(u32 rows, int row, int chunk) { return rows + row * ROW_BYTES + ((chunk ^ row_swizzle(row)) << 4); }
INLINE u32 sixteen_at(u32 first, int j) { return first ^ j << 5; }
#endif

/* What each row's numbers are multiplied by before they are rounded, of a thread's rows r and r + 8. */
struct Factors {
    float of[ACCUMULATORS][2];
};
/* A word of rounded accumulators, of row r or r + 8, from fragment index i. */
INLINE u32 round_pair(const float *d, int i, const Factors &factors)
{
    if (!HAS_FACTORS)
        return pack_bf16(d[2 * i], d[2 * i + 1]);
    const float f = factors.of[i / (TILE_COLUMNS / 4)][i & 1];
    return pack_bf16(d[2 * i] * f, d[2 * i + 1] * f);
}
/* The first index of the 16 columns j of a half in the fragment: halves of all accumulators lie side by side. */
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
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(sixteen_at(chunk_at(rows, row, lane >> 4), j)), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}
/* Rounds the fragment: its first half into shared memory, the second (if the tile is kept in two) into registers. */
INLINE void keep_rounded(const float *d, const Factors &factors, u32 rows, u32 *kept, int lane)
{
    UNROLL for (int j = 0; j < SIXTEENS; j++)
    {
        const int i = sixteen(0, j) / 2;
        store_sixteen(rows, j, lane, round_pair(d, i, factors), round_pair(d, i + 1, factors), round_pair(d, i + 2, factors),
                      round_pair(d, i + 3, factors));
    }
    if (HALVES > 1)
        UNROLL for (int j = 0; j < SIXTEENS; j++)
        UNROLL for (int w = 0; w < 4; w++) kept[4 * j + w] = round_pair(d, sixteen(1, j) / 2 + w, factors);
    __syncwarp();
}
INLINE void store_kept(const u32 *kept, u32 rows, int lane)
{
    UNROLL for (int j = 0; j < SIXTEENS; j++)
        store_sixteen(rows, j, lane, kept[4 * j], kept[4 * j + 1], kept[4 * j + 2], kept[4 * j + 3]);
    __syncwarp();
}
