/* The instruction set of the functions that follow. The file is compiled like any other, so that the library runs on
 * every machine of its architecture; who calls such a function has asked the machine first.
 *
 * A product and the sum it is added to may round once. */
#if defined(__clang__)
#pragma clang fp contract(fast)
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=fast")
#endif

#if defined(INSTRUCTIONS_AVX2) && defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#elif defined(INSTRUCTIONS_AVX2)
#pragma GCC target("avx2,fma")
#elif defined(INSTRUCTIONS_AVX512) && defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512vl,avx2,fma"))), apply_to = function)
#elif defined(INSTRUCTIONS_AVX512)
#pragma GCC target("avx512f,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#endif
