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
    ROLLED for (int chunk = first; chunk < end; chunk += CHUNK)
    {
        at.origin = chunk;
        ROLLED for (int g = 0; g < CHUNK / GROUP_COLUMNS; g++)
        {
            const int c = (chunk - first) / GROUP_COLUMNS + g;
            Inputs in;
            coda_fetch(P, at, c, in);
            coda_group(P, at, c, acc, in, state);
        }
        if (OVER_ROWS > 0) {
            __syncthreads();
            coda_finish(P, at);
            __syncthreads();
        }
    }
}
