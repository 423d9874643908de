/* A Hopper GPU that runs nothing: the driver and the compiler are counters. For tests of the host's side of launches. */
#ifndef CODA_TESTS_STUB_GPU_H
#define CODA_TESTS_STUB_GPU_H

#include "cuda/kernel.h"

/* What was asked of the driver and the compiler since stub_reset. */
struct stub_counts {
    int launches, pointer_questions, maps, pushes, pops, compilations, loads, captures, replays;
    unsigned grid_x, block_x, cluster, shared_bytes; /* of the latest launch */
    bool begins_early;
    void *stream;
    unsigned char parameters[PARAMETER_BYTES]; /* as far as parameter_bytes of the kernel says */
};

/* Fails the test where the device does not open. The cache is off unless CODA_CACHE is set by the test. */
coda_device *stub_open(void);
coda_device *stub_open_as(const char *name); /* another GPU: "cuda:sm_80" */
void stub_close(coda_device *device);
struct stub_counts *stub_counts(void); /* changed by atomics while launches run */
void stub_reset(void);
/* Bytes of parameters that launches copy; 0 at first. */
void stub_copy_parameters(int bytes);
/* Later questions about pointers in [first, first + size) are answered with this kind of memory and this GPU. */
void stub_memory(const void *first, size_t size, unsigned kind, int ordinal);

/* What the events say of the launches between them: milliseconds for the latest launch. NULL: 1. */
void stub_time(float (*milliseconds)(const struct stub_counts *counts));

/* Called after each launch, to stand for what the kernel did. NULL: nothing. */
void stub_effect(void (*effect)(const struct stub_counts *counts));
/* Sets the first byte of every allocation. */
void stub_mark_memory(unsigned char byte);

#endif
