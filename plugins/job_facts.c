#include "job_facts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define NAME_BYTES 256
#define LIST_BYTES 512
#define FLAG_BYTES 512
#define FLAGS_BYTES 2048
#define MAX_FLAGS 16
#define MAX_VARIABLES 1024
#define FINGERPRINT "ENERGY_FINGERPRINT="
#define FINGERPRINT_DIGITS 16

/* prolog_epilog/senergy_submit.lua writes the energy flags into AdminComment after this prefix. */
#define COMMENT_PREFIX "energy-flags:"

static const struct {
    uint32_t code;
    const char *word;
} REASONS[] = {
    {WAIT_PRIORITY, "Priority"},
    {WAIT_DEPENDENCY, "Dependency"},
    {WAIT_RESOURCES, "Resources"},
    {WAIT_PART_NODE_LIMIT, "PartitionNodeLimit"},
    {WAIT_PART_TIME_LIMIT, "PartitionTimeLimit"},
    {WAIT_PART_DOWN, "PartitionDown"},
    {WAIT_PART_INACTIVE, "PartitionInactive"},
    {WAIT_HELD, "JobHeldAdmin"},
    {WAIT_HELD_USER, "JobHeldUser"},
    {WAIT_TIME, "BeginTime"},
    {WAIT_LICENSES, "Licenses"},
    {WAIT_RESERVATION, "Reservation"},
    {WAIT_NODE_NOT_AVAIL, "ReqNodeNotAvail"},
    {WAIT_ASSOC_JOB_LIMIT, "AssociationJobLimit"},
    {WAIT_ASSOC_RESOURCE_LIMIT, "AssociationResourceLimit"},
    {WAIT_ASSOC_TIME_LIMIT, "AssociationTimeLimit"},
    {WAIT_QOS_JOB_LIMIT, "QOSJobLimit"},
    {WAIT_QOS_RESOURCE_LIMIT, "QOSResourceLimit"},
    {WAIT_QOS_TIME_LIMIT, "QOSTimeLimit"},
    {WAIT_CLEANING, "Cleaning"},
    {WAIT_DEP_INVALID, "DependencyNeverSatisfied"},
    {WAIT_ARRAY_TASK_LIMIT, "JobArrayTaskLimit"},
    {FAIL_BAD_CONSTRAINTS, "BadConstraints"},
    {WAIT_ASSOC_GRP_GRES, "AssocGrpGRES"},
    {WAIT_ASSOC_GRP_GRES_MIN, "AssocGrpGRESMinutes"},
    {WAIT_ASSOC_GRP_GRES_RUN_MIN, "AssocGrpGRESRunMinutes"},
    {WAIT_ASSOC_MAX_GRES_PER_JOB, "AssocMaxGRESPerJob"},
    {WAIT_ASSOC_MAX_GRES_PER_NODE, "AssocMaxGRESPerNode"},
    {WAIT_ASSOC_MAX_GRES_MINS_PER_JOB, "AssocMaxGRESMinutesPerJob"},
    {WAIT_QOS_GRP_GRES, "QOSGrpGRES"},
    {WAIT_QOS_GRP_GRES_MIN, "QOSGrpGRESMinutes"},
    {WAIT_QOS_GRP_GRES_RUN_MIN, "QOSGrpGRESRunMinutes"},
    {WAIT_QOS_MAX_GRES_PER_JOB, "QOSMaxGRESPerJob"},
    {WAIT_QOS_MAX_GRES_PER_NODE, "QOSMaxGRESPerNode"},
    {WAIT_QOS_MAX_GRES_PER_USER, "QOSMaxGRESPerUser"},
    {WAIT_QOS_MAX_GRES_PER_ACCT, "MaxGRESPerAccount"},
    {WAIT_QOS_MAX_GRES_MINS_PER_JOB, "QOSMaxGRESMinutesPerJob"},
    {WAIT_QOS_MIN_GRES, "QOSMinGRES"},
};

/* Reasons without a name of their own are "Other": senergyctld only needs to know that no free node helps. */
static const char *reason_word(uint32_t code) {
    for (size_t i = 0; i < sizeof(REASONS) / sizeof(REASONS[0]); i++)
        if (REASONS[i].code == code)
            return REASONS[i].word;
    return code == WAIT_NO_REASON ? "" : "Other";
}

bool job_is_listed(const job_record_t *job) {
    /* Revoked: a job of a federation that runs, or may run only, in another cluster. */
    if (job->job_state & (JOB_COMPLETING | JOB_CONFIGURING | JOB_REVOKED))
        return false;
    return IS_JOB_PENDING(job) || IS_JOB_RUNNING(job);
}

bool job_may_be_test_only(const job_record_t *job) {
    return IS_JOB_PENDING(job) && !job->batch_flag && !job->alloc_resp_port;
}

