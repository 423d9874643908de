/* Groups of elementwise steps, loads and stores become one step in machine code, in which values stay in vector
 * registers. A group may end in reductions of runs of one length, or hold a rotation of halves. What it cannot do (moves,
 * steps of a branch) runs between the groups as before. */
#include "cpu/frame.h"

#include <stdlib.h>

struct grouping {
    struct plan *plan;
    const struct step_list *list;
    bool *done;      /* one a step: it stands in the new list */
    bool *chosen;    /* one a step: it is in the group */
    int *late;       /* one a value: 1 + the step of the list that makes it, if it is not done */
    bool *wanted;    /* one a value: read outside the group */
    int *code_value; /* one a value: its name in the code, or NONE */
    int *need;       /* one a value: registers that computing it takes, about */
    struct step_list result;
    int run, half;           /* of the group: columns of its runs or half heads, 0 */
    const struct step *rope; /* the group's rotation, or NULL */
};

enum { NONE = INT32_MIN, LEAST_GROUP = 2 /* elementwise steps */ };

/* ---------------------------------------------------------------- what a group may hold */

static bool reads_memory(const struct step *step)
{
    return step->operand >= 0 && step->run != cpu_step_store && step->run != cpu_step_pick;
}

static bool is_compiled_type(coda_dtype dtype)
{
    return dtype == CODA_F32 || dtype == CODA_BF16 || dtype == CODA_F16;
}

static int lanes_of(const struct grouping *g)
{
    return g->plan->machine_code == CODE_AVX2 ? 8 : 16;
}

static bool is_reduction(const struct step *step)
{
    return step->primitive >= PRIMITIVE_REDUCE;
}

/* In rounds of four vectors; a run cut short is filled up in memory of a fixed size. */
static bool may_reduce(const struct grouping *g, const struct step *step)
{
    return lanes_of(g) == 16 && !g->half && step->length % 64 == 0 && step->length <= COMPILED_RUN &&
           (!g->run || g->run == step->length);
}

static bool may_rotate(const struct grouping *g, const struct step *step)
{
    const struct graph *graph = g->plan->graph;
    return !g->run && !g->rope && !graph->node[step->node].rope_pairs &&
           graph->operand[step->operand].dtype == CODA_F32 && step->length % (2 * lanes_of(g)) == 0;
}

/* Of steps by themselves: what there may be in one group, runs or rotations, is decided by may_.. */
static bool has_compiled_form(const struct step *step)
{
    if (step->guard >= 0 || step->site != SITE_TILE || step->form != 0)
        return false;
    if (step->run == cpu_step_load || step->run == cpu_step_store)
        return is_compiled_type(step->dtype) && !step->flag;
    if (step->run == cpu_step_rope || is_reduction(step))
        return true;
    if (step->primitive < 0)
        return false;
    struct vector_code code = {.count = 0};
    int result;
    const int nothing[3] = {0};
    return step->primitive >= OP_COUNT || vector_primitive(&code, (enum op)step->primitive, nothing, &result);
}

/* Is a value made by a step that neither stands in the new list nor in the group? */
static bool is_missing(const struct grouping *g, int value)
{
    const struct value *v = &g->plan->value[value];
    if (v->storage == EITHER)
        return is_missing(g, v->yes) || is_missing(g, v->no);
    const int maker = g->late[value] - 1;
    return maker >= 0 && !g->done[maker] && !(g->chosen[maker] && !is_reduction(&g->list->step[maker]));
}

static bool inputs_are_there(const struct grouping *g, const struct step *step)
{
    for (int k = 0; k < step->input_count; k++)
        if (is_missing(g, step->input[k]))
            return false;
    return true;
}

/* Takes a step's runs or halves for the group's; false: it has others. */
static bool joins_group(struct grouping *g, const struct step *step, bool special)
{
    const bool reduces = is_reduction(step), rotates = step->run == cpu_step_rope;
    if (!reduces && !rotates)
        return true;
    if (!special || !(reduces ? may_reduce(g, step) : may_rotate(g, step)))
        return false;
    g->run = reduces ? step->length : g->run;
    g->half = rotates ? step->length / 2 : g->half;
    g->rope = rotates ? step : g->rope;
    return true;
}

