/* What translated kernels stand on: threads of a block as coroutines, and PTX's instructions as functions. The order in which
 * threads run is drawn anew at each step, so that a barrier that is missing shows. */
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

/* ---------------------------------------------------------------- threads: those of all blocks of a cluster at once */

struct dimensions {
    unsigned x, y, z;
};
static dimensions threadIdx, blockIdx, gridDim, blockDim;
enum { MOST_THREADS = 384, MOST_BLOCKS = 4, WARPS = MOST_THREADS / 32, STACK = 256 << 10, SHARED_BYTES = 1 << 18, STILL = 20000 };

struct meeting {
    unsigned there, number;
};
struct transaction_barrier {
    int count, pending;
    long bytes;
    unsigned phase;
};
struct block {
    alignas(1024) char shared[SHARED_BYTES];
    transaction_barrier barrier[SHARED_BYTES / 8];
    meeting all, warp[WARPS], group[3], named[16];
    int any; /* of what __syncthreads_or was given */
    uint64_t exchange[WARPS][32][4];
};
static block blocks[MOST_BLOCKS];
static unsigned rank, cluster; /* of the thread that runs */
static char *emulated_shared() { return blocks[rank].shared; }

/* Coroutines: what a call must preserve is on a stack, whose top is all that is remembered. */
#if defined(__x86_64__)
asm(".text\nswitch_stacks:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
extern "C" void switch_stacks(void **kept, void *next) __asm__("switch_stacks");
enum { PRESERVED = 6 }; /* words below the address to return to */
#elif defined(__aarch64__)
asm(".text\nswitch_stacks:\n"
    "sub sp, sp, #160\nstp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\nstp x25, x26, [sp, #48]\n"
    "stp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\nstp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\n"
    "stp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\nmov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
    "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, #48]\n"
    "ldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\nldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\n"
    "ldp d12, d13, [sp, #128]\nldp d14, d15, [sp, #144]\nadd sp, sp, #160\nret\n");
extern "C" void switch_stacks(void **kept, void *next) __asm__("switch_stacks");
enum { PRESERVED = 11 };
#else
#error "coroutines are written for x86-64 and AArch64"
#endif

struct thread {
    void *top;
    char *stack;
    bool done, begun; /* begun: it has waited for the launches before */
};
static thread threads[MOST_BLOCKS * MOST_THREADS];
static void *scheduler;
static unsigned now, first_block;
static long progress;
static const void *parameters;
static void emulated_kernel(const void *parameters);
static void deliver_some();

static bool emulated_is_apart(const void *parameters);
static void ptx_griddepcontrol_launch_dependents() {}
static void ptx_griddepcontrol_wait() { threads[now].begun = true; }
/* A launch may begin while the one before it still runs; it may not end sooner, and if it is not apart, not touch anything. */
static void must_have_begun(const char *what, bool apart = emulated_is_apart(parameters))
{
    if (threads[now].begun || apart)
        return;
    fprintf(stderr, "%s comes before the wait for the launches before this one\n", what);
    abort();
}

static void give_way() { switch_stacks(&threads[now].top, scheduler); }

static void run_thread()
{
    emulated_kernel(parameters);
    must_have_begun("the end", false);
    threads[now].done = true;
    progress++;
    give_way();
}

/* A stack from which switch_stacks returns into run_thread. */
static void start_thread(thread &t)
{
    if (!t.stack)
        t.stack = (char *)malloc(STACK);
    void **top = (void **)(((uintptr_t)t.stack + STACK - 256) & ~(uintptr_t)15);
#if defined(__x86_64__)
    *--top = nullptr; /* the stack is 8 off where a function begins */
    *--top = (void *)run_thread;
    top -= PRESERVED;
#else
    top -= 20;
    top[PRESERVED] = (void *)run_thread;
#endif
    t.top = top, t.done = t.begun = false;
}

static void meet(meeting &at, unsigned size)
{
    const unsigned number = at.number;
    if (++at.there == size)
        at.there = 0, at.number++, progress++;
    else
        while (at.number == number)
            give_way();
}
static meeting whole_cluster;
static void meet_warp() { meet(blocks[rank].warp[threadIdx.x / 32], 32); }
static void __syncthreads() { meet(blocks[rank].all, blockDim.x); }
static int __syncthreads_or(int x)
{
    blocks[rank].any |= x;
    __syncthreads();
    const int found = blocks[rank].any;
    __syncthreads();
    blocks[rank].any = 0; /* by each thread: none goes on before all are here */
    __syncthreads();
    return found;
}
static void __syncwarp() { meet_warp(); }

static uint64_t seed = 88172645463325252ull;
static unsigned draw(unsigned below)
{
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (unsigned)(seed >> 33) % below;
}

static void start_blocks(unsigned count)
{
    whole_cluster = {};
    for (unsigned b = 0; b < cluster; b++) {
        memset(blocks[b].shared, 0xff, sizeof blocks[b].shared);
        memset((void *)&blocks[b].barrier, 0, sizeof(block) - offsetof(block, barrier));
    }
    for (unsigned i = 0; i < count; i++)
        start_thread(threads[i]);
}

static bool run_blocks(unsigned y)
{
    const unsigned count = cluster * blockDim.x;
    unsigned left = count;
    start_blocks(count);
    for (long still = 0, last = -1; left; still = progress == last ? still + 1 : 0, last = progress) {
        if (still > STILL)
            return false;
        const unsigned first = draw(count), step = draw(2) ? 1 : count - 1;
        deliver_some();
        for (unsigned i = 0; i < count; i++) {
            now = (first + i * step) % count;
            if (threads[now].done)
                continue;
            rank = now / blockDim.x, threadIdx = {now % blockDim.x, 0, 0}, blockIdx = {first_block + rank, y, 0};
            switch_stacks(&scheduler, threads[now].top);
            left -= threads[now].done;
        }
    }
    return true;
}

/* 0, or 1 where the threads of a block wait for each other for ever. */
static int emulated_run(const void *p, unsigned grid_x, unsigned grid_y, unsigned block_x, unsigned cluster_x)
{
    parameters = p, cluster = cluster_x;
    gridDim = {grid_x, grid_y, 1}, blockDim = {block_x, 1, 1};
    for (unsigned y = 0; y < grid_y; y++)
        for (first_block = 0; first_block < grid_x; first_block += cluster)
            if (!run_blocks(y))
                return 1;
    return 0;
}

/* As emulated_gpu.c knows it. */
struct entry {
    int (*run)(const void *, unsigned, unsigned, unsigned, unsigned);
    bool (*is_apart)(const void *);
    size_t parameter_bytes;
};

/* ---------------------------------------------------------------- between the threads of a warp */

#define EXCHANGE blocks[rank].exchange[threadIdx.x / 32]

template <typename T> static T shuffle(T value, unsigned from)
{
    T got;
    memcpy(EXCHANGE[threadIdx.x % 32], &value, sizeof value);
    meet_warp();
    memcpy(&got, EXCHANGE[from & 31], sizeof got);
    meet_warp();
    return got;
}
template <typename T> static T __shfl_xor_sync(unsigned, T value, int distance) { return shuffle(value, threadIdx.x ^ distance); }
template <typename T> static T __shfl_sync(unsigned, T value, int from) { return shuffle(value, from); }
static bool __all_sync(unsigned, bool answer)
{
    EXCHANGE[threadIdx.x % 32][0] = answer;
    meet_warp();
    bool all = true;
    for (unsigned i = 0; i < 32; i++)
        all &= EXCHANGE[i][0] != 0;
    meet_warp();
    return all;
}
static void ptx_elect_sync__selp_u32(unsigned &elected) { elected = threadIdx.x % 32 == 0; }

/* ---------------------------------------------------------------- arithmetic */

static float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
static float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
static int __float_as_int(float x) { int y; memcpy(&y, &x, 4); return y; }
static unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
static float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static float __fsqrt_rn(float x) { return sqrtf(x); }
static float __fdiv_rn(float a, float b) { return a / b; }
static float rsqrtf(float x) { return (float)(1 / sqrt((double)x)); }

static void ptx_ex2_approx_ftz_f32(float &y, float x) { y = exp2f(x); }
static void ptx_rcp_approx_ftz_f32(float &y, float x) { y = 1 / x; }
static void ptx_max_NaN_f32(float &y, float a, float b) { y = a != a || b != b ? NAN : fmaxf(a, b); }
static void ptx_min_NaN_f32(float &y, float a, float b) { y = a != a || b != b ? NAN : fminf(a, b); }
static void ptx_cvt_rzi_s32_f32(unsigned &y, float x)
{
    y = x != x ? 0 : x >= 2147483648.0f ? 0x7fffffffu : x <= -2147483648.0f ? 0x80000000u : (unsigned)(int)x;
}
static void ptx_cvt_rzi_s32_f32(int &y, float x)
{
    unsigned u;
    ptx_cvt_rzi_s32_f32(u, x);
    y = (int)u;
}
static unsigned to_bf16(float x)
{
    const unsigned u = __float_as_uint(x);
    return x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
static unsigned to_f16(float x)
{
    const _Float16 h = (_Float16)x;
    uint16_t bits;
    memcpy(&bits, &h, 2);
    return bits;
}
static float from_bf16(unsigned bits) { return __uint_as_float(bits << 16); }
static float from_f16(unsigned bits)
{
    const uint16_t low = (uint16_t)bits;
    _Float16 h;
    memcpy(&h, &low, 2);
    return h;
}
static void ptx_cvt_u16_u32__cvt_f32_f16(float &y, unsigned bits) { y = from_f16(bits); }
static void ptx_cvt_rn_bf16_f32__cvt_u32_u16(unsigned &y, float x) { y = to_bf16(x); }
static void ptx_cvt_rn_f16_f32__cvt_u32_u16(unsigned &y, float x) { y = to_f16(x); }
static void ptx_cvt_rn_bf16x2_f32(unsigned &y, float high, float low) { y = to_bf16(high) << 16 | to_bf16(low); }
static void ptx_cvt_rn_f16x2_f32(unsigned &y, float high, float low) { y = to_f16(high) << 16 | to_f16(low); }

/* ---------------------------------------------------------------- memory; vectors must be aligned, as the GPU wants it */

template <typename T> static T load(const void *p)
{
    T x;
    memcpy(&x, p, sizeof x);
    return x;
}
static const char *aligned(const void *p, unsigned bytes)
{
    if ((uintptr_t)p % bytes) {
        fprintf(stderr, "an access of %u bytes at %p is not aligned\n", bytes, p);
        abort();
    }
    return (const char *)p;
}
#define WORD(p, i) load<unsigned>(aligned(p, 4) + 4 * (i))
static const char *operand(const void *p, unsigned bytes)
{
    must_have_begun("an access to an operand");
    return aligned(p, bytes);
}
static void ptx_ld_global_u8(unsigned &v, const void *p) { v = load<uint8_t>(operand(p, 1)); }
template <typename T> static void ptx_ld_global_u16(T &v, const void *p) { v = load<uint16_t>(operand(p, 2)); }
static void ptx_ld_global_u32(unsigned &v, const void *p) { operand(p, 4), v = WORD(p, 0); }
static void ptx_ld_global_v2_b32(unsigned &a, unsigned &b, const void *p) { operand(p, 8), a = WORD(p, 0), b = WORD(p, 1); }
static void ptx_ld_global_v4_b32(unsigned &a, unsigned &b, unsigned &c, unsigned &d, const void *p)
{
    operand(p, 16), a = WORD(p, 0), b = WORD(p, 1), c = WORD(p, 2), d = WORD(p, 3);
}
#define ptx_ld_global_L1_no_allocate_v2_b32 ptx_ld_global_v2_b32
#define ptx_ld_global_L1_no_allocate_v4_b32 ptx_ld_global_v4_b32
#define ptx_ld_global_L2_128B_v2_b32        ptx_ld_global_v2_b32
#define ptx_ld_global_L2_128B_v4_b32        ptx_ld_global_v4_b32
static void ptx_st_global_u8(char *p, unsigned v) { *(char *)operand(p, 1) = (char)v; }
static void ptx_st_global_u16(char *p, unsigned v) { memcpy((char *)operand(p, 2), &v, 2); }
static void ptx_st_global_u32(char *p, unsigned v) { memcpy((char *)operand(p, 4), &v, 4); }
static void put(char *p, unsigned a, unsigned b, unsigned c, unsigned d, unsigned count)
{
    const unsigned w[4] = {a, b, c, d};
    memcpy((char *)aligned(p, 4 * count), w, 4 * count);
}
static void ptx_st_global_v2_b32(char *p, unsigned a, unsigned b) { operand(p, 8), put(p, a, b, 0, 0, 2); }
static void ptx_st_global_v4_b32(char *p, unsigned a, unsigned b, unsigned c, unsigned d) { operand(p, 16), put(p, a, b, c, d, 4); }
static void ptx_red_global_add_f32(char *p, float v)
{
    const float sum = load<float>(operand(p, 4)) + v;
    memcpy(p, &sum, 4);
}
static void ptx_red_global_add_v4_f32(char *p, float a, float b, float c, float d)
{
    aligned(p, 16);
    ptx_red_global_add_f32(p, a), ptx_red_global_add_f32(p + 4, b), ptx_red_global_add_f32(p + 8, c), ptx_red_global_add_f32(p + 12, d);
}

#define HALF_SUMS(type)                                                                                                \
    static void ptx_red_global_add_noftz_##type(char *p, unsigned v)                                                   \
    {                                                                                                                  \
        const unsigned sum = to_##type(from_##type(load<uint16_t>(operand(p, 2))) + from_##type(v));                   \
        memcpy(p, &sum, 2);                                                                                            \
    }                                                                                                                  \
    static void ptx_red_global_add_noftz_v2_##type##x2(char *p, unsigned a, unsigned b)                                \
    {                                                                                                                  \
        const unsigned w[2] = {a, b};                                                                                  \
        operand(p, 8);                                                                                                 \
        for (int i = 0; i < 4; i++) ptx_red_global_add_noftz_##type(p + 2 * i, w[i / 2] >> 16 * (i % 2) & 0xffff);     \
    }                                                                                                                  \
    static void ptx_red_global_add_noftz_v4_##type##x2(char *p, unsigned a, unsigned b, unsigned c, unsigned d)        \
    {                                                                                                                  \
        operand(p, 16);                                                                                                \
        ptx_red_global_add_noftz_v2_##type##x2(p, a, b), ptx_red_global_add_noftz_v2_##type##x2(p + 8, c, d);          \
    }
HALF_SUMS(bf16)
HALF_SUMS(f16)

/* Shared memory has addresses of 32 bits: distances from emulated_shared; in a cluster 1 + the rank of another block above. */
static char *shared_at(unsigned address, unsigned bytes)
{
    char *own = cluster > 1 && address >> 24 ? blocks[(address >> 24) - 1].shared + (address & 0xffffff) : emulated_shared() + (int)address;
    return (char *)aligned(own, bytes);
}
static void ptx_cvta_to_shared_u64__cvt_u32_u64(unsigned &a, const void *p) { a = (unsigned)((const char *)p - emulated_shared()); }
static void ptx_ld_shared_b32(unsigned &a, unsigned from) { a = WORD(shared_at(from, 4), 0); }
static void ptx_ld_shared_v2_b32(unsigned &a, unsigned &b, unsigned from) { ptx_ld_global_v2_b32(a, b, shared_at(from, 8)); }
static void ptx_ld_shared_v4_b32(unsigned &a, unsigned &b, unsigned &c, unsigned &d, unsigned from)
{
    ptx_ld_global_v4_b32(a, b, c, d, shared_at(from, 16));
}
static void ptx_st_shared_b32(unsigned to, unsigned a) { put(shared_at(to, 4), a, 0, 0, 0, 1); }
static void ptx_st_shared_v2_b32(unsigned to, unsigned a, unsigned b) { put(shared_at(to, 8), a, b, 0, 0, 2); }
static void ptx_st_shared_v4_b32(unsigned to, unsigned a, unsigned b, unsigned c, unsigned d) { put(shared_at(to, 16), a, b, c, d, 4); }

/* Copies that the kernel waits for later arrive at once: what is read too early is not found here. */
static void copy(unsigned to, const void *from, unsigned bytes, unsigned size)
{
    memset(shared_at(to, size), 0, size);
    memcpy(shared_at(to, size), bytes ? operand(from, size) : "", bytes);
}
static void ptx_cp_async_cg_shared_global_L2_128B(unsigned to, const void *from, unsigned bytes, unsigned size) { copy(to, from, bytes, size); }
static void ptx_cp_async_ca_shared_global(unsigned to, const void *from, unsigned bytes, unsigned size) { copy(to, from, bytes, size); }
static void ptx_cp_async_commit_group() {}
static void ptx_cp_async_wait_group(int) {}

/* ---------------------------------------------------------------- matrices of a warp */

static void load_matrices(unsigned *r, unsigned address, bool transposed)
{
    uint64_t(*all)[4] = EXCHANGE;
    const unsigned lane = threadIdx.x % 32;
    all[lane][0] = address;
    meet_warp();
    for (unsigned m = 0; m < 4; m++) {
        const char *row[2];
        unsigned column[2];
        for (unsigned i = 0; i < 2; i++) {
            const unsigned pair = lane % 4 * 2 + i, line = transposed ? pair : lane / 4;
            row[i] = shared_at((unsigned)all[8 * m + line][0], 16), column[i] = transposed ? lane / 4 : pair;
        }
        r[m] = load<uint16_t>(row[0] + 2 * column[0]) | (unsigned)load<uint16_t>(row[1] + 2 * column[1]) << 16;
    }
    meet_warp();
}
#define LOAD_MATRICES(transposed)                                                                                      \
    unsigned r[4];                                                                                                     \
    load_matrices(r, from, transposed);                                                                                \
    a = r[0], b = r[1], c = r[2], d = r[3]
static void ptx_ldmatrix_sync_aligned_m8n8_x4_shared_b16(unsigned &a, unsigned &b, unsigned &c, unsigned &d, unsigned from)
{
    LOAD_MATRICES(false);
}
static void ptx_ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(unsigned &a, unsigned &b, unsigned &c, unsigned &d, unsigned from)
{
    LOAD_MATRICES(true);
}

static float half_of(unsigned word, unsigned i, bool f16)
{
    const unsigned bits = i ? word >> 16 : word & 0xffff;
    return f16 ? from_f16(bits) : __uint_as_float(bits << 16);
}
/* d[16, 8] += a[16, 16] b[16, 8] */
static void multiply(float *d, const unsigned *a, const unsigned *b, bool f16)
{
    static unsigned left[MOST_THREADS / 32][32][4], right[MOST_THREADS / 32][32][2];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    memcpy(left[warp][lane], a, 16), memcpy(right[warp][lane], b, 8);
    meet_warp();
    for (unsigned i = 0; i < 4; i++) {
        const unsigned m = lane / 4 + i / 2 * 8, n = lane % 4 * 2 + i % 2;
        double sum = d[i];
        for (unsigned k = 0; k < 16; k++) {
            const unsigned l = left[warp][m % 8 * 4 + k % 8 / 2][m / 8 + k / 8 * 2], r = right[warp][n * 4 + k % 8 / 2][k / 8];
            sum += (double)half_of(l, k % 2, f16) * half_of(r, k % 2, f16);
        }
        d[i] = (float)sum;
    }
    meet_warp();
}
#define MULTIPLY(f16)                                                                                                  \
    float d[4] = {d0, d1, d2, d3};                                                                                     \
    const unsigned a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};                                                           \
    multiply(d, a, b, f16);                                                                                            \
    d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3]
