#include "rewrite/rules.h"
#include "lang/lang.h"

#include <stdio.h>

static const struct {
    const char *name, *statement;
} rules[RULE_COUNT] = {
    /* defer.c */
    [RULE_DEFERRED_SCALE] = {"deferred scale", "(r (x g)) @ W = r ((x g) @ W), r one value a row"},
    [RULE_DEFERRED_MEAN] = {"deferred mean",
                            "(r v) @ W = r (v @ W), v one value a column: a sum over the weight, no product"},
    [RULE_EXPANDED_SUM] = {"expanded sum", "sum((x - m)^2) = sum(x^2) - 2 m sum(x) + N m^2: no sum waits for another"},
    /* move.c */
    [RULE_MOVED_DOT] = {"moved dot product", "sum_n (d @ W)_n h_n = sum_k d_k (h @ W.T)_k"},
    /* tidy.c */
    [RULE_DROPPED_ROTATION] = {"dropped rotation", "sum rope(x) rope(y) = sum x y over whole rows"},
    /* stores.c, emit.c */
    [RULE_SPLIT_SUM] = {"split sum", "sum over a row = sum of the sums over its runs, which the reader finishes"},
    /* save.c */
    [RULE_KEPT] = {"kept for the backward",
                   "stored by the forward; what follows from it elementwise is computed again"},
    /* moments.c */
    [RULE_TWIN] = {"twin products", "A @ V and A @ W of one shape lie side by side in one tile"},
    [RULE_SUMMED] = {"summed products", "A @ V + B @ W is one accumulator"},
    /* stores.c */
    [RULE_EXTRA_PASS] = {"extra pass",
                         "no rule removes the wait for a whole row here: one elementwise kernel between two products"},
    /* exponentials.c */
    [RULE_EXPONENTIALS] = {"exponentials",
                           "exp(z - lse) - onehot(t) = s E: E is stored in place of z, s scales rows of products"},
};

const char *rule_name(enum rule rule)
{
    return rules[rule].name;
}

const char *rule_statement(enum rule rule)
{
    return rules[rule].statement;
}

bool apply_rule(struct report *report, enum rule rule, const struct graph *graph, int node)
{
    char what[1200], text[1024];
    bool fresh;
    if (report == NULL)
        return true;
    const char *name = graph->node[node].name;
    print_expression(graph, node, text, sizeof text);
    snprintf(what, sizeof what, "%s: %.60s %s", rules[rule].name, name != NULL ? name : "", text);
    int number = report_application(report, what, &fresh);
    if (number == report->without && number > 0)
        return false;
    if (!fresh)
        return true;
    report_line(report, "%d. %s: %s", number, rules[rule].name, rules[rule].statement);
    report_statement(report, graph, node);
    return true;
}

void report_rule(struct report *report, enum rule rule, const struct graph *graph, int node)
{
    if (report == NULL)
        return;
    report_line(report, "%s: %s", rules[rule].name, rules[rule].statement);
    report_statement(report, graph, node);
}
