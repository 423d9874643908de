/* Types, arithmetic and memory access that every kernel shares. No headers: the text is complete by itself. */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
#define INLINE static __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
#define ALL_LANES 0xffffffffu
#define INFINITE __int_as_float(0x7f800000)
#define NOT_A_NUMBER __int_as_float(0x7fffffff)

/* A launch may begin while the one before it in its stream ends (launch.c). Every thread of every kernel comes here before it
 * touches an operand: past it, all launches before this one are over and their memory is seen. */
INLINE void await_launches_before(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/* At the beginning of a kernel, and at its end: a launch that is apart from those before it works beside them, but may not end
 * before them. */
template <class P> INLINE void await_unless_apart(const P &parameters)
{
    if (!parameters.apart)
        await_launches_before();
}
template <class P> INLINE void await_if_apart(const P &parameters)
{
    if (parameters.apart)
        await_launches_before();
}
/* The launch after this one may begin: those before this one are over, or this one has nothing to do with them. */
INLINE void let_next_begin(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* ---------------------------------------------------------------- elementwise */

#define LOG2_E 1.4426950408889634f
INLINE float coda_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
INLINE float coda_exp(float x) { return coda_exp2(x * LOG2_E); }
INLINE float coda_reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
INLINE float coda_max(float a, float b)
{
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
INLINE float coda_min(float a, float b)
{
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
INLINE float coda_add(float a, float b) { return a + b; }
INLINE float coda_log(float x) { return logf(x); }
INLINE float coda_sqrt(float x) { return __fsqrt_rn(x); }
INLINE float coda_rsqrt(float x) { return rsqrtf(x); }
INLINE float coda_erf(float x) { return erff(x); }
INLINE float coda_abs(float x) { return fabsf(x); }
/* Within 2 units in the last place, without a branch: x + x^3 p(x^2) where 1 - 2 / (1 + e^2x) would lose digits. */
INLINE float coda_tanh(float x)
{
    const float s = x * x, a = coda_abs(x);
    const float p = __fmaf_rn(__fmaf_rn(__fmaf_rn(0.015612612f, s, -0.05221179f), s, 0.13313116f), s, -0.33332598f);
    const float large = __fmaf_rn(-2.0f, coda_reciprocal(1.0f + coda_exp2(a * (2.0f * LOG2_E))), 1.0f);
    return a < 0.6f ? __fmaf_rn(p * s, x, x) : copysignf(large, x);
}
INLINE float coda_div(float a, float b) { return __fdiv_rn(a, b); }
INLINE float coda_sigmoid(float x) { return coda_reciprocal(1.0f + coda_exp(-x)); }
INLINE float coda_silu(float x) { return x * coda_sigmoid(x); }
INLINE float coda_gelu(float x) { return 0.5f * x * erfcf(-0.7071067811865476f * x); }
INLINE float coda_gelu_tanh(float x)
{
    return x * coda_sigmoid(1.5957691216057308f * __fmaf_rn(0.044715f * x * x, x, x));
}

/* ---------------------------------------------------------------- element types: f32 bf16 f16 e4m3 e5m2 i32 */

enum { SIZE_f32 = 4, SIZE_i32 = 4, SIZE_bf16 = 2, SIZE_f16 = 2, SIZE_e4m3 = 1, SIZE_e5m2 = 1 };

INLINE float decode_f32(u32 bits) { return __uint_as_float(bits); }
INLINE float decode_i32(u32 bits) { return (float)(int)bits; }
INLINE float decode_bf16(u32 bits) { return __uint_as_float(bits << 16); }
INLINE float decode_f16(u32 bits)
{
    float y;
    asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h;}" : "=f"(y) : "r"(bits));
    return y;
}
/* The exponent of e5m2 is that of f16; that of e4m3 is 8 less. */
INLINE float decode_e5m2(u32 bits) { return decode_f16(bits << 8); }
INLINE float decode_e4m3(u32 bits)
{
    float y = 256.0f * decode_f16((bits & 0x80) << 8 | (bits & 0x7f) << 7);
    return (bits & 0x7f) == 0x7f ? NOT_A_NUMBER : y;
}

INLINE u32 encode_f32(float x) { return __float_as_uint(x); }
INLINE u32 encode_i32(float x)
{
    int y;
    asm("cvt.rzi.s32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return x == x ? (u32)y : 0;
}
INLINE u32 encode_bf16(float x)
{
    u32 y;
    asm("{.reg .b16 h; cvt.rn.bf16.f32 h, %1; cvt.u32.u16 %0, h;}" : "=r"(y) : "f"(x));
    return y;
}
INLINE u32 encode_f16(float x)
{
    u32 y;
    asm("{.reg .b16 h; cvt.rn.f16.f32 h, %1; cvt.u32.u16 %0, h;}" : "=r"(y) : "f"(x));
    return y;
}
INLINE u32 encode_e5m2(float x)
{
    const u32 bits = __float_as_uint(x), sign = bits >> 24 & 0x80, a = bits & 0x7fffffff;
    u32 y;
    if (a > 0x7f800000)
        return sign | 0x7f;
    if (a < 113u << 23) /* 2^-14 */
        y = (u32)rintf(__uint_as_float(a) * 65536.0f);
    else
        y = ((a + 0x0fffff + (a >> 21 & 1)) >> 21) - (112u << 2);
    return sign | (y < 0x7c ? y : 0x7c);
}
INLINE u32 encode_e4m3(float x)
{
    const u32 bits = __float_as_uint(x), sign = bits >> 24 & 0x80, a = bits & 0x7fffffff;
    u32 y;
    if (a < 121u << 23) /* 2^-6 */
        y = (u32)rintf(__uint_as_float(a) * 512.0f);
    else
        y = ((a + 0x07ffff + (a >> 20 & 1)) >> 20) - (120u << 3);
    return sign | (y < 0x7f ? y : 0x7f);
}

INLINE float coda_round_f32(float x) { return x; }
INLINE float coda_round_i32(float x) { return decode_i32(encode_i32(x)); }
INLINE float coda_round_bf16(float x) { return decode_bf16(encode_bf16(x)); }
INLINE float coda_round_f16(float x) { return decode_f16(encode_f16(x)); }
INLINE float coda_round_e4m3(float x) { return decode_e4m3(encode_e4m3(x)); }
INLINE float coda_round_e5m2(float x) { return decode_e5m2(encode_e5m2(x)); }

/* Element x of packed words. x is a constant wherever this is called, so it costs a shift at most. */
INLINE float word_f32(const u32 *w, int x) { return __uint_as_float(w[x]); }
INLINE float word_i32(const u32 *w, int x) { return decode_i32(w[x]); }
INLINE float word_bf16(const u32 *w, int x)
{
    return __uint_as_float(x & 1 ? w[x >> 1] & 0xffff0000u : w[x >> 1] << 16);
}
INLINE float word_f16(const u32 *w, int x) { return decode_f16(w[x >> 1] >> 16 * (x & 1) & 0xffff); }
INLINE float word_e4m3(const u32 *w, int x) { return decode_e4m3(w[x >> 2] >> 8 * (x & 3) & 0xff); }
INLINE float word_e5m2(const u32 *w, int x) { return decode_e5m2(w[x >> 2] >> 8 * (x & 3) & 0xff); }

INLINE u32 pack_bf16(float low, float high)
{
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
INLINE u32 pack_f16(float low, float high)
{
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

/* ---------------------------------------------------------------- global memory */

/* An operand of the program. */
struct Tensor {
    char *data;
    int rows, columns, stride; /* stride: of rows, in elements */
};

INLINE u32 load_1(const char *p)
{
    u32 v;
    asm volatile("ld.global.u8 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
INLINE u32 load_2(const char *p)
{
    u16 v;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(p));
    return v;
}
INLINE u32 load_4(const char *p)
{
    u32 v;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
INLINE void store_1(char *p, u32 v) { asm volatile("st.global.u8 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
INLINE void store_2(char *p, u32 v) { asm volatile("st.global.u16 [%0], %1;" ::"l"(p), "h"((u16)v) : "memory"); }
INLINE void store_4(char *p, u32 v) { asm volatile("st.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }

#define SCALARS(type, size)                                                                                            \
    INLINE float load_##type(const char *p, long i) { return decode_##type(load_##size(p + i * size)); }               \
    INLINE void store_##type(char *p, long i, float v) { store_##size(p + i * size, encode_##type(v)); }
SCALARS(f32, 4)
SCALARS(i32, 4)
SCALARS(bf16, 2)
SCALARS(f16, 2)
SCALARS(e4m3, 1)
SCALARS(e5m2, 1)
INLINE int load_id(const char *p, long i) { return (int)load_4(p + i * 4); }

/* Tile operands are read once, so they stay out of L1. */
INLINE void load_bytes_4(u32 *w, const char *p) { w[0] = load_4(p); }
INLINE void load_bytes_8(u32 *w, const char *p)
{
    asm volatile("ld.global.L1::no_allocate.v2.b32 {%0,%1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "l"(p));
}
INLINE void load_bytes_16(u32 *w, const char *p)
{
    asm volatile("ld.global.L1::no_allocate.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "l"(p));
}
INLINE void load_bytes_32(u32 *w, const char *p)
{
    load_bytes_16(w, p);
    load_bytes_16(w + 4, p + 16);
}
/* Vectors over columns are read by every tile of a column. */
INLINE void load_cached_4(u32 *w, const char *p) { w[0] = load_4(p); }
INLINE void load_cached_8(u32 *w, const char *p)
{
    asm volatile("ld.global.v2.b32 {%0,%1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "l"(p));
}
INLINE void load_cached_16(u32 *w, const char *p)
{
    asm volatile("ld.global.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "l"(p));
}
INLINE void load_cached_32(u32 *w, const char *p)
{
    load_cached_16(w, p);
    load_cached_16(w + 4, p + 16);
}
INLINE void store_bytes_4(char *p, const u32 *w) { store_4(p, w[0]); }
INLINE void store_bytes_8(char *p, const u32 *w)
{
    asm volatile("st.global.v2.b32 [%0], {%1,%2};" ::"l"(p), "r"(w[0]), "r"(w[1]) : "memory");
}
INLINE void store_bytes_16(char *p, const u32 *w)
{
    asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
}
INLINE void store_bytes_32(char *p, const u32 *w)
{
    store_bytes_16(p, w);
    store_bytes_16(p + 16, w + 4);
}

/* The first `count` of 8 (or 4) elements at a ragged or misaligned place; the others are 0. Small, not fast. */
INLINE void load_some_1(u32 *w, const char *p, int count, int all)
{
    u64 v = 0;
    ROLLED for (int i = count - 1; i >= 0; i--) v = v << 8 | load_1(p + i);
    w[0] = (u32)v;
    if (all > 4)
        w[1] = (u32)(v >> 32);
}
INLINE void load_some_2(u32 *w, const char *p, int count, int all)
{
    u64 low = 0, high = 0;
    ROLLED for (int i = count - 1; i >= 0; i--)
    {
        high = high << 16 | low >> 48;
        low = low << 16 | load_2(p + 2 * i);
    }
    w[0] = (u32)low, w[1] = (u32)(low >> 32);
    if (all > 4)
        w[2] = (u32)high, w[3] = (u32)(high >> 32);
}
INLINE void load_some_4(u32 *w, const char *p, int count, int all)
{
    UNROLL for (int i = 0; i < all; i++) w[i] = i < count ? load_4(p + 4 * i) : 0;
}
INLINE void store_some_1(char *p, const u32 *w, int count, int all)
{
    u64 v = w[0];
    if (all > 4)
        v |= (u64)w[1] << 32;
    ROLLED for (int i = 0; i < count; i++, v >>= 8) store_1(p + i, (u32)v);
}
INLINE void store_some_2(char *p, const u32 *w, int count, int all)
{
    u64 low = (u64)w[1] << 32 | w[0], high = 0;
    if (all > 4)
        high = (u64)w[3] << 32 | w[2];
    ROLLED for (int i = 0; i < count; i++)
    {
        store_2(p + 2 * i, (u32)low);
        low = low >> 16 | high << 48;
        high >>= 16;
    }
}
INLINE void store_some_4(char *p, const u32 *w, int count, int all)
{
    UNROLL for (int i = 0; i < all; i++) if (i < count) store_4(p + 4 * i, w[i]);
}

/* fetch: packed words from memory. put: floats to memory. `wide`: rows start at multiples of 16 bytes. */
#define VECTORS(type, size, all, bytes)                                                                                \
    INLINE void fetch_##type##x##all(u32 *w, const char *p, int count, bool wide)                                      \
    {                                                                                                                  \
        if (wide && count >= all)                                                                                      \
            load_bytes_##bytes(w, p);                                                                                  \
        else                                                                                                           \
            load_some_##size(w, p, count < all ? count : all, all);                                                    \
    }                                                                                                                  \
    INLINE void fetch_column_##type##x##all(u32 *w, const char *p, int count, bool wide)                               \
    {                                                                                                                  \
        if (wide && count >= all)                                                                                      \
            load_cached_##bytes(w, p);                                                                                 \
        else                                                                                                           \
            load_some_##size(w, p, count < all ? count : all, all);                                                    \
    }                                                                                                                  \
    INLINE void put_##type##x##all(char *p, const float *v, int count, bool wide)                                      \
    {                                                                                                                  \
        u32 w[bytes / 4];                                                                                              \
        pack_##type##_##size(w, v, all);                                                                               \
        if (wide && count >= all)                                                                                      \
            store_bytes_##bytes(p, w);                                                                                 \
        else                                                                                                           \
            store_some_##size(p, w, count < all ? count : all, all);                                                   \
    }
INLINE void pack_f32_4(u32 *w, const float *v, int all)
{
    UNROLL for (int i = 0; i < all; i++) w[i] = __float_as_uint(v[i]);
}
INLINE void pack_i32_4(u32 *w, const float *v, int all)
{
    UNROLL for (int i = 0; i < all; i++) w[i] = encode_i32(v[i]);
}
INLINE void pack_bf16_2(u32 *w, const float *v, int all)
{
    UNROLL for (int i = 0; i < all; i += 2) w[i / 2] = pack_bf16(v[i], v[i + 1]);
}
INLINE void pack_f16_2(u32 *w, const float *v, int all)
{
    UNROLL for (int i = 0; i < all; i += 2) w[i / 2] = pack_f16(v[i], v[i + 1]);
}
INLINE void pack_e4m3_1(u32 *w, const float *v, int all)
{
    UNROLL for (int i = 0; i < all; i += 4) w[i / 4] =
        encode_e4m3(v[i]) | encode_e4m3(v[i + 1]) << 8 | encode_e4m3(v[i + 2]) << 16 | encode_e4m3(v[i + 3]) << 24;
}
INLINE void pack_e5m2_1(u32 *w, const float *v, int all)
{
    UNROLL for (int i = 0; i < all; i += 4) w[i / 4] =
        encode_e5m2(v[i]) | encode_e5m2(v[i + 1]) << 8 | encode_e5m2(v[i + 2]) << 16 | encode_e5m2(v[i + 3]) << 24;
}
VECTORS(f32, 4, 8, 32)
VECTORS(f32, 4, 4, 16)
VECTORS(i32, 4, 8, 32)
VECTORS(i32, 4, 4, 16)
VECTORS(bf16, 2, 8, 16)
VECTORS(bf16, 2, 4, 8)
VECTORS(f16, 2, 8, 16)
VECTORS(f16, 2, 4, 8)
VECTORS(e4m3, 1, 8, 8)
VECTORS(e4m3, 1, 4, 4)
VECTORS(e5m2, 1, 8, 8)
VECTORS(e5m2, 1, 4, 4)

/* ---------------------------------------------------------------- reductions, in a fixed order */

INLINE float coda_largest(float a, float b) { return coda_max(a, b); }
#define TREE8(combine, v)                                                                                              \
    combine(combine(combine((v)[0], (v)[1]), combine((v)[2], (v)[3])),                                                 \
            combine(combine((v)[4], (v)[5]), combine((v)[6], (v)[7])))
INLINE float tree_sum(const float *v, int count)
{
    return count == 8 ? TREE8(coda_add, v)
                      : count == 4 ? coda_add(coda_add(v[0], v[1]), coda_add(v[2], v[3])) : coda_add(v[0], v[1]);
}
INLINE float tree_max(const float *v, int count)
{
    return count == 8 ? TREE8(coda_max, v)
                      : count == 4 ? coda_max(coda_max(v[0], v[1]), coda_max(v[2], v[3])) : coda_max(v[0], v[1]);
}
INLINE void mask(float *v, int count, float value)
{
    UNROLL for (int i = 0; i < 8; i++) v[i] = i < count ? v[i] : value;
}
/* Over the `lanes` (1 to 32) neighbours that share a row's run; every one of them has the result. */
INLINE float lanes_sum(float v, int lanes)
{
    UNROLL for (int distance = 1; distance < 32; distance *= 2) if (distance < lanes)
        v = coda_add(v, __shfl_xor_sync(ALL_LANES, v, distance));
    return v;
}
INLINE float lanes_max(float v, int lanes)
{
    UNROLL for (int distance = 1; distance < 32; distance *= 2) if (distance < lanes)
        v = coda_max(v, __shfl_xor_sync(ALL_LANES, v, distance));
    return v;
}

/* log sum exp: the largest value so far, and the sum of exponentials shifted by it. */
struct Online {
    float largest, sum;
};
INLINE Online online_start(void)
{
    Online o = {-INFINITE, 0.0f};
    return o;
}
INLINE float online_shift(float largest) { return largest == -INFINITE ? 0.0f : largest; }
INLINE void online_add(Online &o, const float *v, int count)
{
    const float largest = coda_max(o.largest, tree_max(v, count)), shift = online_shift(largest);
    float e[8];
    UNROLL for (int i = 0; i < count; i++) e[i] = coda_exp2(__fmaf_rn(v[i], LOG2_E, -(shift * LOG2_E)));
    o.sum = __fmaf_rn(o.sum, coda_exp(o.largest - shift), tree_sum(e, count));
    o.largest = largest;
}
INLINE Online online_join(Online a, Online b)
{
    const float largest = coda_max(a.largest, b.largest), shift = online_shift(largest);
    Online o = {largest, coda_add(a.sum * coda_exp(a.largest - shift), b.sum * coda_exp(b.largest - shift))};
    return o;
}
INLINE Online online_lanes(Online o, int lanes)
{
    UNROLL for (int distance = 1; distance < 32; distance *= 2)
    {
        if (distance >= lanes)
            break;
        Online other = {__shfl_xor_sync(ALL_LANES, o.largest, distance), __shfl_xor_sync(ALL_LANES, o.sum, distance)};
        o = online_join(o, other);
    }
    return o;
}
INLINE float online_finish(Online o) { return o.sum > 0.0f ? o.largest + coda_log(o.sum) : o.largest + o.sum - o.sum; }

/* Eight columns over the 8 lanes that hold their rows: each lane ends with the column lane / 4. */
#define COLUMNS8(name, combine)                                                                                        \
    INLINE float name(const float *v, int lane)                                                                        \
    {                                                                                                                  \
        float four[4], two[2];                                                                                         \
        UNROLL for (int i = 0; i < 4; i++)                                                                             \
        {                                                                                                              \
            const float send = lane & 16 ? v[i] : v[i + 4], keep = lane & 16 ? v[i + 4] : v[i];                        \
            four[i] = combine(keep, __shfl_xor_sync(ALL_LANES, send, 16));                                             \
        }                                                                                                              \
        UNROLL for (int i = 0; i < 2; i++)                                                                             \
        {                                                                                                              \
            const float send = lane & 8 ? four[i] : four[i + 2], keep = lane & 8 ? four[i + 2] : four[i];              \
            two[i] = combine(keep, __shfl_xor_sync(ALL_LANES, send, 8));                                               \
        }                                                                                                              \
        const float send = lane & 4 ? two[0] : two[1], keep = lane & 4 ? two[1] : two[0];                              \
        return combine(keep, __shfl_xor_sync(ALL_LANES, send, 4));                                                     \
    }
COLUMNS8(columns_sum, coda_add)
COLUMNS8(columns_max, coda_max)

/* Whole reductions of vectors in memory: partial sums, finished in order. `step` is in elements. */
#define WHOLE(type)                                                                                                    \
    INLINE float whole_sum_##type(const char *p, int count, long step)                                                 \
    {                                                                                                                  \
        float y = 0.0f;                                                                                                \
        _Pragma("unroll 8") for (int i = 0; i < count; i++) y = coda_add(y, load_##type(p, i * step));                 \
        return y;                                                                                                      \
    }                                                                                                                  \
    INLINE float whole_max_##type(const char *p, int count, long step)                                                 \
    {                                                                                                                  \
        float y = -INFINITE;                                                                                           \
        _Pragma("unroll 8") for (int i = 0; i < count; i++) y = coda_max(y, load_##type(p, i * step));                 \
        return y;                                                                                                      \
    }                                                                                                                  \
    INLINE float whole_absmax_##type(const char *p, int count, long step)                                              \
    {                                                                                                                  \
        float y = 0.0f;                                                                                                \
        _Pragma("unroll 8") for (int i = 0; i < count; i++) y = coda_max(y, coda_abs(load_##type(p, i * step)));       \
        return y;                                                                                                      \
    }                                                                                                                  \
    INLINE float whole_logsumexp_##type(const char *p, int count, long step)                                           \
    {                                                                                                                  \
        const float largest = whole_max_##type(p, count, step), shift = online_shift(largest);                         \
        float y = 0.0f;                                                                                                \
        _Pragma("unroll 8") for (int i = 0; i < count; i++) y =                                                        \
            coda_add(y, coda_exp(load_##type(p, i * step) - shift));                                                   \
        Online o = {largest, y};                                                                                       \
        return online_finish(o);                                                                                       \
    }
WHOLE(f32)
WHOLE(i32)
WHOLE(bf16)
WHOLE(f16)
WHOLE(e4m3)
WHOLE(e5m2)

/* The same in the same order, four numbers a load: a thread reads a row by itself, so each load of the warp touches 32 lines.
 * `ahead`: so many loads on their way at once, which suit long rows and cost text. */
#define LONG(name, first, combine, of)                                                                                 \
    template <int ahead> INLINE float name(const char *p, int count, float shift)                                      \
    {                                                                                                                  \
        float y = first;                                                                                               \
        int i = 0;                                                                                                     \
        ROLLED for (; i < count && ((u64)(p + 4 * i) & 15) != 0; i++) y = combine(y, of(load_f32(p, i), shift));       \
        _Pragma("unroll(ahead)") for (; i + 4 <= count; i += 4)                                                        \
        {                                                                                                              \
            u32 w[4];                                                                                                  \
            load_cached_16(w, p + 4 * i);                                                                              \
            UNROLL for (int k = 0; k < 4; k++) y = combine(y, of(__uint_as_float(w[k]), shift));                       \
        }                                                                                                              \
        ROLLED for (; i < count; i++) y = combine(y, of(load_f32(p, i), shift));                                       \
        return y;                                                                                                      \
    }
INLINE float itself(float x, float) { return x; }
INLINE float size_of_it(float x, float) { return coda_abs(x); }
INLINE float shifted_exp(float x, float shift) { return coda_exp(x - shift); }
LONG(long_total, 0.0f, coda_add, itself)
LONG(long_largest, -INFINITE, coda_max, itself)
LONG(long_largest_size, 0.0f, coda_max, size_of_it)
LONG(long_exponentials, 0.0f, coda_add, shifted_exp)
template <int ahead> INLINE float long_sum(const char *p, int count) { return long_total<ahead>(p, count, 0.0f); }
template <int ahead> INLINE float long_max(const char *p, int count) { return long_largest<ahead>(p, count, 0.0f); }
template <int ahead> INLINE float long_absmax(const char *p, int count)
{
    return long_largest_size<ahead>(p, count, 0.0f);
}
template <int ahead> INLINE float long_logsumexp(const char *p, int count)
{
    const float largest = long_max<ahead>(p, count);
    Online o = {largest, long_exponentials<ahead>(p, count, online_shift(largest))};
    return online_finish(o);
}

/* ---------------------------------------------------------------- shared memory and its copies */

INLINE u32 shared_address(const void *p)
{
    u32 a;
    asm("{.reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t;}" : "=r"(a) : "l"(p));
    return a;
}
/* 16 bytes, of which the first `bytes` come from memory and the others are 0; L2 brings the line of 128. */
INLINE void copy_16(u32 to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
INLINE void copy_8(u32 to, const void *from, int bytes)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
INLINE void copy_4(u32 to, const void *from, int bytes)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
INLINE void copy_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
#define COPY_WAIT(pending) asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory")
INLINE void shared_load_16(u32 *w, u32 from)
{
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(from)
                 : "memory");
}
INLINE void shared_load_8(u32 *w, u32 from)
{
    asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "r"(from) : "memory");
}
INLINE void shared_load_4(u32 *w, u32 from) { asm volatile("ld.shared.b32 %0, [%1];" : "=r"(w[0]) : "r"(from) : "memory"); }
INLINE void shared_store_4(u32 to, u32 w) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(w) : "memory"); }
INLINE void shared_store_16(u32 to, const u32 *w)
{
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
}

/* Four lanes exchange so that words a..d, which hold columns 2q, 2q + 1 of four eights, become 8 neighbours of one eight.
 * Selects, not branches: ptxas serialises wgmma where accumulators are written under a condition. */
template <typename T> INLINE void transpose_quad(T &a, T &b, T &c, T &d, int quad)
{
    const bool odd = quad & 1, high = quad & 2;
    T send, got;
    send = odd ? a : b, got = __shfl_xor_sync(ALL_LANES, send, 1), a = odd ? got : a, b = odd ? b : got;
    send = odd ? c : d, got = __shfl_xor_sync(ALL_LANES, send, 1), c = odd ? got : c, d = odd ? d : got;
    send = high ? a : c, got = __shfl_xor_sync(ALL_LANES, send, 2), a = high ? got : a, c = high ? c : got;
    send = high ? b : d, got = __shfl_xor_sync(ALL_LANES, send, 2), b = high ? got : b, d = high ? d : got;
}
