/* Products on Hopper (sm_90a): a persistent block of three warpgroups. One thread of the first brings operands by TMA into a
 * ring of stages, the other warps of the first compute row values; the second and third multiply by wgmma, a band of 64 rows
 * each. CLUSTER blocks one below the other share the right operand by multicast.
 *
 * Direct: the epilogue follows the tile, on f32 accumulators in registers.
 * Deferred: at a tile's end the accumulators are rounded to bf16 and kept in shared memory; the epilogue's groups run between
 * the next tile's products, spread evenly, while the matrix units work. */

#define TILE_ROWS 128
#define TOTAL_COLUMNS (TILE_COLUMNS * ACCUMULATORS)
#define LEFT_BYTES (TILE_ROWS * DEPTH * 2)
#define RIGHT_BYTES (TOTAL_COLUMNS * DEPTH * 2)
#define BOXES (TOTAL_COLUMNS / BOX_ROWS / CLUSTER) /* of the right operand, that this block brings */
#define GROUPS (TILE_COLUMNS / GROUP_COLUMNS)
#define HALF_COLUMNS (TILE_COLUMNS / HALVES)  /* of an accumulator, that are in shared memory at once */
#define ALL_PIECES (GROUPS * PIECES)    /* of an epilogue: a group, or the half of one */
#define HALF_PIECES (ALL_PIECES / HALVES)
#define ROW_BYTES (HALF_COLUMNS * ACCUMULATORS * 2)
#define BAND_BYTES (64 * ROW_BYTES)
#define HAS_VALUES (VALUES > 0 || WRITES_ROWS)
#define FRAGMENT (TOTAL_COLUMNS / 2)
#define PRODUCER_REGISTERS 24
#define CONSUMER_REGISTERS 240

/* ---------------------------------------------------------------- barriers and copies */

