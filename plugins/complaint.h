/* Each kind of trouble is logged once, and once more when all is well again. */
#ifndef SENERGY_COMPLAINT_H
#define SENERGY_COMPLAINT_H

#include <stdint.h>

struct complaints {
    const char *subject;
    uint32_t told;      /* a bit per kind */
    int64_t last_bad_s; /* monotonic */
};

/* Says once what is wrong. `kind`: below 32. */
void complain(struct complaints *about, unsigned kind, const char *what, const char *why);

/* Says once that all is well, after ten quiet seconds, so that trouble that comes and goes fills no log. */
void settle(struct complaints *about);

#endif
