/* An epilogue on its way, piece by piece, beside the next tile's product: a few vectors of a row of compiled steps, or a row
 * of another step. The order of what one element sees is that of cpu_frame_run. */
#include "cpu/frame.h"

enum { PIECE = 32 }; /* columns of a compiled step: one round of its code */

/* The lists of a phase in their order; -1: no more. */
static int list_at(const struct plan *plan, int order)
{
    const int fixed = 2, pass = (order - fixed) / 2;
    if (order < fixed)
        return order == 0 ? LIST_ROWS : LIST_COLUMNS;
    if (pass > plan->passes || (pass == plan->passes && order % 2))
        return -1;
    return order % 2 ? LIST_TILE + pass : LIST_BANDS + pass;
}

static bool is_tile_list(int list)
{
    return list >= LIST_TILE;
}

static void start_block(struct deferred *d, int first)
{
    const int rows = d->frame.rows - first, block = d->frame.binding->plan->block_rows;
    d->block_rows = rows < block ? rows : block;
    d->frame.block = first;
    d->step = d->row = d->column = 0;
}

static void start_list(struct deferred *d, int order)
{
    d->order = order;
    start_block(d, 0);
    d->frame.first = 0;
    d->frame.count = d->frame.rows;
}

static int64_t pieces_of(const struct deferred *d, int list)
{
    const struct bound_list *steps = &d->frame.binding->list[PHASE_TILES][list];
    int64_t pieces = 0;
    if (!is_tile_list(list))
        return steps->count;
    for (int i = 0; i < steps->count; i++)
        pieces += steps->step[i].step->compiled ? (d->frame.width[0] + PIECE - 1) / PIECE : 1;
    return pieces * d->frame.rows;
}

/* A piece of a compiled step; true: it was the last of the block. */
static bool run_compiled_piece(struct deferred *d, const struct bound_step *step)
{
    if (d->row == 0 && d->column == 0) {
        d->frame.first = d->frame.block;
        d->frame.count = d->block_rows;
        cpu_compiled_start(&d->frame, step, &d->compiled);
    }
    cpu_compiled_run(&d->frame, step, &d->compiled, d->column, d->column + PIECE);
    d->column += PIECE;
    if (d->column < d->frame.width[0])
        return false;
    cpu_compiled_next_row(step, &d->compiled);
    d->column = 0;
    return ++d->row == d->block_rows;
}

/* One row of another step; true: it was the last of the block. */
static bool run_row(struct deferred *d, const struct bound_step *step)
{
    d->frame.first = d->frame.block + d->row;
    d->frame.count = 1;
    step->step->run(&d->frame, step);
    return ++d->row == d->block_rows;
}

static void run_piece_of_tile(struct deferred *d, const struct bound_step *step)
{
    if (!(step->step->compiled ? run_compiled_piece(d, step) : run_row(d, step)))
        return;
    d->step++;
    d->row = 0;
}

static void run_piece(struct deferred *d)
{
    const struct plan *plan = d->busy ? d->frame.binding->plan : NULL;
    while (d->busy) {
        const int list = list_at(plan, d->order);
        if (list < 0) {
            d->busy = false;
            if (d->frame.binding->stream)
                plan->isa->stream_end();
            return;
        }
        const struct bound_list *steps = &d->frame.binding->list[PHASE_TILES][list];
        if (d->step < steps->count) {
            if (is_tile_list(list))
                run_piece_of_tile(d, &steps->step[d->step]);
            else
                steps->step[d->step].step->run(&d->frame, &steps->step[d->step]), d->step++;
            return;
        }
        if (is_tile_list(list) && steps->count > 0 && d->frame.block + d->block_rows < d->frame.rows)
            start_block(d, d->frame.block + d->block_rows);
        else
            start_list(d, d->order + 1);
    }
}

static void step_beside(struct companion *companion)
{
    struct deferred *d = (struct deferred *)companion;
    if (d->wait-- <= 0) {
        cpu_ahead_fetch(d->ahead, d->line_credit / d->steps);
        d->line_credit = d->line_credit % d->steps + d->lines;
    }
    for (d->piece_credit += d->pieces; d->busy && d->piece_credit >= d->steps; d->piece_credit -= d->steps)
        run_piece(d);
}

void cpu_deferred_start(struct deferred *d, const struct binding *binding, float *memory, int64_t row, int64_t column,
                        float *accumulators)
{
    cpu_frame_create(&d->frame, binding, memory);
    cpu_frame_place(&d->frame, row, column);
    d->frame.base[IN_ACCUMULATORS] = accumulators;
    d->busy = true;
    start_list(d, 0);
    d->pieces = 0;
    for (int order = 0; list_at(binding->plan, order) >= 0; order++)
        d->pieces += pieces_of(d, list_at(binding->plan, order));
}

void cpu_deferred_pace(struct deferred *d, struct ahead *ahead, int64_t steps, int64_t fetching)
{
    d->companion.step = step_beside;
    d->ahead = ahead;
    d->steps = steps > 0 ? steps : 1;
    d->wait = steps - fetching;
    d->lines = fetching > 0 ? (ahead->lines * d->steps + fetching - 1) / fetching : 0; /* a step, times the steps */
    d->line_credit = d->lines;
    d->piece_credit = 0;
}

void cpu_deferred_finish(struct deferred *d)
{
    while (d->busy)
        run_piece(d);
}
