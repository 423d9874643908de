/* Products on Hopper (sm_90a): a persistent block of three warpgroups. One thread of the first brings operands by TMA into a
 * ring of stages, the other warps of the first compute row values; the second and third multiply by wgmma, a band of 64 rows
 * each. CLUSTER blocks one below the other share the right operand by multicast. Where an epilogue runs is told by the text
 * that follows: direct.cu or warps.cu. */

#define TILE_ROWS 128
#define TOTAL_COLUMNS (TILE_COLUMNS * ACCUMULATORS)
#define LEFT_BYTES (TILE_ROWS * DEPTH * 2)
#define RIGHT_BYTES (TOTAL_COLUMNS * DEPTH * 2)
#define BOXES (TOTAL_COLUMNS / BOX_ROWS / CLUSTER) /* of the right operand, that this block brings */
#define GROUPS (TILE_COLUMNS / GROUP_COLUMNS)
#define HALF_COLUMNS (TILE_COLUMNS / HALVES)  /* of an accumulator, that are in shared memory at once */
#define ROW_BYTES (HALF_COLUMNS * ACCUMULATORS * 2)
#define BAND_BYTES (64 * ROW_BYTES)
#define HAS_VALUES (VALUES > 0 || WRITES_ROWS)
#define FRAGMENT (TOTAL_COLUMNS / 2)
#if EPILOGUE_ASIDE /* by the warps beside the producer */
#define PRODUCER_REGISTERS (HALVES > 1 ? 136 : 168)
#define CONSUMER_REGISTERS (HALVES > 1 ? 184 : 168)
#else
#define PRODUCER_REGISTERS 24
#define CONSUMER_REGISTERS 240
#endif

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
INLINE bool barrier_test(u32 barrier, u32 phase)
{
    u32 done;
    asm volatile("{\n.reg .pred P;\nmbarrier.test_wait.parity.shared::cta.b64 P, [%1], %2;\nselp.u32 %0, 1, 0, P;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(phase)
                 : "memory");
    return done;
}
/* How often something was handed over. Relaxed: what was handed over is ordered by the barrier beside it. */
INLINE void count_more(u32 counter)
{
    asm volatile("red.relaxed.cta.shared.add.u32 [%0], 1;" ::"r"(counter) : "memory");
}
INLINE u32 count_so_far(u32 counter)
{
    u32 count;
    asm volatile("ld.relaxed.cta.shared.u32 %0, [%1];" : "=r"(count) : "r"(counter) : "memory");
    return count;
}
/* Sleeps until the phase ends, or for a while. */
INLINE void barrier_doze(u32 barrier, u32 phase)
{
    asm volatile("{\n.reg .pred P;\nmbarrier.try_wait.parity.shared::cta.b64 P, [%0], %1;\n}" ::"r"(barrier), "r"(phase)
                 : "memory");
}
INLINE void barrier_arrive(u32 barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Where another block of the cluster has what lies at `address` here. */
INLINE u32 address_in(u32 address, u32 block)
{
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
    return there;
}
/* Without qualifiers: a release at cluster scope costs a fence a step, a third of the speed. */
INLINE void barrier_arrive_at(u32 barrier)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
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
/* Asks for a box of an operand to be in L2. */
INLINE void ask(const Map *map, int x, int y)
{
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(map), "r"(x), "r"(y) : "memory");
}
/* One thread of a warp, so that the compiler knows that there is only one: else each copy becomes a loop over threads. */
INLINE bool elect(void)
{
    u32 elected;
    asm volatile("{\n.reg .pred P;\nelect.sync _|P, 0xffffffff;\nselp.u32 %0, 1, 0, P;\n}" : "=r"(elected));
    return elected;
}
INLINE void consumers_sync(void) { asm volatile("bar.sync 4, 256;" ::: "memory"); }
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

/* What a launch works on: one problem, or several of one program whose lists of tiles follow each other (launch.c). */
#if PROBLEMS > 1
struct Work {
    Params problem[PROBLEMS]; /* `whole` counts in the joined list, so all have the same */
    int first[PROBLEMS];      /* of a problem's tiles; where there is none, more than all */
    int tiles;                /* of all problems, before narrow ones take the place of some */
};
INLINE int problem_at(const Work &W, int place)
{
    int problem = 0;
    UNROLL for (int i = 1; i < PROBLEMS; i++) problem += place >= W.first[i];
    return problem;
}
INLINE const Params &first_problem(const Work &W) { return W.problem[0]; }
INLINE const Params &problem_of(const Work &W, int place) { return W.problem[problem_at(W, place)]; }
INLINE int tile_of_problem(const Work &W, int place) { return place - W.first[problem_at(W, place)]; }
INLINE int places(const Work &W) { return W.tiles; }
#else
typedef Params Work;
INLINE const Params &first_problem(const Work &W) { return W; }
INLINE const Params &problem_of(const Work &W, int) { return W; }
INLINE int tile_of_problem(const Work &, int place) { return place; }
INLINE int places(const Work &W) { return W.row_tiles * W.column_tiles; }
#endif

