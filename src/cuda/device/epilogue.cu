/* What the generated epilogue stands on: a thread's place in the matrix, and helpers that name the program's axes. */

/* A warpgroup of 128 threads has a band of 64 rows; a thread has rows `row` and `row + 8` and, in each block of 32 columns,
 * the 8 columns from `column + 32 * block`. The four lanes that share a block are a quad. Where ACROSS is 8 (programs
 * without a product) a warp's quads lie side by side in eight groups of columns of two neighbouring rows, so that its loads
 * and stores follow the rows. */
#define QUAD_ROWS (8 / ACROSS)           /* quads above each other */
#define ROW_STEP (ACROSS == 1 ? 8 : 1)   /* between a thread's two rows */
#define BAND_ROWS (64 / ACROSS)          /* of 128 threads */
/* Runs of `groups` groups of columns: have all been seen after group c, and by which lanes beside each other? */
#define RUN_ENDS(c, groups) ((groups) <= ACROSS || ((c) / ACROSS + 1) % ((groups) / ACROSS) == 0)
#define RUN_LANES(groups) (4 * ((groups) < ACROSS ? (groups) : ACROSS))
#define HAS_FIRST_ROW (at.band == 0 && at.warp == 0 && (ACROSS > 1 || at.lane < 4))
struct Place {
    int row, column;
    int band, origin; /* the band's first row, the first column of what `scratch` covers */
    int thread, lane, warp, quad;
    const float *values; /* row values: value k of this thread's first row at [k * VALUE_ROWS] */
    float *scratch;      /* parts of runs of rows */
};
INLINE Place place_at(int thread, int band, int first_column, const float *values, float *scratch)
{
    Place at;
    at.thread = thread, at.lane = thread & 31, at.warp = thread >> 5, at.quad = thread & 3;
    at.band = band, at.origin = first_column;
    const int local = at.warp * 2 * QUAD_ROWS + (ACROSS == 1 ? at.lane >> 2 : 0);
    at.row = band + local, at.column = first_column + 8 * at.quad;
    at.values = values + local, at.scratch = scratch;
    return at;
}

/* Block b of group c, of all groups of a tile; of those that are worked on one after the other. SPREAD (epilogue warps): these
 * are every second one, which need the same angles of a rotation. */
INLINE int block_of(int c, int b) { return c / STEP * (BLOCKS * STEP) + c % STEP + b * STEP; }
INLINE int coda_block(int c, int b) { return block_of(c << SPREAD, b); }
#define COLUMN(b) (at.column + 32 * coda_block(c, b))
#define GROUP_COLUMNS (32 * BLOCKS)
/* FAST: a template parameter of the generated functions. The tile lies inside the matrix, and every row starts at a
 * multiple of 16 bytes. */
#define WIDE(operand) (FAST || (P.wide >> (operand) & 1) != 0)
#define INSIDE(row) (FAST || (row) < ROWS)
#define COUNT(row, left) (FAST ? 8 : (row) < ROWS ? (left) : 0)
/* The index of an element: by 32 bits where FAST, since launches say so of matrices that have fewer elements. */
#define ELEMENT(operand, row, column)                                                                                  \
    (FAST ? (long)((u32)(row) * (u32)P.t[operand].stride + (u32)(column)) : (long)(row) * P.t[operand].stride + (column))
