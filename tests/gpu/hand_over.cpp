/* What hand_over.py puts under the text of hopper.cu and warps.cu: barriers, counters and warpgroups of threads. A thread is
 * lane 0 of a warp; products and epilogues are delays. Every unit must be run once, on the rows that were meant for it. */
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <unistd.h>
#include <vector>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
#define INLINE static inline
#define UNROLL
#define ROLLED
#define ALL_LANES 0xffffffffu
#define TILE_COLUMNS 256
#define GROUP_COLUMNS 32
#define ACCUMULATORS 1
#define STAGES 3
#define CLUSTER 1
#define BOX_ROWS 64
#define DEPTH 64
#define FLIGHT 1
#define SLOTS 0
#define COPY_BYTES 0
#define EPILOGUE_ASIDE 1
#define WRITES_ROWS 0
#define PROBLEMS 1
#define ROTATIONS 0
#ifndef SPREAD
#define SPREAD 0
#endif
#define ONE_ANGLE SPREAD
#define LEFT_K_MAJOR 1
#define RIGHT_K_MAJOR 1
#define SIXTEENS (HALF_COLUMNS / 16)

/* ---------------------------------------------------------------- the generated text, as delays */

struct Map {
    int none;
};
struct Params {
    Map map[4];
    int group, row_tiles, column_tiles, whole, all_wide, rows, columns, depth;
};
#define ROWS (P.rows)
#define COLUMNS (P.columns)
INLINE int SEGMENTS(int) { return 1; }
INLINE int depth_of(const Params &P, int, int) { return P.depth; }
INLINE int left_map(int) { return 0; }
INLINE int right_map(const Params &, int, int, int &) { return 0; }
struct Place {
    int row, column, lane;
    const float *values;
};
INLINE Place place_at(int thread, int row, int, const float *values, float *)
{
    Place at = {row, 0, thread & 31, values};
    return at;
}
struct State {};
struct Ahead {};
struct Inputs {};
struct Accumulators {};
INLINE int block_of(int c, int) { return c; }
INLINE void coda_start(State &) {}
template <bool FAST> INLINE void coda_ahead(const Params &, const Place &, int, Ahead &) {}
template <bool FAST> INLINE void coda_angles(const Params &, const Place &, int, Ahead &) {}
template <bool FAST> INLINE void coda_fetch(const Params &, const Place &, int, Inputs &) {}
template <bool FAST>
INLINE void coda_group(const Params &, const Place &, int, const Accumulators &, const Inputs &, const Ahead &, State &)
{
}
INLINE void coda_copy(const Params &, const Place &, int, u32) {}
INLINE void coda_take(Inputs &, u32, int) {}
INLINE void coda_hold(Inputs &, Ahead &) {}
INLINE void coda_finish(const Params &, const Place &at, int, int);
INLINE void copy_commit() {}
#define COPY_WAIT(pending)
template <typename T> INLINE void fill_values(const Params &, T, int, int, bool, int, int) {}

/* ---------------------------------------------------------------- instructions */

enum { SHARED = 1 << 17, ROUNDED = 1 << 16, VALUES_FULL = 16 * STAGES, SLAB_FULL = VALUES_FULL + 32 };
static char shared[SHARED];
INLINE u32 shared_address(const void *p) { return (u32)((const char *)p - shared); }

struct Stopped {};
static std::atomic<bool> stop;
static std::atomic<long> progress;
static int laziness; /* per cent of chances that are taken to be late */
static thread_local u64 chance;

INLINE void give_way()
{
    if (stop)
        throw Stopped();
    std::this_thread::yield();
}
INLINE void be_late(u32 most)
{
    chance = chance * 6364136223846793005ull + 1442695040888963407ull;
    const u32 r = (u32)(chance >> 33);
    if ((int)(r % 100) < laziness)
        for (u32 i = 0; i < r / 100 % (most + 1); i++)
            give_way();
}

struct Barrier {
    std::mutex mutex;
    int count, pending;
    std::atomic<u32> phase;
};
static Barrier barrier[64];
static std::atomic<u32> counter[128];