INLINE void barrier_init(u32 barrier, u32 count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
INLINE void barrier_expect(u32 barrier, u32 bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
INLINE void barrier_wait(u32 barrier, u32 phase)
{
    asm volatile("{\n.reg .pred P;\nW_%=:\nmbarrier.try_wait.parity.shared::cta.b64 P, [%0], %1;\n@P bra D_%=;\nbra "
                 "W_%=;\nD_%=:\n}" ::"r"(barrier),
                 "r"(phase)
                 : "memory");
}
INLINE void barrier_arrive(u32 barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Without qualifiers: a release at cluster scope costs a fence a step, a third of the speed. */
INLINE void barrier_arrive_at(u32 barrier, u32 block)
{
    asm volatile("{\n.reg .b32 r;\nmapa.shared::cluster.u32 r, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [r];\n}" ::"r"(
                     barrier),
                 "r"(block)
                 : "memory");
}
INLINE void bring(u32 to, const Map *map, u32 barrier, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
                 "[%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y)
                 : "memory");
}
INLINE void bring_to_all(u32 to, const Map *map, u32 barrier, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1, {%3, %4}], [%2], %5;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "h"((u16)((1 << CLUSTER) - 1))
                 : "memory");
}
INLINE void group_sync(int barrier) { asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory"); }

/* A matrix in shared memory. K-major: rows of DEPTH elements, swizzled over 8 of them. MN-major: rows of 64 elements along
 * M or N, eights of K 1024 bytes apart, the next 64 elements DEPTH rows later. */
#define K_ROW_BYTES (DEPTH * 2)
INLINE u32 descriptor(u32 address, bool k_major)
{
    return (address & 0x3ffff) >> 4 | (u32)(k_major ? 1 : DEPTH * 128 >> 4) << 16;
}
INLINE u64 with_high(u32 low, bool k_major)
{
    const u32 high = (k_major ? 8 * K_ROW_BYTES : 1024) >> 4 | (k_major && DEPTH == 32 ? 2u : 1u) << 30;
    return (u64)high << 32 | low;
}

/* ---------------------------------------------------------------- the walk over tiles */

struct Tile {
    int m, n; /* first row and column */
};
INLINE Tile tile_at(const Params &P, int t, int rank)
{
    const int per_group = P.group * P.column_tiles, g = t / per_group, r = t - g * per_group;
    const int rows = P.row_tiles - g * P.group < P.group ? P.row_tiles - g * P.group : P.group;
    Tile tile;
    tile.m = ((g * P.group + r % rows) * CLUSTER + rank) * TILE_ROWS;
    tile.n = r / rows * TILE_COLUMNS;
    return tile;
}

/* Everything that all warps know. */
struct Block {
    u32 left, right, full, empty, values_full, values_empty; /* shared memory */
    float *values, *scratch;
    char *rounded;
    int rank, cluster, clusters, tiles;
    u32 steps; /* of K */
    u32 warm;  /* pieces between a request to L2 and the load: some 8 steps */
};

INLINE void run_producer(const Params &P, const Block &block)
{
    int stage = 0;
    u32 phase = 1;
    ROLLED for (int t = block.cluster; t < block.tiles; t += block.clusters)
    {
        const Tile tile = tile_at(P, t, block.rank);
        ROLLED for (int s = 0; s < SEGMENTS(0); s++)
        {
            const Map *map[BOXES];
            int row[BOXES];
            UNROLL for (int i = 0; i < BOXES; i++)
            {
                const int column = (block.rank * BOXES + i) * BOX_ROWS;
                row[i] = tile.n + column % TILE_COLUMNS;
                map[i] = P.map + right_map(P, column / TILE_COLUMNS, s, row[i]);
            }
            const int depth = depth_of(P, 0, s);
            ROLLED for (int k = 0; k < depth; k += DEPTH)
            {
                const u32 full = block.full + 8 * stage;
                barrier_wait(block.empty + 8 * stage, phase);
                barrier_expect(full, LEFT_BYTES + RIGHT_BYTES);
                const u32 left = block.left + stage * LEFT_BYTES;
#if LEFT_K_MAJOR
                bring(left, P.map + left_map(s), full, k, tile.m);
#else
                bring(left, P.map + left_map(s), full, tile.m, k);
                bring(left + 64 * K_ROW_BYTES, P.map + left_map(s), full, tile.m + 64, k);
#endif
                UNROLL for (int i = 0; i < BOXES; i++)
                {
                    const u32 right = block.right + stage * RIGHT_BYTES + (block.rank * BOXES + i) * BOX_ROWS * K_ROW_BYTES;
#if RIGHT_K_MAJOR
                    const int x = k, y = row[i];
#else
                    const int x = row[i], y = k;
#endif
#if CLUSTER > 1
                    bring_to_all(right, map[i], full, x, y);
#else
                    bring(right, map[i], full, x, y);
#endif
                }
                if (++stage == STAGES)
                    stage = 0, phase ^= 1;
            }
        }
    }
}

/* Row values, by the 96 threads beside the producer: two buffers, so that they are a tile ahead. */
INLINE void run_prologue(const Params &P, const Block &block, int thread)
{
    u32 count = 0;
    ROLLED for (int t = block.cluster; t < block.tiles; t += block.clusters, count++)
    {
        const Tile tile = tile_at(P, t, block.rank);
        const int buffer = count & 1;
        barrier_wait(block.values_empty + 8 * buffer, (count >> 1 & 1) ^ 1);
        fill_values(P, block.values + buffer * VALUES * TILE_ROWS, tile.m, TILE_ROWS, tile.n == 0, thread, 96);
        barrier_arrive(block.values_full + 8 * buffer);
    }
}

/* ---------------------------------------------------------------- products */

/* The next step's stage: descriptors of its operands (low words), and its full barrier. */
struct Ring {
    u32 left, right, full, phase;
};
INLINE Ring ring_start(const Block &block, int band)
{
    Ring ring;
    ring.left = descriptor(block.left + band * 64 * K_ROW_BYTES, LEFT_K_MAJOR);
    ring.right = descriptor(block.right, RIGHT_K_MAJOR);
    ring.full = block.full, ring.phase = 0;
    return ring;
}

/* Gives back the stage of the step `back` before the next one. */
INLINE void release_stage(const Block &block, const Ring &ring, int back, int thread)
{
    u32 barrier = ring.full + 8 * (STAGES - back); /* empty barriers follow full ones */
    if (barrier < block.empty)
        barrier += 8 * STAGES;
#if CLUSTER > 1
    if (thread < CLUSTER)
        barrier_arrive_at(barrier, thread);
#else
    if (thread == 0)
        barrier_arrive(barrier);
#endif
}

#define STEP_LEFT (LEFT_K_MAJOR ? 2 : 128)
#define STEP_RIGHT (RIGHT_K_MAJOR ? 2 : 128)
/* Starts the products of one step. */
INLINE void start_step(float *d, const Block &block, Ring &ring, bool first)
{
    barrier_wait(ring.full, ring.phase);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    UNROLL for (int i = 0; i < DEPTH / 16; i++)
        wgmma(d, with_high(ring.left + i * STEP_LEFT, LEFT_K_MAJOR), with_high(ring.right + i * STEP_RIGHT, RIGHT_K_MAJOR),
              i > 0 || !first);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    ring.left += LEFT_BYTES >> 4, ring.right += RIGHT_BYTES >> 4, ring.full += 8;
    if (ring.full == block.empty) {
        ring.left -= STAGES * LEFT_BYTES >> 4, ring.right -= STAGES * RIGHT_BYTES >> 4, ring.full = block.full;
        ring.phase ^= 1;
    }
}
/* Waits until FLIGHT steps are in flight, and gives the stage of the one before them back. */
INLINE void finish_step(const Block &block, const Ring &ring, int thread)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(FLIGHT) : "memory");
    release_stage(block, ring, 1 + FLIGHT, thread);
}
/* After wgmma_wait: gives back the stages that the last steps used. */
INLINE void finish_all(const Block &block, const Ring &ring, int thread)
{
    UNROLL for (int i = FLIGHT; i >= 1; i--) if (i <= block.steps) release_stage(block, ring, i, thread);
}

