/* Has a vector of 4-byte elements one whose bits, but for those of `mask`, are not 0? Asked by all threads of a block, of
 * which each loads 64 bytes at a time: every block of a launch waits for this first. */
INLINE bool any_bit(const char *p, const int count, const bool wide, const u32 mask)
{
    const int fours = wide ? count / 4 : 0, threads = blockDim.x;
    u32 bits = 0;
    ROLLED for (int i = threadIdx.x; i < fours; i += 4 * threads)
    {
        u32 w[4][4];
        UNROLL for (int k = 0; k < 4; k++)
        {
            const int at = i + k * threads;
            load_bytes_16(w[k], p + 16l * (at < fours ? at : i));
        }
        UNROLL for (int k = 0; k < 16; k++) bits |= w[k / 4][k % 4];
    }
    ROLLED for (int i = 4 * fours + threadIdx.x; i < count; i += threads) bits |= load_4(p + 4l * i);
    return __syncthreads_or((bits & ~mask) != 0) != 0;
}
