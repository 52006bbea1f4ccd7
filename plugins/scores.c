#include "scores.h"

#include "table_sum.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the tables are little-endian"
#endif

#define MAGIC "SENERGYP"
#define VERSION 2
#define WHY_BYTES 64
#define REST_TIMES 20 /* after a read that took t none for 20 t */

struct header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes;
    uint64_t sequence;
    int64_t written_unix_s;
    uint32_t count;
    uint32_t stale_s;
    int32_t default_factor;
    uint32_t reserved;
    uint64_t checksum;
    uint64_t end; /* the sequence again */
};

struct entry {
    uint32_t job_id;
    int32_t factor;
};

struct table {
    struct header header;
    struct entry entries[SCORES_MOST_JOBS];
};

_Static_assert(sizeof(struct header) == 64, "layout of the header");
_Static_assert(sizeof(struct entry) == 8, "layout of an entry");

/* The last good table and one to read the next into. Static: no allocation, and pages only when used. */
static struct table tables[2];
static int current;
static bool loaded;
static uint32_t next_guess;
static int64_t rest_until_ns;
static enum scores_trouble last_trouble; /* of the last read, for while there is none */
static char last_why[WHY_BYTES];

static int64_t monotonic_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void scores_forget(void) {
    loaded = false;
    rest_until_ns = 0;
    last_trouble = SCORES_GOOD;
}

static enum scores_trouble check_file(const struct stat *status, char *why) {
    if (!S_ISREG(status->st_mode)) {
        snprintf(why, WHY_BYTES, "not a plain file");
        return SCORES_NOT_PLAIN;
    }
    /* SlurmUser, whom slurmctld runs as and senergyctld too, has slurmctld in hand anyway. */
    if ((status->st_uid != 0 && status->st_uid != geteuid()) || (status->st_mode & (S_IWGRP | S_IWOTH))) {
        snprintf(why, WHY_BYTES, "owner uid %u, mode %04o: not only root's or SlurmUser's",
                 (unsigned)status->st_uid, (unsigned)(status->st_mode & 07777));
        return SCORES_UNSAFE;
    }
    return SCORES_GOOD;
}

/* Reads exactly `bytes`; false when the file ends before. */
static bool read_all(int fd, void *to, size_t bytes, off_t at) {
    char *next = to;

    while (bytes > 0) {
        ssize_t got = pread(fd, next, bytes, at);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        next += got;
        at += got;
        bytes -= (size_t)got;
    }
    return true;
}

static bool is_sound(struct table *table) {
    struct table_sum sum = TABLE_SUM_START;
    uint64_t expected = table->header.checksum;
    uint32_t last = 0;

    table->header.checksum = 0;
    table_sum_add(&sum, &table->header, sizeof(table->header));
    table_sum_add(&sum, table->entries, (size_t)table->header.count * sizeof(struct entry));
    table->header.checksum = expected;
    for (uint32_t i = 0; i < table->header.count; i++) {
        if (table->entries[i].job_id <= last)
            return false;
        last = table->entries[i].job_id;
    }
    return sum.sum == expected;
}

static enum scores_trouble check_header(const struct header *header, off_t size, char *why) {
    if (memcmp(header->magic, MAGIC, sizeof(header->magic))) {
        snprintf(why, WHY_BYTES, "is no priority table");
        return SCORES_FOREIGN;
    }
    if (header->version != VERSION || header->header_bytes != sizeof(*header)) {
        snprintf(why, WHY_BYTES, "version %u, this plugin reads %u", header->version, VERSION);
        return SCORES_VERSION;
    }
    if (header->count > SCORES_MOST_JOBS || header->sequence == 0 || header->sequence != header->end ||
        size != (off_t)(sizeof(*header) + (size_t)header->count * sizeof(struct entry))) {
        snprintf(why, WHY_BYTES, "%lld bytes for %u jobs: torn", (long long)size, header->count);
        return SCORES_TORN;
    }
    return SCORES_GOOD;
}

static enum scores_trouble check_age(const struct header *header, char *why) {
    int64_t age_s;

