/* Hopper's mainloop: its instructions as text, its tensor maps, and which launches it can serve. */
#include "cuda/emit.h"
#include "cuda/kernel.h"

#include <string.h>

/* ---------------------------------------------------------------- maps
 * Left operands first, one a segment; then right operands, by accumulator, segment and part. */

static int right_index(const struct plan *plan, int accumulator, int segment, int part)
{
    int index = plan->product[0].segment_count;
    for (int a = 0; a <= accumulator; a++)
        for (int s = 0; s < plan->product[a].segment_count; s++) {
            if (a == accumulator && s == segment)
                return index + part;
            index += plan->product[a].segment[s].right_count;
        }
    return index;
}

int hopper_map_count(const struct plan *plan)
{
    int last = plan->accumulator_count - 1;
    return right_index(plan, last, plan->product[last].segment_count, 0);
}

bool plan_is_stacked(const struct plan *plan)
{
    for (int a = 0; a < plan->accumulator_count; a++)
        for (int s = 0; s < plan->product[a].segment_count; s++)
            if (plan->product[a].segment[s].right_count > 1)
                return true;
    return false;
}

/* ---------------------------------------------------------------- what becomes of a product */

int plan_factored(const struct plan *plan, int accumulator)
{
    int product = plan->form->accumulator[accumulator], found = -1;
    for (int i = 0; i < plan->graph->node_count; i++) {
        const struct node *node = &plan->graph->node[i];
        for (int k = 0; plan->form->used[i] && k < node->input_count; k++) {
            if (node->input[k] != product)
                continue;
            if (node->op != OP_MUL || plan->form->space[node->input[1 - k]] != SPACE_ROW)
                return -1;
            if (found >= 0 && found != i)
                return -1;
            found = i;
        }
    }
    for (int i = 0; i < plan->graph->operand_count; i++)
        if (plan->graph->operand[i].role != CODA_IN && plan->graph->operand[i].node == product)
            return -1;
    return found;
}

int plan_copied_out(const struct plan *plan)
{
    int found = -1, factored = plan->accumulator_count == 1 ? plan_factored(plan, 0) : -1;
    if (plan->accumulator_count != 1 || plan->column_count || plan->reduction_count)
        return -1;
    for (int i = 0; i < plan->input_count; i++)
        if (plan->input[i].node >= 0 || !plan_adds(plan, plan->input[i].operand))
            return -1;
    for (int i = 0; i < plan->graph->operand_count; i++) {
        const struct operand *out = &plan->graph->operand[i];
        if (out->role == CODA_IN || plan->form->space[out->node] == SPACE_ROW) {
            if (out->role != CODA_IN && plan->graph->node[out->node].op == OP_PICK)
                return -1;
            continue;
        }
        const struct node *node = &plan->graph->node[out->node];
        int value = node->op == OP_CAST && node->dtype == out->dtype ? node->input[0] : out->node;
        bool product = value == (factored >= 0 ? factored : plan->form->accumulator[0]);
        if (found >= 0 || (out->dtype != CODA_BF16 && out->dtype != CODA_F32) || !product)
            return -1;
        found = i;
    }
    return found;
}

/* ---------------------------------------------------------------- text */

static void emit_wgmma(struct text *out, const char *name, int columns, bool left_k_major, bool right_k_major, bool f16)
{
    int count = columns / 2;
    const char *type = f16 ? "f16" : "bf16";
    text_add(
        out,
        "INLINE void %s(float *d, u64 a, u64 b, int add)\n{\n    asm volatile(\"{\\n.reg .pred p;\\nsetp.ne.b32 p, "
        "%%%d, 0;\\n\"\n        \"wgmma.mma_async.sync.aligned.m64n%dk16.f32.%s.%s {\"\n        \"",
        name, count + 2, columns, type, type);
    for (int i = 0; i < count; i++)
        text_add(out, "%%%d%s", i, i + 1 < count ? (i % 16 == 15 ? ",\"\n        \"" : ",") : "");
    text_add(out, "}, %%%d, %%%d, p, 1, 1, %d, %d;\\n}\\n\"\n        : ", count, count + 1, !left_k_major,
             !right_k_major);
    for (int i = 0; i < count; i++)
        text_add(out, "\"+f\"(d[%d])%s", i, i + 1 < count ? (i % 8 == 7 ? ",\n          " : ", ") : "");
    text_add(out, "\n        : \"l\"(a), \"l\"(b), \"r\"(add));\n}\n");
}

static void emit_wait(struct text *out, int count)
{
    text_add(out,
             "/* The accumulators are operands, so that no read of them moves above the wait. */\n"
             "INLINE void wgmma_wait(float *d)\n{\n    asm volatile(\"wgmma.wait_group.sync.aligned 0;\"\n        : ");
    for (int i = 0; i < count; i++)
        text_add(out, "\"+f\"(d[%d])%s", i, i + 1 < count ? (i % 8 == 7 ? ",\n          " : ", ") : "");
    text_add(out, "\n        :\n        : \"memory\");\n}\n\n");
}

