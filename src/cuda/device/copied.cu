/* Copied: a tile that is an out as it stands goes to memory from shared memory by the copy engine, which stores it or has memory
 * add it. In bf16 half of it does so beside the next tile's first products; in f32 each warp sends its 16 rows in pieces of 64
 * columns. Boxes of 16 rows of 128 bytes end at the matrix's edge by themselves. */

#define BOX_COLUMNS (OUT_F32 ? 32 : 64)
#define PIECE_COLUMNS (SLAB_BYTES / 16 / (OUT_F32 ? 4 : 2)) /* of 16 rows, that are in shared memory at once */
#define LATE_STEP 1 /* of the next tile: the first half has been read by then */

INLINE void copy_out(const Map *map, u32 from, int x, int y)
{
#if OUT_ADDS
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
                 "r"(x), "r"(y), "r"(from)
                 : "memory");
#else
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x),
                 "r"(y), "r"(from)
                 : "memory");
#endif
}
/* A piece of a warp's 16 rows, which lies in `rows`. */
INLINE void send(const Params &P, u32 rows, int row, int column)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* by each lane, for what it wrote */
    __syncwarp();
    if (elect()) {
        UNROLL for (int b = 0; b < PIECE_COLUMNS / BOX_COLUMNS; b++)
            copy_out(P.map + OUT_MAP, rows + b * SLAB_BOX, column + BOX_COLUMNS * b, row);
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
}
/* Until what was sent has been read. */
INLINE void await_sent(void)
{
    if (elect())
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    __syncwarp();
}
INLINE void await_stored(void)
{
    if (elect())
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    __syncwarp();
}

/* All pieces of a warp's 16 rows in f32: lanes of a row's quad hold two columns of each eight. */
INLINE void send_wide(const Params &P, const float *d, const Factors &factors, u32 rows, int row, int column, int columns, int lane)
{
    UNROLL for (int piece = 0; piece < TILE_COLUMNS; piece += PIECE_COLUMNS)
    {
        if (piece >= columns)
            break;
        await_sent();
        UNROLL for (int j = 0; j < PIECE_COLUMNS / 8; j++)
        UNROLL for (int h = 0; h < 2; h++)
        {
            const float *v = d + 4 * (piece / 8 + j) + 2 * h, f = HAS_FACTORS ? factors.of[0][h] : 1.0f;
            const u32 to = chunk_at(rows + j / 4 * SLAB_BOX, (lane >> 2) + 8 * h, j % 4 * 2 + (lane >> 1 & 1)) + (lane & 1) * 8;
            const u32 a = __float_as_uint(v[0] * f), b = __float_as_uint(v[1] * f);
            asm volatile("st.shared.v2.b32 [%0], {%1,%2};" ::"r"(to), "r"(a), "r"(b) : "memory");
        }
        send(P, rows, row, column + piece);
    }
}

/* What waits of the tile before: its second half, for its place. */
struct Late {
    bool waits;
    int row, column;
};
INLINE void send_late(const Params &P, const u32 *kept, u32 rows, Late &late, int lane)
{
    await_sent();
    store_kept(kept, rows, lane);
    send(P, rows, late.row, late.column);
    late.waits = false;
}

/* All steps of a tile. */
template <bool HALF>
INLINE void multiply(const Params &P, float *d, const Block &block, Ring &ring, const u32 *kept, u32 rows, Late &late, int thread)
{
    ROLLED for (u32 k = 0; k < block.steps; k++)
    {
        start_step<HALF>(d, block, ring, k == 0);
        if (k >= FLIGHT)
            finish_step(ring, thread);
        if (k == LATE_STEP && late.waits)
            send_late(P, kept, rows, late, thread & 31);
    }
}

INLINE void run_consumer(const Params &P, const Block &block, int band, int thread)
{
    const int lane = thread & 31, slab = 4 * band + __shfl_sync(ALL_LANES, thread >> 5, 0);
    const u32 rows = shared_address(block.rounded) + slab * SLAB_BYTES;
    Ring ring = ring_start(block, band, thread);
    u32 kept[4 * SIXTEENS], count = 0; /* of f32 never used */
    UNROLL for (int i = 0; i < 4 * SIXTEENS; i++) asm volatile("" : "=r"(kept[i]));
    Late late = {false, 0, 0};
    ROLLED for (int t = block.cluster; t < block.tiles; t += block.clusters, count++)
    {
        float d[FRAGMENT];
        UNROLL for (int i = 0; i < FRAGMENT; i++) asm volatile("" : "=f"(d[i])); /* the first product overwrites it */
        if (is_narrow(P, t))
            multiply<true>(P, d, block, ring, kept, rows, late, thread);
        else
            multiply<false>(P, d, block, ring, kept, rows, late, thread);
        wgmma_wait(d);
        finish_all(block.steps, ring, thread);
        if (late.waits)
            send_late(P, kept, rows, late, lane);
        Factors factors;
        if (HAS_FACTORS) {
            barrier_wait(block.values_full + 8 * (count & 1), count >> 1 & 1);
            coda_factors(block.values + (count & 1) * VALUES * TILE_ROWS + 16 * slab + (lane >> 2), factors.of);
        }
        if (OUT_F32) {
            const Tile tile = tile_at(P, t, block.rank);
            send_wide(P, d, factors, rows, tile.m + 16 * slab, tile.n, is_narrow(P, t) ? TILE_COLUMNS / 2 : TILE_COLUMNS, lane);
        } else {
            await_sent();
            keep_rounded(d, factors, rows, kept, lane);
            const Tile tile = tile_at(P, t, block.rank);
            late.row = tile.m + 16 * slab, late.column = tile.n + HALF_COLUMNS, late.waits = !is_narrow(P, t);
            send(P, rows, late.row, tile.n);
        }
        if (HAS_VALUES)
            barrier_arrive(block.values_empty + 8 * (count & 1));
    }
    if (late.waits)
        send_late(P, kept, rows, late, lane);
    await_stored();
}