INLINE void barrier_init(u32 b, int count)
{
    barrier[b / 8].count = barrier[b / 8].pending = count;
    barrier[b / 8].phase = 0;
}
INLINE void arrive(u32 b, int threads)
{
    Barrier &it = barrier[b / 8];
    std::lock_guard<std::mutex> lock(it.mutex);
    progress++;
    it.pending -= threads;
    if (it.pending == 0)
        it.pending = it.count, it.phase++;
}
/* At row values all lanes arrive. */
INLINE void barrier_arrive(u32 b) { arrive(b, b >= VALUES_FULL && b < SLAB_FULL ? 32 : 1); }
INLINE void barrier_arrive_at(u32 b) { arrive(b, 1); }
INLINE void barrier_expect(u32 b, u32) { arrive(b, 1); }
INLINE bool barrier_test(u32 b, u32 parity) { return (barrier[b / 8].phase & 1) != (parity & 1); }
INLINE void barrier_wait(u32 b, u32 parity)
{
    while (!barrier_test(b, parity))
        give_way();
}
INLINE void barrier_doze(u32 b, u32 parity)
{
    for (int i = 0; i < 50 && !barrier_test(b, parity); i++)
        give_way();
}
INLINE void count_more(u32 c) { counter[c / 4]++; }
INLINE u32 count_so_far(u32 c) { return counter[c / 4]; }
INLINE void shared_store_4(u32 c, u32 value) { counter[c / 4] = value; }
INLINE u32 address_in(u32 address, u32) { return address; }
INLINE void bring(u32, const Map *, u32, int, int) {}
INLINE void ask(const Map *, int, int) {}
INLINE void __syncwarp() {}
template <typename T> INLINE T __shfl_sync(u32, T value, int) { return value; }
INLINE bool __all_sync(u32, bool answer) { return answer; }

/* ---------------------------------------------------------------- warpgroups, and what is in a slab */

struct Meeting {
    std::atomic<int> there, number;
};
static Meeting warpgroup[2], consumers;
static thread_local int mine, tiles_done;
INLINE void meet(Meeting &at, int size)
{
    const int number = at.number;
    if (++at.there == size)
        at.there = 0, at.number++;
    else
        while (at.number == number)
            give_way();
}
INLINE void wait_for_group() { meet(warpgroup[mine], 4); }
INLINE void group_sync(int b) { meet(warpgroup[b - 2], 4); }
INLINE void consumers_sync() { meet(consumers, 8); }
INLINE void wgmma(float *, u64, u64, int) { be_late(3); }
INLINE void wgmma_half(float *, u64, u64, int) { be_late(3); }
INLINE void wgmma_wait(float *d)
{
    wait_for_group();
    d[0] = (float)tiles_done++;
}

#include "hopper.inc"

enum { MOST_UNITS = 4096 };
/* slab: which half of the tiles it holds; part: of which its unit left parts of runs of rows; runs: of a unit */
static std::atomic<int> slab[8], part[8], runs[MOST_UNITS], wrong;
static thread_local int wanted;
INLINE u32 slab_of(u32 rows) { return (rows - ROUNDED) / (16 * ROW_BYTES); }
INLINE void keep_rounded(const float *d, u32 rows, u32 *kept, int)
{
    be_late(20);
    slab[slab_of(rows)] = 2 * (int)d[0] + 1;
    kept[0] = (u32)d[0];
}
INLINE void store_kept(const u32 *kept, u32 rows, int)
{
    be_late(20);
    slab[slab_of(rows)] = 2 * (int)kept[0] + 2;
}
INLINE void unit_begins(u32 count, u32 index)
{
    wanted = 2 * (int)count + (HALVES > 1 ? (int)index >> 3 : 0) + 1;
    runs[(count * 16 + index) % MOST_UNITS]++;
}
INLINE void take_accumulators(Accumulators &, u32 rows, int c, int)
{
    if (c == 0)
        be_late(400);
    if (slab[slab_of(rows)] != wanted)
        wrong++;
    if (c == TILE_COLUMNS / GROUP_COLUMNS / HALVES - 1)
        part[slab_of(rows)] = wanted;
}
INLINE void coda_finish(const Params &, const Place &at, int, int)
{
    for (int i = 0; OVER_ROWS && i < 4; i++)
        wrong += part[at.row / 64 % 2 * 4 + i] != wanted;
}
INLINE u32 pack_tile(const Tile &tile) { return (u32)tile.m / TILE_ROWS << 16 | (u32)tile.n / PLACE_COLUMNS; }
INLINE int packed_row(u32 tile) { return (tile >> 16) * TILE_ROWS; }
INLINE int packed_column(u32 tile) { return (tile & 0xffff) * PLACE_COLUMNS; }

#include "warps.inc"

/* ---------------------------------------------------------------- rounds */

