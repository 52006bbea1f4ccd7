/* See job_hook.h. */
#include "job_hook.h"

#include "deferred_message.h"
#include "exchange.h"
#include "message.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

#ifndef DEFAULTS_FILE
#define DEFAULTS_FILE "/etc/default/senergy"
#endif
#define OPTIONS_VARIABLE "SENERGY_HOOK_OPTIONS="
#define OPTIONS_MAX 32    /* words */
#define DEFAULTS_MAX 4096 /* bytes read of DEFAULTS_FILE */
#define WAIT_MAX_MS 60000 /* maximum time-out that the options accept */
#define DEFAULT_CONNECT_MS 50
#define DEFAULT_REPLY_MS 1000
#define GRACE_MS 1000 /* added to the time-outs before the watchdog ends the process */
#define EXIT_USAGE 2

extern char **environ;

struct request {
    const char *operation; /* begin or end */
    const char *socket_path;
    int connect_ms;
    int reply_ms;
    bool hold;
};

static const char help[] =
    "usage: senergy-hook begin|end [options]\n"
    "       prolog, epilog: the same program by another name, options from " DEFAULTS_FILE "\n"
    "\n"
    "Tells senergyd on this node that the job of the environment begins or ends.\n"
    "\n"
    "  --socket PATH            senergyd's socket (default " EXCHANGE_SOCKET_DEFAULT ")\n"
    "  --connect-timeout-ms N   maximum wait for a connection (default 50)\n"
    "  --reply-timeout-ms N     maximum wait for the response after that (default 1000)\n"
    "  --hold                   begin: exit 1 on failure, so that slurmd does not start the job and drains "
    "the node\n"
    "  --help                   this page\n"
    "\n"
    "exit codes: 0 done, or failed and the job runs without us (one line in the system log); 1 begin failed "
    "with\n"
    "--hold; 2 bad usage\n";

static int failure_code; /* for the watchdog, which may only call _exit */

static void on_alarm(int number) {
    (void)number;
    _exit(failure_code);
}

/* Ends the process after a time, for waits without a bound of their own (stuck system log or file system). */
static void start_watchdog(int milliseconds) {
    struct sigaction action = {.sa_handler = on_alarm};
    sigset_t alarm_only;
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    sigaction(SIGALRM, &action, NULL);
    sigprocmask(SIG_UNBLOCK, &alarm_only, NULL);
    alarm((unsigned)(milliseconds + 999) / 1000);
}

/* Writes one line to stderr and to the system log, with control characters replaced. */
static void report(const char *operation, const char *what, const char *why, const char *effect) {
    char line[512];
    const char *job = getenv("SLURM_JOB_ID");
    snprintf(line, sizeof(line), "senergy-hook: %s: job %.20s: %.150s: %.200s: %s", operation,
             job ? job : "?", what, why, effect);
    for (char *at = line; *at; at++)
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            *at = '?';
    dprintf(STDERR_FILENO, "%s\n", line);
    openlog("senergy-hook", LOG_PID, LOG_DAEMON);
    syslog(LOG_WARNING, "%s", line + strlen("senergy-hook: "));
}

static bool parse_milliseconds(const char *text, int *milliseconds) {
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    *milliseconds = (int)value;
    return errno == 0 && end != text && *end == '\0' && value >= 1 && value <= WAIT_MAX_MS;
}