#define OPERANDS float &d0, float &d1, float &d2, float &d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1
static void ptx_mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(OPERANDS) { MULTIPLY(true); }
static void ptx_mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(OPERANDS) { MULTIPLY(false); }

/* ---------------------------------------------------------------- Hopper: barriers */

static transaction_barrier &barrier_at(unsigned address)
{
    block &of = blocks[cluster > 1 && address >> 24 ? (address >> 24) - 1 : rank];
    return of.barrier[(address & 0xffffff) / 8];
}
static void settle(transaction_barrier &b)
{
    if (b.pending == 0 && b.bytes == 0)
        b.pending = b.count, b.phase++;
    progress++;
}
static bool phase_ended(unsigned barrier, unsigned parity) { return (barrier_at(barrier).phase & 1) != parity; }
static void ptx_mbarrier_init_shared_cta_b64(unsigned b, unsigned count) { barrier_at(b) = {(int)count, (int)count, 0, 0}; }
static void ptx_mbarrier_arrive_shared_cta_b64(unsigned b) { barrier_at(b).pending--, settle(barrier_at(b)); }
#define ptx_mbarrier_arrive_shared_cluster_b64 ptx_mbarrier_arrive_shared_cta_b64
static void ptx_mbarrier_arrive_expect_tx_shared_cta_b64(unsigned b, unsigned bytes)
{
    barrier_at(b).bytes += bytes;
    ptx_mbarrier_arrive_shared_cta_b64(b);
}
static void ptx_mbarrier_try_wait_parity_shared_cta_b64__bra__bra(unsigned b, unsigned parity)
{
    while (!phase_ended(b, parity))
        give_way();
}
static void ptx_mbarrier_test_wait_parity_shared_cta_b64__selp_u32(unsigned &done, unsigned b, unsigned parity)
{
    done = phase_ended(b, parity);
}
static void ptx_mbarrier_try_wait_parity_shared_cta_b64(unsigned b, unsigned parity)
{
    for (unsigned i = draw(8); i > 0 && !phase_ended(b, parity); i--)
        give_way();
}
static void ptx_red_relaxed_cta_shared_add_u32(unsigned counter, unsigned more) { ptx_st_shared_b32(counter, WORD(shared_at(counter, 4), 0) + more); }
static void ptx_ld_relaxed_cta_shared_u32(unsigned &count, unsigned counter) { ptx_ld_shared_b32(count, counter); }
static void ptx_bar_sync(unsigned id, unsigned size) { meet(blocks[rank].named[id], size); }
static void ptx_bar_sync(unsigned size) { ptx_bar_sync(4, size); }
static void meet_cluster() { meet(whole_cluster, cluster * blockDim.x); }
#define ptx_barrier_cluster_arrive_release__barrier_cluster_wait_acquire                 meet_cluster
#define ptx_barrier_cluster_arrive_release_aligned__barrier_cluster_wait_acquire_aligned meet_cluster
static void ptx_mapa_shared_cluster_u32(unsigned &there, unsigned address, unsigned block) { there = (block + 1) << 24 | address; }
static void ptx_mov_u32(unsigned &r) { r = rank; }
static void ptx_mov_u32(int &r) { r = (int)rank; }
static void ptx_fence_mbarrier_init_release_cluster() {}
static void ptx_setmaxnreg_dec_sync_aligned_u32(int) {}
static void ptx_setmaxnreg_inc_sync_aligned_u32(int) {}

