/*
 * energy_hooks.so: the SPANK plugin that announces the begin and end of each job to senergyd.
 *
 * It does the work of Prolog= and Epilog= lines in slurm.conf, with one difference: Slurm runs the job if the
 * file of an `optional` plugin is missing, but cancels the job and drains the node if a Prolog file is
 * missing.
 *
 * The hook runs in a child process, which has its own watchdog: an error in it cannot fail `slurmstepd spank
 * prolog`, whose failure would drain the node.
 *
 * plugstack.conf: optional /usr/local/lib/slurm-energy/energy_hooks.so [socket=PATH]
 */

/* Only symbols that Slurm looks up are visible, because slurmstepd has symbols of its own. */
#pragma GCC visibility push(default)
#include <slurm/spank.h>
SPANK_PLUGIN(senergy_hooks, 1)
#pragma GCC visibility pop

#include "exchange.h"
#include "job_hook.h"

#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *read_socket_path(int count, char *arguments[]) {
    const char *socket_path = EXCHANGE_SOCKET_DEFAULT;
    for (int i = 0; i < count; i++) {
        if (strncmp(arguments[i], "socket=", 7) == 0)
            socket_path = arguments[i] + 7;
        else
            slurm_error("senergy_hooks: plugstack.conf: unknown argument '%s': known: socket=", arguments[i]);
    }
    return socket_path;
}

/*
 * Runs the hook in a child process. Returns a negative number, which Slurm treats as a failure, only if begin
 * failed with --hold. Slurm then holds the job if plugstack.conf says `required`, and ignores it otherwise.
 */
static int announce(const char *operation, int count, char *arguments[]) {
    const char *socket_path = read_socket_path(count, arguments);
    int status;
    pid_t child = fork();
    if (child == 0)
        _exit(job_hook_run("energy_hooks.so", operation, socket_path));
    if (child < 0) {
        slurm_error("senergy_hooks: %s: fork: %s: the job runs without energy settings and record", operation,
                    strerror(errno));
        return ESPANK_SUCCESS;
    }
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return ESPANK_SUCCESS;
    if (WIFSIGNALED(status))
        slurm_error("senergy_hooks: %s: the hook was killed by signal %d", operation, WTERMSIG(status));
    return WIFEXITED(status) && WEXITSTATUS(status) != 0 ? -1 : ESPANK_SUCCESS;
}

int slurm_spank_job_prolog(spank_t spank, int count, char *arguments[]) {
    (void)spank;
    return announce("begin", count, arguments);
}

int slurm_spank_job_epilog(spank_t spank, int count, char *arguments[]) {
    (void)spank;
    return announce("end", count, arguments);
}
