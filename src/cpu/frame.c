/* One tile: values of rows and columns first, then pass by pass blocks of a few rows. */
#include "cpu/frame.h"

static int64_t row_floats(const struct plan *plan)
{
    return (plan->tile_rows + ROOM - 1) / ROOM * ROOM;
}

static int64_t scratch_stride(const struct plan *plan)
{
    int64_t longest = plan->tile_rows > plan->stride ? plan->tile_rows : plan->stride;
    return (longest > RUN_LIMIT ? longest : RUN_LIMIT) + 2 * ROOM;
}

int64_t cpu_frame_size(const struct plan *plan)
{
    return plan->row_count * row_floats(plan) + plan->column_count * plan->stride + plan->band_size +
           plan->register_count * plan->block_rows * plan->stride + SCRATCH_ROWS * scratch_stride(plan) + 8 * ROOM;
}

static float *take(float **memory, int64_t count)
{
    float *taken = *memory;
    *memory += (count + ROOM - 1) / ROOM * ROOM;
    return taken;
}

void cpu_frame_create(struct frame *frame, const struct binding *binding, float *memory)
{
    const struct plan *plan = binding->plan;
    *frame = (struct frame){.binding = binding};
    frame->base[IN_REGISTERS] = take(&memory, plan->register_count * plan->block_rows * plan->stride);
    frame->base[IN_ROWS] = take(&memory, plan->row_count * row_floats(plan));
    frame->base[IN_COLUMNS] = take(&memory, plan->column_count * plan->stride);
    frame->base[IN_BANDS] = take(&memory, plan->band_size);
    frame->scratch_stride = scratch_stride(plan);
    frame->scratch = take(&memory, SCRATCH_ROWS * frame->scratch_stride);
    frame->base[IN_UNIFORMS] = (float *)binding->uniforms;
}

static void run_list(const struct frame *frame, const struct bound_list *list)
{
    for (int i = 0; i < list->count; i++)
        list->step[i].step->run(frame, &list->step[i]);
}

static void run_blocks(struct frame *frame, const struct bound_list *list)
{
    int block = frame->binding->plan->block_rows;
    if (list->count == 0)
        return;
    for (frame->first = 0; frame->first < frame->rows; frame->first += block) {
        frame->count = frame->rows - frame->first < block ? frame->rows - frame->first : block;
        run_list(frame, list);
    }
    frame->first = 0;
    frame->count = frame->rows;
}

static int64_t in_form(const struct width_form *form, int64_t columns, bool round_up)
{
    if (form->form == DIM_HALVES)
        return columns / 2;
    return form->form == DIM_RUNS ? (columns + (round_up ? form->run - 1 : 0)) / form->run : columns;
}

static int64_t axis_size(const struct binding *binding, int axis)
{
    return axis < 0 ? 1 : binding->launch->size[axis];
}

/* Moves the frame to the tile at (row, column). */
static void place_frame(struct frame *frame, int64_t row, int64_t column)
{
    const struct binding *binding = frame->binding;
    const struct plan *plan = binding->plan;
    int64_t rows = axis_size(binding, plan->form->row_axis) - row;
    int64_t columns = axis_size(binding, plan->form->column_axis) - column;
    frame->row = row;
    frame->column = column;
    frame->rows = rows < plan->tile_rows ? (int)rows : plan->tile_rows;
    frame->columns = columns < binding->tile_columns ? (int)columns : binding->tile_columns;
    frame->first = 0;
    frame->count = frame->rows;
    for (int i = 0; i < plan->form_count; i++) {
        frame->width[i] = (int)in_form(&plan->width[i], frame->columns, true);
        frame->start[i] = in_form(&plan->width[i], column, false);
    }
}

void cpu_frame_run(struct frame *frame, enum phase phase, int64_t row, int64_t column, float *accumulators)
{
    const struct plan *plan = frame->binding->plan;
    const struct bound_list *list = frame->binding->list[phase];
    place_frame(frame, row, column);
    frame->base[IN_ACCUMULATORS] = accumulators;
    run_list(frame, &list[LIST_ROWS]);
    run_list(frame, &list[LIST_COLUMNS]);
    for (int pass = 0; pass < plan->passes; pass++) {
        run_list(frame, &list[LIST_BANDS + pass]);
        run_blocks(frame, &list[LIST_TILE + pass]);
    }
    run_list(frame, &list[LIST_BANDS + plan->passes]);
    if (frame->binding->stream)
        plan->isa->stream_end();
}
