/* Test driver of the plugin's two files without Slurm: commands on standard input, one result per line. */
#include "priority_table.h"
#include "queue_writer.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void find(uint32_t id) {
    int32_t factor;

    if (priority_table_find(id, &factor))
        printf(" %d", factor);
    else
        printf(" -");
}

/* read PATH ID...: status, whether usable, default, then each job's factor; look: the same for one job. */
static void read_table(char *path, bool always) {
    char why[64], *word;
    int trouble = (int)priority_table_refresh(path, always, why);

    printf("%d %d %d", trouble, priority_table_is_usable(), priority_table_default_factor());
    while ((word = strtok(NULL, " \n")))
        find((uint32_t)strtoul(word, NULL, 10));
    printf(" %s\n", why);
}

/* Texts of a job in the queue: its number repeated, with all lengths from 0 to 40. */
static void fill(struct queue_job *job, uint32_t id, char *text) {
    memset(job, 0, sizeof(*job));
    job->entry.job_id = id;
    job->entry.nice = job->entry.site_factor = 0x80000000u;
    snprintf(text, 64, "%040u", id);
    for (int i = 0; i < QUEUE_TEXTS; i++) {
        job->texts[i] = text;
        job->entry.lengths[i] = (uint16_t)(id % 41);
    }
}

/* write PATH COUNT ROOM: writes a snapshot of COUNT jobs with space for ROOM jobs. */
static void write_queue(const char *path, uint32_t count, uint32_t room) {
    struct queue_job job;
    char text[64];
    int error = 0;

    if (!queue_open(path) || (error = queue_begin(room))) {
        printf("error %d\n", error);
        return;
    }
    for (uint32_t id = 1; id <= count; id++) {
        fill(&job, id, text);
        queue_add(&job);
    }
    error = queue_end();
    printf(error ? "error %d\n" : "ok\n", error);
}

static void note(const char *path, uint32_t first, uint32_t last) {
    struct queue_job job;
    char text[64];
    int error = path && !queue_open(path);

    for (uint32_t id = first; id <= last && !error; id++) {
        fill(&job, id, text);
        error = queue_append_to_journal(&job);
    }
    printf(error ? "error %d\n" : "ok\n", error);
}

/*
 * hammer PATH COUNT: reads the table COUNT times while other processes write it. In each table all jobs have
 * the same factor, so two factors in one read mean that a torn table was accepted.
 */
static void hammer(const char *path, int count) {
    int believed = 0, torn = 0;
    char why[64];

    for (int i = 0; i < count; i++) {
        int32_t first = 0, factor;

        if (priority_table_refresh(path, true, why) != PRIORITY_TABLE_OK)
            continue;
        believed++;
        for (uint32_t id = 1; priority_table_find(id, &factor); id++) {
            first = id == 1 ? factor : first;
            torn += factor != first;
        }
    }
    printf("%d %d\n", believed, torn);
}

/* fuzz PATH SCRATCH ROUNDS: changes random bytes of a valid table, truncates it, and reads the result. */
static void fuzz(const char *path, const char *scratch, int rounds) {
    static unsigned char good[4096], bad[4096];
    int fd = open(path, O_RDONLY), believed = 0;
    ssize_t size = read(fd, good, sizeof(good));
    char why[64];

    close(fd);
    srand(1);
    for (int i = 0; i < rounds; i++) {
        ssize_t cut = rand() % 4 ? size : rand() % (size + 1);
        int changes = rand() % 4;

        memcpy(bad, good, sizeof(bad));
        for (int k = 0; k < changes; k++)
            bad[rand() % (rand() % 2 ? 64 : size)] = (unsigned char)rand();
        fd = open(scratch, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        if (write(fd, bad, (size_t)cut) != cut)
            abort();
        close(fd);
        priority_table_reset();
        if (priority_table_refresh(scratch, true, why) == PRIORITY_TABLE_OK &&
            (cut != size || memcmp(bad, good, (size_t)size)))
            believed++;
        for (uint32_t id = 0; id < 20; id++) {
            int32_t factor;

            (void)priority_table_find(id, &factor);
        }
    }
    printf("%d\n", believed);
}

int main(void) {
    static char line[1 << 16];

    while (fgets(line, sizeof(line), stdin)) {
        char *command = strtok(line, " \n"), *path = strtok(NULL, " \n");

        if (!strcmp(command, "read") || !strcmp(command, "look"))
            read_table(path, !strcmp(command, "read"));
        else if (!strcmp(command, "fuzz")) {
            char *scratch = strtok(NULL, " \n");

            fuzz(path, scratch, atoi(strtok(NULL, " \n")));
        } else if (!strcmp(command, "hammer"))
            hammer(path, atoi(strtok(NULL, " \n")));
        else {
            uint32_t first = (uint32_t)atoi(strtok(NULL, " \n"));
            uint32_t second = (uint32_t)atoi(strtok(NULL, " \n"));

            if (!strcmp(command, "write"))
                write_queue(path, first, second);
            else
                note(!strcmp(command, "open") ? path : NULL, first, second);
        }
        fflush(stdout);
    }
    queue_close();
    return 0;
}