/* ---------------------------------------------------------------- direct */

#if !DEFERRED
INLINE void take_accumulators(Accumulators &acc, const float *d, int c, int quad)
{
    UNROLL for (int a = 0; a < ACCUMULATORS; a++)
    UNROLL for (int b = 0; b < BLOCKS; b++)
    UNROLL for (int e = 0; e < 4; e++)
    {
        const float *w = d + 16 * (a * (TILE_COLUMNS / 32) + coda_block(c, b)) + e;
        float v[4] = {w[0], w[4], w[8], w[12]};
        transpose_quad(v[0], v[1], v[2], v[3], quad);
        UNROLL for (int t = 0; t < 4; t++) acc.v[a][b][e >> 1][2 * t + (e & 1)] = v[t];
    }
}

INLINE void direct_fetch(const Params &P, const Place &at, int c, Inputs *in, Ahead *ahead, bool vectors)
{
    coda_fetch<false, 0, 2>(P, at, c, in[c & 1]);
    if (vectors)
        coda_ahead<false>(P, at, c, ahead[c & 1]);
}

INLINE void run_consumer(const Params &P, const Block &block, int band, int thread)
{
    Ring ring = ring_start(block, band);
    u32 count = 0;
    ROLLED for (int t = block.cluster; t < block.tiles; t += block.clusters, count++)
    {
        const Tile tile = tile_at(P, t, block.rank);
        const int buffer = count & 1;
        const Place at = place_at(thread, tile.m + 64 * band, tile.n, block.values + buffer * VALUES * TILE_ROWS + 64 * band,
                                  block.scratch + band * OVER_ROWS * 4 * SCRATCH_COLUMNS);
        float d[FRAGMENT];
        UNROLL for (int i = 0; i < FRAGMENT; i++) asm volatile("" : "=f"(d[i])); /* the first product overwrites it */
        ROLLED for (u32 k = 0; k < block.steps; k++)
        {
            start_step(d, block, ring, k == 0);
            if (k >= FLIGHT)
                finish_step(block, ring, thread);
        }
        Inputs in[2];
        Ahead ahead[2];
        if (HAS_VALUES)
            barrier_wait(block.values_full + 8 * buffer, count >> 1 & 1);
        direct_fetch(P, at, 0, in, ahead, !ROTATIONS);
        wgmma_wait(d);
        finish_all(block, ring, thread);
        State state;
        coda_start(state);
        UNROLL for (int c = 0; c < GROUPS; c++)
        {
            Accumulators acc;
            if (c + 1 < GROUPS)
                direct_fetch(P, at, c + 1, in, ahead, !ROTATIONS);
            if (ROTATIONS) { /* two groups of angles do not fit the registers */
                coda_ahead<false>(P, at, c, ahead[0]);
                coda_angles<false, 0, 2>(P, at, c, ahead[0]);
            }
            take_accumulators(acc, d, c, at.quad);
            coda_group<false, 0, 2>(P, at, c, acc, in[c & 1], ahead[ROTATIONS ? 0 : c & 1], state);
        }
        if (OVER_ROWS > 0) {
            group_sync(2 + band);
            coda_finish(P, at);
            group_sync(2 + band);
        }
        if (HAS_VALUES)
            barrier_arrive(block.values_empty + 8 * buffer);
    }
}
#endif