/* A store comes after everything that reads memory: an out may take the place of an `in`. special: with reductions or a
 * rotation. False: it is not worth while. */
static bool choose_group(struct grouping *g, bool special)
{
    int count = 0;
    bool readers_left = false, alone = false;
    g->run = g->half = 0;
    g->rope = NULL;
    for (int i = 0; i < g->list->count; i++) {
        const struct step *step = &g->list->step[i];
        const bool store = step->run == cpu_step_store;
        g->chosen[i] = !g->done[i] && has_compiled_form(step) && inputs_are_there(g, step) &&
                       !(store && readers_left) && joins_group(g, step, special);
        count += g->chosen[i];
        alone = alone || (g->chosen[i] && (store || is_reduction(step)));
        readers_left = readers_left || (!g->done[i] && !g->chosen[i] && reads_memory(step));
    }
    return count >= (alone ? 1 : LEAST_GROUP);
}

/* ---------------------------------------------------------------- from steps to code */

static void mark_wanted(struct grouping *g, int value)
{
    const struct value *v = &g->plan->value[value];
    g->wanted[value] = true;
    if (v->storage == EITHER) {
        mark_wanted(g, v->yes);
        mark_wanted(g, v->no);
    }
}

static void find_wanted(struct grouping *g)
{
    for (int v = 0; v < g->plan->value_count; v++) {
        g->wanted[v] = false;
        g->code_value[v] = NONE;
    }
    for (int i = 0; i < g->list->count; i++)
        for (int k = 0; !g->chosen[i] && !g->done[i] && k < g->list->step[i].input_count; k++)
            mark_wanted(g, g->list->step[i].input[k]);
    for (int v = 0; v < g->plan->value_count; v++) /* one of two values may be read wherever they are */
        if (g->plan->value[v].storage == EITHER)
            mark_wanted(g, v);
}

static int add_stream(struct compiled *compiled, enum stream_kind kind, int index, coda_dtype dtype)
{
    if (compiled->stream_count == MAX_STREAMS)
        return -1;
    compiled->stream[compiled->stream_count] = (struct stream){.kind = kind, .index = index, .dtype = dtype};
    return compiled->stream_count++;
}

static enum vector_op load_of(coda_dtype dtype)
{
    return dtype == CODA_F32 ? VECTOR_LOAD_F32 : dtype == CODA_BF16 ? VECTOR_LOAD_BF16 : VECTOR_LOAD_F16;
}

static enum vector_op store_of(coda_dtype dtype)
{
    return dtype == CODA_F32 ? VECTOR_STORE_F32 : dtype == CODA_BF16 ? VECTOR_STORE_BF16 : VECTOR_STORE_F16;
}

static int load_operand(struct grouping *g, struct step *group, struct vector_code *code, const struct step *load)
{
    int stream = add_stream(group->compiled, STREAM_READ, load->operand, load->dtype);
    if (stream < 0)
        return NONE;
    return g->code_value[load->result] = vector_emit(code, load_of(load->dtype), stream, 0, 0, 0, 0);
}

static int load_value(struct grouping *g, struct step *group, struct vector_code *code, int value)
{
    const enum storage storage = g->plan->value[value].storage;
    const bool runs = storage == IN_REGISTERS && g->plan->value[value].form != 0;
    const bool repeats = storage == IN_UNIFORMS || storage == IN_ROWS;
    if (group->input_count == MAX_STEP_INPUTS)
        return NONE;
    int stream = add_stream(group->compiled, STREAM_INPUT, group->input_count, CODA_F32);
    if (stream < 0)
        return NONE;
    const enum vector_op op = runs ? VECTOR_REPEAT_RUN : repeats ? VECTOR_REPEAT : VECTOR_LOAD_F32;
    group->compiled->stream[stream].repeats = repeats;
    group->compiled->stream[stream].runs = runs;
    group->input[group->input_count++] = value;
    return g->code_value[value] = vector_emit(code, op, stream, 0, 0, 0, 0);
}

static int code_value(struct grouping *g, struct step *group, struct vector_code *code, int value);

