/* Products on any GPU since Ampere: cp.async into a ring of stages, ldmatrix, mma.sync. A block of 128 threads has BANDS
 * bands of 64 rows and TILE_COLUMNS columns of each accumulator. */

#define TILE_ROWS (BANDS * 64)
#define RIGHT_ROWS (TILE_COLUMNS * PHASE_ACCUMULATORS)
#define LEFT_BYTES (TILE_ROWS * DEPTH * 2)
#define STAGE_BYTES (LEFT_BYTES + RIGHT_ROWS * DEPTH * 2)
#define EIGHTS (TILE_COLUMNS / 8) /* of one accumulator */

INLINE void load_chunk(const Params &P, u32 to, const char *from, int count)
{
    count = count < 0 ? 0 : count < 8 ? count : 8;
    if (P.chunks) {
        copy_16(to, count > 0 ? from : P.t[0].data, count * 2);
    } else {
        u32 w[4];
        load_some_2(w, from, count, 8);
        shared_store_16(to, w);
    }
}

/* Rows of K-major operands are 128 bytes; their 16-byte chunks are permuted so that ldmatrix meets no bank twice. */
INLINE int left_swizzle(int row) { return row & 7; }
INLINE int right_swizzle(int row) { return RIGHT_K_MAJOR ? (row & 1) | (row >> 2 & 6) : row & 7; }

INLINE void load_left(const Params &P, u32 stage, int phase, int s, int m0, int k0, int depth)
{
    const int across = TILE_ROWS / 8;
    UNROLL for (int i = threadIdx.x; i < TILE_ROWS * 8; i += 128)
    {
#if LEFT_K_MAJOR
        const int r = i >> 3, chunk = i & 7, m = m0 + r, k = k0 + 8 * chunk;
        const int count = m < ROWS ? depth - k : 0;
        const u32 to = stage + r * 128 + ((chunk ^ left_swizzle(r)) << 4);
#else
        const int r = i / across, chunk = i % across, m = m0 + 8 * chunk, k = k0 + r;
        const int count = k < depth ? ROWS - m : 0;
        const u32 to = stage + r * (TILE_ROWS * 2) + ((chunk ^ left_swizzle(r)) << 4);
#endif
        load_chunk(P, to, left_at(P, phase, s, m, k), count);
    }
}
INLINE void load_right(const Params &P, u32 stage, int phase, int s, int n0, int k0, int depth)
{
    const int across = RIGHT_ROWS / 8;
    UNROLL for (int i = threadIdx.x; i < RIGHT_ROWS * 8; i += 128)
    {
#if RIGHT_K_MAJOR
        const int r = i >> 3, chunk = i & 7, n = n0 + r % TILE_COLUMNS, k = k0 + 8 * chunk, a = r / TILE_COLUMNS;
        const int count = n < COLUMNS ? depth - k : 0;
        const u32 to = stage + r * 128 + ((chunk ^ right_swizzle(r)) << 4);
#else
        const int r = i / across, chunk = i % across, k = k0 + r, a = 8 * chunk / TILE_COLUMNS;
        const int n = n0 + 8 * chunk % TILE_COLUMNS;
        const int count = k < depth ? COLUMNS - n : 0;
        const u32 to = stage + r * (RIGHT_ROWS * 2) + ((chunk ^ right_swizzle(r)) << 4);
#endif
        load_chunk(P, to, right_at(P, phase + a, s, n, k), count);
    }
}

