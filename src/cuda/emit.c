/* One value at one place: names, leaves, elementwise operations. */
#include "cuda/emit.h"
#include "cuda/pairs.h"
#include "lang/lang.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct emitter *emitter_new(const struct plan *plan, coda_error *error)
{
    struct emitter *e = calloc(1, sizeof *e);
    if (!e) {
        fail_memory(error, "a generator of text", sizeof *e);
        return NULL;
    }
    e->plan = plan;
    e->graph = plan->graph;
    e->error = error;
    e->assumed = -1;
    return e;
}

void emitter_free(struct emitter *e)
{
    if (!e)
        return;
    text_free(&e->group);
    text_free(&e->row);
    text_free(&e->element);
    free(e);
}

int emit_accumulator(const struct emitter *e, int node)
{
    for (int i = 0; i < e->plan->accumulator_count; i++) {
        int factored = e->factored ? plan_factored(e->plan, i) : -1;
        if (node == (factored >= 0 ? factored : e->plan->form->accumulator[i]))
            return i;
    }
    return -1;
}

void emit_fail(struct emitter *e, const char *format, ...)
{
    char text[512];
    va_list arguments;
    if (e->status != CODA_OK)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    e->status = fail(e->error, CODA_UNSUPPORTED, "%s: %s", e->graph->name, text);
}

void emit_new_element(struct emitter *e)
{
    text_clear(&e->element);
    e->element_count = 0;
}

void emit_new_row(struct emitter *e)
{
    emit_new_element(e);
    text_clear(&e->row);
    e->row_count = 0;
}

void emit_new_group(struct emitter *e)
{
    emit_new_row(e);
    text_clear(&e->group);
    e->group_count = 0;
}

struct place place_at(enum region region, const char *b, const char *x, const char *column)
{
    struct place place = {.region = region};
    place.too_long = snprintf(place.b, sizeof place.b, "%s", b) >= PLACE_TEXT;
    place.too_long |= snprintf(place.x, sizeof place.x, "%s", x) >= PLACE_TEXT;
    place.too_long |= snprintf(place.column, sizeof place.column, "%s", column) >= PLACE_TEXT;
    return place;
}

void emit_comment(struct emitter *e, struct text *text, int node, const char *indent)
{
    char expression[160];
    if (!e->graph->node[node].name || e->graph->node[node].op == OP_IN || e->graph->node[node].op == OP_PARAM)
        return;
    print_expression(e->graph, node, expression, sizeof expression);
    text_add(text, "%s/* %s = %s */\n", indent, e->graph->node[node].name, expression);
}

/* ---------------------------------------------------------------- names */

int emit_place(struct emitter *e, const struct place *at)
{
    if (at->too_long)
        emit_fail(e, "pairs of pairs nest too deeply for the CUDA generator");
    for (int i = 0; i < e->place_count; i++)
        if (e->place[i].region == at->region && e->place[i].distance == at->distance && !strcmp(e->place[i].b, at->b) &&
            !strcmp(e->place[i].x, at->x) && !strcmp(e->place[i].column, at->column))
            return i;
    if (e->place_count == (int)(sizeof e->place / sizeof *e->place)) {
        emit_fail(e, "the program pairs columns in more ways than a CUDA kernel can name");
        return 0;
    }
    e->place[e->place_count] = *at;
    return e->place_count++;
}

static struct level level_of(struct emitter *e, int node, const struct place *at)
{
    enum space space = e->plan->form->space[node];
    if (space == SPACE_UNIFORM)
        return (struct level){e->group_memo, &e->group_count, &e->group, -1};
    if (space == SPACE_ROW && at->region != AT_ROW)
        return (struct level){e->row_memo, &e->row_count, &e->row, -1};
    return (struct level){e->element_memo, &e->element_count, &e->element, emit_place(e, at)};
}

static void remember(struct emitter *e, const struct level *level, int node, const char *name)
{
    if (*level->count == MAX_MEMO) {
        emit_fail(e, "more than %d values in one CUDA kernel; split the program", MAX_MEMO);
        return;
    }
    struct memo *memo = &level->memo[(*level->count)++];
    memo->node = node;
    memo->place = level->place;
    snprintf(memo->name, sizeof memo->name, "%s", name);
}