/* The input that takes the most registers is computed first. */
static int compute_value(struct grouping *g, struct step *group, struct vector_code *code, const struct step *step)
{
    static const enum vector_op fused[FUSED_COUNT] = {
        [MULTIPLY_ADD] = VECTOR_MULTIPLY_ADD,
        [MULTIPLY_SUBTRACT] = VECTOR_MULTIPLY_SUBTRACT,
        [SUBTRACT_PRODUCT] = VECTOR_SUBTRACT_PRODUCT,
    };
    int input[3] = {0}, *result = &g->code_value[step->result];
    for (int most = INT32_MAX, found = 0; found < step->input_count;) {
        int next = 0;
        for (int k = 0; k < step->input_count; k++)
            if (g->need[step->input[k]] < most && g->need[step->input[k]] > next)
                next = g->need[step->input[k]];
        for (int k = 0; k < step->input_count; k++) {
            if (g->need[step->input[k]] != next)
                continue;
            if ((input[k] = code_value(g, group, code, step->input[k])) == NONE)
                return NONE;
            found++;
        }
        most = next;
    }
    if (step->primitive >= OP_COUNT)
        *result = vector_emit(code, fused[step->primitive - OP_COUNT], 0, input[0], input[1], input[2], 0);
    else if (!vector_primitive(code, (enum op)step->primitive, input, result))
        return NONE;
    return *result;
}

static int rotate_value(struct grouping *g, struct step *group, struct vector_code *code, const struct step *step)
{
    const int value = code_value(g, group, code, step->input[0]);
    const int stream = add_stream(group->compiled, STREAM_TABLE, step->operand, CODA_F32);
    if (value == NONE || stream < 0)
        return NONE;
    return g->code_value[step->result] = vector_emit(code, VECTOR_ROTATE, stream, value, step->flag, 0, 0);
}

/* The value's name in the code: computed or loaded where it is first used, to stay in a register no longer than it must.
 * NONE: there is too much of something. */
static int code_value(struct grouping *g, struct step *group, struct vector_code *code, int value)
{
    const bool either = g->plan->value[value].storage == EITHER;
    const int maker = either ? -1 : g->late[value] - 1;
    if (g->code_value[value] != NONE)
        return g->code_value[value];
    if (maker < 0 || !g->chosen[maker])
        return load_value(g, group, code, value);
    const struct step *step = &g->list->step[maker];
    return step->run == cpu_step_load   ? load_operand(g, group, code, step)
           : step->run == cpu_step_rope ? rotate_value(g, group, code, step)
                                        : compute_value(g, group, code, step);
}

static bool add_store(struct grouping *g, struct step *group, struct vector_code *code, const struct step *step)
{
    const int value = code_value(g, group, code, step->input[0]);
    const int stream = add_stream(group->compiled, STREAM_WRITE, step->operand, step->dtype);
    if (stream >= 0 && value != NONE)
        vector_emit(code, store_of(step->dtype), stream, value, 0, 0, 0);
    return stream >= 0 && value != NONE;
}

/* By Sethi and Ullman: of two inputs that need as much, one must be kept while the other is computed. */
static void find_needs(struct grouping *g)
{
    enum { EXPONENTIAL = 5 };
    for (int v = 0; v < g->plan->value_count; v++)
        g->need[v] = 1;
    for (int i = 0; i < g->list->count; i++) {
        const struct step *step = &g->list->step[i];
        if (!g->chosen[i] || step->primitive < 0)
            continue;
        int need = step->primitive == OP_SIGMOID || step->primitive == OP_SILU || step->primitive == OP_EXP ||
                           step->primitive == OP_GELU_TANH
                       ? EXPONENTIAL
                       : 1;
        for (int k = 0; k < step->input_count; k++) {
            const int other = g->need[step->input[k]];
            need = other > need ? other : k > 0 && other == need ? need + 1 : need;
        }
        g->need[step->result] = need;
    }
}

/* What a reduction adds up; of a logsumexp exponentials against the run's largest. */
static int reduced_value(struct grouping *g, struct step *group, struct vector_code *code, const struct step *step)
{
    const int x = code_value(g, group, code, step->input[0]);
    if (step->primitive != PRIMITIVE_REDUCE + REDUCE_LOGSUMEXP || x == NONE)
        return x;
    const int top = code_value(g, group, code, step->input[1]);
    return top == NONE ? NONE : vector_exp_negative(code, vector_emit(code, VECTOR_SUBTRACT, 0, x, top, 0, 0));
}