struct Tile {
    int m, n; /* first row and column */
};
/* From P.whole on, tiles are half as wide, two in the place of one: the last wave, which would leave most of the GPU idle.
 * A block has at most one of them, its last tile (launch.c). K's order is that of whole tiles, so the bits are too. */
INLINE bool is_narrow(const Params &P, int t) { return NARROW && t >= P.whole; }
/* Which half of a whole tile, counted from the first narrow one; 0: not a half. */
INLINE int half_of(const Params &P, int t) { return is_narrow(P, t) ? t - P.whole : 0; }
/* The operands of tile t. */
INLINE const Params &params_of(const Work &W, int t)
{
    return problem_of(W, PROBLEMS > 1 ? t - (half_of(first_problem(W), t) + 1) / 2 : t);
}
#define PLACE_COLUMNS (NARROW ? TILE_COLUMNS / 2 : TILE_COLUMNS) /* tiles begin at multiples of these */
INLINE Tile tile_at(const Work &W, int t, int rank)
{
    const int half = half_of(first_problem(W), t);
    t -= (half + 1) / 2;
    const Params &P = problem_of(W, t);
    t = tile_of_problem(W, t);
    const int per_group = P.group * P.column_tiles, g = t / per_group, r = t - g * per_group;
    const int rows = P.row_tiles - g * P.group < P.group ? P.row_tiles - g * P.group : P.group;
    Tile tile;
    tile.m = ((g * P.group + r % rows) * CLUSTER + rank) * TILE_ROWS;
    tile.n = r / rows * TILE_COLUMNS + (half & 1) * PLACE_COLUMNS;
    return tile;
}

INLINE int count_steps(const Params &P)
{
    int steps = 0;
    for (int s = 0; s < SEGMENTS(0); s++)
        steps += (depth_of(P, 0, s) + DEPTH - 1) / DEPTH;
    return steps;
}

/* Everything that all warps know. */
struct Block {
    u32 left, right, full, empty, values_full, values_empty; /* shared memory */
    u32 slab_full, slab_empty; /* of 16 rows that are handed over */
    u32 handed;                /* how often each was */
    u32 finished;              /* parts of runs of rows, of 16 rows each */
    u32 slots;                                               /* for inputs of the epilogue's warps */
    float *values, *scratch;
    char *rounded;
    int rank, cluster, clusters, tiles;
    u32 steps; /* of K, where there is one problem */
};

INLINE u32 steps_of(const Params &P, const Block &block) { return PROBLEMS > 1 ? count_steps(P) : block.steps; }

/* Where slots of inputs have taken a stage from the ring, operands are asked for in L2 before their turn: each box by one of
 * the blocks that will bring it at about this time, of 8 tiles beside each other and 8 below. */
#define ASK_STEPS (SLOTS > 0 ? 4 : 0)
#define ASK_SHARE 8
INLINE void ask_for_step(const Params &P, const Tile &tile, int s, const Map *const *map, const int *row, int k)
{
    const int turn = k / DEPTH % ASK_SHARE;
    if (turn == tile.n / TILE_COLUMNS % ASK_SHARE) {
        ask(P.map + left_map(s), LEFT_K_MAJOR ? k : tile.m, LEFT_K_MAJOR ? tile.m : k);
        if (!LEFT_K_MAJOR)
            ask(P.map + left_map(s), tile.m + 64, k);
    }
    if (turn == tile.m / (TILE_ROWS * CLUSTER) % ASK_SHARE)
        UNROLL for (int i = 0; i < BOXES; i++) ask(map[i], RIGHT_K_MAJOR ? k : row[i], RIGHT_K_MAJOR ? row[i] : k);
}

