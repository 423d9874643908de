/* Judges the outs of a launch against an evaluation. */
#ifndef KIT_COMPARE_H
#define KIT_COMPARE_H

#include "evaluate.h"

enum standard {
    STANDARD_DOUBLE, /* double arithmetic, rounded once at the out: within one rounding */
    STANDARD_EXACT, /* an epilogue in f32 on the f32 accumulator: within `bound` and one rounding, element by element */
    STANDARD_PLAIN, /* an epilogue that may see a rounded accumulator: in norm and in maximum at most twice the error of
                       `plain`, plus what STANDARD_EXACT allows */
};

/* On failure `text` names the out, the element, both values and the bound. EXACT implies PLAIN. */
bool compare_outs(const struct trial *trial, const struct evaluation *evaluation, enum standard standard, char *text,
                  size_t size);

#endif
