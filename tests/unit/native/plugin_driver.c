/* Test driver of the whole plugin: random jobs with all possible strings take the place of slurmctld's. */
#include "job_facts.h"
#include "slurm_release.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define JOBS 500

extern int init(void);
extern FINI_TYPE fini(void);
extern void site_factor_p_set(job_record_t *job_ptr);
extern void site_factor_p_update(void);
extern void site_factor_p_reconfig(void);

slurm_conf_t slurm_conf;
#undef job_list
__typeof__(job_list) job_list;
static job_record_t *jobs[JOBS];
static unsigned complaints;

int slurm_list_count(__typeof__(job_list) list) { return list ? JOBS : 0; }

int slurm_list_for_each(__typeof__(job_list) list, ListForF function, void *arg) {
    (void)list;
    for (int i = 0; i < JOBS; i++)
        if (function(jobs[i], arg) < 0)
            return -1;
    return JOBS;
}

/* Associations and QOS, readable only while their locks are held. */
static struct guarded {
    slurmdb_assoc_rec_t assoc;
    slurmdb_assoc_usage_t usage;
    slurmdb_qos_rec_t qos;
} * guarded;
static unsigned locked;

static void guard(int protection) {
    if (mprotect(guarded, sizeof(*guarded), protection))
        abort();
}

