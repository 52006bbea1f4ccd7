/*
 * energy.so: the SPANK plugin of slurm-energy.
 *
 * In sbatch, salloc and srun it reads the --energy-* flags, rejects invalid values before the job is queued
 * and passes valid values in the job-control environment, where hooks see them as SPANK_ENERGY_*. In
 * slurmstepd it notifies senergyd of the start and end of each step. Each notification delays a step by at
 * most NOTIFY_TIMEOUT_MS and never fails it. The plugin needs only Slurm's public header; flags.c holds the
 * rules of values.
 *
 * plugstack.conf: optional /usr/lib/slurm-energy/energy.so [policy_file=PATH] [socket=PATH]
 */

/* Only symbols that Slurm looks up are visible, because slurmstepd has symbols of its own. */
#pragma GCC visibility push(default)
#include <slurm/spank.h>
SPANK_PLUGIN(senergy, 1)
#pragma GCC visibility pop

#include "exchange.h"
#include "fingerprint.h"
#include "flags.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NOTIFY_TIMEOUT_MS 50
#define CPUS_MAX 4096 /* characters of a list of cores; a longer list is not sent */
#define REPLY_MAX 512 /* bytes of a response; agent/jobs/output_line.py keeps its line shorter */

/* Slurm's numbers of the steps that have names (slurm.h; unchanged since 22.05). */
#define STEP_BATCH 0xfffffffbu
#define STEP_EXTERN 0xfffffffcu
#define STEP_INTERACTIVE 0xfffffffau

/* The file of senergyctld on this host. Other hosts have the copy beside the socket, see copy_path. */
static const char *policy_file_path = "/run/senergyctld/policies";
static const char *socket_path = EXCHANGE_SOCKET_DEFAULT;
static struct policy_file policy_file;
static bool policy_file_read;
static struct {
    bool in_component; /* already read for this component of a heterogeneous job */
    bool given;
    bool inherited; /* from the job in which this one is submitted, not from this command line */
    char value[FLAG_VALUE_MAX + 1];
} flags[FLAG_COUNT];

/*
 * Ends the command with a one-line error. If the option's callback returned an error instead, Slurm would add
 * a line with the raw value, which may be 10 kB of control characters. sbatch, salloc and srun would only
 * exit at this point as well. Other programs that read options continue and report the error in their own way
 * (scrontab lets its user edit again).
 */
static int refuse(const char *message) {
    static const char *const commands[] = {"sbatch", "salloc", "srun"};
    slurm_error("%s", message);
    for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++)
        if (strcmp(program_invocation_short_name, commands[i]) == 0) {
            const char *wanted = getenv("SLURM_EXIT_ERROR");
            int code = wanted ? atoi(wanted) : 0;
            exit(code > 0 && code < 256 ? code : 1);
        }
    return -1;
}

/* Whether this is srun starting a step of a running job, not a new job. */
static bool is_step(void) { return spank_context() == S_CTX_LOCAL && getenv("SLURM_JOB_ID"); }

/* Whether Slurm repeats a flag of the surrounding job, for a step of it or for a new job. */
static bool is_inherited(enum flag flag, const char *value) {
    char name[128] = "SLURM_SPANK__SLURM_SPANK_OPTION_senergy_";
    size_t length = strlen(name);
    for (const char *at = flag_names[flag].option; *at; at++)
        name[length++] = *at == '-' ? '_' : *at;
    const char *inherited = getenv(name);
    return inherited && strcmp(inherited, value) == 0;
}

/* The environment variable of a job's own flag. It is missing if the job dropped a flag that Slurm repeats.
 */
static const char *variable_in_job(enum flag flag) {
    static char name[64];
    snprintf(name, sizeof(name), "SLURM_SPANK_%s", flag_names[flag].variable);
    return name;
}

