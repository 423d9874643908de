#include "cpu/matrix.h"
#include "runtime/counts.h"

#include <string.h>

void cpu_matrix_create(struct matrix *matrix, const struct graph *graph, int node, bool right,
                       const struct launch *launch)
{
    const struct node *n = &graph->node[node];
    bool transposed = n->op == OP_TRANSPOSE;
    if (transposed)
        n = &graph->node[n->input[0]];
    matrix->deep = transposed == right;
    matrix->count = n->op == OP_STACK ? n->input_count : 1;
    int64_t first = 0;
    for (int i = 0; i < matrix->count; i++) {
        const struct node *in = n->op == OP_STACK ? &graph->node[n->input[i]] : n;
        const coda_tensor *t = &launch->operand[in->index];
        int64_t stride = (t->stride ? t->stride : t->shape[1]) * (int64_t)coda_dtype_size(t->dtype);
        matrix->part[i] = (struct matrix_part){t->data, first, t->shape[0], stride, t->dtype};
        first += t->shape[0];
        matrix->columns = t->shape[1];
    }
}

/* Rows that lie a multiple of 4 KB apart fall on each other in the first cache. */
bool cpu_matrix_serves_in_place(const struct matrix *matrix, const struct microkernel *micro, int64_t depth)
{
    enum { SAME_SET = 4096 };
    const struct matrix_part *part = &matrix->part[0];
    return micro->run_rows && matrix->deep && matrix->count == 1 && part->dtype == micro->packed &&
           depth % micro->depth == 0 && part->stride % SAME_SET != 0;
}

static const struct matrix_part *part_of(const struct matrix *matrix, int64_t row)
{
    int i = 0;
    while (i + 1 < matrix->count && row >= matrix->part[i + 1].first)
        i++;
    return &matrix->part[i];
}

/* Elements from .. from+count-1 of a stored row, as the microkernel packs them. */
static void fetch(const struct matrix *matrix, const struct packer *packer, int64_t row, int64_t from, int64_t count,
                  char *to)
{
    const struct matrix_part *part = part_of(matrix, row);
    const char *source = part->data + (row - part->first) * part->stride + from * (int64_t)coda_dtype_size(part->dtype);
    if (part->dtype == packer->micro->packed)
        memcpy(to, source, (size_t)count * coda_dtype_size(part->dtype));
    else
        packer->isa->load[part->dtype]((void *)to, source, count);
}

int64_t cpu_matrix_scratch_floats(const struct microkernel *micro, int64_t depth, int64_t lines)
{
    int64_t width = micro->rows > micro->columns ? micro->rows : micro->columns;
    int64_t deep = width * (depth + ROOM), wide = WIDE_STEPS * (lines + width + 2 * ROOM);
    return deep > wide ? deep : wide;
}

/* Where rows first .. first+count-1 lie, if it is in one operand, of a type that is packed directly. */
struct stored_block {
    bool direct;
    const char *at;
    int64_t stride, element; /* of rows in elements, of an element in bytes */
    pack_function *pack;
};

static struct stored_block block_of(const struct matrix *matrix, pack_function *const *direct, int64_t first,
                                    int64_t count, int64_t column)
{
    const struct matrix_part *part = part_of(matrix, first);
    const int64_t size = (int64_t)coda_dtype_size(part->dtype);
    return (struct stored_block){.direct = direct[part->dtype] && first + count <= part->first + part->rows,
                                 .at = part->data + (first - part->first) * part->stride + column * size,
                                 .stride = part->stride / size,
                                 .element = size,
                                 .pack = direct[part->dtype]};
}

/* Fills a panel up behind `depth` steps; the last group of steps is whole already. */
static void pad_panel(const struct packer *packer, char *panel, int64_t depth)
{
    const struct microkernel *micro = packer->micro;
    const int64_t line = packer->width * (int64_t)coda_dtype_size(micro->packed);
    const int64_t whole = round_up(depth, micro->side[packer->side].step), padded = round_up(depth, micro->depth);
    if (padded > whole)
        memset(panel + whole * line, 0, (size_t)((padded - whole) * line));
}

void cpu_matrix_pack_deep(const struct matrix *matrix, const struct packer *packer, int64_t first, int64_t count,
                          int64_t k, int64_t depth, char *panel)
{
    const struct microkernel *micro = packer->micro;
    const struct packing *packing = &micro->side[packer->side];
    const int64_t size = (int64_t)coda_dtype_size(micro->packed), stride = round_up(depth, ROOM);
    const int width = packer->width;
    const struct stored_block block = block_of(matrix, packing->deep, first, count, k);
    pad_panel(packer, panel, depth);
    if (block.direct && count == width) {
        block.pack(panel, block.at, block.stride, width, depth);
        return;
    }
    for (int i = 0; i < width; i++) {
        char *row = (char *)packer->scratch + i * stride * size;
        if (i < count)
            fetch(matrix, packer, first + i, k, depth, row);
        else
            memset(row, 0, (size_t)(depth * size));
    }
    packing->deep[micro->packed](panel, packer->scratch, stride, width, depth);
}

/* As many panels as `count` columns make; returns the columns that were packed. A few rows at a time: panels share lines of
 * them, which the first cache loses if many rows lie a power of two apart. */
static int64_t pack_whole_panels(const struct stored_block *block, const struct packer *packer, int64_t count,
                                 int64_t depth, char *panels, int64_t panel_bytes)
{
    enum { FEW = 8 };
    const struct microkernel *micro = packer->micro;
    const int width = packer->width;
    const int64_t size = (int64_t)coda_dtype_size(micro->packed), few = maximum(FEW, micro->side[packer->side].step);
    const int64_t whole = maximum(count, 0) / width * width;
    for (int64_t k = 0; k < depth; k += few)
        for (int64_t i = 0; i < whole; i += width)
            block->pack(panels + i / width * panel_bytes + k * width * size,
                        block->at + (k * block->stride + i) * block->element, block->stride, width,
                        minimum(few, depth - k));
    return whole;
}

void cpu_matrix_pack_wide(const struct matrix *matrix, const struct packer *packer, int64_t first, int64_t count,
                          int64_t k, int64_t depth, char *panels, int64_t panel_bytes)
{
    const struct microkernel *micro = packer->micro;
    const struct packing *packing = &micro->side[packer->side];
    const int64_t size = (int64_t)coda_dtype_size(micro->packed);
    const int width = packer->width;
    const struct stored_block block = block_of(matrix, packing->wide, k, depth, first);
    int64_t done = 0;
    for (int64_t p = 0; p < round_up(count, width) / width; p++)
        pad_panel(packer, panels + p * panel_bytes, depth);
    if (block.direct)
        done = pack_whole_panels(&block, packer, minimum(count, matrix->columns - first - ROOM), depth, panels,
                                 panel_bytes);
    if (done >= count)
        return;
    const int64_t rest = count - done, lines = round_up(rest, width), stride = round_up(lines + ROOM, ROOM);
    for (int64_t i = 0; i < depth; i++) {
        char *row = (char *)packer->scratch + i * stride * size;
        fetch(matrix, packer, k + i, first + done, rest, row);
        memset(row + rest * size, 0, (size_t)((lines - rest) * size));
    }
    for (int64_t p = 0; p < lines / width; p++)
        packing->wide[micro->packed](panels + (done / width + p) * panel_bytes,
                                     (char *)packer->scratch + p * width * size, stride, width, depth);
}
