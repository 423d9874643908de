/* A program without a product: one pass over its tile. A block of four warps takes a band of rows and a range of columns. */

#define WIDTH (ACROSS * GROUP_COLUMNS) /* of a row that a warp takes at a time */
#define CHUNK (SCRATCH_COLUMNS > WIDTH ? SCRATCH_COLUMNS : WIDTH)
#define UNIT (CHUNK > RUN_COLUMNS ? CHUNK : RUN_COLUMNS)

/* The steps of a warp: step i is WIDTH columns of its rows; those before `fast` need no look at edges. */
struct Walk {
    Place at;
    State state;
    int first, fast, steps;
};
INLINE int group_of(int i, int lane) { return ACROSS == 1 ? i : i * ACROSS + (lane >> 2); }

/* Asks for what steps from i on read, as many as are fast. */
INLINE void ask(const Params &P, const Walk &w, int i, Inputs *in)
{
    UNROLL for (int k = 0; k < TOGETHER; k++) if (i + k < w.fast)
        coda_fetch<true>(P, w.at, group_of(i + k, w.at.lane), in[k]);
}
template <bool FAST> INLINE void work(const Params &P, Walk &w, int i, Inputs &in)
{
    const Accumulators acc = {};
    const int c = group_of(i, w.at.lane);
    Ahead ahead;
    coda_ahead<FAST>(P, w.at, c, ahead);
    coda_angles<FAST>(P, w.at, c, ahead);
    if (FAST && ACROSS > 1)
        coda_exchange(in, w.at.lane & 1);
    coda_group<FAST>(P, w.at, c, acc, in, ahead, w.state);
    if (OVER_ROWS > 0 && (i + 1) % (CHUNK / WIDTH) == 0) { /* runs of rows end */
        __syncthreads();
        coda_finish(P, w.at, w.at.thread, 128);
        __syncthreads();
        w.at.origin = w.first + (i + 1) * WIDTH;
    }
}
INLINE void work_all(const Params &P, Walk &w, int i, Inputs *in)
{
    UNROLL for (int k = 0; k < TOGETHER; k++) if (i + k < w.fast)
        work<true>(P, w, i + k, in[k]);
}

extern "C" __global__ void __launch_bounds__(128, RESIDENT) KERNEL(const __grid_constant__ Params P)
{
    __shared__ float values[VALUES > 0 ? VALUES * VALUE_ROWS : 1];
    __shared__ float scratch[OVER_ROWS > 0 ? OVER_ROWS * 4 * SCRATCH_COLUMNS : 1];
    await_unless_apart(P);
    let_next_begin();
    RETURN_UNLESS_WANTED(P)
    const int band = blockIdx.x * BAND_ROWS, first = blockIdx.y * P.columns_per_block;
    const int columns = (first + P.columns_per_block < COLUMNS ? first + P.columns_per_block : COLUMNS) - first;
    Walk w;
    w.at = place_at(threadIdx.x, band, first, values, scratch);
    w.first = first, w.steps = (columns + UNIT - 1) / UNIT * (UNIT / WIDTH);
    w.fast = P.all_wide && band + BAND_ROWS <= ROWS ? columns / WIDTH : 0;
    coda_start(w.state);
    Inputs even[TOGETHER], odd[TOGETHER];
    const int own = w.at.warp * 2 * QUAD_ROWS;
    if (!GATHERS)
        ask(P, w, 0, even);
    fill_values(P, values + own, band + own, 2 * QUAD_ROWS, first == 0, w.at.lane, 32);
    __syncwarp();
    if (GATHERS)
        ask(P, w, 0, even);
    /* The next steps' operands are on their way while the present ones are worked on. */
    ROLLED for (int i = 0; i < w.fast; i += 2 * TOGETHER)
    {
        ask(P, w, i + TOGETHER, odd);
        work_all(P, w, i, even);
        ask(P, w, i + 2 * TOGETHER, even);
        work_all(P, w, i + TOGETHER, odd);
    }
    ROLLED for (int i = w.fast; i < w.steps; i++)
    {
        coda_fetch<false>(P, w.at, group_of(i, w.at.lane), even[0]);
        work<false>(P, w, i, even[0]);
    }
    await_if_apart(P);
}
