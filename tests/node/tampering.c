/*
 * Library preloaded into senergyd. It kills the process with SIGKILL just before the N-th system call that
 * changes a file, and steps its wall clock.
 *
 * The file named by SENERGY_TAMPERING holds three 64-bit numbers, which tests set and read at any time: calls
 * until the kill (0: never), calls so far, offset of the wall clock in seconds. Every state that a kill can
 * leave on disk or in the hardware lies between two such calls, so a test with all N covers all states.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

struct tampering {
    _Atomic int64_t left;
    _Atomic int64_t seen;
    _Atomic int64_t clock_offset_s;
};

static struct tampering *shared;

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("SENERGY_TAMPERING");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *area = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (area != MAP_FAILED)
        shared = area;
    if (fd >= 0)
        close(fd);
}

static void pass(void) {
    if (shared == NULL)
        return;
    atomic_fetch_add(&shared->seen, 1);
    if (atomic_load(&shared->left) > 0 && atomic_fetch_sub(&shared->left, 1) == 1)
        kill(getpid(), SIGKILL);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t length) {
    pass();
    return REAL(write)(fd, data, length);
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    pass();
    return REAL(pwrite64)(fd, data, length, offset);
}

int fsync(int fd) {
    pass();
    return REAL(fsync)(fd);
}

int rename(const char *from, const char *to) {
    pass();
    return REAL(rename)(from, to);
}

int unlink(const char *path) {
    pass();
    return REAL(unlink)(path);
}

int mkdir(const char *path, mode_t mode) {
    pass();
    return REAL(mkdir)(path, mode);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = REAL(clock_gettime)(clock, now);
    if (result == 0 && clock == CLOCK_REALTIME && shared != NULL)
        now->tv_sec += atomic_load(&shared->clock_offset_s);
    return result;
}

int open64(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = va_arg(arguments, mode_t);
    va_end(arguments);
    if (flags & (O_CREAT | O_TRUNC))
        pass();
    return REAL(open64)(path, flags, mode);
}
