#include "priority_table.h"

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
#define REASON_BYTES 64
#define READ_BACKOFF_FACTOR 20 /* after a read that took t, no read for 20 t */

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
    uint64_t end; /* repeats the sequence */
};

struct entry {
    uint32_t job_id;
    int32_t factor;
};

struct table {
    struct header header;
    struct entry entries[PRIORITY_TABLE_MAX_JOBS];
};

_Static_assert(sizeof(struct header) == 64, "layout of the header");
_Static_assert(sizeof(struct entry) == 8, "layout of an entry");

/* The last valid table and a buffer for the next one. Static memory: no allocation, pages only when used. */
static struct table tables[2];
static int current;
static bool loaded;
static uint32_t next_index;
static int64_t next_read_ns;
static enum priority_table_status last_status; /* of the last read, returned until the next read */
static char last_reason[REASON_BYTES];

static int64_t monotonic_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void priority_table_reset(void) {
    loaded = false;
    next_read_ns = 0;
    last_status = PRIORITY_TABLE_OK;
}

static enum priority_table_status check_file(const struct stat *status, char *reason) {
    if (!S_ISREG(status->st_mode)) {
        snprintf(reason, REASON_BYTES, "not a plain file");
        return PRIORITY_TABLE_NOT_REGULAR;
    }
    /* slurmctld and senergyctld run as SlurmUser, who controls slurmctld in any case. */
    if ((status->st_uid != 0 && status->st_uid != geteuid()) || (status->st_mode & (S_IWGRP | S_IWOTH))) {
        snprintf(reason, REASON_BYTES, "owner uid %u, mode %04o: not only root's or SlurmUser's",
                 (unsigned)status->st_uid, (unsigned)(status->st_mode & 07777));
        return PRIORITY_TABLE_UNSAFE;
    }
    return PRIORITY_TABLE_OK;
}

/* Reads exactly `bytes`; false if the file is shorter. */
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

static bool checksum_is_valid(struct table *table) {
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

static enum priority_table_status check_header(const struct header *header, off_t size, char *reason) {
    if (memcmp(header->magic, MAGIC, sizeof(header->magic))) {
        snprintf(reason, REASON_BYTES, "is no priority table");
        return PRIORITY_TABLE_FOREIGN;
    }
    if (header->version != VERSION || header->header_bytes != sizeof(*header)) {
        snprintf(reason, REASON_BYTES, "version %u, this plugin reads %u", header->version, VERSION);
        return PRIORITY_TABLE_VERSION;
    }
    if (header->count > PRIORITY_TABLE_MAX_JOBS || header->sequence == 0 || header->sequence != header->end ||
        size != (off_t)(sizeof(*header) + (size_t)header->count * sizeof(struct entry))) {
        snprintf(reason, REASON_BYTES, "%lld bytes for %u jobs: torn", (long long)size, header->count);
        return PRIORITY_TABLE_TORN;
    }
    return PRIORITY_TABLE_OK;
}

static enum priority_table_status check_age(const struct header *header, char *reason) {
    int64_t age_s;

    if (__builtin_sub_overflow((int64_t)time(NULL), header->written_unix_s, &age_s))
        age_s = header->written_unix_s < 0 ? INT64_MAX : -INT64_MAX;
    if (age_s <= (int64_t)header->stale_s && age_s >= -(int64_t)header->stale_s)
        return PRIORITY_TABLE_OK;
    snprintf(reason, REASON_BYTES, "written %lld s %s, used up to %u s",
             (long long)(age_s < 0 ? -age_s : age_s), age_s < 0 ? "ahead" : "ago", header->stale_s);
    return age_s < 0 ? PRIORITY_TABLE_FUTURE : PRIORITY_TABLE_STALE;
}

/* Reads the open file into the spare table and makes that the current table. */
static enum priority_table_status load(int fd, char *reason) {
    struct table *spare = &tables[!current];
    enum priority_table_status result;
    struct stat status;

    if (fstat(fd, &status)) {
        snprintf(reason, REASON_BYTES, "%s", strerror(errno));
        return PRIORITY_TABLE_UNREADABLE;
    }
    result = check_file(&status, reason);
    if (result)
        return result;
    if (!read_all(fd, &spare->header, sizeof(spare->header), 0)) {
        snprintf(reason, REASON_BYTES, "%lld bytes: torn", (long long)status.st_size);
        return PRIORITY_TABLE_TORN;
    }
    result = check_header(&spare->header, status.st_size, reason);
    if (result)
        return result;
    if (loaded && spare->header.sequence == tables[current].header.sequence)
        return PRIORITY_TABLE_OK;
    if (!read_all(fd, spare->entries, (size_t)spare->header.count * sizeof(struct entry),
                  sizeof(spare->header)) ||
        !checksum_is_valid(spare)) {
        snprintf(reason, REASON_BYTES, "torn: its checksum is wrong");
        return PRIORITY_TABLE_TORN;
    }
    result = check_age(&spare->header, reason);
    if (result)
        return result;
    current = !current;
    loaded = true;
    return PRIORITY_TABLE_OK;
}

static enum priority_table_status current_age(char *reason) {
    return loaded ? check_age(&tables[current].header, reason) : PRIORITY_TABLE_UNREADABLE;
}

enum priority_table_status priority_table_refresh(const char *path, bool always, char *reason) {
    int64_t start_ns = monotonic_ns();
    enum priority_table_status result;
    int fd;

    reason[0] = 0;
    if (!always && start_ns < next_read_ns) {
        if (last_status)
            memcpy(reason, last_reason, REASON_BYTES);
        return last_status ? last_status : current_age(reason);
    }
    /* Not blocking: a FIFO at this path must not block slurmctld. */
    fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) {
        int code = errno;

        snprintf(reason, REASON_BYTES, "%s", code == ELOOP ? "is a symbolic link" : strerror(code));
        result = code == ELOOP ? PRIORITY_TABLE_LINK : PRIORITY_TABLE_UNREADABLE;
    } else {
        result = load(fd, reason);
        close(fd);
        next_read_ns = monotonic_ns();
        next_read_ns += READ_BACKOFF_FACTOR * (next_read_ns - start_ns);
    }
    last_status = result;
    memcpy(last_reason, reason, REASON_BYTES);
    return result ? result : current_age(reason);
}

bool priority_table_is_usable(void) {
    char reason[REASON_BYTES];

    return current_age(reason) == PRIORITY_TABLE_OK;
}

bool priority_table_find(uint32_t job_id, int32_t *factor) {
    const struct table *table = &tables[current];
    uint32_t low = 0, high = loaded ? table->header.count : 0;

    /* Slurm's list is nearly sorted by id: usually the next entry is the one searched for. */
    if (next_index < high && table->entries[next_index].job_id == job_id)
        low = next_index;
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
    next_index = low + 1;
    *factor = table->entries[low].factor;
    if (*factor > PRIORITY_TABLE_MAX_FACTOR)
        *factor = PRIORITY_TABLE_MAX_FACTOR;
    if (*factor < -PRIORITY_TABLE_MAX_FACTOR)
        *factor = -PRIORITY_TABLE_MAX_FACTOR;
    return true;
}

int32_t priority_table_default_factor(void) { return loaded ? tables[current].header.default_factor : 0; }
