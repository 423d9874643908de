#include "cuda/source.h"
#include "cuda/emit.h"
#include "lang/lang.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const char *const coda_device_texts[][2];

static const char *device_text(const char *name)
{
    for (int i = 0; coda_device_texts[i][0]; i++)
        if (!strcmp(coda_device_texts[i][0], name))
            return coda_device_texts[i][1];
    return "";
}

static const struct {
    const char *name, *file[4];
    int threads;
} mainloops[] = {
    [MAINLOOP_ROWS] = {"rows", {"vectors.cu"}, 128},
    [MAINLOOP_COLUMNS] = {"columns", {"vectors.cu"}, 256},
    [MAINLOOP_ELEMENTWISE] = {"elementwise", {"elementwise.cu"}, 128},
    [MAINLOOP_PLAIN] = {"plain", {"plain.cu"}, 128},
    [MAINLOOP_PORTABLE] = {"portable", {"portable.cu"}, 128},
    [MAINLOOP_DIRECT] = {"direct", {"hopper.cu", "direct.cu", "hopper_kernel.cu"}, 384},
    [MAINLOOP_COPIED] = {"copied", {"hopper.cu", "rounded.cu", "copied.cu", "hopper_kernel.cu"}, 384},
    [MAINLOOP_WARPS] = {"warps", {"hopper.cu", "rounded.cu", "warps.cu", "hopper_kernel.cu"}, 384},
};
enum { BARRIER_BYTES = 384 };

const char *mainloop_name(enum mainloop mainloop)
{
    return mainloops[mainloop].name;
}

bool rounds(enum mainloop mainloop)
{
    return mainloop == MAINLOOP_COPIED || mainloop == MAINLOOP_WARPS;
}

bool is_hopper(enum mainloop mainloop)
{
    return mainloop == MAINLOOP_DIRECT || rounds(mainloop);
}

int variant_threads(const struct variant *variant)
{
    return mainloops[variant->mainloop].threads;
}

int variant_shared_bytes(const struct plan *plan, const struct variant *v)
{
    int rows = v->bands * BAND_ROWS, accumulators = plan->joint ? plan->accumulator_count : 1;
    int columns = v->columns * accumulators, values = plan->value_count * rows * 4;
    int stages = v->stages * (rows + columns) * v->depth * 2;
    switch (v->mainloop) {
    case MAINLOOP_PORTABLE:
        return stages + values;
    case MAINLOOP_DIRECT:
        return stages + BARRIER_BYTES + 2 * values + plan->over_rows_count * v->bands * 4 * v->columns * 4;
    case MAINLOOP_COPIED:
    case MAINLOOP_WARPS:
        stages += v->slots * plan_copy_bytes(plan) * 96;
        return stages + rows * columns * 2 / v->halves + BARRIER_BYTES + 2 * values;
    default:
        return 0;
    }
}

/* ---------------------------------------------------------------- parameters */

static int at_least_one(int count)
{
    return count > 0 ? count : 1;
}

struct parameter_layout parameter_layout(const struct graph *graph, int map_count)
{
    struct parameter_layout layout;
    layout.wide = map_count * 128;
    layout.tensors = layout.wide + 8;
    layout.parameters = layout.tensors + graph->operand_count * (int)sizeof(struct device_tensor);
    layout.sizes = layout.parameters + at_least_one(graph->parameter_count) * 4;
    layout.geometry = layout.sizes + at_least_one(graph->axis_count) * 4;
    int align = map_count ? 64 : 8;
    layout.total = (layout.geometry + (int)sizeof(struct geometry) + align - 1) / align * align;
    return layout;
}

int parameter_bytes(const struct graph *graph, const struct variant *v)
{
    int each = parameter_layout(graph, v->map_count).total;
    return v->problems > 1 ? v->problems * each + (v->problems + 1) * 4 : each;
}

static void write_parameters(const struct plan *plan, const struct variant *v, struct text *out)
{
    const struct graph *graph = plan->graph;
    if (v->map_count)
        text_add(out, "struct __align__(64) Map {\n    u64 word[16];\n};\n");
    text_add(out, "struct Params {\n");
    if (v->map_count)
        text_add(out, "    Map map[%d]; /* for the copy engine */\n", v->map_count);
    text_add(out,
             "    u64 wide; /* bit i: the rows of operand i start at multiples of 16 bytes */\n    Tensor t[%d]; /*",
             graph->operand_count);
    for (int i = 0; i < graph->operand_count; i++)
        text_add(out, " %d %s", i, graph->operand[i].name);
    text_add(out, " */\n    float parameter[%d]; /*", at_least_one(graph->parameter_count));
    for (int i = 0; i < graph->parameter_count; i++)
        text_add(out, " %d %s", i, graph->parameter[i].name);
    text_add(out, " */\n    int size[%d]; /*", at_least_one(graph->axis_count));
    for (int i = 0; i < graph->axis_count; i++)
        text_add(out, " %d %s", i, graph->axis[i].name);
    text_add(out,
             " */\n    int row_tiles, column_tiles, group, columns_per_block, chunks, all_wide, whole, apart;\n};\n\n");
}

