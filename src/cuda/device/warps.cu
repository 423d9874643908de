/* Epilogue warps: the three warps beside the producer take the rounded tile from shared memory and run its epilogue, while
 * the consumers multiply the next one. They share it in units of 16 rows by half of the columns, one after the other, each handed
 * over by barriers of its own. The last tile's epilogue, which nothing overlaps, is the consumers' own, unless the tile is
 * at an edge: text for edges is long, and one copy of it compiles sooner than two. */

#define UNIT_GROUPS (GROUPS / HALVES)
#define SLOT_BYTES (SLOTS > 0 ? COPY_BYTES * 32 : 0) /* what a warp reads for a group, besides accumulators */
#define WARP_SLOTS (SLOTS * SLOT_BYTES)
#define UNIT_UNROLL (SLOTS > 0 || ROTATIONS || BLOCKS > 2 ? 1 : 2) /* groups whose instructions mix */
#define EPILOGUE_WARPS 3

/* Where block b of group c of a half lies in shared memory. */
INLINE int kept_block(int c, int b) { return SPREAD ? c * BLOCKS + b : coda_block(c, b); }
INLINE void take_accumulators(Accumulators &acc, u32 rows, int c, int lane)
{
    const int row = lane >> 2, quad = lane & 3;
    UNROLL for (int a = 0; a < ACCUMULATORS; a++)
    UNROLL for (int b = 0; b < BLOCKS; b++)
    UNROLL for (int h = 0; h < 2; h++)
        shared_load_16(acc.w[a][b][h],
                       chunk_at(rows, row + 8 * h, 4 * (a * (HALF_COLUMNS / 32) + kept_block(c, b)) + quad));
    __syncwarp(); /* coda_group may use the place for parts of runs of rows */
}

/* A tile in one register: registers are what these loops are short of. */
INLINE u32 pack_tile(const Tile &tile) { return (u32)tile.m / TILE_ROWS << 16 | (u32)tile.n / PLACE_COLUMNS; }
INLINE int packed_row(u32 tile) { return (tile >> 16) * TILE_ROWS; }
INLINE int packed_column(u32 tile) { return (tile & 0xffff) * PLACE_COLUMNS; }

/* 16 rows by half of a tile's columns: of its first or second half, or (SPREAD) every second group of columns. */
struct Unit {
    int tile; /* in the walk; `tiles` or more: there is none */
    u32 place; /* the tile, packed */
    u32 count; /* of tiles before it; the parity chooses the buffer of values */
    u32 index; /* half, band, warp of the band: 0 to 8 * HALVES - 1 */
    bool fast; /* it exists, inside the matrix, everything aligned */
};

INLINE int unit_column(const Unit &unit)
{
    const int half = HALVES > 1 ? unit.index >> 3 : 0;
    return packed_column(unit.place) + (SPREAD ? 32 * block_of(half, 0) : half * HALF_COLUMNS);
}
/* Parts of a tile: of a narrow one, which is half as wide, one half, or (SPREAD) halves of half as many groups. */
INLINE int unit_halves(bool narrow) { return narrow && !SPREAD ? HALVES / 2 : HALVES; }
INLINE int unit_groups(bool narrow) { return narrow && SPREAD ? UNIT_GROUPS / 2 : UNIT_GROUPS; }
/* One past its last column. */
INLINE int unit_end(const Unit &unit, bool narrow)
{
    return SPREAD ? packed_column(unit.place) + (narrow ? TILE_COLUMNS / 2 : TILE_COLUMNS) : unit_column(unit) + HALF_COLUMNS;
}
INLINE int unit_band(const Unit &unit) { return unit.index >> 2 & 1; }
INLINE void look_at(const Params &P, Unit &unit, int tiles)
{
    const int row = packed_row(unit.place) + 16 * (unit.index & 7);
    unit.fast = unit.tile < tiles && P.all_wide && row + 16 <= ROWS && unit_end(unit, is_narrow(P, unit.tile)) <= COLUMNS;
}
INLINE Place unit_place(const Block &block, const Unit &unit, int lane)
{
    const int band = unit_band(unit);
    return place_at((unit.index & 3) * 32 + lane, packed_row(unit.place) + 64 * band, unit_column(unit),
                    block.values + (unit.count & 1) * VALUES * TILE_ROWS + 64 * band,
                    (float *)(block.rounded + band * BAND_BYTES));
}