static enum vector_op reduction_op(const struct step *step)
{
    static const enum vector_op ops[REDUCTION_COUNT] = {VECTOR_SUM, VECTOR_MAXIMUM, VECTOR_MAGNITUDE, VECTOR_SUM};
    return ops[step->primitive - PRIMITIVE_REDUCE];
}

/* Values that later steps read are written to registers of the tile machine. */
static bool add_outputs(struct grouping *g, struct step *group, struct vector_code *code)
{
    struct compiled *compiled = group->compiled;
    for (int i = 0; i < g->list->count; i++) {
        const int value = g->list->step[i].result;
        if (!g->chosen[i] || value < 0 || !g->wanted[value])
            continue;
        const struct step *step = &g->list->step[i];
        const bool reduces = is_reduction(step);
        const int name = reduces ? reduced_value(g, group, code, step) : code_value(g, group, code, value);
        const int stream = add_stream(compiled, STREAM_OUTPUT, compiled->output_count, CODA_F32);
        if (stream < 0 || name == NONE || compiled->output_count == MAX_STEP_OUTPUTS)
            return false;
        compiled->output[compiled->output_count++] = value;
        compiled->stream[stream].runs = reduces;
        vector_emit(code, reduces ? reduction_op(step) : VECTOR_STORE_F32, stream, name, 0, 0, 0);
    }
    return true;
}

/* Has every operand that the group reads been loaded? */
static bool all_loaded(const struct grouping *g)
{
    for (int i = 0; i < g->list->count; i++)
        if (g->chosen[i] && g->list->step[i].run == cpu_step_load && g->code_value[g->list->step[i].result] == NONE)
            return false;
    return true;
}

/* All that is read in memory stands before all that is written: an out may take the place of an `in`. */
static bool make_code(struct grouping *g, struct step *group, struct vector_code *code)
{
    const struct step_list *list = g->list;
    find_wanted(g);
    find_needs(g);
    bool good = add_outputs(g, group, code);
    for (int i = 0; i < list->count && good && !all_loaded(g); i++)
        if (g->chosen[i] && list->step[i].run == cpu_step_store)
            good = code_value(g, group, code, list->step[i].input[0]) != NONE;
    for (int i = 0; i < list->count && good; i++)
        if (g->chosen[i] && list->step[i].run == cpu_step_store)
            good = add_store(g, group, code, &list->step[i]);
    code->mask = group->compiled->stream_count;
    return good && vector_compile(code, g->plan->machine_code, &group->compiled->program);
}

/* ---------------------------------------------------------------- the new list */

static void append(struct grouping *g, const struct step *step)
{
    g->result.step[g->result.count++] = *step; /* there is room: no list grows */
}

static void keep_inside(struct grouping *g, struct compiled *compiled, const struct step *step)
{
    if (step == g->rope)
        compiled->rope = &compiled->list.step[compiled->list.count];
    compiled->list.step[compiled->list.count++] = *step;
    if (step->result >= 0)
        g->plan->value[step->result].inside = !g->wanted[step->result];
}

/* Appends the chosen steps as one, if they can be compiled. */
static coda_status append_group(struct grouping *g, bool *appended, coda_error *error)
{
    struct step group = {
        .site = SITE_TILE, .guard = -1, .node = -1, .result = -1, .primitive = -1, .operand = -1, .ids = -1};
    struct vector_code *code = calloc(1, sizeof *code);
    struct compiled *compiled = calloc(1, sizeof *compiled);
    struct step *list = calloc((size_t)g->list->count, sizeof *list);
    if (!code || !compiled || !list) {
        free(code);
        free(compiled);
        free(list);
        return fail_memory(error, "the code of a kernel", sizeof *code + sizeof *compiled);
    }
    compiled->list.step = list;
    code->wide = lanes_of(g) == 16;
    code->run = compiled->run = g->run;
    code->half = compiled->half = g->half;
    group.name = "compiled";
    group.run = cpu_step_compiled;
    group.compiled = compiled;
    *appended = make_code(g, &group, code);
    for (int i = 0; i < g->list->count && *appended; i++)
        if (g->chosen[i]) {
            keep_inside(g, compiled, &g->list->step[i]);
            g->done[i] = true;
        }
    if (*appended)
        append(g, &group);
    else
        cpu_compiled_free(compiled);
    free(code);
    return CODA_OK;
}

