#include "queue_writer.h"

#include "table_sum.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAGIC "SENERGYQ"
#define VERSION 2
#define SNAPSHOT 1
#define JOURNAL 2
#define BUFFER_BYTES (1 << 18)
#define JOURNAL_BYTES (8 << 20)
#define RECORD_BYTES (1 << 14)

struct header {
    char magic[8];
    uint32_t version, kind, header_bytes, entry_bytes;
    uint64_t generation;
    int64_t taken_unix_ns;
    uint32_t count, left_out;
    uint64_t heap_offset, heap_bytes, checksum;
};

struct record {
    uint32_t bytes, zero;
    uint64_t checksum;
};

_Static_assert(sizeof(struct header) == 72, "layout of the header");
_Static_assert(sizeof(struct queue_entry) == 136, "layout of an entry");

/* A stretch of the file that is being written, with what is not in the file yet. */
struct stretch {
    char buffer[BUFFER_BYTES];
    size_t used;
    uint64_t offset;
};

static char snapshot_path[PATH_MAX], spare_path[PATH_MAX], journal_path[PATH_MAX], part_path[PATH_MAX];
static struct stretch entries, heap;
static struct table_sum sum;
static struct header header;
static uint64_t generation; /* of the snapshot that is in place; 0: not looked yet, or none */
static uint32_t most_jobs;
static int part_fd = -1, part_error;
static int journal_fd = -1;
static uint64_t journal_bytes;

static int64_t now_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int write_all(int fd, const void *from, size_t bytes, uint64_t at) {
    const char *next = from;

    while (bytes > 0) {
        ssize_t put = pwrite(fd, next, bytes, (off_t)at);

        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return put < 0 ? errno : EIO;
        next += put;
        at += (uint64_t)put;
        bytes -= (size_t)put;
    }
    return 0;
}

bool queue_open(const char *path) {
    queue_close();
    generation = 0;
    return snprintf(snapshot_path, sizeof(snapshot_path), "%s", path) < PATH_MAX &&
           snprintf(spare_path, sizeof(spare_path), "%s.spare", path) < PATH_MAX &&
           snprintf(journal_path, sizeof(journal_path), "%s.new", path) < PATH_MAX &&
           snprintf(part_path, sizeof(part_path), "%s.new.part", path) < PATH_MAX;
}

void queue_close(void) {
    if (journal_fd >= 0)
        close(journal_fd);
    journal_fd = -1;
}

static int create(const char *path) {
    (void)unlink(path);
    return open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
}

static bool is_ours(const struct stat *status) {
    return S_ISREG(status->st_mode) && (status->st_mode & 07777) == 0600 && status->st_uid == geteuid() &&
           status->st_nlink == 1;
}

/*
 * Opens the snapshot before the last, to be written over: memory that the file has already costs a fifth of
 * new memory. A reader that has had it open all the time sees its header go first.
 */
