/* ---------------------------------------------------------------- the kernel */

extern "C" __global__ void __launch_bounds__(384, 1) KERNEL(const __grid_constant__ Work W)
{
    extern __shared__ __align__(1024) char shared[];
    Block block;
    char *next = shared + STAGES * (LEFT_BYTES + RIGHT_BYTES);
    block.left = shared_address(shared);
    block.right = block.left + STAGES * LEFT_BYTES;
    block.rounded = next;
    next += ROUNDS ? 2 * BAND_BYTES : 0;
    block.slots = shared_address(next);
    next += SLOTS * COPY_BYTES * 96;
    block.full = shared_address(next), block.empty = block.full + 8 * STAGES;
    block.values_full = block.empty + 8 * STAGES, block.values_empty = block.values_full + 16;
    block.slab_full = block.values_empty + 16, block.slab_empty = block.slab_full + 64;
    block.finished = block.slab_empty + 64, block.handed = block.finished + 64;
    next += BARRIER_BYTES;
    block.values = (float *)next;
    block.scratch = (float *)(next + 2 * VALUES * TILE_ROWS * 4);
    block.rank = 0, block.cluster = blockIdx.x, block.clusters = gridDim.x;
#if CLUSTER > 1
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(block.rank));
    block.cluster = blockIdx.x / CLUSTER, block.clusters = gridDim.x / CLUSTER;
#endif
    block.tiles = 2 * places(W) - first_problem(W).whole;
    block.steps = PROBLEMS > 1 ? 0 : count_steps(first_problem(W));
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(block.full + 8 * i, 1);
            barrier_init(block.empty + 8 * i, 2 * CLUSTER);
        }
        for (int i = 0; i < 2; i++) {
            barrier_init(block.values_full + 8 * i, 96);
            barrier_init(block.values_empty + 8 * i, EPILOGUE_ASIDE ? 96 : 256);
        }
        for (int i = 0; i < 8; i++) {
            barrier_init(block.slab_full + 8 * i, 1);
            barrier_init(block.slab_empty + 8 * i, 1);
            barrier_init(block.finished + 8 * i, 32);
            shared_store_4(block.handed + 4 * i, 0);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    await_unless_apart(first_problem(W));
    let_next_begin();
    RETURN_UNLESS_WANTED(first_problem(W))
    const int warpgroup = __shfl_sync(ALL_LANES, threadIdx.x >> 7, 0); /* so that the compiler knows it as uniform */
    if (warpgroup == 0) {
        if (PRODUCER_REGISTERS < 168)
            asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (__shfl_sync(ALL_LANES, threadIdx.x >> 5, 0) == 0) {
            if (elect())
                run_producer(W, block);
        }
#if EPILOGUE_ASIDE
        else
            run_epilogue(W, block, threadIdx.x - 32);
#else
        else if (HAS_VALUES)
            run_prologue(W, block, threadIdx.x - 32);
#endif
    } else {
        if (CONSUMER_REGISTERS > 168)
            asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        run_consumer(W, block, warpgroup - 1, threadIdx.x & 127);
    }
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
#endif
    await_if_apart(first_problem(W));
}