static void set_text(struct queue_job *facts, int which, const char *text, size_t most) {
    facts->texts[which] = text ? text : "";
    facts->entry.lengths[which] = (uint16_t)strnlen(facts->texts[which], most);
}

/* Length of a comma-separated list, truncated to whole items: a truncated item would be another name or
 * number. */
static size_t list_length(const char *text, size_t most) {
    size_t length = strnlen(text, most + 1);

    if (length <= most)
        return length;
    for (length = most; length > 0 && text[length] != ','; length--)
        ;
    return length;
}

static void set_list(struct queue_job *facts, int which, const char *text) {
    facts->texts[which] = text ? text : "";
    facts->entry.lengths[which] = (uint16_t)list_length(facts->texts[which], LIST_BYTES);
}

/* Finds the digest of the batch script in AdminComment, where job_submit wrote it and users cannot write. */
static const char *comment_fingerprint(const job_record_t *job) {
    const char *found = NULL;

    for (const char *at = job->admin_comment; at && (at = strstr(at, COMMENT_PREFIX));
         at += strlen(COMMENT_PREFIX))
        found = at;
    found = found ? strstr(found, FINGERPRINT) : NULL;
    if (!found || strspn(found + strlen(FINGERPRINT), "0123456789abcdef") != FINGERPRINT_DIGITS)
        return NULL;
    return found;
}

/* Copies the energy flags in the job's environment, one per line; names may have the prefix SPANK_. */
static size_t copy_flags(const job_record_t *job, char *to) {
    uint32_t count = job->spank_job_env_size < MAX_VARIABLES ? job->spank_job_env_size : MAX_VARIABLES;
    size_t used = 0;
    int found = 0;

    for (uint32_t i = 0; job->spank_job_env && i < count && found < MAX_FLAGS; i++) {
        const char *text = job->spank_job_env[i];
        size_t length;

        if (!text)
            continue;
        if (!strncmp(text, "SPANK_", 6))
            text += 6;
        if (strncmp(text, "ENERGY_", 7) || !strncmp(text, FINGERPRINT, strlen(FINGERPRINT)))
            continue;
        length = strnlen(text, FLAG_BYTES);
        if (length == FLAG_BYTES || memchr(text, '\n', length) || used + length + 1 > FLAGS_BYTES)
            continue;
        memcpy(to + used, text, length);
        used += length;
        to[used++] = '\n';
        found++;
    }
    const char *digest = comment_fingerprint(job);
    size_t length = strlen(FINGERPRINT) + FINGERPRINT_DIGITS;
    if (digest && used + length + 1 <= FLAGS_BYTES) {
        memcpy(to + used, digest, length);
        used += length;
        to[used++] = '\n';
    }
    return used;
}

/*
 * Sets the QOS of a job. A pending job may have a list of QOS (24.11 and later). Slurm tries them in turn;
 * `qos_ptr` is the one that it tried last.
 */
static void set_qos(const job_record_t *job, struct queue_job *facts) {
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(24, 11, 0)
    const char *requested = IS_JOB_PENDING(job) && job->details ? job->details->qos_req : NULL;

    if (requested && strchr(requested, ',')) {
        set_list(facts, QUEUE_QOS, requested);
        return;
    }
#endif
    set_text(facts, QUEUE_QOS, job->qos_ptr ? job->qos_ptr->name : NULL, NAME_BYTES);
}

static void set_texts(const job_record_t *job, struct queue_job *facts) {
    static char gres[4 * LIST_BYTES + 64], flags[FLAGS_BYTES];
    const char *counted = IS_JOB_RUNNING(job) ? job->tres_fmt_alloc_str : job->tres_fmt_req_str;
    const struct {
        const char *what, *text;
    } asked[] = {
        {"job", job->tres_per_job},
        {"node", job->tres_per_node},
        {"socket", job->tres_per_socket},
        {"task", job->tres_per_task},
    };
    size_t used = 0;

    for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++)
        if (asked[i].text && asked[i].text[0])
            used += (size_t)snprintf(gres + used, sizeof(gres) - used, "%s=%.*s;", asked[i].what,
                                     (int)list_length(asked[i].text, LIST_BYTES), asked[i].text);
    gres[used] = 0;
    set_text(facts, QUEUE_ACCOUNT, job->account, NAME_BYTES);
    set_list(facts, QUEUE_PARTITION, job->partition);
    set_qos(job, facts);
    set_text(facts, QUEUE_NAME, job->name, NAME_BYTES);
    set_text(facts, QUEUE_REASON, IS_JOB_PENDING(job) ? reason_word(job->state_reason) : "", NAME_BYTES);
    set_list(facts, QUEUE_TRES, counted);
    set_text(facts, QUEUE_GRES, gres, sizeof(gres));
    facts->texts[QUEUE_FLAGS] = flags;
    facts->entry.lengths[QUEUE_FLAGS] = (uint16_t)copy_flags(job, flags);
}

