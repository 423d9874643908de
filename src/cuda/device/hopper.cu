/* Products on Hopper (sm_90a): a persistent block of three warpgroups. One thread of the first brings operands by TMA into a
 * ring of stages, the other warps of the first compute row values; the second and third multiply by wgmma, a band of 64 rows
 * each. CLUSTER blocks one below the other share the right operand by multicast.
 *
 * Direct: the epilogue follows the tile, on f32 accumulators in registers.
 * Deferred: at a tile's end the accumulators are rounded to bf16 and kept in shared memory; the epilogue's groups run between
 * the next tile's products, spread evenly, while the matrix units work. */

#define TILE_ROWS 128
#define DEPTH 64
#define TOTAL_COLUMNS (TILE_COLUMNS * ACCUMULATORS)
#define LEFT_BYTES (TILE_ROWS * DEPTH * 2)
#define RIGHT_BYTES (TOTAL_COLUMNS * DEPTH * 2)
#define BOXES (TOTAL_COLUMNS / BOX_ROWS / CLUSTER) /* of the right operand, that this block brings */
#define GROUPS (TILE_COLUMNS / GROUP_COLUMNS)
#define BAND_BYTES (64 * TOTAL_COLUMNS * 2) /* of rounded accumulators */
#define ROW_BYTES (TOTAL_COLUMNS * 2)
#define HAS_VALUES (VALUES > 0 || WRITES_ROWS)
#define FRAGMENT (TOTAL_COLUMNS / 2)

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

/* A matrix in shared memory with 128-byte swizzle. K-major: eights of rows 1024 bytes apart. MN-major: eights of K 1024 bytes
 * apart, 64 of M or N 8192 bytes apart. */