/* ---------------------------------------------------------------- the text */

static void write_axis(struct text *out, const char *name, int axis)
{
    if (axis >= 0)
        text_add(out, "#define %s (P.size[%d])\n", name, axis);
    else
        text_add(out, "#define %s 1\n", name);
}

void source_entry(const char *program, char name[ENTRY_NAME])
{
    snprintf(name, ENTRY_NAME, "coda_%.*s", ENTRY_NAME - 8, program);
}

/* ---------------------------------------------------------------- what names do not change */

/* A name that no program gives, as long as any. */
static void common_entry(char name[ENTRY_NAME])
{
    memset(name, '_', ENTRY_NAME - 1);
    memcpy(name, "coda", 4);
    name[ENTRY_NAME - 1] = '\0';
}

/* Behind the comment, string or character that begins here; `from` itself if none does. */
static const char *behind(const char *from, bool *comment)
{
    *comment = from[0] == '/' && (from[1] == '*' || from[1] == '/');
    if (*comment) {
        const char *end = strstr(from + 2, from[1] == '*' ? "*/" : "\n");
        return !end ? from + strlen(from) : from[1] == '*' ? end + 2 : end;
    }
    if (*from != '"' && *from != '\'')
        return from;
    const char *end = from + 1;
    while (*end && *end != *from)
        end += *end == '\\' && end[1] ? 2 : 1;
    return *end ? end + 1 : end;
}

static void copy_without_comments(const char *from, size_t length, struct text *out)
{
    char *line = malloc(length + 1);
    if (!line) {
        out->failed = true;
        return;
    }
    size_t used = 0;
    for (const char *end = from + length; from < end;) {
        bool comment;
        const char *next = behind(from, &comment);
        if (next == from)
            next++;
        if (comment)
            line[used++] = ' ';
        for (; from < next; from++)
            if (!comment || *from == '\n') /* the numbers of lines stay */
                line[used++] = *from;
    }
    line[used] = '\0';
    text_append(out, line);
    free(line);
}

coda_status source_without_names(const struct text *source, struct text *out, coda_error *error)
{
    static const char define[] = "#define KERNEL ";
    char entry[ENTRY_NAME];
    common_entry(entry);
    const char *text = text_of(source), *line = strstr(text, define), *rest = line ? strchr(line, '\n') : NULL;
    if (!rest)
        return fail(error, CODA_INVALID, "the text of a kernel names none");
    copy_without_comments(text, (size_t)(line - text), out);
    text_add(out, "%s%s", define, entry);
    copy_without_comments(rest, strlen(rest), out);
    return out->failed ? fail_memory(error, "the text of a kernel", source->length) : CODA_OK;
}

void source_name(const char *program, char *cubin, size_t size)
{
    char common[ENTRY_NAME], entry[ENTRY_NAME] = {0};
    common_entry(common);
    source_entry(program, entry);
    for (char *at = cubin; (at = memmem(at, size - (size_t)(at - cubin), common, ENTRY_NAME - 1)); at += ENTRY_NAME - 1)
        memcpy(at, entry, ENTRY_NAME - 1);
}

static void write_definitions(const struct plan *plan, const struct variant *v, struct text *out)
{
    int phases = plan->joint ? 1 : plan->accumulator_count, bands = v->bands ? v->bands : 1;
    int across = v->across ? v->across : 1;
    char entry[ENTRY_NAME];
    source_entry(plan->graph->name, entry);
    text_add(out, "#define KERNEL %s\n#define BLOCKS %d\n#define STEP %d\n", entry, plan->blocks, plan->step);
    text_add(out, "#define ACCUMULATORS %d\n#define PHASES %d\n#define PHASE_ACCUMULATORS %d\n",
             plan->accumulator_count, phases, plan->joint ? plan->accumulator_count : 1);
    text_add(out,
             "#define BANDS %d\n#define TILE_COLUMNS %d\n#define STAGES %d\n#define CLUSTER %d\n#define BOX_ROWS %d\n",
             bands, v->columns, v->stages, v->cluster ? v->cluster : 1, v->box_rows);
    text_add(out, "#define VALUES %d\n#define VALUE_ROWS %d\n#define OVER_ROWS %d\n#define SCRATCH_COLUMNS %d\n",
             plan->value_count, v->mainloop == MAINLOOP_ROWS ? 1 : bands * BAND_ROWS / across, plan->over_rows_count,
             v->halves > 1 ? v->columns / v->halves : v->columns);
    text_add(out, "#define DEPTH %d\n#define FLIGHT %d\n#define HALVES %d\n", v->depth, v->flight,
             v->halves ? v->halves : 1);
    text_add(out, "#define SLOTS %d\n#define ACROSS %d\n#define TOGETHER %d\n#define RESIDENT %d\n", v->slots, across,
             v->together, v->resident);
    text_add(out, "#define RUN_COLUMNS %d\n#define GATHERS %d\n#define NARROW %d\n", plan->run_columns,
             plan_gathers(plan), v->narrow);
    text_add(out, "#define WRITES_ROWS %d\n#define STORES_WIDE %d\n#define PROBLEMS %d\n", plan->writes_rows,
             plan_stores_wide(plan), v->problems > 1 ? v->problems : 1);
    text_add(out, "#define SPREAD %d\n#define ONE_ANGLE %d\n", v->spread,
             plan_angle_period(plan) == (v->spread ? 2 : 1));
    text_add(out, "#define LEFT_K_MAJOR %d\n#define RIGHT_K_MAJOR %d\n#define FACTOR_F16 %d\n", plan->left_k_major,
             plan->right_k_major, plan->factor_type == CODA_F16);
    text_add(out, "#define EPILOGUE_ASIDE %d\n#define ROW_PROGRAM %d\n#define BARRIER_BYTES %d\n",
             v->mainloop == MAINLOOP_WARPS, v->mainloop == MAINLOOP_ROWS, BARRIER_BYTES);
    const struct operand *copied = plan->copied_out >= 0 ? &plan->graph->operand[plan->copied_out] : NULL;
    text_add(out,
             "#define OUT_F32 %d\n#define ROUNDS %d\n#define OUT_COPIED %d\n#define OUT_MAP %d\n#define OUT_ADDS %d\n",
             copied && copied->dtype == CODA_F32, rounds(v->mainloop), v->mainloop == MAINLOOP_COPIED, v->map_count - 1,
             copied && copied->role == CODA_ACCUMULATE);
    write_axis(out, "ROWS", plan->form->row_axis);
    write_axis(out, "COLUMNS", plan->form->column_axis);
    text_add(out, "\n");
}

