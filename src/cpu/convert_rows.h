/* Rows of memory to f32 and back. */
#ifndef CODA_CPU_CONVERT_ROWS_H
#define CODA_CPU_CONVERT_ROWS_H

#include "cpu/convert.h"

/* Converts count elements at `from` and fills up the last vector of `to` with zeros. Reads count elements, not one
 * more. */
#define ROW_LOADER(type, size)                                                                                         \
    static void load_row_##type(float *restrict to, const void *from, int64_t count)                                   \
    {                                                                                                                  \
        const char *source = from;                                                                                     \
        int64_t j = 0;                                                                                                 \
        for (; j + LANES <= count; j += LANES)                                                                         \
            lanes_store(to + j, load_##type(source + j * (size)));                                                     \
        if (j < count) {                                                                                               \
            char last[ELEMENT_MAX * LANES] = {0};                                                                      \
            memcpy(last, source + j * (size), (size_t)(count - j) * (size));                                           \
            lanes_store(to + j, load_##type(last));                                                                    \
        }                                                                                                              \
    }
/* Writes count elements, not one more. */
#define ROW_STORER(type, size)                                                                                         \
    static void store_row_##type(void *to, const float *from, int64_t count)                                           \
    {                                                                                                                  \
        char *target = to;                                                                                             \
        int64_t j = 0;                                                                                                 \
        for (; j + LANES <= count; j += LANES)                                                                         \
            store_##type(target + j * (size), lanes_load(from + j));                                                   \
        if (j < count) {                                                                                               \
            char last[ELEMENT_MAX * LANES];                                                                            \
            store_##type(last, lanes_load(from + j));                                                                  \
            memcpy(target + j * (size), last, (size_t)(count - j) * (size));                                           \
        }                                                                                                              \
    }
/* Adds to what is there. */
#define ROW_ADDER(type, size)                                                                                          \
    static void add_row_##type(void *to, const float *from, int64_t count)                                             \
    {                                                                                                                  \
        char *target = to;                                                                                             \
        int64_t j = 0;                                                                                                 \
        for (; j + LANES <= count; j += LANES)                                                                         \
            store_##type(target + j * (size), load_##type(target + j * (size)) + lanes_load(from + j));                \
        if (j < count) {                                                                                               \
            char last[ELEMENT_MAX * LANES] = {0};                                                                      \
            memcpy(last, target + j * (size), (size_t)(count - j) * (size));                                           \
            store_##type(last, load_##type(last) + lanes_load(from + j));                                              \
            memcpy(target + j * (size), last, (size_t)(count - j) * (size));                                           \
        }                                                                                                              \
    }
#define ROW_CONVERTERS(type, size) ROW_LOADER(type, size) ROW_STORER(type, size) ROW_ADDER(type, size)

ROW_CONVERTERS(f32, 4)
ROW_LOADER(bf16, 2)
ROW_ADDER(bf16, 2)
#if defined(LANES_AVX512) || defined(LANES_AVX2)
static void store_row_bf16(void *to, const float *from, int64_t count)
{
    char *target = to;
    int64_t j = 0;
    for (; j + 16 <= count; j += 16)
        _mm256_storeu_si256((__m256i *)(target + 2 * j), sixteen_bf16(from + j));
    if (j < count) {
        char last[32];
        _mm256_storeu_si256((__m256i *)last, sixteen_bf16(from + j));
        memcpy(target + 2 * j, last, (size_t)(count - j) * 2);
    }
}
#else
ROW_STORER(bf16, 2)
#endif
ROW_CONVERTERS(f16, 2)
ROW_CONVERTERS(e4m3, 1)
ROW_CONVERTERS(e5m2, 1)
ROW_CONVERTERS(i32, 4)

/* ---------------------------------------------------------------- past the caches
 * For outs that are too large to stay in a cache until they are read: no line is fetched only to be overwritten. Whole
 * lines alone; a row that begins or ends inside one is stored as usual. */

#if defined(LANES_AVX512) || defined(LANES_AVX2)
enum { LINE = 64 };

INLINE void stream_line_f32(char *to, const float *from)
{
    for (int j = 0; j < 16; j += 8)
        _mm256_stream_ps((void *)(to + 4 * j), _mm256_loadu_ps(from + j));
}

INLINE void stream_line_bf16(char *to, const float *from)
{
    _mm256_stream_si256((__m256i *)to, sixteen_bf16(from));
    _mm256_stream_si256((__m256i *)(to + 32), sixteen_bf16(from + 16));
}

#define ROW_STREAMER(type, size)                                                                                       \
    static void stream_row_##type(void *to, const float *from, int64_t count)                                          \
    {                                                                                                                  \
        const int64_t step = LINE / (size), whole = (uintptr_t)to % LINE ? 0 : count / step * step;                    \
        for (int64_t j = 0; j < whole; j += step)                                                                      \
            stream_line_##type((char *)to + j * (size), from + j);                                                     \
        store_row_##type((char *)to + whole * (size), from + whole, count - whole);                                    \
    }
ROW_STREAMER(f32, 4)
ROW_STREAMER(bf16, 2)

static void stream_end(void)
{
    _mm_sfence();
}
#else
#define stream_row_f32  store_row_f32
#define stream_row_bf16 store_row_bf16

static void stream_end(void)
{
}
#endif

#endif
