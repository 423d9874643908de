/* What the arithmetic units of the processor reach: loops of products alone, of the instruction set that the CPU device
 * uses. Other processors, and plain C, have none. */
#include "cli.h"

#include <string.h>

#if defined(__x86_64__)
#include "peak_loops.h"

enum { ROUNDS = 1 << 15, WORKING_SET = 64 << 10 };

static void tiles(char *memory, int64_t rounds)
{
    peak_tiles(memory, rounds, WORKING_SET);
}

static const struct peak {
    const char *set; /* as the device's description names it */
    double flops;    /* of a round */
    void (*run)(char *memory, int64_t rounds);
} peaks[] = {{"amx", TILES_FLOPS, tiles},
             {"avx512bf16", PAIRS_512_FLOPS, pairs_512},
             {"avx512", FMA_512_FLOPS, fma_512},
             {"avx2", FMA_256_FLOPS, fma_256}};

static void run_loop(void *context, int64_t thread)
{
    _Alignas(64) char memory[PEAK_MEMORY];
    (void)thread;
    memset(memory, 0, sizeof memory);
    ((const struct peak *)context)->run(memory, ROUNDS);
}

double measure_peak(coda_device *device)
{
    static const char prefix[] = "instruction set ";
    const char *description = coda_device_description(device);
    const int threads = coda_device_threads(device) > 0 ? coda_device_threads(device) : 1;
    double best = 0;
    if (strncmp(description, prefix, sizeof prefix - 1) != 0)
        return 0;
    const char *name = description + sizeof prefix - 1;
    for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++)
        for (int round = 0; round < 12; round++) {
            const size_t length = strlen(peaks[i].set);
            if (strncmp(name, peaks[i].set, length) != 0 || name[length] != ',')
                break;
            const double start = now_ms();
            coda_parallel_for(device, threads, run_loop, (void *)&peaks[i]);
            const double gflops = peaks[i].flops * ROUNDS * threads / (now_ms() - start) * 1e-6;
            best = gflops > best ? gflops : best;
        }
    return best;
}
#else
double measure_peak(coda_device *device)
{
    (void)device;
    return 0;
}
#endif