static uint32_t time_limit(const job_record_t *job) {
    if (job->time_limit != NO_VAL || !job->part_ptr)
        return job->time_limit;
    return job->part_ptr->default_time != NO_VAL ? job->part_ptr->default_time : job->part_ptr->max_time;
}

/* Whether no other user's job may run on the job's nodes. The values of `whole_node` differ between releases.
 */
static bool takes_whole_nodes(const job_record_t *job) {
    if (job->details->whole_node)
        return true;
    return job->part_ptr &&
           (job->part_ptr->max_share == 0 || (job->part_ptr->flags & PART_FLAG_EXCLUSIVE_USER));
}

/* Returns the CPUs of a node that a pending job takes whole, shifted to their position in the bits. */
static uint32_t whole_node_cpus(const job_record_t *job) {
    uint32_t cpus;

    if (!job->part_ptr || !IS_JOB_PENDING(job) || !takes_whole_nodes(job))
        return 0;
    cpus = job->part_ptr->max_cpu_cnt;
    return (cpus < QUEUE_NODE_CPUS_MOST ? cpus : QUEUE_NODE_CPUS_MOST) << QUEUE_NODE_CPUS_SHIFT;
}

/* Sets the requested resources, and the values that only pending jobs have. */
static void set_request(const job_record_t *job, struct queue_entry *entry) {
    const __typeof__(*job->details) *details = job->details; /* its tag differs between releases */

    if (!details)
        return;
    entry->nodes = details->min_nodes;
    entry->cpus = details->min_cpus;
    entry->processes = details->num_tasks;
    entry->submit = details->submit_time;
    entry->eligible = details->begin_time;
    entry->nice = details->nice;
    entry->bits |= whole_node_cpus(job);
    /* Slurm requeues batch jobs only, whatever the field of other jobs holds. */
    if (details->requeue && job->batch_flag)
        entry->bits |= QUEUE_REQUEUE;
    if (IS_JOB_PENDING(job) &&
        ((details->dependency && details->dependency[0]) || details->begin_time > time(NULL)))
        entry->bits |= QUEUE_DEPENDENT;
}

static void set_running(const job_record_t *job, struct queue_entry *entry) {
    entry->state = QUEUE_RUNNING;
    entry->start = job->start_time;
    entry->end = job->end_time;
    entry->nodes = job->node_cnt;
    entry->cpus = job->total_cpus;
}

void job_facts(const job_record_t *job, bool released, struct queue_job *facts) {
    struct queue_entry *entry = &facts->entry;

    memset(facts, 0, sizeof(*facts));
    entry->job_id = job->job_id;
    entry->array_job_id = job->array_job_id;
    entry->array_task_id = job->array_task_id;
    /* The last task of an array uses the array's own record, whose count of remaining tasks is 0. */
    entry->tasks = job->array_recs && job->array_recs->task_cnt ? job->array_recs->task_cnt : 1;
    entry->het_job_id = job->het_job_id;
    entry->uid = job->user_id;
    entry->deadline = job->deadline;
    entry->time_limit_min = time_limit(job);
    entry->priority = job->priority == NO_VAL ? 0 : job->priority;
    entry->site_factor = job->site_factor;
    entry->nice = NICE_OFFSET;
    entry->restart_count = job->restart_cnt;
    entry->shares_norm =
        job->assoc_ptr && job->assoc_ptr->usage ? job->assoc_ptr->usage->shares_norm : (double)NAN;
    if (!released && IS_JOB_PENDING(job) && job->priority == 0)
        entry->bits |= QUEUE_HELD;
    if (job->direct_set_prio && job->priority != 0 && job->priority != NO_VAL)
        entry->bits |= QUEUE_FIXED;
    set_request(job, entry);
    if (IS_JOB_RUNNING(job))
        set_running(job, entry);
    set_texts(job, facts);
}

#define LINE_BYTES 64

static void fetch(const void *from, size_t bytes) {
    for (size_t at = 0; at < bytes; at += LINE_BYTES)
        __builtin_prefetch((const char *)from + at);
}

void job_fetch_record(const job_record_t *job) { fetch(job, sizeof(*job)); }

void job_fetch_facts(const job_record_t *job) {
    const char *const texts[] = {job->account,          job->partition,    job->name,
                                 job->tres_fmt_req_str, job->tres_per_job, job->tres_per_node,
                                 job->tres_per_socket,  job->tres_per_task};

    fetch(job->details, sizeof(*job->details));
    fetch(job->spank_job_env, 1);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        fetch(texts[i], 1);
}