/* Parses options and operation into `request`; returns -1, or the exit code with which the command ends. */
static int parse(int count, char *words[], struct request *request) {
    static const struct option options[] = {{"socket", required_argument, NULL, 's'},
                                            {"connect-timeout-ms", required_argument, NULL, 'c'},
                                            {"reply-timeout-ms", required_argument, NULL, 'r'},
                                            {"hold", no_argument, NULL, 'H'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    optind = 0; /* slurmstepd may have used getopt before */
    for (int option; (option = getopt_long(count, words, "h", options, NULL)) != -1;) {
        bool ok = true;
        switch (option) {
        case 's':
            request->socket_path = optarg;
            break;
        case 'c':
            ok = parse_milliseconds(optarg, &request->connect_ms);
            break;
        case 'r':
            ok = parse_milliseconds(optarg, &request->reply_ms);
            break;
        case 'H':
            request->hold = true;
            break;
        case 'h':
            fputs(help, stdout);
            return EXIT_SUCCESS;
        default:
            return EXIT_USAGE;
        }
        if (!ok) {
            fprintf(stderr, "senergy-hook: '%.20s' is not a time-out: write milliseconds from 1 to %d\n",
                    optarg, WAIT_MAX_MS);
            return EXIT_USAGE;
        }
    }
    for (; optind < count; optind++) {
        if (request->operation ||
            (strcmp(words[optind], "begin") != 0 && strcmp(words[optind], "end") != 0)) {
            fprintf(stderr, "senergy-hook: unexpected '%.20s': see senergy-hook --help\n", words[optind]);
            return EXIT_USAGE;
        }
        request->operation = words[optind];
    }
    if (!request->operation) {
        fputs("senergy-hook: which operation? begin or end: see senergy-hook --help\n", stderr);
        return EXIT_USAGE;
    }
    return -1;
}

/* Opens DEFAULTS_FILE if only root and this process's user can write it, else returns -1. */
static int open_defaults(const char *operation) {
    struct stat status;
    int fd = open(DEFAULTS_FILE, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return -1;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && (status.st_mode & 022) == 0 &&
        (status.st_uid == 0 || status.st_uid == geteuid()))
        return fd;
    close(fd);
    report(operation, DEFAULTS_FILE, "others could write it: chown root and chmod go-w", "it is ignored");
    return -1;
}

/* Splits the options of DEFAULTS_FILE into `words` after the program's name; `text` holds the words. */
static int read_defaults(const char *operation, char text[DEFAULTS_MAX + 1], char *words[OPTIONS_MAX + 2]) {
    int count = 1, fd = open_defaults(operation);
    ssize_t length = fd < 0 ? 0 : read(fd, text, DEFAULTS_MAX);
    if (fd >= 0)
        close(fd);
    text[length > 0 ? length : 0] = '\0';
    char *line = text;
    while (line && strncmp(line, OPTIONS_VARIABLE, strlen(OPTIONS_VARIABLE)) != 0)
        if ((line = strchr(line, '\n')))
            line++;
    if (line) {
        line += strlen(OPTIONS_VARIABLE);
        line[strcspn(line, "\n")] = '\0';
        for (char *word = strtok(line, " \t\r\"'"); word && count <= OPTIONS_MAX;
             word = strtok(NULL, " \t\r\"'"))
            words[count++] = word;
    }
    words[count] = NULL;
    return count;
}

/* Whether the response contains `"ok": true`, with any spacing. */
static bool is_ok(const char *reply) {
    const char *at = strstr(reply, "\"ok\"");
    if (!at)
        return false;
    at += strlen("\"ok\"");
    at += strspn(at, " \t");
    if (*at++ != ':')
        return false;
    at += strspn(at, " \t");
    return strncmp(at, "true", 4) == 0;
}

static bool is_begin(const struct request *request) { return strcmp(request->operation, "begin") == 0; }

static const char *effect_of_refusal(const struct request *request) {
    return !is_begin(request) ? "senergyd restores the settings at its next start or job"
           : request->hold    ? "the job is held (--hold)"
                              : "the job runs without energy settings and record";
}

/*
 * Stores a message that got no response and returns the effect on the job, for the log. With --hold a failed
 * begin is not stored, because the job does not start.
 */
static const char *effect_of_no_response(const struct request *request, const char *text, size_t length) {
    bool held = is_begin(request) && request->hold;
    if (held || length == 0 || defer_message(request->socket_path, text, length))
        return effect_of_refusal(request);
    return is_begin(request) ? "the job starts; its settings and record begin when senergyd is back"
                             : "senergyd ends the job when it is back";
}

/* Sends the message; returns false and reports the reason on failure. */
static bool send_message(const struct request *request) {
    static char text[MESSAGE_MAX + 1], reply[4096];
    size_t dropped, length = message_build(text, request->operation, environ, &dropped);
    const char *problem = length == 0
                              ? "out of memory"
                              : exchange(request->socket_path, text, length, request->connect_ms,
                                         request->connect_ms + request->reply_ms, reply, sizeof(reply));
    if (problem)
        report(request->operation, request->socket_path, problem,
               effect_of_no_response(request, text, length));
    else if (!is_ok(reply))
        report(request->operation, "senergyd refused", reply, effect_of_refusal(request));
    else if (dropped)
        report(request->operation, "environment", "larger than 64 KiB", "sent without its largest variables");
    return !problem && is_ok(reply);
}

/* Applies SENERGY_HOOK_OPTIONS of DEFAULTS_FILE. Invalid options are reported and ignored. */
static void apply_defaults(const char *program, struct request *request) {
    static char text[DEFAULTS_MAX + 1];
    static char *words[OPTIONS_MAX + 2];
    words[0] = (char *)program;
    int count = read_defaults(request->operation, text, words);
    if (parse(count, words, request) > 0)
        report(request->operation, DEFAULTS_FILE, "bad " OPTIONS_VARIABLE, "what follows in it is ignored");
}

/* Sends the message within bounded time and returns the exit code. */
static int send_with_watchdog(const struct request *request) {
    failure_code = request->hold && is_begin(request) ? 1 : 0;
    start_watchdog(request->connect_ms + request->reply_ms + GRACE_MS);
    return send_message(request) ? EXIT_SUCCESS : failure_code;
}

int job_hook_run(const char *program, const char *operation, const char *socket_path) {
    struct request request = {operation, socket_path, DEFAULT_CONNECT_MS, DEFAULT_REPLY_MS, false};
    signal(SIGPIPE, SIG_IGN);
    start_watchdog(2 * WAIT_MAX_MS); /* until the time-outs in the options are known */
    apply_defaults(program, &request);
    return send_with_watchdog(&request);
}

int job_hook_command(int count, char *words[]) {
    struct request request = {NULL, EXCHANGE_SOCKET_DEFAULT, DEFAULT_CONNECT_MS, DEFAULT_REPLY_MS, false};
    signal(SIGPIPE, SIG_IGN);
    int code = parse(count, words, &request);
    return code >= 0 ? code : send_with_watchdog(&request);
}