/* The copy that senergyd or `senergy policies fetch` keeps in the directory of the socket. */
static const char *copy_path(void) {
    static char path[PATH_MAX];
    const char *slash = strrchr(socket_path, '/');
    snprintf(path, sizeof(path), "%.*s/policies", slash ? (int)(slash - socket_path) : 0, socket_path);
    return path;
}

/* Returns the first policy file that can be used; absent if there is none. */
static const struct policy_file *policies(void) {
    const char *paths[] = {policy_file_path, copy_path()};
    for (size_t i = 0; i < sizeof(paths) / sizeof(*paths) && !policy_file_read; i++) {
        const char *problem = policies_load(&policy_file, paths[i]);
        if (problem)
            slurm_verbose("senergy: policy file %s is not used: %s", paths[i], problem);
        policy_file_read = policy_file.present;
    }
    if (!policy_file_read)
        slurm_verbose("senergy: no policy file: only the form of values is checked");
    policy_file_read = true;
    return &policy_file;
}

/* Slurm's option callback. It is also called in slurmstepd, where it does nothing. */
static int read_option(int value, const char *argument, int remote) {
    char message[FLAG_MESSAGE_MAX + 1];
    enum flag flag = (enum flag)value;
    if (remote)
        return 0;
    bool repeated = is_inherited(flag, argument);
    if (repeated && is_step()) /* already checked when the job was submitted */
        return 0;
    bool inherited = repeated && !flags[flag].in_component; /* Slurm passes inherited flags first */
    flags[flag].in_component = true;
    if (inherited && !getenv(variable_in_job(flag)))
        return 0;
    uid_t uid = geteuid(); /* root may submit for other users; only the controller knows for which */
    const struct passwd *account = uid == 0 ? NULL : getpwuid(uid);
    const char *user = uid == 0 ? NULL : account ? account->pw_name : "";
    if (!flag_check(flag, argument, policies(), user, flags[flag].value, message))
        return refuse(message);
    if (is_step())
        slurm_info("--%s: settings belong to the job: this step keeps those of the job",
                   flag_names[flag].option);
    else if (flag == FLAG_SLACK && !duration_has_effect(flag, policies()))
        slurm_info("--energy-slack: this site does not defer jobs: the job starts as without the flag");
    else if (flag == FLAG_CHECKPOINTABLE && !duration_has_effect(flag, policies()))
        slurm_info("--energy-checkpointable: this site does not suspend jobs: the flag has no effect");
    flags[flag].given = true;
    flags[flag].inherited = inherited;
    return 0;
}

static bool flags_are_consistent(char message[FLAG_MESSAGE_MAX + 1]) {
    const char *normal[FLAG_COUNT];
    for (int i = 0; i < FLAG_COUNT; i++)
        normal[i] = flags[i].given ? flags[i].value : NULL;
    return flags_check_combination(normal, policies(), message);
}

static void drop_inherited_flag(spank_t spank, enum flag flag) {
    if (!flags[flag].given || !flags[flag].inherited)
        return;
    flags[flag].given = false;
    spank_job_control_unsetenv(spank, flag_names[flag].variable);
    unsetenv(variable_in_job(flag)); /* sbatch and salloc pass their environment to the job */
    slurm_info("--%s: that of the surrounding job is left out: it conflicts with the flags of this job",
               flag_names[flag].option);
}

static bool is_written(int flag) { return flags[flag].given && !flags[flag].inherited; }

/* Whether a flag can contradict the policy. */
static bool depends_on_policy(int flag) {
    return flag_names[flag].limits || flag == FLAG_SLOWDOWN || flag == FLAG_TUNING;
}

/* Drops inherited flags that contradict given flags. The user has no other way to remove them. */
static void drop_conflicting_flags(spank_t spank) {
    bool written = false;
    for (int i = 0; i < FLAG_COUNT; i++)
        written = written || (depends_on_policy(i) && is_written(i));
    if (written && !is_written(FLAG_POLICY)) {
        drop_inherited_flag(spank, FLAG_POLICY);
        return;
    }
    for (int i = 0; i < FLAG_COUNT; i++)
        if (depends_on_policy(i))
            drop_inherited_flag(spank, (enum flag)i);
}