bool emit_first_in_rows(struct emitter *e, int index, int place)
{
    const struct level rows = {e->row_memo, &e->row_count, &e->row, place};
    for (int i = 0; i < e->row_count; i++)
        if (e->row_memo[i].node == -1 - index && e->row_memo[i].place == place)
            return false;
    remember(e, &rows, -1 - index, "");
    return e->status == CODA_OK;
}

static void fresh_name(const struct level *level, int node, char *name)
{
    if (level->place > 0)
        snprintf(name, NAME_TEXT, "v%d_%d", node, level->place);
    else
        snprintf(name, NAME_TEXT, "v%d", node);
}

void emit_define(struct emitter *e, const struct level *level, int node, char *name, const char *format, ...)
{
    char expression[2400];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(expression, sizeof expression, format, arguments);
    va_end(arguments);
    if (length >= (int)sizeof expression)
        emit_fail(e, "an expression is too long for the CUDA generator");
    fresh_name(level, node, name);
    emit_comment(e, level->text, node, "        ");
    text_add(level->text, "        const float %s = %s;\n", name, expression);
    remember(e, level, node, name);
}

/* ---------------------------------------------------------------- leaves */

static void number_text(double number, char *text, int size)
{
    if (isnan(number))
        snprintf(text, (size_t)size, "NOT_A_NUMBER");
    else if (isinf(number) || fabs(number) > 3.4028235677973366e38)
        snprintf(text, (size_t)size, "%sINFINITE", number < 0 ? "-" : "");
    else {
        snprintf(text, (size_t)size, "%.9g", number);
        if (!strpbrk(text, ".e"))
            snprintf(text + strlen(text), (size_t)size - strlen(text), ".0");
        snprintf(text + strlen(text), (size_t)size - strlen(text), "f");
    }
}

static const char *type_of(const struct emitter *e, int operand)
{
    return coda_dtype_name(e->graph->operand[operand].dtype);
}

/* The words of a column vector at a place, as text: loaded a group ahead, or here for the row. */
static void column_words(struct emitter *e, int index, const struct place *at, char *text, int size)
{
    const struct column_input *column = &e->plan->column[plan_column(e->plan, index)];
    char suffix[48];
    if (plan_loads_ahead(e->plan)) {
        snprintf(text, (size_t)size, "ahead.c%d[%s]", plan_column(e->plan, index), at->b);
        return;
    }
    struct place key = place_at(AT_COLUMN, at->b, "", at->column);
    int place = emit_place(e, &key);
    snprintf(text, (size_t)size, "w%d_%d_%d", plan_column(e->plan, index), index, place);
    if (!emit_first_in_rows(e, index, place))
        return;
    text_add(&e->row, "        u32 w%d_%d_%d[%d]; /* %s */\n", plan_column(e->plan, index), index, place,
             (int)coda_dtype_size(e->graph->operand[column->operand].dtype) * 2,
             e->graph->operand[column->operand].name);
    snprintf(suffix, sizeof suffix, "_%d_%d", index, place);
    emit_column_load(e, &e->row, plan_column(e->plan, index), "w", suffix, at->column);
}

/* The index of a run that a column lies in, as text. */
static void run_index(const struct emitter *e, const struct dim *dim, const struct place *at, char *text, int size)
{
    const char *plus = at->region == AT_FULL || at->region == AT_COLUMN ? at->x : "0";
    snprintf(text, (size_t)size, "((%s + %s) / %d)", at->column, plus, plan_extent(e->plan, &dim->run));
}

