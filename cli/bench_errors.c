#include "bench.h"

#include <math.h>
#include <stdlib.h>

/* Errors need the reference, which is slow: large sizes shrink, and stay multiples of a head where they were. */
static coda_dims shrink(const coda_dims *dims)
{
    coda_dims small = *dims;
    for (int i = 0; i < small.count; i++)
        if (small.item[i].size > 128)
            small.item[i].size = small.item[i].size % 64 == 0 ? 128 : small.item[i].size % 2 == 0 ? 126 : 127;
    return small;
}

static coda_status compare_outs(struct workload *fused, struct workload *exact, struct chain *chain, struct row *row,
                                coda_error *error)
{
    for (int i = 0; i < fused->count; i++) {
        coda_operand operand;
        int64_t count = 0, plain_count;
        if (coda_program_operand(fused->program, i, &operand) != CODA_OK || operand.role == CODA_IN)
            continue;
        float *found = workload_read(fused, i, &count, error), *expected = workload_read(exact, i, &count, error);
        float *plain = chain ? chain_read(chain, operand.name, &plain_count, error) : NULL;
        if (found && expected) {
            struct verdict verdict = judge(found, expected, plain, count, operand.dtype);
            row->error = verdict.error > row->error || isnan(verdict.error) ? verdict.error : row->error;
            row->unfused_error = verdict.plain > row->unfused_error ? verdict.plain : row->unfused_error;
            row->good = row->good && verdict.good;
        }
        bool failed = !found || !expected;
        free(found);
        free(expected);
        free(plain);
        if (failed)
            return error->status ? error->status : CODA_MEMORY;
    }
    return CODA_OK;
}

coda_status measure_errors(const struct bench *bench, const coda_program *program, const coda_dims *dims,
                           const double *parameters, struct row *row, coda_error *error)
{
    struct workload fused = {0}, exact = {0};
    struct chain *chain = NULL;
    coda_dims small = shrink(dims);
    uint64_t seed = (uint64_t)bench->arguments->seed;
    coda_status status = workload_new(&fused, bench->device, program, &small, parameters, seed, error);
    if (status == CODA_OK)
        status = workload_new(&exact, bench->reference, program, &small, parameters, seed, error);
    if (status == CODA_OK)
        status = workload_launch(&fused, error);
    if (status == CODA_OK)
        status = workload_launch(&exact, error);
    if (status == CODA_OK && chain_new(&chain, &fused, &small, seed, NULL) == CODA_OK)
        status = chain_launch(chain, CHAIN_ALL, NULL, error);
    if (status == CODA_OK)
        status = compare_outs(&fused, &exact, chain, row, error);
    chain_free(chain);
    workload_free(&fused);
    workload_free(&exact);
    return status;
}
