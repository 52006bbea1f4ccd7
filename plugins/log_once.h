/* Log each kind of failure once, and the recovery from all failures once. */
#ifndef SENERGY_LOG_ONCE_H
#define SENERGY_LOG_ONCE_H

#include <stdint.h>

struct failure_log {
    const char *subject;
    uint32_t reported;      /* one bit per kind of failure */
    int64_t last_failure_s; /* monotonic clock */
};

/* Logs a failure unless one of the same kind was logged since the last recovery. `kind` is below 32. */
void log_failure_once(struct failure_log *failures, unsigned kind, const char *what, const char *reason);

/* Logs the recovery after ten seconds without a failure, so that intermittent failures do not fill the log.
 */
void log_recovery_once(struct failure_log *failures);

#endif