/* Factors of a row's accumulators, which are multiplied before they are rounded (epilogue warps). */
static void emit_factors(const struct plan *plan, const struct variant *v, struct text *out)
{
    struct text loads = {0};
    int count = 0;
    for (int a = 0; a < plan->accumulator_count; a++) {
        int node = v->halves > 1 ? plan_factored(plan, a) : -1, value = -1;
        for (int k = 0; node >= 0 && k < 2; k++)
            if (plan->graph->node[node].input[k] != plan->form->accumulator[a])
                value = plan_value(plan, plan->graph->node[node].input[k], false);
        for (int h = 0; h < 2; h++)
            if (value < 0)
                text_add(&loads, "    of[%d][%d] = 1.0f;\n", a, h);
            else
                text_add(&loads, "    of[%d][%d] = values[%d * VALUE_ROWS + %d];\n", a, h, value, 8 * h);
        count += value >= 0;
    }
    text_add(out, "#define HAS_FACTORS %d\nINLINE void coda_factors(const float *values, float (*of)[2])\n{\n%s}\n",
             count > 0, text_of(&loads));
    out->failed |= loads.failed;
    text_free(&loads);
}

void emit_hopper(const struct plan *plan, const struct variant *v, struct text *out)
{
    int columns = v->columns * plan->accumulator_count;
    bool f16 = plan->factor_type == CODA_F16;
    text_add(out, "INLINE int left_map(const int s) { return s; }\n"
                  "/* The map of column n of an accumulator's right operand; n becomes the row of that part. */\n"
                  "INLINE int right_map(const Params &P, const int a, const int s, int &n)\n{\n");
    for (int a = 0; a < plan->accumulator_count; a++)
        for (int s = 0; s < plan->product[a].segment_count; s++) {
            const struct segment *segment = &plan->product[a].segment[s];
            text_add(out, "    if (a == %d && s == %d) {\n", a, s);
            for (int r = 0; r + 1 < segment->right_count; r++)
                text_add(out, "        if (n < P.t[%d].rows)\n            return %d;\n        n -= P.t[%d].rows;\n",
                         segment->right[r].operand, right_index(plan, a, s, r), segment->right[r].operand);
            text_add(out, "        return %d;\n    }\n", right_index(plan, a, s, segment->right_count - 1));
        }
    text_add(out, "    return 0;\n}\n");
    emit_wgmma(out, "wgmma", columns, plan->left_k_major, plan->right_k_major, f16);
    if (v->narrow)
        emit_wgmma(out, "wgmma_half", columns / 2, plan->left_k_major, plan->right_k_major, f16);
    else
        text_add(out, "#define wgmma_half wgmma\n");
    emit_wait(out, columns / 2);
    if (rounds(v->mainloop))
        emit_factors(plan, v, out);
}

/* ---------------------------------------------------------------- launches */

static bool map_fits(const coda_tensor *t, int64_t offset)
{
    size_t size = coda_dtype_size(t->dtype);
    return ((uintptr_t)t->data + (size_t)offset * size) % 16 == 0 && (size_t)t->stride * size % 16 == 0 &&
           (uint64_t)t->stride * size < (uint64_t)1 << 40;
}

static const char *check_segment(const struct segment *segment, const struct variant *v, const struct launch *launch,
                                 int64_t before)
{
    if (!map_fits(&launch->operand[segment->left.operand], segment->left.k_major ? before : 0))
        return "a left operand's rows do not start at multiples of 16 bytes";
    for (int r = 0; r < segment->right_count; r++) {
        const coda_tensor *t = &launch->operand[segment->right[r].operand];
        if (!map_fits(t, 0))
            return "a right operand's rows do not start at multiples of 16 bytes";
        if (r + 1 < segment->right_count && t->shape[0] % v->box_rows)
            return "a part of a stack is no multiple of 64 rows";
    }
    return NULL;
}

bool hopper_accepts(const struct plan *plan, const struct variant *v, const struct launch *launch, const char **why)
{
    *why = NULL;
    if (launch->size[plan->form->row_axis] > 65535LL * BAND_ROWS * 2 - 256 ||
        launch->size[plan->form->column_axis] > 65535LL * v->columns / 2)
        *why = "the tile has more than 65535 places along a side";
    for (int a = 0; a < plan->accumulator_count && !*why; a++) {
        int64_t before = 0;
        for (int s = 0; s < plan->product[a].segment_count && !*why; s++) {
            const struct segment *segment = &plan->product[a].segment[s];
            before = segment->continues ? before : 0;
            *why = check_segment(segment, v, launch, before);
            before += launch->operand[segment->right[0].operand].shape[segment->right[0].k_major];
        }
    }
    if (v->mainloop == MAINLOOP_COPIED) {
        const coda_tensor *out = &launch->operand[plan->copied_out];
        if (!map_fits(out, 0))
            *why = "the out's rows do not start at multiples of 16 bytes";
        else if ((size_t)out->shape[1] * coda_dtype_size(out->dtype) % 16)
            *why = "the out's rows do not end at multiples of 16 bytes"; /* the engine would write up to there */
    }
    return !*why;
}

