/* Where the factors of products lie: addresses of elements, for mainloops that load them by ordinary instructions. */
#include "cuda/emit.h"

#include <stdio.h>

static const char *type_of_operand(const struct emitter *e, int operand)
{
    return coda_dtype_name(e->graph->operand[operand].dtype);
}

/* The size of a factor along K, as text. */
static void depth_text(const struct factor *right, char *text, size_t size)
{
    snprintf(text, size, "P.t[%d].%s", right->operand, right->k_major ? "columns" : "rows");
}

/* K elements of the left operand before a segment: those of the segments that it continues. */
static void offset_text(const struct product *product, int s, struct text *text)
{
    char depth[48];
    while (product->segment[s].continues) {
        s--;
        depth_text(&product->segment[s].right[0], depth, sizeof depth);
        text_add(text, " + %s", depth);
    }
}

enum result { ADDRESS, VALUE };

static void element(struct emitter *e, struct text *out, const struct factor *f, const char *along, const char *offset,
                    enum result result)
{
    const char *type = type_of_operand(e, f->operand);
    char index[256];
    if (f->k_major)
        snprintf(index, sizeof index, "(long)(%s) * P.t[%d].stride + k%s", along, f->operand, offset);
    else
        snprintf(index, sizeof index, "(long)(k%s) * P.t[%d].stride + (%s)", offset, f->operand, along);
    if (result == ADDRESS)
        text_add(out, "return P.t[%d].data + (%s) * SIZE_%s;\n", f->operand, index, type);
    else
        text_add(out, "return load_%s(P.t[%d].data, %s);\n", type, f->operand, index);
}

static void emit_left(struct emitter *e, struct text *out, enum result result)
{
    const struct plan *plan = e->plan;
    int phases = plan->joint ? 1 : plan->accumulator_count;
    text_add(out, "INLINE %s(const Params &P, const int phase, const int s, const int m, const int k)\n{\n",
             result == ADDRESS ? "const char *left_at" : "float left_value");
    for (int a = 0; a < phases; a++)
        for (int s = 0; s < plan->product[a].segment_count; s++) {
            struct text offset = {0};
            offset_text(&plan->product[a], s, &offset);
            bool last = a + 1 == phases && s + 1 == plan->product[a].segment_count;
            if (last)
                text_add(out, "    ");
            else
                text_add(out, "    if (phase == %d && s == %d)\n        ", a, s);
            element(e, out, &plan->product[a].segment[s].left, "m", text_of(&offset), result);
            text_free(&offset);
        }
    text_add(out, "}\n");
}

/* The right operand of an accumulator; the parts of a stack along N one after the other. */
static void emit_right(struct emitter *e, struct text *out, enum result result)
{
    const struct plan *plan = e->plan;
    text_add(out, "INLINE %s(const Params &P, const int a, const int s, const int n, const int k)\n{\n",
             result == ADDRESS ? "const char *right_at" : "float right_value");
    for (int a = 0; a < plan->accumulator_count; a++)
        for (int s = 0; s < plan->product[a].segment_count; s++) {
            const struct segment *segment = &plan->product[a].segment[s];
            text_add(out, "    if (a == %d && s == %d) {\n", a, s);
            if (segment->right_count == 1) {
                text_add(out, "        ");
                element(e, out, &segment->right[0], "n", "", result);
            } else {
                text_add(out, "        int j = n;\n");
                for (int r = 0; r < segment->right_count; r++) {
                    if (r + 1 < segment->right_count)
                        text_add(out, "        if (j < P.t[%d].rows)\n            ", segment->right[r].operand);
                    else
                        text_add(out, "        ");
                    element(e, out, &segment->right[r], "j", "", result);
                    if (r + 1 < segment->right_count)
                        text_add(out, "        j -= P.t[%d].rows;\n", segment->right[r].operand);
                }
            }
            text_add(out, "    }\n");
        }
    text_add(out, result == ADDRESS ? "    return P.t[0].data;\n}\n" : "    return 0.0f;\n}\n");
}

void emit_products(struct emitter *e, struct text *out)
{
    const struct plan *plan = e->plan;
    int phases = plan->joint ? 1 : plan->accumulator_count;
    char depth[48];
    text_add(out, "/* Products: `phase` counts passes over K, `s` the ranges of K in one. */\n"
                  "INLINE int SEGMENTS(const int phase)\n{\n");
    for (int a = 1; a < phases; a++)
        text_add(out, "    if (phase == %d)\n        return %d;\n", a, plan->product[a].segment_count);
    text_add(out, "    return %d;\n}\n", plan->product[0].segment_count);
    text_add(out, "INLINE int depth_of(const Params &P, const int phase, const int s)\n{\n");
    for (int a = 0; a < phases; a++)
        for (int s = 0; s < plan->product[a].segment_count; s++) {
            depth_text(&plan->product[a].segment[s].right[0], depth, sizeof depth);
            text_add(out, "    if (phase == %d && s == %d)\n        return %s;\n", a, s, depth);
        }
    text_add(out, "    return 0;\n}\n");
    emit_left(e, out, ADDRESS);
    emit_right(e, out, ADDRESS);
    emit_left(e, out, VALUE);
    emit_right(e, out, VALUE);
    text_add(out, "\n");
}