/* A group that does not compile leaves its steps to be interpreted. */
static void append_chosen(struct grouping *g)
{
    for (int i = 0; i < g->list->count; i++)
        if (g->chosen[i]) {
            append(g, &g->list->step[i]);
            g->done[i] = true;
        }
}

static bool readers_are_left(const struct grouping *g)
{
    for (int i = 0; i < g->list->count; i++)
        if (!g->done[i] && reads_memory(&g->list->step[i]))
            return true;
    return false;
}

/* Appends steps whose inputs are there: those without a compiled form, or just the first. */
static bool append_others(struct grouping *g, bool first)
{
    bool progress = false;
    for (int i = 0; i < g->list->count && !(first && progress); i++) {
        const struct step *step = &g->list->step[i];
        if (g->done[i] || (!first && has_compiled_form(step)) || !inputs_are_there(g, step) ||
            (step->result < 0 && readers_are_left(g)))
            continue;
        append(g, step);
        g->done[i] = progress = true;
    }
    return progress;
}

static bool all_done(const struct grouping *g)
{
    for (int i = 0; i < g->list->count; i++)
        if (!g->done[i])
            return false;
    return true;
}

static coda_status regroup(struct grouping *g, coda_error *error)
{
    coda_status status = CODA_OK;
    for (int i = 0; i < g->list->count; i++)
        if (g->list->step[i].result >= 0)
            g->late[g->list->step[i].result] = i + 1;
    while (status == CODA_OK && !all_done(g)) {
        bool group = choose_group(g, true), appended = false;
        if (group)
            status = append_group(g, &appended, error);
        if (status == CODA_OK && group && !appended && (g->run || g->half)) { /* less in one group */
            group = choose_group(g, false);
            if (group)
                status = append_group(g, &appended, error);
        }
        if (status == CODA_OK && group && !appended)
            append_chosen(g);
        for (int i = 0; i < g->list->count; i++)
            g->chosen[i] = false;
        if (status == CODA_OK && !append_others(g, false) && !group && !append_others(g, true))
            break; /* steps stand behind those that they read: there is always one */
    }
    return status;
}

coda_status cpu_plan_compile(struct plan *plan, struct step_list *list, coda_error *error)
{
    const size_t steps = (size_t)list->count + 1, values = (size_t)plan->value_count + 1;
    struct grouping g = {.plan = plan, .list = list};
    coda_status status = CODA_OK;
    if (plan->machine_code == NO_MACHINE_CODE)
        return CODA_OK;
    g.done = calloc(steps, sizeof *g.done);
    g.chosen = calloc(steps, sizeof *g.chosen);
    g.late = calloc(values, sizeof *g.late);
    g.wanted = calloc(values, sizeof *g.wanted);
    g.code_value = calloc(values, sizeof *g.code_value);
    g.need = calloc(values, sizeof *g.need);
    g.result.step = calloc(steps, sizeof *g.result.step);
    if (!g.done || !g.chosen || !g.late || !g.wanted || !g.code_value || !g.need || !g.result.step)
        status = fail_memory(error, "the code of a kernel", steps * sizeof *g.result.step);
    if (status == CODA_OK)
        status = regroup(&g, error);
    if (status == CODA_OK) {
        free(list->step);
        *list = g.result;
        list->capacity = (int)steps;
    } else {
        for (int i = 0; i < g.result.count; i++)
            cpu_compiled_free(g.result.step[i].compiled);
        free(g.result.step);
    }
    free(g.done);
    free(g.chosen);
    free(g.late);
    free(g.wanted);
    free(g.code_value);
    free(g.need);
    return status;
}

void cpu_compiled_free(struct compiled *compiled)
{
    if (!compiled)
        return;
    vector_release(&compiled->program);
    free(compiled->list.step);
    free(compiled);
}
