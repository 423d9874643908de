/* Which stored values can share memory. */
#ifndef CODA_REWRITE_BUFFERS_H
#define CODA_REWRITE_BUFFERS_H

#include "lang/lang.h"
#include "rewrite/report.h"

/* Reports, for programs run in order, the buffers that their intermediate values need: values of one type and shape share
 * one where the last read of the first comes before the write of the next. Values that `results` (up to two graphs, NULL
 * allowed) name as outs stay. False: no memory. */
bool report_buffers(struct report *report, const struct unit *unit, const struct graph *const results[2]);

#endif
