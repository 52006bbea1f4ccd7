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

/* A region of the file that is being written, with a buffer of bytes not yet written. */
struct file_region {
    char buffer[BUFFER_BYTES];
    size_t used;
    uint64_t offset;
};

static char snapshot_path[PATH_MAX], spare_path[PATH_MAX], journal_path[PATH_MAX], temporary_path[PATH_MAX];
static struct file_region entries, heap;
static struct table_sum sum;
static struct header header;
static uint64_t generation; /* of the published snapshot; 0: not read yet, or no snapshot */
static uint32_t max_jobs;
static int temporary_fd = -1, temporary_error;
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
           snprintf(temporary_path, sizeof(temporary_path), "%s.new.part", path) < PATH_MAX;
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
 * Opens the snapshot before the last one to overwrite it: memory that the file already has costs a fifth of
 * new memory. A reader that still has it open sees its header erased first.
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

static void flush(struct file_region *file_region) {
    if (!temporary_error)
        temporary_error =
            write_all(temporary_fd, file_region->buffer, file_region->used, file_region->offset);
    file_region->offset += file_region->used;
    file_region->used = 0;
}

static void append(struct file_region *file_region, const void *data, size_t bytes) {
    if (file_region->used + bytes > sizeof(file_region->buffer))
        flush(file_region);
    memcpy(file_region->buffer + file_region->used, data, bytes);
    file_region->used += bytes;
}

int queue_begin(uint32_t most) {
    max_jobs = most < QUEUE_MAX_JOBS ? most : QUEUE_MAX_JOBS;
    temporary_fd = open_spare();
    temporary_error = temporary_fd < 0 ? errno : 0;
    if (temporary_error)
        return temporary_error;
    fill_header(SNAPSHOT);
    header.generation =
        (uint64_t)header.taken_unix_ns > generation ? (uint64_t)header.taken_unix_ns : generation + 1;
    header.heap_offset = sizeof(header) + (uint64_t)max_jobs * sizeof(struct queue_entry);
    entries.used = heap.used = 0;
    sum = (struct table_sum){0, sizeof(header) / 8 * TABLE_SUM_STEP}; /* the header is added at the end */
    entries.offset = sizeof(header);
    heap.offset = header.heap_offset;
    return 0;
}

void queue_add(struct queue_job *job) {
    if (header.count >= max_jobs) {
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

/* Closes the written file; returns `error`, or if that is 0 the errno of close. */
static int close_temporary(int error) {
    if (close(temporary_fd) && !error)
        error = errno;
    temporary_fd = -1;
    return error;
}

/* Exchanges snapshot and spare if possible; the previous snapshot is overwritten next. */
static int publish_snapshot(int error) {
    struct stat status;

    error = close_temporary(error);
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
    temporary_fd = create(temporary_path);
    if (temporary_fd < 0)
        return errno;
    fill_header(JOURNAL);
    error = write_all(temporary_fd, &header, sizeof(header), 0);
    journal_fd = error ? -1 : fcntl(temporary_fd, F_DUPFD_CLOEXEC, 0);
    if (!error && journal_fd < 0)
        error = errno;
    journal_bytes = sizeof(header);
    error = close_temporary(error);
    if (!error && rename(temporary_path, journal_path))
        error = errno;
    if (error) {
        (void)unlink(temporary_path);
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
    if (!temporary_error && ftruncate(temporary_fd, (off_t)heap.offset))
        temporary_error = errno;
    if (!temporary_error)
        temporary_error = write_all(temporary_fd, &header, sizeof(header), 0);
    temporary_error = publish_snapshot(temporary_error);
    if (temporary_error)
        return temporary_error;
    generation = header.generation;
    queue_close(); /* this was the journal of the previous snapshot: the next append starts a new one */
    return 0;
}

/* The generation of the snapshot of an earlier slurmctld; 0: there is none with this layout. */
static uint64_t previous_generation(void) {
    struct header left;
    int fd = open(snapshot_path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool fits = fd >= 0 && pread(fd, &left, sizeof(left), 0) == (ssize_t)sizeof(left) &&
                !memcmp(left.magic, MAGIC, sizeof(left.magic)) && left.version == VERSION &&
                left.kind == SNAPSHOT && left.entry_bytes == sizeof(struct queue_entry);

    if (fd >= 0)
        close(fd);
    return fits ? left.generation : 0;
}

/* Whether the open journal still has its name; a deleted journal has no reader. */
static bool journal_is_current(void) {
    struct stat named, opened;

    return journal_fd >= 0 && !lstat(journal_path, &named) && !fstat(journal_fd, &opened) &&
           named.st_ino == opened.st_ino && named.st_dev == opened.st_dev;
}

/* Ensures that a journal of the last snapshot is open; creates one if needed. */
static int ensure_journal(void) {
    int error;

    if (journal_is_current())
        return 0;
    if (!generation)
        generation = previous_generation();
    if (!generation) {
        error = queue_begin(0);
        if (!error)
            error = queue_end();
        if (error)
            return error;
    }
    return begin_journal();
}

int queue_append_to_journal(struct queue_job *job) {
    static char buffer[RECORD_BYTES];
    struct table_sum record_sum = TABLE_SUM_START;
    struct record record = {0};
    size_t used = sizeof(record) + sizeof(job->entry);
    int error = ensure_journal();

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
