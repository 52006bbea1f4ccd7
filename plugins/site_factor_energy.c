/*
 * site_factor/energy: the order of slurmctld's queue as senergyctld computed it, and the queue written down
 * for senergyctld. Only what Slurm calls is here; the files are the matter of scores.c and queue_writer.c.
 *
 * Slurm calls these functions with its job write lock held, all but site_factor_p_reconfig, so nothing here
 * allocates or waits for a file, and every loop is bounded. The one lock is that of associations and QOS, for
 * reading: priority/multifactor takes the same two right after each of these calls, in
 * set_priority_factors(), so that the order of locks is Slurm's own and no wait is added where Slurm has
 * none. site_factor_p_set never touches the job list: its caller may be walking through it with the list's
 * own lock held.
 */
#include "complaint.h"
#include "job_facts.h"
#include "queue_writer.h"
#include "scores.h"
#include "slurm_release.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

FOR_SLURM const char plugin_name[] = "Order of the queue by slurm-energy for Slurm " SLURM_VERSION_STRING;
FOR_SLURM const char plugin_type[] = "site_factor/energy";
FOR_SLURM const uint32_t plugin_version = SLURM_VERSION_NUMBER;

#define TABLE_DEFAULT "/run/senergyctld/priority.table"
#define WHY_BYTES 64

static char table_path[PATH_MAX], queue_path[PATH_MAX];
static bool queue_wanted;
static bool configuration_is_old; /* atomic: all else belongs to who holds the job write lock */
static struct complaints about_table = {.subject = table_path};
static struct complaints about_queue = {.subject = queue_path};

/* Copies the value of `key=` out of PrioritySiteFactorParameters; false: not given or too long. */
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
        scores_forget();
        about_table.told = 0;
        memcpy(table_path, table, sizeof(table_path));
    }
    if (strcmp(queue, queue_path)) {
        about_queue.told = 0;
        memcpy(queue_path, queue, sizeof(queue_path));
        queue_wanted = queue[0] && queue_open(queue_path);
    }
}

/* Clients such as sshare load this too: no word, no file. */
FOR_SLURM extern int init(void) {
    configure();
    return SLURM_SUCCESS;
}

FOR_SLURM extern FINI_TYPE fini(void) {
    queue_close();
    FINI_RETURN;
}

/*
 * Up to 23.11; later releases start a new slurmctld, which calls init. Slurm holds no lock here, so that
 * another thread may be using the files: the next one that holds it changes over.
 */
FOR_SLURM extern void site_factor_p_reconfig(void) {
    __atomic_store_n(&configuration_is_old, true, __ATOMIC_RELEASE);
}

static void reconfigure_if_old(void) {
    if (__atomic_exchange_n(&configuration_is_old, false, __ATOMIC_ACQUIRE))
        configure();
}

/* Usage of associations and names of QOS change, and are freed, under these locks alone. */
static assoc_mgr_lock_t association_locks = {.assoc = READ_LOCK, .qos = READ_LOCK};

static void refresh_table(bool always) {
    char why[WHY_BYTES];
    enum scores_trouble trouble = scores_refresh(table_path, always, why);

    if (trouble)
        complain(&about_table, trouble, "the order stays as it is", why);
    else
        settle(&about_table);
}

static void tell_queue(int error_number) {
    if (error_number)
        complain(&about_queue, 0, "senergyctld does not see the queue", strerror(error_number));
    else
        settle(&about_queue);
}

/* Whether an administrator gave the job a priority: it is left alone. */
static bool is_fixed(const job_record_t *job) {
    return job->direct_set_prio && job->priority > 0 && job->priority != NO_VAL;
}

/* Sets what the table says of a job, or else for a new one the table's default. */
static void set_factor(job_record_t *job, bool may_be_new) {
    int32_t factor = scores_default();

    if (!is_fixed(job) &&
        (scores_find(job->job_id, &factor) || (may_be_new && job->site_factor == NICE_OFFSET)))
        job->site_factor = (uint32_t)((int64_t)NICE_OFFSET + factor);
}

/* A job gets a priority: at submission, release, requeue, and when it is updated. */
FOR_SLURM extern void site_factor_p_set(job_record_t *job_ptr) {
    struct queue_job facts;
    int error_number;

    reconfigure_if_old();
    refresh_table(false);
    if (scores_usable())
        set_factor(job_ptr, true);
    if (queue_wanted && job_is_listed(job_ptr) && !job_may_be_a_question(job_ptr)) {
        assoc_mgr_lock(&association_locks);
        job_facts(job_ptr, true, &facts);
        error_number = queue_note(&facts);
        assoc_mgr_unlock(&association_locks);
        tell_queue(error_number);
    }
}

/*
 * A pass over all jobs. A long queue is not in the processor's caches, so each job's memory is asked for
 * some jobs before its turn; that halves the time for which slurmctld's locks are held.
 */
#define AHEAD 8

struct pass {
    bool factors;
    bool queue;
    job_record_t *coming[AHEAD];
    unsigned seen;
};

static void take(const struct pass *pass, job_record_t *job) {
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
    job_record_t **place = &pass->coming[pass->seen % AHEAD];

    if (pass->seen >= AHEAD)
        take(pass, *place);
    *place = item;
    job_fetch_record(item);
    if (pass->queue && pass->seen >= AHEAD / 2)
        job_fetch_facts(pass->coming[(pass->seen - AHEAD / 2) % AHEAD]);
    pass->seen++;
    return SLURM_SUCCESS;
}

static void take_all(struct pass *pass) {
    (void)list_for_each(job_list, each_job, pass);
    for (unsigned i = pass->seen > AHEAD ? pass->seen - AHEAD : 0; i < pass->seen; i++)
        take(pass, pass->coming[i % AHEAD]);
}

/* Once per PriorityCalcPeriod, before priority/multifactor computes all priorities. */
FOR_SLURM extern void site_factor_p_update(void) {
    struct pass pass = {0};
    int error_number;

    if (!&job_list || !job_list)
        return;
    reconfigure_if_old();
    refresh_table(true);
    pass.factors = scores_usable();
    if (queue_wanted) {
        error_number = queue_begin((uint32_t)list_count(job_list));
        pass.queue = !error_number;
        if (error_number)
            tell_queue(error_number);
    }
    if (pass.queue)
        assoc_mgr_lock(&association_locks);
    take_all(&pass);
    if (pass.queue) {
        assoc_mgr_unlock(&association_locks);
        tell_queue(queue_end());
    }
}
