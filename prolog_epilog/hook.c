/*
 * senergy-hook: announces the begin and end of a job to senergyd; run by slurmd as prolog and epilog.
 *
 * Under a name that contains prolog or epilog it needs no arguments and reads its options from DEFAULTS_FILE.
 */
#include "exchange.h"
#include "job_hook.h"

#include <string.h>

/* Returns the operation that the program's name selects, begin or end, or NULL. */
static const char *operation_by_name(const char *program) {
    const char *slash = strrchr(program, '/');
    const char *base = slash ? slash + 1 : program;
    return strstr(base, "prolog") ? "begin" : strstr(base, "epilog") ? "end" : NULL;
}

int main(int count, char *words[]) {
    const char *program = words[0] ? words[0] : "";
    const char *operation = operation_by_name(program);
    return operation ? job_hook_run(program, operation, EXCHANGE_SOCKET_DEFAULT)
                     : job_hook_command(count, words);
}
