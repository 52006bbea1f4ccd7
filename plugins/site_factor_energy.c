/*
 * site_factor/energy: sets the site factors that senergyctld computed, and writes the queue for senergyctld.
 *
 * This file holds the functions that Slurm calls; priority_table.c and queue_writer.c handle the files.
 *
 * Slurm calls these functions with its job write lock held, except site_factor_p_reconfig. Therefore nothing
 * here allocates memory or waits for a file, and every loop is bounded. The only locks taken are the read
 * locks of associations and QOS. priority/multifactor takes the same two right after each of these calls, in
 * set_priority_factors(), so the lock order is Slurm's own and no wait is added where Slurm has none.
 * site_factor_p_set does not use the job list, because its caller may iterate over it and hold its lock.
 */
#include "job_facts.h"
#include "log_once.h"
#include "priority_table.h"
#include "queue_writer.h"
#include "slurm_release.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

FOR_SLURM const char plugin_name[] = "Order of the queue by slurm-energy for Slurm " SLURM_VERSION_STRING;
FOR_SLURM const char plugin_type[] = "site_factor/energy";
FOR_SLURM const uint32_t plugin_version = SLURM_VERSION_NUMBER;

#define TABLE_DEFAULT "/run/senergyctld/priority.table"
#define REASON_BYTES 64

static char table_path[PATH_MAX], queue_path[PATH_MAX];
static bool queue_enabled;
static bool reconfigure_pending; /* atomic; the job write lock protects all other variables */
static struct failure_log table_log = {.subject = table_path};
static struct failure_log queue_log = {.subject = queue_path};

/* Copies the value of `key=` in PrioritySiteFactorParameters; false: missing or too long. */
static bool parameter(const char *key, char *to) {
    const char *at = slurm_conf.site_factor_params;
    size_t key_length = strlen(key);

    while (at && *at) {
        size_t length = strcspn(at, ",");

        if (length > key_length && !strncmp(at, key, key_length) && length - key_length < PATH_MAX) {
            memcpy(to, at + key_length, length - key_length);
            to[length - key_length] = 0;
            return true;
        }
        at += length + (at[length] == ',');
    }
    return false;
}

static void configure(void) {
    char table[PATH_MAX] = TABLE_DEFAULT, queue[PATH_MAX] = "";

    (void)parameter("table=", table);
    (void)parameter("queue=", queue);
    if (strcmp(table, table_path)) {
        priority_table_reset();
        table_log.reported = 0;
        memcpy(table_path, table, sizeof(table_path));
    }
    if (strcmp(queue, queue_path)) {
        queue_log.reported = 0;
        memcpy(queue_path, queue, sizeof(queue_path));
        queue_enabled = queue[0] && queue_open(queue_path);
    }
}

/* Clients such as sshare also load this plugin: init logs nothing and opens no file. */
FOR_SLURM extern int init(void) {
    configure();
    return SLURM_SUCCESS;
}

FOR_SLURM extern FINI_TYPE fini(void) {
    queue_close();
    FINI_RETURN;
}

/*
 * Called up to 23.11; later releases start a new slurmctld, which calls init. Slurm holds no lock here and
 * another thread may be using the files, so the next call with the lock applies the new configuration.
 */
FOR_SLURM extern void site_factor_p_reconfig(void) {
    __atomic_store_n(&reconfigure_pending, true, __ATOMIC_RELEASE);
}

static void apply_reconfiguration(void) {
    if (__atomic_exchange_n(&reconfigure_pending, false, __ATOMIC_ACQUIRE))
        configure();
}

/* These locks protect the usage of associations and the names of QOS against changes and release. */
static assoc_mgr_lock_t association_locks = {.assoc = READ_LOCK, .qos = READ_LOCK};

static void refresh_table(bool always) {
    char reason[REASON_BYTES];
    enum priority_table_status status = priority_table_refresh(table_path, always, reason);

    if (status)
        log_failure_once(&table_log, status, "the order stays as it is", reason);
    else
        log_recovery_once(&table_log);
}