/* Checks the combination of all flags after all are read. Flags of a step have no effect and need no check.
 */
static int check_combination(spank_t spank) {
    char message[FLAG_MESSAGE_MAX + 1];
    if (is_step() || !flags[FLAG_POLICY].given || flags_are_consistent(message))
        return 0;
    drop_conflicting_flags(spank);
    return flags_are_consistent(message) ? 0 : refuse(message);
}

static void read_arguments(int count, char *arguments[]) {
    for (int i = 0; i < count; i++) {
        if (strncmp(arguments[i], "policy_file=", 12) == 0)
            policy_file_path = arguments[i] + 12;
        else if (strncmp(arguments[i], "socket=", 7) == 0)
            socket_path = arguments[i] + 7;
        else if (spank_context() == S_CTX_SLURMD)
            slurm_error("senergy: plugstack.conf: unknown argument '%s': known: policy_file=, socket=",
                        arguments[i]);
    }
}

/* Writes Slurm's list of cores of the job or step as a JSON string; null if there is none. */
static void print_cpus(spank_t spank, spank_item_t item, char text[CPUS_MAX + 3]) {
    char *cores = NULL;
    strcpy(text, "null");
    if (spank_get_item(spank, item, &cores) != ESPANK_SUCCESS || !cores || !*cores)
        return;
    size_t length = strlen(cores);
    if (length <= CPUS_MAX && strspn(cores, "0123456789,-") == length)
        snprintf(text, CPUS_MAX + 3, "\"%s\"", cores);
}

static void print_step(uint32_t step, char text[16]) {
    if (step == STEP_BATCH)
        strcpy(text, "batch");
    else if (step == STEP_EXTERN)
        strcpy(text, "extern");
    else if (step == STEP_INTERACTIVE)
        strcpy(text, "interactive");
    else
        snprintf(text, 16, "%" PRIu32, step);
}

/* Writes the digest of the batch script and its arguments as a JSON string; null for other steps, or if the
 * script cannot be read. */
static void print_fingerprint(spank_t spank, uint32_t step, char text[FINGERPRINT_SIZE + 2]) {
    char digest[FINGERPRINT_SIZE];
    char **arguments = NULL;
    int count = 0;
    uid_t owner;
    strcpy(text, "null");
    if (step == STEP_BATCH && spank_get_item(spank, S_JOB_UID, &owner) == ESPANK_SUCCESS &&
        spank_get_item(spank, S_JOB_ARGV, &count, &arguments) == ESPANK_SUCCESS &&
        fingerprint(count, arguments, owner, digest))
        snprintf(text, FINGERPRINT_SIZE + 2, "\"%s\"", digest);
}

/*
 * Writes the line about energy in senergyd's response to the job's standard error, which is slurmstepd's own
 * in the batch step. The line has neither quotes nor backslashes. Nothing is written if the user has set
 * SENERGY_OUTPUT_LINE=0, or if the output is not a file: a full pipe would block slurmstepd.
 */
static void print_output_line(spank_t spank, const char *reply) {
    static const char key[] = "\"line\":\"";
    char choice[8], line[REPLY_MAX + 1];
    const char *begin = strstr(reply, key), *end = begin ? strchr(begin + sizeof(key) - 1, '"') : NULL;
    struct stat status;
    if (!end || fstat(STDERR_FILENO, &status) != 0 || !S_ISREG(status.st_mode))
        return;
    if (spank_getenv(spank, "SENERGY_OUTPUT_LINE", choice, sizeof(choice)) == ESPANK_SUCCESS &&
        strcmp(choice, "0") == 0)
        return;
    begin += sizeof(key) - 1;
    int length = snprintf(line, sizeof(line), "%.*s\n", (int)(end - begin), begin);
    if (write(STDERR_FILENO, line, (size_t)length) < 0)
        slurm_debug("senergy: output line: %m");
}