static Block make_block(const Params &P, int cluster, int clusters)
{
    static float values[4096];
    Block block = {};
    block.full = 0, block.empty = 8 * STAGES;
    block.values_full = VALUES_FULL, block.values_empty = VALUES_FULL + 16;
    block.slab_full = SLAB_FULL, block.slab_empty = SLAB_FULL + 64;
    block.finished = block.slab_empty + 64, block.handed = block.finished + 64;
    block.rounded = shared + ROUNDED, block.values = block.scratch = values;
    block.cluster = cluster, block.clusters = clusters;
    block.tiles = 2 * P.row_tiles * P.column_tiles - P.whole, block.steps = P.depth / DEPTH;
    for (int i = 0; i < STAGES; i++)
        barrier_init(block.full + 8 * i, 1), barrier_init(block.empty + 8 * i, 2);
    for (int i = 0; i < 2; i++)
        barrier_init(block.values_full + 8 * i, 96), barrier_init(block.values_empty + 8 * i, 96);
    for (int i = 0; i < 8; i++)
        barrier_init(block.slab_full + 8 * i, 1), barrier_init(block.slab_empty + 8 * i, 1),
            barrier_init(block.finished + 8 * i, 1), slab[i] = part[i] = 0;
    for (auto &c : counter)
        c = 0;
    for (auto &r : runs)
        r = 0;
    for (Meeting *m : {&warpgroup[0], &warpgroup[1], &consumers})
        m->there = 0, m->number = 0;
    stop = false, wrong = 0;
    return block;
}

static void run_warp(const Params &P, const Block &block, int warp, u64 seed)
{
    chance = seed;
    try {
        if (warp == 0) {
            run_producer(P, block);
        } else if (warp < 4) {
            run_epilogue(P, block, 32 * (warp - 1));
        } else {
            mine = warp / 4 - 1, tiles_done = 0;
            run_consumer(P, block, mine, 32 * (warp % 4));
        }
    } catch (Stopped &) {
    }
}

/* Units of the block that were not run once. */
static int missed_units(const Params &P, const Block &block)
{
    int missed = 0, count = 0;
    for (int t = block.cluster; t < block.tiles; t += block.clusters, count++)
        for (int unit = 0; unit < (NARROW && !SPREAD && t >= P.whole ? 8 : 8 * HALVES); unit++)
            missed += runs[(count * 16 + unit) % MOST_UNITS] != 1;
    return missed;
}

static bool one_round(int round)
{
    srand((unsigned)round + 1);
    Params P = {};
    P.group = 2, P.row_tiles = 1 + rand() % 3, P.column_tiles = 1 + rand() % 4;
    P.all_wide = rand() % 4 != 0, P.depth = DEPTH * (1 + rand() % 6);
    P.rows = P.row_tiles * 128 - rand() % 2 * (rand() % 128), P.columns = P.column_tiles * 256 - rand() % 2 * (rand() % 256);
    const int tiles = P.row_tiles * P.column_tiles, clusters = 1 + rand() % 4, left = tiles % clusters;
    P.whole = NARROW && 2 * left <= clusters ? tiles - left : tiles;
    const Block block = make_block(P, rand() % clusters % (2 * tiles - P.whole), clusters);
    laziness = round % 3 == 0 ? 0 : round % 3 == 1 ? 30 : 90;
    std::atomic<int> alive(12);
    std::vector<std::thread> warps;
    for (int i = 0; i < 12; i++)
        warps.emplace_back([&, i] {
            run_warp(P, block, i, (u64)(round * 64 + i) * 0x9E3779B97F4A7C15ull + 12345);
            alive--;
        });
    /* Nothing has moved for ten seconds, which no load of the machine explains: it hangs. */
    for (long last = -1, still = 0; alive > 0 && !stop; last = progress) {
        usleep(2000);
        still = progress == last ? still + 1 : 0;
        stop = still > 5000;
    }
    for (auto &w : warps)
        w.join();
    const int missed = stop ? 0 : missed_units(P, block);
    if (stop || wrong || missed)
        printf("round %d %s, %d groups took other rows, %d units were not run once\n", round, stop ? "hangs" : "ends",
               (int)wrong, missed);
    return !stop && !wrong && !missed;
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? atoi(argv[1]) : 20;
    int failures = 0;
    for (int i = 0; i < rounds; i++)
        failures += !one_round(i);
    printf("%d rounds, %d failures\n", rounds, failures);
    return failures != 0;
}
