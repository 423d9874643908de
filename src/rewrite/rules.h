/* The rewriting rules: name, algebraic statement, and where each is applied. Tests loop over the rows. */
#ifndef CODA_REWRITE_RULES_H
#define CODA_REWRITE_RULES_H

#include "rewrite/report.h"

enum rule {
    RULE_DEFERRED_SCALE,
    RULE_DEFERRED_MEAN,
    RULE_EXPANDED_SUM,
    RULE_MOVED_DOT,
    RULE_DROPPED_ROTATION,
    RULE_SPLIT_SUM,
    RULE_KEPT,
    RULE_TWIN,
    RULE_SUMMED,
    RULE_EXTRA_PASS,
    RULE_EXPONENTIALS,
    RULE_COUNT
};

/* May the rule be applied there? Yes, unless the report asks for the programs without this application; it is reported
 * with its number. Applying a rule ends with this question. */
bool apply_rule(struct report *report, enum rule rule, const struct graph *graph, int node);
/* The same of what cannot be left out: the name and the statement of the rule in one line, then what it was applied to.
 */
void report_rule(struct report *report, enum rule rule, const struct graph *graph, int node);
const char *rule_name(enum rule rule);
const char *rule_statement(enum rule rule);

#endif