static void make_guarded(void) {
    guarded = mmap(NULL, sizeof(*guarded), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (guarded == MAP_FAILED)
        abort();
    guarded->assoc.usage = &guarded->usage;
    guarded->usage.shares_norm = 0.25;
    guarded->qos.name = strdup("normal");
    guard(PROT_NONE);
}

/* The locks that set_priority_factors() of priority/multifactor takes at the same point. */
void assoc_mgr_lock(assoc_mgr_lock_t *locks) {
    const assoc_mgr_lock_t wanted = {.assoc = READ_LOCK, .qos = READ_LOCK};

    if (locked++ || memcmp(locks, &wanted, sizeof(wanted)))
        abort();
    guard(PROT_READ);
}

void assoc_mgr_unlock(assoc_mgr_lock_t *locks) {
    (void)locks;
    if (--locked)
        abort();
    guard(PROT_NONE);
}

int slurm_get_log_level(void) { return LOG_LEVEL_DEBUG; }

void slurm_log_var(const log_level_t level, const char *text, ...) {
    (void)level;
    (void)text;
    complaints++;
}

int slurm_error(const char *text, ...) {
    (void)text;
    complaints++;
    return 0;
}

/* A heap string of exactly its length, so that the sanitizer reports reads beyond it; sometimes NULL. */
static char *text(size_t most) {
    size_t length = (size_t)rand() % (rand() % 2 ? 40 : most);
    char *made = malloc(length + 1);
    int lowest = rand() % 4 ? ' ' : 1;

    if (rand() % 8 == 0) {
        free(made);
        return NULL;
    }
    for (size_t i = 0; i < length; i++)
        made[i] = (char)(lowest + rand() % (256 - lowest));
    made[length] = 0;
    return made;
}

static char *flag(void) {
    static const char *const starts[] = {"",       "ENERGY_", "SPANK_ENERGY_",
                                         "SPANK_", "ENERGY",  "SPANK_ENERGY_POLICY=edp"};
    char *end = text(rand() % 2 ? 520 : 900), *made = NULL;

    if (end && asprintf(&made, "%s%s", starts[rand() % 6], end) < 0)
        abort();
    free(end);
    return made;
}

/* Partitions whose jobs share nodes, take them whole, and share them with jobs of the same user. */
static part_record_t parts[] = {
    {.max_cpu_cnt = 64, .max_share = 1, .default_time = 60},
    {.max_cpu_cnt = 96, .max_share = 0, .default_time = 60},
    {.max_cpu_cnt = UINT32_MAX, .max_share = 1, .flags = PART_FLAG_EXCLUSIVE_USER, .default_time = 60},
};

/* The CPUs that a pending job would hold on whole nodes; 0: it shares nodes. */
static unsigned long long held_cpus(const job_record_t *job) {
    unsigned long long cpus = job->part_ptr ? job->part_ptr->max_cpu_cnt : 0;

    if (!job->details || !IS_JOB_PENDING(job) || (job->part_ptr == &parts[0] && !job->details->whole_node))
        return 0;
    return job->details->min_nodes * (cpus > 0xffffff ? 0xffffff : cpus);
}

static job_record_t *random_job(uint32_t id) {
    static job_array_struct_t array = {.task_cnt = 9}, last_task = {.task_cnt = 0};
    job_record_t *job = calloc(1, sizeof(*job));

    job->job_id = id;
    job->job_state =
        (uint32_t)(rand() % 3) | (rand() % 8 ? 0 : JOB_COMPLETING) | (rand() % 8 ? 0 : JOB_REVOKED);
    job->batch_flag = (uint16_t)(rand() % 3);
    job->priority = rand() % 3 ? (uint32_t)rand() : rand() % 2 ? 0 : NO_VAL;
    job->direct_set_prio = rand() % 4 == 0;
    job->site_factor = NICE_OFFSET;
    job->time_limit = rand() % 2 ? NO_VAL : 60;
    job->account = text(2000);
    job->partition = text(2000);
    job->part_ptr = rand() % 4 ? &parts[rand() % 3] : NULL;
    job->name = text(2000);
    job->tres_fmt_req_str = text(2000);
    job->tres_fmt_alloc_str = text(2000);
    job->tres_per_job = text(2000);
    job->tres_per_node = text(2000);
    job->tres_per_socket = text(2000);
    job->tres_per_task = text(2000);
    job->assoc_ptr = rand() % 2 ? &guarded->assoc : NULL;
    job->qos_ptr = rand() % 2 ? &guarded->qos : NULL;
    job->array_recs = rand() % 4 ? NULL : rand() % 2 ? &array : &last_task;
    job->spank_job_env_size = (uint32_t)(rand() % 30);
    job->spank_job_env = rand() % 8 ? calloc(job->spank_job_env_size + 1, sizeof(char *)) : NULL;
    for (uint32_t i = 0; job->spank_job_env && i < job->spank_job_env_size; i++)
        job->spank_job_env[i] = flag();
    if (rand() % 8) {
        job->details = calloc(1, sizeof(*job->details));
        job->details->dependency = text(2000);
        job->details->nice = NICE_OFFSET;
        job->details->requeue = (uint16_t)(rand() % 2);
        job->details->min_nodes = (uint32_t)(1 + rand() % 4);
        job->details->whole_node = rand() % 3 ? 0 : (uint8_t)(1 + rand() % 8);
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(24, 11, 0)
        job->details->qos_req = rand() % 2 ? strdup(rand() % 2 ? "normal,high" : "normal") : NULL;
#endif
    }
    return job;
}

/* The QOS with which a job may run: a list for some pending jobs. */
static const char *qos(const job_record_t *job) {
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(24, 11, 0)
    const char *requested = IS_JOB_PENDING(job) && job->details ? job->details->qos_req : NULL;

    if (requested && strcmp(requested, "normal"))
        return requested;
#endif
    return job->qos_ptr ? "normal" : "-";
}

/* A list that is longer than the part that the plugin writes. */
static char *long_list(const char *item) {
    char *made = calloc(1, 4096);

    for (int i = 0; i < 200; i++)
        sprintf(made + strlen(made), "%s%s%05d", i ? "," : "", item, 10000 + i);
    return made;
}

static int open_files(void) {
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;

    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

/*
 * Sets another path of the queue. Slurm holds no lock at reconfiguration and another thread may be writing,
 * so the change takes effect at the next call with the lock.
 */
static void reconfigure(char *parameters, const char *table, const char *queue) {
    int before = open_files();

    snprintf(parameters, 8192, "table=%s,queue=%s.moved", table, queue);
    site_factor_p_reconfig();
    if (open_files() != before)
        fprintf(stderr, "a file was closed or opened without the lock\n");
    site_factor_p_set(jobs[0]);
    site_factor_p_update();
}

/* The jobs that slurmctld creates for `salloc`, and for `sbatch --test-only`, which it deletes silently. */
static void ask(void) {
    job_record_t *allocation = random_job(JOBS + 1), *question = random_job(JOBS + 2);

    allocation->job_state = question->job_state = JOB_PENDING;
    allocation->batch_flag = question->batch_flag = 0;
    allocation->alloc_resp_port = 6000;
    site_factor_p_set(allocation);
    site_factor_p_set(question);
}

/*
 * Arguments: TABLE QUEUE SEED. Calls all functions of the plugin, then prints of each job in the queue: id,
 * whether it runs, site factor, whether that is fixed, whether it may be requeued, tasks, CPUs on whole
 * nodes, and QOS. Finally writes the queue to another path.
 */
int main(int argc, char **argv) {
    char parameters[8192];

    srand((unsigned)atoi(argc > 3 ? argv[3] : "1"));
    snprintf(parameters, sizeof(parameters), "other=1,table=%s,queue=%s", argv[1], argv[2]);
    slurm_conf.site_factor_params = parameters;
    make_guarded();
    init();
    site_factor_p_update(); /* a client: there is no list of jobs */
    for (uint32_t i = 0; i < JOBS; i++)
        jobs[i] = random_job(i + 1);
    jobs[0]->job_state = JOB_PENDING;
    jobs[0]->partition = long_list("p");
    jobs[0]->tres_fmt_req_str = long_list("gres/x=");
    jobs[0]->tres_per_node = long_list("gres:x:");
    job_list = (__typeof__(job_list))jobs;
    for (uint32_t i = 0; i < JOBS; i++)
        site_factor_p_set(jobs[i]);
    site_factor_p_update();
    for (uint32_t i = 0; i < JOBS; i += 7)
        site_factor_p_set(jobs[i]);
    for (uint32_t i = 0; i < JOBS; i++)
        if (job_is_listed(jobs[i]) && !(jobs[i]->job_state & JOB_REVOKED))
            printf("%u %d %lld %s %d %u %llu %s\n", jobs[i]->job_id, !IS_JOB_PENDING(jobs[i]),
                   (long long)jobs[i]->site_factor - NICE_OFFSET,
                   jobs[i]->direct_set_prio && jobs[i]->priority && jobs[i]->priority != NO_VAL ? "fixed"
                                                                                                : "free",
                   jobs[i]->details && jobs[i]->details->requeue && jobs[i]->batch_flag,
                   jobs[i]->array_recs && jobs[i]->array_recs->task_cnt ? 9 : 1, held_cpus(jobs[i]),
                   qos(jobs[i]));
    reconfigure(parameters, argv[1], argv[2]);
    ask();
    if (locked)
        abort();
    fprintf(stderr, "%u lines logged\n", complaints);
    fini();
    return 0;
}
