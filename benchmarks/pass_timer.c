/*
 * Preloaded into slurmctld by benchmarks/priority.py: how long priority/multifactor's thread takes per pass.
 *
 * Appends a line per call to the file $PASS_TIMER_LOG: `site CPU_NS WALL_NS COUNT` for the site factor
 * plugin's update, `list CPU_NS WALL_NS COUNT` for a walk over a list of COUNT entries, both only in the
 * thread that calls itself "decay". That thread then waits PASS_S seconds instead of PriorityCalcPeriod's
 * minutes; nothing else changes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { PASS_S = 3 };

typedef int (*each_t)(void *, void *);

static int (*real_count)(void *);
static int (*real_each)(void *, each_t, void *);
static void (*real_update)(void);
static int (*real_wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);

__attribute__((constructor)) static void begin(void) {
    unsetenv("LD_PRELOAD");
    *(void **)&real_count = dlsym(RTLD_NEXT, "list_count");
    *(void **)&real_each = dlsym(RTLD_NEXT, "list_for_each");
    *(void **)&real_update = dlsym(RTLD_NEXT, "site_factor_g_update");
    *(void **)&real_wait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
}

static int in_decay_thread(void) {
    static __thread int known;
    char name[16] = "";

    if (!known) {
        prctl(PR_GET_NAME, name);
        known = strcmp(name, "decay") ? -1 : 1;
    }
    return known > 0;
}

static long long now_ns(clockid_t clock) {
    struct timespec t;

    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void tell(const char *what, long long cpu_ns, long long wall_ns, int count) {
    long long cpu_taken_ns = now_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_ns;
    long long wall_taken_ns = now_ns(CLOCK_MONOTONIC) - wall_ns;
    const char *path = getenv("PASS_TIMER_LOG");
    int log =
        path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1; /* slurmctld closes all */

    if (log < 0)
        return;
    dprintf(log, "%s %lld %lld %d\n", what, cpu_taken_ns, wall_taken_ns, count);
    close(log);
}

int list_for_each(void *list, each_t function, void *argument) {
    long long cpu_ns, wall_ns;
    int result;

    if (!in_decay_thread())
        return real_each(list, function, argument);
    cpu_ns = now_ns(CLOCK_THREAD_CPUTIME_ID);
    wall_ns = now_ns(CLOCK_MONOTONIC);
    result = real_each(list, function, argument);
    tell("list", cpu_ns, wall_ns, real_count(list));
    return result;
}

void site_factor_g_update(void) {
    long long cpu_ns = now_ns(CLOCK_THREAD_CPUTIME_ID), wall_ns = now_ns(CLOCK_MONOTONIC);

    real_update();
    tell("site", cpu_ns, wall_ns, 0);
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
    struct timespec soon;

    if (in_decay_thread()) {
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_sec += PASS_S;
        until = &soon;
    }
    return real_wait(condition, mutex, until);
}