static int open_spare(void) {
    static const struct header none;
    int fd = open(spare_path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat status;

    if (fd >= 0 && !fstat(fd, &status) && is_ours(&status) && !write_all(fd, &none, sizeof(none), 0))
        return fd;
    if (fd >= 0)
        close(fd);
    return create(spare_path);
}

static void fill_header(uint32_t kind) {
    memset(&header, 0, sizeof(header));
    memcpy(header.magic, MAGIC, sizeof(header.magic));
    header.version = VERSION;
    header.kind = kind;
    header.header_bytes = sizeof(header);
    header.entry_bytes = sizeof(struct queue_entry);
    header.generation = generation;
    header.taken_unix_ns = now_ns();
}

static void flush(struct stretch *stretch) {
    if (!part_error)
        part_error = write_all(part_fd, stretch->buffer, stretch->used, stretch->offset);
    stretch->offset += stretch->used;
    stretch->used = 0;
}

static void append(struct stretch *stretch, const void *data, size_t bytes) {
    if (stretch->used + bytes > sizeof(stretch->buffer))
        flush(stretch);
    memcpy(stretch->buffer + stretch->used, data, bytes);
    stretch->used += bytes;
}

int queue_begin(uint32_t most) {
    most_jobs = most < QUEUE_MOST_JOBS ? most : QUEUE_MOST_JOBS;
    part_fd = open_spare();
    part_error = part_fd < 0 ? errno : 0;
    if (part_error)
        return part_error;
    fill_header(SNAPSHOT);
    header.generation =
        (uint64_t)header.taken_unix_ns > generation ? (uint64_t)header.taken_unix_ns : generation + 1;
    header.heap_offset = sizeof(header) + (uint64_t)most_jobs * sizeof(struct queue_entry);
    entries.used = heap.used = 0;
    sum = (struct table_sum){0, sizeof(header) / 8 * TABLE_SUM_STEP}; /* the header is added at the end */
    entries.offset = sizeof(header);
    heap.offset = header.heap_offset;
    return 0;
}

void queue_add(struct queue_job *job) {
    if (header.count >= most_jobs) {
        header.left_out++;
        return;
    }
    header.count++;
    job->entry.heap_offset = heap.offset + heap.used - header.heap_offset;
    table_sum_add(&sum, &job->entry, sizeof(job->entry));
    append(&entries, &job->entry, sizeof(job->entry));
    for (int i = 0; i < QUEUE_TEXTS; i++)
        append(&heap, job->texts[i], job->entry.lengths[i]);
}

/* Closes the file that was written; returns `error` or else the errno of that. */
static int close_part(int error) {
    if (close(part_fd) && !error)
        error = errno;
    part_fd = -1;
    return error;
}

/* Exchanges snapshot and spare where that can be: what was in place is the next to be written over. */
static int put_snapshot_in_place(int error) {
    struct stat status;

    error = close_part(error);
    if (!error && !lstat(snapshot_path, &status) && is_ours(&status) &&
        !renameat2(AT_FDCWD, spare_path, AT_FDCWD, snapshot_path, RENAME_EXCHANGE))
        return 0;
    if (!error && rename(spare_path, snapshot_path))
        error = errno;
    if (error)
        (void)unlink(spare_path);
    return error;
}

static int begin_journal(void) {
    int error;

    queue_close();
    part_fd = create(part_path);
    if (part_fd < 0)
        return errno;
    fill_header(JOURNAL);
    error = write_all(part_fd, &header, sizeof(header), 0);
    journal_fd = error ? -1 : fcntl(part_fd, F_DUPFD_CLOEXEC, 0);
    if (!error && journal_fd < 0)
        error = errno;
    journal_bytes = sizeof(header);
    error = close_part(error);
    if (!error && rename(part_path, journal_path))
        error = errno;
    if (error) {
        (void)unlink(part_path);
        queue_close();
    }
    return error;
}

int queue_end(void) {
    struct table_sum head = TABLE_SUM_START;

    flush(&entries);
    flush(&heap);
    header.heap_bytes = heap.offset - header.heap_offset;
    table_sum_add(&head, &header, sizeof(header));
    header.checksum = head.sum + sum.sum;
    if (!part_error && ftruncate(part_fd, (off_t)heap.offset))
        part_error = errno;
    if (!part_error)
        part_error = write_all(part_fd, &header, sizeof(header), 0);
    part_error = put_snapshot_in_place(part_error);
    if (part_error)
        return part_error;
    generation = header.generation;
    queue_close(); /* the journal of the snapshot before: the first note begins a new one */
    return 0;
}

/* The generation of a snapshot that an earlier slurmctld left; 0: there is none of this layout. */
static uint64_t left_generation(void) {
    struct header left;
    int fd = open(snapshot_path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool fits = fd >= 0 && pread(fd, &left, sizeof(left), 0) == (ssize_t)sizeof(left) &&
                !memcmp(left.magic, MAGIC, sizeof(left.magic)) && left.version == VERSION &&
                left.kind == SNAPSHOT && left.entry_bytes == sizeof(struct queue_entry);

    if (fd >= 0)
        close(fd);
    return fits ? left.generation : 0;
}

/* Whether the open journal still has its name: a deleted one is read by nobody. */
static bool journal_is_in_place(void) {
    struct stat named, opened;

    return journal_fd >= 0 && !lstat(journal_path, &named) && !fstat(journal_fd, &opened) &&
           named.st_ino == opened.st_ino && named.st_dev == opened.st_dev;
}

/* Makes sure that there is a journal to append to: a new one, for the last snapshot. */
static int find_journal(void) {
    int error;

    if (journal_is_in_place())
        return 0;
    if (!generation)
        generation = left_generation();
    if (!generation) {
        error = queue_begin(0);
        if (!error)
            error = queue_end();
        if (error)
            return error;
    }
    return begin_journal();
}

int queue_note(struct queue_job *job) {
    static char buffer[RECORD_BYTES];
    struct table_sum record_sum = TABLE_SUM_START;
    struct record record = {0};
    size_t used = sizeof(record) + sizeof(job->entry);
    int error = find_journal();

    if (error)
        return error;
    job->entry.heap_offset = 0;
    for (int i = 0; i < QUEUE_TEXTS; i++) {
        if (used + job->entry.lengths[i] + 8 > sizeof(buffer))
            return 0;
        memcpy(buffer + used, job->texts[i], job->entry.lengths[i]);
        used += job->entry.lengths[i];
    }
    while (used % 8)
        buffer[used++] = 0;
    if (journal_bytes + used > JOURNAL_BYTES)
        return 0;
    record.bytes = (uint32_t)used;
    memcpy(buffer, &record, sizeof(record));
    memcpy(buffer + sizeof(record), &job->entry, sizeof(job->entry));
    table_sum_add(&record_sum, buffer, used);
    record.checksum = record_sum.sum;
    memcpy(buffer, &record, sizeof(record));
    error = write_all(journal_fd, buffer, used, journal_bytes);
    if (!error)
        journal_bytes += used;
    return error;
}