INLINE void run_producer(const Work &W, const Block &block)
{
    int stage = 0;
    u32 phase = 1;
    ROLLED for (int t = block.cluster; t < block.tiles; t += block.clusters)
    {
        const Params &P = params_of(W, t);
        const Tile tile = tile_at(W, t, block.rank);
        const int boxes = is_narrow(P, t) ? BOXES / 2 : BOXES, first = block.rank * boxes * BOX_ROWS;
        const u32 bytes = LEFT_BYTES + boxes * CLUSTER * BOX_ROWS * K_ROW_BYTES;
        ROLLED for (int s = 0; s < SEGMENTS(0); s++)
        {
            const Map *map[BOXES];
            int row[BOXES];
            UNROLL for (int i = 0; i < BOXES; i++)
            {
                const int column = (first + i * BOX_ROWS) % TOTAL_COLUMNS;
                row[i] = tile.n + column % TILE_COLUMNS;
                map[i] = P.map + right_map(P, column / TILE_COLUMNS, s, row[i]);
            }
            const int depth = depth_of(P, 0, s);
            ROLLED for (int k = 0; k < depth; k += DEPTH)
            {
                const u32 full = block.full + 8 * stage;
                barrier_wait(block.empty + 8 * stage, phase);
                barrier_expect(full, bytes);
                const u32 left = block.left + stage * LEFT_BYTES;
#if LEFT_K_MAJOR
                bring(left, P.map + left_map(s), full, k, tile.m);
#else
                bring(left, P.map + left_map(s), full, tile.m, k);
                bring(left + 64 * K_ROW_BYTES, P.map + left_map(s), full, tile.m + 64, k);
#endif
                UNROLL for (int i = 0; i < BOXES; i++)
                {
                    if (NARROW && i >= boxes)
                        break;
                    const u32 right = block.right + stage * RIGHT_BYTES + (first + i * BOX_ROWS) * K_ROW_BYTES;
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
                if (ASK_STEPS > 0 && k + ASK_STEPS * DEPTH < depth)
                    ask_for_step(P, tile, s, map, row, k + ASK_STEPS * DEPTH);
            }
        }
    }
}

/* Row values, by the 96 threads beside the producer: two buffers, so that they are a tile ahead. */
INLINE void run_prologue(const Work &W, const Block &block, int thread)
{
    u32 count = 0;
    ROLLED for (int t = block.cluster; t < block.tiles; t += block.clusters, count++)
    {
        const Params &P = params_of(W, t);
        const Tile tile = tile_at(W, t, block.rank);
        const int buffer = count & 1;
        barrier_wait(block.values_empty + 8 * buffer, (count >> 1 & 1) ^ 1);
        fill_values(P, block.values + buffer * VALUES * TILE_ROWS, tile.m, TILE_ROWS, tile.n == 0, thread, 96);
        barrier_arrive(block.values_full + 8 * buffer);
    }
}

/* ---------------------------------------------------------------- products */

/* The next step's stage: descriptors of its operands (low words), and its full barrier; the next stage to give back. */
struct Ring {
    u32 left, right, full, phase;
    u32 empty, last; /* in the block that this thread tells; its barrier of the last stage */
};
INLINE Ring ring_start(const Block &block, int band, int thread)
{
    Ring ring;
    ring.left = descriptor(block.left + band * 64 * K_ROW_BYTES, LEFT_K_MAJOR);
    ring.right = descriptor(block.right, RIGHT_K_MAJOR);
    ring.full = block.full, ring.phase = 0;
    ring.empty = CLUSTER > 1 ? address_in(block.empty, thread % CLUSTER) : block.empty;
    ring.last = ring.empty + 8 * (STAGES - 1);
    return ring;
}

/* Gives back the stage of the earliest step that was not given back. */
INLINE void release_stage(Ring &ring, int thread)
{
    if (thread < CLUSTER)
        barrier_arrive_at(ring.empty);
    ring.empty = ring.empty == ring.last ? ring.last - 8 * (STAGES - 1) : ring.empty + 8;
}

#define STEP_LEFT (LEFT_K_MAJOR ? 2 : 128)
#define STEP_RIGHT (RIGHT_K_MAJOR ? 2 : 128)
/* Starts the products of one step; of a narrow tile, by half the columns. */
template <bool HALF> INLINE void start_step(float *d, const Block &block, Ring &ring, bool first)
{
    barrier_wait(ring.full, ring.phase);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    UNROLL for (int i = 0; i < DEPTH / 16; i++)
    {
        const u64 left = with_high(ring.left + i * STEP_LEFT, LEFT_K_MAJOR);
        const u64 right = with_high(ring.right + i * STEP_RIGHT, RIGHT_K_MAJOR);
        if (HALF)
            wgmma_half(d, left, right, i > 0 || !first);
        else
            wgmma(d, left, right, i > 0 || !first);
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    ring.left += LEFT_BYTES >> 4, ring.right += RIGHT_BYTES >> 4, ring.full += 8;
    if (ring.full == block.empty) {
        ring.left -= STAGES * LEFT_BYTES >> 4, ring.right -= STAGES * RIGHT_BYTES >> 4, ring.full = block.full;
        ring.phase ^= 1;
    }
}
/* Waits until FLIGHT steps are in flight, and gives the stage of the one before them back. */
INLINE void finish_step(Ring &ring, int thread)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(FLIGHT) : "memory");
    release_stage(ring, thread);
}
/* After wgmma_wait: gives back the stages that the last steps used. */
INLINE void finish_all(u32 steps, Ring &ring, int thread)
{
    UNROLL for (int i = FLIGHT; i >= 1; i--) if (i <= steps) release_stage(ring, thread);
}