/* Notifies senergyd that this step starts or ends. Without senergyd the step is not listed separately. */
static void notify(spank_t spank, const char *event) {
    uint32_t job_id, step_id;
    char step[16], cpus[CPUS_MAX + 3], job_cpus[CPUS_MAX + 3], message[2 * CPUS_MAX + 256], reply[REPLY_MAX];
    char script[FINGERPRINT_SIZE + 2];
    if (spank_get_item(spank, S_JOB_ID, &job_id) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_STEPID, &step_id) != ESPANK_SUCCESS)
        return;
    print_step(step_id, step);
    print_cpus(spank, S_STEP_ALLOC_CORES, cpus);
    print_cpus(spank, S_JOB_ALLOC_CORES, job_cpus);
    print_fingerprint(spank, step_id, script);
    int length = snprintf(message, sizeof(message),
                          "{\"op\":\"step\",\"event\":\"%s\",\"job_id\":%" PRIu32
                          ",\"step\":\"%s\",\"pid\":%ld,\"cpus\":%s,\"job_cpus\":%s,\"fingerprint\":%s}\n",
                          event, job_id, step, (long)getpid(), cpus, job_cpus, script);
    const char *problem = exchange(socket_path, message, (size_t)length, NOTIFY_TIMEOUT_MS, NOTIFY_TIMEOUT_MS,
                                   reply, sizeof(reply));
    slurm_debug("senergy: step %s: %s: %s", event, socket_path, problem ? problem : reply);
    if (!problem && step_id == STEP_BATCH && strcmp(event, "end") == 0)
        print_output_line(spank, reply);
}

int slurm_spank_init(spank_t spank, int count, char *arguments[]) {
    read_arguments(count, arguments);
    spank_context_t context = spank_context();
    if (context != S_CTX_ALLOCATOR && context != S_CTX_LOCAL && context != S_CTX_REMOTE)
        return ESPANK_SUCCESS;
    for (int i = 0; i < FLAG_COUNT; i++) {
        struct spank_option option = {(char *)flag_names[i].option,
                                      (char *)flag_names[i].argument,
                                      (char *)flag_names[i].usage,
                                      1,
                                      i,
                                      read_option};
        if (spank_option_register(spank, &option) != ESPANK_SUCCESS)
            slurm_error("senergy: --%s: cannot be registered", flag_names[i].option);
    }
    if (context == S_CTX_REMOTE)
        notify(spank, "start");
    return ESPANK_SUCCESS;
}

/*
 * Passes the flags to the job. Slurm calls this once per component of a heterogeneous job. A flag applies to
 * the later components, too, until it is given again: sbatch and salloc repeat every plugin's options to
 * them.
 */
int slurm_spank_init_post_opt(spank_t spank, int count, char *arguments[]) {
    (void)count, (void)arguments;
    if (spank_context() == S_CTX_REMOTE)
        return ESPANK_SUCCESS;
    if (check_combination(spank) != 0)
        return -1;
    for (int i = 0; i < FLAG_COUNT; i++) {
        flags[i].in_component = false;
        if (!flags[i].given)
            continue;
        if (spank_job_control_setenv(spank, flag_names[i].variable, flags[i].value, 1) != ESPANK_SUCCESS) {
            char message[FLAG_MESSAGE_MAX];
            snprintf(message, sizeof(message), "--%s: cannot be handed on to the job", flag_names[i].option);
            return refuse(message);
        }
    }
    return ESPANK_SUCCESS;
}

int slurm_spank_exit(spank_t spank, int count, char *arguments[]) {
    (void)count, (void)arguments;
    if (spank_context() == S_CTX_REMOTE)
        notify(spank, "end");
    return ESPANK_SUCCESS;
}
