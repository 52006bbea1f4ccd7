/*
 * acct_gather_energy/senergy: reports the energy that senergyd measured to Slurm.
 *
 * Slurm loads this plugin into slurmd, slurmstepd and slurmctld. In slurmctld it does nothing. In slurmstepd
 * it reports the energy of the step, in slurmd that of the node. It is built from Slurm's public headers, so
 * the three arguments about acct_gather.conf are void pointers: the plugin has no options there.
 *
 * Slurm calls it under a mutex that also task launch, sstat and node registration need. Therefore each call
 * makes at most one request of bounded time, and after a request that timed out the next ones are left out
 * for a while. Without senergyd the last value stays. The node is never drained.
 *
 * All values come from this file's own state, never from the struct that Slurm passes: that struct belongs to
 * one task of the step, and Slurm continues with the zeroed struct of another one when that task ends.
 */
#include "agent_reading.h"
#include "energy_counter.h"
#include "exchange.h"

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <slurm/slurm_version.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Marks symbols that Slurm looks up. All others stay hidden, because the daemons export symbols of their own.
 */
#define FOR_SLURM __attribute__((visibility("default")))

/* fini() is a void function from 25.11 on. */
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 11, 0)
#define FINI_TYPE void
#define FINI_RETURN return
#else
#define FINI_TYPE int
#define FINI_RETURN return SLURM_SUCCESS
#endif

/* Slurm's log functions, as slurm/spank.h declares them. */
extern void slurm_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern void slurm_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern void slurm_info(const char *format, ...) __attribute__((format(printf, 1, 2)));

FOR_SLURM const char plugin_name[] = "Energy measured by slurm-energy";
FOR_SLURM const char plugin_type[] = "acct_gather_energy/senergy";
FOR_SLURM const uint32_t plugin_version = SLURM_VERSION_NUMBER;

#define SOCKET_VARIABLE "SENERGY_SOCKET"
#define SLOW_MS 10
#define MIN_PAUSE_MS 1000
#define MAX_PAUSE_MS 30000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects all variables below */
static struct energy_counter counter;
static uint32_t current_watts = NO_VAL;
static time_t last_poll;
static int64_t pause_until_ms;
static int64_t pause_ms;
static bool failure_logged;

static int64_t monotonic_ms(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* The environment of slurmd and slurmstepd is the administrator's. Jobs have one of their own. */
static const char *socket_path(void) {
    const char *path = getenv(SOCKET_VARIABLE);

    return path && *path ? path : EXCHANGE_SOCKET_DEFAULT;
}

/* In a step the mean power becomes TRESUsageOut, where NO_VAL would be shown as a number of watts. */
static bool is_step_process(void) {
    static int cached = -1;
    char path[256];
    ssize_t length;

    if (cached < 0) {
        length = readlink("/proc/self/exe", path, sizeof(path) - 1);
        path[length > 0 ? length : 0] = '\0';
        cached = strstr(path, "slurmstepd") != NULL;
    }
    return cached;
}

/* Whether nothing listens on the socket. Such a request has not waited, even if a busy node delayed it. */
static bool is_absent(const char *problem) {
    return strcmp(problem, strerror(ENOENT)) == 0 || strcmp(problem, strerror(ECONNREFUSED)) == 0;
}

/*
 * After a failure without waiting, for example because senergyd is not running, no pause is needed: the last
 * request of a step could fall into it, and the step would lack the energy since the last answer.
 */
static void handle_failure(const char *path, const char *problem, int64_t started_ms) {
    int64_t now_ms = monotonic_ms();

    if (now_ms - started_ms >= SLOW_MS && !is_absent(problem)) {
        pause_ms = pause_ms ? pause_ms * 2 : MIN_PAUSE_MS;
        if (pause_ms > MAX_PAUSE_MS)
            pause_ms = MAX_PAUSE_MS;
        pause_until_ms = now_ms + pause_ms;
    }
    /* slurmstepd lowers its rights for moments, in which only root's socket refuses it. */
    if (!failure_logged && geteuid() == 0) {
        failure_logged = true;
        if (is_step_process()) /* its errors appear in the output of the job */
            slurm_debug("acct_gather_energy/senergy: %s: %s: the last energy value stays", path, problem);
        else
            slurm_error("acct_gather_energy/senergy: %s: %s: the last energy value stays", path, problem);
    }
}

static void handle_answer(const char *path) {
    pause_ms = 0;
    if (failure_logged)
        slurm_info("acct_gather_energy/senergy: %s: answers again", path);
    failure_logged = false;
}

static void poll_agent(void) {
    const char *path = socket_path(), *problem = NULL;
    struct agent_reading reading = {0};
    int64_t started_ms = monotonic_ms();
    enum agent_status status;

    if (started_ms < pause_until_ms)
        return;
    status = agent_read(path, &reading, &problem);
    current_watts = NO_VAL;
    if (status == AGENT_FAILED) {
        handle_failure(path, problem, started_ms);
        return;
    }
    handle_answer(path);
    if (status == AGENT_KNOWS_NOTHING)
        return;
    energy_counter_add(&counter, reading.epoch, reading.joules, monotonic_ms());
    if (reading.watts_known)
        current_watts = reading.watts;
    last_poll = time(NULL);
}

static void fill(acct_gather_energy_t *energy) {
    memset(energy, 0, sizeof(*energy));
    energy->consumed_energy = counter.joules;
    energy->previous_consumed_energy = counter.joules;
    energy->current_watts = current_watts;
    energy->poll_time = last_poll;
    if (!energy_counter_mean_watts(&counter, monotonic_ms(), &energy->ave_watts))
        energy->ave_watts = is_step_process() ? 0 : NO_VAL;
}

/* Slurm loads the plugin into slurmctld, too, so init opens nothing, starts nothing and logs nothing. */
FOR_SLURM extern int init(void) { return SLURM_SUCCESS; }

FOR_SLURM extern FINI_TYPE fini(void) { FINI_RETURN; }

FOR_SLURM extern int acct_gather_energy_p_update_node_energy(void) {
    pthread_mutex_lock(&lock);
    poll_agent();
    pthread_mutex_unlock(&lock);
    return SLURM_SUCCESS;
}

FOR_SLURM extern int acct_gather_energy_p_get_data(enum acct_energy_type data_type, void *data) {
    int result = SLURM_SUCCESS;

    pthread_mutex_lock(&lock);
    switch (data_type) {
    case ENERGY_DATA_JOULES_TASK:
    case ENERGY_DATA_STRUCT:
    case ENERGY_DATA_NODE_ENERGY:
    case ENERGY_DATA_NODE_ENERGY_UP:
        poll_agent();
        fill(data);
        break;
    case ENERGY_DATA_LAST_POLL:
        *(time_t *)data = last_poll;
        break;
    case ENERGY_DATA_SENSOR_CNT:
        *(uint16_t *)data = 1;
        break;
    default:
        result = SLURM_ERROR;
        break;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

FOR_SLURM extern int acct_gather_energy_p_set_data(enum acct_energy_type data_type, void *data) {
    (void)data_type;
    (void)data;
    return SLURM_SUCCESS;
}

FOR_SLURM extern void acct_gather_energy_p_conf_options(void *options, int *count) {
    (void)options;
    (void)count;
}

FOR_SLURM extern void acct_gather_energy_p_conf_set(int context_id, void *table) {
    (void)context_id;
    (void)table;
}

FOR_SLURM extern void acct_gather_energy_p_conf_values(void *values) { (void)values; }
