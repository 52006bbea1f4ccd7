/*
 * Calls acct_gather_energy/senergy as Slurm does, one command per line of standard input:
 *   poll TYPE [hint]  prints consumed_energy, current_watts, ave_watts; the struct holds `hint` joules before
 *   update            update_node_energy
 *   sensors           prints the number of sensors
 *   parse             prints how the rest of the line is parsed: status, epoch, joules, watts
 *   drop UID, regain  lower and restore the effective uid, as slurmstepd does
 *   slow MS           each later connection takes this long
 *   logged            prints how often the plugin logged
 */
#include "agent_reading.h"

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

extern int init(void);
extern int acct_gather_energy_p_update_node_energy(void);
extern int acct_gather_energy_p_get_data(enum acct_energy_type type, void *data);
extern int acct_gather_energy_p_set_data(enum acct_energy_type type, void *data);

static unsigned logged;
static unsigned slow_ms;

/* The linker replaces the plugin's calls of connect (--wrap). */
extern int __real_connect(int fd, const struct sockaddr *address, socklen_t length);
extern int __wrap_connect(int fd, const struct sockaddr *address, socklen_t length);

int __wrap_connect(int fd, const struct sockaddr *address, socklen_t length) {
    usleep(slow_ms * 1000);
    return __real_connect(fd, address, length);
}

void slurm_error(const char *format, ...);
void slurm_debug(const char *format, ...);
void slurm_info(const char *format, ...);

static void print_log(const char *format, va_list arguments) {
    logged++;
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
}

void slurm_error(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print_log(format, arguments);
    va_end(arguments);
}

/* Not shown by default. */
void slurm_debug(const char *format, ...) { (void)format; }

void slurm_info(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print_log(format, arguments);
    va_end(arguments);
}

static void poll_once(const char *arguments) {
    acct_gather_energy_t energy;
    int type = 0;
    uint64_t hint = 0;

    sscanf(arguments, "%d %" SCNu64, &type, &hint);
    memset(&energy, 0, sizeof(energy));
    energy.consumed_energy = energy.base_consumed_energy = energy.previous_consumed_energy = hint;
    int result = acct_gather_energy_p_get_data((enum acct_energy_type)type, &energy);
    printf("%d %" PRIu64 " %u %u\n", result, energy.consumed_energy, energy.current_watts, energy.ave_watts);
}

static void parse_line(const char *answer) {
    struct agent_reading reading = {0};
    const char *problem = "";
    int status = (int)agent_parse(answer, &reading, &problem);

    printf("%d %s %" PRIu64 " %s%u\n", status, reading.epoch[0] ? reading.epoch : "-", reading.joules,
           reading.watts_known ? "" : "unknown", reading.watts);
}

int main(void) {
    char line[4096];
    uint16_t sensors = 0;

    init();
    acct_gather_energy_p_set_data(ENERGY_DATA_STEP_PTR, NULL);
    while (fgets(line, sizeof(line), stdin)) {
        line[strcspn(line, "\n")] = '\0';
        if (!strncmp(line, "poll", 4)) {
            poll_once(line + 4);
        } else if (!strncmp(line, "parse ", 6)) {
            parse_line(line + 6);
        } else if (!strcmp(line, "update")) {
            printf("%d\n", acct_gather_energy_p_update_node_energy());
        } else if (!strcmp(line, "sensors")) {
            acct_gather_energy_p_get_data(ENERGY_DATA_SENSOR_CNT, &sensors);
            printf("%u\n", sensors);
        } else if (!strncmp(line, "slow ", 5)) {
            slow_ms = (unsigned)atoi(line + 5);
            printf("%u\n", slow_ms);
        } else if (!strncmp(line, "drop ", 5)) {
            printf("%d\n", seteuid((uid_t)atoi(line + 5)));
        } else if (!strcmp(line, "regain")) {
            printf("%d\n", seteuid(0));
        } else {
            printf("%u\n", logged);
        }
        fflush(stdout);
    }
    return 0;
}