#define RUNS(run) ((COLUMNS + (run) - 1) / (run))
#define CLAMP(i, n) ((long)((i) < (n) ? (i) : (n) - 1))
#define CLAMP_ROW(row) CLAMP(row, ROWS)
#define HALF_COLUMN(column, h) ((column) / (2 * (h)) * (h) + (column) % (h))
#define HALF_X(x, h, plus) ((x) / (h) * 2 * (h) + (x) % (h) + (plus))
#define FULL_X(x, h) ((x) / (2 * (h)) * (h) + (x) % (h))
#define VALUE(k) (at.values[(k) * VALUE_ROWS + ROW_STEP * h])
#define VALUE_ID(k) __float_as_int(VALUE(k))
#if EPILOGUE_ASIDE /* in the place of rounded accumulators that the group has read: two rows of a warp's block hold 32 columns */
#define SCRATCH(k, warp, column) at.scratch[scratch_index(k, warp, column)]
INLINE int scratch_index(int k, int warp, int column)
{
    const int j = column & 31, row = 2 * k + (j >> 4), swizzle = (row & 1) << 2 | (row >> 1 & 3);
    const int chunk = 4 * (column >> 5) + (j >> 2 & 3) ^ swizzle;
    return (warp * 16 + row) * (SCRATCH_COLUMNS * ACCUMULATORS / 2) + 4 * chunk + (j & 3);
}
#else
#define SCRATCH(k, warp, column) at.scratch[((k) * 4 + (warp)) * SCRATCH_COLUMNS + (column)]
#endif

#if EPILOGUE_ASIDE /* rounded to bf16 */
struct Accumulators {
    u32 w[ACCUMULATORS > 0 ? ACCUMULATORS : 1][BLOCKS][2][4];
};
#define ACCUMULATOR(k, b, h, x) word_bf16(acc.w[k][b][h], x)
#else
struct Accumulators {
    float v[ACCUMULATORS > 0 ? ACCUMULATORS : 1][BLOCKS][2][8];
};
#define ACCUMULATOR(k, b, h, x) acc.v[k][b][h][x]
#endif

#define HOLD(word) asm volatile("" : "+r"(word))

INLINE float choose(const float *v, int i)
{
    float y = v[0];
    UNROLL for (int k = 1; k < 8; k++) y = i == k ? v[k] : y;
    return y;
}

/* a c - b s or a c + b s. */
INLINE float rotate(float a, float b, float c, float s, bool minus) { return __fmaf_rn(a, c, b * (minus ? -s : s)); }
/* Cosines from `first` on of a row of the table, and sines half a row later. A position outside reads NaN (in every type)
 * instead, so that nothing waits for what was loaded before it is used. */
static __device__ const __align__(32) u32 all_ones[8] = {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u};
/* Not volatile: rows of a table are read again and again, and nothing writes them. */
#define ANGLES(type)                                                                                                   \
    template <int count> INLINE void angles_##type(float *c, float *s, const Tensor &t, int id, int first, int half,  \
                                                   bool wide)                                                          \
    {                                                                                                                  \
        const bool inside = (u32)id < (u32)t.rows;                                                                     \
        const char *row = t.data + ((long)id * t.stride + first) * SIZE_##type;                                        \
        const char *p = inside ? row : (const char *)all_ones, *q = inside ? row + half * SIZE_##type : p;             \
        if (count == 8) {                                                                                              \
            u32 w[8], v[8];                                                                                            \
            fetch_column_##type##x8(w, p, 8, wide && half * SIZE_##type % 16 == 0);                                    \
            fetch_column_##type##x8(v, q, 8, wide && half * SIZE_##type % 16 == 0);                                    \
            UNROLL for (int i = 0; i < count; i++) c[i] = word_##type(w, i), s[i] = word_##type(v, i);                 \
        } else if (count == 4) {                                                                                       \
            u32 w[4], v[4];                                                                                            \
            fetch_column_##type##x4(w, p, 4, wide && half * SIZE_##type % 16 == 0);                                    \
            fetch_column_##type##x4(v, q, 4, wide && half * SIZE_##type % 16 == 0);                                    \
            UNROLL for (int i = 0; i < count; i++) c[i] = word_##type(w, i), s[i] = word_##type(v, i);                 \
        } else {                                                                                                       \
            UNROLL for (int i = 0; i < count; i++) c[i] = load_##type(p, i), s[i] = load_##type(q, i);                 \
        }                                                                                                              \
    }
ANGLES(f32)
ANGLES(i32)
ANGLES(bf16)
ANGLES(f16)
ANGLES(e4m3)
ANGLES(e5m2)