/* The program as a comment; its text cannot end the comment, since the language has no `*` before a `/`. */
static bool write_program(const struct plan *plan, struct text *out)
{
    char *text = print_graph(plan->graph);
    if (!text)
        return false;
    text_add(out, "/* Generated by coda " CODA_VERSION " from\n\n");
    for (char *line = text, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        text_add(out, "   %s\n", line);
    }
    text_add(out, "*/\n\n");
    free(text);
    return true;
}

/* What a kernel does first: by all threads of a block, and alike in all blocks. */
static void write_condition(const struct graph *graph, struct text *out)
{
    if (!graph->conditional) {
        text_append(out, "#define RETURN_UNLESS_WANTED(P)\n\n");
        return;
    }
    int i = graph->condition;
    text_append(out, device_text("condition.cu"));
    text_add(out,
             "/* %s: -0 is 0 too */\n"
             "#define RETURN_UNLESS_WANTED(P) if (!any_bit(P.t[%d].data, P.t[%d].rows, P.wide >> %d & 1, %s)) "
             "return;\n\n",
             graph->operand[i].name, i, i, i, graph->operand[i].dtype == CODA_F32 ? "0x80000000u" : "0u");
}

static bool is_tile(enum mainloop mainloop)
{
    return mainloop != MAINLOOP_ROWS && mainloop != MAINLOOP_COLUMNS;
}

static void write_generated(struct emitter *e, const struct variant *v, struct text *out)
{
    if (v->mainloop == MAINLOOP_COLUMNS) {
        emit_totals(e, out);
        return;
    }
    emit_rows(e, out);
    text_append(out, device_text("epilogue.cu"));
    if (!is_tile(v->mainloop))
        return;
    if (e->plan->accumulator_count)
        emit_products(e, out);
    if (is_hopper(v->mainloop))
        emit_hopper(e->plan, v, out);
    if (v->mainloop == MAINLOOP_COPIED) {
        text_add(out, "#define COPY_BYTES 0\n");
        return;
    }
    emit_inputs(e, out);
    emit_group(e, out);
    emit_finish(e, out);
}

/* Do consumers multiply by factors of rows? Where a tile is kept whole they are short of registers. */
static bool is_factored(const struct variant *v)
{
    return rounds(v->mainloop) && v->halves > 1;
}

coda_status source_write(const struct plan *plan, const struct variant *variant, struct text *source, coda_error *error)
{
    struct emitter *e = emitter_new(plan, error);
    if (!e)
        return CODA_MEMORY;
    coda_status status = CODA_OK;
    e->factored = is_factored(variant);
    if (!write_program(plan, source)) {
        status = fail_memory(error, "the text of a kernel", 0);
        goto done;
    }
    text_append(source, device_text("common.cu"));
    write_definitions(plan, variant, source);
    write_parameters(plan, variant, source);
    write_condition(plan->graph, source);
    write_generated(e, variant, source);
    for (int i = 0; i < 4 && mainloops[variant->mainloop].file[i]; i++)
        text_append(source, device_text(mainloops[variant->mainloop].file[i]));
    status = e->status;
    if (status == CODA_OK && source->failed)
        status = fail_memory(error, "the text of a kernel", source->length);
done:
    emitter_free(e);
    return status;
}
