#include "complaint.h"

#include "slurm_release.h"

#include <time.h>

#define QUIET_S 10

static int64_t monotonic_s(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

void complain(struct complaints *about, unsigned kind, const char *what, const char *why) {
    about->last_bad_s = monotonic_s();
    if (about->told & (1u << kind))
        return;
    about->told |= 1u << kind;
    error("site_factor/energy: %s: %s: %s", about->subject, why, what);
}

void settle(struct complaints *about) {
    if (!about->told || monotonic_s() < about->last_bad_s + QUIET_S)
        return;
    about->told = 0;
    info("site_factor/energy: %s: in use again", about->subject);
}