/* 32 bytes a lane: by themselves, two accesses of 16 that each touch all the sectors of memory by half. Lanes beside each
 * other take both halves of the one's, then of the other's, and exchange. */
INLINE void exchange_halves(u32 *w, bool odd)
{
    UNROLL for (int i = 0; i < 4; i++)
    {
        const u32 send = odd ? w[i] : w[4 + i], got = __shfl_xor_sync(ALL_LANES, send, 1);
        w[i] = odd ? got : w[i], w[4 + i] = odd ? w[4 + i] : got;
    }
}
INLINE void load_pairs(u32 *w, const char *p)
{
    const bool odd = threadIdx.x & 1;
    p -= odd ? 16 : 0;
    load_bytes_16(w, p);
    load_bytes_16(w + 4, p + 32);
}
INLINE void store_pairs(char *p, u32 *w)
{
    const bool odd = threadIdx.x & 1;
    p -= odd ? 16 : 0;
    exchange_halves(w, odd);
    store_bytes_16(p, w);
    store_bytes_16(p + 32, w + 4);
}
#define PAIRS(type)                                                                                                    \
    INLINE void put_pairs_##type(char *p, const float *v)                                                              \
    {                                                                                                                  \
        u32 w[8];                                                                                                      \
        pack_##type##_4(w, v, 8);                                                                                      \
        store_pairs(p, w);                                                                                             \
    }
PAIRS(f32)
PAIRS(i32)
/* What was fetched so is exchanged by coda_exchange when it has come: where lanes follow the rows. */
#define FETCH_f32x8(w, p, count, wide) (FAST && ACROSS > 1 ? load_pairs(w, p) : fetch_f32x8(w, p, count, wide))
#define FETCH_i32x8(w, p, count, wide) (FAST && ACROSS > 1 ? load_pairs(w, p) : fetch_i32x8(w, p, count, wide))
#define PUT_f32x8(p, v, count, wide) (FAST ? put_pairs_f32(p, v) : put_f32x8(p, v, count, wide))
#define PUT_i32x8(p, v, count, wide) (FAST ? put_pairs_i32(p, v) : put_i32x8(p, v, count, wide))

/* Eight columns of a vector that repeats. */
#define REPEATS(type)                                                                                                  \
    INLINE void repeat_##type(u32 *w, const char *p, int column, int size, bool wide)                                  \
    {                                                                                                                  \
        if (size % 8 == 0) {                                                                                           \
            fetch_column_##type##x8(w, p + column % size * SIZE_##type, 8, wide);                                      \
            return;                                                                                                    \
        }                                                                                                              \
        float v[8];                                                                                                    \
        UNROLL for (int i = 0; i < 8; i++) v[i] = load_##type(p, (column + i) % size);                                 \
        PACK_##type(w, v);                                                                                             \
    }
#define PACK_f32(w, v) pack_f32_4(w, v, 8)
#define PACK_i32(w, v) pack_i32_4(w, v, 8)
#define PACK_bf16(w, v) pack_bf16_2(w, v, 8)
#define PACK_f16(w, v) pack_f16_2(w, v, 8)
#define PACK_e4m3(w, v) pack_e4m3_1(w, v, 8)
#define PACK_e5m2(w, v) pack_e5m2_1(w, v, 8)
REPEATS(f32)
REPEATS(i32)
REPEATS(bf16)
REPEATS(f16)
REPEATS(e4m3)
REPEATS(e5m2)

/* out += in f32: added in memory, once an element, so the sum is that of a load and a store. */
INLINE void add_4(char *p, float v) { asm volatile("red.global.add.f32 [%0], %1;" ::"l"(p), "f"(v) : "memory"); }
INLINE void add_16(char *p, const float *v)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(p), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
                 : "memory");
#else
    UNROLL for (int i = 0; i < 4; i++) add_4(p + 4 * i, v[i]);