static void emit_in(struct emitter *e, int index, const struct place *at, const struct level *level, char *name)
{
    const struct node *node = &e->graph->node[index];
    const char *type = type_of(e, node->index);
    char run[160];
    int input;
    switch (e->plan->form->space[index]) {
    case SPACE_UNIFORM:
        emit_define(e, level, index, name, "load_%s(P.t[%d].data, 0)", type, node->index);
        return;
    case SPACE_ROW:
        emit_define(e, level, index, name, "load_%s(P.t[%d].data, m)", type, node->index);
        return;
    case SPACE_COLUMN:
        if (at->region == AT_FINISH || at->region == AT_TOTALS) {
            emit_define(e, level, index, name, "load_%s(P.t[%d].data, n)", type, node->index);
            return;
        }
        column_words(e, index, at, run, sizeof run);
        emit_define(e, level, index, name, "word_%s(%s, %s)", type, run, at->x);
        return;
    case SPACE_TILE:
    case SPACE_HALF:
        input = plan_input(e->plan, index, at->region == AT_HALF ? at->distance : 0);
        if (input < 0) {
            emit_fail(e, "`%s` is read in a way that the CUDA generator does not know",
                      e->graph->operand[node->index].name);
            return;
        }
        emit_define(e, level, index, name, "word_%s(in.i%d[%s][h], %s)", type, input, at->b, at->x);
        return;
    case SPACE_ROW_RUNS:
        run_index(e, &node->shape.dim[1], at, run, sizeof run);
        emit_define(e, level, index, name,
                    "load_%s(P.t[%d].data, CLAMP_ROW(row) * P.t[%d].stride + CLAMP(%s, RUNS(%d)))", type, node->index,
                    node->index, run, plan_extent(e->plan, &node->shape.dim[1].run));
        return;
    case SPACE_COLUMN_PARTS:
        if (at->region == AT_FINISH || at->region == AT_TOTALS)
            snprintf(run, sizeof run, "(n / %d)", plan_extent(e->plan, &node->shape.dim[0].run));
        else if (at->region == AT_HALF)
            snprintf(run, sizeof run, "(%s + %s)", at->column, at->x);
        else
            run_index(e, &node->shape.dim[0], at, run, sizeof run);
        emit_define(e, level, index, name, "load_%s(P.t[%d].data, CLAMP(%s, RUNS(%d)))", type, node->index, run,
                    plan_extent(e->plan, &node->shape.dim[0].run));
        return;
    case SPACE_COLUMN_RUNS:
        if (at->region == AT_FINISH)
            emit_define(e, level, index, name, "load_%s(P.t[%d].data, (long)run * P.t[%d].stride + n)", type,
                        node->index, node->index);
        else
            emit_define(e, level, index, name,
                        "load_%s(P.t[%d].data, CLAMP_ROW(row) / %d * P.t[%d].stride + CLAMP(%s + %s, COLUMNS))", type,
                        node->index, plan_extent(e->plan, &node->shape.dim[0].run), node->index, at->column, at->x);
        return;
    default:
        emit_fail(e, "`%s` has no place in a CUDA kernel", e->graph->operand[node->index].name);
    }
}

/* ---------------------------------------------------------------- operations */

void emit_store(struct emitter *e, struct text *text, const char *indent, int operand, const char *index,
                const char *value)
{
    const char *type = type_of(e, operand);
    if (e->graph->operand[operand].role == CODA_ACCUMULATE)
        text_add(text, "%sstore_%s(P.t[%d].data, %s, coda_add(load_%s(P.t[%d].data, %s), %s));\n", indent, type,
                 operand, index, type, operand, index, value);
    else
        text_add(text, "%sstore_%s(P.t[%d].data, %s, %s);\n", indent, type, operand, index, value);
}

static const char *const cuda_text[OP_COUNT] = {
#define PRIMITIVE(op, name, arity, meaning, cuda, da, db, dc, cost) [OP_##op] = cuda,
#include "ir/primitives.def"
#undef PRIMITIVE
};

/* Puts names in the place of $a, $b, $c. */
static void substitute(const char *pattern, char input[3][NAME_TEXT], char *text, size_t size)
{
    size_t length = 0;
    for (const char *c = pattern; *c && length + NAME_TEXT < size; c++) {
        if (*c != '$')
            text[length++] = *c;
        else
            length += (size_t)snprintf(text + length, size - length, "%s", input[*++c - 'a']);
    }
    text[length] = '\0';
}

/* Is the input a product of two values that can be fused into the addition? */
static bool is_product(const struct emitter *e, int node, const struct place *at)
{
    enum space space = e->plan->form->space[node];
    return e->graph->node[node].op == OP_MUL && emit_accumulator(e, node) < 0 && space != SPACE_UNIFORM &&
           (space != SPACE_ROW || at->region == AT_ROW);
}

