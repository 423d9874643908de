/* The compiler's passes as the public API gives them. */
#include "rewrite/rewrite.h"
#include "runtime/device.h"
#include "runtime/module.h"

coda_status coda_differentiate(const coda_program *program, const char *wrt, const char *save, coda_module **module,
                               coda_error *error)
{
    struct unit unit = {0};
    coda_status status = differentiate(program->graph, wrt, save, &unit, error);
    return status == CODA_OK ? module_from_unit(&unit, module, error) : status;
}

coda_status coda_rewrite(const coda_program *block, const coda_rewrite_options *options, coda_module **module,
                         char **report, coda_error *error)
{
    struct unit unit = {0};
    coda_status status = rewrite_with_gains(block->graph, options, &unit, report, error);
    return status == CODA_OK ? module_from_unit(&unit, module, error) : status;
}

coda_status coda_unfuse(const coda_program *program, coda_module **module, coda_error *error)
{
    struct unit unit = {0};
    coda_status status = unfuse(program->graph, &unit, error);
    return status == CODA_OK ? module_from_unit(&unit, module, error) : status;
}