INLINE u64 matrix_descriptor(u32 address, bool k_major)
{
    u64 d = (u64)((address & 0x3ffff) >> 4);
    d |= (u64)(k_major ? 1 : DEPTH * 128 >> 4) << 16;
    d |= (u64)(1024 >> 4) << 32;
    return d | (u64)1 << 62;
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
    u32 slots;
    int rank, cluster, clusters, tiles, steps;
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
                bring(left + 8192, P.map + left_map(s), full, tile.m + 64, k);
#endif
                UNROLL for (int i = 0; i < BOXES; i++)
                {
                    const u32 right = block.right + stage * RIGHT_BYTES + (block.rank * BOXES + i) * BOX_ROWS * 128;
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

struct Ring {
    int stage;
    u32 phase, previous; /* previous: the barrier of the stage before, which the products still read */
};

INLINE void release_stage(u32 barrier, int thread)
{
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
INLINE void multiply_step(float *d, const Block &block, Ring &ring, int band, int thread, bool first)
{
    barrier_wait(block.full + 8 * ring.stage, ring.phase);
    const u64 a = matrix_descriptor(block.left + ring.stage * LEFT_BYTES + band * 8192, LEFT_K_MAJOR);
    const u64 b = matrix_descriptor(block.right + ring.stage * RIGHT_BYTES, RIGHT_K_MAJOR);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    wgmma(d, a, b, !first);
    wgmma(d, a + STEP_LEFT, b + STEP_RIGHT, 1);
    wgmma(d, a + 2 * STEP_LEFT, b + 2 * STEP_RIGHT, 1);
    wgmma(d, a + 3 * STEP_LEFT, b + 3 * STEP_RIGHT, 1);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    if (!first)
        release_stage(ring.previous, thread);
    ring.previous = block.empty + 8 * ring.stage;
    if (++ring.stage == STAGES)
        ring.stage = 0, ring.phase ^= 1;
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

INLINE void run_consumer(const Params &P, const Block &block, int band, int thread)
{
    Ring ring = {0, 0, 0};
    u32 count = 0;
    ROLLED for (int t = block.cluster; t < block.tiles; t += block.clusters, count++)
    {
        const Tile tile = tile_at(P, t, block.rank);
        const int buffer = count & 1;
        const Place at = place_at(thread, tile.m + 64 * band, tile.n, block.values + buffer * VALUES * TILE_ROWS + 64 * band,
                                  block.scratch + band * OVER_ROWS * 4 * SCRATCH_COLUMNS);
        float d[FRAGMENT];
        UNROLL for (int i = 0; i < FRAGMENT; i++) asm volatile("" : "=f"(d[i])); /* the first product overwrites it */
        ROLLED for (int k = 0; k < block.steps; k++) multiply_step(d, block, ring, band, thread, k == 0);
        Inputs in[2];
        coda_fetch(P, at, 0, in[0]);
        if (HAS_VALUES)
            barrier_wait(block.values_full + 8 * buffer, count >> 1 & 1);
        wgmma_wait(d);
        release_stage(ring.previous, thread);
        State state;
        coda_start(state);
        UNROLL for (int c = 0; c < GROUPS; c++)
        {
            Accumulators acc;
            if (c + 1 < GROUPS)
                coda_fetch(P, at, c + 1, in[(c + 1) & 1]);
            take_accumulators(acc, d, c, at.quad);
            coda_group(P, at, c, acc, in[c & 1], state);
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

/* Rounds the fragment and keeps it in the warp's own 16 rows. */
INLINE void keep_rounded(const float *d, u32 rows, int lane)
{
    const int row = (lane >> 3 & 1) * 8 + (lane & 7);
    const u32 to = rows + row * ROW_BYTES + ((lane >> 4 ^ row_swizzle(row)) << 4);
    UNROLL for (int j = 0; j < TOTAL_COLUMNS / 16; j++)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to ^ j << 5),
                     "r"(pack_bf16(d[8 * j], d[8 * j + 1])), "r"(pack_bf16(d[8 * j + 2], d[8 * j + 3])),
                     "r"(pack_bf16(d[8 * j + 4], d[8 * j + 5])), "r"(pack_bf16(d[8 * j + 6], d[8 * j + 7]))
                     : "memory");
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
                           ((4 * (a * (TILE_COLUMNS / 32) + coda_block(c, b)) + quad ^ row_swizzle(row)) << 4));
    __syncwarp(); /* coda_group may use the place for parts of runs of rows */
}

/* A tile whose epilogue is pending. */
struct Pending {
    int m, n;
    u32 count; /* of tiles before it; the parity chooses the buffer of values */
    int next;  /* group */
};

INLINE Place pending_place(const Block &block, const Pending &pending, int band, int thread)
{
    return place_at(thread, pending.m + 64 * band, pending.n,
                    block.values + (pending.count & 1) * VALUES * TILE_ROWS + 64 * band,
                    (float *)(block.rounded + band * BAND_BYTES));
}

INLINE void run_group(const Params &P, const Block &block, Pending &pending, State &state, u32 rows, u32 slots, int band,
                      int thread)
{
    const Place at = pending_place(block, pending, band, thread);
    const int c = pending.next++;
    if (HAS_VALUES && c == 0)
        barrier_wait(block.values_full + 8 * (pending.count & 1), pending.count >> 1 & 1);
    Inputs in;
    if (INPUTS > 0) {
        COPY_WAIT(0);
        coda_take(in, slots);
    }
    Accumulators acc;
    take_accumulators(acc, rows, c, at.lane);
    coda_group(P, at, c, acc, in, state);
    if (INPUTS > 0 && c + 1 < GROUPS) {
        coda_issue(P, at, c + 1, slots);
        copy_commit();
    }
    if (c + 1 == GROUPS) {
        if (OVER_ROWS > 0) {
            group_sync(2 + band);
            coda_finish(P, at);
            group_sync(2 + band);
        }
        if (HAS_VALUES)
            barrier_arrive(block.values_empty + 8 * (pending.count & 1));
    }
}

INLINE void run_consumer(const Params &P, const Block &block, int band, int thread)
{
    const u32 rows = shared_address(block.rounded) + band * BAND_BYTES + (thread >> 5) * 16 * ROW_BYTES;
    const u32 slots = block.slots + band * INPUT_SLOTS * 2048 + thread * 16;
    /* The second band is half a group behind, so that one of the two always feeds the matrix units. */
    const int late = band ? block.steps / (2 * GROUPS) : 0;
    Ring ring = {0, 0, 0};
    Pending pending = {0, 0, 0, GROUPS};
    State state;
    coda_start(state);
    u32 count = 0;
    ROLLED for (int t = block.cluster; t < block.tiles; t += block.clusters, count++)
    {
        float d[FRAGMENT];
        UNROLL for (int i = 0; i < FRAGMENT; i++) asm volatile("" : "=f"(d[i])); /* the first product overwrites it */
        int due = pending.next < GROUPS ? block.steps / GROUPS - late : block.steps + 1;
        ROLLED for (int k = 0; k < block.steps; k++)
        {
            multiply_step(d, block, ring, band, thread, k == 0);
            ROLLED while (k + 1 >= due)
            {
                run_group(P, block, pending, state, rows, slots, band, thread);
                due = pending.next < GROUPS ? (pending.next + 1) * block.steps / GROUPS - late : block.steps + 1;
            }
        }
        wgmma_wait(d);
        release_stage(ring.previous, thread);
        keep_rounded(d, rows, thread & 31);
        const Tile tile = tile_at(P, t, block.rank);
        pending.m = tile.m, pending.n = tile.n, pending.count = count, pending.next = 0;
        coda_start(state);
        if (INPUTS > 0) {
            coda_issue(P, pending_place(block, pending, band, thread), 0, slots);
            copy_commit();
        }
    }
    ROLLED while (pending.next < GROUPS) run_group(P, block, pending, state, rows, slots, band, thread);
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
    block.slots = shared_address(next);
    next += DEFERRED ? 2 * INPUT_SLOTS * 2048 : 0;
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
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0)
            run_producer(P, block);
        else if (HAS_VALUES && threadIdx.x >= 32)
            run_prologue(P, block, threadIdx.x - 32);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        run_consumer(P, block, warpgroup - 1, threadIdx.x & 127);
    }
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
#endif
}