/* ---------------------------------------------------------------- deferred */

#if DEFERRED
/* 16-byte chunks of a row change places by the row, so that neither stores of 8 rows nor loads of 2 x 4 chunks meet in a
 * bank. */
INLINE int row_swizzle(int row) { return (row & 1) << 2 | (row >> 1 & 3); }

/* Two words of rounded accumulators: 8 columns, rows r and r + 8, from fragment index i. */
INLINE u32 round_pair(const float *d, int i) { return pack_bf16(d[2 * i], d[2 * i + 1]); }
/* The first index of 16 columns j of a half: halves of all accumulators lie side by side. */
INLINE int sixteen(int half, int j)
{
    const int each = HALF_COLUMNS / 16;
    return 8 * (j / each * (TILE_COLUMNS / 16) + half * each + j % each);
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
template <int FIRST, int LAST> INLINE void take_accumulators(Accumulators &acc, u32 rows, int c, int lane)
{
    const int row = lane >> 2, quad = lane & 3;
    UNROLL for (int a = 0; a < ACCUMULATORS; a++)
    UNROLL for (int b = 0; b < BLOCKS; b++)
    UNROLL for (int h = FIRST; h < LAST; h++)
        shared_load_16(acc.w[a][b][h],
                       rows + (row + 8 * h) * ROW_BYTES +
                           ((4 * (a * (HALF_COLUMNS / 32) + coda_block(c, b)) + quad ^ row_swizzle(row)) << 4));
    __syncwarp(); /* coda_group may use the place for parts of runs of rows */
}

/* A tile whose epilogue is pending. */
struct Pending {
    u32 tile;  /* packed */
    u32 count; /* of tiles before it; the parity chooses the buffer of values */
    u32 next;  /* piece */
    bool fast; /* the band lies inside the matrix, everything aligned */
};

/* The tile that is being multiplied: pending next. */
struct Coming {
    u32 tile;
    bool fast, exists;
};
/* A tile in one register: registers are what this loop is short of. */
INLINE u32 pack_tile(const Tile &tile) { return (u32)tile.m / TILE_ROWS << 16 | (u32)tile.n / TILE_COLUMNS; }
INLINE int packed_row(u32 tile, int band) { return (tile >> 16) * TILE_ROWS + 64 * band; }
INLINE int packed_column(u32 tile) { return (tile & 0xffff) * TILE_COLUMNS; }

INLINE Place pending_place(const Block &block, const Pending &pending, int band, int thread)
{
    Place at = place_at(thread, packed_row(pending.tile, band), packed_column(pending.tile),
                        block.values + (pending.count & 1) * VALUES * TILE_ROWS + 64 * band,
                        (float *)(block.rounded + band * BAND_BYTES));
    at.origin += pending.next / HALF_PIECES * HALF_COLUMNS;
    return at;
}

/* Brings what the next piece of the pending tile reads. */
template <bool FAST> INLINE void prefetch_as(const Params &P, const Place &at, u32 piece, Ahead &ahead, Inputs &in)
{
    const int c = piece / PIECES;
    if (piece % PIECES == 0)
        coda_ahead<FAST>(P, at, c, ahead);
    if (PIECES == 1) {
        coda_angles<FAST, 0, 2>(P, at, c, ahead);
        coda_fetch<FAST, 0, 2>(P, at, c, in);
    } else if (piece % 2 == 0) {
        coda_angles<FAST, 0, 1>(P, at, c, ahead);
        coda_fetch<FAST, 0, 1>(P, at, c, in);
    } else {
        coda_angles<FAST, 1, 2>(P, at, c, ahead);
        coda_fetch<FAST, 1, 2>(P, at, c, in);
    }
}
INLINE void prefetch(const Params &P, const Place &at, const Pending &pending, Ahead &ahead, Inputs &in)
{
    if (pending.fast)
        prefetch_as<true>(P, at, pending.next, ahead, in);
    else
        prefetch_as<false>(P, at, pending.next, ahead, in);
}

template <int FIRST, int LAST>
INLINE void run_rows(const Params &P, const Place &at, int c, bool fast, State &state, const Ahead &ahead, const Inputs &in,
                     u32 rows)
{
    Accumulators acc;
    take_accumulators<FIRST, LAST>(acc, rows, c % (GROUPS / HALVES), at.lane);
    if (fast)
        coda_group<true, FIRST, LAST>(P, at, c, acc, in, ahead, state);
    else
        coda_group<false, FIRST, LAST>(P, at, c, acc, in, ahead, state);
}

/* Brings the inputs of the piece `block.warm` pieces later into L2, of the coming tile where the pending one has no more. */
INLINE void warm_later(const Params &P, const Block &block, const Pending &pending, const Coming &coming, u32 piece, int band,
                       int thread)
{
    const bool next = piece + block.warm >= ALL_PIECES;
    const u32 later = piece + block.warm - (next ? ALL_PIECES : 0);
    if (next ? !coming.exists || !coming.fast : !pending.fast)
        return;
    const u32 tile = next ? coming.tile : pending.tile;
    const Place at = place_at(thread, packed_row(tile, band), packed_column(tile), 0, 0);
    if (PIECES == 1)
        coda_warm<0, 2>(P, at, later);
    else if (later % 2 == 0)
        coda_warm<0, 1>(P, at, later / 2);
    else
        coda_warm<1, 2>(P, at, later / 2);
}

INLINE void run_piece(const Params &P, const Block &block, Pending &pending, const Coming &coming, State &state, Ahead &ahead, Inputs &in, u32 *kept,
                      u32 rows, int band, int thread)
{
    const Place at = pending_place(block, pending, band, thread);
    const u32 piece = pending.next++;
    coda_hold(in, ahead);
    if (INPUTS > 0 && block.warm)
        warm_later(P, block, pending, coming, piece, band, thread);
    if (PIECES == 1)
        run_rows<0, 2>(P, at, piece, pending.fast, state, ahead, in, rows);
    else if (piece % 2 == 0)
        run_rows<0, 1>(P, at, piece / 2, pending.fast, state, ahead, in, rows);
    else
        run_rows<1, 2>(P, at, piece / 2, pending.fast, state, ahead, in, rows);
    if (OVER_ROWS > 0 && pending.next % HALF_PIECES == 0) {
        group_sync(2 + band);
        coda_finish(P, at);
        group_sync(2 + band);
    }
    if (pending.next < ALL_PIECES) {
        prefetch(P, at, pending, ahead, in);
        if (HALVES > 1 && pending.next == HALF_PIECES)
            store_kept(kept, rows, at.lane);
    } else if (HAS_VALUES) {
        barrier_arrive(block.values_empty + 8 * (pending.count & 1));
    }
}

INLINE void run_consumer(const Params &P, const Block &block, int band, int thread)
{
    const u32 rows = shared_address(block.rounded) + band * BAND_BYTES + (thread >> 5) * 16 * ROW_BYTES;
    /* The second band is half a piece ahead, so that one of the two always feeds the matrix units. */
    const u32 early = band ? block.steps / (2 * ALL_PIECES) : 0;
    Ring ring = ring_start(block, band);
    Pending pending = {0, 0, ALL_PIECES, false};
    State state;
    Ahead ahead;
    Inputs in;
    u32 kept[HALVES > 1 ? 4 * SIXTEENS : 1];
    UNROLL for (int i = 0; i < (HALVES > 1 ? 4 * SIXTEENS : 1); i++) asm volatile("" : "=r"(kept[i]));
    coda_start(state);
    u32 count = 0;
    ROLLED for (int t = block.cluster; t < block.tiles; t += block.clusters, count++)
    {
        const Tile tile = tile_at(P, t, block.rank);
        const bool fast = P.all_wide && tile.m + 64 * band + 64 <= ROWS && tile.n + TILE_COLUMNS <= COLUMNS;
        const Coming coming = {pack_tile(tile), fast, true};
        float d[FRAGMENT];
        UNROLL for (int i = 0; i < FRAGMENT; i++) asm volatile("" : "=f"(d[i])); /* the first product overwrites it */
        u32 due = pending.next < ALL_PIECES ? block.steps / ALL_PIECES - early : block.steps + 1;
        ROLLED for (u32 k = 0; k < block.steps; k++)
        {
            start_step(d, block, ring, k == 0);
            if (k >= FLIGHT)
                finish_step(block, ring, thread);
            ROLLED while (k + 1 >= due)
            {
                run_piece(P, block, pending, coming, state, ahead, in, kept, rows, band, thread);
                due = pending.next < ALL_PIECES ? (pending.next + 1) * block.steps / ALL_PIECES - early : block.steps + 1;
            }
        }
        pending.tile = coming.tile, pending.count = count, pending.next = 0;
        pending.fast = fast;
        coda_start(state);
        if (HAS_VALUES)
            barrier_wait(block.values_full + 8 * (count & 1), count >> 1 & 1);
        prefetch(P, pending_place(block, pending, band, thread), pending, ahead, in);
        wgmma_wait(d);
        finish_all(block, ring, thread);
        keep_rounded(d, rows, kept, thread & 31);
    }
    const Coming none = {0, false, false};
    ROLLED while (pending.next < ALL_PIECES)
        run_piece(P, block, pending, none, state, ahead, in, kept, rows, band, thread);
}
#endif

/* ---------------------------------------------------------------- the kernel */

INLINE int count_steps(const Params &P)
{
    int steps = 0;
    for (int s = 0; s < SEGMENTS(0); s++)
        steps += (depth_of(P, 0, s) + DEPTH - 1) / DEPTH;
    return steps;
}

extern "C" __global__ void __launch_bounds__(384, 1) coda_kernel(const __grid_constant__ Params P)
{
    extern __shared__ __align__(1024) char shared[];
    Block block;
    char *next = shared + STAGES * (LEFT_BYTES + RIGHT_BYTES);
    block.left = shared_address(shared);
    block.right = block.left + STAGES * LEFT_BYTES;
    block.rounded = next;
    next += DEFERRED ? 2 * BAND_BYTES : 0;
    block.full = shared_address(next), block.empty = block.full + 8 * STAGES;
    block.values_full = block.empty + 8 * STAGES, block.values_empty = block.values_full + 16;
    next += 256;
    block.values = (float *)next;
    block.scratch = (float *)(next + 2 * VALUES * TILE_ROWS * 4);
    block.rank = 0, block.cluster = blockIdx.x, block.clusters = gridDim.x;
#if CLUSTER > 1
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(block.rank));
    block.cluster = blockIdx.x / CLUSTER, block.clusters = gridDim.x / CLUSTER;
#endif
    block.tiles = P.row_tiles * P.column_tiles;
    block.steps = count_steps(P);
    block.warm = 0;
#if DEFERRED
    if (block.steps < 8 * ALL_PIECES)
        block.warm = (8 * ALL_PIECES - 1) / block.steps + 1;
    if (block.warm > ALL_PIECES)
        block.warm = ALL_PIECES;
#endif
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(block.full + 8 * i, 1);
            barrier_init(block.empty + 8 * i, 2 * CLUSTER);
        }
        for (int i = 0; i < 2; i++) {
            barrier_init(block.values_full + 8 * i, 96);
            barrier_init(block.values_empty + 8 * i, 256);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    const int warpgroup = threadIdx.x >> 7;
    if (warpgroup == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (threadIdx.x == 0)
            run_producer(P, block);
        else if (HAS_VALUES && threadIdx.x >= 32)
            run_prologue(P, block, threadIdx.x - 32);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        run_consumer(P, block, warpgroup - 1, threadIdx.x & 127);
    }
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
#endif
}
