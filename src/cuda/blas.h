/* cuBLASLt, found by dlopen when a kernel first asks for it: plain products through NVIDIA's library, as the schedule
 * "cublas". A kernel of it has all sizes given, since the library chooses its algorithm by them. No workspace and no
 * split sums: the same bits run to run, but not those of the other schedules, which add along K in another order. */
#ifndef CODA_CUDA_BLAS_H
#define CODA_CUDA_BLAS_H

#include "cuda/driver.h"
#include "cuda/plan.h"

struct gpu;
struct blas;         /* the library, once a device */
struct blas_product; /* one product, ready to launch */

/* The library's object, which loads nothing yet. NULL: no memory. */
struct blas *blas_new(void);
void blas_free(const struct gpu *gpu, struct blas *blas);
/* The path that would be loaded; false: none was found. */
bool blas_find(char *path, size_t size);

/* Can the library run the program at all? If not, *why says what it lacks. */
bool blas_fits(const struct plan *plan, const char **why);
coda_status blas_prepare(const struct gpu *gpu, const struct plan *plan, const int64_t *size,
                         struct blas_product **product, coda_error *error);
/* Do the operands start at multiples of 16 bytes, with dense rows? */
bool blas_accepts(const struct blas_product *product, const struct launch *launch);
coda_status blas_launch(const struct gpu *gpu, const struct blas_product *product, const struct launch *launch,
                        coda_error *error);
void blas_product_free(const struct gpu *gpu, struct blas_product *product); /* NULL is allowed */

#endif
