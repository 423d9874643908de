/* The table of one instruction set, made from the templates. The including file defines LANES_.., MICRO_ROWS,
 * MICRO_VECTORS, ISA_NAME, ISA_NEEDS, ISA_CODE, ISA_TABLE and ISA_MICROKERNELS. */
#include "cpu/elementwise.h"
#include "cpu/machine.h"
#include "cpu/microkernel.h"
#include "cpu/moves.h"
#include "cpu/reduce.h"

#define F32_PACKING                                                                                                    \
    {                                                                                                                  \
        .step = 1, .deep = {[CODA_F32] = pack_deep_f32, [CODA_BF16] = pack_deep_bf16, [CODA_F16] = pack_deep_f16},     \
        .wide = {                                                                                                      \
            [CODA_F32] = pack_wide_f32,                                                                                \
            [CODA_BF16] = pack_wide_bf16,                                                                              \
            [CODA_F16] = pack_wide_f16                                                                                 \
        }                                                                                                              \
    }

static const struct microkernel f32_microkernel = {
    .name = ISA_NAME,
    .needs = ISA_NEEDS,
    .rows = MICRO_ROWS,
    .columns = MICRO_COLUMNS,
    .depth = 1,
    .tile_rows = 96,
    .tile_columns = 1024,
    .packed = CODA_F32,
    .side = {F32_PACKING, F32_PACKING},
    .run = multiply_f32,
};

static const struct microkernel *const microkernels[] = {ISA_MICROKERNELS & f32_microkernel, NULL};

#define EVERY_TYPE(function)                                                                                           \
    {                                                                                                                  \
        [CODA_F32] = function##_f32, [CODA_BF16] = function##_bf16, [CODA_F16] = function##_f16,                       \
        [CODA_E4M3] = function##_e4m3, [CODA_E5M2] = function##_e5m2, [CODA_I32] = function##_i32                      \
    }
#define ROUND_TYPE(type) rows_ROUND_##type##_0

const struct instruction_set ISA_TABLE = {
    .name = ISA_NAME,
    .needs = ISA_NEEDS,
    .machine_code = ISA_CODE,
    .microkernels = microkernels,
    .load = EVERY_TYPE(load_row),
    .store = EVERY_TYPE(store_row),
    .add = EVERY_TYPE(add_row),
    .stream = {[CODA_F32] = stream_row_f32, [CODA_BF16] = stream_row_bf16},
    .stream_end = stream_end,
    .elementwise = elementwise_table,
    .fused = fused_table,
    .copy = {rows_COPY_0, rows_COPY_1},
    .round = {[CODA_F32] = ROUND_TYPE(f32),
              [CODA_BF16] = ROUND_TYPE(bf16),
              [CODA_F16] = ROUND_TYPE(f16),
              [CODA_E4M3] = ROUND_TYPE(e4m3),
              [CODA_E5M2] = ROUND_TYPE(e5m2),
              [CODA_I32] = ROUND_TYPE(i32)},
    .even = take_even,
    .odd = take_odd,
    .join = join_pairs,
    .first = take_first,
    .second = take_second,
    .join_halves = join_two_halves,
    .expand = expand_runs,
    .reduce = {reduce_sum, reduce_maximum, reduce_magnitude},
    .sum_exponentials = sum_run_exponentials,
    .finish_runs = finish_run_logsumexp,
    .accumulate = {accumulate_sum, accumulate_maximum, accumulate_magnitude, accumulate_logsumexp},
    .finish_logsumexp = finish_logsumexp,
    .fold = {fold_sum, fold_maximum, fold_magnitude, fold_logsumexp},
    .rope = {rotate_halves, rotate_pairs},
};
