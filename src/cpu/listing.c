/* The steps of a kernel as text. */
#include "cpu/plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct text {
    char *at;
    size_t length, capacity;
    bool failed;
};

static void write_text(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void write_text(struct text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int needed = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (text->failed || needed < 0)
        return;
    if (text->length + (size_t)needed + 1 > text->capacity) {
        size_t capacity = 2 * text->capacity + (size_t)needed + 256;
        char *grown = realloc(text->at, capacity);
        text->failed = !grown;
        if (!grown)
            return;
        text->at = grown;
        text->capacity = capacity;
    }
    va_start(arguments, format);
    vsnprintf(text->at + text->length, text->capacity - text->length, format, arguments);
    va_end(arguments);
    text->length += (size_t)needed;
}

static void write_value(struct text *text, const struct plan *plan, int index)
{
    static const char *const names[] = {"uniform", "row", "column", "band", "r", "product"};
    const struct value *v = &plan->value[index];
    if (v->storage == EITHER) {
        write_text(text, "(u%d ? ", v->condition);
        write_value(text, plan, v->yes);
        write_text(text, " : ");
        write_value(text, plan, v->no);
        write_text(text, ")");
    } else if (v->inside) {
        write_text(text, "v%d", index);
    } else if (v->storage == IN_REGISTERS) {
        write_text(text, "r%lld", (long long)(v->offset / (plan->block_rows * plan->stride)));
    } else {
        write_text(text, "%s%d", names[v->storage], index);
    }
}

static void write_step(struct text *text, const struct plan *plan, const struct step *step)
{
    if (step->compiled) {
        write_text(text, "    compiled, %d streams:\n", step->compiled->stream_count);
        for (int i = 0; i < step->compiled->list.count; i++)
            write_step(text, plan, &step->compiled->list.step[i]);
        write_text(text, "    end\n");
        return;
    }
    write_text(text, "    ");
    if (step->guard >= 0)
        write_text(text, "[u%d %s 0] ", plan->guard[step->guard].condition,
                   plan->guard[step->guard].wanted ? "!=" : "==");
    if (step->result >= 0) {
        write_value(text, plan, step->result);
        write_text(text, " = ");
    }
    write_text(text, "%s", step->name);
    for (int k = 0; k < step->input_count; k++) {
        write_text(text, k ? ", " : " ");
        write_value(text, plan, step->input[k]);
    }
    if (step->operand >= 0)
        write_text(text, " `%s`", plan->graph->operand[step->operand].name);
    if (step->ids >= 0)
        write_text(text, " by `%s`", plan->graph->operand[step->ids].name);
    if (step->length > 0)
        write_text(text, " :%d", step->length);
    if (step->node >= 0 && step->result >= 0 && plan->graph->node[step->node].name)
        write_text(text, "    # %s", plan->graph->node[step->node].name);
    write_text(text, "\n");
}

static void write_list(struct text *text, const struct plan *plan, const struct step_list *list, const char *title)
{
    if (list->count == 0)
        return;
    write_text(text, "  %s\n", title);
    for (int i = 0; i < list->count; i++)
        write_step(text, plan, &list->step[i]);
}

char *cpu_plan_listing(const struct plan *plan, const char *head)
{
    static const char *const titles[] = {
        "each tile:", "row vectors, each block of rows:", "column vectors, each block of columns:"};
    struct text text = {0};
    write_text(&text, "%s\n", head);
    for (int p = 0; p < PHASE_COUNT; p++) {
        const struct phase_plan *phase = &plan->phase[p];
        if (!phase->used)
            continue;
        write_text(&text, "%s\n", titles[p]);
        write_list(&text, plan, &phase->list[LIST_ROWS], "one value a row");
        write_list(&text, plan, &phase->list[LIST_COLUMNS], "one value a column");
        for (int pass = 0; pass <= plan->passes; pass++) {
            write_list(&text, plan, &phase->list[LIST_BANDS + pass], "one row a run of rows");
            if (pass < plan->passes)
                write_list(&text, plan, &phase->list[LIST_TILE + pass], "block of rows by block of rows");
        }
    }
    if (text.failed) {
        free(text.at);
        return NULL;
    }
    return text.at;
}
