#include "log_once.h"

#include "slurm_release.h"

#include <time.h>

#define QUIET_S 10

static int64_t monotonic_s(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

void log_failure_once(struct failure_log *failures, unsigned kind, const char *what, const char *reason) {
    failures->last_failure_s = monotonic_s();
    if (failures->reported & (1u << kind))
        return;
    failures->reported |= 1u << kind;
    error("site_factor/energy: %s: %s: %s", failures->subject, reason, what);
}

void log_recovery_once(struct failure_log *failures) {
    if (!failures->reported || monotonic_s() < failures->last_failure_s + QUIET_S)
        return;
    failures->reported = 0;
    info("site_factor/energy: %s: in use again", failures->subject);
}