/* a * b + c in one rounding, written out so that bits do not depend on what the compiler contracts. */
static bool emit_fused(struct emitter *e, int index, const struct place *at, const struct level *level, char *name)
{
    const struct node *node = &e->graph->node[index];
    if (node->op != OP_ADD && node->op != OP_SUB)
        return false;
    int which = is_product(e, node->input[0], at) ? 0 : is_product(e, node->input[1], at) ? 1 : -1;
    if (which < 0)
        return false;
    const struct node *product = &e->graph->node[node->input[which]];
    char a[NAME_TEXT], b[NAME_TEXT], c[NAME_TEXT];
    emit_value(e, product->input[0], at, a);
    emit_value(e, product->input[1], at, b);
    emit_value(e, node->input[1 - which], at, c);
    if (node->op == OP_ADD)
        emit_define(e, level, index, name, "__fmaf_rn(%s, %s, %s)", a, b, c);
    else if (which == 0)
        emit_define(e, level, index, name, "__fmaf_rn(%s, %s, -%s)", a, b, c);
    else
        emit_define(e, level, index, name, "__fmaf_rn(-%s, %s, %s)", a, b, c);
    return true;
}

/* where(c, a, b) with a scalar condition: a branch, so that the other side costs nothing. */
static void emit_assumed(struct emitter *e, int index, const struct place *at, const struct level *level, char *name)
{
    char value[NAME_TEXT];
    emit_value(e, e->graph->node[index].input[e->assumed_true ? 1 : 2], at, value);
    emit_define(e, level, index, name, "%s", value);
}

static void emit_branch(struct emitter *e, int index, const struct place *at, const struct level *level, char *name)
{
    const struct node *node = &e->graph->node[index];
    char condition[NAME_TEXT], value[NAME_TEXT];
    emit_value(e, node->input[0], at, condition);
    fresh_name(level, index, name);
    emit_comment(e, level->text, index, "        ");
    text_add(level->text, "        float %s;\n        if (%s != 0.0f) {\n", name, condition);
    for (int side = 1; side <= 2; side++) {
        int saved = *level->count;
        emit_value(e, node->input[side], at, value);
        text_add(level->text, "        %s = %s;\n        }%s\n", name, value, side == 1 ? " else {" : "");
        *level->count = saved;
    }
    remember(e, level, index, name);
}

/* The name of 1 / divisor, which is the same for all elements: once a row, since a side of a branch may be where it is wanted. */
static void emit_inverse(struct emitter *e, int divisor, const struct place *at, char *name)
{
    char text[NAME_TEXT];
    snprintf(name, NAME_TEXT, "inverse%d", divisor);
    emit_value(e, divisor, at, text);
    if (emit_first_in_rows(e, divisor, -1))
        text_add(&e->row, "        const float %s = coda_div(1.0f, %s);\n", name, text);
}

static void emit_elementwise(struct emitter *e, int index, const struct place *at, const struct level *level,
                             char *name)
{
    const struct node *node = &e->graph->node[index];
    const enum space *space = e->plan->form->space;
    char input[3][NAME_TEXT] = {"", "", ""}, text[256];
    if (node->op == OP_WHERE && space[node->input[0]] == SPACE_UNIFORM && space[index] != SPACE_UNIFORM &&
        level->text == &e->element) {
        if (node->input[0] == e->assumed) {
            emit_assumed(e, index, at, level, name);
            return;
        }
        emit_branch(e, index, at, level, name);
        return;
    }
    if (emit_fused(e, index, at, level, name))
        return;
    if (node->op == OP_DIV && space[node->input[1]] == SPACE_UNIFORM && level->text == &e->element &&
        (at->region == AT_FULL || at->region == AT_HALF)) {
        emit_value(e, node->input[0], at, input[0]);
        emit_inverse(e, node->input[1], at, input[1]);
        emit_define(e, level, index, name, "%s * %s", input[0], input[1]);
        return;
    }
    for (int i = 0; i < node->input_count; i++)
        emit_value(e, node->input[i], at, input[i]);
    substitute(cuda_text[node->op], input, text, sizeof text);
    emit_define(e, level, index, name, "%s", text);
}

static void emit_index(struct emitter *e, int index, const struct place *at, const struct level *level, char *name)
{
    if (e->plan->form->space[index] == SPACE_ROW)
        emit_define(e, level, index, name, "(float)m");
    else if (at->region == AT_FINISH || at->region == AT_TOTALS)
        emit_define(e, level, index, name, "(float)n");
    else
        emit_define(e, level, index, name, "(float)(%s + %s)", at->column, at->x);
}

