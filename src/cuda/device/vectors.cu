/* Programs whose values have one axis. */

#if ROW_PROGRAM /* a thread a row */
extern "C" __global__ void __launch_bounds__(128) KERNEL(const __grid_constant__ Params P)
{
    await_unless_apart(P);
    let_next_begin();
    RETURN_UNLESS_WANTED(P)
    const int m = blockIdx.x * 128 + threadIdx.x;
    float values[VALUES > 0 ? VALUES : 1];
    if (m < ROWS)
        coda_rows(P, m, values, true);
    await_if_apart(P);
}
#else /* 32 columns a block; 8 threads share the rows of a column */
extern "C" __global__ void __launch_bounds__(256) KERNEL(const __grid_constant__ Params P)
{
    enum { SLICES = 8, KEPT = TOTALS > 0 ? TOTALS : 1 };
    __shared__ float parts[SLICES][KEPT][32];
    await_unless_apart(P);
    let_next_begin();
    RETURN_UNLESS_WANTED(P)
    const int lane = threadIdx.x & 31, slice = threadIdx.x >> 5, n = blockIdx.x * 32 + lane;
    float part[KEPT];
    if (n < COLUMNS)
        coda_partial(P, n, slice, SLICES, part);
    UNROLL for (int k = 0; k < TOTALS; k++) parts[slice][k][lane] = part[k];
    __syncthreads();
    if (slice == 0 && n < COLUMNS) {
        UNROLL for (int i = 1; i < SLICES; i++)
        {
            float other[KEPT];
            UNROLL for (int k = 0; k < TOTALS; k++) other[k] = parts[i][k][lane];
            coda_join(part, other);
        }
        coda_column(P, n, part);
    }
    await_if_apart(P);
}
#endif