INLINE void load_matrices(u32 *r, u32 from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}
INLINE void load_transposed(u32 *r, u32 from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}
INLINE void multiply(float *d, const u32 *a, u32 b0, u32 b1)
{
#if FACTOR_F16
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* 16 rows of the left operand by 16 of K. */
INLINE void left_fragment(u32 *a, u32 stage, int row, int step, int lane)
{
    const int i = lane >> 3, l = lane & 7;
#if LEFT_K_MAJOR
    const int r = row + (i & 1) * 8 + l, chunk = 2 * step + (i >> 1);
    load_matrices(a, stage + r * 128 + ((chunk ^ left_swizzle(r)) << 4));
#else
    const int r = 16 * step + (i >> 1) * 8 + l, chunk = row / 8 + (i & 1);
    load_transposed(a, stage + r * (TILE_ROWS * 2) + ((chunk ^ left_swizzle(r)) << 4));
#endif
}
/* 16 of K by two eights of columns. A K-major operand's rows are taken in the order that leaves each thread 8 neighbouring
 * columns of a block. */
INLINE void right_fragment(u32 *b, u32 stage, int eight, int step, int lane)
{
    const int i = lane >> 3, l = lane & 7;
#if RIGHT_K_MAJOR
    const int e = eight + (i >> 1), r = e / 4 * 32 + 8 * (l >> 1) + 2 * (e % 4) + (l & 1), chunk = 2 * step + (i & 1);
    load_matrices(b, stage + r * 128 + ((chunk ^ right_swizzle(r)) << 4));
#else
    const int r = 16 * step + (i & 1) * 8 + l, chunk = eight + (i >> 1);
    load_transposed(b, stage + r * (RIGHT_ROWS * 2) + ((chunk ^ right_swizzle(r)) << 4));
#endif
}

INLINE void multiply_stage(float (*d)[BANDS][4], u32 left, u32 right, int lane, int warp)
{
    UNROLL for (int step = 0; step < 4; step++)
    {
        u32 a[BANDS][4];
        UNROLL for (int band = 0; band < BANDS; band++)
            left_fragment(a[band], left, band * 64 + warp * 16, step, lane);
        UNROLL for (int eight = 0; eight < RIGHT_ROWS / 8; eight += 2)
        {
            u32 b[4];
            right_fragment(b, right, eight, step, lane);
            UNROLL for (int band = 0; band < BANDS; band++)
            {
                multiply(d[eight][band], a[band], b[0], b[1]);
                multiply(d[eight + 1][band], a[band], b[2], b[3]);
            }
        }
    }
}

/* A position in the walk over segments of K. */
struct Walk {
    int s, k, depth;
};
INLINE void advance(const Params &P, Walk &w, int phase)
{
    w.k += DEPTH;
    if (w.k >= w.depth && w.s + 1 < SEGMENTS(phase)) {
        w.s++;
        w.k = 0;
        w.depth = depth_of(P, phase, w.s);
    }
}

INLINE void run_phase(const Params &P, float (*d)[BANDS][4], u32 ring, int phase, int m0, int n0, int lane, int warp)
{
    int steps = 0;
    for (int s = 0; s < SEGMENTS(phase); s++)
        steps += (depth_of(P, phase, s) + DEPTH - 1) / DEPTH;
    Walk next = {0, 0, depth_of(P, phase, 0)};
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < steps) {
            const u32 stage = ring + i * STAGE_BYTES;
            load_left(P, stage, phase, next.s, m0, next.k, next.depth);
            load_right(P, stage + LEFT_BYTES, phase, next.s, n0, next.k, next.depth);
            advance(P, next, phase);
        }
        copy_commit();
    }
    int slot = 0;
    ROLLED for (int i = 0; i < steps; i++)
    {
        COPY_WAIT(STAGES - 2);
        __syncthreads();
        if (i + STAGES - 1 < steps) {
            const u32 stage = ring + (slot == 0 ? STAGES - 1 : slot - 1) * STAGE_BYTES;
            load_left(P, stage, phase, next.s, m0, next.k, next.depth);
            load_right(P, stage + LEFT_BYTES, phase, next.s, n0, next.k, next.depth);
            advance(P, next, phase);
        }
        copy_commit();
        multiply_stage(d, ring + slot * STAGE_BYTES, ring + slot * STAGE_BYTES + LEFT_BYTES, lane, warp);
        slot = slot + 1 == STAGES ? 0 : slot + 1;
    }
    COPY_WAIT(0);
    __syncthreads();
}

INLINE void take_accumulators(Accumulators &acc, float (*d)[BANDS][4], int band, int c, int quad)
{
    UNROLL for (int a = 0; a < ACCUMULATORS; a++)
    UNROLL for (int b = 0; b < BLOCKS; b++)
    UNROLL for (int e = 0; e < 4; e++)
    {
        const int first = a * EIGHTS + 4 * coda_block(c, b);
        float w[4];
        UNROLL for (int t = 0; t < 4; t++) w[t] = d[first + t][band][e];
        if (!RIGHT_K_MAJOR)
            transpose_quad(w[0], w[1], w[2], w[3], quad);
        UNROLL for (int t = 0; t < 4; t++) acc.v[a][b][e >> 1][2 * t + (e & 1)] = w[t];
    }
}

extern "C" __global__ void __launch_bounds__(128) KERNEL(const __grid_constant__ Params P)
{
    extern __shared__ __align__(128) char shared[];
    await_launches_before();
    let_next_begin();
    RETURN_UNLESS_WANTED(P)
    const u32 ring = shared_address(shared);
    float *values = (float *)(shared + STAGES * STAGE_BYTES), *scratch = (float *)shared;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int per_group = P.group * P.column_tiles, g = blockIdx.x / per_group, r = blockIdx.x - g * per_group;
    const int rows = P.row_tiles - g * P.group < P.group ? P.row_tiles - g * P.group : P.group;
    const int m0 = (g * P.group + r % rows) * TILE_ROWS, n0 = r / rows * TILE_COLUMNS;
    float d[ACCUMULATORS * EIGHTS][BANDS][4];
    UNROLL for (int i = 0; i < ACCUMULATORS * EIGHTS; i++)
    UNROLL for (int j = 0; j < BANDS * 4; j++) d[i][j / 4][j % 4] = 0.0f;
    fill_values(P, values, m0, TILE_ROWS, n0 == 0, threadIdx.x, 128);
    UNROLL for (int phase = 0; phase < PHASES; phase++)
        run_phase(P, d + phase * EIGHTS, ring, phase, m0, n0, lane, warp);
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
            take_accumulators(acc, d, band, c, at.quad);
            coda_group<false>(P, at, c, acc, in, ahead, state);
        }
        if (OVER_ROWS > 0) {
            __syncthreads();
            coda_finish(P, at, at.thread, 128);
            __syncthreads();
        }
    }
}
