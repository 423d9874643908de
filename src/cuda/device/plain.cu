/* Products of any types, in f32 arithmetic without matrix units: every operand is converted as it is loaded. */

#define TILE_ROWS (BANDS * 64)
#define RIGHT_ROWS (TILE_COLUMNS * PHASE_ACCUMULATORS)
#define SHARED_BLOCKS (TILE_COLUMNS / 32)

INLINE void load_plain(const Params &P, float *left, float *right, int phase, int s, int m0, int n0, int k0, int depth)
{
    ROLLED for (int i = threadIdx.x; i < TILE_ROWS * DEPTH; i += 128)
    {
        const int r = LEFT_K_MAJOR ? i / DEPTH : i % TILE_ROWS, k = LEFT_K_MAJOR ? i % DEPTH : i / TILE_ROWS;
        left[k * TILE_ROWS + r] = m0 + r < ROWS && k0 + k < depth ? left_value(P, phase, s, m0 + r, k0 + k) : 0.0f;
    }
    ROLLED for (int i = threadIdx.x; i < RIGHT_ROWS * DEPTH; i += 128)
    {
        const int r = RIGHT_K_MAJOR ? i / DEPTH : i % RIGHT_ROWS, k = RIGHT_K_MAJOR ? i % DEPTH : i / RIGHT_ROWS;
        const int n = n0 + r % TILE_COLUMNS;
        right[k * RIGHT_ROWS + r] =
            n < COLUMNS && k0 + k < depth ? right_value(P, phase + r / TILE_COLUMNS, s, n, k0 + k) : 0.0f;
    }
}

/* d[block of all accumulators][band][h][x] */
INLINE void multiply_plain(float (*d)[BANDS][2][8], const float *left, const float *right, int lane, int warp)
{
    ROLLED for (int k = 0; k < DEPTH; k++)
    {
        float a[BANDS][2];
        UNROLL for (int band = 0; band < BANDS; band++)
        UNROLL for (int h = 0; h < 2; h++)
            a[band][h] = left[k * TILE_ROWS + band * 64 + warp * 16 + 8 * h + (lane >> 2)];
        UNROLL for (int block = 0; block < RIGHT_ROWS / 32; block++)
        UNROLL for (int x = 0; x < 8; x++)
        {
            const float b = right[k * RIGHT_ROWS + block * 32 + 8 * (lane & 3) + x];
            UNROLL for (int band = 0; band < BANDS; band++)
            UNROLL for (int h = 0; h < 2; h++)
                d[block][band][h][x] = __fmaf_rn(a[band][h], b, d[block][band][h][x]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(128) KERNEL(const __grid_constant__ Params P)
{
    __shared__ float left[DEPTH * TILE_ROWS], right[DEPTH * RIGHT_ROWS];
    __shared__ float values[VALUES > 0 ? VALUES * VALUE_ROWS : 1];
    __shared__ float scratch[OVER_ROWS > 0 ? OVER_ROWS * 4 * SCRATCH_COLUMNS : 1];
    await_launches_before();
    let_next_begin();
    RETURN_UNLESS_WANTED(P)
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int m0 = blockIdx.x % P.row_tiles * TILE_ROWS, n0 = blockIdx.x / P.row_tiles * TILE_COLUMNS;
    float d[ACCUMULATORS * SHARED_BLOCKS][BANDS][2][8] = {};
    fill_values(P, values, m0, TILE_ROWS, n0 == 0, threadIdx.x, 128);
    UNROLL for (int phase = 0; phase < PHASES; phase++)
    ROLLED for (int s = 0; s < SEGMENTS(phase); s++)
    {
        const int depth = depth_of(P, phase, s);
        ROLLED for (int k0 = 0; k0 < depth; k0 += DEPTH)
        {
            __syncthreads();
            load_plain(P, left, right, phase, s, m0, n0, k0, depth);
            __syncthreads();
            multiply_plain(d + phase * SHARED_BLOCKS, left, right, lane, warp);
        }
    }
    __syncthreads();
    UNROLL for (int band = 0; band < BANDS; band++)
    {
        const Place at = place_at(threadIdx.x, m0 + band * 64, n0, values + band * 64, scratch);
        State state;
        coda_start(state);
        UNROLL for (int c = 0; c < TILE_COLUMNS / GROUP_COLUMNS; c++)
        {
            Accumulators acc;
            Inputs in;
            Ahead ahead;
            coda_fetch<false>(P, at, c, in);
            coda_ahead<false>(P, at, c, ahead);
            coda_angles<false>(P, at, c, ahead);
            UNROLL for (int a = 0; a < ACCUMULATORS; a++)
            UNROLL for (int b = 0; b < BLOCKS; b++)
            UNROLL for (int h = 0; h < 2; h++)
            UNROLL for (int x = 0; x < 8; x++) acc.v[a][b][h][x] = d[a * SHARED_BLOCKS + coda_block(c, b)][band][h][x];
            coda_group<false>(P, at, c, acc, in, ahead, state);
        }
        if (OVER_ROWS > 0) {
            __syncthreads();
            coda_finish(P, at, at.thread, 128);
            __syncthreads();
        }
    }
}
