/*
 * lab_tasks.so: SPANK plugin used only in the lab. It moves every task of a job into the control groups that
 * the node's emulator manages for the job. Their CPU quota slows real programs to the speed of the emulated
 * cores, and their CPU time is the load in the power model. slurmd, slurmstepd and senergyd stay outside.
 *
 * The plugin sends `{"op":"job","job_id":N,"cpus":"0-3"|null}` to the emulator and reads the file names in
 * "procs" of the response. After a failure, or WAIT_MS at most, the task runs without the groups. The
 * variable SENERGY_LAB_CPUS holds the CPUs of the step for `senergy lab run`.
 *
 * With an emulated network, tasks of steps also enter the network namespace of their node, which the socket
 * NETWORK hands out. Batch scripts stay in the network of the host, where srun reaches slurmctld.
 *
 * plugstack.conf: optional .../lab_tasks.so socket=/run/senergy-lab/emulator.sock
 */

#include <slurm/spank.h>

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

SPANK_PLUGIN(lab_tasks, 1)

/* The emulator may stand still on a busy machine. Without an emulator, connect() fails at once. */
#define WAIT_MS 20000
#define CPUS_MAX 2048
#define THREADS_MAX 8
#define SIBLINGS "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list"
#define GROUPS_ROOT "/sys/fs/cgroup/"
#define NETWORK "/run/senergy-lab/network.sock"
#define HOSTS "/run/senergy-lab/hosts" /* names of the nodes in this network */
#define SPECIAL_STEPS 0xfffffff0 /* numbers of batch scripts, external and interactive steps are above */

static char socket_path[sizeof(((struct sockaddr_un *)0)->sun_path)] = "/run/senergy-lab/emulator.sock";

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static bool wait_for(int fd, short events, long deadline_ms) {
    struct pollfd one = {.fd = fd, .events = events};
    long left_ms = deadline_ms - now_ms();
    return left_ms > 0 && poll(&one, 1, (int)left_ms) == 1;
}

/* Sends one line and reads one line; false after WAIT_MS or any error. */
static bool ask(const char *request, char *answer, size_t size) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    long deadline_ms = now_ms() + WAIT_MS;
    size_t length = strlen(request), got = 0;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    memcpy(address.sun_path, socket_path, sizeof(address.sun_path));
    bool ok = connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
              send(fd, request, length, MSG_NOSIGNAL) == (ssize_t)length;
    while (ok && got < size - 1 && !memchr(answer, '\n', got)) {
        ssize_t count = wait_for(fd, POLLIN, deadline_ms) ? recv(fd, answer + got, size - 1 - got, 0) : -1;
        if (count <= 0)
            ok = false;
        else
            got += (size_t)count;
    }
    close(fd);
    answer[ok ? got : 0] = '\0';
    return ok;
}

/* Moves this process into a group: writing 0 to a group's list of processes moves the writer. */
static void join(const char *path) {
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return;
    if (write(fd, "0", 1) != 1)
        slurm_debug("lab_tasks: %s: %m", path);
    close(fd);
}

/* Moves this process into all groups in the response: `"procs": ["/sys/fs/cgroup/cpu/...", ...]`. */
static void join_all(char *answer) {
    char *at = strstr(answer, "\"procs\"");
    char *end = at ? strchr(at, ']') : NULL;
    if (!end || !(at = strchr(at, '[')))
        return;
    *end = '\0';
    while ((at = strchr(at, '"'))) {
        char *close_quote = strchr(++at, '"');
        if (!close_quote)
            return;
        *close_quote = '\0';
        if (strncmp(at, GROUPS_ROOT, strlen(GROUPS_ROOT)) == 0 && !strstr(at, "/../"))
            join(at);
        at = close_quote + 1;
    }
}

