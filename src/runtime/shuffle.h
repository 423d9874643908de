/* Elements of two vectors by index: clang's name for it, which gcc knows since 12. `indices` is a vector type of integers
 * as wide as the elements. */
#ifndef CODA_RUNTIME_SHUFFLE_H
#define CODA_RUNTIME_SHUFFLE_H

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(indices, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(indices, a, b, ...) __builtin_shuffle(a, b, (indices){__VA_ARGS__})
#endif

#endif
