/* Direct: the epilogue follows the tile, on f32 accumulators in registers. */

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

template <bool FAST> INLINE void direct_fetch(const Params &P, const Place &at, int c, Inputs *in, Ahead *ahead, bool vectors)
{
    coda_fetch<FAST>(P, at, c, in[c & 1]);
    if (vectors)
        coda_ahead<FAST>(P, at, c, ahead[c & 1]);
}

/* The groups of a tile; inputs of the first have been asked for. FAST: it is inside the matrix. Text for it pays where outs
 * of 4 bytes an element let lanes exchange halves. */
template <bool FAST>
INLINE void run_groups(const Params &P, const Place &at, const float *d, int groups, Inputs *in, Ahead *ahead, State &state)
{
    UNROLL for (int c = 0; c < GROUPS; c++)
    {
        Accumulators acc;
        if (NARROW && c >= groups)
            break;
        if (c + 1 < groups)
            direct_fetch<FAST>(P, at, c + 1, in, ahead, !ROTATIONS);
        if (ROTATIONS) { /* two groups of angles do not fit the registers */
            coda_ahead<FAST>(P, at, c, ahead[0]);
            coda_angles<FAST>(P, at, c, ahead[0]);
        }
        take_accumulators(acc, d, c, at.quad);
        coda_group<FAST>(P, at, c, acc, in[c & 1], ahead[ROTATIONS ? 0 : c & 1], state);
    }
}

/* All steps of a tile. */
template <bool HALF> INLINE void multiply(float *d, const Block &block, u32 steps, Ring &ring, int thread)
{
    ROLLED for (u32 k = 0; k < steps; k++)
    {
        start_step<HALF>(d, block, ring, k == 0);
        if (k >= FLIGHT)
            finish_step(ring, thread);
    }
}

INLINE void run_consumer(const Work &W, const Block &block, int band, int thread)
{
    Ring ring = ring_start(block, band, thread);
    u32 count = 0;
    ROLLED for (int t = block.cluster; t < block.tiles; t += block.clusters, count++)
    {
        const Params &P = params_of(W, t);
        const Tile tile = tile_at(W, t, block.rank);
        const u32 steps = steps_of(P, block);
        const int buffer = count & 1;
        const Place at = place_at(thread, tile.m + 64 * band, tile.n, block.values + buffer * VALUES * TILE_ROWS + 64 * band,
                                  block.scratch + band * OVER_ROWS * 4 * SCRATCH_COLUMNS);
        float d[FRAGMENT];
        UNROLL for (int i = 0; i < FRAGMENT; i++) asm volatile("" : "=f"(d[i])); /* the first product overwrites it */
        const int groups = is_narrow(P, t) ? GROUPS / 2 : GROUPS;
        if (is_narrow(P, t))
            multiply<true>(d, block, steps, ring, thread);
        else
            multiply<false>(d, block, steps, ring, thread);
        Inputs in[2];
        Ahead ahead[2];
        if (HAS_VALUES)
            barrier_wait(block.values_full + 8 * buffer, count >> 1 & 1);
        direct_fetch<false>(P, at, 0, in, ahead, !ROTATIONS);
        wgmma_wait(d);
        finish_all(steps, ring, thread);
        State state;
        coda_start(state);
        if (STORES_WIDE && P.all_wide && tile.m + TILE_ROWS <= ROWS && tile.n + groups * GROUP_COLUMNS <= COLUMNS)
            run_groups<true>(P, at, d, groups, in, ahead, state);
        else
            run_groups<false>(P, at, d, groups, in, ahead, state);
        if (OVER_ROWS > 0) {
            group_sync(2 + band);
            coda_finish(P, at, at.thread, 128);
            group_sync(2 + band);
        }
        if (HAS_VALUES)
            barrier_arrive(block.values_empty + 8 * buffer);
    }
}