int64_t hopper_tiles(const struct variant *v, int64_t rows, int64_t columns)
{
    int64_t height = (int64_t)v->bands * BAND_ROWS * v->cluster;
    return ceiling(rows, height) * ceiling(columns, v->columns);
}

int64_t hopper_narrow_of(const struct gpu *gpu, const struct variant *v, int64_t tiles)
{
    int64_t resident = gpu->multiprocessors / v->cluster, left = tiles % resident;
    return 2 * left <= resident ? left : 0;
}

int64_t hopper_narrow_tiles(const struct gpu *gpu, const struct variant *v, int64_t rows, int64_t columns)
{
    return hopper_narrow_of(gpu, v, hopper_tiles(v, rows, columns));
}

int64_t hopper_clusters(const struct gpu *gpu, const struct variant *v, int64_t tiles, int64_t narrow)
{
    int64_t resident = gpu->multiprocessors / v->cluster;
    if (tiles <= resident || narrow > 0)
        return minimum(tiles + narrow, resident);
    return ceiling(tiles, ceiling(tiles, resident));
}

/* A matrix in 128-byte rows of boxes: 64 elements along its rows by `rows`. */
static coda_status encode(const struct gpu *gpu, const coda_tensor *t, int64_t offset, int64_t columns, int64_t rows,
                          int box_columns, int box_rows, struct tensor_map *map, coda_error *error)
{
    size_t size = coda_dtype_size(t->dtype);
    uint64_t sizes[2] = {(uint64_t)columns, (uint64_t)rows}, strides[1] = {(uint64_t)t->stride * size};
    uint32_t box[2] = {(uint32_t)box_columns, (uint32_t)box_rows}, steps[2] = {1, 1};
    int type = t->dtype == CODA_F16 ? MAP_F16 : t->dtype == CODA_F32 ? MAP_F32 : MAP_BF16;
    int result = gpu->driver.TensorMapEncodeTiled(
        map, type, 2, (char *)t->data + (size_t)offset * size, sizes, strides, box, steps, 0,
        (size_t)box_columns * size == 64 ? MAP_SWIZZLE_64B : MAP_SWIZZLE_128B, MAP_PROMOTE_128B, 0);
    return driver_check(&gpu->driver, result, "cuTensorMapEncodeTiled", "describing an operand", error);
}

static coda_status encode_left(const struct gpu *gpu, const struct variant *v, const struct factor *f,
                               const struct launch *launch, int64_t before, int64_t depth, struct tensor_map *map,
                               coda_error *error)
{
    const coda_tensor *t = &launch->operand[f->operand];
    if (f->k_major)
        return encode(gpu, t, before, depth, t->shape[0], v->depth, 128, map, error);
    return encode(gpu, t, before * t->stride, t->shape[1], depth, 64, v->depth, map, error);
}

coda_status hopper_maps(const struct gpu *gpu, const struct plan *plan, const struct variant *v,
                        const struct launch *launch, struct tensor_map *map, coda_error *error)
{
    coda_status status = CODA_OK;
    int64_t before = 0;
    for (int s = 0; s < plan->product[0].segment_count && status == CODA_OK; s++) {
        const struct segment *segment = &plan->product[0].segment[s];
        int64_t depth = launch->operand[segment->right[0].operand].shape[segment->right[0].k_major];
        before = segment->continues ? before : 0;
        status = encode_left(gpu, v, &segment->left, launch, before, depth, &map[s], error);
        before += depth;
    }
    for (int a = 0; a < plan->accumulator_count; a++)
        for (int s = 0; s < plan->product[a].segment_count; s++)
            for (int r = 0; r < plan->product[a].segment[s].right_count && status == CODA_OK; r++) {
                const struct factor *f = &plan->product[a].segment[s].right[r];
                const coda_tensor *t = &launch->operand[f->operand];
                status = encode(gpu, t, 0, t->shape[1], t->shape[0], f->k_major ? v->depth : 64,
                                f->k_major ? v->box_rows : v->depth, &map[right_index(plan, a, s, r)], error);
            }
    if (v->mainloop == MAINLOOP_COPIED && status == CODA_OK) {
        const coda_tensor *t = &launch->operand[plan->copied_out];
        int columns = 128 / (int)coda_dtype_size(t->dtype);
        status = encode(gpu, t, 0, t->shape[1], t->shape[0], columns, 16, &map[v->map_count - 1], error);
    }
    return status;
}
