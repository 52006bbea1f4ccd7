/*
 * The job hook: sends the begin or end of a job to senergyd.
 *
 * Shared by senergy-hook and by the SPANK plugin energy_hooks.so. Every wait is bounded. After a failure it
 * writes one line and returns 0, so that the job runs without energy settings. A message that senergyd did
 * not receive is stored until senergyd runs again. Only with `--hold` a failed `begin` has exit code 1.
 *
 * Both functions set SIGALRM and SIGPIPE for the whole process and may end it: run them in a process of their
 * own.
 */
#ifndef SENERGY_JOB_HOOK_H
#define SENERGY_JOB_HOOK_H

/*
 * Runs `operation` (begin or end) for the job of the environment, with the options of DEFAULTS_FILE.
 *
 * `program` names the caller in messages about these options. `socket_path` is senergyd's socket, unless the
 * options name another one. Returns the exit code: 0, or 1 if `begin` failed with --hold.
 */
int job_hook_run(const char *program, const char *operation, const char *socket_path);

/* Runs the command line of senergy-hook and returns its exit code. */
int job_hook_command(int count, char *words[]);

#endif
