/* Deferred: the epilogue's groups run between the next tile's products, spread evenly, while the matrix units work. */

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

INLINE Place pending_place(const Block &block, const Pending &pending, int band, int thread)
{
    Place at = place_at(thread, packed_row(pending.tile) + 64 * band, packed_column(pending.tile),
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
    const Place at = place_at(thread, packed_row(tile) + 64 * band, packed_column(tile), 0, 0);
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
        coda_finish(P, at, at.thread, 128);
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
    Ring ring = ring_start(block, band, thread);
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
                finish_step(ring, thread);
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