static void emit_repeat(struct emitter *e, int index, const struct place *at, const struct level *level, char *name)
{
    int column = plan_column(e->plan, index);
    int operand = e->plan->column[column].operand;
    if (at->region == AT_FINISH || at->region == AT_TOTALS)
        emit_define(e, level, index, name, "load_%s(P.t[%d].data, n %% P.t[%d].rows)", type_of(e, operand), operand,
                    operand);
    else {
        char words[160];
        column_words(e, index, at, words, sizeof words);
        emit_define(e, level, index, name, "word_%s(%s, %s)", type_of(e, operand), words, at->x);
    }
}

/* Numbers that no memory holds, and accumulators. False: another operation. */
static bool emit_known(struct emitter *e, int index, const struct place *at, const struct level *level, char *name)
{
    const struct node *node = &e->graph->node[index];
    char text[64];
    switch (node->op) {
    case OP_PARAM:
        emit_define(e, level, index, name, "P.parameter[%d]", node->index);
        return true;
    case OP_NUMBER:
        number_text(node->number, text, sizeof text);
        emit_define(e, level, index, name, "%s", text);
        return true;
    case OP_SIZE:
        emit_define(e, level, index, name, "(float)P.size[%d]", node->axis);
        return true;
    case OP_INDEX:
        emit_index(e, index, at, level, name);
        return true;
    default:
        break;
    }
    int accumulator = emit_accumulator(e, index);
    if (accumulator >= 0)
        emit_define(e, level, index, name, "ACCUMULATOR(%d, %s, h, %s)", accumulator, at->b, at->x);
    return accumulator >= 0;
}

static void emit_operation(struct emitter *e, int index, const struct place *at, const struct level *level, char *name)
{
    const struct node *node = &e->graph->node[index];
    char text[EXPRESSION_TEXT], input[NAME_TEXT];
    if (emit_known(e, index, at, level, name))
        return;
    switch (node->op) {
    case OP_IN:
        emit_in(e, index, at, level, name);
        return;
    case OP_CAST:
        emit_value(e, node->input[0], at, input);
        emit_define(e, level, index, name, "coda_round_%s(%s)", coda_dtype_name(node->dtype), input);
        return;
    case OP_BROADCAST:
        emit_value(e, node->input[0], at, input);
        emit_define(e, level, index, name, "%s", input);
        return;
    case OP_REPEAT:
        emit_repeat(e, index, at, level, name);
        return;
    case OP_GATHER:
        emit_define(e, level, index, name, "word_%s(in.i%d[%s][h], %s)",
                    type_of(e, e->graph->node[node->input[0]].index), plan_input(e->plan, index, 0), at->b, at->x);
        return;
    case OP_ONEHOT:
        emit_define(e, level, index, name, "(VALUE_ID(%d) == %s + %s ? 1.0f : 0.0f)",
                    plan_value(e->plan, node->input[0], true), at->column, at->x);
        return;
    case OP_EVEN:
    case OP_ODD:
    case OP_FIRST:
    case OP_SECOND:
    case OP_JOIN:
    case OP_JOIN_HALVES:
    case OP_ROPE:
        pair_expression(e, index, at, text);
        if (e->status == CODA_OK)
            emit_define(e, level, index, name, "%s", text);
        return;
    default:
        break;
    }
    if (op_is_reduction(node->op) && is_run_reduction(node))
        emit_run(e, index, at, level, name);
    else if (op_is_reduction(node->op))
        emit_whole(e, index, at, level, name);
    else if (op_is_elementwise(node->op))
        emit_elementwise(e, index, at, level, name);
    else
        emit_fail(e, "`%s` has no CUDA path here", op_name(node->op));
}

void emit_value(struct emitter *e, int node, const struct place *at, char *name)
{
    snprintf(name, NAME_TEXT, "0.0f");
    if (e->status != CODA_OK)
        return;
    struct level level = level_of(e, node, at);
    for (int i = 0; i < *level.count; i++)
        if (level.memo[i].node == node && level.memo[i].place == level.place) {
            snprintf(name, NAME_TEXT, "%s", level.memo[i].name);
            return;
        }
    if (level.text == &e->row) {
        int value = plan_value(e->plan, node, false);
        if (value < 0)
            emit_fail(e, "a row value is missing from the plan");
        else
            emit_define(e, &level, node, name, "VALUE(%d)", value);
        return;
    }
    emit_operation(e, node, at, &level, name);
}