    if (__builtin_sub_overflow((int64_t)time(NULL), header->written_unix_s, &age_s))
        age_s = header->written_unix_s < 0 ? INT64_MAX : -INT64_MAX;
    if (age_s <= (int64_t)header->stale_s && age_s >= -(int64_t)header->stale_s)
        return SCORES_GOOD;
    snprintf(why, WHY_BYTES, "written %lld s %s, used up to %u s", (long long)(age_s < 0 ? -age_s : age_s),
             age_s < 0 ? "ahead" : "ago", header->stale_s);
    return age_s < 0 ? SCORES_AHEAD : SCORES_STALE;
}

/* Reads the open file into the spare table and makes it the current one. */
static enum scores_trouble load(int fd, char *why) {
    struct table *spare = &tables[!current];
    enum scores_trouble trouble;
    struct stat status;

    if (fstat(fd, &status)) {
        snprintf(why, WHY_BYTES, "%s", strerror(errno));
        return SCORES_UNREADABLE;
    }
    trouble = check_file(&status, why);
    if (trouble)
        return trouble;
    if (!read_all(fd, &spare->header, sizeof(spare->header), 0)) {
        snprintf(why, WHY_BYTES, "%lld bytes: torn", (long long)status.st_size);
        return SCORES_TORN;
    }
    trouble = check_header(&spare->header, status.st_size, why);
    if (trouble)
        return trouble;
    if (loaded && spare->header.sequence == tables[current].header.sequence)
        return SCORES_GOOD;
    if (!read_all(fd, spare->entries, (size_t)spare->header.count * sizeof(struct entry),
                  sizeof(spare->header)) ||
        !is_sound(spare)) {
        snprintf(why, WHY_BYTES, "torn: its checksum is wrong");
        return SCORES_TORN;
    }
    trouble = check_age(&spare->header, why);
    if (trouble)
        return trouble;
    current = !current;
    loaded = true;
    return SCORES_GOOD;
}

static enum scores_trouble current_age(char *why) {
    return loaded ? check_age(&tables[current].header, why) : SCORES_UNREADABLE;
}

enum scores_trouble scores_refresh(const char *path, bool always, char *why) {
    int64_t start_ns = monotonic_ns();
    enum scores_trouble trouble;
    int fd;

    why[0] = 0;
    if (!always && start_ns < rest_until_ns) {
        if (last_trouble)
            memcpy(why, last_why, WHY_BYTES);
        return last_trouble ? last_trouble : current_age(why);
    }
    /* Not blocking: a FIFO in its place must not stop slurmctld. */
    fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) {
        int reason = errno;

        snprintf(why, WHY_BYTES, "%s", reason == ELOOP ? "is a symbolic link" : strerror(reason));
        trouble = reason == ELOOP ? SCORES_LINK : SCORES_UNREADABLE;
    } else {
        trouble = load(fd, why);
        close(fd);
        rest_until_ns = monotonic_ns();
        rest_until_ns += REST_TIMES * (rest_until_ns - start_ns);
    }
    last_trouble = trouble;
    memcpy(last_why, why, WHY_BYTES);
    return trouble ? trouble : current_age(why);
}

bool scores_usable(void) {
    char why[WHY_BYTES];

    return current_age(why) == SCORES_GOOD;
}

bool scores_find(uint32_t job_id, int32_t *factor) {
    const struct table *table = &tables[current];
    uint32_t low = 0, high = loaded ? table->header.count : 0;

    /* Slurm's list is nearly in the order of ids: the next entry is mostly the one. */
    if (next_guess < high && table->entries[next_guess].job_id == job_id)
        low = next_guess;
    while (low < high && table->entries[low].job_id != job_id) {
        uint32_t middle = low + (high - low) / 2;

        if (table->entries[middle].job_id < job_id)
            low = middle + 1;
        else if (table->entries[middle].job_id > job_id)
            high = middle;
        else
            low = middle;
    }
    if (low >= high)
        return false;
    next_guess = low + 1;
    *factor = table->entries[low].factor;
    if (*factor > SCORES_LARGEST_FACTOR)
        *factor = SCORES_LARGEST_FACTOR;
    if (*factor < -SCORES_LARGEST_FACTOR)
        *factor = -SCORES_LARGEST_FACTOR;
    return true;
}

int32_t scores_default(void) { return loaded ? tables[current].header.default_factor : 0; }