/* Starts to bring what a group reads into the slot, each lane what it will read itself. */
INLINE void fill_slot(const Params &P, const Place &at, int c, u32 slots)
{
    coda_copy(P, at, c, slots + c % (SLOTS > 0 ? SLOTS : 1) * SLOT_BYTES);
}
template <bool FAST> INLINE void look_ahead(const Params &P, const Place &at, int c, Ahead &ahead)
{
    coda_ahead<FAST>(P, at, c, ahead);
    if (!FAST || !ONE_ANGLE || c == 0) /* else those of the unit's first group serve all of it */
        coda_angles<FAST>(P, at, c, ahead);
}

/* A unit at the edge: everything is fetched when it is wanted. */
INLINE void run_edge_unit(const Params &P, const Unit &unit, const Place &at, u32 rows)
{
    State state;
    /* Nothing of it is in the matrix; parts of runs of rows must still be told that they have no rows. */
    if (unit_column(unit) >= COLUMNS || OVER_ROWS == 0 && packed_row(unit.place) + 16 * (int)(unit.index & 7) >= ROWS)
        return;
    coda_start(state);
    const int groups = unit_groups(is_narrow(P, unit.tile));
    ROLLED for (int c = 0; c < groups; c++)
    {
        Inputs in;
        Ahead ahead;
        Accumulators acc;
        look_ahead<false>(P, at, c, ahead);
        coda_fetch<false>(P, at, c, in);
        take_accumulators(acc, rows, c, at.lane);
        coda_group<false>(P, at, c, acc, in, ahead, state);
    }
}

/* The groups of a unit. Inputs of a later one, at last those of the next unit's first groups, are on their way SLOTS groups
 * ahead; `ready`: those of this unit are. EDGES: it may be at one. */
template <bool EDGES>
INLINE void run_unit(const Params &P, const Block &block, const Unit &unit, const Unit &next, u32 slots, Ahead &ahead,
                     bool &ready, int lane)
{
    const u32 rows = shared_address(block.rounded) + (unit.index & 7) * SLAB_BYTES;
    const Place at = unit_place(block, unit, lane), then = unit_place(block, next, lane);
    if (EDGES && !unit.fast) {
        run_edge_unit(P, unit, at, rows);
        ready = false;
        return;
    }
    if (!ready) {
        look_ahead<true>(P, at, 0, ahead);
        ROLLED for (int c = 0; c < SLOTS; c++)
        {
            fill_slot(P, at, c, slots);
            copy_commit();
        }
    }
    ready = next.fast;
    State state;
    coda_start(state);
    const int groups = unit_groups(is_narrow(P, unit.tile));
#pragma unroll(EDGES ? UNIT_UNROLL : 1)
    for (int c = 0; c < groups; c++) {
        const bool more = c + SLOTS < UNIT_GROUPS, last = c + 1 == groups;
        Inputs in;
        Accumulators acc;
        Place from = at; /* field by field: a choice between two structures would put them into memory */
        if (SLOTS > 0) {
            COPY_WAIT(SLOTS > 0 ? SLOTS - 1 : 0);
            coda_take(in, slots + c % (SLOTS > 0 ? SLOTS : 1) * SLOT_BYTES, lane);
        }
        take_accumulators(acc, rows, c, lane);
        coda_hold(in, ahead);
        coda_group<true>(P, at, c, acc, in, ahead, state);
        from.row = more ? at.row : then.row, from.column = more ? at.column : then.column;
        if (SLOTS > 0) {
            if (more || next.fast)
                fill_slot(P, from, more ? c + SLOTS : c + SLOTS - UNIT_GROUPS, slots);
            copy_commit();
        }
        from.row = last ? then.row : at.row, from.column = last ? then.column : at.column;
        from.values = last ? then.values : at.values;
        if (!last || next.fast)
            look_ahead<true>(P, from, last ? 0 : c + 1, ahead);
    }
}

/* ---------------------------------------------------------------- the epilogue's warps */

INLINE void next_unit(const Params &P, const Block &block, Unit &unit, int tiles)
{
    const u32 units = 8 * unit_halves(is_narrow(P, unit.tile));
    unit.index += EPILOGUE_WARPS;
    if (unit.index >= units) {
        unit.index -= units, unit.count++, unit.tile += block.clusters;
        if (unit.tile < tiles)
            unit.place = pack_tile(tile_at(P, unit.tile, block.rank));
    }
    look_at(P, unit, tiles);
}

/* Row values of the tile `count`, a tile before they are used. */
INLINE void fill_ahead(const Params &P, const Block &block, int t, u32 count, int thread)
{
    if (t >= block.tiles)
        return;
    const Tile tile = tile_at(P, t, block.rank);
    const int buffer = count & 1;
    barrier_wait(block.values_empty + 8 * buffer, (count >> 1 & 1) ^ 1);
    fill_values(P, block.values + buffer * VALUES * TILE_ROWS, tile.m, TILE_ROWS, tile.n == 0, thread, 32 * EPILOGUE_WARPS);
    barrier_arrive(block.values_full + 8 * buffer);
}

