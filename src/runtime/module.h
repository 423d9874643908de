/* How passes hand their results to the public API. */
#ifndef CODA_RUNTIME_MODULE_H
#define CODA_RUNTIME_MODULE_H

#include "lang/lang.h"

/* Takes the unit's graphs over, also when it fails. */
coda_status module_from_unit(struct unit *unit, coda_module **module, coda_error *error);

#endif