#include "boxes.h"

/* ---------------------------------------------------------------- Hopper: products of a warpgroup */

static void ptx_wgmma_fence_sync_aligned() {}
static void ptx_wgmma_commit_group_sync_aligned() {}
template <typename... T> static void ptx_wgmma_wait_group_sync_aligned(T &&...) {}

/* Element (i, k) of a matrix that a descriptor tells of. */
static float described(uint64_t d, bool across, unsigned i, unsigned k, bool f16)
{
    const unsigned start = (unsigned)(d & 0x3fff) << 4, leading = (unsigned)(d >> 16 & 0x3fff) << 4, stride = (unsigned)(d >> 32 & 0x3fff) << 4;
    const bool wide = d >> 62 == 1;
    const unsigned at = across ? i / 64 * leading + k / 8 * stride + k % 8 * 128 + i % 64 * 2
                               : i / 8 * stride + i % 8 * (wide ? 128 : 64) + k * 2;
    return half_of(load<uint16_t>(emulated_shared() + swizzled(start + at, wide)), 0, f16);
}
/* d[64, columns] (+)= a b^T */
static void emulated_wgmma(float *d, unsigned columns, bool f16, uint64_t a, uint64_t b, int add, int a_across, int b_across)
{
    static float left[MOST_BLOCKS][3][64][16], right[MOST_BLOCKS][3][256][16];
    const unsigned group = threadIdx.x / 128, t = threadIdx.x % 128;
    float(*l)[16] = left[rank][group], (*r)[16] = right[rank][group];
    for (unsigned e = t; e < 64 * 16; e += 128)
        l[e / 16][e % 16] = described(a, a_across, e / 16, e % 16, f16);
    for (unsigned e = t; e < columns * 16; e += 128)
        r[e / 16][e % 16] = described(b, b_across, e / 16, e % 16, f16);
    meet(blocks[rank].group[group], 128);
    for (unsigned i = 0; i < columns / 2; i++) {
        const unsigned m = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, n = i / 4 * 8 + t % 4 * 2 + i % 2;
        double sum = add ? d[i] : 0;
        for (unsigned k = 0; k < 16; k++)
            sum += (double)l[m][k] * r[n][k];
        d[i] = (float)sum;
    }
    meet(blocks[rank].group[group], 128);
}

static void ptx_stmatrix_sync_aligned_m8n8_x4_shared_b16(unsigned to, unsigned a, unsigned b, unsigned c, unsigned d)
{
    const unsigned lane = threadIdx.x % 32, word[4] = {a, b, c, d};
    EXCHANGE[lane][0] = to;
    meet_warp();
    for (unsigned m = 0; m < 4; m++)
        memcpy(shared_at((unsigned)EXCHANGE[8 * m + lane / 4][0], 16) + lane % 4 * 4, &word[m], 4);
    meet_warp();
}