/* How many hand-overs of its place came before the unit's. */
INLINE u32 units_before(const Unit &unit) { return unit.count * HALVES + (HALVES > 1 ? unit.index >> 3 : 0); }

/* Gives the unit's rows back. Where parts of runs of rows lie in them, the warp of a band's last unit waits for the other
 * three, which were begun before its own, and finishes the band's. */
INLINE void release_unit(const Params &P, const Block &block, const Unit &unit, int lane)
{
    const u32 band = unit_band(unit), done = block.finished + 32 * band;
    __syncwarp();
    if (OVER_ROWS > 0) /* each lane for what it wrote, as racecheck follows it */
        barrier_arrive(done + 8 * (unit.index & 3));
    else if (lane == 0)
        barrier_arrive(block.slab_empty + 8 * (unit.index & 7));
    if (OVER_ROWS == 0 || (unit.index & 3) != 3)
        return;
    for (int i = 0; i < 4; i++)
        barrier_wait(done + 8 * i, units_before(unit) & 1);
    coda_finish(P, unit_place(block, unit, lane), lane, 32);
    __syncwarp();
    if (lane < 4)
        barrier_arrive(block.slab_empty + 8 * (4 * band + lane));
}

/* Until the unit is handed over. Units of one place go to warps in turn, so a warp has not seen the phases before its own, and
 * the barrier's parity alone could not tell the hand-over that is wanted from the one before the last: a warp that was early
 * would take rows that are not there. The count can tell; it cannot run ahead, since the next hand-over of the place waits
 * for this unit's release. Until it tells, waits for the barrier are bounded, and wrong only in being short; then the
 * barrier is in the phase of this hand-over or just past it, and orders the rows. */
INLINE void await_unit(const Block &block, const Unit &unit)
{
    const u32 slab = unit.index & 7, before = units_before(unit);
    while (count_so_far(block.handed + 4 * slab) <= before)
        barrier_doze(block.slab_full + 8 * slab, before & 1);
    barrier_wait(block.slab_full + 8 * slab, before & 1);
}

/* Is the epilogue of this block's last tile the consumers' own? */
INLINE bool consumers_finish(const Params &P, const Block &block)
{
    if (block.cluster >= block.tiles)
        return true;
    const int t = block.cluster + (block.tiles - 1 - block.cluster) / block.clusters * block.clusters;
    const Tile tile = tile_at(P, t, block.rank);
    const int columns = is_narrow(P, t) ? TILE_COLUMNS / 2 : TILE_COLUMNS;
    return P.all_wide && tile.m + TILE_ROWS <= ROWS && tile.n + columns <= COLUMNS;
}

INLINE void run_epilogue(const Params &P, const Block &block, int thread)
{
    const int lane = thread & 31, last = consumers_finish(P, block) ? block.tiles - block.clusters : block.tiles;
    Unit unit = {block.cluster, 0, 0, __shfl_sync(ALL_LANES, (u32)thread >> 5, 0), false};
    const u32 slots = block.slots + (thread >> 5) * WARP_SLOTS;
    Ahead ahead;
    bool ready = false;
    if (HAS_VALUES) {
        fill_ahead(P, block, unit.tile, 0, thread);
        barrier_wait(block.values_full, 0);
    }
    unit.place = pack_tile(tile_at(P, unit.tile, block.rank));
    look_at(P, unit, last);
    ROLLED while (unit.tile < last)
    {
        Unit next = unit;
        next_unit(P, block, next, last);
        const bool first = unit.index < EPILOGUE_WARPS, ends = next.count != unit.count;
        if (HAS_VALUES && ends && next.tile < last)
            barrier_wait(block.values_full + 8 * (next.count & 1), next.count >> 1 & 1);
        await_unit(block, unit);
        run_unit<true>(P, block, unit, next, slots, ahead, ready, lane);
        release_unit(P, block, unit, lane);
        if (HAS_VALUES && ends)
            barrier_arrive(block.values_empty + 8 * (unit.count & 1));
        if (HAS_VALUES && first)
            fill_ahead(P, block, unit.tile + block.clusters, unit.count + 1, thread);
        unit = next;
    }
}

/* ---------------------------------------------------------------- consumers */

