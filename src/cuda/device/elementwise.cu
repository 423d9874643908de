/* A program without a product: one pass over its tile. A block takes a band of 64 rows and a range of columns. */

#define CHUNK (SCRATCH_COLUMNS)
extern "C" __global__ void __launch_bounds__(128) coda_kernel(const __grid_constant__ Params P)
{
    __shared__ float values[VALUES > 0 ? VALUES * VALUE_ROWS : 1];
    __shared__ float scratch[OVER_ROWS > 0 ? OVER_ROWS * 4 * SCRATCH_COLUMNS : 1];
    const int band = blockIdx.x * 64, first = blockIdx.y * P.columns_per_block;
    const int end = first + P.columns_per_block < COLUMNS ? first + P.columns_per_block : COLUMNS;
    fill_values(P, values, band, 64, first == 0, threadIdx.x, 128);
    __syncthreads();
    Place at = place_at(threadIdx.x, band, first, values, scratch);
    const Accumulators acc = {};
    State state;
    coda_start(state);
    const bool inside = P.all_wide && band + 64 <= ROWS;
    ROLLED for (int chunk = first; chunk < end; chunk += CHUNK)
    {
        at.origin = chunk;
        ROLLED for (int g = 0; g < CHUNK / GROUP_COLUMNS; g++)
        {
            const int c = (chunk - first) / GROUP_COLUMNS + g;
            Inputs in;
            Ahead ahead;
            if (inside && chunk + CHUNK <= COLUMNS) {
                coda_fetch<true>(P, at, c, in);
                coda_ahead<true>(P, at, c, ahead);
                coda_angles<true>(P, at, c, ahead);
                coda_group<true>(P, at, c, acc, in, ahead, state);
            } else {
                coda_fetch<false>(P, at, c, in);
                coda_ahead<false>(P, at, c, ahead);
                coda_angles<false>(P, at, c, ahead);
                coda_group<false>(P, at, c, acc, in, ahead, state);
            }
        }
        if (OVER_ROWS > 0) {
            __syncthreads();
            coda_finish(P, at, at.thread, 128);
            __syncthreads();
        }
    }
}