static void report_queue_result(int error_number) {
    if (error_number)
        log_failure_once(&queue_log, 0, "senergyctld does not see the queue", strerror(error_number));
    else
        log_recovery_once(&queue_log);
}

/* Whether an administrator set the priority of the job. The plugin does not change such a job. */
static bool is_fixed(const job_record_t *job) {
    return job->direct_set_prio && job->priority > 0 && job->priority != NO_VAL;
}

/* Sets the site factor in the table or, for a new job that is not in the table, the table's default. */
static void set_factor(job_record_t *job, bool may_be_new) {
    int32_t factor = priority_table_default_factor();

    if (!is_fixed(job) &&
        (priority_table_find(job->job_id, &factor) || (may_be_new && job->site_factor == NICE_OFFSET)))
        job->site_factor = (uint32_t)((int64_t)NICE_OFFSET + factor);
}

/* Slurm sets the priority of one job: at submission, release, requeue and update. */
FOR_SLURM extern void site_factor_p_set(job_record_t *job_ptr) {
    struct queue_job facts;
    int error_number;

    apply_reconfiguration();
    refresh_table(false);
    if (priority_table_is_usable())
        set_factor(job_ptr, true);
    if (queue_enabled && job_is_listed(job_ptr) && !job_may_be_test_only(job_ptr)) {
        assoc_mgr_lock(&association_locks);
        job_facts(job_ptr, true, &facts);
        error_number = queue_append_to_journal(&facts);
        assoc_mgr_unlock(&association_locks);
        report_queue_result(error_number);
    }
}

/*
 * A pass over all jobs. A long queue does not fit into the processor's caches, so the memory of each job is
 * prefetched a few jobs ahead. This halves the time for which slurmctld's locks are held.
 */
#define PREFETCH_DISTANCE 8

struct pass {
    bool factors;
    bool queue;
    job_record_t *coming[PREFETCH_DISTANCE];
    unsigned seen;
};

static void process_job(const struct pass *pass, job_record_t *job) {
    struct queue_job facts;

    if (pass->factors && IS_JOB_PENDING(job))
        set_factor(job, false);
    if (pass->queue && job_is_listed(job)) {
        job_facts(job, false, &facts);
        queue_add(&facts);
    }
}

static int each_job(void *item, void *arg) {
    struct pass *pass = arg;
    job_record_t **place = &pass->coming[pass->seen % PREFETCH_DISTANCE];

    if (pass->seen >= PREFETCH_DISTANCE)
        process_job(pass, *place);
    *place = item;
    job_fetch_record(item);
    if (pass->queue && pass->seen >= PREFETCH_DISTANCE / 2)
        job_fetch_facts(pass->coming[(pass->seen - PREFETCH_DISTANCE / 2) % PREFETCH_DISTANCE]);
    pass->seen++;
    return SLURM_SUCCESS;
}

static void process_all_jobs(struct pass *pass) {
    (void)list_for_each(job_list, each_job, pass);
    for (unsigned i = pass->seen > PREFETCH_DISTANCE ? pass->seen - PREFETCH_DISTANCE : 0; i < pass->seen;
         i++)
        process_job(pass, pass->coming[i % PREFETCH_DISTANCE]);
}

/* Called once per PriorityCalcPeriod, before priority/multifactor computes all priorities. */
FOR_SLURM extern void site_factor_p_update(void) {
    struct pass pass = {0};
    int error_number;

    if (!&job_list || !job_list)
        return;
    apply_reconfiguration();
    refresh_table(true);
    pass.factors = priority_table_is_usable();
    if (queue_enabled) {
        error_number = queue_begin((uint32_t)list_count(job_list));
        pass.queue = !error_number;
        if (error_number)
            report_queue_result(error_number);
    }
    if (pass.queue)
        assoc_mgr_lock(&association_locks);
    process_all_jobs(&pass);
    if (pass.queue) {
        assoc_mgr_unlock(&association_locks);
        report_queue_result(queue_end());
    }
}