/* The epilogue of the last tile, which is not at an edge: each warp's own 16 rows. No stage is in use any more, so they hold the slots. */
INLINE void run_last(const Params &P, const Block &block, Unit unit, const u32 *kept, u32 rows, int band, int lane)
{
    const u32 slots = block.left + (unit.index & 7) * WARP_SLOTS;
    Ahead ahead;
    bool ready = false;
    if (SLOTS > 0)
        consumers_sync();
    if (HAS_VALUES)
        barrier_wait(block.values_full + 8 * (unit.count & 1), unit.count >> 1 & 1);
    look_at(P, unit, block.tiles);
    const int halves = unit_halves(is_narrow(P, unit.tile));
    ROLLED for (int half = 0; half < halves; half++)
    {
        Unit next = unit;
        next.index += 8;
        look_at(P, next, half + 1 < halves ? block.tiles : 0);
        if (half)
            store_kept(kept, rows, lane);
        run_unit<false>(P, block, unit, next, slots, ahead, ready, lane);
        if (OVER_ROWS > 0) {
            group_sync(2 + band);
            coda_finish(P, unit_place(block, unit, lane), (unit.index & 3) * 32 + lane, 128);
            group_sync(2 + band);
        }
        unit = next;
    }
}

INLINE void hand_over(u32 full, u32 handed, int lane)
{
    if (lane == 0) {
        count_more(handed);
        barrier_arrive(full);
    }
}

/* All steps of a tile. On the way the second half of the tile before finds its place. */
template <bool HALF>
INLINE void multiply(float *d, const Block &block, Ring &ring, const u32 *kept, u32 &waits, u32 &phase, u32 rows, u32 full,
                     u32 empty, u32 handed, int thread)
{
    const int lane = thread & 31;
    ROLLED for (u32 k = 0; k < block.steps; k++)
    {
        start_step<HALF>(d, block, ring, k == 0);
        if (k >= FLIGHT)
            finish_step(ring, thread);
        /* One answer for the warp: what follows needs all of its threads. */
        if (HALVES > 1 && waits && __all_sync(ALL_LANES, barrier_test(empty, phase))) {
            store_kept(kept, rows, lane);
            hand_over(full, handed, lane);
            phase ^= 1, waits = 0;
        }
    }
}

INLINE void run_consumer(const Params &P, const Block &block, int band, int thread)
{
    const int lane = thread & 31, slab = 4 * band + __shfl_sync(ALL_LANES, thread >> 5, 0);
    const u32 rows = shared_address(block.rounded) + slab * SLAB_BYTES;
    const u32 full = block.slab_full + 8 * slab, empty = block.slab_empty + 8 * slab;
    const u32 handed = block.handed + 4 * slab;
    const bool finish = consumers_finish(P, block);
    Ring ring = ring_start(block, band, thread);
    u32 kept[HALVES > 1 ? 4 * SIXTEENS : 1];
    UNROLL for (int i = 0; i < (HALVES > 1 ? 4 * SIXTEENS : 1); i++) asm volatile("" : "=r"(kept[i]));
    u32 waits = 0; /* the second half of the tile before, for its place */
    u32 count = 0, phase = 1; /* of `empty` */
    ROLLED for (int t = block.cluster; t < block.tiles; t += block.clusters, count++)
    {
        float d[FRAGMENT];
        UNROLL for (int i = 0; i < FRAGMENT; i++) asm volatile("" : "=f"(d[i])); /* the first product overwrites it */
        if (is_narrow(P, t))
            multiply<true>(d, block, ring, kept, waits, phase, rows, full, empty, handed, thread);
        else
            multiply<false>(d, block, ring, kept, waits, phase, rows, full, empty, handed, thread);
        wgmma_wait(d);
        finish_all(block.steps, ring, thread);
        if (HALVES > 1 && waits) {
            barrier_wait(empty, phase);
            store_kept(kept, rows, lane);
            hand_over(full, handed, lane);
            phase ^= 1;
        }
        barrier_wait(empty, phase);
        phase ^= 1;
        Factors factors;
        if (HAS_FACTORS) {
            barrier_wait(block.values_full + 8 * (count & 1), count >> 1 & 1);
            coda_factors(block.values + (count & 1) * VALUES * TILE_ROWS + 16 * slab + (lane >> 2), factors.of);
        }
        keep_rounded(d, factors, rows, kept, lane);
        if (t + block.clusters < block.tiles || !finish)
            hand_over(full, handed, lane);
        waits = unit_halves(is_narrow(P, t)) > 1;
    }
    const int t = block.cluster + (count - 1) * block.clusters;
    if (!finish && waits) {
        barrier_wait(empty, phase);
        store_kept(kept, rows, lane);
        hand_over(full, handed, lane);
    }
    if (finish && count > 0) {
        const Unit unit = {t, pack_tile(tile_at(P, t, block.rank)), count - 1, (u32)slab, false};
        run_last(P, block, unit, kept, rows, band, lane);
    }
}