#endif
}
INLINE void add_f32x4(char *p, const float *v, int count, bool wide)
{
    if (wide && count >= 4)
        add_16(p, v);
    else
        UNROLL for (int i = 0; i < 4; i++) if (i < count) add_4(p + 4 * i, v[i]);
}
INLINE void add_f32x8(char *p, const float *v, int count, bool wide)
{
    add_f32x4(p, v, count, wide);
    add_f32x4(p + 16, v + 4, count - 4, wide);
}

INLINE void add_pairs(char *p, const float *v)
{
    const bool odd = threadIdx.x & 1;
    float both[8];
    u32 w[8];
    pack_f32_4(w, v, 8);
    exchange_halves(w, odd);
    UNROLL for (int i = 0; i < 8; i++) both[i] = __uint_as_float(w[i]);
    p -= odd ? 16 : 0;
    add_16(p, both);
    add_16(p + 32, both + 4);
}
#define ADD_f32x8(p, v, count, wide) (FAST ? add_pairs(p, v) : add_f32x8(p, v, count, wide))

#if __CUDA_ARCH__ >= 900
/* out += in 16 bits: the value is rounded, memory adds and rounds. */
#define HALF_SUMS(type, packed)                                                                                        \
    INLINE void add_some_##type(char *p, const u32 *w, int count, int all)                                             \
    {                                                                                                                  \
        UNROLL for (int i = 0; i < all; i++) if (i < count) asm volatile("red.global.add.noftz." #type " [%0], %1;" :: \
                                                                             "l"(p + 2 * i),                           \
                                                                             "h"((u16)(w[i / 2] >> 16 * (i & 1)))      \
                                                                         : "memory");                                  \
    }                                                                                                                  \
    INLINE void add_words_##type(char *p, const u32 *w, int count, bool wide)                                          \
    {                                                                                                                  \
        if (wide && count >= 8)                                                                                        \
            asm volatile("red.global.add.noftz.v4." packed " [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(w[0]), "r"(w[1]),     \
                         "r"(w[2]), "r"(w[3])                                                                          \
                         : "memory");                                                                                  \
        else                                                                                                           \
            add_some_##type(p, w, count, 8);                                                                           \
    }                                                                                                                  \
    INLINE void add_##type##x8(char *p, const float *v, int count, bool wide)                                          \
    {                                                                                                                  \
        u32 w[4];                                                                                                      \
        pack_##type##_2(w, v, 8);                                                                                      \
        add_words_##type(p, w, count, wide);                                                                           \
    }                                                                                                                  \
    INLINE void add_##type##x4(char *p, const float *v, int count, bool wide)                                          \
    {                                                                                                                  \
        u32 w[2];                                                                                                      \
        pack_##type##_2(w, v, 4);                                                                                      \
        if (wide && count >= 4)                                                                                        \
            asm volatile("red.global.add.noftz.v2." packed " [%0], {%1,%2};" ::"l"(p), "r"(w[0]), "r"(w[1])            \
                         : "memory");                                                                                  \
        else                                                                                                           \
            add_some_##type(p, w, count, 4);                                                                           \
    }
HALF_SUMS(bf16, "bf16x2")
HALF_SUMS(f16, "f16x2")
#endif

/* Eight columns of a product as a bf16 out. */
#if EPILOGUE_ASIDE
#define PRODUCT(k) acc.w[k][b][h]
#define add_product add_words_bf16
INLINE void put_product(char *p, const u32 *w, int count, bool wide)
{
    if (wide && count >= 8)
        store_bytes_16(p, w);
    else
        store_some_2(p, w, count < 8 ? count : 8, 8);
}
#else
#define PRODUCT(k) acc.v[k][b][h]
#define add_product add_bf16x8
#define put_product put_bf16x8
#endif

/* Row values of `rows` rows from `first` on, by so many threads. */
INLINE void fill_values(const Params &P, float *values, int first, int rows, bool store, int thread, int threads)
{
    for (int i = thread; i < rows; i += threads) {
        if (first + i < ROWS)
            coda_rows(P, first + i, values + i, store);
        else
            for (int k = 0; k < VALUES; k++)
                values[k * VALUE_ROWS + i] = 0.0f;
    }
}
