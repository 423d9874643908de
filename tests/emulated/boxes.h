/* Hopper's copies of boxes, which arrive later: in shared memory, told by a barrier, and on their way out. Part of emulated.h. */

struct box {
    uint64_t word[16]; /* as tests/kit/stub_gpu.c encodes a map: base, columns, rows, bytes between rows, box */
    unsigned to, barrier, blocks;
    int x, y;
};
enum { MOST_BOXES = 256 };
static box boxes[MOST_BOXES];
static unsigned box_count;

static unsigned swizzled(unsigned address, bool wide) { return address ^ (address >> 7 & (wide ? 7 : 3)) << 4; }

static void deliver(const box &b)
{
    const unsigned width = (unsigned)b.word[4], height = (unsigned)b.word[5];
    for (unsigned to = 0; to < cluster; to++) {
        if (!(b.blocks >> to & 1))
            continue;
        for (unsigned r = 0; r < height; r++)
            for (unsigned c = 0; c < width; c++) {
                const long x = b.x + (long)c, y = b.y + (long)r;
                const bool inside = x >= 0 && y >= 0 && x < (long)b.word[1] && y < (long)b.word[2];
                uint16_t value = 0;
                if (inside)
                    value = load<uint16_t>((const char *)b.word[0] + y * b.word[3] + 2 * x);
                memcpy(blocks[to].shared + swizzled(b.to + (r * width + c) * 2, width == 64), &value, 2);
            }
        transaction_barrier &barrier = blocks[to].barrier[b.barrier / 8];
        barrier.bytes -= 2 * width * height;
        settle(barrier);
    }
}
static void deliver_some()
{
    while (box_count && draw(3)) {
        const unsigned i = draw(box_count);
        deliver(boxes[i]);
        boxes[i] = boxes[--box_count];
    }
}
static void bring_box(unsigned to, const void *map, unsigned barrier, int x, int y, unsigned mask)
{
    must_have_begun("a box of an operand");
    while (box_count == MOST_BOXES)
        give_way();
    box &b = boxes[box_count++];
    memcpy(b.word, map, sizeof b.word);
    b.to = to, b.barrier = barrier, b.blocks = mask, b.x = x, b.y = y;
    progress++;
}
static void ptx_cp_async_bulk_tensor_2d_shared_cluster_global_tile_mbarrier_complete_tx_bytes(unsigned to, const void *map, unsigned barrier, int x, int y)
{
    bring_box(to, map, barrier, x, y, 1u << rank);
}
static void ptx_cp_async_bulk_tensor_2d_shared_cluster_global_tile_mbarrier_complete_tx_bytes_multicast_cluster(unsigned to, const void *map, unsigned barrier, int x, int y, unsigned mask)
{
    bring_box(to, map, barrier, x, y, mask);
}
static void ptx_cp_async_bulk_prefetch_tensor_2d_L2_global_tile(const void *, int, int) {}

/* Boxes on their way out end at the matrix's rows and at the 16 bytes in which its columns end, as the GPU does it; they
 * are read when the thread that sent them waits for that: as late as can be. */
struct sent {
    box of;
    unsigned thread;
    bool adds;
};
static sent outgoing[MOST_BOXES];
static unsigned outgoing_count;

static void send_box(const void *map, int x, int y, unsigned from, bool adds)
{
    must_have_begun("a box of an out");
    if (outgoing_count == MOST_BOXES)
        fprintf(stderr, "too many boxes on their way out\n"), abort();
    sent &s = outgoing[outgoing_count++];
    memcpy(s.of.word, map, sizeof s.of.word);
    s.of.to = from, s.of.blocks = rank, s.of.x = x, s.of.y = y;
    s.thread = now, s.adds = adds;
}
static void store_box(const sent &s)
{
    const box &b = s.of;
    const unsigned width = (unsigned)b.word[4], height = (unsigned)b.word[5], size = b.word[6] == 7 ? 4 : 2;
    for (unsigned r = 0; r < height; r++)
        for (unsigned c = 0; c < width; c++) {
            const long x = b.x + (long)c, y = b.y + (long)r;
            if (x < 0 || y < 0 || size * x >= ((long)b.word[1] * size + 15) / 16 * 16 || y >= (long)b.word[2])
                continue;
            const char *from = blocks[b.blocks].shared + swizzled(b.to + (r * width + c) * size, width * size == 128);
            char *to = (char *)b.word[0] + y * b.word[3] + size * x;
            if (!s.adds)
                memcpy(to, from, size);
            else if (size == 4)
                ptx_red_global_add_f32(to, load<float>(from));
            else
                ptx_red_global_add_noftz_bf16(to, load<uint16_t>(from));
        }
}
static void ptx_cp_async_bulk_wait_group_read(...)
{
    for (unsigned i = 0; i < outgoing_count;)
        if (outgoing[i].thread == now)
            store_box(outgoing[i]), outgoing[i] = outgoing[--outgoing_count];
        else
            i++;
}
#define ptx_cp_async_bulk_wait_group ptx_cp_async_bulk_wait_group_read
static void ptx_cp_async_bulk_commit_group() {}
static void ptx_fence_proxy_async_shared_cta() {}
static void ptx_cp_async_bulk_tensor_2d_global_shared_cta_tile_bulk_group(const void *map, int x, int y, unsigned from) { send_box(map, x, y, from, false); }
static void ptx_cp_reduce_async_bulk_tensor_2d_global_shared_cta_add_tile_bulk_group(const void *map, int x, int y, unsigned from) { send_box(map, x, y, from, true); }