/* Reads the CPU numbers of core 0, such as 0,64: the offsets between the threads of a core. */
static size_t read_offsets(unsigned long offsets[THREADS_MAX]) {
    char text[64], *at = text;
    size_t count = 0;
    int fd = open(SIBLINGS, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        close(fd);
    text[length > 0 ? length : 0] = '\0';
    if (strspn(text, "0123456789,\n") != strlen(text))
        *text = '\0'; /* a range: consecutive numbers of threads, which no emulated node has */
    while (count < THREADS_MAX && *at >= '0' && *at <= '9') {
        offsets[count++] = strtoul(at, &at, 10);
        at += *at == ',';
    }
    return count;
}

/* Converts Slurm's list of cores to a list of CPUs: `0-3` becomes `0-3,64-67`. */
static bool print_cpus(const char *cores, char text[CPUS_MAX]) {
    unsigned long offsets[THREADS_MAX];
    size_t threads = read_offsets(offsets), length = 0;
    if (strspn(cores, "0123456789,-") != strlen(cores))
        return false;
    for (size_t i = 0; i < threads; i++) {
        for (const char *at = cores; *at;) {
            char *end;
            unsigned long number = strtoul(at, &end, 10);
            if (end == at)
                return false;
            const char *before = at == cores && i > 0 ? "," : "";
            int count = snprintf(text + length, CPUS_MAX - length, "%s%lu", before, number + offsets[i]);
            length += (size_t)count;
            if (length + 2 >= CPUS_MAX)
                return false;
            if (*end)
                text[length++] = *end++;
            at = end;
        }
    }
    text[length] = '\0';
    return length > 0;
}

/* Receives one descriptor from a connected socket; -1 after an error. */
static int receive_descriptor(int connection) {
    char byte, space[CMSG_SPACE(sizeof(int))];
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space)};
    int fd = -1;
    if (!wait_for(connection, POLLIN, now_ms() + WAIT_MS) ||
        recvmsg(connection, &message, MSG_CMSG_CLOEXEC) != 1)
        return -1;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    return fd;
}

/* Enters the node's network namespace, if the lab has a network. */
static void enter_network(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = NETWORK};
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connection < 0)
        return;
    if (connect(connection, (struct sockaddr *)&address, sizeof(address)) == 0) {
        int fd = receive_descriptor(connection);
        if (fd < 0 || setns(fd, CLONE_NEWNET) != 0 || unshare(CLONE_NEWNS) != 0 ||
            mount(HOSTS, "/etc/hosts", NULL, MS_BIND, NULL) != 0)
            slurm_error("lab_tasks: no network: %m");
        if (fd >= 0)
            close(fd);
    }
    close(connection);
}

static bool find_cpus(spank_t spank, spank_item_t item, char text[CPUS_MAX]) {
    char *cores = NULL;
    return spank_get_item(spank, item, &cores) == ESPANK_SUCCESS && cores && *cores &&
           print_cpus(cores, text);
}

int slurm_spank_init(spank_t spank, int count, char *arguments[]) {
    (void)spank;
    for (int i = 0; i < count; i++)
        if (strncmp(arguments[i], "socket=", 7) == 0 && strlen(arguments[i] + 7) < sizeof(socket_path))
            strncpy(socket_path, arguments[i] + 7, sizeof(socket_path) - 1);
    return ESPANK_SUCCESS;
}

int slurm_spank_task_init_privileged(spank_t spank, int count, char *arguments[]) {
    uint32_t job_id, step_id;
    char cpus[CPUS_MAX], request[CPUS_MAX + 64], answer[4096];
    (void)count;
    (void)arguments;
    if (!spank_remote(spank) || spank_get_item(spank, S_JOB_ID, &job_id) != ESPANK_SUCCESS)
        return ESPANK_SUCCESS;
    if (find_cpus(spank, S_STEP_ALLOC_CORES, cpus))
        spank_setenv(spank, "SENERGY_LAB_CPUS", cpus, 1);
    bool known = find_cpus(spank, S_JOB_ALLOC_CORES, cpus);
    const char *quote = known ? "\"" : "";
    snprintf(request, sizeof(request), "{\"op\":\"job\",\"job_id\":%" PRIu32 ",\"cpus\":%s%s%s}\n", job_id,
             quote, known ? cpus : "null", quote);
    if (ask(request, answer, sizeof(answer)))
        join_all(answer);
    if (spank_get_item(spank, S_JOB_STEPID, &step_id) == ESPANK_SUCCESS && step_id < SPECIAL_STEPS)
        enter_network();
    return ESPANK_SUCCESS;
}
